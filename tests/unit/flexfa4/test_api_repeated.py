"""A repeated call finds what an earlier one decided, and notices all that has changed since."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch

import flexfa4
from flexfa4 import api, errors
from flexfa4.masks import cache

LENGTH = 24
QUERY = torch.randn(
    1, 2, LENGTH, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
)
at = torch.arange(LENGTH)
q_at, kv_at = at[:, None], at[None]


def attend(q: torch.Tensor = QUERY, **chosen: Any) -> torch.Tensor:
    # key and value are other tensors than the query, as calls have that are found in the least time
    key, value = (q if q is None or q.is_sparse else q[:] for _ in range(2))
    found: torch.Tensor = flexfa4.attention(q, key, value, **chosen)
    return found


def expected(seen: torch.Tensor, q: torch.Tensor = QUERY) -> torch.Tensor:
    return torch.nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=seen)


def check(mask: Any, seen: torch.Tensor) -> None:
    for _ in range(2):
        torch.testing.assert_close(attend(block_mask=mask), expected(seen))


# ---- masks given as functions --------------------------------------------------------------------


def test_a_number_that_a_mask_captures_may_change_between_calls() -> None:
    width: Any = 3

    def mask(b: Any, h: Any, q: Any, kv: Any) -> Any:
        return (q >= kv) & (q - kv < width)

    for width in (3, 7, 3, 5):
        check(mask, (q_at >= kv_at) & (q_at - kv_at < width))


def test_zeros_of_both_signs_are_different_numbers() -> None:
    number = 0.0

    def mask(b: Any, h: Any, q: Any, kv: Any) -> Any:
        return (kv < 3) | ((q * 0.0 + 1.0) / number > 0)

    for number in (0.0, -0.0, 0.0):
        positive = torch.tensor(1.0) / number > 0
        check(mask, ((kv_at < 3) | positive).expand(LENGTH, LENGTH))


def test_a_tensor_that_a_mask_captures_may_be_replaced_or_changed_in_place() -> None:
    ids = torch.arange(LENGTH) // 5

    def mask(b: Any, h: Any, q: Any, kv: Any) -> Any:
        return ids[q] == ids[kv]

    for ids in (ids, torch.arange(LENGTH) // 7, torch.arange(LENGTH) % 3):  # noqa: B020
        check(mask, ids[:, None] == ids)
    ids.fill_(1)
    check(mask, torch.ones(LENGTH, LENGTH, dtype=torch.bool))


def test_a_function_that_is_changed_is_another_mask() -> None:
    def mask(b: Any, h: Any, q: Any, kv: Any) -> Any:
        return q >= kv

    check(mask, q_at >= kv_at)
    mask.__code__ = (lambda b, h, q, kv: q <= kv).__code__
    check(mask, q_at <= kv_at)


def test_masks_that_are_made_and_dropped_in_turn_are_told_apart() -> None:
    """Objects of one size take each other's place in memory, so their numbers return."""
    for n in range(3 * cache._MOST):
        mask = eval(f"lambda b, h, q, kv: q >= kv + {n % 5}")
        torch.testing.assert_close(attend(block_mask=mask), expected_lower(n % 5))
        del mask
        gc.collect(0)
    assert len(cache._OF_FORMS) <= cache._MOST


def expected_lower(n: int) -> torch.Tensor:
    """Return attention to keys at least `n` before the query; nothing where there are none."""
    return expected(q_at >= kv_at + n).nan_to_num(0.0)


def test_one_mask_serves_calls_of_several_forms_in_turn() -> None:
    def mask(b: Any, h: Any, q: Any, kv: Any) -> Any:
        return q >= kv

    made = {n: flexfa4.create_block_mask(mask, q_len=n, kv_len=n) for n in (16, LENGTH)}
    for _ in range(2):
        for length, dtype in ((16, torch.float64), (LENGTH, torch.float64), (16, torch.float32)):
            q = QUERY[:, :, :length].to(dtype)
            found = expected((q_at >= kv_at)[:length, :length], q)
            for given in (mask, made[length]):
                torch.testing.assert_close(attend(q, block_mask=given), found)


