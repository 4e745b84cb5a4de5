"""TMA: bulk copies of tensor tiles between global and shared memory, by explicit coordinates.

A kernel gets each tensor as a *tensor map*, 128 bytes among its parameters that hold the tensor's
address, shape, strides and the box that one copy moves.  The launcher encodes them, so a kernel
that was compiled once serves any tensor.  CuTe passes a tensor map inside of a copy atom; here the
atom is nothing but that carrier, and copies name their coordinates themselves: the innermost
dimension first, as in the PTX ISA.

Does not wait for anything: loads complete on an mbarrier (`pipeline`), stores in bulk groups.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from typing import Any, Final

from cutlass import Int32, cute
from cutlass._mlir import ir
from cutlass._mlir.dialects import cute_nvgpu, llvm, nvvm
from cutlass._mlir.dialects._cute_nvgpu_ops_gen import get_tma_desc_addr
from cutlass.cute.nvgpu import cpasync

_RANK_BIT: Final = 24
_SWIZZLE_BITS: Final = {32: 1, 64: 2, 128: 3}  # of the address that are swapped, by the row's bytes


def parameter(pointer: cute.Pointer, box: Sequence[int], swizzle: int) -> Any:
    """Return the carrier of a kernel's parameter for a tensor map, while a launch is traced.

    Args:
        pointer: of the tensor's dtype; where it points is not looked at.
        box: elements along each axis that a copy moves, the innermost first.
        swizzle: bytes of a row of the swizzled order in shared memory.
    """
    bits = _SWIZZLE_BITS[swizzle]
    tile = cute.make_composed_layout(cute.make_swizzle(bits, 4, 3), 0, cute.make_layout(tuple(box)))
    # Strides leave gaps, or axes of the tensor that could be one would become one.
    extents = [2 * extent for extent in box]
    strides = list(itertools.accumulate([2 * e for e in extents[:-1]], operator.mul, initial=1))
    layout = cute.make_layout(tuple(extents), stride=tuple(strides))
    carrier, _ = cpasync.make_tiled_tma_atom(
        cpasync.CopyBulkTensorTileG2SOp(), cute.make_tensor(pointer, layout), tile, tuple(box)
    )
    return carrier


def address(carrier: Any) -> Any:
    """Return the address of the tensor map that a kernel's parameter carries."""
    executable = cute_nvgpu.atom_make_exec_tma(carrier._trait.value)
    pointer = ir.Type.parse("!cute.ptr<i8, generic, align<64>>")
    return get_tma_desc_addr(pointer, executable).to_llvm_ptr()


def prefetch(carrier: Any) -> None:
    """Bring the tensor map into its cache; by one thread."""
    cpasync.prefetch_descriptor(carrier)


def load_for_pair(
    tensor_map: Any, destination: cute.Pointer, barrier: cute.Pointer, at: Sequence[Int32 | int]
) -> None:
    """Copy as `load` does, but complete on the mbarrier of the first block of a pair.

    Both blocks of a cluster of two load their parts of what they compute with together; the first
    one expects the bytes of both.  Addresses in the shared memory of a cluster have the rank of the
    block from bit 24 on.
    """
    own = llvm.ptrtoint(Int32.mlir_type, barrier.to_llvm_ptr())
    first = Int32(own) & Int32(~(1 << _RANK_BIT))
    target = llvm.ptrtoint(Int32.mlir_type, destination.to_llvm_ptr())
    nvvm.cp_async_bulk_tensor_shared_cluster_global(
        llvm.inttoptr(ir.Type.parse("!llvm.ptr<7>"), target),
        tensor_map,
        [Int32(c).ir_value() for c in at],
        llvm.inttoptr(ir.Type.parse("!llvm.ptr<3>"), first.ir_value()),
        [],
        group=nvvm.CTAGroupKind.CTA_2,
    )


def load(
    tensor_map: Any, destination: cute.Pointer, barrier: cute.Pointer, at: Sequence[Int32 | int]
) -> None:
    """Copy the box `at` its coordinates to shared memory; by one thread.

    Elements outside of the tensor arrive as zeros, and count as bytes all the same.

    Args:
        tensor_map: `address` of it.
        destination: in shared memory, aligned to the period of the swizzle.
        barrier: the mbarrier on which the bytes of the box complete.
        at: a coordinate for each dimension, innermost first.
    """
    nvvm.cp_async_bulk_tensor_shared_cluster_global(
        destination.to_llvm_ptr(),
        tensor_map,
        [Int32(c).ir_value() for c in at],
        barrier.to_llvm_ptr(),
        [],
        is_cta_only=True,
    )


def load_bytes(
    source: cute.Pointer, destination: cute.Pointer, barrier: cute.Pointer, nbytes: int
) -> None:
    """Copy bytes that follow each other to shared memory; by one thread.

    Args:
        source: in global memory, aligned to 16 bytes.
        destination: likewise, in shared memory.
        barrier: the mbarrier on which they complete.
        nbytes: how many, a multiple of 16.
    """
    nvvm.cp_async_bulk_shared_cluster_global(
        destination.to_llvm_ptr(),
        source.to_llvm_ptr(),
        barrier.to_llvm_ptr(),
        Int32(nbytes).ir_value(),
    )


def store(tensor_map: Any, source: cute.Pointer, at: Sequence[Int32 | int]) -> None:
    """Copy a box from shared memory to `at` its coordinates; by one thread.

    What would lie outside of the tensor is not written.  The writes of other threads to `source`
    must be ordered before by a fence of the async proxy and a barrier; the copy is complete when
    the thread's bulk group is (``cp_async_bulk_wait_group``).
    """
    nvvm.cp_async_bulk_tensor_global_shared_cta(
        tensor_map, source.to_llvm_ptr(), [Int32(c).ir_value() for c in at]
    )


def add_floats(source: cute.Pointer, destination: cute.Pointer, count: int) -> None:
    """Add fp32 numbers in shared memory to those in global memory, atomically; by one thread.

    Args:
        source: aligned to 16 bytes; for the writes of other threads see `store`.
        destination: likewise.
        count: a multiple of 4.
    """
    cute.arch.inline_ptx(
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [{$r0}], [{$r1}], {$r2};",
        read_only_args=[destination.toint(), source.toint(), Int32(4 * count)],
    )


def store_floats(source: cute.Pointer, destination: cute.Pointer, count: int) -> None:
    """Copy fp32 numbers in shared memory to global memory; as `add_floats`."""
    cute.arch.inline_ptx(
        "cp.async.bulk.global.shared::cta.bulk_group [{$r0}], [{$r1}], {$r2};",
        read_only_args=[destination.toint(), source.toint(), Int32(4 * count)],
    )
