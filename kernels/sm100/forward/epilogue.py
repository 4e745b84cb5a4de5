"""Epilogue of the forward kernel: normalised outputs of both halves to global memory.

By the correction warpgroup.  An output goes from tensor memory through shared memory, from where
TMA writes whole rows and leaves out what lies beyond the last query.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import cutlass
from cutlass import Boolean, Float32, Int32, cute
from cutlass._mlir import ir
from cutlass._mlir.dialects import arith, llvm, vector

from flexfa4.kernels.forward.parameters import Parameters
from flexfa4.kernels.forward.tiles import ELEMENT
from flexfa4.kernels.sm100.forward.barriers import bit
from flexfa4.kernels.sm100.forward.correction import Correction
from flexfa4.kernels.sm100.forward.storage import INVERSE, ROWS, Storage
from flexfa4.kernels.sm100.forward.tmem import HALVES
from flexfa4.primitives import tcgen05, tma, tmem
from flexfa4.primitives.pipeline import Position, Ring
from flexfa4.primitives.registers import Numbers
from flexfa4.primitives.scheduler import Item
from flexfa4.primitives.whole_row_softmax import scale_row

_COLUMNS = 16  # of one load
_UNIT = 16  # bytes of a store to shared memory
_THREADS = 128


class Phases(NamedTuple):
    """Parities of barriers.

    Attributes:
        of_items: of those that each item passes.
        of_outputs: a bit for each half, of its outputs'.
        q_at: where the item's Q is in its ring.
    """

    of_items: Int32
    of_outputs: Int32
    q_at: Position


@dataclass(frozen=True)
class Epilogue:
    """What the correction warpgroup needs to write outputs.

    Attributes:
        storage: where tiles lie.
        base: start of dynamic shared memory, of the tensors' dtype.
        correction: the same warpgroup.
        rank: of the block among those that compute together.
        parameters: of the launch.
        q: the ring of Q.
        barrier: number of the warpgroup's named barrier.
        warp: of the warpgroup.
    """

    storage: Storage
    base: cute.Pointer
    correction: Correction
    parameters: Parameters
    q: Ring
    barrier: int
    rank: Int32
    warp: Int32

    @cute.jit
    def write(self, half: int, item: Item, flags: tuple[Int32, Int32], phases: Phases) -> None:
        """Write the output of a half of an item.

        Args:
            half: which.
            item: the item.
            flags: one for each half: it has queries; it has seen a tile of keys.
            phases: of the barriers.
        """
        barriers = self.correction.barriers
        exist, seen = flags
        barriers.wait("inverse", half, phases.of_items)
        inverse = self.correction.number(half, INVERSE)
        barriers.arrive("taken", half)
        if bit(seen, half):
            barriers.wait("out", half, (phases.of_outputs >> half) & 1)
            tmem.behind_barrier()
        elif cutlass.const_expr(self.storage.out_takes_place_of_q):
            self.q.wait(phases.q_at.moved(half))  # no product has
        if bit(exist, half):
            self._wait_for_the_last_store()
            self._to_shared(half, inverse)
            tmem.before_barrier()
            cute.arch.fence_proxy("async.shared", space="cta")
            self._sync()
        if self.warp == 0:
            with cute.arch.elect_one():
                if bit(exist, half):
                    self._store(half, item)
                # a group for each half, or `_wait_for_the_last_store` would miscount
                cute.arch.cp_async_bulk_commit_group()

    @cute.jit
    def _to_shared(self, half: int, inverse: Float32) -> None:
        """Normalise the thread's row and write it to shared memory; a row that saw nothing is 0."""
        plan = self.correction.plan
        start = self.correction.address + plan.tensor_memory.out[half]
        some = cute.arch.vote_any_sync(inverse != 0.0)
        for first in cutlass.range_constexpr(0, plan.head_dims[1], _COLUMNS):
            part = cute.make_rmem_tensor(_COLUMNS, Float32)
            part.fill(0.0)
            if some:
                tmem.load(start + first, part)
                tmem.wait_for_loads()
                row = Numbers(part)
                scale_row(row, inverse)
                _clear_where(Boolean(inverse == 0.0), row)
            self._put(half, first, part)

    def _put(self, half: int, first: int, part: Any) -> None:
        """Round columns of the thread's row and write them to where TMA reads them."""
        out = self.storage.out
        rounded = cute.make_rmem_tensor(_COLUMNS, self.base.dtype)
        rounded.store(part.load().to(self.base.dtype))
        count = _UNIT // ELEMENT
        start = tcgen05.address_of(self.base) + (self.storage.out_at + half * self.storage.out_step)
        slab, inside = divmod(first * ELEMENT, out.swizzle)
        line = self.correction.row * out.swizzle
        # the exclusive-or of a swizzle: lines of 128 bytes choose among the units of a row
        chosen = ((line >> 7) & (out.swizzle // _UNIT - 1)) << 4
        for unit in range(_COLUMNS * ELEMENT // _UNIT):
            place = (line + (inside + unit * _UNIT)) ^ chosen
            values = cute.make_tensor(rounded.iterator + unit * count, cute.make_layout(count))
            words = ir.VectorType.get([_UNIT // 4], Int32.mlir_type)
            bits = vector.bitcast(words, values.load().ir_value())
            address = start + slab * ROWS * out.swizzle + place
            pointer = llvm.inttoptr(ir.Type.parse("!llvm.ptr<3>"), Int32(address).ir_value())
            llvm.store(bits, pointer, alignment=_UNIT)

    def _store(self, half: int, item: Item) -> None:
        out, shape = self.storage.out, self.parameters.plan.walk.shape
        start = self.base + (self.storage.out_at + half * self.storage.out_step) // ELEMENT
        box = ROWS // shape.group
        first = item.q_tile * shape.queries + (self.rank * HALVES + half) * box
        query, last = self.parameters.place("q", first, box, item.batch)
        for slab in range(out.slabs):
            source = start + slab * ROWS * out.slab
            at = (slab * out.slab, 0, query, item.head, last)
            tma.store(tma.address(self.parameters.maps.out), source, at)

    @cute.jit
    def release_q(self, at: Position) -> None:
        """Give the place of Q back, where the output took it, once the output has left it."""
        if self.warp == 0:
            cute.arch.cp_async_bulk_wait_group(0, read=True)
            with cute.arch.elect_one():
                self.q.release(at)
                self.q.release(at.next())

    @cute.jit
    def finish(self) -> None:
        """Wait until the last output has been read from shared memory; before the block ends."""
        if self.warp == 0:
            cute.arch.cp_async_bulk_wait_group(0, read=True)

    @cute.jit
    def _wait_for_the_last_store(self) -> None:
        """Wait until the output of this half of the item before has left; not for the other half's.

        That is the last store but one.
        """
        if self.warp == 0:
            cute.arch.cp_async_bulk_wait_group(1, read=True)
        self._sync()

    def _sync(self) -> None:
        cute.arch.barrier(barrier_id=self.barrier, number_of_threads=_THREADS)


def _clear_where(condition: Boolean, row: Numbers) -> None:
    clear, nothing = condition.ir_value(), Float32(0.0).ir_value()
    for place in row.places:
        row.set(place, arith.select(clear, nothing, row.value(place)))
