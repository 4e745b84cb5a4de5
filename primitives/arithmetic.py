"""The operations in which index arithmetic on the host and in a kernel differ.

Which tiles are visited, and in which order, is written once: with Python's operators where they
mean the same for Python's integers and for the 32-bit values of a kernel that is being traced, and
with the operations of `Arithmetic` where they do not.  `PLAIN` is their meaning; it makes models of
the device code that run, and are tested, without any kernel.  `device_arithmetic` is the other
implementation, and the only one that needs CuTe-DSL.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

Value: TypeAlias = Any
"""An integer of Python, or an Int32 of a kernel; a bool or a Boolean."""

Ends: TypeAlias = Callable[[Value], tuple[Value, Value]]
"""From the number of a row to where its interval of keys begins and ends; empty if they cross."""


class Extremes(NamedTuple):
    """The extremes of the ends of the intervals of some rows.

    Attributes:
        first: the least begin of those that are not empty.
        stop: the greatest end of those that are not empty; no more than `first` if all are.
        last_begin, first_stop: the greatest begin and the least end, of all.
    """

    first: Value
    stop: Value
    last_begin: Value
    first_stop: Value


class Arithmetic(Protocol):
    """What index arithmetic needs beside operators."""

    def select(self, condition: Value, a: Value, b: Value) -> Value:
        """Return `a` where a condition holds, else `b`."""

    def minimum(self, a: Value, b: Value) -> Value:
        """Return the lesser of two integers."""

    def maximum(self, a: Value, b: Value) -> Value:
        """Return the greater of two integers."""

    def clamped(self, value: Value, low: Value, high: Value) -> Value:
        """Return the nearest integer from `low` to `high` as one of 32 bits; `value` may have 64.

        `high` is no less than `low`.
        """

    def quotient(self, number: Value, size: int) -> Value:
        """Return ``number // size`` for a number that is not negative and a constant."""

    def high_product_shifted(self, a: Value, b: Value, shift: Value) -> Value:
        """Return ``(a * b >> 32) >> shift``, the bits of `a` and `b` read without a sign."""

    def load(self, table: Any, index: Value) -> Value:
        """Return an element of an int32 table."""

    def extremes(self, ends: Ends, rows: int) -> Extremes:
        """Return the extremes over rows 0 to ``rows - 1``, which is a constant.

        In a kernel all lanes of a warp take part, and all get the result.
        """


class _Plain:
    """Python's integers; tables are sequences."""

    def select(self, condition: bool, a: int, b: int) -> int:
        return a if condition else b

    def minimum(self, a: int, b: int) -> int:
        return min(a, b)

    def maximum(self, a: int, b: int) -> int:
        return max(a, b)

    def clamped(self, value: int, low: int, high: int) -> int:
        assert low <= high
        return max(min(value, high), low)

    def quotient(self, number: int, size: int) -> int:
        assert number >= 0
        return number // size

    def high_product_shifted(self, a: int, b: int, shift: int) -> int:
        assert 0 <= a < 1 << 32
        return (a * (b & 0xFFFFFFFF) >> 32) >> shift

    def load(self, table: Sequence[int], index: int) -> int:
        assert index >= 0
        return table[index]

    def extremes(self, ends: Ends, rows: int) -> Extremes:
        found = [ends(row) for row in range(rows)]
        seen = [(begin, end) for begin, end in found if begin < end]
        return Extremes(
            min((begin for begin, _ in seen), default=0),
            max((end for _, end in seen), default=0),
            max(begin for begin, _ in found),
            min(end for _, end in found),
        )


PLAIN: Final[Arithmetic] = _Plain()
