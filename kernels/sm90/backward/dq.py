"""A tile of dQ from the accumulators of a warpgroup to its sums in global memory.

The sums are kept in the order of the accumulators (`plan.DqOrder`): what a thread adds at once lies
beside what the other threads of its warp add, whichever way it takes:

- straight from registers, 512 bytes with each instruction of a warp, or
- through shared memory, from where one bulk copy adds a whole part.

The numbers of a part are added by one warpgroup of a block; blocks add theirs in any order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import cutlass
from cutlass import Int32, cute

from flexfa4.kernels.sm90.backward.plan import DqOrder
from flexfa4.primitives import tma, wgmma

VECTOR: Final = 4
"""Numbers that one instruction of a thread adds."""


def own_place(order: DqOrder, tile: cute.Pointer, part: Int32 | int, thread: Int32) -> cute.Pointer:
    """Return where the first numbers of a thread lie in a tile of the workspace."""
    return tile + (part * order.part + thread * VECTOR)


@dataclass(frozen=True)
class Adder:
    """What a warpgroup adds its part of tiles with.

    Attributes:
        order: of a tile.
        part: which part it has.
        thread: in the warpgroup.
        staging: fp32 in shared memory for the part; None: the numbers go straight from registers.
        barrier: number of the warpgroup's named barrier.
    """

    order: DqOrder
    part: Int32
    thread: Int32
    staging: cute.Pointer | None
    barrier: Int32 | int

    def add(self, tile: cute.Pointer, values: Any) -> None:
        """Add a part of a tile to its sums.

        Args:
            tile: where these lie.
            values: the accumulators, fp32, in registers.
        """
        if self.staging is None:
            _add_vectors(own_place(self.order, tile, self.part, self.thread), values)
        else:
            self._add_staged(tile + self.part * self.order.part, self.staging, values)

    @cute.jit
    def finish(self) -> None:
        """Wait until the last part has been read from shared memory; before the block ends."""
        staged = self.staging is not None
        if cutlass.const_expr(staged):
            self._wait_for_the_last_copy()

    @cute.jit
    def _add_staged(self, target: cute.Pointer, staging: cute.Pointer, values: Any) -> None:
        self._wait_for_the_last_copy()
        self._sync()
        step = wgmma.THREADS * VECTOR
        for i in cutlass.range_constexpr(cute.size(values) // VECTOR):
            own = cute.make_tensor(values.iterator + VECTOR * i, cute.make_layout(VECTOR))
            place = staging + cute.assume(self.thread * VECTOR, divby=VECTOR) + i * step
            cute.autovec_copy(own, cute.make_tensor(place, cute.make_layout(VECTOR)))
        cute.arch.fence_proxy("async.shared", space="cta")
        self._sync()
        if self.thread < wgmma.WARP:
            with cute.arch.elect_one():
                tma.add_floats(staging, target, self.order.part)
                cute.arch.cp_async_bulk_commit_group()

    @cute.jit
    def _wait_for_the_last_copy(self) -> None:
        if self.thread < wgmma.WARP:
            cute.arch.cp_async_bulk_wait_group(0, read=True)

    def _sync(self) -> None:
        cute.arch.barrier(barrier_id=self.barrier, number_of_threads=wgmma.THREADS)


def _add_vectors(place: cute.Pointer, values: Any) -> None:
    address = place.toint()
    step = wgmma.THREADS * VECTOR * 4  # bytes
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
    step = wgmma.THREADS * VECTOR
    for i in range(cute.size(values) // VECTOR):
        own = cute.make_tensor(values.iterator + VECTOR * i, cute.make_layout(VECTOR))
        cute.autovec_copy(cute.make_tensor(place + i * step, cute.make_layout(VECTOR)), own)
