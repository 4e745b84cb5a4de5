"""C = A B^T for sm_100a: every tile is made by one block, which makes several of them.

Tensor copies feed a ring of stages; a warp gives products to the tensor core, which adds them up in
one of two accumulators in tensor memory; four warps read the other one and store it.

A (M, K) and B (N, K) are float16, C (M, N) is float32; the sizes are multiples of the tile's.
"""

from __future__ import annotations

from typing import NamedTuple

import cutlass
from cutlass import cute
from cutlass.cute.nvgpu import cpasync, tcgen05
from cutlass.utils import blackwell_helpers

TILE = (128, 64, 64)  # rows and columns of C, columns of A
STAGES = 2  # of the ring
ACCUMULATORS = 2
COLUMNS = ACCUMULATORS * TILE[1]  # of tensor memory
NBYTES = 2 * (TILE[0] + TILE[1]) * TILE[2]  # of a stage

STORE_THREADS = 128  # warps 0 to 3
PRODUCT_WARP = 4
LOAD_WARP = 5
THREADS = 192


class Ring(NamedTuple):
    """Stages of both factors in shared memory; barriers tell that one is full, or empty."""

    a: cute.Tensor
    b: cute.Tensor
    full: cute.Pointer
    empty: cute.Pointer


class Sums(NamedTuple):
    """Accumulators in tensor memory; barriers tell that one is made, or taken."""

    place: cute.Tensor
    made: cute.Pointer
    taken: cute.Pointer


class Work(NamedTuple):
    """The tiles of a block: every `step`th of `tiles`, from `first` on; and how they lie in C."""

    first: cutlass.Int32
    tiles: int
    step: cutlass.Int32
    columns: int
    depth: int  # stages of a tile


@cute.jit
def load(
    copies: tuple[cute.CopyAtom, cute.CopyAtom],
    tiles: tuple[cute.Tensor, cute.Tensor],
    ring: Ring,
    work: Work,
) -> None:
    """Load the parts of A and B, a stage at a time."""
    alone = cute.make_layout(1)
    (to_a, from_a), (to_b, from_b) = (
        cpasync.tma_partition(
            copy, 0, alone, cute.group_modes(stages, 0, 3), cute.group_modes(tile, 0, 3)
        )
        for copy, stages, tile in zip(copies, (ring.a, ring.b), tiles, strict=True)
    )
    count = cutlass.Int32(0)
    for tile in cutlass.range(work.first, work.tiles, work.step, unroll=1):
        row, column = tile // work.columns, tile % work.columns
        for k in cutlass.range(work.depth, unroll=1):
            stage = count % STAGES
            full = ring.full + stage
            cute.arch.mbarrier_wait(ring.empty + stage, (count // STAGES + 1) % 2)
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive_and_expect_tx(full, NBYTES)
            cute.copy(copies[0], from_a[(None, row, k)], to_a[(None, stage)], tma_bar_ptr=full)
            cute.copy(copies[1], from_b[(None, column, k)], to_b[(None, stage)], tma_bar_ptr=full)
            count += 1


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
    a, b = (
        shared.allocate_tensor(cutlass.Float16, layout.outer, 1024, swizzle=layout.inner)
        for layout in layouts
    )
    ring = Ring(a, b, full, empty)
    if thread == 0:
        for index in cutlass.range_constexpr(STAGES):
            cute.arch.mbarrier_init(full + index, 1)
            cute.arch.mbarrier_init(empty + index, 1)
        for index in cutlass.range_constexpr(ACCUMULATORS):
            cute.arch.mbarrier_init(made + index, 1)
            cute.arch.mbarrier_init(taken + index, STORE_THREADS)
        cute.arch.mbarrier_init_fence()
    if warp == 0:
        cute.arch.alloc_tmem(COLUMNS, holder)
    cute.arch.sync_threads()

    mine = product.get_slice(0)
    tiles_a = mine.partition_A(cute.local_tile(factors[0], (TILE[0], TILE[2]), (None, None)))
    tiles_b = mine.partition_B(cute.local_tile(factors[1], (TILE[1], TILE[2]), (None, None)))
    tiles_c = mine.partition_C(cute.local_tile(c, TILE[:2], (None, None)))
    shape = cute.append(product.partition_shape_C(TILE[:2]), ACCUMULATORS)
    memory = cute.arch.retrieve_tmem_ptr(cutlass.Float32, 16, holder)
    sums = Sums(cute.make_tensor(memory, product.make_fragment_C(shape).layout), made, taken)
    if warp == LOAD_WARP:
        load(copies, (tiles_a, tiles_b), ring, work)
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
    major = cute.nvgpu.OperandMajorMode.K
    product = blackwell_helpers.make_trivial_tiled_mma(
        a.element_type,
        b.element_type,
        major,
        major,
        cutlass.Float32,
        tcgen05.CtaGroup.ONE,
        TILE[:2],
    )
    layout_a = blackwell_helpers.make_smem_layout_a(product, TILE, a.element_type, STAGES)
    layout_b = blackwell_helpers.make_smem_layout_b(product, TILE, b.element_type, STAGES)
    copy = cpasync.CopyBulkTensorTileG2SOp(tcgen05.CtaGroup.ONE)
    stage_a, stage_b = (
        cute.slice_(layout, (None, None, None, 0)) for layout in (layout_a, layout_b)
    )
    load_a, seen_a = cute.nvgpu.make_tiled_tma_atom_A(copy, a, stage_a, TILE, product)
    load_b, seen_b = cute.nvgpu.make_tiled_tma_atom_B(copy, b, stage_b, TILE, product)
    kernel(product, (load_a, load_b), (seen_a, seen_b), c, (layout_a, layout_b)).launch(
        grid=[blocks, 1, 1], block=[THREADS, 1, 1]
    )
