"""The block of the main backward kernel: set-up, which warps do what, and where they meet.

Warps 0 to 3 and 4 to 7 compute, with half of a tile's queries each, 8 to 11 add up dQ, 12 issues
products, 13 loads, 14 stores; 15 has nothing to do.  Registers move from the latter to those that
compute (``setmaxnreg``).

Beside the rings of tiles (`primitives.pipeline`; the tensor core gives all of them back, and who
stores dK and dV their places once more), of statistics and of item numbers, there are these
mbarriers (`barriers`)::

    barrier        arrives when                                   who waits  how often
    scores         the tensor core has made S                     compute    each tile
    read           8 warps have read S, whose place is needed     products   each tile
    changes        the tensor core has made dP                    compute    each tile
    probabilities  8 warps have stored P in tensor memory         products   each tile
    gradients      8 warps have stored dS in tensor memory        products   each tile
    shared         8 warps have stored dS in shared memory        products   each tile
    dq             the tensor core has made dQ                    reduce,    each tile
                                                                  compute
    taken          4 warps have read dQ                           products   each tile
    sums           the tensor core has done all of the item       compute    each item
    emptied        8 warps have read dK and dV                    products   each item

Where two blocks compute together (``cta_group::2``), the first one's product warp issues for both:
what it waits for are barriers of the first block, on which warps and copies of both arrive, and the
tensor core arrives in both.  Each block has its own keys, and gradients of scores go to that block
which has their queries of dQ: half of them to the other one.

What needs no barrier of its own:

- scores are overwritten behind the product that reads the probabilities in their place;
- dS in shared memory is overwritten behind the next dP, where this is made behind dQ of the tile
  before; otherwise who computes waits for dQ;
- dP is overwritten behind the product for dK, which reads the gradients in its place, and, where dQ
  has been there, behind `taken`.
"""

from __future__ import annotations

from typing import Any, Final

import cutlass
from cutlass import Float32, Int32, Int64, cute

from flexfa4.kernels.backward.pairs import Pairs
from flexfa4.kernels.backward.parameters import Parameters, anew
from flexfa4.kernels.backward.scores import KeyScores
from flexfa4.kernels.backward.store import Storer
from flexfa4.kernels.forward.set_up import DTYPES, carriers_of, numbers_at, walk_of
from flexfa4.kernels.forward.tiles import TileShape
from flexfa4.kernels.sm100.backward.barriers import Barriers
from flexfa4.kernels.sm100.backward.compute import Compute
from flexfa4.kernels.sm100.backward.load import Loader, Places, Rings
from flexfa4.kernels.sm100.backward.mma import Products
from flexfa4.kernels.sm100.backward.plan import BackwardPlan
from flexfa4.kernels.sm100.backward.reduce import Reduce
from flexfa4.kernels.sm100.backward.storage import KEYS
from flexfa4.kernels.sm100.backward.tmem import GROUPS
from flexfa4.primitives import dispatch, tcgen05, tma, tmem
from flexfa4.primitives.clusters import own_rank
from flexfa4.primitives.pipeline import Position, Ring

WARPS: Final = 16
_WARP: Final = 32
_WARPS_OF_GROUP: Final = 4
_THREADS_OF_GROUP: Final = _WARP * _WARPS_OF_GROUP
_REDUCE, _PRODUCTS, _LOAD, _STORE = 2, 12, 13, 14  # a warpgroup, and warps
_CONSUMERS: Final = 14  # warps that are passed the numbers of items: all that work, but one
_REGISTERS: Final = (1 << 16) // (WARPS * _WARP)  # of a thread, before they move
_OF_KEYS: Final = 2  # release K and V: products, and who stores dK and dV
_REDUCERS: Final = 1  # a named barrier; 0 is that of the block


