"""Masks given to attention as functions: made into block masks once for each set of captures."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import flexfa4
from flexfa4.counters import Stats, stats
from flexfa4.errors import DeviceError
from flexfa4.masks.cache import _CACHE
from flexfa4.variants import causal
from tests.masked_calls import attend, inputs, reference
from tests.random_masks import Space

Mask = Callable[..., Any]
G = torch.Generator().manual_seed(0)


def mixed(length: int = 40) -> torch.Tensor:
    """Return ids of which equal ones do not stand together: a mask of them has no closed form."""
    return torch.arange(length) % 7


def classified(tensors: list[torch.Tensor], mask: Mask) -> int:
    """Return how often a call evaluated the mask to find its blocks; check what it computed."""
    before = stats()
    out = attend(tensors, mask)
    made = (stats() - before).block_lists
    torch.testing.assert_close(out, reference(tensors, mask))
    return made


def test_a_function_is_classified_once_and_again_only_when_a_capture_changes() -> None:
    c = SimpleNamespace(ids=mixed(), window=5)
    mask: Mask = lambda b, h, q, kv: (c.ids[q] == c.ids[kv]) & (q - kv < c.window)  # noqa: E731
    tensors = inputs()
    assert [classified(tensors, mask) for _ in range(3)] == [1, 0, 0]
    c.window = 3
    assert [classified(tensors, mask) for _ in range(2)] == [1, 0]
    c.window = 5  # still known from before
    assert classified(tensors, mask) == 0
    c.ids[4] = 8
    assert [classified(tensors, mask) for _ in range(2)] == [1, 0]
    c.ids = torch.arange(40) % 11
    assert [classified(tensors, mask) for _ in range(2)] == [1, 0]
    c.ids.data = torch.arange(40) % 3
    assert [classified(tensors, mask) for _ in range(2)] == [1, 0]


def test_a_view_made_by_the_mask_is_the_same_tensor_on_each_call() -> None:
    ids = mixed(120).view(3, 40)
    mask: Mask = lambda b, h, q, kv: ids[1][q] == ids[1][kv]  # noqa: E731
    tensors = inputs()
    assert [classified(tensors, mask) for _ in range(2)] == [1, 0]
    ids[1, 5] = 30
    assert [classified(tensors, mask) for _ in range(2)] == [1, 0]
    assert classified(tensors, lambda b, h, q, kv: ids[2][q] == ids[2][kv]) == 1


def test_nothing_is_kept_for_tensors_whose_changes_torch_does_not_count() -> None:
    with torch.inference_mode():
        ids = mixed()
    mask: Mask = lambda b, h, q, kv: ids[q] == ids[kv]  # noqa: E731
    tensors = inputs()
    assert [classified(tensors, mask) for _ in range(2)] == [1, 1]
    with torch.inference_mode():
        ids[5] = 9
    assert classified(tensors, mask) == 1


def test_a_tensor_that_the_mask_computes_is_seen_anew_on_each_call() -> None:
    ids = mixed()
    mask: Mask = lambda b, h, q, kv: (ids % 3)[q] == (ids % 3)[kv]  # noqa: E731
    tensors = inputs()
    assert classified(tensors, mask) == 1
    ids[5] = 9
    assert classified(tensors, mask) == 1


def test_a_mask_is_classified_again_for_other_sizes_only_if_it_can_differ() -> None:
    mask: Mask = lambda b, h, q, kv: (q - kv) % 11 < 4  # noqa: E731
    assert classified(inputs(), mask) == 1
    assert classified(inputs(batch=3), mask) == 0
    assert classified(inputs(heads=5), mask) == 0
    assert classified(inputs(length=41), mask) == 1
    by_head: Mask = lambda b, h, q, kv: (q - kv) % 11 < 4 + h  # noqa: E731
    assert classified(inputs(), by_head) == 1
    assert classified(inputs(batch=3), by_head) == 0
    assert classified(inputs(heads=5), by_head) == 1


def test_a_mask_in_closed_form_is_solved_once_and_never_evaluated_for_its_blocks() -> None:
    c = SimpleNamespace(ids=torch.arange(50) // 7, window=5)
    mask: Mask = lambda b, h, q, kv: (c.ids[q] == c.ids[kv]) & (q - kv < c.window)  # noqa: E731
    attend(inputs(), mask)
    before = stats()
    c.window = 9
    attend(inputs(), mask)
    attend(inputs(length=43), mask)
    c.ids[40:] = 99
    tensors = inputs(length=43)
    torch.testing.assert_close(attend(tensors, mask), reference(tensors, mask))
    assert stats() - before == Stats(calls=3)


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 2), (4, 1), (4, 4)])
def test_a_function_may_read_the_number_of_key_heads(heads: int, kv_heads: int) -> None:
    q = torch.randn(2, heads, 40, 16, generator=G)
    k, v = (torch.randn(2, kv_heads, 40, 16, generator=G) for _ in range(2))
    count: Any = flexfa4.num_kv_heads
    found = attend([q, k, v], lambda b, h, q, kv: q - kv >= h // (flexfa4.num_heads // count))
    k, v = (t.repeat_interleave(heads // kv_heads, 1) for t in (k, v))
    shape = (2, heads, 40, 40)
    seen = Space(*shape).dense(lambda b, h, q, kv: q - kv >= h // (heads // kv_heads))
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, seen)
    torch.testing.assert_close(found, expected.nan_to_num(0.0))


def test_captures_of_a_function_must_be_where_the_call_is() -> None:
    ids = torch.arange(40, device="meta")
    with pytest.raises(DeviceError, match=r"captured tensor `ids` is on meta, the mask on cpu"):
        attend(inputs(), lambda b, h, q, kv: ids[q] == ids[kv])


# ---- changes that torch does not count -----------------------------------------------------------


@pytest.mark.parametrize("through", ["numpy", "data"])
def test_a_change_that_torch_does_not_count_is_seen(through: str) -> None:
    ids = torch.zeros(16, dtype=torch.int64)

    def change() -> None:
        new = torch.arange(16) // 4
        if through == "numpy":
            ids.numpy()[:] = new.numpy()
        else:
            ids.data.copy_(new)

    def mask(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return ids[q_idx] == ids[kv_idx]

    x = torch.randn(1, 1, 16, 4, generator=torch.Generator().manual_seed(0))
    made = flexfa4.create_block_mask(mask, q_len=16, kv_len=16)
    before = flexfa4.attention(x, x, x, block_mask=mask)
    change()
    after = flexfa4.attention(x, x, x, block_mask=mask)
    assert not torch.equal(before, after)
    fresh = flexfa4.create_block_mask(mask, q_len=16, kv_len=16)
    assert torch.equal(after, flexfa4.attention(x, x, x, block_mask=fresh))
    with pytest.raises(flexfa4.errors.StaleBlockMaskError):
        flexfa4.attention(x, x, x, block_mask=made)


def test_the_sign_of_zero_is_part_of_a_captured_number() -> None:
    w = 0.0

    def mask(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return torch.where(q_idx >= 0, 1.0, 1.0) / w > 0

    x = torch.randn(1, 1, 4, 4)
    made = flexfa4.create_block_mask(mask, q_len=4, kv_len=4)
    assert flexfa4.attention(x, x, x, block_mask=mask).any()
    w = -0.0
    assert not flexfa4.attention(x, x, x, block_mask=mask).any()
    with pytest.raises(flexfa4.errors.StaleBlockMaskError):
        made.check_current()


def test_views_that_differ_in_strides_only_do_not_share_a_mask() -> None:
    table = torch.eye(4, dtype=torch.bool)
    table[0, 3] = True

    def of(t: torch.Tensor) -> torch.Tensor:
        x = torch.randn(1, 1, 4, 4, generator=torch.Generator().manual_seed(0))
        out = flexfa4.attention(x, x, x, block_mask=lambda b, h, q_idx, kv_idx: t[q_idx, kv_idx])
        assert isinstance(out, torch.Tensor)
        return out

    assert not torch.equal(of(table.view(4, 4)), of(table.T))


def test_the_cache_of_masks_is_bounded() -> None:
    x = torch.randn(1, 1, 4, 4)
    for i in range(_CACHE.size + 5):
        ids = torch.full((4,), i)
        flexfa4.attention(x, x, x, block_mask=lambda b, h, q, kv, ids=ids: ids[q] == ids[kv])
    assert len(_CACHE) == _CACHE.size


def test_a_default_device_elsewhere_does_not_matter() -> None:
    x = torch.randn(1, 1, 64, 4)
    expected = flexfa4.attention(x, x, x, block_mask=causal)
    with torch.device("meta"):
        assert torch.equal(flexfa4.attention(x, x, x, block_mask=causal), expected)
