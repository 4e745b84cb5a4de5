"""2^x without the exponential unit: what is computed, and for which scores; no device code.

A GPU computes exponentials on a unit of its own, ``ex2.approx``, 16 of them per cycle and
multiprocessor.  On Blackwell the matrix products of a tile take as long as its exponentials, so
some of these are emulated where there is time left, on the pipes of additions and products
(FlashAttention-4, arXiv 2603.05451, section 3.2)::

    x = max(x, -127)
    r = x + 1.5 * 2^23, rounded down        the last bits of r are floor(x)
    f = x - (r - 1.5 * 2^23)                0 <= f < 1, exact
    p = 1 + f (c1 + f (c2 + ..))            about 2^f, fused multiply-adds
    result: the bits of p, and those of r moved to where the exponent is, added as integers

Scores that are masked are minus infinity, and give exactly 0: at -127 the polynomial is 1, whose
exponent becomes 0, and so is all of the number.  Below -126 results are less than 2^-126 (the
exponential unit gives 0 there).  NaN is not lost: it gives the largest number, which is infinite
when it is rounded to 16 bits.  From 128 on results are not what they should be.

`emulated_exp2` is the same computation on tensors, bit for bit; `device_exponentials` the one of
kernels.  How many are emulated is a matter of time, and decided elsewhere.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import torch

POLYNOMIALS: Final[dict[int, tuple[float, ...]]] = {
    3: (1.0, 0.6951167583465576, 0.22764506936073303, 0.07706699520349503),
    4: (1.0, 0.6930448412895203, 0.2412802278995514, 0.05224243551492691, 0.013426709920167923),
    5: (1.0, 0.6931512951850891, 0.2401645928621292, 0.055799514055252075, 0.009017480537295341,
        0.0018669526325538754),
}  # fmt: skip
"""By degree, coefficients from the constant on: of least relative error on [0, 1) with fp32
coefficients, the constant 1.  ``tests/minimax.py`` finds them."""

RELATIVE_ERRORS: Final = {3: 8.57e-5, 4: 2.96e-6, 5: 1.41e-7}
"""By degree, the largest relative error of results from 2^-126 on, fp32's roundings included."""

LEAST: Final = -127.0
"""Exponents are no less than this: 2^-127 is 0 here."""

SHIFT: Final = 1.5 * 2**23
"""Added to a number, it leaves no bits behind the point, and the integer in the last bits."""

MANTISSA_BITS: Final = 23

STEPS: Final = 32
"""Scores, or pairs, after which emulation repeats: a thread has few more of a row in a tile."""


@dataclass(frozen=True)
class EmulatedFraction:
    """How many of a row's exponentials are emulated: a part of a kernel's plan.

    They are counted by the numbers that instructions work on: pairs of neighbouring scores where
    there are instructions for these, otherwise scores.

    Attributes:
        numerator, denominator: of so many, so many are emulated.
        degree: of the polynomial, one of `POLYNOMIALS`.
    """

    numerator: int = 0
    denominator: int = 1
    degree: int = 3

    def __post_init__(self) -> None:
        assert 0 <= self.numerator <= self.denominator and self.denominator > 0
        assert self.degree in POLYNOMIALS

    @staticmethod
    def of(share: float) -> EmulatedFraction:
        """Return the fraction of `STEPS` that is next to a number from 0 to 1."""
        numerator = round(share * STEPS)
        common = math.gcd(numerator, STEPS)
        return EmulatedFraction(numerator // common, STEPS // common)

    @property
    def value(self) -> float:
        """The fraction."""
        return self.numerator / self.denominator

    def emulates(self, index: int) -> bool:
        """Return whether a score, or pair, is emulated: these are spread evenly.

        Args:
            index: counted from the start of a row's tile.
        """
        steps = (index + 1) * self.numerator // self.denominator
        return steps > index * self.numerator // self.denominator

    def count(self, length: int) -> int:
        """Return how many of the first `length` scores, or pairs, are emulated."""
        return length * self.numerator // self.denominator


NONE_EMULATED: Final = EmulatedFraction()
"""The exponential unit computes all."""


def emulated_exp2(x: torch.Tensor, degree: int = 3) -> torch.Tensor:
    """Return 2^x as kernels emulate it, the same bits.

    Args:
        x: fp32, less than 128.
        degree: of the polynomial, one of `POLYNOMIALS`.
    """
    assert x.dtype is torch.float32
    x = torch.maximum(x, x.new_tensor(LEAST))
    floor = torch.floor(x)
    f = x - floor
    *rest, last = POLYNOMIALS[degree]
    p = torch.full_like(x, last)
    for coefficient in reversed(rest):
        p = fused_multiply_add(p, f, x.new_tensor(coefficient))
    exponent = torch.nan_to_num(floor).to(torch.int32) << MANTISSA_BITS
    power = (p.view(torch.int32) + exponent).view(torch.float32)
    # a GPU's NaN has all bits set but the sign's, and these lose the last one of the exponent
    return torch.where(x.isnan(), torch.finfo(torch.float32).max, power)


def fused_multiply_add(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """Return ``a * b + c`` of fp32 numbers, rounded once.

    The product is exact in fp64.  The sum is rounded there to odd: cut off, and its last bit set
    if anything was, so that rounding it to fp32 is right (Boldo and Melquiond, "Emulation of FMA
    and correctly rounded sums", 2008).
    """
    product, addend = a.double() * b.double(), c.double()
    total = product + addend
    own = total - product
    error = (product - (total - own)) + (addend - own)
    bits = total.view(torch.int64)
    beyond = (error != 0) & ((error < 0) != (total < 0))  # rounded away from 0
    odd = torch.where(error != 0, (bits - beyond.long()) | 1, bits)
    return odd.view(torch.float64).float()
