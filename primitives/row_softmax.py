"""Online softmax over the rows of a warpgroup's accumulators, in base 2; the form for GPUs.

Each thread holds parts of 2 rows, and the 4 threads of a quad hold a row together
(`wgmma.Rows`): Hopper's.  `whole_row_softmax` is the form for rows that threads have to
themselves.  The recurrence, and when outputs are rescaled, are `running_softmax`'s; all rows of a
warp are rescaled if one is.

Does not mask (masked scores are minus infinity when they come) and does not touch outputs, but says
by what they are to be multiplied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import cutlass
from cutlass import Boolean, Float32, cute
from cutlass._mlir.dialects import arith, nvvm

from flexfa4.primitives.device_exponentials import exp2, exp2_or_emulated
from flexfa4.primitives.exponentials import EmulatedFraction
from flexfa4.primitives.running_softmax import (
    LOWEST,
    Ends,
    change,
    maximum_of,
    normalisation,
    offset_of,
    relation,
    sum_or_nan,
)
from flexfa4.primitives.wgmma import Rows

_ROWS: Final = 2  # of a thread
_QUAD: Final = (1, 2)  # distances over which the threads of a row exchange


@dataclass(frozen=True)
class RowTerms:
    """By what a thread's scores are in base 2: ``factor * score + shift``.

    Attributes:
        factors: of each row, positive.
        shifts: of each row; None is 0.  They may differ between the threads of a row.
    """

    factors: tuple[Any, ...]
    shifts: tuple[Any, ...]

    @property
    def units(self) -> tuple[Any, ...]:
        """What makes each row's maxima numbers of base 2; None if they are."""
        rows = zip(self.factors, self.shifts, strict=True)
        return tuple(factor if shift is None else None for factor, shift in rows)


@dataclass(frozen=True)
class RowSoftmax:
    """The state of a thread's rows, in registers.

    Attributes:
        maximum: what each row's exponents are relative to: a score, or in base 2 if it has shifts.
        factor, offset: of each row: what makes exponents of scores.
        total: sum of a thread's own probabilities of each row.
        tau: growth of the maximum up to which nothing is rescaled; 0: always.
    """

    maximum: Any
    factor: Any
    offset: Any
    total: Any
    tau: float

    @staticmethod
    def start(tau: float) -> RowSoftmax:
        """Return the state of rows that have seen nothing."""
        maximum, factor, offset, total = (cute.make_rmem_tensor(_ROWS, Float32) for _ in range(4))
        maximum.fill(LOWEST)
        factor.fill(1.0)
        offset.fill(-LOWEST)
        total.fill(0.0)
        return RowSoftmax(maximum, factor, offset, total, tau)

    @cute.jit
    def update(self, scores: Rows, terms: RowTerms, emulated: EmulatedFraction) -> None:
        """Take in scores where there is no output yet: replace them by probabilities.

        Args:
            scores: of the rows; overwritten.
            terms: by which they are in base 2.
            emulated: which exponentials are, of each row.
        """
        self.grow(scores, terms)
        self.exponentiate(scores, range(scores.columns), emulated)

    @cute.jit
    def grow(self, scores: Rows, terms: RowTerms) -> tuple[Boolean, Any]:
        """Raise the maxima to those of further scores, which take the same as in `update`.

        Returns:
            Whether outputs are to be rescaled, the same for all threads of a warp, and by what:
            a factor for each row.
        """
        largest = cute.make_rmem_tensor(_ROWS, Float32)
        changes = cute.make_rmem_tensor(_ROWS, Float32)
        grown = Boolean(False)
        for row in cutlass.range_constexpr(_ROWS):
            found = maximum_of(_largest(scores, row), terms.factors[row], terms.shifts[row])
            largest[row] = cute.arch.fmax(self.maximum[row], _over_quad(found))
            changes[row] = change(self.maximum[row], largest[row], terms.units[row])
            grown = grown | (changes[row] < -self.tau)
        rescale = cute.arch.vote_any_sync(grown)
        correction = cute.make_rmem_tensor(_ROWS, Float32)
        correction.fill(1.0)
        if rescale:
            for row in cutlass.range_constexpr(_ROWS):
                correction[row] = exp2(changes[row])
                self.maximum[row] = largest[row]
                self.total[row] *= correction[row]
                if cutlass.const_expr(terms.shifts[row] is None):
                    self.factor[row], self.offset[row] = relation(largest[row], terms.factors[row])
        for row in cutlass.range_constexpr(_ROWS):
            if cutlass.const_expr(terms.shifts[row] is not None):
                self.factor[row] = terms.factors[row]
                self.offset[row] = offset_of(terms.shifts[row], self.maximum[row])
        return rescale, correction

    def exponentiate(self, scores: Rows, columns: range, emulated: EmulatedFraction) -> None:
        """Replace the scores of some columns by probabilities relative to the maxima; add them.

        Args:
            scores: as in `update`, as what follows.
            columns: which.
            emulated: likewise.
        """
        for row in range(_ROWS):
            total = self.total[row].ir_value()
            factor, offset = self.factor[row].ir_value(), self.offset[row].ir_value()
            for column in columns:
                product = arith.mulf(scores.value(row, column), factor)
                exponent = Float32(arith.addf(product, offset))
                probability = exp2_or_emulated(exponent, emulated, column).ir_value()
                scores.set(row, column, probability)
                total = arith.addf(total, probability)
            self.total[row] = Float32(total)

    @cute.jit
    def finish(self, ends: Sequence[Ends], emulated: EmulatedFraction) -> tuple[Any, Any]:
        """Return what normalises each row, and its logarithm of the sum of exponentials.

        A row that saw nothing has 0 and minus infinity, or its sink.

        Args:
            ends: of each row.
            emulated: as in `update`.
        """
        inverse = cute.make_rmem_tensor(_ROWS, Float32)
        lse = cute.make_rmem_tensor(_ROWS, Float32)
        for row in cutlass.range_constexpr(_ROWS):
            total, maximum = self.total[row], self.maximum[row]
            for distance in cutlass.range_constexpr(len(_QUAD)):
                total += cute.arch.shuffle_sync_bfly(total, _QUAD[distance])
            total = sum_or_nan(total, emulated)
            inverse[row], lse[row] = normalisation(total, maximum, ends[row])
        return inverse, lse


@cute.jit
def rescale_rows(values: Rows, rescale: Boolean, correction: Any) -> None:
    """Multiply rows by their corrections, if that is needed."""
    if rescale:
        scale_rows(values, correction)


def scale_rows(values: Rows, factors: Any) -> None:
    """Multiply each row by its factor."""
    for row in range(_ROWS):
        factor = factors[row].ir_value()
        for column in range(values.columns):
            values.set(row, column, arith.mulf(values.value(row, column), factor))


def _largest(scores: Rows, row: int) -> Float32:
    """Return the largest score of a row in this thread."""
    largest = scores.value(row, 0)
    for column in range(1, scores.columns):
        largest = nvvm.fmax(largest, scores.value(row, column))
    return Float32(largest)


def _over_quad(largest: Float32) -> Float32:
    """Return the largest number of the threads of a row."""
    for distance in _QUAD:
        largest = cute.arch.fmax(largest, cute.arch.shuffle_sync_bfly(largest, distance))
    return largest
