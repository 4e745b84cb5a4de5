"""`attention`: its arguments, sizes of zero, and what a repeated call does not do again."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import flexfa4
from flexfa4.counters import Stats, stats
from flexfa4.errors import ArgumentError, SecondDerivativeError
from flexfa4.variants import causal

G = torch.Generator().manual_seed(0)
Sizes = tuple[int, int, int, int, int]  # batch, query heads, key heads, queries, keys
SMALL: Sizes = (2, 4, 2, 24, 20)


def inputs(sizes: Sizes = SMALL, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    batch, heads, kv_heads, q_len, kv_len = sizes
    shapes = ((heads, q_len), (kv_heads, kv_len), (kv_heads, kv_len))
    return [torch.randn(batch, h, n, 16, generator=G).to(dtype) for h, n in shapes]


def scores(tensors: list[torch.Tensor], scale: float = 0.25) -> torch.Tensor:
    q, k, _ = tensors
    return q @ k.repeat_interleave(q.shape[1] // k.shape[1], 1).transpose(2, 3) * scale


def output(tensors: list[torch.Tensor], s: torch.Tensor) -> torch.Tensor:
    q, _, v = tensors
    return s.softmax(-1).nan_to_num(0.0) @ v.repeat_interleave(q.shape[1] // v.shape[1], 1)


def distance(tensors: list[torch.Tensor]) -> torch.Tensor:
    q, k, _ = tensors
    return torch.arange(k.shape[2]) - torch.arange(q.shape[2])[:, None]


# ---- what a changed capture does not do again ----------------------------------------------------


class Holder:
    """An object with an attribute, a property and a method that a mod may read."""

    def __init__(self, slope: Any) -> None:
        self.slope = slope

    @property
    def steepness(self) -> Any:
        return self.slope

    def score_mod(self, score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return score + self.slope * (kv_idx - q_idx)

    def __call__(self, score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return score + self.slope * (kv_idx - q_idx)


Way = Callable[[Any], tuple[Callable[..., Any], Callable[[Any], Any]]]
SLOPE: Any = None


def by_closure(slope: Any) -> Any:
    def change(new: Any) -> None:
        nonlocal slope
        slope = new

    return lambda score, b, h, q, kv: score + slope * (kv - q), change


def reads_global(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
    return score + SLOPE * (kv - q)


def by_global(slope: Any) -> Any:
    def change(new: Any) -> None:
        global SLOPE
        SLOPE = new

    change(slope)
    return reads_global, change


def by_default(slope: Any) -> Any:
    def score_mod(score: Any, b: Any, h: Any, q: Any, kv: Any, slope: Any = slope) -> Any:
        return score + slope * (kv - q)

    return score_mod, lambda new: setattr(score_mod, "__defaults__", (new,))


def by_keyword_default(slope: Any) -> Any:
    def score_mod(score: Any, b: Any, h: Any, q: Any, kv: Any, *, slope: Any = slope) -> Any:
        return score + slope * (kv - q)

    return score_mod, lambda new: setattr(score_mod, "__kwdefaults__", {"slope": new})


def steep(slope: Any, score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
    return score + slope * (kv - q)


def by_partial(slope: Any) -> Any:
    mod = functools.partial(steep, slope)
    return mod, lambda new: mod.__setstate__((steep, (new,), {}, {}))  # type: ignore[attr-defined]


def by_attribute(slope: Any) -> Any:
    holder = Holder(slope)
    mod = lambda score, b, h, q, kv: score + holder.slope * (kv - q)  # noqa: E731
    return mod, lambda new: setattr(holder, "slope", new)


def by_property(slope: Any) -> Any:
    holder = Holder(slope)
    mod = lambda score, b, h, q, kv: score + holder.steepness * (kv - q)  # noqa: E731
    return mod, lambda new: setattr(holder, "slope", new)


def by_method(slope: Any) -> Any:
    holder = Holder(slope)
    return holder.score_mod, lambda new: setattr(holder, "slope", new)


def by_callable_object(slope: Any) -> Any:
    holder = Holder(slope)
    return holder, lambda new: setattr(holder, "slope", new)


def by_container(slope: Any) -> Any:
    settings = {"slopes": [slope, 0]}
    mod = lambda score, b, h, q, kv: score + settings["slopes"][0] * (kv - q)  # noqa: E731
    return mod, lambda new: settings["slopes"].__setitem__(0, new)


def by_inner_function(slope: Any) -> Any:
    inner, change = by_closure(slope)
    return lambda score, b, h, q, kv: inner(score, b, h, q, kv), change


WAYS: list[Way] = [
    by_closure, by_global, by_default, by_keyword_default, by_partial, by_attribute, by_property,
    by_method, by_callable_object, by_container, by_inner_function,
]  # fmt: skip
VALUES: dict[str, tuple[Any, ...]] = {
    "float": (0.5, -0.25, 0.0, 1e-3),
    "int": (1, -2, 0, 3),
    "tensor": tuple(torch.tensor(x) for x in (0.5, -0.25, 0.0)),
}


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_changed_capture_is_used_without_tracing_or_planning_again(way: Way, kind: str) -> None:
    tensors = inputs()
    first, *others = VALUES[kind]
    mod, change = way(first)
    flexfa4.attention(*tensors, score_mod=mod)
    before = stats()
    for value in others:
        change(value)
        found = flexfa4.attention(*tensors, score_mod=mod)
        expected = output(tensors, scores(tensors) + value * distance(tensors))
        torch.testing.assert_close(found, expected)
    assert stats() - before == Stats(calls=len(others))


def test_a_tensor_changed_in_place_is_used_without_tracing_or_planning_again() -> None:
    tensors, slope = inputs(), torch.rand(4, dtype=torch.float64)
    mod: Any = lambda score, b, h, q, kv: score + slope[h] * (kv - q)  # noqa: E731
    flexfa4.attention(*tensors, score_mod=mod)
    before = stats()
    slope.mul_(-0.3)
    found = flexfa4.attention(*tensors, score_mod=mod)
    torch.testing.assert_close(
        found, output(tensors, scores(tensors) + slope[:, None, None] * distance(tensors))
    )
    assert stats() - before == Stats(calls=1)


def test_other_batch_sizes_lengths_and_heads_neither_trace_nor_plan_again() -> None:
    slope = 0.1
    mod: Any = lambda score, b, h, q, kv: score + slope * (kv - q) / flexfa4.kv_len  # noqa: E731
    flexfa4.attention(*inputs(), score_mod=mod, block_mask=causal)
    before = stats()
    for sizes in ((5, 4, 2, 24, 20), (2, 6, 3, 24, 20), (2, 4, 2, 7, 200), (1, 1, 1, 300, 300)):
        tensors = inputs(sizes)
        found = flexfa4.attention(*tensors, score_mod=mod, block_mask=causal)
        biased = scores(tensors) + slope * distance(tensors) / sizes[4]
        expected = output(tensors, biased.masked_fill(distance(tensors) > 0, -math.inf))
        torch.testing.assert_close(found, expected)
    done = stats() - before
    assert (done.traces, done.plans, done.parses, done.calls) == (0, 0, 0, 4)


def test_functions_made_anew_on_each_call_share_their_trace() -> None:
    def make(slope: float) -> Callable[..., Any]:
        return lambda score, b, h, q, kv: score * slope

    tensors = inputs()
    flexfa4.attention(*tensors, score_mod=make(0.5))
    before = stats()
    found = flexfa4.attention(*tensors, score_mod=make(0.25))
    torch.testing.assert_close(found, output(tensors, scores(tensors) * 0.25))
    assert stats() - before == Stats(calls=1)


def test_a_text_is_read_once() -> None:
    tensors = inputs()
    text = "score * 0.125 + h"
    flexfa4.attention(*tensors, score_mod=text)
    before = stats()
    flexfa4.attention(*tensors, score_mod=text)
    assert stats() - before == Stats(calls=1)


def test_gradients_plan_once_as_well() -> None:
    tensors, slope = inputs(), torch.rand(4, dtype=torch.float64, requires_grad=True)
    mod: Any = lambda score, b, h, q, kv: score + slope[h] * (kv - q)  # noqa: E731

    def step() -> torch.Tensor:
        out = flexfa4.attention(*tensors, score_mod=mod)
        assert isinstance(out, torch.Tensor)
        return torch.autograd.grad(out.square().sum(), slope)[0]

    step()
    before = stats()
    with torch.no_grad():
        slope.add_(0.5)
    expected_slope = slope.detach().requires_grad_()
    biased = scores(tensors) + expected_slope[:, None, None] * distance(tensors)
    expected = torch.autograd.grad(output(tensors, biased).square().sum(), expected_slope)[0]
    torch.testing.assert_close(step(), expected)
    assert stats() - before == Stats(calls=1)


# ---- sizes of zero -------------------------------------------------------------------------------

ZERO: dict[str, Sizes] = {
    "no queries": (2, 4, 2, 0, 20),
    "no keys": (2, 4, 2, 24, 0),
    "no batch": (0, 4, 2, 24, 20),
    "no queries and no keys": (2, 4, 2, 0, 0),
    "nothing at all": (0, 4, 2, 0, 0),
}
IDS = torch.arange(24) // 5
MASKS: dict[str, Callable[[Sizes], Any]] = {
    "no mask": lambda s: None,
    "function": lambda s: lambda b, h, q, kv: (IDS[q] == IDS[kv]) & (b + h >= 0),
    "text": lambda s: "q >= kv",
    "block mask": lambda s: flexfa4.create_block_mask(
        "q + h >= kv", batch=s[0], heads=s[1], q_len=s[3], kv_len=s[4]
    ),
}


@pytest.mark.parametrize("has_sink", [False, True], ids=["no sink", "sink"])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("sizes", ZERO)
def test_sizes_of_zero_give_empty_results_and_zero_gradients(
    sizes: str, mask: str, has_sink: bool
) -> None:
    s = ZERO[sizes]
    tensors = [t.requires_grad_() for t in inputs(s)]
    sink = torch.randn(4, generator=G).double().requires_grad_() if has_sink else None
    bias = torch.randn(4, 24, generator=G).requires_grad_()
    out, lse = flexfa4.attention(
        *tensors,
        score_mod=lambda score, b, h, q, kv: score + bias[h, q],
        block_mask=MASKS[mask](s),
        sink=sink,
        return_lse=True,
    )
    assert out.shape == (s[0], 4, s[3], 16) and lse.shape == (s[0], 4, s[3])
    assert not out.any()
    visible = torch.full_like(lse, -math.inf) if sink is None else sink[:, None].expand_as(lse)
    torch.testing.assert_close(lse, visible)
    leaves = [*tensors, bias, *([sink] if sink is not None else [])]
    loss = out.sum() + torch.where(lse == -math.inf, 0.0, lse).sum()
    grads = torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)
    assert not any(g.any() for g in grads[:4])
    if sink is not None:
        torch.testing.assert_close(grads[4], torch.full((4,), float(s[0] * s[3])).double())


# ---- arguments -----------------------------------------------------------------------------------


def test_without_return_lse_only_the_output_comes_back() -> None:
    tensors = inputs()
    out = flexfa4.attention(*tensors)
    both = flexfa4.attention(*tensors, return_lse=True)
    assert isinstance(out, torch.Tensor) and isinstance(both, tuple)
    torch.testing.assert_close(out, both[0])
    torch.testing.assert_close(both[1], scores(tensors).logsumexp(-1))


@pytest.mark.parametrize("scale", [1, 0.5, -2.0, 0, torch.tensor(0.5).item(), 1e-30])
def test_a_scale_is_any_finite_number(scale: float) -> None:
    tensors = inputs()
    torch.testing.assert_close(
        flexfa4.attention(*tensors, scale=scale), output(tensors, scores(tensors, scale))
    )


@pytest.mark.parametrize("options", [None, flexfa4.Options()])
@pytest.mark.parametrize("backend", ["auto", "cpu"])
@pytest.mark.parametrize("deterministic", [False, True])
def test_how_a_call_runs_does_not_change_its_bits(
    options: flexfa4.Options | None, backend: str, deterministic: bool
) -> None:
    tensors = inputs()
    found = flexfa4.attention(
        *tensors, options=options, backend=backend, deterministic=deterministic
    )
    assert isinstance(found, torch.Tensor)
    assert torch.equal(found, flexfa4.attention(*tensors))


def test_a_mod_may_be_a_function_a_text_or_a_traced_one() -> None:
    tensors = inputs()
    function: Any = lambda score, b, h, q, kv: score + 0.5 * h  # noqa: E731
    expected = output(tensors, scores(tensors))  # what is the same for a row changes nothing
    for mod in (function, "score + 0.5 * h", flexfa4.trace(function), flexfa4.parse("score + h")):
        torch.testing.assert_close(flexfa4.attention(*tensors, score_mod=mod), expected)


def test_a_batch_of_one_in_key_and_value_serves_every_query_batch() -> None:
    q, k, v = inputs()
    found = flexfa4.attention(q, k[:1], v[:1])
    torch.testing.assert_close(found, flexfa4.attention(q, k[:1].expand_as(k), v[:1].expand_as(v)))


def test_inputs_may_have_any_strides() -> None:
    tensors = inputs()
    strided = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in tensors]
    strided[0] = strided[0].repeat_interleave(2, 3)[..., ::2]
    assert not any(t.is_contiguous() for t in strided)
    torch.testing.assert_close(flexfa4.attention(*strided), flexfa4.attention(*tensors))


def test_under_autocast_inputs_are_cast_as_for_a_matrix_product() -> None:
    q, k, v = inputs(dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = flexfa4.attention(q, k.bfloat16(), v)
    assert isinstance(found, torch.Tensor) and found.dtype is torch.bfloat16
    plain = flexfa4.attention(q.bfloat16(), k.bfloat16(), v.bfloat16())
    assert isinstance(plain, torch.Tensor) and torch.equal(found, plain)


def test_the_block_mask_of_flex_attention_is_refused_with_the_function_that_takes_it() -> None:
    class BlockMask:  # what torch's class has
        mask_mod = staticmethod(lambda b, h, q, kv: q >= kv)

    with pytest.raises(ArgumentError, match=r"instead: flexfa4\.flex\.flex_attention\("):
        flexfa4.attention(*inputs(), block_mask=BlockMask())


@pytest.mark.parametrize("leaf", range(3))
def test_a_second_derivative_is_refused_where_it_is_taken(leaf: int) -> None:
    tensors = [t.requires_grad_() for t in inputs()]
    out = flexfa4.attention(*tensors)
    assert isinstance(out, torch.Tensor)
    (first,) = torch.autograd.grad(out.square().sum(), tensors[leaf], create_graph=True)
    with pytest.raises(SecondDerivativeError):
        first.sum().backward()


def test_a_failed_call_leaves_nothing_behind() -> None:
    tensors, table = inputs(), torch.zeros(4, 3)
    mod: Any = lambda score, b, h, q, kv: score + table[h, 5]  # noqa: E731
    for _ in range(2):
        with pytest.raises(IndexError):
            flexfa4.attention(*tensors, score_mod=mod)
    table = torch.ones(4, 6)
    found = flexfa4.attention(*tensors, score_mod=mod)
    torch.testing.assert_close(found, output(tensors, scores(tensors)))


@pytest.mark.parametrize("mask", [None, causal])
def test_fewer_scores_at_once_change_no_result(mask: Any) -> None:
    q, k, v = (torch.randn(1, 4, 300, 8, dtype=torch.float64) for _ in range(3))
    expected = flexfa4.attention(q, k, v, block_mask=mask)
    few = flexfa4.Options(scores_at_once=4096)
    torch.testing.assert_close(flexfa4.attention(q, k, v, block_mask=mask, options=few), expected)


@pytest.mark.parametrize("number", [0, 4095, -1, 1e6, True, "many"])
def test_a_number_of_scores_that_is_none_is_refused(number: Any) -> None:
    with pytest.raises(flexfa4.errors.ArgumentError, match="scores_at_once"):
        flexfa4.Options(scores_at_once=number)


@pytest.mark.parametrize(
    "wrong",
    [{"tile": 128}, {"tile": (128,)}, {"tile": (128, 0)}, {"tile": (128.0, 64)}, {"stages": 0},
     {"stages": True}],
)  # fmt: skip
def test_a_tile_that_is_none_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(flexfa4.errors.ArgumentError, match=next(iter(wrong))):
        flexfa4.Options(**wrong)


@pytest.mark.parametrize("tau", [-1, float("nan"), 16, float("inf"), True, "8"])
def test_a_threshold_of_rescaling_that_is_none_is_refused(tau: Any) -> None:
    with pytest.raises(flexfa4.errors.ArgumentError, match="from 0 to 15"):
        flexfa4.Options(tau=tau)


@pytest.mark.parametrize("share", [-0.1, 1.5, float("nan"), True, "all"])
def test_a_share_of_emulated_exponentials_that_is_none_is_refused(share: Any) -> None:
    with pytest.raises(flexfa4.errors.ArgumentError, match="a share from 0 to 1"):
        flexfa4.Options(emulated_exponentials=share)


@pytest.mark.parametrize("chosen", [{"tau": 0}, {"emulated_exponentials": 1}])
def test_what_kernels_for_gpus_are_told_is_nothing_to_the_cpu(chosen: dict[str, Any]) -> None:
    q = torch.randn(1, 2, 70, 8)
    found = flexfa4.attention(q, q, q, options=flexfa4.Options(**chosen))
    assert torch.equal(found, flexfa4.attention(q, q, q))