# ---- block masks ---------------------------------------------------------------------------------


def test_a_block_mask_is_checked_on_every_call() -> None:
    width = 3
    made = flexfa4.create_block_mask(
        lambda b, h, q, kv: (q >= kv) & (q - kv < width), q_len=LENGTH, kv_len=LENGTH
    )
    check(made, (q_at >= kv_at) & (q_at - kv_at < 3))
    with pytest.raises(errors.BlockMaskMismatchError):
        attend(QUERY[:, :, 1:], block_mask=made)
    width = 4
    for _ in range(2):
        with pytest.raises(errors.StaleBlockMaskError, match="width"):
            attend(block_mask=made)


def test_a_block_mask_remembers_few_forms() -> None:
    made = flexfa4.create_block_mask("q >= kv", q_len=4, kv_len=4)
    for heads in range(1, 150):
        attend(torch.zeros(1, heads, 4, 8), block_mask=made)
    assert len(made._of_forms) <= 64


# ---- choices and modes ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        {"return_lse": 0},
        {"return_lse": 1},
        {"deterministic": 0},
        {"scale": True},
        {"scale": "1"},
        {"backend": ["cpu"]},
        {"backend": "sm9"},
        {"options": {}},
        {"options": ()},
        {"options": 0},
    ],
    ids=str,
)
def test_what_equals_a_valid_argument_or_cannot_be_looked_up_is_refused(wrong: Any) -> None:
    for chosen in ({}, {"return_lse": True}, {"deterministic": True}, {"scale": 1.0}):
        attend(**chosen)
    with pytest.raises((errors.ArgumentError, errors.BackendError)):
        attend(**wrong)


def test_a_scale_is_that_of_the_call() -> None:
    for scale in (None, 1.0, 0.25, None, 2):
        found = torch.nn.functional.scaled_dot_product_attention(QUERY, QUERY, QUERY, scale=scale)
        torch.testing.assert_close(attend(scale=scale), found)


def test_gradients_are_computed_when_and_only_when_they_are_wanted() -> None:
    leaf = QUERY.clone().requires_grad_()
    for _ in range(4):
        assert not attend().requires_grad
        assert attend(leaf).requires_grad
        assert attend(torch.nn.Parameter(QUERY)).requires_grad
        with torch.no_grad():
            assert not attend(leaf).requires_grad
    leaf.requires_grad_(False)
    assert not attend(leaf).requires_grad
    slope = torch.ones((), requires_grad=True)
    for wanted in (True, False, True):
        slope.requires_grad_(wanted)
        out = attend(score_mod=lambda s, b, h, q, kv: s * slope)
        assert out.requires_grad == wanted


def test_autocast_is_asked_on_every_call() -> None:
    q = QUERY.float()
    for _ in range(4):
        assert attend(q).dtype is torch.float32
        with torch.autocast("cpu", torch.bfloat16):
            assert attend(q).dtype is torch.bfloat16


def test_torch_sees_an_op_where_it_watches_and_only_there() -> None:
    one = QUERY[0, :1]

    def alone(q: torch.Tensor) -> torch.Tensor:
        return attend(q[None])[0]

    for _ in range(4):
        attend(one[None])
        batched = torch.func.vmap(alone)(QUERY.expand(3, *QUERY.shape[1:]))
        torch.testing.assert_close(batched[2], attend()[0])
        gradient = torch.func.grad(lambda q: alone(q).sum())(one)
        assert gradient.shape == one.shape


def test_a_tensor_that_is_none_is_refused_after_calls_that_were_served() -> None:
    for _ in range(4):
        attend()
    for wrong in (None, QUERY[0], QUERY.to_sparse(), QUERY.int(), QUERY.to("meta")):
        with pytest.raises(errors.FlexFA4Error):
            attend(wrong)  # type: ignore[arg-type]
        with pytest.raises(errors.FlexFA4Error):
            flexfa4.attention(QUERY, QUERY, wrong)  # type: ignore[arg-type]


