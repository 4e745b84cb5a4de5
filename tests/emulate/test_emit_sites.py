"""Mods in a kernel: packed heads, far positions, ends of tensors, storage, and what is hoisted."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

pytest.importorskip("cutlass")

import flexfa4
from flexfa4.frontend.analysis.bounds import premises
from flexfa4.frontend.binding import BoundGraph
from flexfa4.frontend.sizes import Sizes
from flexfa4.frontend.tracing.trace import resolve
from flexfa4.kernels.emit.captures import capture_plan
from flexfa4.kernels.emit.cost import Fragment, cost_of_score
from flexfa4.kernels.emit.program import (
    LOG2E,
    ScoreProgram,
    ScorePromises,
    prepare_mask,
    prepare_score,
    score_promises,
)
from flexfa4.testing import agrees
from tests.emulate.emit_kernels import Work
from tests.emulate.evaluation import evaluated, floats, ptx_of

SIZES = Sizes(1, 2, 1, 24, 40)


def shape_of(sizes: Sizes) -> tuple[int, ...]:
    return sizes.batch, sizes.heads, sizes.q_len, sizes.kv_len


def grids(sizes: Sizes, first: tuple[int, int] = (0, 0)) -> tuple[torch.Tensor, ...]:
    """Return the indices b, h, q and kv of all scores, to broadcast."""
    counts = shape_of(sizes)
    starts = (0, 0, *first)
    return tuple(
        (torch.arange(n) + start).view([-1 if i == axis else 1 for i in range(4)])
        for axis, (n, start) in enumerate(zip(counts, starts, strict=True))
    )


def holds(
    found: torch.Tensor, mod: Any, products: torch.Tensor, index: tuple[torch.Tensor, ...]
) -> bool:
    """Return whether a kernel's scores are as near to the mod's as fp32 lets them be."""
    exact, eager = mod(products.double(), *index), mod(products, *index)
    return agrees(found, exact.expand(found.shape), eager.expand(found.shape), terms=16)


def score_program(bound: BoundGraph, sizes: Sizes, scale: float) -> ScoreProgram:
    promises = score_promises(bound.graph, premises(bound, sizes).domain(), scale)
    return prepare_score(bound.graph, promises)


def scores_of(
    mod: Any, sizes: Sizes = SIZES, scale: float = 1.0, **options: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the products, and what a kernel makes of them in natural units."""
    bound = resolve(mod, "score")
    # sizes that tiles far away exist in
    first = options.get("first", (0, 0))
    whole = sizes._replace(q_len=sizes.q_len + first[0], kv_len=sizes.kv_len + first[1])
    work = Work(
        bound.graph,
        capture_plan(bound, whole),
        score=score_program(bound, whole, scale),
        **options,
    )
    products = torch.randn(shape_of(sizes), generator=torch.Generator().manual_seed(0))
    return products, floats(evaluated(work, bound, sizes, products, scale))[0] / LOG2E


def masked_by(mask: Any, sizes: Sizes = SIZES, **options: Any) -> torch.Tensor:
    bound = resolve(mask, "mask")
    plan = capture_plan(bound, sizes)
    work = Work(bound.graph, plan, mask=prepare_mask(bound.graph), exact=True, **options)
    return evaluated(work, bound, sizes)[0].bool()


# ---- where ---------------------------------------------------------------------------------------


