"""Online softmax over the rows of a warpgroup's accumulators, in base 2; the form for GPUs.

Each thread holds parts of 2 rows, and the 4 threads of a quad hold a row together
(`wgmma.rows_and_columns`): Hopper's.  `whole_row_softmax` is the form for rows that threads have to
themselves.  The recurrence, and when outputs are rescaled, are `running_softmax`'s; all rows of a
warp are rescaled if one is.

Does not mask (masked scores are minus infinity when they come) and does not touch outputs, but says
by what they are to be multiplied.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import cutlass
from cutlass import Boolean, Float32, cute

from flexfa4.primitives.device_exponentials import exp2
from flexfa4.primitives.running_softmax import correction_of, exceeds, finite, normalisation

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


@dataclass(frozen=True)
class RowSoftmax:
    """The state of a thread's rows, in registers.

    Attributes:
        maximum: what each row's exponents are relative to, base 2; -inf while nothing was visible.
        total: sum of a thread's own probabilities of each row.
        tau: growth of the maximum up to which nothing is rescaled; 0: always.
    """

    maximum: Any
    total: Any
    tau: float

    @staticmethod
    def start(tau: float) -> RowSoftmax:
        """Return the state of rows that have seen nothing."""
        maximum = cute.make_rmem_tensor(_ROWS, Float32)
        total = cute.make_rmem_tensor(_ROWS, Float32)
        maximum.fill(-Float32.inf)
        total.fill(0.0)
        return RowSoftmax(maximum, total, tau)

    @cute.jit
    def update(self, scores: Any, terms: RowTerms) -> None:
        """Take in scores where there is no output yet: replace them by probabilities.

        Args:
            scores: ``(2, columns)`` of fp32, in registers; overwritten.
            terms: by which they are in base 2.
        """
        self.grow(scores, terms)
        self.exponentiate(scores, terms, range(cute.size(scores, mode=[1])))

    @cute.jit
    def grow(self, scores: Any, terms: RowTerms) -> tuple[Boolean, Any]:
        """Raise the maxima to those of further scores, which take the same as in `update`.

        Returns:
            Whether outputs are to be rescaled, the same for all threads of a warp, and by what:
            a factor for each row.
        """
        largest = cute.make_rmem_tensor(_ROWS, Float32)
        grown = Boolean(False)
        for row in cutlass.range_constexpr(_ROWS):
            found = _largest(scores, row) * terms.factors[row]
            if cutlass.const_expr(terms.shifts[row] is not None):
                found += terms.shifts[row]
            largest[row] = cute.arch.fmax(self.maximum[row], _over_quad(found))
            grown = grown | exceeds(largest[row], self.maximum[row], self.tau)
        rescale = cute.arch.vote_any_sync(grown)
        correction = cute.make_rmem_tensor(_ROWS, Float32)
        correction.fill(1.0)
        if rescale:
            for row in cutlass.range_constexpr(_ROWS):
                correction[row] = correction_of(self.maximum[row], largest[row])
                self.maximum[row] = largest[row]
                self.total[row] *= correction[row]
        return rescale, correction

    @cute.jit
    def exponentiate(self, scores: Any, terms: RowTerms, columns: range) -> None:
        """Replace the scores of some columns by probabilities relative to the maxima; add them."""
        for row in cutlass.range_constexpr(_ROWS):
            shift = finite(self.maximum[row])
            if cutlass.const_expr(terms.shifts[row] is not None):
                shift -= terms.shifts[row]
            total = self.total[row]
            for column in cutlass.range_constexpr(columns.start, columns.stop):
                probability = exp2(scores[row, column] * terms.factors[row] - shift)
                scores[row, column] = probability
                total += probability
            self.total[row] = total

    @cute.jit
    def finish(self, sinks: Any) -> tuple[Any, Any]:
        """Return what normalises each row, and its logarithm of the sum of exponentials.

        A row that saw nothing has 0 and minus infinity, or its sink.

        Args:
            sinks: of each row, base 2: a logit that joins the sum; None for none.
        """
        inverse = cute.make_rmem_tensor(_ROWS, Float32)
        lse = cute.make_rmem_tensor(_ROWS, Float32)
        for row in cutlass.range_constexpr(_ROWS):
            total, maximum = self.total[row], self.maximum[row]
            for distance in cutlass.range_constexpr(len(_QUAD)):
                total += cute.arch.shuffle_sync_bfly(total, _QUAD[distance])
            sink = None
            if cutlass.const_expr(sinks is not None):
                sink = sinks[row]
            inverse[row], lse[row] = normalisation(total, maximum, sink)
        return inverse, lse


@cute.jit
def rescale_rows(values: Any, rescale: Boolean, correction: Any) -> None:
    """Multiply the rows of `values` ``(2, columns)`` by their corrections, if that is needed."""
    if rescale:
        scale_rows(values, correction)


@cute.jit
def scale_rows(values: Any, factors: Any) -> None:
    """Multiply each row of `values` ``(2, columns)`` by its factor."""
    for row in cutlass.range_constexpr(_ROWS):
        for column in cutlass.range_constexpr(cute.size(values, mode=[1])):
            values[row, column] *= factors[row]


def _largest(scores: Any, row: int) -> Float32:
    """Return the largest score of a row in this thread."""
    largest = scores[row, 0]
    for column in range(1, cute.size(scores, mode=[1])):
        largest = cute.arch.fmax(largest, scores[row, column])
    return largest


def _over_quad(largest: Float32) -> Float32:
    """Return the largest number of the threads of a row."""
    for distance in _QUAD:
        largest = cute.arch.fmax(largest, cute.arch.shuffle_sync_bfly(largest, distance))
    return largest
