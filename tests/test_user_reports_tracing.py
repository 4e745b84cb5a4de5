"""Tracing, closures, aliasing, devices and strides: public reports on others, right values."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

import flexfa4
from flexfa4.errors import (
    ArgumentError,
    ArityError,
    DeviceError,
    OperandError,
    ResultError,
    TracedBoolError,
)
from flexfa4.testing import Case, Sizes, Trial, excess, make_inputs
from flexfa4.variants import causal

SMALL = Sizes(2, 2, 1, 12, 14, 8, 8)


def dense_mask(mask: Any) -> torch.Tensor:
    return flexfa4.create_block_mask(mask, batch=2, heads=2, q_len=12, kv_len=14).to_dense()


def index_grid() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    b, h, q, kv = torch.meshgrid(*map(torch.arange, (2, 2, 12, 14)), indexing="ij")
    return b, h, q, kv


# ---- decisions on values -------------------------------------------------------------------------


def branches(b: Any, h: Any, q: Any, kv: Any) -> Any:
    if q >= kv:  # noqa: SIM103 - what people write
        return True
    return False


def loops(b: Any, h: Any, q: Any, kv: Any) -> Any:
    while q < kv:
        q = q + 1
    return q == kv


# the mask, the construct that the message names, and what it tells to write
DECISIONS: dict[str, tuple[Any, str, str]] = {
    "if": (branches, "`if`", "return q >= kv"),
    "while": (loops, "`while`", "torch.where"),
    "conditional": (
        lambda b, h, q, kv: True if q >= kv else kv < 2,
        "a conditional expression",
        "torch.where(q >= kv, True, kv < 2)",
    ),
    "and": (lambda b, h, q, kv: q >= kv and q - kv < 5, "`and`", "(q >= kv) & (q - kv < 5)"),
    "or": (lambda b, h, q, kv: q >= kv or kv < 5, "`or`", "(q >= kv) | (kv < 5)"),
    "not": (lambda b, h, q, kv: not q < kv, "`not`", "~(q < kv)"),
    "chain": (
        lambda b, h, q, kv: 0 <= q - kv < 5,
        "a chained comparison",
        "(0 <= q - kv) & (q - kv < 5)",
    ),
    "all": (lambda b, h, q, kv: all([q >= kv, q - kv < 5]), "`all()`", "joined by &"),
    "any": (lambda b, h, q, kv: any([q >= kv, kv < 5]), "`any()`", "joined by |"),
}


@pytest.mark.skipif(sys.version_info < (3, 11), reason="an instruction knows its line only")
@pytest.mark.parametrize("name", DECISIONS)
def test_a_decision_on_a_value_names_the_line_and_what_to_write(name: str) -> None:
    """pytorch/pytorch#157543, meta-pytorch/attention-gym#25: a generic text about vmap."""
    mask, construct, instead = DECISIONS[name]
    with pytest.raises(TracedBoolError, match=f"^{re.escape(construct)} asks for one True") as e:
        flexfa4.create_block_mask(mask, q_len=8, kv_len=8)
    assert f"{__file__}:" in str(e.value) and "^^^" in str(e.value)
    assert instead in str(e.value).rpartition("instead: ")[2]


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_a_tensor_of_one_element_is_a_number(shape: tuple[int, ...]) -> None:
    """huggingface/transformers#46682, huggingface/transformers#46802: the mask got five axes."""
    four, half = torch.full(shape, 4), torch.full(shape, 0.5, requires_grad=True)
    *_, q, kv = index_grid()
    masks: list[tuple[Any, torch.Tensor]] = [
        (lambda b, h, q, kv: q + four >= kv, q + 4 >= kv),
        (lambda b, h, q, kv: four + q - kv > 2, 4 + q - kv > 2),
        (lambda b, h, q, kv: (q >= kv) & (four > 3), q >= kv),
        (lambda b, h, q, kv: torch.maximum(q, four) >= kv, q.clamp(min=4) >= kv),
        (lambda b, h, q, kv: torch.where(kv < four, True, q >= kv), (kv < 4) | (q >= kv)),
    ]
    for mask, right in masks:
        assert torch.equal(dense_mask(mask), right)
    found = flexfa4.trace(lambda score, b, h, q, kv: torch.where(q >= kv, score * half, -half))
    x = make_inputs(SMALL)
    out = flexfa4.attention(x.q, x.k, x.v, score_mod=found)
    (grad,) = torch.autograd.grad(out.square().sum(), half)
    assert grad.shape == shape and bool(grad != 0)