class BackwardKernel:
    """The kernel of a plan, to be traced by CuTe-DSL; its parameters are ``plan.signature``."""

    def __init__(self, plan: BackwardPlan) -> None:
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
        parameters = Parameters(self.plan, carriers, values)
        base = cute.arch.get_dyn_smem(cutlass.Int8, alignment=1024)
        rings = self._rings(base)
        numbers = numbers_at(base, self.storage.numbers_at, _CONSUMERS)
        barriers = Barriers(self.storage, base, self.blocks)
        slot = cute.recast_ptr(base + self.storage.address_at, dtype=Int32)
        thread, _, _ = cute.arch.thread_idx()
        warp = cute.arch.make_warp_uniform(thread // _WARP)
        if warp == _LOAD:
            with cute.arch.elect_one():
                self._initialise(rings, numbers, barriers, self._written(base))
                for carrier in carriers:
                    tma.prefetch(carrier)
        if warp == _PRODUCTS:
            tmem.allocate(slot, self.memory.allocated, self.blocks)
        self._sync()
        tmem.behind_barrier()
        registers = self.plan.tiling.registers
        warpgroup = warp // _WARPS_OF_GROUP
        if warpgroup > _REDUCE:
            _take_registers(registers.others)
            if warp == _LOAD:
                loader = Loader(self.storage, base, self._dtype, parameters, rings, self.blocks)
                self._load(loader, numbers)
            if (warp == _PRODUCTS) & (own_rank(self.blocks) == 0):
                shared = tcgen05.address_of(base)
                products = Products(self.plan, rings, barriers, shared, slot.load())
                self._multiply(products, parameters, numbers)
            if warp == _STORE:
                typed, written = cute.recast_ptr(base, dtype=self._dtype), self._written(base)
                storer = Storer(self.storage, typed, parameters, (rings.k, rings.v), written)
                self._store(storer, numbers)
        if warpgroup == _REDUCE:
            _take_registers(registers.reduce)
            self._reduce(base, barriers, parameters, numbers, slot.load(), thread)
        if warpgroup < _REDUCE:
            _take_registers(registers.compute)
            self._compute(base, (rings, barriers), parameters, numbers, slot.load(), thread)
        tmem.before_barrier()
        self._sync()
        if warp == _PRODUCTS:
            tmem.behind_barrier()
            tmem.release(slot.load(), self.memory.allocated, self.blocks)

    def _sync(self) -> None:
        """Wait for all threads of the blocks that compute together."""
        if self.blocks == 1:
            cute.arch.sync_threads()
        else:
            cute.arch.cluster_arrive()
            cute.arch.cluster_wait()

    # ---- set-up ----------------------------------------------------------------------------------

    @property
    def _dtype(self) -> Any:
        return DTYPES[self.plan.element]

    def _rings(self, base: cute.Pointer) -> Rings:
        storage = self.storage

        def barriers(at: int) -> cute.Pointer:
            return cute.recast_ptr(base + at, dtype=Int64)

        def ring(at: int, tile: TileShape, releases: int = 1, more: int = 0) -> Ring:
            nbytes = (tile.bytes + more) * self.blocks
            return Ring(barriers(at), tile.stages, nbytes, releases)

        k_of_dq = storage.k_of_dq.bytes if self.blocks > 1 else 0
        return Rings(
            ring(storage.q_barriers, storage.q),
            ring(storage.do_barriers, storage.do),
            ring(storage.k_barriers, storage.k, _OF_KEYS, k_of_dq),
            ring(storage.v_barriers, storage.v, _OF_KEYS),
            ring(storage.q_of_dk_barriers, storage.q_of_dk),
            ring(storage.do_of_dv_barriers, storage.do_of_dv),
            Ring(
                barriers(storage.statistics_barriers),
                storage.statistics_stages,
                storage.statistics_bytes,
                GROUPS * _WARPS_OF_GROUP,
            ),
        )

    def _written(self, base: cute.Pointer) -> cute.Pointer:
        """Return the mbarriers that tell that dK and dV are in shared memory."""
        return cute.recast_ptr(base + self.storage.written_at, dtype=Int64)

    def _initialise(
        self, rings: Rings, numbers: dispatch.Numbers, barriers: Barriers, written: cute.Pointer
    ) -> None:
        for ring in (rings.q, rings.do, rings.k, rings.v, rings.statistics):
            ring.initialise()
        if self.blocks > 1 and not self.storage.one_place:
            rings.q_of_dk.initialise()
            rings.do_of_dv.initialise()
        barriers.initialise()
        for stage in range(self.storage.k.stages):
            cute.arch.mbarrier_init(written + stage, GROUPS * _WARPS_OF_GROUP)
        if self.plan.fetched:
            numbers.initialise()
        cute.arch.mbarrier_init_fence()

    def _walk(
        self, parameters: Parameters, numbers: dispatch.Numbers, produces: bool
    ) -> dispatch.Walk:
        if self.blocks > 1:
            return dispatch.Strided(parameters.items, self.blocks)
        return walk_of(parameters, numbers, produces=produces)

    # ---- roles -----------------------------------------------------------------------------------

    @cute.jit
    def _load(self, loader: Loader, numbers: dispatch.Numbers) -> None:
        parameters = loader.parameters
        walk = self._walk(parameters, numbers, True)
        places, kv_at = Places.start(self.storage), Position.start(self.storage.k.stages)
        cursor = walk.first()
        while walk.has(cursor):
            item = parameters.order.item(cursor.number)
            places, kv_at = loader.load_item(item, places, kv_at)
            cursor = walk.next(cursor)

    @cute.jit
    def _store(self, storer: Storer, numbers: dispatch.Numbers) -> None:
        walk = self._walk(storer.parameters, numbers, False)
        kv_at, cursor = Position.start(self.storage.k.stages), walk.first()
        while walk.has(cursor):
            item = storer.parameters.order.item(cursor.number)
            storer.store(item, item.q_tile * self.blocks + own_rank(self.blocks), kv_at)
            kv_at, cursor = kv_at.next(), walk.next(cursor)

    @cute.jit
    def _multiply(
        self, products: Products, parameters: Parameters, numbers: dispatch.Numbers
    ) -> None:
        walk = self._walk(parameters, numbers, False)
        at, kv_at = Places.start(self.storage), Position.start(self.storage.k.stages)
        of_items, phase = Int32(0), Int32(0)
        cursor = walk.first()
        while walk.has(cursor):
            item = parameters.order.item(cursor.number)
            pairs = Pairs(parameters, item)
            count = Int32(0)
            for number in cutlass.range(pairs.count, unroll=1):
                batch, head = pairs.of(number)
                tiles = parameters.source.row(batch, head, item.q_tile)
                count += tiles.partial_count + tiles.full_count
            at, phase = products.issue_item(count, kv_at, of_items, at, phase)
            of_items = of_items ^ 1
            kv_at, cursor = kv_at.next(), walk.next(cursor)

    @cute.jit
    def _reduce(
        self,
        base: cute.Pointer,
        barriers: Barriers,
        parameters: Parameters,
        numbers: dispatch.Numbers,
        address: Int32,
        thread: Int32,
    ) -> None:
        own = thread % _THREADS_OF_GROUP
        warp = cute.arch.make_warp_uniform(own // _WARP)
        staging = cute.recast_ptr(base + self.storage.dq_at, dtype=Float32)
        lanes = tmem.lanes_of(address, warp)
        role = Reduce(self.plan, parameters, barriers, staging, lanes, warp, own, _REDUCERS)
        walk = self._walk(parameters, numbers, False)
        phase, cursor = Int32(0), walk.first()
        while walk.has(cursor):
            item = parameters.order.item(cursor.number)
            pairs = Pairs(parameters, item)
            for number in cutlass.range(pairs.count, unroll=1):
                batch, head = pairs.of(number)
                tiles = parameters.source.row(batch, head, item.q_tile)
                phase = role.take_in(tiles, (batch, head, item.q_tile), phase)
            cursor = walk.next(cursor)
        role.finish()

    @cute.jit
    def _compute(
        self,
        base: cute.Pointer,
        meeting: tuple[Rings, Barriers],
        parameters: Parameters,
        numbers: dispatch.Numbers,
        address: Int32,
        thread: Int32,
    ) -> None:
        rings, barriers = meeting
        own = thread % _THREADS_OF_GROUP
        group = cute.arch.make_warp_uniform(thread // _THREADS_OF_GROUP)
        columns = self.plan.fragment.columns
        first = cute.assume(group * columns, divby=columns)
        role = Compute(
            self.plan,
            parameters,
            rings,
            barriers,
            self._dtype,
            cute.recast_ptr(base + self.storage.statistics_at, dtype=Float32) + first,
            tcgen05.address_of(base),
            tmem.lanes_of(address, cute.arch.make_warp_uniform(own // _WARP)),
            group,
            own,
            self._written(base),
        )
        walk = self._walk(parameters, numbers, False)
        at, kv_at = Places.start(self.storage), Position.start(self.storage.k.stages)
        phase, of_items = Int32(0), Int32(0)
        cursor = walk.first()
        while walk.has(cursor):
            pairs = Pairs(parameters, parameters.order.item(cursor.number)).count
            count = Int32(0)
            for number in cutlass.range(pairs, unroll=1):
                item = parameters.order.item(anew(cursor.number))
                batch, head = Pairs(parameters, item).of(number)
                tiles = parameters.source.row(batch, head, item.q_tile)
                count += tiles.partial_count + tiles.full_count
                key = (item.q_tile * self.blocks + own_rank(self.blocks)) * KEYS
                scores = KeyScores(parameters, batch, head, key, first, own, group)
                at, phase = role.take_in(scores, tiles, at, phase)
                scores.finish()
            role.write(count > 0, kv_at, of_items)
            of_items = of_items ^ 1
            kv_at, cursor = kv_at.next(), walk.next(cursor)


def _take_registers(count: int) -> None:
    """Let the threads of a warpgroup have as many registers."""
    if count > _REGISTERS:
        cute.arch.setmaxregister_increase(count)
    elif count < _REGISTERS:
        cute.arch.setmaxregister_decrease(count)
