"""The block of the forward kernel: set-up, and which warps do what.

Warpgroup 0 holds the producer warp, the others consume.  Registers move from the first to the
others (``setmaxnreg``), which hold the accumulators.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import cutlass
from cutlass import Int32, Int64, cute

from flexfa4.frontend.ir import topological
from flexfa4.kernels.emit.places import Columns
from flexfa4.kernels.forward.parameters import Parameters
from flexfa4.kernels.forward.set_up import DTYPES, carriers_of, numbers_at, walk_of
from flexfa4.kernels.forward.tiles import TileShape
from flexfa4.kernels.sm90.forward.consume import Consumer, make_operands, normalise
from flexfa4.kernels.sm90.forward.epilogue import Epilogue
from flexfa4.kernels.sm90.forward.load import Producer, Rings
from flexfa4.kernels.sm90.forward.parts import columns_of, parts_of
from flexfa4.kernels.sm90.forward.plan import ForwardPlan
from flexfa4.kernels.sm90.forward.scores import ROWS, ItemScores
from flexfa4.primitives import dispatch, tma, wgmma
from flexfa4.primitives.device_arithmetic import DEVICE
from flexfa4.primitives.pipeline import Position, Ring
from flexfa4.primitives.scheduler import Item
from flexfa4.primitives.tile_walk import AtLeastOne, Visits
from flexfa4.primitives.turns import Turns

_WARPS: Final = wgmma.THREADS // wgmma.WARP  # of a warpgroup
_TURNS: Final = 1  # named barriers; 0 is that of the block
_EPILOGUE: Final = 4

REGISTERS: Final = {1: (56, 256), 2: (24, 240), 3: (32, 160)}
"""Registers of a thread, by consumer warpgroups: of the producer's, and of each consumer's."""

_MORE_TO_PRODUCE: Final = {**REGISTERS, 2: (40, 232)}
"""Likewise where the ends of a query's keys take more than sums: 24 do not suffice for these."""

_OF_SUMS: Final = {"const", "input", "scalar", "symbol", "add", "sub", "max", "min"}


