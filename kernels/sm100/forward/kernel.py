"""The block of the forward kernel: set-up, which warps do what, and where they meet.

Warps 0 to 3 and 4 to 7 are the softmax of one half each, 8 to 11 correct and store outputs, 12
issues products, 13 loads; 14 and 15 have nothing to do.  Registers move from the latter to the
softmax (``setmaxnreg``), which holds rows.

Beside the rings of Q and of K and V (`primitives.pipeline`; the tensor core gives stages back) and
the ring of item numbers, each half has these mbarriers (`barriers`)::

    barrier        arrives when                                      who waits      how often
    scores         the tensor core has made the scores               softmax        each tile
    factors        4 warps of softmax have written by what the       correction     each tile
                   outputs are to be multiplied
    probabilities  4 warps of softmax have stored three quarters     products       each tile
                   of them, and 4 of correction are done with the
                   output
    rest           4 warps of softmax have stored the others         products       each tile
    out            the tensor core has done all of the item          correction     each item that
                                                                                    has tiles
    inverse        4 warps of softmax have written what              correction     each item
                   normalises the rows
    taken          4 warps of correction have read that              softmax        each item

A tile counts for the halves that take part in it (`halves`).  Where two blocks compute together
(``cta_group::2``), the first one's product warp issues for both: what it waits for are barriers of
the first block, on which warps and copies of both arrive, and the tensor core arrives in both.

What needs no barrier of its own:

- a half's scores are overwritten by the products behind those that read its probabilities, and
  products are done in order;
- its factors are overwritten behind the next scores, which are made behind the probabilities of
  the tile before, for which correction arrives when it has read them;
- correction changes an output behind the factors of a tile, which come behind its scores, and these
  behind all earlier products;
- the first product of an item overwrites the output behind the probabilities of its first tile,
  for which correction arrives behind its epilogue of the item before.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import cutlass
from cutlass import Int32, Int64, cute

from flexfa4.kernels.emit.places import Columns
from flexfa4.kernels.forward.parameters import Parameters
from flexfa4.kernels.forward.set_up import DTYPES, carriers_of, numbers_at, walk_of
from flexfa4.kernels.sm100.forward.barriers import Barriers
from flexfa4.kernels.sm100.forward.correction import Correction
from flexfa4.kernels.sm100.forward.epilogue import Epilogue, Phases
from flexfa4.kernels.sm100.forward.halves import Halves
from flexfa4.kernels.sm100.forward.load import Loader, Rings
from flexfa4.kernels.sm100.forward.mma import Products, Progress
from flexfa4.kernels.sm100.forward.plan import ForwardPlan
from flexfa4.kernels.sm100.forward.scores import ItemScores
from flexfa4.kernels.sm100.forward.softmax import Softmax
from flexfa4.kernels.sm100.forward.storage import ROWS
from flexfa4.kernels.sm100.forward.tmem import HALVES
from flexfa4.primitives import dispatch, tcgen05, tma, tmem
from flexfa4.primitives.pipeline import Position, Ring
from flexfa4.primitives.turns import Turns

WARPS: Final = 16
_WARP: Final = 32
_WARPS_OF_GROUP: Final = 4
_CORRECTION, _PRODUCTS, _LOAD = 2, 12, 13  # a warpgroup, and warps
_CONSUMERS: Final = 13  # warps that are passed the numbers of items: all that work, but one
_AHEAD: Final = 32  # columns for which a mod's captures are read ahead of their use
_REGISTERS: Final = (1 << 16) // (WARPS * _WARP)  # of a thread, before they move
_EPILOGUE, _TURNS = 1, 2  # the first of their named barriers; 0 is that of the block


class ForwardKernel:
    """The kernel of a plan, to be traced by CuTe-DSL; its parameters are ``plan.signature``."""

    def __init__(self, plan: ForwardPlan) -> None:
        self.plan = plan
        self.storage = plan.storage
        self.memory = plan.tensor_memory
        self.blocks = plan.tiling.blocks

    @cute.jit
    def __call__(self, pointers: tuple[Any, ...], values: tuple[Any, ...]) -> None:
        """Launch; takes a pointer for each tensor map, and the other parameters."""
        carriers = carriers_of(pointers, self.plan.maps)
        self.kernel(carriers, values).launch(
            grid=(1, 1, 1),
            block=(WARPS * _WARP, 1, 1),
            cluster=(self.blocks, 1, 1),
            smem=self.storage.bytes,
            min_blocks_per_mp=1,
        )

    @cute.kernel
    def kernel(self, carriers: tuple[Any, ...], values: tuple[Any, ...]) -> None:
        """The device code."""
        parameters = Parameters(self.plan, carriers, values, self._columns, pairs=True)
        base = cute.arch.get_dyn_smem(cutlass.Int8, alignment=1024)
        rings = self._rings(base)
        numbers = numbers_at(base, self.storage.numbers_at, _CONSUMERS)
        barriers = Barriers(self.storage, base, self.blocks)
        slot = cute.recast_ptr(base + self.storage.address_at, dtype=Int32)
        thread, _, _ = cute.arch.thread_idx()
        rank = self._rank()
        warp = cute.arch.make_warp_uniform(thread // _WARP)
        if warp == _LOAD:
            with cute.arch.elect_one():
                self._initialise(rings, numbers, barriers)
                for carrier in carriers:
                    tma.prefetch(carrier)
        if warp == _PRODUCTS:
            tmem.allocate(slot, self.memory.allocated, self.blocks)
        self._sync()
        tmem.behind_barrier()
        address = slot.load()
        registers = self.plan.tiling.registers
        warpgroup = warp // _WARPS_OF_GROUP
        if warpgroup > _CORRECTION:
            _take_registers(registers.others)
            if warp == _LOAD:
                typed = cute.recast_ptr(base, dtype=self._dtype)
                self._load(Loader(self.storage, typed, parameters, rings, rank), numbers)
            if (warp == _PRODUCTS) & (rank == 0):
                shared = tcgen05.address_of(base)
                products = Products(self.plan, rings, barriers, shared, address)
                self._multiply(products, parameters, numbers)
        if warpgroup == _CORRECTION:
            _take_registers(registers.correction)
            self._correct(base, barriers, parameters, numbers, rings, address, warp, thread)
        if warpgroup < _CORRECTION:
            _take_registers(registers.softmax)
            self._soften(base, barriers, parameters, numbers, address, warp, thread)
        tmem.before_barrier()
        self._sync()
        if warp == _PRODUCTS:
            tmem.behind_barrier()
            tmem.release(address, self.memory.allocated, self.blocks)

    def _rank(self) -> Any:
        """Return the rank of the block among those that compute together."""
        return 0 if self.blocks == 1 else cute.arch.block_idx_in_cluster()

    def _sync(self) -> None:
        """Wait for all threads of the blocks that compute together."""
        if self.blocks == 1:
            cute.arch.sync_threads()
        else:
            cute.arch.cluster_arrive()
            cute.arch.cluster_wait()

    # ---- set-up ----------------------------------------------------------------------------------

    @property
    def _columns(self) -> Columns:
        keys = self.plan.tiling.keys
        return Columns(tuple(range(keys)), keys & -keys, ahead=_AHEAD)

    @property
    def _dtype(self) -> Any:
        return DTYPES[self.plan.element]

    def _rings(self, base: cute.Pointer) -> Rings:
        storage = self.storage

        def ring(at: int, stages: int, nbytes: int) -> Ring:
            barriers = cute.recast_ptr(base + at, dtype=Int64)
            return Ring(barriers, stages, nbytes * self.blocks, 1)

        return Rings(
            ring(storage.q_barriers, HALVES, storage.q.bytes),
            ring(storage.ring_barriers, storage.stages, storage.k.bytes),
            ring(storage.ring_barriers, storage.stages, storage.v.bytes),
        )

    def _initialise(self, rings: Rings, numbers: dispatch.Numbers, barriers: Barriers) -> None:
        rings.q.initialise()
        rings.k.initialise()
        barriers.initialise()
        if self.plan.fetched:
            numbers.initialise()
        cute.arch.mbarrier_init_fence()

    def _walk(
        self, parameters: Parameters, numbers: dispatch.Numbers, produces: bool
    ) -> dispatch.Walk:
        if self.blocks > 1:
            return dispatch.Strided(parameters.items, self.blocks)
        return walk_of(parameters, numbers, produces=produces)

    def _turns(self, warp: Int32) -> Turns:
        """Return the turns of the warps of both halves that share a scheduler."""
        parties = HALVES if self.plan.tiling.turns else 1
        return Turns(_TURNS + HALVES * warp, parties, _WARP)

    def _factors(self, base: cute.Pointer) -> cute.Pointer:
        return cute.recast_ptr(base + self.storage.factors_at, dtype=cutlass.Float32)

    # ---- roles -----------------------------------------------------------------------------------

    @cute.jit
    def _load(self, loader: Loader, numbers: dispatch.Numbers) -> None:
        parameters = loader.parameters
        walk = self._walk(parameters, numbers, True)
        q_at, at = Position.start(HALVES), Position.start(self.storage.stages)
        cursor = walk.first()
        while walk.has(cursor):
            here, item = parameters.at(cursor.number)
            tiles = Halves(here, item).tiles
            q_at, at = replace(loader, parameters=here).load_item(item, tiles, q_at, at)
            cursor = walk.next(cursor)

    @cute.jit
    def _multiply(
        self, products: Products, parameters: Parameters, numbers: dispatch.Numbers
    ) -> None:
        walk = self._walk(parameters, numbers, False)
        start = Position.start(self.storage.stages)
        progress = Progress(Position.start(HALVES), start, Int32(0))
        cursor = walk.first()
        while walk.has(cursor):
            here, item = parameters.at(cursor.number)
            progress = products.issue_item(Halves(here, item), progress)
            cursor = walk.next(cursor)

    @cute.jit
    def _soften(
        self,
        base: cute.Pointer,
        barriers: Barriers,
        parameters: Parameters,
        numbers: dispatch.Numbers,
        address: Int32,
        warp: Int32,
        thread: Int32,
    ) -> None:
        half, row = warp // _WARPS_OF_GROUP, thread % ROWS
        lanes = tmem.lanes_of(address, warp % _WARPS_OF_GROUP)
        turns = self._turns(warp % _WARPS_OF_GROUP)
        if half == HALVES - 1:
            turns.begin()
        factors = self._factors(base)
        role = Softmax(self.plan, barriers, self._dtype, factors, lanes, turns, half, row)
        walk = self._walk(parameters, numbers, False)
        of_tiles, of_items = Int32(0), Int32(0)
        cursor = walk.first()
        while walk.has(cursor):
            here, item = parameters.at(cursor.number)
            scores = ItemScores(here, item, (self._rank() * HALVES + half) * ROWS + row)
            of_tiles, softmax = role.attend(scores, Halves(here, item), of_tiles)
            sink = None
            if cutlass.const_expr(self.plan.sink):
                sink = here.sink_of(scores.head)
            lse = role.finish(softmax, scores.ends(sink), of_items)
            if cutlass.const_expr(self.plan.lse):
                role.write_lse(here, scores, lse)
            of_items = of_items ^ 1
            cursor = walk.next(cursor)

    @cute.jit
    def _correct(
        self,
        base: cute.Pointer,
        barriers: Barriers,
        parameters: Parameters,
        numbers: dispatch.Numbers,
        rings: Rings,
        address: Int32,
        warp: Int32,
        thread: Int32,
    ) -> None:
        own = warp % _WARPS_OF_GROUP
        lanes = tmem.lanes_of(address, own)
        role = Correction(self.plan, barriers, self._factors(base), lanes, thread % ROWS)
        typed = cute.recast_ptr(base, dtype=self._dtype)
        epilogue = Epilogue(
            self.storage, typed, role, parameters, rings.q, _EPILOGUE, self._rank(), own
        )
        walk = self._walk(parameters, numbers, False)
        of_tiles, of_items, of_outputs = Int32(0), Int32(0), Int32(0)
        q_at = Position.start(HALVES)
        cursor = walk.first()
        while walk.has(cursor):
            here, item = parameters.at(cursor.number)
            halves = Halves(here, item)
            of_tiles, seen = role.follow(halves, of_tiles)
            writer = replace(epilogue, parameters=here)
            phases = Phases(of_items, of_outputs, q_at)
            for half in cutlass.range_constexpr(HALVES):
                writer.write(half, item, (halves.exist, seen), phases)
            of_outputs = of_outputs ^ seen
            if cutlass.const_expr(self.storage.out_takes_place_of_q):
                epilogue.release_q(q_at)
                q_at = q_at.moved(HALVES)
            of_items = of_items ^ 1
            cursor = walk.next(cursor)
        epilogue.finish()


def _take_registers(count: int) -> None:
    """Let the threads of a warpgroup have as many registers."""
    if count > _REGISTERS:
        cute.arch.setmaxregister_increase(count)
    elif count < _REGISTERS:
        cute.arch.setmaxregister_decrease(count)
