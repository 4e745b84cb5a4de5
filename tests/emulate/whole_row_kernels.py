"""A kernel whose threads have whole rows of scores: what Blackwell's softmax warps do, by itself.

A warp has 32 queries of a head, and goes through the tiles of keys.  It reads products, makes
scores of them on pairs, hides what is outside of each row's limits, and writes probabilities as
they are stored, what rescales the outputs, and what the rows end with.  CuTe-DSL reads a kernel's
source, so it stands in a module of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import Float32, Int32, Int64, cute

from flexfa4.kernels.emit.evaluator import Fixed, Leaves
from flexfa4.kernels.emit.places import Columns, Row
from flexfa4.kernels.emit.program import LOG2E, ScoreProgram
from flexfa4.kernels.emit.sites import ScoreSite
from flexfa4.primitives import packed
from flexfa4.primitives.column_limits import hide_outside
from flexfa4.primitives.device_exponentials import (
    emulated_exp2,
    emulated_exp2_of_pair,
    exp2_of_pair,
)
from flexfa4.primitives.exponentials import EmulatedFraction
from flexfa4.primitives.registers import Numbers
from flexfa4.primitives.running_softmax import Ends
from flexfa4.primitives.whole_row_softmax import Scaling, WholeRowSoftmax

ROWS = 32
NONE = EmulatedFraction()


@dataclass(frozen=True)
class RowWork:
    """What the kernel is compiled for.

    Attributes:
        score: the mod; None for scores that are the products, scaled.
        graph, plan: of the mod and its captures.
        keys: columns of a tile.
        element: of the probabilities.
        limits: rows have limits.
    """

    score: ScoreProgram | None = None
    graph: Any = None
    plan: Any = None
    keys: int = 128
    element: Any = cutlass.BFloat16
    tau: float = 8.0
    emulated: EmulatedFraction = NONE
    limits: bool = False


class WholeRows:
    """The kernel; `work` is fixed when it is compiled."""

    def __init__(self, work: RowWork) -> None:
        self.work = work

    @cute.jit
    def __call__(
        self,
        products: cute.Pointer,
        limits: cute.Pointer,
        results: tuple[Any, ...],
        scale: Float32,
        sizes: tuple[Any, ...],
        captures: tuple[Any, ...],
    ) -> None:
        """Launch.

        Args:
            products: fp32 ``(heads, 32, keys of all tiles)``.
            limits: int32 ``(32, 2)``: the first visible key of each row, and the one behind the
                last.
            results: pointers to probabilities ``(heads, tiles, 32, keys)``, to corrections
                ``(heads, tiles, 32)`` and to what rows end with ``(heads, 32, 2)``: what normalises
                them, and their lse.
            scale: the softmax scale.
            sizes: heads and tiles.
            captures: of the mod, and a 0.
        """
        self.kernel(products, limits, results, scale, sizes, captures).launch(
            grid=[sizes[0], 1, 1], block=[ROWS, 1, 1]
        )

    @cute.kernel
    def kernel(
        self,
        products: cute.Pointer,
        limits: cute.Pointer,
        results: tuple[Any, ...],
        scale: Float32,
        sizes: tuple[Any, ...],
        captures: tuple[Any, ...],
    ) -> None:
        work = self.work
        row, _, _ = cute.arch.thread_idx()
        head, _, _ = cute.arch.block_idx()
        heads, tiles = sizes
        probabilities, corrections, ends = results
        keys = work.keys
        length = tiles * keys
        site = self.site(head, row, heads, length, scale, captures)
        begin = end = None
        if cutlass.const_expr(work.limits):
            own = cute.make_tensor(limits + 2 * row, cute.make_layout(2))
            begin, end = own[0], own[1]
        scores = Numbers(cute.make_rmem_tensor(keys, Float32))
        rounded = cute.make_rmem_tensor(keys, work.element)
        own = Ends(scale * LOG2E) if site is None else Ends(site.unit(0), site.constant(0))
        softmax = WholeRowSoftmax.start(work.tau, work.emulated)
        for tile in cutlass.range(tiles, unroll=1):
            first = (Int64(head) * ROWS + row) * length + tile * keys
            scores.tensor.store(cute.make_tensor(products + first, cute.make_layout(keys)).load())
            scaling = self.scaled(site, scores, tile * keys, scale)
            if cutlass.const_expr(work.limits):
                hide_outside(scores, begin - tile * keys, end - tile * keys)
            at = (Int64(head) * tiles + tile) * ROWS + row
            corrected = cute.make_tensor(corrections + at, cute.make_layout(1))
            corrected[0] = softmax.raise_maximum(scores, scaling)
            exponents = softmax.exponents(scaling)
            target = probabilities + at * keys
            for part in cutlass.range_constexpr(2):
                columns = range(keys // 4 * 3) if part == 0 else range(keys // 4 * 3, keys)
                exponents.probabilities(scores, columns, rounded)
                layout = cute.make_layout(len(columns))
                written = cute.make_tensor(target + columns.start, layout)
                written.store(cute.make_tensor(rounded.iterator + columns.start, layout).load())
            softmax.add(scores)
        own_ends = cute.make_tensor(ends + (Int64(head) * ROWS + row) * 2, cute.make_layout(2))
        own_ends[0], own_ends[1] = softmax.finish(own)

    def site(
        self, head: Int32, row: Int32, heads: Int32, length: Int32, scale: Float32, captures: Any
    ) -> ScoreSite | None:
        """Return the mod at the thread's row."""
        work = self.work
        if work.score is None:
            return None
        leaves = Leaves(Int32(0), head, Int32(ROWS), length, heads, heads, captures[:-1])
        columns = Columns(tuple(range(work.keys)), work.keys, ahead=32)
        fixed = Fixed(work.graph, work.plan, leaves, columns, pairs=True)
        return ScoreSite(work.score, fixed, scale).with_rows([Row(row, offset=0)])

    def scaled(
        self, site: ScoreSite | None, scores: Numbers, origin: Int32, scale: Float32
    ) -> Scaling:
        """Apply the mod to the products of a tile."""
        if site is None:
            return Scaling(scale * LOG2E)
        part = site.at_tile(origin)
        for i in range(self.work.keys // 2):
            packed.store(scores, i, part.pair(0, 2 * i, packed.load(scores, i)))
        return Scaling(part.factor(0), part.shifts(0))


class Powers:
    """Threads that compute 2^x of two numbers each.

    Attributes:
        degree: of the polynomial; None for the exponential unit.
        pairs: by instructions on pairs.
    """

    def __init__(self, degree: int | None, pairs: bool) -> None:
        self.degree = degree
        self.pairs = pairs

    @cute.jit
    def __call__(self, x: cute.Pointer, powers: cute.Pointer, blocks: Int32) -> None:
        self.kernel(x, powers).launch(grid=[blocks, 1, 1], block=[ROWS, 1, 1])

    @cute.kernel
    def kernel(self, x: cute.Pointer, powers: cute.Pointer) -> None:
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        first = 2 * (block * ROWS + thread)
        source = cute.make_tensor(x + first, cute.make_layout(2))
        target = cute.make_tensor(powers + first, cute.make_layout(2))
        target[0], target[1] = packed.lanes(self.power(packed.pair(source[0], source[1])))

    def power(self, x: packed.Pair) -> packed.Pair:
        """Return 2^x of two numbers."""
        if self.degree is None:
            return exp2_of_pair(x)
        if self.pairs:
            return emulated_exp2_of_pair(x, self.degree)
        return packed.pair(*(emulated_exp2(number, self.degree) for number in packed.lanes(x)))
