"""Softmax warpgroups of the forward kernel: scores of a half to probabilities, a row to a thread.

The row comes from tensor memory to registers and goes back there, half as wide.  What others wait
for leaves first: the factor of the outputs so far, then three quarters of the probabilities, so
that the product with the values can begin, then the rest; the row's sum comes last.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import Float32, Int32, cute

from flexfa4.kernels.forward.parameters import Parameters
from flexfa4.kernels.sm100.forward.barriers import Barriers
from flexfa4.kernels.sm100.forward.halves import Halves
from flexfa4.kernels.sm100.forward.plan import ForwardPlan
from flexfa4.kernels.sm100.forward.scores import ItemScores, TileScores
from flexfa4.kernels.sm100.forward.storage import FACTOR, INVERSE, number_at
from flexfa4.primitives import tmem
from flexfa4.primitives.registers import Numbers
from flexfa4.primitives.running_softmax import Ends
from flexfa4.primitives.turns import Turns
from flexfa4.primitives.whole_row_softmax import Exponents, WholeRowSoftmax

_LOADED = 32  # columns of one load
_WORD = 2  # probabilities in a column of tensor memory


@dataclass(frozen=True)
class Softmax:
    """The role of a softmax warpgroup.

    Attributes:
        plan: of the kernel.
        barriers: of the halves.
        dtype: of probabilities.
        numbers: in shared memory, fp32: the factor and the inverse of each row of both halves.
        address: of tensor memory, in the lanes of the warp.
        turns: in which the halves exponentiate; one party where they do not wait.
        half: 0 or 1.
        row: of the half.
    """

    plan: ForwardPlan
    barriers: Barriers
    dtype: Any
    numbers: cute.Pointer
    address: Int32
    turns: Turns
    half: Int32
    row: Int32

    @cute.jit
    def attend(
        self, scores: ItemScores, halves: Halves, phase: Int32
    ) -> tuple[Int32, WholeRowSoftmax]:
        """Take in the tiles of keys of an item.

        Returns:
            The phase behind them, and the state of the row.
        """
        tiles = halves.tiles
        softmax = WholeRowSoftmax.start(self.plan.tau, self.plan.tiling.emulated)
        for i in cutlass.range(tiles.partial_count, unroll=1):
            if (halves.of_partial(i) >> self.half) & 1 != 0:
                self._step(softmax, scores.at_tile(tiles.partial(i), True), phase)
                phase = phase ^ 1
            elif cutlass.const_expr(self.turns.parties > 1):
                self._skip_turn()
        if (halves.exist >> self.half) & 1 != 0:
            for i in cutlass.range(tiles.full_count, unroll=1):
                self._step(softmax, scores.at_tile(tiles.full(i), False), phase)
                phase = phase ^ 1
        elif cutlass.const_expr(self.turns.parties > 1):
            for _ in cutlass.range(tiles.full_count, unroll=1):
                self._skip_turn()
        return phase, softmax

    @cute.jit
    def finish(self, softmax: WholeRowSoftmax, ends: Ends, phase: Int32) -> Float32:
        """Hand on what normalises the row; return its lse."""
        inverse, lse = softmax.finish(ends)
        self.barriers.wait("taken", self.half, phase ^ 1)
        self._number(INVERSE).store(inverse)
        self.barriers.arrive("inverse", self.half)
        return lse

    @cute.jit
    def _step(self, softmax: WholeRowSoftmax, tile: TileScores, phase: Int32) -> None:
        """Take in a tile of keys."""
        keys, memory = self.plan.tiling.keys, self.plan.tensor_memory
        columns = self.address + self.half * (memory.scores[1] - memory.scores[0])
        scores = Numbers(cute.make_rmem_tensor(keys, Float32))
        self.barriers.wait("scores", self.half, phase)
        tmem.behind_barrier()
        largest = self._load(scores, columns + memory.scores[0], tile.untouched)
        tile.apply(scores)
        scaling = tile.scaling
        self._number(FACTOR).store(softmax.raise_maximum(scores, scaling, largest))
        self.barriers.arrive("factors", self.half)
        exponents = softmax.exponents(scaling)
        self.turns.take(self.half)
        rounded = cute.make_rmem_tensor(keys, self.dtype)
        early = self.plan.tiling.early
        self._store(exponents, scores, rounded, range(early), columns)
        self.barriers.arrive("probabilities", self.half)
        self._store(exponents, scores, rounded, range(early, keys), columns)
        self.turns.pass_on(self.half)
        self.barriers.arrive("rest", self.half)
        softmax.add(scores)

    def _skip_turn(self) -> None:
        self.turns.take(self.half)
        self.turns.pass_on(self.half)

    def _load(self, scores: Numbers, address: Int32, untouched: bool) -> Float32 | None:
        """Load a row of products; return the largest if it is a score and comes for free."""
        parts = [
            cute.make_tensor(scores.tensor.iterator + first, cute.make_layout(_LOADED))
            for first in range(0, len(scores), _LOADED)
        ]
        largest = None
        if untouched and tmem.finds_maxima():
            found = [
                tmem.load_with_maximum(address + i * _LOADED, part) for i, part in enumerate(parts)
            ]
            tmem.wait_for_loads()
            largest = functools.reduce(cute.arch.fmax, found)
        else:
            for i, part in enumerate(parts):
                tmem.load(address + i * _LOADED, part)
            tmem.wait_for_loads()
        return largest

    def _store(
        self, exponents: Exponents, scores: Numbers, rounded: Any, columns: range, address: Int32
    ) -> None:
        """Exponentiate some columns and store them in tensor memory."""
        quarter = self.plan.tiling.keys // 4
        width = quarter & -quarter  # what one instruction stores is a power of two
        start = address + self.plan.tensor_memory.probabilities[0]
        for first in range(columns.start, columns.stop, width):
            exponents.probabilities(scores, range(first, first + width), rounded)
            part = cute.make_tensor(rounded.iterator + first, cute.make_layout(width))
            tmem.store(start + first // _WORD, part)
        tmem.wait_for_stores()
        tmem.before_barrier()

    def _number(self, which: int) -> cute.Pointer:
        """Return where the `FACTOR` or the `INVERSE` of the row is."""
        return self.numbers + number_at(self.half, which, self.row)

    @cute.jit
    def write_lse(self, parameters: Parameters, scores: ItemScores, lse: Float32) -> None:
        """Write the logarithm of the sum of exponentials of the row."""
        if scores.query < parameters["q_len"]:
            parameters.lse_of(scores.batch, scores.head, scores.query).store(lse)
