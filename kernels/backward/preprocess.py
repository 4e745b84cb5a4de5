"""The kernel before the main one: statistics of each query, and what sums of dQ begin with.

Sums begin at 0, or with the number of those who will add to them, where the first one needs no 0
(`flexfa4.primitives.arrivals`).

``delta = rowsum(dO * O) - dlse`` is the same for all keys of a query, and is what makes the
gradient of a row of probabilities sum to nothing (FlashAttention, arXiv 2205.14135, appendix B).
A query that sees nothing has lse infinity here and not minus infinity: the exponential of any score
minus that is 0.

An lse is rounded: by up to 64 if it is 10^9, as that of a row is in which a score mod put -10^9
everywhere, and by more than any exponent if it is 10^30.  Exponents of such rows are noise, and
probabilities would be without bound; so an lse beyond `_RESOLVED` is moved up by more than rounding
can have taken off.  Probabilities are then at most 1, and those of rows far beyond are 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import cutlass
from cutlass import Float32, Int32, Int64, cute

from flexfa4.kernels.backward.plan import PreprocessPlan
from flexfa4.kernels.emit.program import LOG2E
from flexfa4.primitives.arrivals import Arrivals

THREADS: Final = 128
_WARP: Final = 32
_WARPS: Final = THREADS // _WARP
_VECTOR: Final = 8  # elements of 2 bytes that a thread reads at once
_FLOATS: Final = 4  # that a thread clears at once
_RESOLVED: Final = 2.0**22  # base 2: up to here rounding takes at most a quarter off
_ROUNDED: Final = 2.0**-20  # of what is beyond: a dozen roundings, of scores and lse


class PreprocessKernel:
    """The kernel of a plan, to be traced by CuTe-DSL; its parameters are ``plan.signature``."""

    def __init__(self, plan: PreprocessPlan) -> None:
        self.plan = plan

    @cute.jit
    def __call__(self, values: tuple[Any, ...]) -> None:
        """Launch."""
        self.kernel(values).launch(
            grid=(1, 1, 1), block=(THREADS, 1, 1), smem=_WARPS * 4 if self.plan.sink else 0
        )

    @cute.kernel
    def kernel(self, values: tuple[Any, ...]) -> None:
        """The device code."""
        tile = _Tile(self.plan, values)
        if cutlass.const_expr(self.plan.finishes_dq):
            tile.expect()
        else:
            tile.clear()
        sink = Float32(0.0)
        for i in cutlass.range_constexpr(tile.passes):
            sink = tile.rows(i, sink)
        if cutlass.const_expr(self.plan.sink):
            tile.add_up(sink)


class _Tile:
    """The block's tile of queries, in one thread.

    Some threads of a warp, a power of two, have a query together.
    """

    def __init__(self, plan: PreprocessPlan, values: Sequence[Any]) -> None:
        self.plan = plan
        names = [parameter.name for parameter in plan.signature]
        self.given = dict(zip(names, values, strict=True))
        self.dtype = {"bf16": cutlass.BFloat16, "f16": cutlass.Float16}[plan.element]
        self.tile, self.head, self.batch = cute.arch.block_idx()
        self.tiles, self.heads, _ = cute.arch.grid_dim()
        self.thread, _, _ = cute.arch.thread_idx()
        self.vectors = plan.head_dim_v // _VECTOR
        self.together = 1 << (self.vectors - 1).bit_length()
        self.at_once = THREADS // self.together
        self.passes = -(-plan.order.queries // self.at_once)

    @property
    def _row(self) -> Int64:
        """The number of the block's batch and head."""
        return Int64(self.batch) * self.heads + self.head

    def clear(self) -> None:
        """Set the sums of the tile to 0."""
        numbers = self.plan.order.parts * self.plan.order.part
        start = cute.recast_ptr(self.given["dq"], dtype=Float32)
        own = start + ((self._row * self.tiles + self.tile) * numbers + self.thread * _FLOATS)
        zeros = cute.make_rmem_tensor(_FLOATS, Float32)
        zeros.fill(0.0)
        for i in range(numbers // (THREADS * _FLOATS)):
            target = cute.make_tensor(own + i * THREADS * _FLOATS, cute.make_layout(_FLOATS))
            cute.autovec_copy(zeros, target)

    @cute.jit
    def expect(self) -> None:
        """Say how many tiles of keys will add to the tile; dQ that nobody adds to is 0."""
        of_head = (
            Int64(self.batch) * self.given["visitors_batch_stride"]
            + Int64(self.head) * self.given["visitors_head_stride"]
        )
        counts = cute.recast_ptr(self.given["visitors"], dtype=Int32)
        visitors = Int32((counts + of_head + self.tile).load())
        parts = self.plan.order.parts
        if self.thread < parts:
            words = cute.recast_ptr(self.given["arrivals"], dtype=Int64)
            own = (self._row * self.tiles + self.tile) * parts + self.thread
            Arrivals(words + own).expect(visitors)
        if visitors == 0:
            self._write_zeros()

    @cute.jit
    def _write_zeros(self) -> None:
        """Set dQ of the tile to 0."""
        vectors = self.plan.order.head_dim // _VECTOR
        zeros = cute.make_rmem_tensor(_VECTOR, self.dtype)
        zeros.fill(0.0)
        for i in range(self.thread, self.plan.order.queries * vectors, THREADS):
            query = self.tile * self.plan.order.queries + i // vectors
            if query < self.given["q_len"]:
                target = self._vector_at("grad_q", query, i % vectors)
                cute.autovec_copy(zeros, cute.make_tensor(target, cute.make_layout(_VECTOR)))

    @cute.jit
    def rows(self, number: int, sink: Float32) -> Float32:
        """Compute the statistics of some queries, one for each group of threads.

        Returns:
            What was given, with a part of the gradient of the sink added.
        """
        place = number * self.at_once + self.thread // self.together
        own = self.thread % self.together
        query = self.tile * self.plan.order.queries + place
        exists = query < self.given["q_len"]
        delta = Float32(0.0)
        if exists & (own < self.vectors):
            delta = self._product(query, own)
        delta = cute.arch.warp_reduction_sum(delta, threads_in_group=self.together)
        if (own == 0) & (place < self.plan.order.queries):
            lse = -Float32.inf
            if exists:
                row = self._row * self.given["q_len"] + query
                lse = Float32((cute.recast_ptr(self.given["lse"], dtype=Float32) + row).load())
                if cutlass.const_expr(self.plan.grad_lse):
                    given = cute.recast_ptr(self.given["grad_lse"], dtype=Float32) + row
                    delta -= Float32(given.load())
            empty = lse == -Float32.inf
            lse = cutlass.select_(empty, Float32.inf, lse * LOG2E)
            delta = cutlass.select_(empty, Float32(0.0), delta)
            queries = self.plan.order.queries
            start = (self._row * self.tiles + self.tile) * (2 * queries) + place
            target = cute.recast_ptr(self.given["statistics"], dtype=Float32) + start
            target.store(_above(lse))
            (target + queries).store(delta)
            if cutlass.const_expr(self.plan.sink):
                logit = cute.recast_ptr(self.given["sink"], dtype=Float32) + self.head
                exponent = cute.arch.fmin(Float32(logit.load()) * LOG2E - lse, Float32(0.0))
                weight = cute.math.exp2(exponent)
                sink -= cutlass.select_(empty, Float32(0.0), weight * delta)
        return sink

    def _product(self, query: Int32, own: Int32) -> Float32:
        """Return a thread's part of the scalar product of a row of out and of dO."""
        vectors = []
        for name in ("out", "do"):
            row = self._vector_at(name, query, own)
            found = cute.make_rmem_tensor(_VECTOR, self.dtype)
            cute.autovec_copy(cute.make_tensor(row, cute.make_layout(_VECTOR)), found)
            vectors.append(found.load().to(Float32))
        product = vectors[0] * vectors[1]
        total = Float32(0.0)
        for i in range(_VECTOR):
            total += product[i]
        return total

    def _vector_at(self, name: str, query: Int32, number: Int32) -> cute.Pointer:
        """Return where a vector of a row of a tensor lies."""
        start = cute.recast_ptr(self.given[name], dtype=self.dtype)
        place = (
            Int64(self.batch) * self.given[f"{name}_batch_stride"]
            + Int64(self.head) * self.given[f"{name}_head_stride"]
            + Int64(query) * self.given[f"{name}_row_stride"]
            + number * _VECTOR
        )
        return start + cute.assume(place, divby=_VECTOR)

    @cute.jit
    def add_up(self, sink: Float32) -> None:
        """Write the sum of the threads' parts of the gradient of the sink."""
        shared = cute.recast_ptr(cute.arch.get_dyn_smem(cutlass.Int8, alignment=16), dtype=Float32)
        total = cute.arch.warp_reduction_sum(sink)
        if self.thread % _WARP == 0:
            (shared + self.thread // _WARP).store(total)
        cute.arch.sync_threads()
        if self.thread == 0:
            total = Float32(0.0)
            for i in cutlass.range_constexpr(_WARPS):
                total += Float32((shared + i).load())
            batches = cute.arch.grid_dim()[2]
            place = (Int64(self.head) * batches + self.batch) * self.tiles + self.tile
            (cute.recast_ptr(self.given["grad_sink"], dtype=Float32) + place).store(total)


def _above(lse: Float32) -> Float32:
    """Return an lse, moved up where it is not resolved."""
    beyond = cute.arch.fmax(cute.math.absf(lse) - _RESOLVED, Float32(0.0))
    return lse + beyond * _ROUNDED
