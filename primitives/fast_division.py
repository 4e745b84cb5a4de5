"""Division by sizes that are known when a kernel is launched, as one product and one shift.

A GPU has no instruction that divides integers.  Where a kernel takes an index apart by run-time
sizes, the host turns each size into a multiplier and a shift (Granlund and Montgomery, *Division by
invariant integers using multiplication*, 1994).  For ``0 <= n < 2**31`` and ``1 <= d < 2**31``::

    s = ceil(log2(d)),  m = ceil(2**(31 + s) / d) < 2**32
    n // d == (2 * n * m >> 32) >> s

since ``m * d`` exceeds ``2**(31 + s)`` by less than d, which changes the quotient by less than
``n / 2**(31 + s)``, and that is less than ``1 / d``.

The same code is the model, on Python's integers, and is traced into kernels: see `arithmetic`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from flexfa4.primitives.arithmetic import Arithmetic

MOST: Final = (1 << 31) - 1
"""The greatest number that may be divided, and the greatest divisor."""


@dataclass(frozen=True)
class Divisor:
    """A divisor, as numbers on the host or as values in a kernel.

    Attributes:
        size: the divisor.
        multiplier: 32 bits without a sign; they may be given as an integer with one.
        shift: 0 to 31.
    """

    size: Any
    multiplier: Any
    shift: Any

    @classmethod
    def of(cls, size: int) -> Divisor:
        """Return a divisor, ``1 <= size <= MOST``."""
        assert 1 <= size <= MOST
        shift = (size - 1).bit_length()
        return cls(size, -((-1 << (31 + shift)) // size), shift)

    def divided(self, number: Any, arithmetic: Arithmetic) -> tuple[Any, Any]:
        """Return quotient and remainder of a number from 0 to `MOST`."""
        quotient = arithmetic.high_product_shifted(2 * number, self.multiplier, self.shift)
        return quotient, number - quotient * self.size
