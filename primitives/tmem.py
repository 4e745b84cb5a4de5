"""Tensor memory: 128 lanes by 512 columns of 32 bits, which products accumulate in.

An address has the lane in its upper and the column in its lower 16 bits.  A warp reaches the 32
lanes that its place in the warpgroup names, so a warpgroup holds a row of 128 in each thread.
Loads and stores are asynchronous: `wait_for_loads` and `wait_for_stores` complete them, and
`before_barrier` and `behind_barrier` order them with what other threads do, on either side of an
mbarrier.

Moves numbers; which columns hold what is the kernel's plan.
"""

from __future__ import annotations

from typing import Any, Final

from cutlass import Float32, Int32, cute
from cutlass._mlir import ir
from cutlass._mlir.dialects import llvm, nvvm, vector
from cutlass.base_dsl.dsl import BaseDSL
from cutlass.base_dsl.enums import Arch

LANES: Final = 32
"""Lanes of a warp."""


def allocate(slot: cute.Pointer, columns: int, blocks: int = 1) -> None:
    """Allocate columns, a power of two from 32 to 512, and write the address to shared memory.

    By one whole warp, which also has to `release` them; of two blocks that compute together, by one
    of each.
    """
    cute.arch.alloc_tmem(columns, slot, is_two_cta=blocks > 1)
    cute.arch.relinquish_tmem_alloc_permit(is_two_cta=blocks > 1)


def release(address: Int32, columns: int, blocks: int = 1) -> None:
    """Give columns back, when nobody uses them any more; by the warp that has allocated them."""
    group = nvvm.CTAGroupKind.CTA_2 if blocks > 1 else nvvm.CTAGroupKind.CTA_1
    nvvm.tcgen05_dealloc(pointer(address), Int32(columns).ir_value(), group=group)


def lanes_of(address: Int32, warp: Int32) -> Int32:
    """Return an address in the lanes that a warp of a warpgroup may reach, 0 <= warp < 4."""
    return address + (warp * LANES << 16)


def pointer(address: Any) -> Any:
    """Return an address as instructions take it."""
    return llvm.inttoptr(ir.Type.parse("!llvm.ptr<6>"), Int32(address).ir_value())


def load(address: Any, target: Any) -> None:
    """Load columns of a thread's lane into registers, fp32.

    Args:
        address: of the first column, `lanes_of` the warp.
        target: a contiguous tensor in registers, of as many columns: a power of two up to 128.
    """
    columns = cute.size(target)
    bits = nvvm.tcgen05_ld(
        ir.VectorType.get([columns], Int32.mlir_type),
        nvvm.Tcgen05LdStShape.SHAPE_32X32B,
        pointer(address),
    )
    values = vector.bitcast(ir.VectorType.get([columns], Float32.mlir_type), bits)
    target.store(cute.TensorSSA(values, (columns,), Float32))


def finds_maxima() -> bool:
    """Return whether the architecture that is compiled for has `load_with_maximum`."""
    return bool(BaseDSL._get_dsl().get_arch_enum().is_family_of(Arch.sm_103f))


def load_with_maximum(address: Any, target: Any) -> Float32:
    """Load columns as `load` does; return the largest number, behind `wait_for_loads`."""
    columns = cute.size(target)
    loaded = nvvm.tcgen05_ld_red(
        ir.VectorType.get([columns], Float32.mlir_type),
        Float32.mlir_type,
        nvvm.Tcgen05LdStShape.SHAPE_32X32B,
        nvvm.ReductionKind.MAX,
        pointer(address),
    )
    values, largest = loaded
    target.store(cute.TensorSSA(values, (columns,), Float32))
    return Float32(largest)


def store(address: Any, source: Any) -> None:
    """Store registers into columns of a thread's lane, 32 bits each.

    Args:
        address: as for `load`.
        source: a contiguous tensor in registers, of elements that fill a power of two of columns.
    """
    values = source.load()
    columns = cute.size(source) * source.element_type.width // 32
    bits = vector.bitcast(ir.VectorType.get([columns], Int32.mlir_type), values.ir_value())
    nvvm.tcgen05_st(nvvm.Tcgen05LdStShape.SHAPE_32X32B, pointer(address), bits)


def wait_for_loads() -> None:
    """Wait until the registers of all loads of this thread hold their values."""
    nvvm.tcgen05_wait(nvvm.Tcgen05WaitKind.LOAD)


def wait_for_stores() -> None:
    """Wait until all stores of this thread are done."""
    nvvm.tcgen05_wait(nvvm.Tcgen05WaitKind.STORE)


def before_barrier() -> None:
    """Order this thread's loads and stores before what follows its next arrival on a barrier."""
    nvvm.tcgen05_fence(nvvm.Tcgen05FenceKind.BEFORE_THREAD_SYNC)


def behind_barrier() -> None:
    """Order what follows in tensor memory behind a barrier that this thread has waited for."""
    nvvm.tcgen05_fence(nvvm.Tcgen05FenceKind.AFTER_THREAD_SYNC)
