"""Random mods as a kernel computes them: masks exactly, many in one kernel, and score mods."""

from __future__ import annotations

import functools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("cutlass")

from flexfa4.frontend.analysis.bounds import premises
from flexfa4.frontend.binding import BoundGraph
from flexfa4.frontend.evaluate import Program, Values
from flexfa4.frontend.ir import make_graph
from flexfa4.frontend.lanes import Lanes
from flexfa4.frontend.ops import apply
from flexfa4.frontend.sizes import Sizes
from flexfa4.frontend.tracing.trace import resolve
from flexfa4.kernels.emit.captures import capture_plan
from flexfa4.kernels.emit.errors import KernelLimitError
from flexfa4.kernels.emit.program import LOG2E, prepare_score, score_promises
from flexfa4.testing import Draw, agrees
from flexfa4.testing.case import Sizes as CaseSizes
from tests.emulate.emit_kernels import Work
from tests.emulate.evaluation import evaluated, floats
from tests.random_masks import IDIOMS, RandomMask, Space, masks
from tests.test_properties import Source, score_texts

SPACE = Space(2, 2, 37, 83)  # neither is a multiple of a tile
SIZES = Sizes(2, 2, 1, SPACE.q_len, SPACE.kv_len)


def wrong(sources: list[str], *, packed: int = 1) -> list[str]:
    """Return the masks of which a kernel that evaluates them all shows something else."""
    functions = [RandomMask(source, seed=1).function(SPACE) for source in sources]
    bounds = [resolve(function, "mask") for function in functions]
    known = {
        capture: value
        for bound in bounds
        for captures, values in (
            (bound.graph.buffers, bound.tensors),
            (bound.graph.scalars, bound.scalars),
        )
        for capture, value in zip(captures, values, strict=True)
    }
    roots = tuple(bound.graph.root for bound in bounds)
    graph = make_graph("mask", functools.reduce(lambda a, b: apply("or", a, b), roots))
    all_bound = BoundGraph(
        graph, tuple(known[b] for b in graph.buffers), tuple(known[s] for s in graph.scalars)
    )
    work = Work(graph, capture_plan(all_bound, SIZES), roots, exact=True, packed=packed)
    found = evaluated(work, all_bound, SIZES).bool()
    return [
        source
        for source, function, shown in zip(sources, functions, found, strict=True)
        if not torch.equal(shown, SPACE.dense(function))
    ]


@pytest.mark.parametrize("half", [0, 1])
def test_idioms_of_masks_are_computed_exactly(half: int) -> None:
    assert not wrong(list(IDIOMS[half::2]))


def test_idioms_of_masks_are_computed_exactly_for_packed_heads() -> None:
    assert not wrong([idiom for idiom in IDIOMS if "h" in idiom], packed=2)


@settings(max_examples=3)
@given(st.lists(masks(2), min_size=8, max_size=8))
def test_random_masks_are_computed_exactly(sources: list[str]) -> None:
    assert not wrong(sources)


@pytest.mark.full
@settings(max_examples=60)
@given(st.lists(masks(3), min_size=8, max_size=8))
def test_many_random_masks_are_computed_exactly(sources: list[str]) -> None:
    assert not wrong(sources)


# ---- score mods ----------------------------------------------------------------------------------


def check_score(source: str, scale: float, packed: int) -> None:
    """Hold a kernel's scores against those of the frontend, in fp64 and in fp32."""
    generator = torch.Generator().manual_seed(1)
    sizes = CaseSizes(SIZES.batch, SIZES.heads, SIZES.kv_heads, SIZES.q_len, SIZES.kv_len)
    bound = resolve(Source(source, None).make(sizes, Draw(generator)).score_mod, "score")
    promises = score_promises(bound.graph, premises(bound, SIZES).domain(), scale)
    try:
        program = prepare_score(bound.graph, promises)
    except KernelLimitError:
        return
    shape = (SIZES.batch, SIZES.heads, SIZES.q_len, SIZES.kv_len)
    products = torch.randn(shape, generator=generator) * 3
    work = Work(bound.graph, capture_plan(bound, SIZES), score=program, packed=packed)
    found = floats(evaluated(work, bound, SIZES, products, scale))[0] / LOG2E
    lanes = Lanes(*[(0, n) for n in shape])

    def computed_in(dtype: torch.dtype) -> torch.Tensor:
        values = Values.of(bound, SIZES, device=torch.device("cpu"), dtype=dtype)
        with torch.no_grad():
            (result,) = Program([bound.graph.root]).run(values, lanes, (products * scale).to(dtype))
        return torch.as_tensor(result, dtype=dtype).expand(shape)

    exact, eager = computed_in(torch.float64), computed_in(torch.float32)
    seen = exact != -math.inf
    assert torch.equal(found != -math.inf, seen)
    assert agrees(found[seen], exact[seen], eager[seen], terms=64)


SCALES = st.sampled_from((0.25, 1.0, -0.5))


@settings(max_examples=5)
@given(score_texts, SCALES, st.sampled_from((1, 2)))
def test_random_score_mods_are_computed(source: str, scale: float, packed: int) -> None:
    check_score(source, scale, packed)


@pytest.mark.full
@settings(max_examples=200)
@given(score_texts, SCALES, st.sampled_from((1, 2)))
def test_many_random_score_mods_are_computed(source: str, scale: float, packed: int) -> None:
    check_score(source, scale, packed)