class ForwardKernel:
    """The kernel of a plan, to be traced by CuTe-DSL; its parameters are ``plan.signature``."""

    def __init__(self, plan: ForwardPlan) -> None:
        self.plan = plan
        self.storage = plan.storage

    @cute.jit
    def __call__(self, pointers: tuple[Any, ...], values: tuple[Any, ...]) -> None:
        """Launch; takes a pointer for each tensor map, and the other parameters."""
        carriers = carriers_of(pointers, self.plan.maps)
        self.kernel(carriers, values).launch(
            grid=(1, 1, 1),
            block=((self.plan.tiling.warpgroups + 1) * wgmma.THREADS, 1, 1),
            smem=self.storage.bytes,
            min_blocks_per_mp=1,
        )

    @cute.kernel
    def kernel(self, carriers: tuple[Any, ...], values: tuple[Any, ...]) -> None:
        """The device code."""
        parameters = Parameters(self.plan, carriers, values, self._columns)
        base = cute.arch.get_dyn_smem(cutlass.Int8, alignment=1024)
        rings = self._rings(base)
        numbers = numbers_at(base, self.storage.numbers_at, self.plan.tiling.warpgroups * _WARPS)
        thread, _, _ = cute.arch.thread_idx()
        warp = cute.arch.make_warp_uniform(thread // wgmma.WARP)
        if warp == 0:
            with cute.arch.elect_one():
                self._initialise(rings, numbers)
                for carrier in carriers:
                    tma.prefetch(carrier)
        cute.arch.sync_threads()
        typed = cute.recast_ptr(base, dtype=self._dtype)
        produce, consume = registers_of(self.plan)
        warpgroup = warp // _WARPS
        if warpgroup == 0:
            cute.arch.setmaxregister_decrease(produce)
            if warp == 0:
                self._produce(Producer(self.storage, typed, parameters, rings), numbers)
        else:
            cute.arch.setmaxregister_increase(consume)
            self._consume(typed, parameters, rings, numbers, warpgroup - 1, thread % wgmma.THREADS)

    @property
    def _columns(self) -> Columns:
        return columns_of(self.plan, parts_of(self.plan).ahead)

    @property
    def _dtype(self) -> Any:
        return DTYPES[self.plan.element]

    def _rings(self, base: cute.Pointer) -> Rings:
        storage, consumers = self.storage, self.plan.tiling.warpgroups * _WARPS

        def ring(at: int, tile: TileShape) -> Ring:
            barriers = cute.recast_ptr(base + at, dtype=Int64)
            return Ring(barriers, tile.stages, tile.bytes, consumers)

        return Rings(
            ring(storage.q_barriers, storage.q),
            ring(storage.k_barriers, storage.k),
            ring(storage.v_barriers, storage.v),
        )

    def _initialise(self, rings: Rings, numbers: dispatch.Numbers) -> None:
        rings.q.initialise()
        rings.k.initialise()
        rings.v.initialise()
        if self.plan.fetched:
            numbers.initialise()
        cute.arch.mbarrier_init_fence()

    @cute.jit
    def _produce(self, producer: Producer, numbers: dispatch.Numbers) -> None:
        parameters = producer.parameters
        walk = walk_of(parameters, numbers, produces=True)
        q_at, kv_at = Position.start(self.storage.q.stages), Position.start(self.storage.k.stages)
        cursor = walk.first()
        while walk.has(cursor):
            here, item = parameters.at(cursor.number)
            tiles = self._tiles(here, item)
            q_at, kv_at = replace(producer, parameters=here).load_tile(item, tiles, q_at, kv_at)
            cursor = walk.next(cursor)

    @cute.jit
    def _consume(
        self,
        base: cute.Pointer,
        parameters: Parameters,
        rings: Rings,
        numbers: dispatch.Numbers,
        warpgroup: Int32,
        thread: Int32,
    ) -> None:
        operands = make_operands(self.storage, base, warpgroup, thread)
        parties = self.plan.tiling.warpgroups
        turns = Turns(_TURNS, parties)
        if warpgroup == parties - 1:
            turns.begin()
        early = self.plan.tiling.early
        consumer = Consumer(
            self.storage, parameters, rings, operands, turns, warpgroup, thread, early
        )
        epilogue = Epilogue(self.storage, base, parameters, _EPILOGUE, warpgroup, thread)
        walk = walk_of(parameters, numbers, produces=False)
        q_at, kv_at = Position.start(self.storage.q.stages), Position.start(self.storage.k.stages)
        consumer.begin(q_at, kv_at)
        cursor = walk.first()
        while walk.has(cursor):
            here, item = parameters.at(cursor.number)
            tiles = self._tiles(here, item)
            scores = ItemScores(here, item, warpgroup, thread)
            last, softmax = consumer.attend(scores, tiles, q_at, kv_at)
            cursor = walk.next(cursor)
            goes_on = walk.has(cursor)
            if cutlass.const_expr(self.plan.varlen):
                parameters.prefetch(cursor.number)
            behind = q_at.next(), last.next()
            consumer.change_over((q_at, last), behind, goes_on)
            ends = scores.ends(self._sinks(parameters, scores))
            inverse, lse = softmax.finish(ends, self.plan.tiling.emulated)
            normalise(operands.out_of_rows, inverse)
            own = replace(epilogue, parameters=here)
            own.write(item, operands.values, operands.out, q_at)
            if cutlass.const_expr(self.plan.lse):
                own.write_lse(scores, lse)
            if cutlass.const_expr(self.storage.out_takes_place_of_q):
                epilogue.release_q(rings.q, q_at)
            consumer.settle((q_at, last), behind, goes_on)
            q_at, kv_at = behind
        epilogue.finish()

    def _tiles(self, parameters: Parameters, item: Item) -> Visits:
        """Return the tiles of keys that an item visits: one at least, if need be a hidden one."""
        visits = parameters.source.row(item.batch, item.head, item.q_tile)
        return AtLeastOne(DEVICE, visits)

    def _sinks(self, parameters: Parameters, scores: ItemScores) -> list[Any]:
        if not self.plan.sink:
            return [None] * ROWS
        return [parameters.sink_of(scores.heads[row]) for row in range(ROWS)]


def registers_of(plan: ForwardPlan) -> tuple[int, int]:
    """Return the registers of a thread of the producer's warpgroup, and of a consumer."""
    interval, of_sums = plan.walk.interval, True
    if interval is not None:
        of_sums = all(n.op in _OF_SUMS for n in topological(interval.begin, interval.end))
    return (REGISTERS if of_sums else _MORE_TO_PRODUCE)[plan.tiling.warpgroups]
