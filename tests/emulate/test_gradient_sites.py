"""Score mods and their derivatives in a backward kernel, in the emulator, against eager torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("cutlass")

import cutlass
from cutlass import Float32, Int32, cute

from flexfa4.emulator import Device
from flexfa4.frontend.binding import BoundGraph
from flexfa4.frontend.derivative import derivatives
from flexfa4.frontend.evaluate import Program, Values
from flexfa4.frontend.ir import F32
from flexfa4.frontend.lanes import Lanes
from flexfa4.frontend.sizes import Sizes
from flexfa4.frontend.tracing.trace import resolve
from flexfa4.kernels.emit.captures import capture_plan, capture_values, captures_signature
from flexfa4.kernels.emit.gradient import prepare_gradient
from flexfa4.kernels.emit.program import LOG2E
from flexfa4.testing import CASES, Case, Draw, agrees
from flexfa4.testing.case import Sizes as CaseSizes
from tests.emulate.evaluation import pointer
from tests.emulate.gradient_kernels import Gradients, GradientWork

SIZES = Sizes(2, 4, 2, 37, 67)
SCALE = 0.125
TYPES: dict[str, Any] = {
    "pointer": cutlass.Int64,
    "i64": cutlass.Int64,
    "i32": Int32,
    "f32": Float32,
}

# One of each kind: linear and not; by row, key, head and pair; gathers, vectors, functions.
QUICK = {
    "alibi", "softcap", "head_gate", "pair_bias", "forgetting_gate", "fire", "t5_bias_causal",
    "masked_by_score", "rotary_part", "learned_slopes", "learned_temperature", "score_free",
}  # fmt: skip


def case_sizes() -> CaseSizes:
    return CaseSizes(SIZES.batch, SIZES.heads, SIZES.kv_heads, SIZES.q_len, SIZES.kv_len)


def parameters() -> list[Any]:
    found = []
    for case in CASES:
        if case.make(case_sizes(), Draw(torch.Generator().manual_seed(0))).score_mod is not None:
            marks = () if case.name in QUICK else (pytest.mark.full,)
            found.append(pytest.param(case, id=case.name, marks=marks))
    return found


def mod_of(case: Case) -> BoundGraph:
    mods = case.make(case_sizes(), Draw(torch.Generator().manual_seed(0)))
    return resolve(mods.score_mod, "score")


def lanes() -> Lanes:
    return Lanes((0, SIZES.batch), (0, SIZES.heads), (0, SIZES.q_len), (0, SIZES.kv_len))


def run(bound: BoundGraph, scores: torch.Tensor, statistics: torch.Tensor) -> tuple[Any, ...]:
    """Return the program, and ``(results, B, H, Lq, Lk)``: see `Gradients`."""
    floats = frozenset(b for b in bound.graph.buffers if b.dtype is F32)
    program = prepare_gradient(bound.graph, floats)
    plan = capture_plan(bound, SIZES, "q")
    work = GradientWork(program, plan, bound.graph)
    out = torch.full((work.results, *lanes().shape), torch.nan)
    with Device("sm_90a") as device:
        for tensor in bound.tensors:
            device.tensor(tensor.detach())
        at = [int(device.tensor(t).data_ptr()) for t in (out, scores, statistics)]
        signature = captures_signature(bound.graph, plan)
        values = zip(signature, capture_values(bound, plan, at[1]), strict=True)
        args = (
            *(pointer(Float32, address) for address in at),
            SCALE,
            tuple(Int32(n) for n in SIZES),
            (*(TYPES[p.kind](value) for p, value in values), Int32(0)),
        )
        cute.compile(Gradients(work), *args)(*args)
    return program, out


def expected(
    bound: BoundGraph, roots: list[Any], scores: torch.Tensor, dtype: torch.dtype
) -> list[torch.Tensor]:
    """Return nodes of a mod on scaled products, computed in a dtype."""
    values = Values.of(bound, SIZES, device=torch.device("cpu"), dtype=dtype)
    with torch.no_grad():
        found = Program(roots).run(values, lanes(), scores.to(dtype))
    return [torch.as_tensor(value, dtype=dtype).expand(scores.shape) for value in found]


def given_scores() -> tuple[torch.Tensor, torch.Tensor]:
    """Return products, probabilities and products of dO and V; lse in base 2 and delta."""
    generator = torch.Generator().manual_seed(1)
    scores = torch.randn(3, *lanes().shape, generator=generator)
    scores[0].mul_(10)
    scores[1].abs_()
    return scores, torch.randn(2, *lanes().shape[:3], generator=generator)


def near(found: torch.Tensor, exact: torch.Tensor, eager: torch.Tensor) -> bool:
    """Return whether finite results are near enough, and the others the same."""
    finite = exact.isfinite()
    same = torch.equal(found[~finite], exact[~finite].float())
    return same and agrees(found[finite], exact[finite], eager[finite], terms=16)


@pytest.mark.parametrize("case", parameters())
def test_exponents_and_gradients_are_those_of_torch(case: Case) -> None:
    bound = mod_of(case)
    scores, statistics = given_scores()
    program, out = run(bound, scores, statistics)
    derived = derivatives(bound.graph)
    roots = [bound.graph.root, derived.score, *(share.derivative for share in program.shares)]
    parts = []
    for dtype in (torch.float64, torch.float32):
        products, p, dp = scores.to(dtype)
        lse, delta = statistics.to(dtype).unsqueeze(-1)
        mod, derivative, *others = expected(bound, roots, products * SCALE, dtype)
        modified = p * (dp - delta)
        parts.append((mod * LOG2E - lse, *(modified * d for d in (derivative, *others))))
    for found, exact, eager in zip(out, *parts, strict=True):
        assert near(found, exact, eager)


def test_a_hidden_score_has_no_gradient_although_its_derivatives_are_infinite() -> None:
    weights = torch.full((SIZES.kv_len,), 0.5)

    def mod(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        return (score * weights[kv] + (33 - q)).log()  # NaN behind query 33

    bound = resolve(mod, "score")
    scores, statistics = given_scores()
    scores[0].zero_()
    scores[1, :, :, 32:].zero_()  # which are in the last tile, that may hide
    _, out = run(bound, scores, statistics)
    assert not out[1:].isnan().any() and bool((out[1:, :, :, 32:] == 0).all())


def test_a_query_that_sees_nothing_has_no_probabilities() -> None:
    bias = torch.rand(SIZES.q_len).index_fill_(0, torch.tensor([5]), -torch.inf)
    slope = torch.rand(4)
    bound = resolve(lambda s, b, h, q, kv: s + bias[q] + slope[h] * (kv - q), "score")
    scores, statistics = given_scores()
    statistics[0, :, :, 5] = torch.inf
    _, out = run(bound, scores, statistics)
    assert bool((out[0, :, :, 5] == -torch.inf).all())
    assert not out[0].isnan().any()
