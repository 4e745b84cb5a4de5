"""The autograd function: modes of autograd, what is never called, and what is never held."""

from __future__ import annotations

import itertools
from collections import Counter
from functools import partial
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import flexfa4
from flexfa4.errors import SecondDerivativeError
from flexfa4.testing import (
    Inputs,
    Mods,
    Sizes,
    agrees,
    attend,
    dense_reference,
    make_inputs,
)
from flexfa4.variants import SlidingWindow, alibi, causal


class Recorder(TorchDispatchMode):
    """Which operators run, and how many elements the largest storage behind a result has."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()
        self.largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.calls[func.overloadpacket._qualified_op_name] += 1
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, torch.Tensor):
                size = tensor.untyped_storage().nbytes() // tensor.element_size()
                self.largest = max(self.largest, size)
        return result


def softcap(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return 5.0 * torch.tanh(score / 5.0)


# ---- what is never done --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "mask", [None, causal, SlidingWindow(256)], ids=["none", "causal", "window"]
)
@pytest.mark.parametrize("mod", [None, alibi, softcap], ids=["none", "alibi", "softcap"])
def test_nothing_as_large_as_the_matrix_of_scores_is_ever_held(mod: Any, mask: Any) -> None:
    length = 2048
    inputs = make_inputs(Sizes(1, 1, 1, length, length, 16, 16))
    with Recorder() as recorder:
        out, lse = attend(inputs, Mods(mod, mask))
        torch.autograd.grad(out.sum() + lse.sum(), inputs.leaves())
    assert recorder.calls["aten::bmm"] and 0 < recorder.largest < length * length // 2


def test_neither_sdpa_nor_flex_attention_is_called() -> None:
    inputs = make_inputs(Sizes(), sink=True)
    with Recorder() as recorder:
        out, _ = attend(inputs, Mods(softcap, causal))
        out.sum().backward()
    assert recorder.calls and not [name for name in recorder.calls if "attention" in name]


def test_the_users_functions_run_once_however_many_tiles_and_calls_there_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def mod(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        print("score")
        return score * 1.5

    def mask(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        print("mask")
        return q_idx >= kv_idx

    for length in (30, 700, 1100):
        inputs = make_inputs(Sizes(1, 2, 2, length, length, 4, 4))
        out, _ = attend(inputs, Mods(mod, mask))
        out.sum().backward()
    assert sorted(capsys.readouterr().out.split()) == ["mask", "score"]


def test_inputs_and_captures_are_never_written_to() -> None:
    inputs = make_inputs(Sizes(2, 4, 2, 300, 300), sink=True)
    bias = torch.randn(2, 4, 300, 300, requires_grad=True)

    def mod(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return torch.tanh(score + bias[b, h, q_idx, kv_idx]) * bias[b, h, q_idx, kv_idx]

    tensors = (*inputs.leaves(), bias)
    copies = [t.detach().clone() for t in tensors]
    for mask in (None, causal):
        out, lse = attend(inputs, Mods(mod, mask))
        torch.autograd.grad(out.sum() + lse.sum(), tensors)
    assert all(t._version == 0 for t in tensors)
    assert all(torch.equal(t, c) for t, c in zip(tensors, copies, strict=True))


# ---- autograd ------------------------------------------------------------------------------------


def test_create_graph_works_and_a_second_derivative_raises() -> None:
    inputs = make_inputs(Sizes(), sink=True)
    out, lse = attend(inputs, Mods(softcap, causal))
    loss = out.square().sum() + lse.sum()
    plain = torch.autograd.grad(loss, inputs.leaves(), retain_graph=True)
    graphed = torch.autograd.grad(loss, inputs.leaves(), create_graph=True)
    assert all(torch.equal(a, b) for a, b in zip(plain, graphed, strict=True))
    for grad in graphed:
        with pytest.raises(SecondDerivativeError, match="second derivative"):
            torch.autograd.grad(grad.sum(), inputs.leaves(), retain_graph=True, allow_unused=True)


def test_a_second_derivative_with_respect_to_the_incoming_gradient_raises_too() -> None:
    inputs = make_inputs(Sizes())
    out, _ = attend(inputs, Mods())
    incoming = torch.ones_like(out, requires_grad=True)
    (grad,) = torch.autograd.grad(out, inputs.q, incoming, create_graph=True)
    with pytest.raises(SecondDerivativeError):
        torch.autograd.grad(grad.sum(), incoming)


NAMES = ("q", "k", "v", "sink", "bias")


@pytest.mark.parametrize(
    "wanted", [c for n in (1, 2, 5) for c in itertools.combinations(NAMES, n)], ids=" ".join
)
def test_any_subset_of_the_tensors_may_require_gradients(wanted: tuple[str, ...]) -> None:
    inputs = make_inputs(Sizes(), sink=True)
    values = dict(zip(NAMES, (*inputs.leaves(), torch.linspace(-1, 1, 83)), strict=True))

    def grads(names: tuple[str, ...]) -> dict[str, torch.Tensor]:
        given = {n: v.detach().clone().requires_grad_(n in names) for n, v in values.items()}
        bias = given.pop("bias")
        out, lse = attend(Inputs(**given), Mods(biased_by(bias), causal))
        (out.square().sum() + lse.sum()).backward()
        every = {**given, "bias": bias}
        assert all((t.grad is not None) == (n in names) for n, t in every.items())
        return {n: t.grad for n, t in every.items() if t.grad is not None}

    right = grads(NAMES)
    for name, grad in grads(wanted).items():
        torch.testing.assert_close(grad, right[name])


def biased_by(bias: torch.Tensor) -> Any:
    def mod(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return score * 0.7 + bias[kv_idx]

    return mod


def test_without_gradients_nothing_is_recorded() -> None:
    inputs = make_inputs(Sizes())
    with torch.no_grad():
        out, lse = attend(inputs, Mods(softcap, causal))
    assert not out.requires_grad and not lse.requires_grad
    right, _ = attend(inputs, Mods(softcap, causal))
    assert right.requires_grad and torch.equal(out, right)


def test_inference_mode_works_and_leaves_nothing_behind_that_training_cannot_use() -> None:
    inputs = make_inputs(Sizes(1, 2, 2, 40, 50))
    block_mask = flexfa4.create_block_mask(causal, q_len=40, kv_len=50)
    with torch.inference_mode():
        bias = torch.linspace(-1, 1, 50)
        inside = Inputs(inputs.q.clone(), inputs.k.clone(), inputs.v.clone())
        found = [
            attend(inside, Mods(biased_by(bias), mask))[0] for mask in (block_mask, causal, None)
        ]
        assert all(f.is_inference() for f in found)
    bias = torch.linspace(-1, 1, 50)
    for mask, inferred in zip((block_mask, causal, None), found, strict=True):
        out, _ = attend(inputs, Mods(biased_by(bias), mask))
        torch.autograd.grad(out.sum(), inputs.leaves())
        assert torch.equal(out, inferred)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("length", [40, 600], ids=["one tile", "many tiles"])
@pytest.mark.parametrize("mods", [Mods(), Mods(softcap, causal)], ids=["plain", "modified"])
def test_results_are_tensors_that_autograd_takes_further(
    length: int, dtype: torch.dtype, mods: Mods
) -> None:
    inputs = make_inputs(Sizes(1, 2, 2, length, length), dtype=dtype, sink=True)
    with torch.no_grad():
        results = list(attend(inputs, mods))
    out, lse = attend(inputs, mods)
    results += torch.autograd.grad(out.sum() + lse.sum(), inputs.leaves())
    for result in results:
        assert not result.is_inference()
        weight = torch.ones_like(result, requires_grad=True)
        (gradient,) = torch.autograd.grad((weight * result.mul_(2.0)).sum(), weight)
        assert torch.equal(gradient, result)


def test_torch_counts_the_operations_of_both_products() -> None:
    q, k, v = make_inputs(Sizes(2, 4, 2, 40, 50, 8, 16)).leaves()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        flexfa4.attention(q, k, v)
    assert counter.get_total_flops() == 2 * 2 * 4 * 40 * 50 * (8 + 16)


@pytest.mark.parametrize("layout", ["expanded", "transposed", "every second"])
def test_incoming_gradients_may_have_any_strides(layout: str) -> None:
    inputs = make_inputs(Sizes(2, 4, 2, 140, 150, 8, 8))
    out, lse = attend(inputs, Mods(None, causal))
    shape = out.shape
    if layout == "expanded":
        weights = torch.tensor(0.5).expand(shape)
        lse_weights = torch.tensor([[2.0], [3.0]])[:, :, None].expand(lse.shape)
    elif layout == "transposed":
        weights = torch.randn(shape[0], shape[2], shape[1], shape[3]).transpose(1, 2)
        lse_weights = torch.randn(shape[0], shape[2], shape[1]).transpose(1, 2)
    else:
        weights = torch.randn(*shape[:3], 2 * shape[3])[..., ::2]
        lse_weights = torch.randn(*lse.shape, 2)[..., 1]
    found, right = (
        torch.autograd.grad((out, lse), inputs.leaves(), w, retain_graph=True)
        for w in ((weights, lse_weights), (weights.contiguous(), lse_weights.contiguous()))
    )
    for a, b in zip(found, right, strict=True):
        torch.testing.assert_close(a, b)


def test_gradients_of_lse_alone_of_out_alone_and_of_both_add_up() -> None:
    inputs = make_inputs(Sizes(), sink=True)
    out, lse = attend(inputs, Mods(softcap, causal))
    terms = (out.sin().sum(), lse.cos().sum(), out.sin().sum() + lse.cos().sum())
    by_out, by_lse, by_both = (
        torch.autograd.grad(t, inputs.leaves(), retain_graph=True, materialize_grads=True)
        for t in terms
    )
    for a, b, both in zip(by_out, by_lse, by_both, strict=True):
        torch.testing.assert_close(a + b, both)


def test_one_tensor_may_be_query_key_and_value() -> None:
    x = torch.randn(1, 2, 64, 16, requires_grad=True)
    runs = (attend, dense_reference, partial(dense_reference, dtype=torch.float32))
    found, right, rounded = (
        torch.autograd.grad(run(Inputs(x, x, x), Mods(None, causal))[0].sum(), x)[0] for run in runs
    )
    assert agrees(found, right, rounded, terms=64)


def test_fp64_inputs_are_computed_in_fp64() -> None:
    inputs = make_inputs(Sizes(1, 2, 1, 140, 150), dtype=torch.float64, sink=True)
    mods = Mods(softcap, causal)
    results = []
    for run in (attend, dense_reference):
        out, lse = run(inputs, mods)
        results.append((out, lse, *torch.autograd.grad(out.sum() + lse.sum(), inputs.leaves())))
    for found, right in zip(*results, strict=True):
        assert found.dtype is torch.float64
        torch.testing.assert_close(found, right, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "s",
    [Sizes(q_len=0), Sizes(kv_len=0), Sizes(batch=0), Sizes(batch=0, q_len=0, kv_len=0)],
    ids=["no queries", "no keys", "no batch", "nothing"],
)
@pytest.mark.parametrize("mask", [None, causal, lambda b, h, q, kv: (kv <= q) & (b < 1) & (h < 3)])
def test_sizes_of_no_work_give_empty_rows_and_zero_gradients(s: Sizes, mask: Any) -> None:
    inputs = make_inputs(s, sink=True)
    out, lse = attend(inputs, Mods(softcap, mask))
    grads = torch.autograd.grad(out.sum() + lse.sum(), inputs.leaves())
    assert out.shape == (s.batch, s.heads, s.q_len, s.value_dim) and not out.any()
    assert not any(g.any() for g in grads[:3])
    assert torch.equal(grads[3], torch.full((s.heads,), float(lse[:, 0].numel())))
