"""Correction warpgroup of the forward kernel: keeps outputs relative to the maximum of their rows.

It serves both halves in turn, off the way of the softmax: a tile waits for it only where a row's
maximum has grown by more than tau.  A warp rescales all of its rows or none.
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
from cutlass import Float32, Int32, cute

from flexfa4.kernels.sm100.forward.barriers import Barriers, bit
from flexfa4.kernels.sm100.forward.halves import Halves
from flexfa4.kernels.sm100.forward.plan import ForwardPlan
from flexfa4.kernels.sm100.forward.storage import FACTOR, number_at
from flexfa4.kernels.sm100.forward.tmem import HALVES
from flexfa4.primitives import tmem
from flexfa4.primitives.registers import Numbers
from flexfa4.primitives.whole_row_softmax import any_corrected, scale_row

_COLUMNS = 16  # of one load and store


@dataclass(frozen=True)
class Correction:
    """The role of the correction warpgroup.

    Attributes:
        plan: of the kernel.
        barriers: of the halves.
        numbers: in shared memory, fp32: the factor and the inverse of each row of both halves.
        address: of tensor memory, in the lanes of the warp.
        row: of each half.
    """

    plan: ForwardPlan
    barriers: Barriers
    numbers: cute.Pointer
    address: Int32
    row: Int32

    @cute.jit
    def follow(self, halves: Halves, parities: Int32) -> tuple[Int32, Int32]:
        """Correct the outputs of an item, tile by tile.

        Args:
            halves: of the item.
            parities: of the factors' barriers, a bit for each half.

        Returns:
            The parities behind the item, and a flag for each half: it has an output.
        """
        count = halves.tiles.partial_count + halves.tiles.full_count
        started = Int32(0)
        for i in cutlass.range(count, unroll=1):
            now = halves.of_visit(i)
            for half in cutlass.range_constexpr(HALVES):
                if bit(now, half):
                    self._correct(half, started, parities)
            started = started | now
            parities = parities ^ now
        return parities, started

    @cute.jit
    def _correct(self, half: int, started: Int32, parities: Int32) -> None:
        """Rescale the output of a half, if that is needed, and say that it may be added to."""
        self.barriers.wait("factors", half, (parities >> half) & 1)
        factor = self.number(half, FACTOR)
        if bit(started, half) & any_corrected(factor):
            tmem.behind_barrier()
            self._rescale(half, factor)
            tmem.before_barrier()
        self.barriers.arrive("probabilities", half)

    @cute.jit
    def _rescale(self, half: int, factor: Float32) -> None:
        start = self.address + self.plan.tensor_memory.out[half]
        part = cute.make_rmem_tensor(_COLUMNS, Float32)
        numbers = Numbers(part)
        for first in cutlass.range_constexpr(0, self.plan.head_dims[1], _COLUMNS):
            tmem.load(start + first, part)
            tmem.wait_for_loads()
            scale_row(numbers, factor)
            tmem.store(start + first, part)
        tmem.wait_for_stores()

    def number(self, half: int, which: int) -> Float32:
        """Return the `FACTOR` or the `INVERSE` of the thread's row of a half."""
        return Float32((self.numbers + number_at(half, which, self.row)).load())
