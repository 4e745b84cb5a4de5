"""C = A B^T for sm_100a: every tile is made by one block, which makes several of them.

Tensor copies feed a ring of stages; a warp gives products to the tensor core, which adds them up in
one of two accumulators in tensor memory; four warps read the other one and store it.

A (M, K) and B (N, K) are float16, C (M, N) is float32; the sizes are multiples of the tile's.
"""

from __future__ import annotations

import cutlass
from cutlass import cute
from cutlass.cute.nvgpu import cpasync, tcgen05

from tests.compile.emulated_kernels.products import (
    Ring,
    Sums,
    Work,
    accumulators,
    allocated,
    begin,
    blackwell_loads,
    blackwell_product,
    load,
)

TILE = (128, 64, 64)  # rows and columns of C, columns of A
STAGES = 2  # of the ring
ACCUMULATORS = 2
COLUMNS = ACCUMULATORS * TILE[1]  # of tensor memory
NBYTES = 2 * (TILE[0] + TILE[1]) * TILE[2]  # of a stage

STORE_THREADS = 128  # warps 0 to 3
PRODUCT_WARP = 4
LOAD_WARP = 5
THREADS = 192


@cute.jit
def multiply(product: cute.TiledMma, ring: Ring, sums: Sums, work: Work) -> None:
    """Give the products to the tensor core."""
    a, b = product.make_fragment_A(ring.a), product.make_fragment_B(ring.b)
    count = cutlass.Int32(0)
    turn = cutlass.Int32(0)
    for _tile in cutlass.range(work.first, work.tiles, work.step, unroll=1):
        slot = turn % ACCUMULATORS
        cute.arch.mbarrier_wait(sums.taken + slot, (turn // ACCUMULATORS + 1) % 2)
        into = sums.place[(None, None, None, slot)]
        for k in cutlass.range(work.depth, unroll=1):
            stage = count % STAGES
            cute.arch.mbarrier_wait(ring.full + stage, count // STAGES % 2)
            product.set(tcgen05.Field.ACCUMULATE, k != 0)
            for part in cutlass.range_constexpr(cute.size(a, mode=[2])):
                at = (None, None, part, stage)
                cute.gemm(product, into, a[at], b[at], into)
                product.set(tcgen05.Field.ACCUMULATE, True)
            with cute.arch.elect_one():
                tcgen05.commit(ring.empty + stage)
            count += 1
        with cute.arch.elect_one():
            tcgen05.commit(sums.made + slot)
        turn += 1


@cute.jit
def store(tiles: cute.Tensor, sums: Sums, work: Work) -> None:
    """Store the sums."""
    thread, _, _ = cute.arch.thread_idx()
    plain = sums.place[((None, None), 0, 0, None)]
    read = cute.make_copy_atom(tcgen05.Ld32x32bOp(tcgen05.Repetition(TILE[1])), cutlass.Float32)
    take = tcgen05.make_tmem_copy(read, plain[(None, None, 0)])
    lane = take.get_slice(thread)
    source = lane.partition_S(plain)
    target = lane.partition_D(tiles[((None, None), 0, 0, None, None)])
    held = cute.make_rmem_tensor(target[(None, None, None, 0, 0)].shape, cutlass.Float32)
    turn = cutlass.Int32(0)
    for tile in cutlass.range(work.first, work.tiles, work.step, unroll=1):
        slot = turn % ACCUMULATORS
        cute.arch.mbarrier_wait(sums.made + slot, turn // ACCUMULATORS % 2)
        cute.copy(take, source[(None, None, None, slot)], held)
        cute.arch.fence_view_async_tmem_load()
        cute.arch.mbarrier_arrive(sums.taken + slot)
        row, column = tile // work.columns, tile % work.columns
        cute.autovec_copy(held, target[(None, None, None, row, column)])
        turn += 1


@cute.kernel
def kernel(
    product: cute.TiledMma,
    copies: tuple[cute.CopyAtom, cute.CopyAtom],
    factors: tuple[cute.Tensor, cute.Tensor],
    c: cute.Tensor,
    layouts: tuple[cute.ComposedLayout, cute.ComposedLayout],
) -> None:
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    blocks, _, _ = cute.arch.grid_dim()
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    columns = c.shape[1] // TILE[1]
    depth = factors[0].shape[1] // TILE[2]
    work = Work(block, c.shape[0] // TILE[0] * columns, blocks, columns, depth)

    shared = cutlass.memory.SmemAllocator()
    full = shared.allocate_array(cutlass.Int64, STAGES)
    empty = shared.allocate_array(cutlass.Int64, STAGES)
    made = shared.allocate_array(cutlass.Int64, ACCUMULATORS)
    taken = shared.allocate_array(cutlass.Int64, ACCUMULATORS)
    holder = shared.allocate_array(cutlass.Int32, 1)
    ring = Ring(*allocated(shared, layouts), full, empty)
    if thread == 0:
        begin(
            (STAGES, (full, 1), (empty, 1)),
            (ACCUMULATORS, (made, 1), (taken, STORE_THREADS)),
        )
    if warp == 0:
        cute.arch.alloc_tmem(COLUMNS, holder)
    cute.arch.sync_threads()

    mine = product.get_slice(0)
    tiles_a = mine.partition_A(cute.local_tile(factors[0], (TILE[0], TILE[2]), (None, None)))
    tiles_b = mine.partition_B(cute.local_tile(factors[1], (TILE[1], TILE[2]), (None, None)))
    tiles_c = mine.partition_C(cute.local_tile(c, TILE[:2], (None, None)))
    memory, place = accumulators(product, TILE[:2], ACCUMULATORS, holder)
    sums = Sums(place, made, taken)
    if warp == LOAD_WARP:
        load(copies, (tiles_a, tiles_b), ring, work, NBYTES)
    elif warp == PRODUCT_WARP:
        multiply(product, ring, sums, work)
    else:
        store(tiles_c, sums, work)
        cute.arch.barrier(barrier_id=1, number_of_threads=STORE_THREADS)
        if warp == 0:
            cute.arch.relinquish_tmem_alloc_permit()
            cute.arch.dealloc_tmem(memory, COLUMNS)


@cute.jit
def gemm(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor, blocks: cutlass.Constexpr) -> None:
    """Write A B^T to C, by this many blocks."""
    product = blackwell_product(a, b, TILE, tcgen05.CtaGroup.ONE)
    copy = cpasync.CopyBulkTensorTileG2SOp(tcgen05.CtaGroup.ONE)
    loads = blackwell_loads((a, b), product, TILE, STAGES, copy)
    kernel(product, loads.copies, loads.seen, c, loads.layouts).launch(
        grid=[blocks, 1, 1], block=[THREADS, 1, 1]
    )
