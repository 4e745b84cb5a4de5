"""Online softmax over the rows of a warpgroup's accumulators, in base 2; the form for GPUs.

Each thread holds parts of 2 rows, and the 4 threads of a quad hold a row together
(`wgmma.rows_and_columns`).  The recurrence is that of `online_softmax`; what is added to it is
FlashAttention-4's conditional rescale (arXiv 2603.05451, section 3.1): sums and outputs stay
relative to an older maximum until it is exceeded by more than `tau`, so that most tiles rescale
nothing.  Probabilities are then at most ``2^tau``; the last normalisation makes the result exact.

Does not mask (masked scores are minus infinity when they come) and does not touch outputs, but says
by what they are to be multiplied.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import cutlass
from cutlass import Boolean, Float32, cute

LN2: Final = math.log(2.0)
_ROWS: Final = 2  # of a thread
_QUAD: Final = (1, 2)  # distances over which the threads of a row exchange


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
    def update(self, scores: Any, factors: Any, shifts: Any) -> tuple[Boolean, Any]:
        """Replace scores by probabilities relative to the maximum, and add them up.

        Args:
            scores: ``(2, columns)`` of fp32, in registers; overwritten.
            factors: of each row, positive: ``factor * score + shift`` is in base 2.
            shifts: of each row; None is 0.  They may differ between the threads of a row.

        Returns:
            Whether outputs are to be rescaled, the same for all threads of a warp, and by what:
            a factor for each row.
        """
        largest = cute.make_rmem_tensor(_ROWS, Float32)
        grown = Boolean(False)
        for row in cutlass.range_constexpr(_ROWS):
            found = _largest(scores, row) * factors[row]
            if cutlass.const_expr(shifts[row] is not None):
                found += shifts[row]
            largest[row] = cute.arch.fmax(self.maximum[row], _over_quad(found))
            grown = grown | (largest[row] - self.maximum[row] > self.tau)
        rescale = cute.arch.vote_any_sync(grown)
        correction = cute.make_rmem_tensor(_ROWS, Float32)
        correction.fill(1.0)
        if rescale:
            for row in cutlass.range_constexpr(_ROWS):
                correction[row] = _exp2(self.maximum[row] - _finite(largest[row]))
                self.maximum[row] = largest[row]
                self.total[row] *= correction[row]
        for row in cutlass.range_constexpr(_ROWS):
            shift = _finite(self.maximum[row])
            if cutlass.const_expr(shifts[row] is not None):
                shift -= shifts[row]
            total = self.total[row]
            for column in cutlass.range_constexpr(cute.size(scores, mode=[1])):
                probability = _exp2(scores[row, column] * factors[row] - shift)
                scores[row, column] = probability
                total += probability
            self.total[row] = total
        return rescale, correction

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
            if cutlass.const_expr(sinks is None):
                kept = Float32(1.0)
            else:
                own = maximum
                maximum = cute.arch.fmax(own, sinks[row])
                kept = _exp2(own - _finite(maximum))
                total = total * kept + _exp2(sinks[row] - _finite(maximum))
            inverse[row] = cutlass.select_(
                total == 0.0, Float32(0.0), kept * cute.arch.rcp_approx(total)
            )
            lse[row] = (_finite(maximum) + cute.math.log2(total, fastmath=True)) * LN2
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


def _finite(maximum: Float32) -> Float32:
    """Return the maximum, or 0 for a row that has seen nothing, whose scores are all -inf."""
    return cutlass.select_(maximum == -Float32.inf, Float32(0.0), maximum)


def _exp2(x: Float32) -> Float32:
    return cute.math.exp2(x, fastmath=True)
