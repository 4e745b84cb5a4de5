"""A kernel that evaluates a score mod and its derivatives as a backward kernel does: transposed.

One warp holds 16 keys, in each thread two, and of tiles of queries of every eight columns two.
Probabilities and all else that does not come of the mod are given.  CuTe-DSL reads a kernel's
source, so it stands in a module of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import Float32, Int32, cute

from flexfa4.kernels.emit.captures import CapturePlan
from flexfa4.kernels.emit.evaluator import Fixed, Leaves, TraceTime
from flexfa4.kernels.emit.gradient import GradientProgram
from flexfa4.kernels.emit.gradient_sites import GradientSite
from flexfa4.kernels.emit.places import Columns, Row

KEYS = 16
QUERIES = 16  # of a tile
HELD = Columns(tuple(8 * i + j for i in range(QUERIES // 8) for j in (0, 1)), 2)


class Collected(TraceTime):
    """Keeps what was contributed to each share last."""

    def __init__(self) -> None:
        self.latest: dict[int, Float32] = {}

    def add(self, share: int, row: int, column: int, value: Float32) -> None:
        self.latest[share] = value

    def add_to_element(self, share: int, place: Any, value: Float32) -> None:
        self.latest[share] = value


@dataclass(frozen=True)
class GradientWork:
    """What is evaluated: exponents, gradients of scaled products, contributions to each share."""

    program: GradientProgram
    plan: CapturePlan
    graph: Any

    @property
    def results(self) -> int:
        return 2 + len(self.program.shares)


class Gradients:
    """The kernel; `work` is fixed when it is compiled."""

    def __init__(self, work: GradientWork) -> None:
        self.work = work

    @cute.jit
    def __call__(
        self,
        out: cute.Pointer,
        scores: cute.Pointer,
        statistics: cute.Pointer,
        scale: Float32,
        sizes: tuple[Any, ...],
        captures: tuple[Any, ...],
    ):
        """Launch.

        Args:
            out: fp32 ``(results, B, H, Lq, Lk)``.
            scores: fp32 ``(3, B, H, Lq, Lk)``: products, probabilities, products of dO and V.
            statistics: fp32 ``(2, B, H, Lq)``: lse in base 2, and delta.
            scale: the softmax scale.
            sizes: of the call.
            captures: values of the captures' parameters, and a 0.
        """
        batch, heads, _, _, kv_len = sizes
        grid = [cute.ceil_div(kv_len, KEYS), heads, batch]
        self.kernel(out, scores, statistics, scale, sizes, captures).launch(
            grid=grid, block=[32, 1, 1]
        )

    @cute.kernel
    def kernel(
        self,
        out: cute.Pointer,
        scores: cute.Pointer,
        statistics: cute.Pointer,
        scale: Float32,
        sizes: tuple[Any, ...],
        captures: tuple[Any, ...],
    ):
        batch, heads, kv_heads, q_len, kv_len = sizes
        lane, _, _ = cute.arch.thread_idx()
        kv_tile, head, b = cute.arch.block_idx()
        leaves = Leaves(b, head, q_len, kv_len, heads, kv_heads, captures[:-1])
        fixed = Fixed(self.work.graph, self.work.plan, leaves, HELD)
        sink = Collected()
        first = kv_tile * KEYS + lane // 4
        keys = [first, first + 8]
        site = GradientSite(self.work.program, fixed, scale, sink)
        rows = site.with_rows([Row(key, offset=8 * i) for i, key in enumerate(keys)])
        plane = batch * heads * q_len
        line = (b * heads + head) * q_len
        column = 2 * (lane % 4)
        for tile in cutlass.range(q_len // QUERIES, unroll=1):
            origin = tile * QUERIES + column
            self.store(rows.at_tile(origin), sink, (out, scores, statistics),
                       (keys, origin, line, plane), (q_len, kv_len))  # fmt: skip
        if q_len % QUERIES > 0:
            origin = q_len // QUERIES * QUERIES + column
            self.store(rows.at_tile(origin, masked=True), sink, (out, scores, statistics),
                       (keys, origin, line, plane), (q_len, kv_len))  # fmt: skip

    @cute.jit
    def store(self, part, sink, pointers, places, lengths):
        """Evaluate the thread's scores and write those that exist."""
        keys, origin, line, plane = places
        q_len, kv_len = lengths
        out, scores, statistics = (
            cute.make_tensor(pointer, cute.make_layout(1 << 30)) for pointer in pointers
        )
        for row in cutlass.range_constexpr(2):
            for column in cutlass.range_constexpr(len(HELD.offsets)):
                q = origin + HELD.offsets[column]
                exists = (keys[row] < kv_len) & (q < q_len)
                query, place = Int32(0), Int32(0)
                if exists:
                    query = line + q
                    place = query * kv_len + keys[row]
                of_query = [statistics[query], statistics[plane + query]]
                given = [scores[plane * kv_len * i + place] for i in range(3)]
                results = self.results(part, sink, row, column, given, of_query)
                if exists:
                    for i in cutlass.range_constexpr(len(results)):
                        out[plane * kv_len * i + place] = results[i]

    def results(
        self, part: Any, sink: Collected, row: int, column: int, given: Any, of_query: Any
    ) -> list[Float32]:
        product, probability, dp = given
        lse, delta = of_query
        x = part.exponent(row, column, product, lse)
        weight = part.weight(row, column, probability)
        ds = part.gradient(row, column, weight, dp, delta)
        shares = [sink.latest[i] for i in range(len(self.work.program.shares))]
        return [x, ds, *shares]
