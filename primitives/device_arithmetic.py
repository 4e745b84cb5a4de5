"""Index arithmetic on the values of a kernel that CuTe-DSL traces; see `arithmetic`.

Positions, tiles and work items are Int32.  Numbers that are divided are never negative, so that
divisions by constants are done without signs: a product and a shift each.
"""

from __future__ import annotations

from typing import Any, Final

import cutlass
from cutlass import cute
from cutlass.cutlass_dsl import select_

from flexfa4.primitives.arithmetic import Arithmetic, Ends, Extremes, Value

_WARP: Final = 32
_LAST: Final = (1 << 31) - 1


class _Device:
    """Values of a kernel; tables are pointers into global memory, whatever type they are of."""

    def select(self, condition: Any, a: Value, b: Value) -> Value:
        if isinstance(condition, bool):
            return a if condition else b
        return cutlass.Int32(select_(condition, cutlass.Int32(a), cutlass.Int32(b)))

    def minimum(self, a: Value, b: Value) -> Value:
        return cutlass.min(a, b)

    def maximum(self, a: Value, b: Value) -> Value:
        return cutlass.max(a, b)

    def clamped(self, value: Value, low: Value, high: Value) -> Value:
        # in this order a compiler sees that the ends of a constant are constant
        return cutlass.Int32(cutlass.max(cutlass.min(value, high), low))

    def quotient(self, number: Value, size: int) -> Value:
        if isinstance(number, int):
            return number // size
        return cutlass.Int32(cutlass.Uint32(number) // cutlass.Uint32(size))

    def high_product_shifted(self, a: Value, b: Value, shift: Value) -> Value:
        high = cute.arch.mul_hi(cutlass.Uint32(a), cutlass.Uint32(b))
        return cutlass.Int32(high >> cutlass.Uint32(shift))

    def load(self, table: Any, index: Value) -> Value:
        return (cute.recast_ptr(table, dtype=cutlass.Int32) + index).load()

    def extremes(self, ends: Ends, rows: int) -> Extremes:
        lane = cute.arch.lane_idx()
        first, stop, last_begin, first_stop = _LAST, 0, 0, _LAST
        for start in range(0, rows, _WARP):
            row = lane + start
            if start + _WARP > rows:  # lanes behind the last row repeat it
                row = cutlass.min(row, rows - 1)
            begin, end = ends(row)
            seen = begin < end
            first = cutlass.min(first, self.select(seen, begin, _LAST))
            stop = cutlass.max(stop, self.select(seen, end, 0))
            last_begin = cutlass.max(last_begin, begin)
            first_stop = cutlass.min(first_stop, end)
        reduce = cute.arch.warp_redux_sync
        return Extremes(
            reduce(first, "min"),
            reduce(stop, "max"),
            reduce(last_begin, "max"),
            reduce(first_stop, "min"),
        )


DEVICE: Final[Arithmetic] = _Device()
