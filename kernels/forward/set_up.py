"""What the blocks of kernels set up alike: forward and backward, on all architectures.

Takes CuTe-DSL.

Rings of tiles, barriers and registers are each skeleton's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import cutlass
from cutlass import Int32, Int64, cute

from flexfa4.kernels.compile.signature import TensorMap
from flexfa4.kernels.forward.traced_parameters import TracedParameters
from flexfa4.primitives import dispatch, tma
from flexfa4.primitives.shared_bytes import NUMBER_STAGES, ring_bytes

DTYPES: Final[dict[str, Any]] = {"bf16": cutlass.BFloat16, "f16": cutlass.Float16}
"""The dtype of a plan's element."""


def carriers_of(pointers: Sequence[Any], maps: Sequence[TensorMap]) -> tuple[Any, ...]:
    """Return what brings tensor maps into a kernel, of the pointers that it is traced with."""
    pairs = zip(pointers, maps, strict=True)
    return tuple(tma.parameter(pointer, spec.box, spec.swizzle) for pointer, spec in pairs)


def numbers_at(base: cute.Pointer, offset: int, consumers: int) -> dispatch.Numbers:
    """Return the ring of numbers of items that lies at an offset in shared memory.

    Args:
        base: start of dynamic shared memory, in bytes.
        offset: of its mbarriers; slots are behind them.
        consumers: warps that read each number.
    """
    slots = base + (offset + ring_bytes(NUMBER_STAGES))
    return dispatch.Numbers(
        cute.recast_ptr(base + offset, dtype=Int64),
        cute.recast_ptr(slots, dtype=Int32),
        consumers,
    )


def walk_of(
    parameters: TracedParameters[Any], numbers: dispatch.Numbers, *, produces: bool
) -> dispatch.Walk:
    """Return the way of a role through the items of its block.

    Args:
        parameters: of the launch.
        numbers: that are passed on, if they are fetched.
        produces: the role is the one that fetches them.
    """
    items = parameters.items
    if not parameters.plan.fetched:
        return dispatch.OnePerBlock(items)
    if not produces:
        return dispatch.FetchedByConsumer(items, numbers)
    counter = cute.recast_ptr(parameters["counter"], dtype=Int32)
    return dispatch.FetchedByProducer(items, counter, numbers)