def test_a_sink_or_a_tensor_of_another_layout_is_noticed_after_calls_that_were_alike() -> None:
    for _ in range(4):
        torch.testing.assert_close(attend(), expected(torch.ones(LENGTH, LENGTH).bool()))
    out, lse = flexfa4.attention(QUERY, QUERY[:], QUERY[:], return_lse=True)
    sink = torch.zeros(2, dtype=torch.float64)
    found = flexfa4.attention(QUERY, QUERY[:], QUERY[:], sink=sink)
    torch.testing.assert_close(found, out * lse.sigmoid()[..., None])
    with pytest.raises(errors.FlexFA4Error, match="sink"):
        flexfa4.attention(QUERY, QUERY[:], QUERY[:], sink=sink[:1])
    turned = QUERY.transpose(2, 3).contiguous().transpose(2, 3)
    odd = torch.zeros(QUERY.numel() + 1, dtype=QUERY.dtype)[1:].view(QUERY.shape).copy_(QUERY)
    for other in (turned, odd, QUERY.expand(2, -1, -1, -1)):
        torch.testing.assert_close(flexfa4.attention(other, QUERY[:], QUERY[:])[:1], out)
        torch.testing.assert_close(flexfa4.attention(QUERY, other[:1], QUERY[:]), out)


def test_storage_that_is_replaced_or_resized_is_another_call() -> None:
    q, key, value = (QUERY.clone() for _ in range(3))
    for _ in range(4):
        flexfa4.attention(q, key, value)
    q.data = QUERY[:, :, :5].clone()
    assert flexfa4.attention(q, key, value).shape == q.shape
    value.data = QUERY[..., :8].clone()
    assert flexfa4.attention(q, key, value).shape == (1, 2, 5, 8)
    key.data = QUERY[:, :, :3].clone()
    with pytest.raises(errors.FlexFA4Error):
        flexfa4.attention(q, key, value)


def test_captured_tensors_of_another_layout_are_noticed_after_calls_that_were_alike() -> None:
    bias = torch.randn(LENGTH, dtype=torch.float64)

    def mod(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        return score + bias[kv]

    def check_bias() -> None:
        out = attend(score_mod=mod)
        given = bias.detach().to(torch.float64)[:LENGTH].expand(LENGTH, LENGTH)
        torch.testing.assert_close(out, expected(given))
        assert out.requires_grad == bias.requires_grad

    dense = torch.randn(2 * LENGTH + 1, dtype=torch.float64)
    others = (dense[::2], dense[1:], dense.bfloat16(), dense.float().requires_grad_())
    for bias in (bias, *others, bias):  # noqa: B007, B020 - the mod reads it
        for _ in range(4):
            check_bias()
    bias = dense.to("meta")
    with pytest.raises(errors.DeviceError):
        attend(score_mod=mod)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors", "ignore:Sparse CSR")
@pytest.mark.parametrize(
    "made",
    [
        torch.Tensor.to_sparse,
        lambda bias: bias.expand(2, -1).to_sparse_csr(),
        lambda bias: torch.nested.nested_tensor([bias]),
        lambda bias: torch.nested.nested_tensor([bias], layout=torch.jagged),
    ],
    ids=["sparse", "sparse rows", "nested", "jagged"],
)
def test_captured_tensors_without_strides_are_refused_after_calls_with_others(made: Any) -> None:
    bias = torch.randn(LENGTH)

    def mod(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        return score + bias[kv]

    for _ in range(4):
        attend(score_mod=mod)
    bias = made(bias)
    with pytest.raises(errors.CaptureError, match="nested, sparse or quantized"):
        attend(score_mod=mod)


def test_what_repeats_is_recognised_without_a_look_at_every_tensor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bias = torch.zeros(LENGTH, dtype=torch.float64)

    def mod(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        return score + bias[kv]

    for _ in range(70):  # forms are kept now and then, and other tests have called with this one
        attend(score_mod=mod)
    for name in ("_checked_form", "form_of", "_check_captures", "layout_of"):
        monkeypatch.delattr(api, name)
    everything = torch.ones(LENGTH, LENGTH, dtype=torch.bool)
    torch.testing.assert_close(attend(score_mod=mod), expected(everything))
