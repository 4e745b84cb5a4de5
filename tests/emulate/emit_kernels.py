"""A kernel that evaluates graphs over all scores, in the fragments of a tensor core's accumulator.

One warp holds 16 rows of a tile and some columns: each thread two rows and, of every eight columns,
two; where scores are computed on pairs, as many columns, but side by side.  Tiles of keys that are
whole are visited in a loop, the last one may reach past the end.  CuTe-DSL reads a kernel's source,
so it stands in a module of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import cute
from cutlass._mlir.dialects import arith

from flexfa4.kernels.emit import builders as make
from flexfa4.kernels.emit.evaluator import Fixed, Frame, Leaves
from flexfa4.kernels.emit.places import Columns, Row
from flexfa4.kernels.emit.program import MaskProgram, ScoreProgram
from flexfa4.kernels.emit.sites import MaskSite, ScoreSite
from flexfa4.primitives import packed

ROWS = 16


@dataclass(frozen=True)
class Work:
    """What is evaluated: roots by themselves, or a score mod or mask as a kernel would."""

    graph: Any
    plan: Any
    roots: tuple[Any, ...] = ()
    score: ScoreProgram | None = None
    mask: MaskProgram | None = None
    exact: bool = False
    fast: bool = False
    packed: int = 1  # heads of a row of tiles
    columns: int = 16  # of a tile
    tail: bool = True  # the last tile may reach past the end
    first: tuple[int, int] = (0, 0)  # the query and the key that come first
    pairs: bool = False  # scores are computed for two columns at once

    @property
    def held(self) -> Columns:
        """The columns of a thread."""
        if self.pairs:
            return Columns(tuple(range(self.columns // 4)), self.columns // 4)
        return Columns(tuple(8 * i + j for i in range(self.columns // 8) for j in (0, 1)), 2)

    @property
    def arch(self) -> str:
        """The architecture: pairs are Blackwell's."""
        return "sm_100a" if self.pairs else "sm_90a"

    @property
    def results(self) -> int:
        return len(self.roots) if self.roots else 1


