"""Sums over vectors become matrix products where they are one, with the values and gradients of
the mod as it is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from flexfa4.frontend.derivative import derivatives
from flexfa4.frontend.evaluate import Program, Values
from flexfa4.frontend.ir import F32, Buffer, Node, const, input_, iota, load
from flexfa4.frontend.lanes import Lanes
from flexfa4.frontend.ops import apply
from flexfa4.frontend.tracing.trace import resolve
from flexfa4.kernels.cpu.describe import describe_score
from flexfa4.kernels.cpu.plan import CpuPlan, plan_for
from flexfa4.kernels.cpu.products import Term, longest_vector, regroup, terms
from flexfa4.kernels.cpu.schedule import VECTORS_AT_ONCE
from flexfa4.testing import Inputs, Mods, Sizes, attend, dense_reference, make_inputs
from flexfa4.variants import causal

SCORE, B, H, Q, KV = map(input_, ("score", "b", "h", "q", "kv"))
SIZE = Sizes(2, 4, 2, 40, 50, 8, 8)
WIDTH = 6


def draw(*shape: int) -> torch.Tensor:
    g = torch.Generator().manual_seed(sum(shape))
    return (0.5 * torch.randn(shape, generator=g)).requires_grad_()


OF_Q, OF_Q2 = draw(2, 4, 40, WIDTH), draw(40, WIDTH)
OF_K, OF_K2 = draw(2, 2, 50, WIDTH), draw(50, WIDTH)
W1, B1, W2, ALL = draw(WIDTH), draw(WIDTH), draw(4, WIDTH), draw(1)
LEARNED = {
    "OF_Q": OF_Q, "OF_Q2": OF_Q2, "OF_K": OF_K, "OF_K2": OF_K2, "W1": W1, "B1": B1, "W2": W2,
}  # fmt: skip


def hidden(q: Any, kv: Any) -> Any:
    return torch.relu(0.1 * (q - kv).unsqueeze(-1) * W1 + B1)


# mod, the tensors that it reads, and the longest vectors that remain, forward and with gradients
Mod = Callable[..., Any]
PRODUCTS: dict[str, tuple[Mod, tuple[str, ...], tuple[int, int]]] = {
    "heads in groups": (
        lambda s, b, h, q, kv: s + 0.3 * (OF_Q[b, h, q] * OF_K[b, h // 2, kv]).sum(-1),
        ("OF_Q", "OF_K"), (0, 0),
    ),
    "within a core": (
        lambda s, b, h, q, kv: torch.tanh(s + (OF_Q[b, h, q] * OF_K2[kv]).sum(-1)) * 2.0,
        ("OF_Q", "OF_K2"), (0, 0),
    ),
    "several": (
        lambda s, b, h, q, kv: torch.tanh((OF_Q[b, h, q] * OF_K2[kv]).sum(-1)) * 2.0
        + s * torch.sigmoid((OF_Q2[q] * OF_K[b, h // 2, kv]).sum(-1))
        - (OF_Q2[q] * W1 * OF_K2[kv] / 3.0).sum(-1),
        ("OF_Q", "OF_Q2", "OF_K", "OF_K2", "W1"), (0, 0),
    ),
    "sum of two": (
        lambda s, b, h, q, kv: s + (OF_Q[b, h, q] * OF_K2[kv] - OF_Q2[q] * OF_K2[kv] * W1).sum(-1),
        ("OF_Q", "OF_Q2", "OF_K2", "W1"), (0, 0),
    ),
    "factors of either side": (
        lambda s, b, h, q, kv: s
        + (OF_Q[b, h, q] * OF_K2[kv] * torch.sin(q * 0.1).unsqueeze(-1) * OF_Q2[q] * W2[h]).sum(-1),
        ("OF_Q", "OF_Q2", "OF_K2", "W2"), (0, 0),
    ),
    "same tensor twice": (
        lambda s, b, h, q, kv: s + (OF_K2[q] * OF_K2[kv]).sum(-1), ("OF_K2",), (0, 0),
    ),
    "behind the keys of the query": (
        lambda s, b, h, q, kv: s + (OF_Q2[q] * OF_K2[(kv - q).clamp(0, 49)]).sum(-1),
        ("OF_Q2", "OF_K2"), (WIDTH, WIDTH),
    ),
    "small network": (
        lambda s, b, h, q, kv: s + (W2[h] * hidden(q, kv)).sum(-1),
        ("W1", "B1", "W2"), (WIDTH, WIDTH),
    ),
    "small network within a core": (
        lambda s, b, h, q, kv: 2.0 * torch.tanh(s + (W2[h] * hidden(q, kv)).sum(-1)),
        ("W1", "B1", "W2"), (WIDTH, WIDTH),
    ),
}  # fmt: skip


def plan_of(mod: Mod, learned: tuple[str, ...] = ()) -> CpuPlan:
    graph = resolve(mod, "score").graph
    return plan_for(graph, None, frozenset(b for b in graph.buffers if b.name in learned))


def results(
    run: Any, inputs: Inputs, mods: Mods, learned: tuple[torch.Tensor, ...]
) -> tuple[torch.Tensor, ...]:
    out, lse = run(inputs, mods)
    loss = (out * torch.linspace(-1, 1, out.shape[-1])).sum() + (0.1 * lse).sum()
    return (out, lse, *torch.autograd.grad(loss, (*inputs.leaves(), *learned)))


def check(mod: Mod, mask: Any, learned: tuple[torch.Tensor, ...]) -> None:
    inputs = make_inputs(SIZE, torch.Generator().manual_seed(0))
    mods = Mods(mod, mask)
    found = results(attend, inputs, mods, learned)
    right = results(dense_reference, inputs, mods, learned)
    for a, b in zip(found, right, strict=True):
        torch.testing.assert_close(
            a, b.to(a.dtype), rtol=1e-4, atol=2e-5 * float(b.detach().abs().max())
        )


@pytest.mark.parametrize("mask", [None, causal])
@pytest.mark.parametrize("name", PRODUCTS)
def test_values_and_gradients_are_those_of_the_mod(name: str, mask: Any) -> None:
    mod, learned, _ = PRODUCTS[name]
    check(mod, mask, tuple(LEARNED[n] for n in learned))


@pytest.mark.parametrize("learned", ["OF_Q", "OF_K", ""])
def test_one_side_or_none_may_be_learned(learned: str) -> None:
    mod = PRODUCTS["heads in groups"][0]
    fixed = {n: t for n, t in LEARNED.items() if n != learned}
    for t in fixed.values():
        t.requires_grad_(False)
    try:
        check(mod, causal, (LEARNED[learned],) if learned else ())
        assert len(plan_of(mod, (learned,)).loads) == bool(learned)
    finally:
        for t in fixed.values():
            t.requires_grad_(True)


@pytest.mark.parametrize("name", PRODUCTS)
def test_no_vector_for_each_score_is_left_in_a_product(name: str) -> None:
    mod, learned, longest = PRODUCTS[name]
    for wanted, length in zip(((), learned), longest, strict=True):
        plan = plan_of(mod, wanted)
        assert (plan.shared_vector, plan.separate_vector) == (length, 0)
        assert len(plan.loads) >= len(wanted)


class Largest(TorchDispatchMode):
    """Records the number of elements of the largest tensor that is made."""

    numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if isinstance(found, torch.Tensor):
            self.numel = max(self.numel, found.numel())
        return found


def test_no_tensor_is_larger_than_the_scores_and_the_operands() -> None:
    mod, learned, _ = PRODUCTS["within a core"]
    inputs = make_inputs(SIZE, torch.Generator().manual_seed(0))
    with Largest() as made:
        results(attend, inputs, Mods(mod, causal), tuple(LEARNED[n] for n in learned))
    scores = SIZE.batch * SIZE.heads * SIZE.q_len * SIZE.kv_len
    assert made.numel <= 2 * scores < scores * WIDTH


@pytest.mark.parametrize("shared", [True, False])
def test_vectors_of_each_score_are_formed_a_few_at_a_time(shared: bool) -> None:
    w, length = draw(2, 64), 700

    def mod(s: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        of_heads = 1.0 if shared else w[h]
        return s + (torch.relu(0.01 * (q - kv).unsqueeze(-1) * of_heads + w[0]) * w[h]).sum(-1)

    inputs = make_inputs(Sizes(1, 2, 2, length, length, 8, 8), torch.Generator().manual_seed(0))
    with Largest() as made:
        results(attend, inputs, Mods(mod), (w,))
    assert length * 64 < made.numel <= VECTORS_AT_ONCE < length * length * 64


@pytest.mark.parametrize("name", PRODUCTS)
def test_explain_says_what_is_a_product_and_what_vectors_are_left(name: str) -> None:
    mod, _, (length, _) = PRODUCTS[name]
    rows = dict(describe_score(resolve(mod, "score").graph))
    assert rows["sums over vectors"].endswith("as matrix products")
    assert ("vectors" in rows) is bool(length)
    assert str(length) in rows.get("vectors", "0")


# ---- what is not finite, and what is not there ---------------------------------------------------


def test_infinities_under_the_mask_reach_no_gradient() -> None:
    of_q, of_k = OF_Q2.detach().clone(), OF_K2.detach().clone()
    of_k[40:] = torch.inf  # keys that no query sees
    of_q.requires_grad_()
    of_k.requires_grad_()

    def mod(s: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        return s + (of_q[q] * of_k[kv]).sum(-1)

    inputs = make_inputs(SIZE, torch.Generator().manual_seed(0))
    out, lse = attend(inputs, Mods(mod, causal))
    found = torch.autograd.grad(out.square().sum() + lse.sum(), (of_q, of_k))
    finite = of_k.detach().nan_to_num(0.0, 0.0, 0.0).requires_grad_()

    def clean(s: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        return s + (of_q[q] * finite[kv]).sum(-1)

    out, lse = dense_reference(inputs, Mods(clean, causal))
    right = torch.autograd.grad(out.square().sum() + lse.sum(), (of_q, finite))
    for a, b in zip(found, right, strict=True):
        torch.testing.assert_close(a, b.float(), rtol=1e-4, atol=1e-5 * float(b.abs().max()))
    assert not found[1][40:].any()


def test_vectors_are_read_out_of_range_nowhere_but_under_the_mask() -> None:
    of_q, of_k = draw(30, WIDTH), draw(25, WIDTH)

    def mod(s: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        return s + (of_q[q] * of_k[kv]).sum(-1)

    def inside(b: Any, h: Any, q: Any, kv: Any) -> Any:
        return (q < 30) & (kv < 25)

    padded = [torch.cat([t, torch.zeros(50, WIDTH)]) for t in (of_q, of_k)]

    def wide(s: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        return s + (padded[0][q] * padded[1][kv]).sum(-1)

    inputs = make_inputs(SIZE, torch.Generator().manual_seed(0))
    found = results(attend, inputs, Mods(mod, inside), (of_q, of_k))
    right = results(dense_reference, inputs, Mods(wide, inside), (of_q, of_k))
    for a, b in zip(found, right, strict=True):
        torch.testing.assert_close(a, b.to(a.dtype), rtol=1e-4, atol=1e-5)
    with pytest.raises(IndexError, match="of_k"):
        attend(inputs, Mods(mod, lambda b, h, q, kv: q < 30))


# ---- graphs --------------------------------------------------------------------------------------

ROWS, COLUMNS, ROW = (Buffer(n, F32, (None, WIDTH)) for n in ("rows", "columns", "row"))
A, C, W = (load(t, (i, iota(WIDTH))) for t, i in ((ROWS, Q), (COLUMNS, KV), (ROW, H)))
BOTH = apply("to_f32", apply("sub", Q, KV))


def mul(*factors: Node) -> Node:
    product, *others = factors
    for factor in others:
        product = apply("mul", product, factor)
    return product


def total(*factors: Node) -> Node:
    return apply("sum", mul(*factors))


@pytest.mark.parametrize(
    ("root", "longest"),
    [
        (total(A, C), 0),
        (total(C, A, const(0.5)), 0),
        (total(C, W, A), 0),
        (total(apply("neg", C), A), 0),
        (apply("sum", apply("div", mul(A, C), const(3.0))), 0),
        (apply("sum", apply("add", mul(A, C), mul(W, C))), 0),
        (total(A, C, BOTH), WIDTH),  # taken out, a factor of both could make infinity of NaN
        (total(mul(A, A), mul(C, C)), 0),
        (apply("amax", mul(A, C)), WIDTH),
        (apply("sum", apply("exp2", mul(A, C))), WIDTH),
    ],
)
def test_regrouped_graphs_have_the_same_values(root: Node, longest: int) -> None:
    lanes = Lanes((0, 1), (0, 3), (2, 9), (1, 12))
    made = regroup(root)
    assert longest_vector([made]) == (longest, 0)
    tensors = {t: draw(12, WIDTH).detach() * (1 + i) for i, t in enumerate((ROWS, COLUMNS, ROW))}
    tensors[ROWS] = tensors[ROWS].clone()
    tensors[ROWS][3, 1], tensors[ROWS][4, 2] = torch.inf, torch.nan
    values = Values(tensors)
    (found,) = Program((made,), products=True).run(values, lanes)
    (right,) = Program((root,)).run(values, lanes)
    torch.testing.assert_close(
        *torch.broadcast_tensors(found, right), rtol=1e-5, atol=1e-5, equal_nan=True
    )


def test_a_product_of_many_equal_factors_stays_in_one_piece() -> None:
    power = A
    for _ in range(40):
        power = apply("mul", power, power)
    assert regroup(total(power, C)) is total(power, C)


def test_the_gradient_of_a_gate_takes_out_what_the_gate_does_not_vary_with() -> None:
    weights = load(ROWS, (const(0), iota(WIDTH)))
    layer = apply("mul", BOTH, weights)
    gated = apply("where", apply("le", layer, const(0.0)), const(0.0), layer)
    graph = resolve(lambda s, b, h, q, kv: s, "score").graph
    root = apply("add", SCORE, total(W, gated))
    found = dict(derivatives(type(graph)("score", root, (ROWS, ROW), ())).loads)
    gate = apply("to_f32", apply("not", apply("le", layer, const(0.0))))
    assert terms(W, found[W]) == (Term(BOTH, gate, weights),)
    assert terms(weights, found[weights]) == (Term(BOTH, gate, W),)
