"""A tile of dQ from the accumulators of a warpgroup to its sums in global memory.

The sums are kept in the order of the accumulators (`plan.DqOrder`): what a thread adds at once lies
beside what the other threads of its warp add, whichever way it takes:

- straight from registers, 512 bytes with each instruction of a warp, or
- through shared memory, from where one bulk copy adds a whole part.

The numbers of a part are added by one warpgroup of a block; blocks add theirs in any order.
"""

from __future__ import annotations

from typing import Any, Final

from cutlass import Int32, cute

from flexfa4.kernels.backward.plan import DqOrder

VECTOR: Final = 4
"""Numbers that one instruction of a thread adds."""

_THREADS: Final = 128  # of a warpgroup


def own_place(order: DqOrder, tile: cute.Pointer, part: Int32 | int, thread: Int32) -> cute.Pointer:
    """Return where the first numbers of a thread lie in a tile of the workspace."""
    return tile + (part * order.part + thread * VECTOR)


def write_vectors(place: cute.Pointer, values: Any) -> None:
    """Write a thread's numbers to shared memory in the order of a part; `place`: its first ones."""
    step = _THREADS * VECTOR
    for i in range(cute.size(values) // VECTOR):
        own = cute.make_tensor(values.iterator + VECTOR * i, cute.make_layout(VECTOR))
        cute.autovec_copy(own, cute.make_tensor(place + i * step, cute.make_layout(VECTOR)))


def add_vectors(place: cute.Pointer, values: Any) -> None:
    """Add a thread's numbers to sums in the order of a part; `place`: its first ones there."""
    address = place.toint()
    step = _THREADS * VECTOR * 4  # bytes
    for i in range(cute.size(values) // VECTOR):
        cute.arch.inline_ptx(
            f"red.relaxed.gpu.global.add.v4.f32 [{{$r0}}+{i * step}],"
            " {{$r1}, {$r2}, {$r3}, {$r4}};",
            read_only_args=[address, *(values[VECTOR * i + j] for j in range(VECTOR))],
        )


def read(place: cute.Pointer, values: Any) -> None:
    """Read sums as the accumulators that were added to them.

    Args:
        place: `own_place`.
        values: fp32, in registers.
    """
    step = _THREADS * VECTOR
    for i in range(cute.size(values) // VECTOR):
        own = cute.make_tensor(values.iterator + VECTOR * i, cute.make_layout(VECTOR))
        cute.autovec_copy(cute.make_tensor(place + i * step, cute.make_layout(VECTOR)), own)
