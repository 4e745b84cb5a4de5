"""What the kernels of C = A B^T share: a ring of stages, accumulators, and the tiles of a block.

On the device the loading warp of kernels without multicast, and what tells memory apart; on the
host, for sm_100a, the product and the copies of its factors.  No kernel begins here.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import cutlass
from cutlass import cute
from cutlass.cute.nvgpu import cpasync, tcgen05
from cutlass.utils import blackwell_helpers


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
    """The tiles of a block or cluster: every `step`th of `tiles`, from `first` on; how they lie."""

    first: cutlass.Int32
    tiles: int
    step: cutlass.Int32
    columns: int  # tiles next to each other
    depth: int  # stages of a tile


@cute.jit
def load(
    copies: tuple[cute.CopyAtom, cute.CopyAtom],
    tiles: tuple[cute.Tensor, cute.Tensor],
    ring: Ring,
    work: Work,
    nbytes: cutlass.Constexpr,
) -> None:
    """Load the parts of A and B, a stage of so many bytes at a time."""
    alone = cute.make_layout(1)
    last = cute.rank(ring.a) - 1  # the mode of the stages
    stages = cute.size(ring.a, mode=[last])
    (to_a, from_a), (to_b, from_b) = (
        cpasync.tma_partition(
            copy, 0, alone, cute.group_modes(target, 0, last), cute.group_modes(tile, 0, last)
        )
        for copy, target, tile in zip(copies, (ring.a, ring.b), tiles, strict=True)
    )
    count = cutlass.Int32(0)
    for tile in cutlass.range(work.first, work.tiles, work.step, unroll=1):
        row, column = tile // work.columns, tile % work.columns
        for k in cutlass.range(work.depth, unroll=1):
            stage = count % stages
            full = ring.full + stage
            cute.arch.mbarrier_wait(ring.empty + stage, (count // stages + 1) % 2)
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive_and_expect_tx(full, nbytes)
            cute.copy(copies[0], from_a[(None, row, k)], to_a[(None, stage)], tma_bar_ptr=full)
            cute.copy(copies[1], from_b[(None, column, k)], to_b[(None, stage)], tma_bar_ptr=full)
            count += 1


def allocated(
    shared: Any, layouts: tuple[cute.ComposedLayout, cute.ComposedLayout]
) -> tuple[cute.Tensor, cute.Tensor]:
    """Return the stages of both factors in shared memory, with these layouts."""
    a, b = (
        shared.allocate_tensor(cutlass.Float16, layout.outer, 1024, swizzle=layout.inner)
        for layout in layouts
    )
    return a, b


def begin(*arrays: tuple[int, tuple[cute.Pointer, int], tuple[cute.Pointer, int]]) -> None:
    """Initialise pairs of arrays of mbarriers: their length, and of both the arrivals at each."""
    for length, *pair in arrays:
        for index in range(length):
            for pointer, arrivals in pair:
                cute.arch.mbarrier_init(pointer + index, arrivals)
    cute.arch.mbarrier_init_fence()


def accumulators(
    product: cute.TiledMma, tile: tuple[int, int], number: int, holder: cute.Pointer
) -> tuple[cute.Pointer, cute.Tensor]:
    """Return the tensor memory that was allocated, and the accumulators of a tile in it."""
    shape = cute.append(product.partition_shape_C(tile), number)
    memory = cute.arch.retrieve_tmem_ptr(cutlass.Float32, 16, holder)
    return memory, cute.make_tensor(memory, product.make_fragment_C(shape).layout)


def blackwell_product(
    a: cute.Tensor, b: cute.Tensor, tile: tuple[int, int, int], group: tcgen05.CtaGroup
) -> cute.TiledMma:
    """Return the product of factors along K, with sums of type float32."""
    major = cute.nvgpu.OperandMajorMode.K
    return blackwell_helpers.make_trivial_tiled_mma(
        a.element_type, b.element_type, major, major, cutlass.Float32, group, tile[:2]
    )


class Loads(NamedTuple):
    """The host's side of a ring: for each factor a copy, what it copies from, and the stages."""

    copies: tuple[cute.CopyAtom, cute.CopyAtom]
    seen: tuple[cute.Tensor, cute.Tensor]
    layouts: tuple[cute.ComposedLayout, cute.ComposedLayout]


def blackwell_loads(
    factors: tuple[cute.Tensor, cute.Tensor],
    product: cute.TiledMma,
    tile: tuple[int, int, int],
    stages: int,
    copy: Any,
    *cluster: Any,
) -> Loads:
    """Return the copies of a tile's factors, in a cluster of a shape where one is given."""
    a, b = factors
    layout_a = blackwell_helpers.make_smem_layout_a(product, tile, a.element_type, stages)
    layout_b = blackwell_helpers.make_smem_layout_b(product, tile, b.element_type, stages)
    stage_a, stage_b = (
        cute.slice_(layout, (None, None, None, 0)) for layout in (layout_a, layout_b)
    )
    load_a, seen_a = cute.nvgpu.make_tiled_tma_atom_A(copy, a, stage_a, tile, product, *cluster)
    load_b, seen_b = cute.nvgpu.make_tiled_tma_atom_B(copy, b, stage_b, tile, product, *cluster)
    return Loads((load_a, load_b), (seen_a, seen_b), (layout_a, layout_b))
