"""Kernels that write down which tiles they visit, and which items they work on.

CuTe-DSL reads a kernel's source, so they stand in a module of their own.
"""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Int32, Int64, cute

from flexfa4.kernels.blocks.emitted import EmittedEnds
from flexfa4.kernels.blocks.walk import WalkPlan
from flexfa4.kernels.emit.captures import CapturePlan
from flexfa4.kernels.emit.evaluator import Leaves
from flexfa4.primitives.device_arithmetic import DEVICE
from flexfa4.primitives.dispatch import (
    FetchedByConsumer,
    FetchedByProducer,
    Numbers,
    OnePerBlock,
)
from flexfa4.primitives.scheduler import Sections
from flexfa4.primitives.shared_bytes import NUMBER_STAGES, NUMBERS_BYTES, ring_bytes
from flexfa4.primitives.tile_walk import Lengths

PARTIAL = 1
FULL = 2
WARP = 32


class Visitor:
    """A kernel of one warp for each work item, which visits the tiles of the item.

    Attributes:
        plan: how they are found.
        captures: what is known of what the intervals of the plan capture.
    """

    def __init__(self, plan: WalkPlan, captures: CapturePlan | None) -> None:
        self.plan = plan
        self.captures = captures

    @cute.jit
    def __call__(
        self,
        numbers: list[Int32],
        walk: list[Any],
        captured: list[Any],
        sizes: list[Int32],
        visited: cute.Pointer,
        items: cute.Pointer,
    ) -> None:
        """Launch.

        Args:
            numbers: of the sections.
            walk: values of the plan's parameters, and a 0: a list has to have an element.
            captured: values of the parameters of the intervals' captures, and a 0.
            sizes: queries, keys, query heads, key heads, tiles of keys.
            visited: int32 ``(batch, heads, q tiles, kv tiles)``: by how much a tile's visits as
                partial or full raise it.
            items: int32 ``(items, 3)``: which item has which number.
        """
        self.kernel(numbers, walk, captured, sizes, visited, items).launch(
            grid=[numbers[0], 1, 1], block=[WARP, 1, 1]
        )

    @cute.kernel
    def kernel(
        self,
        numbers: list[Int32],
        walk: list[Any],
        captured: list[Any],
        sizes: list[Int32],
        visited: cute.Pointer,
        items: cute.Pointer,
    ) -> None:
        """Visit the tiles of an item."""
        q_len, kv_len, heads, kv_heads, kv_tiles = sizes
        sections = Sections.from_numbers(numbers)
        order = self.plan.order_of(walk[:-1], sections, DEVICE)
        leaves = Leaves(None, None, q_len, kv_len, heads, kv_heads, captured[:-1])
        limits = self.plan.limits_of(DEVICE, Lengths(q_len, kv_len), self._ends(leaves))
        source = self.plan.source_of(walk[:-1], limits)
        block, _, _ = cute.arch.block_idx()
        item = order.item(block)
        row = source.row(item.batch, item.head, item.q_tile)
        line = (item.batch * sections.heads.size + item.head) * sections.tiles + item.q_tile
        count = row.partial_count + row.full_count
        if cute.arch.lane_idx() == 0:
            for axis in cutlass.range_constexpr(3):
                (items + block * 3 + axis).store(item[axis])
            for i in cutlass.range(row.partial_count, unroll=1):
                self._count(visited + line * kv_tiles + row.partial(i), PARTIAL)
            for i in cutlass.range(row.full_count, unroll=1):
                self._count(visited + line * kv_tiles + row.full(i), FULL)
            if count > 0:  # the first visit once more, as ten
                self._count(visited + line * kv_tiles + row.first, 10)

    def _ends(self, leaves: Leaves) -> EmittedEnds | None:
        if self.plan.interval is None or self.captures is None:
            return None
        return EmittedEnds(self.plan.interval, self.captures, leaves)

    def _count(self, place: cute.Pointer, by: int) -> None:
        place.store(place.load() + by)


class Walker:
    """A kernel in which a producer warp and consumer warps walk through the items of a block.

    Each role writes down how often it met each item.
    """

    CONSUMERS = 2

    def __init__(self, kind: str) -> None:
        self.kind = kind

    @cute.jit
    def __call__(
        self, items: Int32, blocks: Int32, counter: cute.Pointer, met: cute.Pointer
    ) -> None:
        """Launch; `met` is int32 ``(1 + CONSUMERS, items)``."""
        self.kernel(items, counter, met).launch(
            grid=[blocks, 1, 1], block=[WARP * (1 + self.CONSUMERS), 1, 1], smem=NUMBERS_BYTES
        )

    @cute.kernel
    def kernel(self, items: Int32, counter: cute.Pointer, met: cute.Pointer) -> None:
        """Walk."""
        base = cute.arch.get_dyn_smem(cutlass.Int8, alignment=8)
        slots = cute.recast_ptr(base + ring_bytes(NUMBER_STAGES), dtype=Int32)
        numbers = Numbers(cute.recast_ptr(base, dtype=Int64), slots, self.CONSUMERS)
        warp = cute.arch.make_warp_uniform(cute.arch.thread_idx()[0] // WARP)
        if cutlass.const_expr(self.kind == "fetched"):
            if warp == 0:
                with cute.arch.elect_one():
                    numbers.initialise()
                    cute.arch.mbarrier_init_fence()
            cute.arch.sync_threads()
        if warp == 0:
            walk = self._walk(items, FetchedByProducer(items, counter, numbers))
            self._walk_through(walk, met)
        else:
            walk = self._walk(items, FetchedByConsumer(items, numbers))
            self._walk_through(walk, met + warp * items)

    def _walk(self, items: Int32, fetched: Any) -> Any:
        return {"one": OnePerBlock(items), "fetched": fetched}[self.kind]

    @cute.jit
    def _walk_through(self, walk: Any, met: cute.Pointer) -> None:
        cursor = walk.first()
        while walk.has(cursor):
            cute.arch.atomic_add((met + cursor.number).llvm_ptr, Int32(1))
            cursor = walk.next(cursor)
