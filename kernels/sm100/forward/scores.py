"""Scores of a tile: the places of the forward kernel where the user's mod and mask are spliced in.

A thread has one row and all columns of a tile, so what depends on the row is one value, computed
once for a tile of queries (`ItemScores`).  In the loop over tiles of keys it turns the products of
a tile into scores, and hides those that the mask does: by the limits of the row where visible keys
are one interval, and otherwise by the mask itself.
"""

from __future__ import annotations

from typing import Any, Final

import cutlass
from cutlass import Float32, Int32, cute

from flexfa4.kernels.emit.cost import cost_of_mask, loads_in_a_row
from flexfa4.kernels.emit.evaluator import TraceTime
from flexfa4.kernels.emit.places import Columns, Row
from flexfa4.kernels.emit.sites import MaskSite, ScoreSite
from flexfa4.kernels.forward.parameters import Parameters
from flexfa4.kernels.sm100.forward.plan import ForwardPlan
from flexfa4.kernels.sm100.model import fragment_of
from flexfa4.primitives import packed
from flexfa4.primitives.column_limits import WORD, hide, hide_outside
from flexfa4.primitives.registers import Numbers
from flexfa4.primitives.running_softmax import Ends
from flexfa4.primitives.scheduler import Item
from flexfa4.primitives.whole_row_softmax import Scaling

_COSTLY: Final = 64.0
"""Instructions of a mask for each score from which on it is evaluated for half a word at once:
ptxas begins all columns together, and those of a whole word leave no registers for what is kept
across tiles (found by compiling the case table)."""

_SIGN: Final = 31  # the bit of an Int32 that positions do not have


class ItemScores(TraceTime):
    """The scores of a row of a tile of queries, in one thread.

    Attributes:
        query: its position; not clamped to those that exist.
        head: its query head.
        batch: its batch.
    """

    def __init__(self, parameters: Parameters, item: Item, row: Int32) -> None:
        plan = parameters.plan
        self._plan = plan
        self._kv_len = parameters["kv_len"]
        group, shape = plan.group, plan.walk.shape
        self.batch = item.batch
        self.query = item.q_tile * shape.queries + row // group
        self.head = item.head * group + row % group if group > 1 else item.head
        shared = None if group > 1 else item.head
        own = [Row(self.query, self.head if group > 1 else None)]
        self._score: ScoreSite = parameters.score_site(item.batch, shared).with_rows(own)
        self._limits: tuple[Any, Any] | None = None
        self._mask: MaskSite | None = None
        if plan.mask is not None:
            assert isinstance(plan, ForwardPlan)
            self._columns = columns_at_once(plan)
            columns = Columns(tuple(range(self._columns)), self._columns)
            self._mask = parameters.mask_site(item.batch, shared, columns).with_rows(own)
        else:
            begin, end = parameters.limits(item.batch, self.head, self.query)
            self._limits = (None if plan.walk.from_first else begin, end)

    def ends(self, sink: Float32 | None) -> Ends:
        """Return what the end of the row needs to know; the sink is in base 2."""
        return Ends(self._score.unit(0), self._score.constant(0), sink)

    def at_tile(self, kv_tile: Int32, masked: bool) -> TileScores:
        """Return the scores of a tile of keys; issues the loads that serve a whole column.

        Args:
            kv_tile: the tile of keys.
            masked: hide what the mask hides, and what lies behind the last key.
        """
        origin = kv_tile * self._plan.walk.shape.keys
        words: tuple[Int32, ...] = ()
        if masked and self._mask is not None:
            words = _words(self._mask, origin, self._plan.walk.shape.keys, self._columns)
        limits = None
        if masked:
            begin, end = self._limits or (None, self._kv_len)
            limits = (None if begin is None else begin - origin, end - origin)
        values = not self._plan.score.max_of_products
        score = self._score.at_tile(origin + self._nothing(masked), tail=masked)
        return TileScores(score, words, limits, values)

    def _nothing(self, masked: bool) -> Int32 | int:
        """Return 0 that ptxas takes to differ between threads, where a mod reads for each key.

        Addresses that it knows to be the same for a warp are in uniform registers, from which it
        copies them for each read of a tile: 60 instructions more. Where reads are clamped to the
        last key each has an address of its own.
        """
        reads = loads_in_a_row(self._plan.score) > 0
        return self.query >> _SIGN if reads and not masked else 0


class TileScores(TraceTime):
    """The scores of a row in a tile, in one thread.

    Attributes:
        score: the score mod at the tile.
        words: a bit for each column that the mask shows, where it is evaluated for each score.
        limits: the visible columns, relative to the tile's first one, None for no first one; None
            where all are visible.
        modified: scores are not the products themselves.
    """

    def __init__(
        self,
        score: ScoreSite,
        words: tuple[Int32, ...],
        limits: tuple[Any, Any] | None,
        modified: bool,
    ) -> None:
        self.score = score
        self.words = words
        self.limits = limits
        self.modified = modified

    @property
    def scaling(self) -> Scaling:
        """What makes exponents of the scores."""
        return Scaling(self.score.factor(0), self.score.shifts(0))

    @property
    def untouched(self) -> bool:
        """Whether the scores are the products themselves."""
        return not self.modified and not self.words and self.limits is None

    def apply(self, scores: Numbers) -> None:
        """Turn products into scores, minus infinity where they are hidden.

        Args:
            scores: of a row; overwritten.
        """
        if self.modified:
            for i in range(len(scores) // 2):
                packed.store(scores, i, self.score.pair(0, 2 * i, packed.load(scores, i)))
        for i, word in enumerate(self.words):
            hide(scores, word, WORD * i)
        if self.limits is not None:
            hide_outside(scores, *self.limits)


def columns_at_once(plan: ForwardPlan) -> int:
    """Return for how many columns a plan's mask is evaluated together: a word, or half of one."""
    assert plan.mask is not None
    cost = cost_of_mask(plan.mask, plan.mask_captures, fragment_of(plan))
    return WORD // 2 if cost.all >= _COSTLY else WORD


@cute.jit
def _words(mask: MaskSite, origin: Int32, columns: int, at_once: int) -> tuple[Int32, ...]:
    """Return a bit for each column of a tile that a mask shows, 32 to a word.

    They are known before the products are, and do not take the registers that these will.
    """
    words = (Int32(0),) * (columns // WORD)
    of_word = WORD // at_once
    for i in cutlass.range(columns // at_once, unroll=1):
        bits = _bits(mask.at_tile(origin + i * at_once, tail=True), at_once)
        if cutlass.const_expr(of_word == 1):
            words = tuple([cutlass.select_(i == at, bits, word) for at, word in enumerate(words)])
        else:
            bits = bits << (i % of_word * at_once)
            own = i // of_word
            words = tuple(
                [cutlass.select_(own == at, word | bits, word) for at, word in enumerate(words)]
            )
    return words


def _bits(mask: MaskSite, columns: int) -> Int32:
    bits = Int32(0)
    for bit in range(columns):
        shown = cutlass.select_(mask.visible(0, bit), Int32(1 << bit), Int32(0))
        bits = bits | Int32(shown)
    return bits