class Evaluation:
    """The kernel; `work` is fixed when it is compiled."""

    def __init__(self, work: Work) -> None:
        self.work = work

    def site(self, leaves: Leaves, scale: Any) -> Any:
        work = self.work
        inputs = frozenset({"h"} if work.packed > 1 else ())
        fixed = Fixed(
            work.graph, work.plan, leaves, work.held, inputs, work.exact, work.fast, work.pairs
        )
        if work.score is not None:
            return ScoreSite(work.score, fixed, scale)
        if work.mask is not None:
            return MaskSite(work.mask, fixed)
        frame = Frame(fixed)
        frame.prepare(*work.roots)
        return frame

    def rows(self, site: Any, rows: Sequence[Row]) -> Any:
        made = site.with_rows(rows)
        if self.work.roots:
            made.prepare(*self.work.roots)
        return made

    def of_thread(self, queries: Sequence[Any], heads: Sequence[Any]) -> list[Row]:
        """Return the rows of a thread; eight queries lie between them unless heads do."""
        if self.work.packed > 1:
            return [Row(q, h) for q, h in zip(queries, heads, strict=True)]
        first = self.work.first[0]
        return [Row(q + first, offset=8 * i) for i, q in enumerate(queries)]

    def exponent(self, tile: Any, row: int, y: Any, shift: Any) -> Any:
        """Return what the score mod makes of a score, in base 2."""
        x = y * tile.factor(row)
        for part in (shift, tile.constant(row)):
            x = x if part is None else x + part
        return x.ir_value()

    def results(self, tile: Any, row: int, column: int, products: list[Any]) -> list[Any]:
        """Return the results at a row and a column as 64-bit patterns or numbers."""
        product = products[column]
        if self.work.pairs:
            first = column - column % 2
            pair = tile.pair(row, first, packed.pair(*products[first : first + 2]))
            shifts = tile.shifts(row)
            shift = shifts[column % len(shifts)]
            found = [self.exponent(tile, row, packed.lanes(pair)[column % 2], shift)]
        elif self.work.score is not None:
            y = tile.value(row, column, product)
            found = [self.exponent(tile, row, y, tile.shift(row))]
        elif self.work.mask is not None:
            found = [tile.visible(row, column).ir_value()]
        else:
            tile.put_score(row, column, product.ir_value())
            found = [tile.evaluate(root, row, column) for root in self.work.roots]
        return [cutlass.Int64(as_int64(value)) for value in found]

    @cute.jit
    def __call__(
        self,
        out: cute.Pointer,
        products: cute.Pointer,
        scale: cutlass.Float32,
        sizes: tuple[Any, ...],
        captures: tuple[Any, ...],
    ):
        batch, heads, _, q_len, _ = sizes
        grid = [cute.ceil_div(q_len * self.work.packed, ROWS), heads // self.work.packed, batch]
        self.kernel(out, products, scale, sizes, captures).launch(grid=grid, block=[32, 1, 1])

    @cute.kernel
    def kernel(
        self,
        out: cute.Pointer,
        products: cute.Pointer,
        scale: cutlass.Float32,
        sizes: tuple[Any, ...],
        captures: tuple[Any, ...],
    ):
        batch, heads, kv_heads, q_len, kv_len = sizes
        lane, _, _ = cute.arch.thread_idx()
        q_tile, head, b = cute.arch.block_idx()
        packed = self.work.packed
        q_first, kv_first = self.work.first
        lengths = (q_len + q_first, kv_len + kv_first)
        if cutlass.const_expr(packed > 1):
            leaves = Leaves(b, None, *lengths, heads, kv_heads, captures[:-1])
        else:
            leaves = Leaves(b, head, *lengths, heads, kv_heads, captures[:-1])
        site = self.site(leaves, scale)
        first = q_tile * ROWS + lane // 4
        queries = [first // packed, (first + 8) // packed]
        own = [head * packed + first % packed, head * packed + (first + 8) % packed]
        rows = self.rows(site, self.of_thread(queries, own))
        columns = self.work.columns
        whole = kv_len // columns
        column = (columns // 4 if self.work.pairs else 2) * (lane % 4)
        shape = (batch, heads, q_len, kv_len)
        for tile in cutlass.range(whole, unroll=1):
            origin = tile * columns + column
            part = rows.at_tile(origin + kv_first)
            self.store(part, out, products, (b, own, queries, origin), shape, lane)
        if cutlass.const_expr(self.work.tail):  # noqa: SIM102 (one is decided when it is compiled)
            if whole * columns < kv_len:
                origin = whole * columns + column
                part = rows.at_tile(origin + kv_first, tail=True)
                self.store(part, out, products, (b, own, queries, origin), shape, lane)

    @cute.jit
    def store(self, part, out, products, place, shape, lane):
        """Evaluate the thread's scores and write those that exist."""
        batch, heads, q_len, kv_len = shape
        b, own, queries, origin = place
        plane = cutlass.Int64(batch) * heads * q_len * kv_len
        target = cute.make_tensor(out, cute.make_layout(1 << 40))
        source = cute.make_tensor(products, cute.make_layout(1 << 40))
        offsets = self.work.held.offsets
        for row in cutlass.range_constexpr(2):
            line = ((cutlass.Int64(b) * heads + own[row]) * q_len + queries[row]) * kv_len
            places = []
            for column in cutlass.range_constexpr(len(offsets)):
                kv = origin + offsets[column]
                place = cutlass.Int64(-1)
                if (queries[row] < q_len) & (kv < kv_len):
                    place = line + kv
                places.append(place)
            values = [source[cutlass.max(place, 0)] for place in places]
            for column in cutlass.range_constexpr(len(offsets)):
                results = self.results(part, row, column, values)
                if places[column] >= 0:
                    for i in cutlass.range_constexpr(len(results)):
                        target[plane * i + places[column]] = results[i]


def as_int64(value: Any) -> Any:
    """Return a value as 64 bits: the bits of a float, the number of an integer or a bool."""
    from cutlass.cutlass_dsl import T

    kind = make.machine(value)
    if kind == "f32":
        value = arith.bitcast(T.i32(), value)
    if kind == "bool":
        return arith.extui(T.i64(), value)
    return make.resized(value, "i64")
