"""The block of the main backward kernel: set-up, and which warps do what.

Warpgroup 0 holds the producer warp, the storing warp, and those that empty outboxes; the others
consume.  Registers move from the first to the others (``setmaxnreg``), which hold the accumulators.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, Final

import cutlass
from cutlass import Float32, Int32, Int64, cute

from flexfa4.kernels.backward.pairs import Pairs
from flexfa4.kernels.backward.parameters import Parameters, anew
from flexfa4.kernels.backward.scores import KeyScores
from flexfa4.kernels.backward.store import Storer
from flexfa4.kernels.forward.set_up import DTYPES, carriers_of, numbers_at, walk_of
from flexfa4.kernels.forward.tiles import TileShape
from flexfa4.kernels.sm90.backward.consume import Consumer, Operands, make_operands
from flexfa4.kernels.sm90.backward.epilogue import Epilogue
from flexfa4.kernels.sm90.backward.finish import FinishingOutbox
from flexfa4.kernels.sm90.backward.lagged import LaggedConsumer
from flexfa4.kernels.sm90.backward.load import Places, Producer, Rings
from flexfa4.kernels.sm90.backward.ordered import OrderedOutbox
from flexfa4.kernels.sm90.backward.outbox import Outbox
from flexfa4.kernels.sm90.backward.plan import WARPGROUP_ROWS, BackwardPlan
from flexfa4.kernels.sm90.backward.storage import OUTBOX_BARRIERS, OUTBOXES
from flexfa4.primitives import dispatch, tma, wgmma
from flexfa4.primitives.pipeline import Position, Ring

_WARPS: Final = wgmma.THREADS // wgmma.WARP  # of a warpgroup
_CONSUMERS: Final = 1  # named barriers; 0 is that of the block
_SENDERS: Final = _WARPS - OUTBOXES  # the first of the warps that empty outboxes

REGISTERS: Final = {1: (56, 256), 2: (24, 240), 3: (32, 160)}
"""Registers of a thread, by consumer warpgroups: of the first warpgroup's, and of each consumer's.
Together they are no more than a block gets: as many for each thread as ptxas may use."""


class BackwardKernel:
    """The kernel of a plan, to be traced by CuTe-DSL; its parameters are ``plan.signature``."""

    def __init__(self, plan: BackwardPlan) -> None:
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
        parameters = Parameters(self.plan, carriers, values)
        base = cute.arch.get_dyn_smem(cutlass.Int8, alignment=1024)
        rings = self._rings(base)
        numbers = numbers_at(
            base, self.storage.numbers_at, self.plan.tiling.warpgroups * _WARPS + 1
        )
        thread, _, _ = cute.arch.thread_idx()
        warp = cute.arch.make_warp_uniform(thread // wgmma.WARP)
        if warp == 0:
            with cute.arch.elect_one():
                self._initialise(base, rings, numbers, parameters)
                for carrier in carriers:
                    tma.prefetch(carrier)
        cute.arch.sync_threads()
        produce, consume = REGISTERS[self.plan.tiling.warpgroups]
        warpgroup = warp // _WARPS
        if warpgroup == 0:
            cute.arch.setmaxregister_decrease(produce)
            if warp == 0:
                producer = Producer(self.storage, base, self._dtype, parameters, rings)
                self._produce(producer, numbers)
            elif warp == 1:
                typed = cute.recast_ptr(base, dtype=self._dtype)
                both, written = (rings.k, rings.v), self._written(base)
                storer = Storer(self.storage, typed, parameters, both, written)
                self._store(storer, numbers)
            elif cutlass.const_expr(self._has_outboxes):
                sender = warp - _SENDERS
                outbox = self._outbox(base, sender, parameters)
                if sender < self.plan.tiling.warpgroups:
                    part = sender * outbox.order.part
                    outbox.forward(lambda number: parameters.dq_at(number) + part)
        else:
            cute.arch.setmaxregister_increase(consume)
            self._consume(base, parameters, rings, numbers, warpgroup - 1, thread % wgmma.THREADS)

    @property
    def _dtype(self) -> Any:
        return DTYPES[self.plan.element]

    def _rings(self, base: cute.Pointer) -> Rings:
        storage, consumers = self.storage, self.plan.tiling.warpgroups * _WARPS

        def ring(at: int, tile: TileShape, releases: int, more: int = 0) -> Ring:
            barriers = cute.recast_ptr(base + at, dtype=Int64)
            return Ring(barriers, tile.stages, tile.bytes + more, releases)

        return Rings(
            ring(storage.q_barriers, storage.q, consumers, storage.statistics_bytes),
            ring(storage.do_barriers, storage.do, consumers),
            ring(storage.k_barriers, storage.k, 1),
            ring(storage.v_barriers, storage.v, 1),
        )

    def _written(self, base: cute.Pointer) -> cute.Pointer:
        """Return the mbarriers on which consumers tell that dK and dV are in shared memory."""
        return cute.recast_ptr(base + self.storage.written_at, dtype=Int64)

    def _initialise(
        self,
        base: cute.Pointer,
        rings: Rings,
        numbers: dispatch.Numbers,
        parameters: Parameters,
    ) -> None:
        tiling = self.plan.tiling
        for ring in (rings.q, rings.do, rings.k, rings.v):
            ring.initialise()
        for stage in range(tiling.kv_stages):
            cute.arch.mbarrier_init(self._written(base) + stage, tiling.warpgroups * _WARPS)
        for stage in range(tiling.ds_stages if tiling.lagged else 0):
            cute.arch.mbarrier_init(self._ds_written(base) + stage, tiling.warpgroups * _WARPS)
        for warpgroup in range(tiling.warpgroups if self._has_outboxes else 0):
            self._outbox(base, warpgroup, parameters).initialise()
        if self.plan.fetched:
            numbers.initialise()
        cute.arch.mbarrier_init_fence()

    @property
    def _has_outboxes(self) -> bool:
        return self.plan.tiling.staged

    def _outbox(self, base: cute.Pointer, warpgroup: Int32 | int, parameters: Parameters) -> Outbox:
        storage, order = self.storage, self.plan.dq_order
        barriers = cute.recast_ptr(base + storage.outboxes_at, dtype=Int64)
        numbers = barriers + OUTBOX_BARRIERS * self.plan.tiling.warpgroups
        receivers = cute.recast_ptr(numbers, dtype=Int32) + 2 * warpgroup
        own = barriers + OUTBOX_BARRIERS * warpgroup
        offset = cute.assume(warpgroup * order.part, divby=order.part)
        part = cute.recast_ptr(base + storage.dq_at, dtype=Float32) + offset
        made = Outbox(order, own, receivers, part, _WARPS)
        given = {field.name: getattr(made, field.name) for field in fields(made)}
        if self.plan.ordered:
            return OrderedOutbox(**given, parameters=parameters, number=warpgroup)
        if not self.plan.tiling.finishes:
            return made
        last = own + (OUTBOX_BARRIERS - 1)
        return FinishingOutbox(
            **given,
            parameters=parameters,
            number=warpgroup,
            brought=last,
            distance=(storage.others_at - storage.dq_at) // 4,
        )

    def _ds_written(self, base: cute.Pointer) -> cute.Pointer:
        """Return the mbarriers on which consumers tell that dS is in shared memory."""
        return cute.recast_ptr(base + self.storage.ds_written_at, dtype=Int64)

    def _consumer(self, base: cute.Pointer, operands: Operands, **role: Any) -> Consumer:
        """Return the role of a consumer warpgroup, as the tiling has it."""
        outbox = None
        if self._has_outboxes:
            outbox = self._outbox(base, role["warpgroup"], role["parameters"])
        made = Consumer(self.storage, operands=operands, outbox=outbox, **role)
        if not self.plan.tiling.lagged:
            return made
        given = {field.name: getattr(made, field.name) for field in fields(made)}
        return LaggedConsumer(**given, ds_written=self._ds_written(base))

    @cute.jit
    def _produce(self, producer: Producer, numbers: dispatch.Numbers) -> None:
        parameters = producer.parameters
        walk = walk_of(parameters, numbers, produces=True)
        places, kv_at = Places.start(self.plan.tiling), Position.start(self.plan.tiling.kv_stages)
        cursor = walk.first()
        while walk.has(cursor):
            item = parameters.order.item(cursor.number)
            places, kv_at = producer.load_item(item, places, kv_at)
            cursor = walk.next(cursor)

    @cute.jit
    def _store(self, storer: Storer, numbers: dispatch.Numbers) -> None:
        walk = walk_of(storer.parameters, numbers, produces=False)
        kv_at, cursor = Position.start(self.plan.tiling.kv_stages), walk.first()
        while walk.has(cursor):
            item = storer.parameters.order.item(cursor.number)
            storer.store(item, item.q_tile, kv_at)
            kv_at, cursor = kv_at.next(), walk.next(cursor)

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
        tiling = self.plan.tiling
        typed = cute.recast_ptr(base, dtype=self._dtype)
        operands = make_operands(self.storage, parameters, typed, warpgroup, thread)
        of_keys = warpgroup * WARPGROUP_ROWS if tiling.by_keys else 0
        of_queries = 0 if tiling.by_keys else warpgroup * tiling.score_columns
        column = cute.assume(of_queries + 2 * (thread % 4), divby=2)
        statistics = cute.recast_ptr(base + self.storage.statistics_at, dtype=Float32) + column
        consumer = self._consumer(
            base,
            operands,
            parameters=parameters,
            rings=rings,
            statistics=statistics,
            barrier=_CONSUMERS,
            warpgroup=warpgroup,
            thread=thread,
        )
        consumer.begin(base)
        epilogue = Epilogue(consumer, typed, self._written(base))
        walk = walk_of(parameters, numbers, produces=False)
        at, kv_at = Places.start(tiling), Position.start(tiling.kv_stages)
        cursor = walk.first()
        while walk.has(cursor):
            operands.sum_v.fill(0.0)
            operands.sum_k.fill(0.0)
            rings.k.wait(kv_at)
            rings.v.wait(kv_at)
            here = replace(consumer, kv_stage=kv_at.stage if tiling.kv_stages > 1 else 0)
            count = Pairs(parameters, parameters.order.item(cursor.number)).count
            for number in cutlass.range(count, unroll=1):
                item = parameters.order.item(anew(cursor.number))
                batch, head = Pairs(parameters, item).of(number)
                tiles = parameters.source.row(batch, head, item.q_tile)
                key = item.q_tile * tiling.keys + of_keys
                part = 0 if tiling.by_keys else warpgroup
                scores = KeyScores(parameters, batch, head, key, of_queries, thread, part)
                at = here.take_in(scores, tiles, (batch, head, item.q_tile), at)
                scores.finish()
            replace(epilogue, consumer=here).write(kv_at)
            cursor = walk.next(cursor)
            kv_at = kv_at.next()
        consumer.finish(at)