def test_rows_of_packed_heads_have_heads_of_their_own() -> None:
    packed, sizes = 2, Sizes(2, 4, 2, 21, 40)
    slope, gate = torch.rand(4), torch.rand(2, 4, 21)
    b, h, q, kv = grids(sizes)

    def mod(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        return score * gate[b, h, q] + slope[h] * (kv - q).abs() + (h - 1) * kv

    products, found = scores_of(mod, sizes, packed=packed)
    assert holds(found, mod, products, (b, h, q, kv))
    mask = masked_by(lambda b, h, q, kv: (kv <= q + h) & (kv % 4 != h), sizes, packed=packed)
    assert torch.equal(mask, ((kv <= q + h) & (kv % 4 != h)).expand(shape_of(sizes)))


@pytest.mark.parametrize("position", [(1 << 20) + 3, 1 << 29])
def test_a_bias_by_distance_is_as_exact_at_far_positions_as_at_near_ones(position: int) -> None:
    slope = torch.tensor([0.7, 0.11])
    products, found = scores_of(
        lambda score, b, h, q, kv: score + slope[h] * (kv - q), first=(position, position)
    )
    _, h, q, kv = grids(SIZES)
    exact = products.double() + slope.double()[h] * (kv - q)
    assert (found.double() - exact).abs().amax() <= 5e-6


def test_distances_beyond_exact_floats_round_as_torchs_do() -> None:
    far = (1 << 27, 5)
    mod = lambda score, b, h, q, kv: score * 0 + 1e-7 * (q - kv).abs()  # noqa: E731
    products, found = scores_of(mod, first=far)
    assert holds(found, mod, products, grids(SIZES, far))


def test_positions_beyond_31_bits_do_not_wrap_around() -> None:
    sizes = Sizes(1, 1, 1, 16, 32)
    first = ((1 << 28) - 8, 0)
    mod = lambda score, b, h, q, kv: score + torch.where(q * 4096 + kv > 2**40, 1.0, 0.0)  # noqa: E731
    products, found = scores_of(mod, sizes, first=first)
    assert holds(found, mod, products, grids(sizes, first))


# ---- the ends of tensors -------------------------------------------------------------------------
# The emulator reports every access outside of a tensor.


@pytest.mark.parametrize("lengths", [(1, 1), (17, 33), (24, 64)])
def test_nothing_is_read_beyond_the_ends_of_tensors(lengths: tuple[int, int]) -> None:
    sizes = Sizes(1, 2, 1, *lengths)
    by_key, by_row, pairs = torch.rand(2, lengths[1]), torch.rand(lengths[0]), torch.rand(lengths)
    diagonal = torch.rand(sum(lengths))
    shorter = torch.arange(lengths[0] + lengths[1])
    last = lengths[1]

    def mod(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        near = by_key[h, kv] + by_row[q] + pairs[q, kv] + diagonal[q - kv + last]
        return score + near + by_row[-1 - q] + diagonal[shorter[(q - kv).abs()]]

    products, found = scores_of(mod, sizes)
    assert holds(found, mod, products, grids(sizes))


def test_an_index_that_is_out_of_range_where_the_mask_hides_it_reads_something() -> None:
    table = torch.arange(8.0)
    *_, q, kv = grids(SIZES)
    _, found = scores_of(lambda score, b, h, q, kv: score * 0 + table[q - kv])
    inside = ((q - kv >= -8) & (q - kv < 8))[0, 0]
    wanted = table[(q - kv)[0, 0][inside]]
    assert torch.equal(found[0, 0][inside].round(), wanted)


def test_a_tensor_without_elements_is_not_read() -> None:
    nothing = torch.empty(0)
    _, found = scores_of(
        lambda score, b, h, q, kv: torch.where(kv < nothing.shape[0], nothing[kv], 2.0)
    )
    assert bool((found == 2).all())


# ---- storage -------------------------------------------------------------------------------------


@pytest.mark.parametrize("contiguous", [True, False])
def test_elements_of_every_dtype_are_read(contiguous: bool) -> None:
    floating = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
    whole = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool]
    generator = torch.Generator().manual_seed(0)
    tensors = []
    for dtype in floating + whole:
        values = torch.randint(0, 2 if dtype is torch.bool else 100, (40, 2), generator=generator)
        stored = values.to(dtype) if dtype in whole else (values / 7).to(dtype)
        tensors.append(stored.T.contiguous() if contiguous else stored.T)

    def mod(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        for i, tensor in enumerate(tensors):
            read = tensor[h, kv]
            score = score + (torch.where(read, 0.5, 0.0) if tensor.dtype is torch.bool else read)
            score = score * (1 + i / 10)
        return score

    products, found = scores_of(mod)
    assert holds(found, mod, products, grids(SIZES))


@pytest.mark.parametrize("narrow", [True, False])
def test_offsets_may_be_of_64_bits_and_go_backwards(narrow: bool) -> None:
    rows, columns, ids = torch.rand(40, 2), torch.rand(2, 3, 40), torch.randint(-40, 40, (40,))

    def mod(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        moving = rows[39 - kv, h] + columns[h, q % 3, 39 - kv]
        return score + moving + rows[ids[kv], h] + columns[h, 1, ids[(q - kv).abs()]]

    bound = resolve(mod, "score")
    plan = capture_plan(bound, SIZES)
    plan = replace(plan, buffers=tuple(replace(b, narrow=narrow) for b in plan.buffers))
    work = Work(bound.graph, plan, score=score_program(bound, SIZES, 1.0))
    products = torch.randn(shape_of(SIZES))
    found = floats(evaluated(work, bound, SIZES, products))[0] / LOG2E
    assert holds(found, mod, products, grids(SIZES))


def test_integers_of_64_bits_are_compared_in_whole() -> None:
    ids = torch.tensor([5, 5 + (1 << 32), -5, 5 - (1 << 40)]).repeat(10)
    found = masked_by(lambda b, h, q, kv: ids[q] == ids[kv])
    assert torch.equal(found[0, 0], ids[:24, None] == ids)


# ---- what is promised, and what is not -----------------------------------------------------------


@pytest.mark.parametrize("scale", [0.0, -0.5])
def test_scales_and_factors_may_be_negative(scale: float) -> None:
    factor, bias = torch.tensor([-1.5, 0.25]), torch.rand(40)
    for mod in (
        lambda score, b, h, q, kv: score * factor[h] - 0.1 * kv + bias[kv],
        lambda score, b, h, q, kv: -torch.tanh(score) + 0.01 * (q - kv),
    ):
        products, found = scores_of(mod, scale=scale)
        assert holds(found, mod, products * scale, grids(SIZES))


# ---- what is hoisted: counts of instructions -----------------------------------------------------


def instructions(mod: Any, kind: str = "score") -> tuple[Counter[str], Counter[str]]:
    """Return how often each instruction stands in the text: in the loop over keys, and before it.

    A thread has 2 rows of 8 columns, 16 scores.
    """
    bound, sizes = resolve(mod, kind), Sizes(1, 2, 1, 4096, 4096)  # type: ignore[arg-type]
    plan = capture_plan(bound, sizes)
    if kind == "score":
        program = score_program(bound, sizes, 0.125)
        work = Work(bound.graph, plan, score=program, fast=True, tail=False, columns=32)
    else:
        mask = prepare_mask(bound.graph)
        work = Work(bound.graph, plan, mask=mask, exact=True, tail=False, columns=32)
    before, loop = ptx_of(work, bound, sizes).split('.pragma "nounroll"', 1)
    return counted(loop[: loop.rindex("bra")]), counted(before[before.index("{\n") :])


def counted(text: str) -> Counter[str]:
    found = re.findall(r"^\s+(?:@!?%p\d+ )?([a-z][a-z0-9_.:]*)", text, flags=re.M)
    return Counter(found)


def added(mod: Any, kind: str = "score") -> Counter[str]:
    """Return the instructions in the loop beyond those of no mod at all."""
    nothing: dict[str, Callable[..., Any]] = {
        "score": lambda score, b, h, q, kv: score,
        "mask": lambda b, h, q, kv: (b == 0) & (h >= 0),
    }
    with_mod, without = instructions(mod, kind)[0], instructions(nothing[kind], kind)[0]
    return Counter({name: with_mod[name] - without[name] for name in with_mod | without})


SCORES = 16
COLUMNS, DIAGONALS = 8, 10


def test_a_linear_bias_is_one_fused_multiply_add_for_each_score() -> None:
    slope = torch.rand(2)
    found = added(lambda score, b, h, q, kv: score + slope[h] * (kv - q))
    # the shift of a row is added by what was a product with the factor
    assert found["fma.rn.f32"] + found["mul.f32"] + found["add.f32"] <= SCORES + 4
    assert found["cvt.rn.f32.s32"] <= 2 and found["ld.global.b32"] == 0


def test_a_softcap_is_a_product_and_an_approximate_function() -> None:
    found = added(lambda score, b, h, q, kv: 30.0 * torch.tanh(score / 30.0))
    assert {n: c for n, c in found.items() if c > 0} == {
        "tanh.approx.f32": SCORES, "mul.f32": SCORES,
    }  # fmt: skip


def test_a_bias_by_key_is_read_once_for_all_rows_two_at_a_time() -> None:
    bias = torch.rand(2, 4096)
    found = added(lambda score, b, h, q, kv: score + bias[h, kv])
    assert found["ld.global.v2.b32"] == COLUMNS // 2 and found["ld.global.b32"] == 0
    assert found["fma.rn.f32"] == SCORES


def test_what_depends_on_the_row_alone_is_computed_before_the_loop() -> None:
    gate = torch.rand(2, 4096)
    mod = lambda score, b, h, q, kv: score * (0.1 + torch.exp(gate[h, q]))  # noqa: E731
    loop, before = instructions(mod)
    assert before["ex2.approx.ftz.f32"] == 2 and before["ld.global.b32"] == 2
    assert not any(name.startswith("ex2") for name in loop)


def test_rows_share_what_is_the_same_along_a_diagonal() -> None:
    table, buckets = torch.rand(32, 2), torch.randint(0, 32, (4096,))
    found = added(lambda score, b, h, q, kv: score + table[buckets[(q - kv).clamp(min=0)], h])
    assert found["ld.global.b32"] == 2 * DIAGONALS
    found = added(lambda b, h, q, kv: (q >= kv) & (q - kv < 100), "mask")
    assert found["setp.gt.s32"] + found["setp.lt.s32"] <= 2 * DIAGONALS


def test_a_relative_bias_is_read_at_a_fixed_distance_from_one_address() -> None:
    table = torch.rand(2, 8192)
    found = added(lambda score, b, h, q, kv: score + table[h, kv - q + 4096])
    assert found["ld.global.b32"] == SCORES
    assert found["add.s64"] + found["mul.wide.s32"] + found["mad.wide.s32"] <= 6


def test_distances_are_converted_once_for_a_row() -> None:
    found = added(lambda score, b, h, q, kv: score - 0.5 * (q - kv).abs())
    assert found["cvt.rn.f32.s32"] <= 2 and found["abs.f32"] == DIAGONALS


def test_integers_that_fit_are_computed_in_32_bits() -> None:
    window = 100
    found = added(lambda b, h, q, kv: (q - kv).abs() * 3 < window, "mask")
    assert not any("64" in name and "setp" in name for name in found if found[name] > 0)


ALIBI, GATE = torch.rand(2), torch.rand(2, 4096)
TABLE, BUCKETS = torch.rand(32, 2), torch.randint(0, 32, (4096,))
COUNTED: dict[str, Callable[..., Any]] = {
    "alibi": lambda score, b, h, q, kv: score + ALIBI[h] * (kv - q),
    "T5": lambda score, b, h, q, kv: score + TABLE[BUCKETS[(q - kv).clamp(min=0)], h],
    "gate": lambda score, b, h, q, kv: score * torch.sigmoid(GATE[h, kv]),
    "softcap": lambda score, b, h, q, kv: 30.0 * torch.tanh(score / 30.0),
}


@pytest.mark.parametrize("name", COUNTED)
def test_costs_of_mods_are_the_instructions_in_the_text(name: str) -> None:
    bound, sizes = resolve(COUNTED[name], "score"), Sizes(1, 2, 1, 4096, 4096)
    program = score_program(bound, sizes, 0.125)
    fragment = Fragment(Work(bound.graph, None, columns=32).held, (0, 8))
    cost = cost_of_score(program, capture_plan(bound, sizes), fragment).times(SCORES)
    found = added(COUNTED[name])
    hardware = ("tanh", "ex2", "rcp", "lg2")
    assert cost.load == sum(n for i, n in found.items() if i.startswith("ld.global"))
    assert cost.mufu == sum(n for i, n in found.items() if i.startswith(hardware))
    assert cost.all == pytest.approx(sum(found.values()), rel=0.15)


# ---- programs ------------------------------------------------------------------------------------


@pytest.mark.parametrize("promise", [True, False])
def test_both_ways_to_write_a_factor_give_the_same(promise: bool) -> None:
    mod = flexfa4.parse("2 * score + 0.25 * (kv - q)")
    bound = resolve(mod, "score")
    program = prepare_score(bound.graph, ScorePromises(scale=promise))
    assert program.defers is promise
    work = Work(bound.graph, capture_plan(bound, SIZES), score=program)
    products = torch.randn(shape_of(SIZES))
    found = floats(evaluated(work, bound, SIZES, products, 0.5))[0] / LOG2E
    assert holds(found, mod, products * 0.5, grids(SIZES))
