"""C = A B^T for sm_90a: two warpgroups multiply what a warp loads by tensor copies.

A comes from shared memory, or by `ldmatrix` from registers.  From shared memory, a product is still
going on when the next one starts, and a stage is given back one step later.

A (M, K) and B (N, K) are float16, C (M, N) is float32; the sizes are multiples of the tile's.
"""

from __future__ import annotations

import cutlass
from cutlass import cute
from cutlass.cute.nvgpu import cpasync, warp, warpgroup
from cutlass.tensor_utils import LayoutEnum
from cutlass.utils import hopper_helpers

from tests.compile.emulated_kernels.products import Ring, Work, allocated, begin, load

TILE = (128, 64, 64)  # rows and columns of C, columns of A
STAGES = 2
NBYTES = 2 * (TILE[0] + TILE[1]) * TILE[2]  # of a stage

PRODUCT_THREADS = 256  # warps 0 to 7
LOAD_WARP = 8
THREADS = 288


@cute.jit
def multiply(
    product: cute.TiledMma,
    ring: Ring,
    tiles: cute.Tensor,
    work: Work,
    from_registers: cutlass.Constexpr,
) -> None:
    """Multiply, and store the sums."""
    thread, _, _ = cute.arch.thread_idx()
    mine = product.get_slice(thread)
    a = product.make_fragment_A(mine.partition_A(ring.a))
    b = product.make_fragment_B(mine.partition_B(ring.b))
    targets = mine.partition_C(tiles)
    sums = cute.make_rmem_tensor(targets[(None, None, None, 0, 0)].shape, cutlass.Float32)
    matrices = cute.make_copy_atom(warp.LdMatrix8x8x16bOp(num_matrices=4), cutlass.Float16)
    read = cute.make_tiled_copy_A(matrices, product).get_slice(thread)
    count = cutlass.Int32(0)
    for tile in cutlass.range(work.first, work.tiles, work.step, unroll=1):
        for k in cutlass.range(work.depth, unroll=1):
            stage = count % STAGES
            cute.arch.mbarrier_wait(ring.full + stage, count // STAGES % 2)
            if cutlass.const_expr(from_registers):
                source = read.partition_S(ring.a)[(None, None, None, stage)]
                cute.copy(read, source, read.retile(a[(None, None, None, 0)]))
            product.set(warpgroup.Field.ACCUMULATE, k != 0)
            warpgroup.fence()
            for part in cutlass.range_constexpr(cute.size(b, mode=[2])):
                from_a = (None, None, part, 0 if from_registers else stage)
                cute.gemm(product, sums, a[from_a], b[(None, None, part, stage)], sums)
                product.set(warpgroup.Field.ACCUMULATE, True)
            warpgroup.commit_group()
            if cutlass.const_expr(from_registers):
                warpgroup.wait_group(0)
                cute.arch.mbarrier_arrive(ring.empty + stage)
            else:
                warpgroup.wait_group(1)
                if k > 0:
                    cute.arch.mbarrier_arrive(ring.empty + (count - 1) % STAGES)
            count += 1
        if cutlass.const_expr(not from_registers):
            warpgroup.wait_group(0)
            cute.arch.mbarrier_arrive(ring.empty + (count - 1) % STAGES)
        place = (None, None, None, tile // work.columns, tile % work.columns)
        cute.autovec_copy(sums, targets[place])


@cute.kernel
def kernel(
    product: cute.TiledMma,
    copies: tuple[cute.CopyAtom, cute.CopyAtom],
    factors: tuple[cute.Tensor, cute.Tensor],
    c: cute.Tensor,
    layouts: tuple[cute.ComposedLayout, cute.ComposedLayout],
    from_registers: cutlass.Constexpr,
) -> None:
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    blocks, _, _ = cute.arch.grid_dim()
    columns = c.shape[1] // TILE[1]
    depth = factors[0].shape[1] // TILE[2]
    work = Work(block, c.shape[0] // TILE[0] * columns, blocks, columns, depth)

    shared = cutlass.memory.SmemAllocator()
    full = shared.allocate_array(cutlass.Int64, STAGES)
    empty = shared.allocate_array(cutlass.Int64, STAGES)
    ring = Ring(*allocated(shared, layouts), full, empty)
    if thread == 0:
        begin((STAGES, (full, 1), (empty, PRODUCT_THREADS)))
    cute.arch.sync_threads()

    if cute.arch.make_warp_uniform(cute.arch.warp_idx()) == LOAD_WARP:
        tiles = (
            cute.local_tile(factors[0], (TILE[0], TILE[2]), (None, None)),
            cute.local_tile(factors[1], (TILE[1], TILE[2]), (None, None)),
        )
        load(copies, tiles, ring, work, NBYTES)
    else:
        tiles_c = cute.local_tile(c, TILE[:2], (None, None))
        multiply(product, ring, tiles_c, work, from_registers)


@cute.jit
def gemm(
    a: cute.Tensor,
    b: cute.Tensor,
    c: cute.Tensor,
    blocks: cutlass.Constexpr,
    from_registers: cutlass.Constexpr,
) -> None:
    """Write A B^T to C, by this many blocks, with A from registers or from shared memory."""
    major = cute.nvgpu.OperandMajorMode.K
    source = warpgroup.OperandSource
    product = hopper_helpers.make_trivial_tiled_mma(
        a.element_type,
        b.element_type,
        major,
        major,
        cutlass.Float32,
        (2, 1, 1),
        (64, TILE[1]),
        source.RMEM if from_registers else source.SMEM,
    )
    rows = LayoutEnum.ROW_MAJOR
    layout_a = hopper_helpers.make_smem_layout_a(rows, TILE, a.element_type, STAGES)
    layout_b = hopper_helpers.make_smem_layout_b(rows, TILE, b.element_type, STAGES)
    copy = cpasync.CopyBulkTensorTileG2SOp()
    load_a, seen_a = cpasync.make_tiled_tma_atom(
        copy, a, cute.slice_(layout_a, (None, None, 0)), (TILE[0], TILE[2])
    )
    load_b, seen_b = cpasync.make_tiled_tma_atom(
        copy, b, cute.slice_(layout_b, (None, None, 0)), (TILE[1], TILE[2])
    )
    kernel(
        product, (load_a, load_b), (seen_a, seen_b), c, (layout_a, layout_b), from_registers
    ).launch(grid=[blocks, 1, 1], block=[THREADS, 1, 1])
