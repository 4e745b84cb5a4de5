"""C = A B^T for sm_100a by pairs of blocks, which share products of the tensor core.

Each block of a pair loads half the rows of A and half the rows of B; the first one gives the
products for both.  Pairs of a cluster that need the same part of A or B load a share of it each and
send it to the others.  The result goes through shared memory and is stored by tensor copies.

A (M, K), B (N, K) and C (M, N) are float16; the sizes are multiples of the cluster's tile.  A pair
makes 256 or 128 rows: for 128, tensor memory has the two halves of the columns below each other.
"""

from __future__ import annotations

from typing import NamedTuple

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
)

WIDTH = 64  # columns of C of a pair's tile
DEPTH = 32  # columns of A of a stage
STAGES = 2  # of the ring
SLOTS = 2  # accumulators, and buffers of results
COLUMNS = SLOTS * WIDTH  # of tensor memory

STORE_THREADS = 128  # warps 0 to 3
PRODUCT_WARP = 4
LOAD_WARP = 5
THREADS = 192


class Place(NamedTuple):
    """Where a block is: in its pair, and its pair in the cluster, which is `layout`."""

    layout: cute.Layout
    half: cutlass.Int32
    down: cutlass.Int32
    across: cutlass.Int32

    def mask(self, half: cutlass.Int32, mode: int) -> cutlass.Int16:
        """Return the blocks that differ from such a half of this pair in one mode alone."""
        place = (half, self.down, self.across, 0)
        return cpasync.create_tma_multicast_mask(self.layout, place, mcast_mode=mode)


