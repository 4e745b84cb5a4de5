"""Online softmax where a thread has a whole row of a tile's scores, in base 2: Blackwell's form.

Rows need no exchange between threads, and arithmetic is on pairs of neighbouring columns
(`packed`).  `row_softmax` is the form for rows that four threads share; the recurrence, and when
outputs are rescaled, are `running_softmax`'s.  Each row decides for itself whether its maximum is
raised; whether outputs are touched is decided for a warp, by those that keep them
(`any_corrected`).

A tile is taken in by steps, so that a kernel can hand on what others wait for in between::

    correction = softmax.raise_maximum(scores, scaling)      to those that keep the outputs
    exponents = softmax.exponents(scaling)
    exponents.probabilities(scores, range(0, 96), into)      to the product with the values
    exponents.probabilities(scores, range(96, 128), into)
    softmax.add(scores)

Does not mask: masked scores are minus infinity when they come.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Final

import cutlass
from cutlass import Boolean, Float32, cute
from cutlass._mlir.dialects import nvvm

from flexfa4.primitives import packed
from flexfa4.primitives.device_exponentials import emulated_exp2_of_pair, exp2, exp2_of_pair
from flexfa4.primitives.exponentials import EmulatedFraction
from flexfa4.primitives.registers import Numbers
from flexfa4.primitives.running_softmax import (
    LOWEST,
    Ends,
    change,
    is_huge,
    maximum_of,
    normalisation,
    offset_of,
    relation,
    sum_or_nan,
)

_CHAINS: Final = 4  # of maxima that do not wait for one another
_SUMS: Final = 2  # pairs of running sums, likewise
_ROUNDED: Final = 32  # columns that are rounded together


@dataclass(frozen=True)
class Scaling:
    """What makes exponents of a row's scores in a tile: ``factor * score + shift``, in base 2.

    Attributes:
        factor: positive.
        shifts: of all columns, or of even and of odd ones; None is 0.
    """

    factor: Float32
    shifts: tuple[Float32 | None, ...] = (None,)

    @property
    def unit(self) -> Float32 | None:
        """What makes maxima numbers of base 2; None if they are."""
        return self.factor if self.shifts[0] is None else None


@dataclass(frozen=True)
class WholeRowSoftmax:
    """The state of a thread's row, in registers.

    Attributes:
        maximum: one number: what exponents are relative to: a score, or in base 2 if the scaling
            has shifts.
        sums: running sums of probabilities; the row's is that of all of them.
        tau: growth of the maximum up to which nothing is rescaled; 0: always.
        emulated: which exponentials are.
    """

    maximum: Any
    sums: Numbers
    tau: float
    emulated: EmulatedFraction

    @staticmethod
    def start(tau: float, emulated: EmulatedFraction) -> WholeRowSoftmax:
        """Return the state of a row that has seen nothing."""
        maximum = cute.make_rmem_tensor(1, Float32)
        sums = cute.make_rmem_tensor(2 * _SUMS, Float32)
        maximum.fill(LOWEST)
        sums.fill(0.0)
        return WholeRowSoftmax(maximum, Numbers(sums), tau, emulated)

    def raise_maximum(
        self, scores: Numbers, scaling: Scaling, known: Float32 | None = None
    ) -> Float32:
        """Take in a tile's largest score, and make the sum relative to the new maximum.

        Args:
            scores: of the columns.
            scaling: of the row in this tile.
            known: the largest score, where hardware has found it; the scaling has one shift.

        Returns:
            What outputs so far are to be multiplied by: 1 where the maximum stays.
        """
        maximum = self.maximum[0]
        largest = cute.arch.fmax(maximum, _largest_of_tile(scores, scaling, known))
        exponent = change(maximum, largest, scaling.unit)
        grown = exponent < -self.tau
        correction = cutlass.select_(grown, exp2(exponent), Float32(1.0))
        self.maximum[0] = cutlass.select_(grown, largest, maximum)
        for i in range(_SUMS):
            corrected = packed.mul(packed.load(self.sums, i), packed.both(correction))
            packed.store(self.sums, i, corrected)
        return correction

    def exponents(self, scaling: Scaling) -> Exponents:
        """Return how this tile's scores become probabilities relative to the maximum."""
        maximum = self.maximum[0]
        if scaling.unit is not None:
            factor, offset = _related(maximum, scaling.factor)
            return Exponents(factor, packed.both(offset), self.emulated)
        offsets = [offset_of(shift, maximum) for shift in scaling.shifts]
        return Exponents(scaling.factor, packed.pair(offsets[0], offsets[-1]), self.emulated)

    def add(self, probabilities: Numbers) -> None:
        """Add a tile's probabilities, those of all columns, to the sums."""
        sums = [packed.load(self.sums, i) for i in range(_SUMS)]
        for i in range(len(probabilities) // 2):
            sums[i % _SUMS] = packed.add(sums[i % _SUMS], packed.load(probabilities, i))
        for i, total in enumerate(sums):
            packed.store(self.sums, i, total)

    @property
    def total(self) -> Float32:
        """The sum of the row's probabilities so far."""
        whole = packed.load(self.sums, 0)
        for i in range(1, _SUMS):
            whole = packed.add(whole, packed.load(self.sums, i))
        first, second = packed.lanes(whole)
        return first + second

    def finish(self, ends: Ends) -> tuple[Float32, Float32]:
        """Return what normalises the row, and its lse; see `running_softmax.normalisation`."""
        total = sum_or_nan(self.total, self.emulated)
        return normalisation(total, self.maximum[0], ends)


@dataclass(frozen=True)
class Exponents:
    """How a tile's scores become probabilities, in one thread.

    Attributes:
        factor: what scores are multiplied by.
        offsets: what is added then, of an even and of an odd column.
        emulated: which exponentials are.
    """

    factor: Float32
    offsets: packed.Pair
    emulated: EmulatedFraction

    def probabilities(self, scores: Numbers, columns: range, into: Any) -> None:
        """Replace some of a row's scores by their probabilities.

        Args:
            scores: of all columns; those are overwritten.
            columns: which: a multiple of 2 on, so many at a time.
            into: as many numbers of 16 bits, in registers: set to the probabilities, rounded.
        """
        assert columns.start % 2 == 0 and len(columns) % 2 == 0 and columns.step == 1
        factor = packed.both(self.factor)
        for start in range(columns.start, columns.stop, _ROUNDED):
            count = min(_ROUNDED, columns.stop - start)
            for i in range(start // 2, (start + count) // 2):
                x = packed.fma(packed.load(scores, i), factor, self.offsets)
                packed.store(scores, i, self._exp2(x, i))
            _part(into, start, count).store(
                _part(scores.tensor, start, count).load().to(into.element_type)
            )

    def _exp2(self, x: packed.Pair, pair: int) -> packed.Pair:
        if self.emulated.emulates(pair):
            return emulated_exp2_of_pair(x, self.emulated.degree)
        return exp2_of_pair(x)


@cute.jit
def any_corrected(correction: Float32) -> Boolean:
    """Return whether a row of the warp is to be corrected: the same for all of its threads."""
    return cute.arch.vote_any_sync(correction != 1.0)


def scale_row(values: Numbers, factor: Float32) -> None:
    """Multiply a row by a factor."""
    both = packed.both(factor)
    for i in range(len(values) // 2):
        packed.store(values, i, packed.mul(packed.load(values, i), both))


@cute.jit
def _related(maximum: Float32, factor: Float32) -> tuple[Float32, Float32]:
    """Return `relation`, but for a warp without a huge maximum, as all but few are, by less."""
    used, offset = factor, -(maximum * factor)
    if cute.arch.vote_any_sync(is_huge(offset)):
        used, offset = relation(maximum, factor)
    return used, offset


def _largest_of_tile(scores: Numbers, scaling: Scaling, known: Float32 | None) -> Float32:
    """Return the maximum that a tile makes of a row; its largest score may be known."""
    lines = len(scaling.shifts)
    largest = []
    for line, shift in enumerate(scaling.shifts):
        found = known
        if found is None:
            found = _largest(scores, range(line, len(scores), lines), _CHAINS // lines)
        largest.append(maximum_of(found, scaling.factor, shift))
    return functools.reduce(cute.arch.fmax, largest)


def _largest(scores: Numbers, columns: range, chains: int) -> Float32:
    """Return the largest of some scores.

    Two are taken in at once, by an instruction that compares three, in chains side by side.
    """
    found = [
        functools.reduce(nvvm.fmax, [scores.value(c) for c in columns[i::chains]])
        for i in range(chains)
    ]
    return Float32(functools.reduce(nvvm.fmax, found))


def _part(row: Any, first: int, count: int) -> Any:
    return cute.make_tensor(row.iterator + first, cute.make_layout(count))
