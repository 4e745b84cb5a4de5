"""Who works on which item: three ways of handing the numbers of work items to blocks.

``OnePerBlock``  a block for each item; the hardware hands them out in order
``Fetched``      as many blocks as fit at once, each of which fetches the next number as soon as it
                 is free: a counter in global memory, which the producer warp reads and passes on
``Strided``      as many clusters as fit at once, each of which takes every n-th item

A role walks its items by a cursor, which loops may carry; each role of a block meets the same
numbers, in the same order::

    cursor = walk.first()
    while walk.has(cursor):
        item = order.item(cursor.number)
        ...
        cursor = walk.next(cursor)

What an item is, `scheduler` says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from cutlass import Int32, cute

from flexfa4.primitives.pipeline import Position
from flexfa4.primitives.shared_bytes import NUMBER_STAGES


class Cursor:
    """The number of the item that a role works on; a value that loops may carry.

    Attributes:
        number: of the item.
        position: of the next number in the ring of numbers; None where there is none.
    """

    def __init__(self, number: Int32, position: Position | None = None) -> None:
        self.number = number
        self.position = position

    @property
    def in_ring(self) -> Position:
        """The position, where there is a ring of numbers."""
        assert self.position is not None
        return self.position

    def __extract_mlir_values__(self) -> list[Any]:
        position = [] if self.position is None else self.position.__extract_mlir_values__()
        return [self.number.ir_value(), *position]

    def __new_from_mlir_values__(self, values: list[Any]) -> Cursor:
        if self.position is None:
            return Cursor(Int32(values[0]))
        return Cursor(Int32(values[0]), self.position.__new_from_mlir_values__(values[1:]))


class Walk(Protocol):
    """The way of one role through the items of its block."""

    def first(self) -> Cursor:
        """Return where the block begins."""

    def has(self, cursor: Cursor) -> Any:
        """Return whether there is an item at a cursor."""

    def next(self, cursor: Cursor) -> Cursor:
        """Return the place behind one that has an item."""


@dataclass(frozen=True)
class OnePerBlock:
    """A block has one item, which it has the number of.

    Attributes:
        items: how many items there are; that many blocks are launched.
    """

    items: Int32

    def first(self) -> Cursor:
        """Return the item of the block."""
        return Cursor(cute.arch.block_idx()[0])

    def has(self, cursor: Cursor) -> Any:
        """Return whether it has not been worked on."""
        return cursor.number < self.items

    def next(self, cursor: Cursor) -> Cursor:
        """Return a place without an item."""
        return Cursor(self.items)


@dataclass(frozen=True)
class Strided:
    """Clusters take every n-th item of n clusters: for items that are alike.

    Attributes:
        items: how many items there are; items and blocks together are less than 2**31.
        blocks: of a cluster.
    """

    items: Int32
    blocks: int

    def first(self) -> Cursor:
        """Return the item that has the number of the cluster."""
        return Cursor(cute.arch.block_idx()[0] // self.blocks)

    def has(self, cursor: Cursor) -> Any:
        """Return whether there is an item at a cursor."""
        return cursor.number < self.items

    def next(self, cursor: Cursor) -> Cursor:
        """Return the item as many numbers further as there are clusters."""
        return Cursor(cursor.number + cute.arch.grid_dim()[0] // self.blocks)


@dataclass(frozen=True)
class Numbers:
    """A ring in shared memory that passes numbers from the producer to the consuming warps.

    It takes `flexfa4.primitives.shared_bytes.NUMBERS_BYTES`.

    Attributes:
        barriers: ``2 * NUMBER_STAGES`` mbarriers: full ones first, then empty ones.
        slots: ``NUMBER_STAGES`` Int32.
        consumers: warps that read each number.
    """

    barriers: cute.Pointer
    slots: cute.Pointer
    consumers: int

    def initialise(self) -> None:
        """Make the mbarriers; by one thread, followed by a fence and a barrier of the block."""
        for stage in range(NUMBER_STAGES):
            cute.arch.mbarrier_init(self.barriers + stage, 1)
            cute.arch.mbarrier_init(self.barriers + NUMBER_STAGES + stage, self.consumers)

    def put(self, position: Position, number: Int32) -> None:
        """Pass a number on, once its slot is free; one thread of the producer."""
        empty = self.barriers + NUMBER_STAGES + position.stage
        cute.arch.mbarrier_wait(empty, position.parity ^ 1)
        (self.slots + position.stage).store(number)
        cute.arch.mbarrier_arrive(self.barriers + position.stage)

    @cute.jit
    def take(self, position: Position) -> Int32:
        """Wait for a number; all lanes of a consuming warp."""
        cute.arch.mbarrier_wait(self.barriers + position.stage, position.parity)
        number = (self.slots + position.stage).load()
        cute.arch.sync_warp()
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive(self.barriers + NUMBER_STAGES + position.stage)
        return number


@dataclass(frozen=True)
class FetchedByProducer:
    """The walk of the producer warp: numbers beyond the first of each block come from a counter.

    The counter is 0 before a launch and 0 again behind it.  Blocks fetch until there is no item
    left, so that they fetch as often as there are items, whatever their number; and what counts
    begins again from 0 by itself when it has counted that far (``atom.inc``).  So no launch has to
    clear it, and launches that follow each other may share it; launches that run at the same time
    need a counter each.

    Attributes:
        items: how many items there are, no fewer than blocks.
        counter: Int32 in global memory.
        numbers: where they are passed on.
    """

    items: Int32
    counter: cute.Pointer
    numbers: Numbers

    def first(self) -> Cursor:
        """Return the item that has the number of the block."""
        return Cursor(cute.arch.block_idx()[0], Position.start(NUMBER_STAGES))

    def has(self, cursor: Cursor) -> Any:
        """Return whether there is an item at a cursor."""
        return cursor.number < self.items

    @cute.jit
    def next(self, cursor: Cursor) -> Cursor:
        """Fetch the next number and pass it on; all lanes."""
        number = Int32(0)
        if cute.arch.lane_idx() == 0:
            number = self._fetched(cursor.in_ring)
        number = cute.arch.shuffle_sync(number, 0)
        return Cursor(number, cursor.in_ring.next())

    def _fetched(self, position: Position) -> Int32:
        """Fetch a number and pass it on; one thread."""
        before = cute.arch.inline_ptx(
            "atom.relaxed.gpu.global.inc.u32 {$w0}, [{$r0}], {$r1};",
            write_only_types=[Int32],
            read_only_args=[self.counter.toint(), self.items - 1],
        )
        number = before + cute.arch.grid_dim()[0]
        self.numbers.put(position, number)
        return number


@dataclass(frozen=True)
class FetchedByConsumer:
    """The walk of a consuming warp, whose lanes walk together.

    Attributes:
        items: how many items there are.
        numbers: where the producer passes them on.
    """

    items: Int32
    numbers: Numbers

    def first(self) -> Cursor:
        """Return the item that has the number of the block."""
        return Cursor(cute.arch.block_idx()[0], Position.start(NUMBER_STAGES))

    def has(self, cursor: Cursor) -> Any:
        """Return whether there is an item at a cursor."""
        return cursor.number < self.items

    def next(self, cursor: Cursor) -> Cursor:
        """Wait for the next number."""
        number = self.numbers.take(cursor.in_ring)
        return Cursor(number, cursor.in_ring.next())