@cute.jit
def load(
    copies: tuple[cute.CopyAtom, cute.CopyAtom],
    tiles: tuple[cute.Tensor, cute.Tensor],
    ring: Ring,
    at: Place,
    work: Work,
    nbytes: cutlass.Constexpr,
) -> None:
    """Load this block's shares of A and B, for itself and those that need them as well."""
    down, across = (cute.size(at.layout, mode=[mode]) for mode in (1, 2))
    (to_a, from_a), (to_b, from_b) = (
        cpasync.tma_partition(
            copy,
            share,
            cute.make_layout(shares),
            cute.group_modes(stages, 0, 3),
            cute.group_modes(tile, 0, 3),
        )
        for copy, share, shares, stages, tile in zip(
            copies, (at.across, at.down), (across, down), (ring.a, ring.b), tiles, strict=True
        )
    )
    like_a, like_b = at.mask(at.half, 2), at.mask(at.half, 1)
    count = cutlass.Int32(0)
    for tile in cutlass.range(work.first, work.tiles, work.step, unroll=1):
        row = tile // work.columns * down + at.down
        column = tile % work.columns * across + at.across
        for k in cutlass.range(work.depth, unroll=1):
            stage = count % STAGES
            full = ring.full + stage
            cute.arch.mbarrier_wait(ring.empty + stage, (count // STAGES + 1) % 2)
            if at.half == 0:
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive_and_expect_tx(full, nbytes)
            for copy, source, target, mask in (
                (copies[0], from_a[(None, row, k)], to_a, like_a),
                (copies[1], from_b[(None, column, k)], to_b, like_b),
            ):
                cute.copy(copy, source, target[(None, stage)], tma_bar_ptr=full, mcast_mask=mask)
            count += 1


@cute.jit
def multiply(product: cute.TiledMma, ring: Ring, sums: Sums, at: Place, work: Work) -> None:
    """Give the products of the pair to the tensor core; the first block of the pair does."""
    a, b = product.make_fragment_A(ring.a), product.make_fragment_B(ring.b)
    both = at.mask(0, 0)
    loaders = both
    for half in cutlass.range_constexpr(2):
        loaders = loaders | at.mask(half, 1) | at.mask(half, 2)
    count = cutlass.Int32(0)
    turn = cutlass.Int32(0)
    for _tile in cutlass.range(work.first, work.tiles, work.step, unroll=1):
        slot = turn % SLOTS
        cute.arch.mbarrier_wait(sums.taken + slot, (turn // SLOTS + 1) % 2)
        into = sums.place[(None, None, None, slot)]
        for k in cutlass.range(work.depth, unroll=1):
            stage = count % STAGES
            cute.arch.mbarrier_wait(ring.full + stage, count // STAGES % 2)
            product.set(tcgen05.Field.ACCUMULATE, k != 0)
            for part in cutlass.range_constexpr(cute.size(a, mode=[2])):
                which = (None, None, part, stage)
                cute.gemm(product, into, a[which], b[which], into)
                product.set(tcgen05.Field.ACCUMULATE, True)
            with cute.arch.elect_one():
                tcgen05.commit(ring.empty + stage, loaders, tcgen05.CtaGroup.TWO)
            count += 1
        with cute.arch.elect_one():
            tcgen05.commit(sums.made + slot, both, tcgen05.CtaGroup.TWO)
        turn += 1


@cute.jit
def store(
    copy: cute.CopyAtom, tiles: cute.Tensor, results: cute.Tensor, sums: Sums, at: Place, work: Work
) -> None:
    """Round the sums, and store this block's half of them by way of shared memory."""
    thread, _, _ = cute.arch.thread_idx()
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    first = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster()) - at.half
    plain = sums.place[((None, None), 0, 0, None)]
    width = WIDTH if cutlass.const_expr(results.shape[0] == 128) else WIDTH // 2
    read = cute.make_copy_atom(tcgen05.Ld32x32bOp(tcgen05.Repetition(width)), cutlass.Float32)
    take = tcgen05.make_tmem_copy(read, plain[(None, None, 0)])
    lane = take.get_slice(thread)
    source, buffer = lane.partition_S(plain), lane.partition_D(results)
    held = cute.make_rmem_tensor(buffer[(None, None, None, 0)].shape, cutlass.Float32)
    rounded = cute.make_rmem_tensor(held.shape, cutlass.Float16)
    from_c, to_c = cpasync.tma_partition(
        copy, 0, cute.make_layout(1), cute.group_modes(results, 0, 2), cute.group_modes(tiles, 0, 2)
    )
    down, across = (cute.size(at.layout, mode=[mode]) for mode in (1, 2))
    turn = cutlass.Int32(0)
    for tile in cutlass.range(work.first, work.tiles, work.step, unroll=1):
        slot = turn % SLOTS
        cute.arch.mbarrier_wait(sums.made + slot, turn // SLOTS % 2)
        cute.copy(take, source[(None, None, None, slot)], held)
        cute.arch.fence_view_async_tmem_load()
        cute.arch.mbarrier_arrive(sums.taken + slot, first)
        rounded.store(held.load().to(cutlass.Float16))
        if warp == 0:
            cute.arch.cp_async_bulk_wait_group(SLOTS - 1, read=True)
        cute.arch.barrier(barrier_id=1, number_of_threads=STORE_THREADS)
        cute.autovec_copy(rounded, buffer[(None, None, None, slot)])
        cute.arch.fence_view_async_shared()
        cute.arch.barrier(barrier_id=1, number_of_threads=STORE_THREADS)
        if warp == 0:
            row = 2 * (tile // work.columns * down + at.down) + at.half
            column = tile % work.columns * across + at.across
            cute.copy(copy, from_c[(None, slot)], to_c[(None, row, column)])
            cute.arch.cp_async_bulk_commit_group()
        turn += 1
    if warp == 0:
        cute.arch.cp_async_bulk_wait_group(0, read=True)


@cute.kernel
def kernel(
    product: cute.TiledMma,
    loads: tuple[cute.CopyAtom, cute.CopyAtom],
    factors: tuple[cute.Tensor, cute.Tensor],
    copy_out: cute.CopyAtom,
    c: cute.Tensor,
    layouts: tuple[cute.ComposedLayout, cute.ComposedLayout],
    cluster: cute.Layout,
    rows: cutlass.Constexpr,
) -> None:
    thread, _, _ = cute.arch.thread_idx()
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    rank = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())
    half, down, across, _ = cluster.get_flat_coord(rank)
    at = Place(cluster, half, down, across)
    pairs = (cute.size(cluster, mode=[1]), cute.size(cluster, mode=[2]))
    columns = c.shape[1] // (WIDTH * pairs[1])  # clusters next to each other
    first, _, _ = cute.arch.cluster_idx()
    grid, _, _ = cute.arch.grid_dim()
    count = c.shape[0] // (rows * pairs[0]) * columns
    work = Work(first, count, grid // (2 * pairs[0]), columns, factors[0].shape[1] // DEPTH)

    shared = cutlass.memory.SmemAllocator()
    full = shared.allocate_array(cutlass.Int64, STAGES)
    empty = shared.allocate_array(cutlass.Int64, STAGES)
    made = shared.allocate_array(cutlass.Int64, SLOTS)
    taken = shared.allocate_array(cutlass.Int64, SLOTS)
    holder = shared.allocate_array(cutlass.Int32, 1)
    ring = Ring(*allocated(shared, layouts), full, empty)
    tile = (rows // 2, WIDTH)
    buffers = cute.make_layout((*tile, SLOTS), stride=(WIDTH, 1, cute.size(tile)))
    results = shared.allocate_tensor(cutlass.Float16, buffers, 128)
    if thread == 0:
        begin(
            (STAGES, (full, 1), (empty, pairs[0] + pairs[1] - 1)),
            (SLOTS, (made, 1), (taken, 2 * STORE_THREADS)),
        )
    if warp == 0:
        cute.arch.alloc_tmem(COLUMNS, holder, is_two_cta=True)
    cute.arch.cluster_arrive()
    cute.arch.cluster_wait()

    mine = product.get_slice(half)
    tiles_a = mine.partition_A(cute.local_tile(factors[0], (rows, DEPTH), (None, None)))
    tiles_b = mine.partition_B(cute.local_tile(factors[1], (WIDTH, DEPTH), (None, None)))
    memory, place = accumulators(product, (rows, WIDTH), SLOTS, holder)
    sums = Sums(place, made, taken)
    if warp == LOAD_WARP:
        load(loads, (tiles_a, tiles_b), ring, at, work, 2 * (rows + WIDTH) * DEPTH)
    elif warp == PRODUCT_WARP:
        if half == 0:
            multiply(product, ring, sums, at, work)
    else:
        store(copy_out, cute.local_tile(c, tile, (None, None)), results, sums, at, work)

    # no block leaves while others may still touch its barriers, or its half of tensor memory
    cute.arch.cluster_arrive()
    cute.arch.cluster_wait()
    if warp == 0:
        cute.arch.relinquish_tmem_alloc_permit(is_two_cta=True)
        cute.arch.dealloc_tmem(memory, COLUMNS, is_two_cta=True)


@cute.jit
def gemm(
    a: cute.Tensor,
    b: cute.Tensor,
    c: cute.Tensor,
    rows: cutlass.Constexpr,
    cluster: cutlass.Constexpr,
    clusters: cutlass.Constexpr,
) -> None:
    """Write A B^T to C.

    Args:
        a: first factor.
        b: second factor.
        c: the result.
        rows: of a pair's tile, 256 or 128.
        cluster: blocks of a cluster along the rows and the columns of C; the first is even.
        clusters: how many there are.
    """
    tile = (rows, WIDTH, DEPTH)
    product = blackwell_product(a, b, tile, tcgen05.CtaGroup.TWO)
    places = cute.tiled_divide(cute.make_layout((*cluster, 1)), (product.thr_id,))
    copy = cpasync.CopyBulkTensorTileG2SMulticastOp(tcgen05.CtaGroup.TWO)
    loads = blackwell_loads((a, b), product, tile, STAGES, copy, places.shape)
    tile_c = (rows // 2, WIDTH)
    store, seen_c = cpasync.make_tiled_tma_atom(
        cpasync.CopyBulkTensorTileS2GOp(), c, cute.make_layout(tile_c, stride=(WIDTH, 1)), tile_c
    )
    kernel(
        product,
        loads.copies,
        loads.seen,
        store,
        seen_c,
        loads.layouts,
        places,
        rows,
    ).launch(
        grid=[cluster[0] * clusters, cluster[1], 1],
        block=[THREADS, 1, 1],
        cluster=[*cluster, 1],
    )
