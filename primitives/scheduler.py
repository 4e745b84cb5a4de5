"""In which order the tiles of queries of all heads are worked on.

A work item is a tile of queries of one head of one batch.  Items are numbered so that

- heads whose keys and values fit the L2 cache together are a *section*, and sections come one after
  the other: what the heads of a section read stays in the cache while it is worked on;
- inside a section the tiles with the most work come first, of all its heads (longest processing
  time first, LPT), so that what is left at the end are short tiles;
- the last section has so many heads that its long tiles are done before the others: what is left
  of all heads joins it (`pairs_at_end`).

The number of an item tells where it is: `Order.item` takes it apart.  Tiles ascend or descend where
their work does, and otherwise are looked up in a table for each class of batches and heads.

Written once for hosts and kernels (`arithmetic`).  Who gets which number is `dispatch`; how good an
order is, `makespan`.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, fields
from typing import Any, Final, NamedTuple

from flexfa4.primitives.arithmetic import Arithmetic, Value
from flexfa4.primitives.fast_division import MOST, Divisor
from flexfa4.primitives.tile_walk import ClassTable


class Item(NamedTuple):
    """A tile of queries of one head; the key head where query heads are packed."""

    q_tile: Value
    head: Value
    batch: Value


class Work(NamedTuple):
    """How many items there are.

    Attributes:
        tiles: query tiles of a head.
        heads: heads of a batch: key heads, where query heads are packed.
        batch: batches.
    """

    tiles: int
    heads: int
    batch: int

    @property
    def items(self) -> int:
        """How many there are in all."""
        return self.tiles * self.heads * self.batch


@dataclass(frozen=True)
class Sections:
    """The numbers of a call that its items are taken apart by; on the host or in a kernel.

    Attributes:
        items: how many there are.
        tiles: query tiles of a head.
        last: the last section.
        section: items of a section, of any but the last.
        pairs: pairs of batch and head of such a section.
        last_pairs: those of the last section, which may be more or less.
        heads: heads of a batch.
        first_tile, step: the tile that is first in a section, and 1 or -1: the way to the others.
    """

    items: Value
    tiles: Value
    last: Value
    section: Divisor
    pairs: Divisor
    last_pairs: Divisor
    heads: Divisor
    first_tile: Value
    step: Value

    @classmethod
    def of(cls, work: Work, pairs: int, descending: bool = False, at_end: int = 1) -> Sections:
        """Return the numbers of a call.

        Args:
            work: its items, at least one and at most `fast_division.MOST`.
            pairs: pairs of batch and head in a section, see `pairs_in_cache`.
            descending: the last tile is the first.
            at_end: how many the last section has at least, if there are as many: see
                `pairs_at_end`.
        """
        every = work.heads * work.batch
        pairs = min(pairs, every)
        assert pairs >= 1 and at_end >= 1 and 1 <= work.items <= MOST
        last = max(0, every - at_end) // pairs
        return cls(
            work.items,
            work.tiles,
            last,
            Divisor.of(pairs * work.tiles),
            Divisor.of(pairs),
            Divisor.of(every - last * pairs),
            Divisor.of(work.heads),
            work.tiles - 1 if descending else 0,
            -1 if descending else 1,
        )

    def numbers(self) -> list[int]:
        """Return all numbers, in the order of `from_numbers`: integers of 32 bits with a sign."""
        found: list[int] = []
        for field in fields(self):
            value = getattr(self, field.name)
            divisor = isinstance(value, Divisor)
            found += [value.size, value.multiplier, value.shift] if divisor else [value]
        return [number - (1 << 32) if number > MOST else number for number in found]

    @classmethod
    def from_numbers(cls, numbers: list[Any] | tuple[Any, ...]) -> Sections:
        """Return the sections that some numbers stand for, as `numbers` gives them.

        Multipliers may have become negative, and mean the same.
        """
        rest = iter(numbers)

        def divisor() -> Divisor:
            return Divisor(next(rest), next(rest), next(rest))

        made = cls(
            next(rest), next(rest), next(rest),
            divisor(), divisor(), divisor(), divisor(),
            next(rest), next(rest),
        )  # fmt: skip
        assert next(rest, None) is None
        return made


NUMBERS: Final = (
    "items", "q_tiles", "last_section",
    *(f"{name}_{part}" for name in ("section", "pairs", "last_pairs", "heads")
      for part in ("size", "multiplier", "shift")),
    "first_tile", "step",
)  # fmt: skip
"""The names of `Sections.numbers`."""


@dataclass(frozen=True)
class OrderTable:
    """The order of the tiles of each class of batches and heads.

    Attributes:
        tiles: int32 ``(classes, tiles)``: the tile that is first, second and so on.
        length: tiles of a class.
        classes: which class a batch and head belong to.
    """

    tiles: Any
    length: Value
    classes: ClassTable


@dataclass(frozen=True)
class Order:
    """The order of work.

    Attributes:
        arithmetic: what computes.
        sections: the numbers of the call.
        table: the order of tiles, where they neither ascend nor descend.
    """

    arithmetic: Arithmetic
    sections: Sections
    table: OrderTable | None = None

    def item(self, number: Value) -> Item:
        """Return the item of a number from 0 to ``items - 1``."""
        sections, arithmetic = self.sections, self.arithmetic
        section, rest = sections.section.divided(number, arithmetic)
        at_end = section >= sections.last
        pairs, last = sections.pairs, sections.last_pairs
        select = arithmetic.select
        own = Divisor(
            select(at_end, last.size, pairs.size),
            select(at_end, last.multiplier, pairs.multiplier),
            select(at_end, last.shift, pairs.shift),
        )
        rest += select(at_end, (section - sections.last) * sections.section.size, 0)
        section = select(at_end, sections.last, section)
        place, pair = own.divided(rest, arithmetic)
        batch, head = sections.heads.divided(section * pairs.size + pair, arithmetic)
        return Item(self._tile(place, head, batch), head, batch)

    def _tile(self, place: Value, head: Value, batch: Value) -> Value:
        """Return the tile that comes at a place of the order of a head."""
        if self.table is None:
            return self.sections.first_tile + place * self.sections.step
        class_ = self.table.classes.of(batch, head, self.arithmetic)
        return self.arithmetic.load(self.table.tiles, class_ * self.table.length + place)


@functools.lru_cache(maxsize=256)
def section_numbers(
    work: Work, pairs: int, descending: bool = False, at_end: int = 1
) -> tuple[int, ...]:
    """Return `Sections.numbers` of a call, kept: launches repeat."""
    return tuple(Sections.of(work, pairs, descending, at_end).numbers())


def pairs_in_cache(
    cache_bytes: int, kv_len: int, row_bytes: int, heads_per_kv_head: int = 1
) -> int:
    """Return how many pairs of batch and head make a section.

    Args:
        cache_bytes: of the L2 cache that keys and values may take.
        kv_len: keys.
        row_bytes: of a key and a value together.
        heads_per_kv_head: heads that read the same keys one after the other: 1 where they are
            packed.
    """
    together = max(1, cache_bytes // max(1, kv_len * row_bytes))
    return int(together) * heads_per_kv_head


def pairs_at_end(tiles: int, blocks: int, pairs: int) -> int:
    """Return how many pairs of batch and head the last section needs.

    Its longest tile must not take longer than all blocks take for the section.  Where the work of
    tiles grows evenly from nothing, as below a diagonal, the longest takes twice the mean, so it
    needs twice as many tiles as there are blocks.  A section of less would leave most blocks
    without work at the end: 12 % of the time with one long head of 64 tiles on 132 multiprocessors.

    Args:
        tiles: of a head.
        blocks: that work at the same time.
        pairs: of the other sections.
    """
    return max(pairs, -(-2 * blocks // max(1, tiles)))