def test_a_tensor_of_several_elements_is_refused_where_one_is_needed() -> None:
    """huggingface/transformers#46682, the kind: a vector of offsets."""
    several = torch.tensor([4, 5])
    with pytest.raises(ResultError, match="a vector of 2 elements"):
        flexfa4.create_block_mask(lambda b, h, q, kv: q + several >= kv, q_len=8, kv_len=8)


# ---- forms of functions --------------------------------------------------------------------------


def all_positional(*args: Any) -> Any:
    _, _, q, kv = args
    return q - kv < 5


def some_positional(b: Any, h: Any, *args: Any, **kwargs: Any) -> Any:
    return args[0] - args[1] < 5


class Windowed:
    """A mask in each form that a class offers."""

    width = 5

    def method(self, b: Any, h: Any, q: Any, kv: Any) -> Any:
        return q - kv < self.width

    @staticmethod
    def static(b: Any, h: Any, q: Any, kv: Any) -> Any:
        return q - kv < 5

    @classmethod
    def of_class(cls, b: Any, h: Any, q: Any, kv: Any) -> Any:
        return q - kv < cls.width

    def __call__(self, b: Any, h: Any, q: Any, kv: Any) -> Any:
        return self.method(b, h, q, kv)


FORMS: dict[str, Callable[..., Any]] = {
    "args": all_positional,
    "lambda of args": lambda *a: a[2] - a[3] < 5,
    "some args": some_positional,
    "method": Windowed().method,
    "static method": Windowed.static,
    "static method of an instance": Windowed().static,
    "class method": Windowed.of_class,
    "class method of an instance": Windowed().of_class,
    "instance": Windowed(),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_mask_may_have_any_form_of_parameters(form: str) -> None:
    """pytorch/pytorch#144672 (*args), and bound methods whose self was counted."""
    _, _, q, kv = index_grid()
    assert torch.equal(dense_mask(FORMS[form]), q - kv < 5)
    assert not excess(Trial(Case.of(mask=FORMS[form]), SMALL))


def test_a_score_mod_may_take_args_too() -> None:
    """pytorch/pytorch#144672."""

    def score_mod(*args: Any) -> Any:
        score, _, _, q, kv = args
        return score + 0.1 * (kv - q)

    assert not excess(Trial(Case.of(score_mod, causal), SMALL))


def test_trace_asks_for_the_kind_of_a_function_of_any_number_of_parameters() -> None:
    """pytorch/pytorch#144672: they do not tell a mask from a score mod."""
    with pytest.raises(ArityError, match='kind="mask"'):
        flexfa4.trace(all_positional)
    assert flexfa4.trace(all_positional, kind="mask").kind == "mask"


def test_a_method_of_the_other_kind_is_refused_by_what_it_takes_without_self() -> None:
    """Bound methods whose self was counted: a mask method was taken for a score mod."""
    assert flexfa4.trace(Windowed().method).kind == "mask"
    x = make_inputs(SMALL)
    with pytest.raises(ArityError, match="`method` takes 4 parameters"):
        flexfa4.attention(x.q, x.k, x.v, score_mod=Windowed().method)


# ---- operators -----------------------------------------------------------------------------------


@pytest.mark.skipif(sys.version_info < (3, 11), reason="an instruction knows its line only")
@pytest.mark.parametrize(
    ("mask", "error", "instead"),
    [
        (
            lambda b, h, q, kv: (q >= kv) & b % 2 == 0,
            OperandError,
            "(q >= kv) & (b % 2 == 0)",
        ),
        (
            lambda b, h, q, kv: q >= kv & b % 2 == 0,
            TracedBoolError,
            "(q >= kv) & (b % 2 == 0)",
        ),
        (lambda b, h, q, kv: (q >= kv) | h == 0, OperandError, "(q >= kv) | (h == 0)"),
    ],
)
def test_a_comparison_that_binds_less_tightly_than_meant_is_pointed_out(
    mask: Any, error: type[Exception], instead: str
) -> None:
    """pytorch/pytorch#136196: Python reads ((q >= kv) & (b % 2)) == 0, and so did the mask."""
    with pytest.raises(error, match=re.escape(instead)):
        flexfa4.create_block_mask(mask, batch=2, heads=2, q_len=8, kv_len=8)


def test_operators_bind_as_in_python_in_functions_and_in_texts() -> None:
    """pytorch/pytorch#136196, the kind."""
    b, h, q, kv = index_grid()
    pairs: list[tuple[Any, str]] = [
        (lambda b, h, q, kv: (q >= kv) & (b % 2 == 0) | (kv < 2),
         "(q >= kv) & (b % 2 == 0) | (kv < 2)"),
        (lambda b, h, q, kv: ~(q < kv) ^ (h == 1), "~(q < kv) ^ (h == 1)"),
        (lambda b, h, q, kv: -q // 3 + kv % 4 * 2 < 1, "-q // 3 + kv % 4 * 2 < 1"),
        (lambda b, h, q, kv: (q & 3 ^ kv << 1 | 1) > 4, "(q & 3 ^ kv << 1 | 1) > 4"),
        (lambda b, h, q, kv: q - kv - 1 > -2, "q - kv - 1 > -2"),
    ]  # fmt: skip
    for mask, text in pairs:
        assert torch.equal(dense_mask(mask), mask(b, h, q, kv))
        assert torch.equal(dense_mask(text), mask(b, h, q, kv))


YES = torch.tensor(True)
ALWAYS: list[Any] = [
    lambda b, h, q, kv: True,
    lambda b, h, q, kv: YES,
    lambda b, h, q, kv: b == 0,
    lambda b, h, q, kv: h >= 0,
    lambda b, h, q, kv: torch.ones_like(q, dtype=torch.bool),
    lambda b, h, q, kv: kv.new_ones((), dtype=torch.bool),
]
OWN: list[Any] = [
    lambda b, h, q, kv: q == kv,
    lambda b, h, q, kv: (kv - q).abs() < 1,
    lambda b, h, q, kv: ~((q - kv) != 0).bool(),
]


@pytest.mark.parametrize("length", [1, 2, 7])
def test_the_simplest_masks_work_at_the_smallest_sizes(length: int) -> None:
    """pytorch/pytorch#140363, pytorch/pytorch#174878: internal errors with batch 1."""
    x = make_inputs(Sizes(1, 1, 1, length, length, 8, 8))
    everything = flexfa4.attention(x.q, x.k, x.v)
    for mask in ALWAYS:
        assert torch.equal(flexfa4.attention(x.q, x.k, x.v, block_mask=mask), everything)
    for mask in OWN:
        torch.testing.assert_close(flexfa4.attention(x.q, x.k, x.v, block_mask=mask), x.v)


# ---- tensors -------------------------------------------------------------------------------------


def test_query_key_and_value_may_be_one_tensor() -> None:
    """pytorch/pytorch#157612: the same buffer three times was refused."""
    x = torch.randn(1, 2, 64, 16, generator=torch.Generator().manual_seed(0), requires_grad=True)
    copies = [x.detach().clone().requires_grad_() for _ in range(3)]
    found = flexfa4.attention(x, x, x, block_mask=causal)
    right = flexfa4.attention(*copies, block_mask=causal)
    assert torch.equal(found, right)
    (grad,) = torch.autograd.grad(found.square().sum(), x)
    grads = torch.autograd.grad(right.square().sum(), copies)
    torch.testing.assert_close(grad, sum(grads))


def test_inputs_may_overlap_each_other_and_a_captured_tensor() -> None:
    """pytorch/pytorch#157612, the kind: views of one buffer, captured as well."""
    base = torch.randn(1, 2, 40, 16, generator=torch.Generator().manual_seed(0), requires_grad=True)

    def run(base: torch.Tensor, part: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        q, k, v, bias = part(base)[:, :, :32], part(base)[:, :, 8:], part(base)[:, :, 4:36], base
        return flexfa4.attention(
            q, k, v, score_mod=lambda score, b, h, q_idx, kv_idx: score + bias[0, h, kv_idx, 3]
        )

    found, right = run(base, lambda t: t), run(base, lambda t: t.clone())
    assert torch.equal(found, right)
    grads = [torch.autograd.grad(out.square().sum(), base)[0] for out in (found, right)]
    torch.testing.assert_close(*grads)


def packed(s: int, b: int, heads: int, groups: tuple[int, int, int], d: int) -> Any:
    """Return query, key and value as views of one (S, B, heads, D) tensor."""
    qkv = torch.randn(s, b, heads, d, generator=torch.Generator().manual_seed(0))
    return [t.permute(1, 2, 0, 3) for t in qkv.split(groups, dim=2)]


LAYOUTS: dict[str, Callable[[], list[torch.Tensor]]] = {
    "packed heads": lambda: packed(130, 1, 18, (16, 1, 1), 8),
    "packed and batched": lambda: packed(70, 3, 6, (4, 1, 1), 8),
    "one axis of five": lambda: [torch.randn(2, 3, 4, 70, 16).select(1, i) for i in range(3)],
    "last of five": lambda: [torch.randn(2, 4, 70, 16, 3).select(4, i) for i in range(3)],
    "every second of the last": lambda: [torch.randn(2, 4, 70, 32)[..., ::2] for _ in range(3)],
    "transposed last": lambda: [torch.randn(2, 4, 16, 70).transpose(2, 3) for _ in range(3)],
    "batch inside": lambda: [torch.randn(4, 70, 16, 2).permute(3, 0, 1, 2) for _ in range(3)],
    "expanded": lambda: [torch.randn(1, 1, 70, 16).expand(2, 4, -1, -1) for _ in range(3)],
    "offset": lambda: [torch.randn(2 * 4 * 70 * 16 + 3)[3:].view(2, 4, 70, 16) for _ in range(3)],
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_tensors_of_any_strides_equal_their_contiguous_copies(name: str) -> None:
    """pytorch/pytorch#134471, pytorch/pytorch#152683, NVIDIA/TransformerEngine#1195: views of a
    packed tensor were refused, or gave errors of 6.2."""
    views = [t.requires_grad_() for t in LAYOUTS[name]()]
    copies = [t.detach().contiguous().clone().requires_grad_() for t in views]
    assert name == "offset" or not any(t.is_contiguous() for t in views)
    weights = torch.randn(copies[0].shape, generator=torch.Generator().manual_seed(1))
    outs = [flexfa4.attention(*tensors, block_mask=causal) for tensors in (views, copies)]
    torch.testing.assert_close(*outs)
    found, right = (
        torch.autograd.grad((out * weights).sum(), tensors)
        for out, tensors in zip(outs, (views, copies), strict=True)
    )
    torch.testing.assert_close(found, right)


def test_captured_tensors_may_have_any_strides() -> None:
    """pytorch/pytorch#152683, the kind."""
    g = torch.Generator().manual_seed(0)
    base, ids = torch.randn(14, 12, 2, generator=g), torch.arange(60).view(2, 30) // 7
    views = (base.permute(2, 1, 0), ids[:, ::2], torch.randn(1, generator=g).expand(14))
    copies = tuple(t.contiguous().clone() for t in views)

    def run(bias: torch.Tensor, ids: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
        x = make_inputs(SMALL)
        return flexfa4.attention(
            x.q,
            x.k,
            x.v,
            score_mod=lambda score, b, h, q, kv: score + bias[h, q, kv] * row[kv],
            block_mask=lambda b, h, q, kv: ids[b, q] >= ids[b, kv],
        )

    assert torch.equal(run(*views), run(*copies))


# ---- devices and modes ---------------------------------------------------------------------------


def test_a_block_mask_is_made_on_the_cpu_unless_told_otherwise_and_serves_every_device() -> None:
    """pytorch/pytorch#169224, pytorch/pytorch#145861: cuda by default."""
    made = flexfa4.create_block_mask(causal, q_len=8, kv_len=8)
    assert made.device == torch.device("cpu") and not made.captures_tensors


ELSEWHERE = torch.arange(14, device="meta")


@pytest.mark.parametrize(
    ("score_mod", "mask", "found"),
    [
        (lambda score, b, h, q, kv: score + ELSEWHERE[kv], None, "`ELSEWHERE` is on meta"),
        (None, lambda b, h, q, kv: ELSEWHERE[q] >= kv, "`ELSEWHERE` is on meta, the mask on cpu"),
    ],
)
def test_a_capture_on_another_device_is_named_with_both_devices(
    score_mod: Any, mask: Any, found: str
) -> None:
    """pytorch/pytorch#145861, the kind."""
    x = make_inputs(SMALL)
    with pytest.raises(DeviceError, match=rf"{found}(?s:.)*instead: ELSEWHERE = ELSEWHERE.to\("):
        flexfa4.attention(x.q, x.k, x.v, score_mod=score_mod, block_mask=mask)


def test_a_device_that_is_missing_is_named_when_the_mask_is_made() -> None:
    """pytorch/pytorch#169224: a message of the compiler."""
    with pytest.raises(ArgumentError, match=r"device is 'cuda:99', which torch cannot use here"):
        flexfa4.create_block_mask(causal, q_len=8, kv_len=8, device="cuda:99")


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_every_gradient_mode_gives_the_same_result(mode: Any) -> None:
    """huggingface/transformers#40345: inference failed by gradient mode."""
    bias = torch.randn(14, generator=torch.Generator().manual_seed(0), requires_grad=True)
    x = make_inputs(SMALL)

    def run() -> torch.Tensor:
        return flexfa4.attention(
            x.q, x.k, x.v, score_mod=lambda score, b, h, q, kv: score + bias[kv], block_mask=causal
        )

    right = run().detach()
    with mode():
        assert torch.equal(run().detach(), right)
