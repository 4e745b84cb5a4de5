"""A kernel whose blocks add to the same sums, and know who comes first and last.

CuTe-DSL reads a kernel's source, so it stands in a module of its own.
"""

from __future__ import annotations

from typing import Any

from cutlass import Int32, Int64, cute

from flexfa4.kernels.compile.signature import Int32 as Number
from flexfa4.kernels.compile.signature import Pointer
from flexfa4.primitives import arrivals
from flexfa4.primitives.arrivals import Arrivals


class Sums:
    """Block x comes to sum y and adds ``1 + x``; the grid is as many of both as there are.

    What it is given: words that say who will come, sums that nobody has cleared, a place for the
    finished ones, and one for the role of each block at each sum; integers.
    """

    signature = (*(Pointer(name) for name in ("words", "sums", "out", "roles")), Number("visitors"))

    @cute.jit
    def __call__(self, words: Any, sums: Any, out: Any, roles: Any, visitors: Int32) -> None:
        """Launch."""
        self.kernel(words, sums, out, roles, visitors).launch(grid=(1, 1, 1), block=(32, 1, 1))

    @cute.kernel
    def kernel(self, words: Any, sums: Any, out: Any, roles: Any, visitors: Int32) -> None:
        """The device code."""
        visitor, place, _ = cute.arch.block_idx()
        if cute.arch.lane_idx() == 0:
            here = Arrivals(cute.recast_ptr(words, dtype=Int64) + place)
            total, own = cute.recast_ptr(sums, dtype=Int32) + place, visitor + 1
            before = here.come()
            cute.arch.fence_acq_rel_gpu()
            role = here.wait(before)
            if role == arrivals.FIRST:
                total.store(own)
            elif role == arrivals.BETWEEN:
                _add(total, own)
            else:
                if role == arrivals.LAST:
                    own += Int32(total.load())
                (cute.recast_ptr(out, dtype=Int32) + place).store(own)
            if role < arrivals.LAST:
                cute.arch.fence_acq_rel_gpu()
                here.leave()
            (cute.recast_ptr(roles, dtype=Int32) + (place * visitors + visitor)).store(role)


def _add(place: cute.Pointer, number: Int32) -> None:
    cute.arch.inline_ptx(
        "red.relaxed.gpu.global.add.s32 [{$r0}], {$r1};",
        read_only_args=[place.toint(), number],
    )
