"""Reducing warpgroup of the backward kernel: tiles of dQ to their sums in global memory.

A thread has a query, or of two blocks that compute together half of the columns of one.  Some
columns at a time go from tensor memory through shared memory, from where one bulk copy adds them to
the sums; two parts may be on their way.  Where blocks take turns, warps add what they have
themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import cutlass
from cutlass import Float32, Int32, cute

from flexfa4.kernels.backward import dq
from flexfa4.kernels.backward.parameters import Parameters
from flexfa4.kernels.sm100.backward.barriers import Barriers
from flexfa4.kernels.sm100.backward.plan import BackwardPlan
from flexfa4.primitives import tma, tmem
from flexfa4.primitives.clusters import own_rank
from flexfa4.primitives.semaphores import Turn
from flexfa4.primitives.tile_walk import Visits

_THREADS: Final = 128
_WARPS: Final = 4
_DIRECT: Final = 16  # columns that a thread adds from registers at once


@dataclass(frozen=True)
class Reduce:
    """The role of the reducing warpgroup.

    Attributes:
        plan: of the kernel.
        parameters: of the launch.
        barriers: of the block.
        staging: fp32 in shared memory, for the parts on their way.
        address: of tensor memory, in the lanes of the warp.
        warp: of the warpgroup.
        thread: of the warpgroup.
        barrier: number of the warpgroup's named barrier.
    """

    plan: BackwardPlan
    parameters: Parameters
    barriers: Barriers
    staging: cute.Pointer
    address: Int32
    warp: Int32
    thread: Int32
    barrier: int

    @cute.jit
    def take_in(self, tiles: Visits, place: tuple[Int32, Int32, Int32], phase: Int32) -> Int32:
        """Add the tiles of dQ of a head; return the phase behind them.

        Args:
            tiles: of queries, that a tile of keys visits.
            place: batch and head of the queries, and the tile of keys.
            phase: of the first one.
        """
        batch, head, _ = place
        for i in cutlass.range(tiles.partial_count, unroll=1):
            rank = self._rank(tiles, place, True, i)
            self._add((batch, head, tiles.partial(i)), rank, phase)
            phase = phase ^ 1
        for i in cutlass.range(tiles.full_count, unroll=1):
            rank = self._rank(tiles, place, False, i)
            self._add((batch, head, tiles.full(i)), rank, phase)
            phase = phase ^ 1
        return phase

    def _rank(self, tiles: Visits, place: Any, partial: bool, i: Int32) -> Int32:
        """Return whose turn it is at the i-th tile; 0 where there are no turns."""
        if not self.plan.ordered:
            return Int32(0)
        return Int32(self.parameters.ranks.rank(tiles, place[2], partial, i))

    @cute.jit
    def _add(self, place: tuple[Int32, Int32, Int32], rank: Int32, phase: Int32) -> None:
        """Add a tile.

        Args:
            place: batch, head and number of the tile.
            rank: how many tiles of keys add to it before, where they take turns.
            phase: of the barriers.
        """
        ordered = self.plan.ordered
        own = own_rank(self.plan.tiling.blocks)
        target = self.parameters.dq_of(*place) + own * self.plan.dq_order.part
        turn: Any = None
        if cutlass.const_expr(ordered):
            turn = Turn(self.parameters.turn_of(*place, own * _WARPS + self.warp), rank)
        self.barriers.wait("dq", phase)
        tmem.behind_barrier()
        if cutlass.const_expr(ordered):
            turn.wait(turn.look())
        for number in cutlass.range_constexpr(self._parts):
            values = self._load(number)
            if cutlass.const_expr(number == self._parts - 1):
                tmem.before_barrier()
                self.barriers.arrive("taken")
            if cutlass.const_expr(ordered):
                dq.add_vectors(self._own(target, number), values)
            else:
                self._add_staged(target, number, values)
        if cutlass.const_expr(ordered):
            turn.used().end()

    @property
    def _columns(self) -> int:
        """Columns of a part: a power of two, as what one instruction loads.

        Few where they are added from registers, one vector after the other.
        """
        columns = self.plan.tensor_memory.dq.columns
        most = _DIRECT if self.plan.ordered else self.plan.tiling.dq_columns
        return min(most, columns & -columns)

    @property
    def _parts(self) -> int:
        return self.plan.tensor_memory.dq.columns // self._columns

    @property
    def _numbers(self) -> int:
        """Numbers of a part, of all threads."""
        return self._columns * _THREADS

    def _load(self, number: int) -> Any:
        """Load a part of the thread's row."""
        values = cute.make_rmem_tensor(self._columns, Float32)
        start = self.address + (self.plan.tensor_memory.dq.first + number * self._columns)
        tmem.load(start, values)
        tmem.wait_for_loads()
        return values

    def _own(self, start: cute.Pointer, number: int) -> cute.Pointer:
        """Return where the thread's first numbers of a part lie."""
        return start + (number * self._numbers + self.thread * dq.VECTOR)

    @cute.jit
    def _add_staged(self, target: cute.Pointer, number: int, values: Any) -> None:
        stages = self.plan.tiling.dq_stages
        # the copy of what is overwritten now is the last but so many, if no tile ends in between
        later = stages - 1 if number > 0 or self._parts % stages == 0 else 0
        if self.warp == 0:
            cute.arch.cp_async_bulk_wait_group(later, read=True)
        self._sync()
        staged = self.staging + number % stages * self._numbers
        dq.write_vectors(staged + cute.assume(self.thread * dq.VECTOR, divby=dq.VECTOR), values)
        cute.arch.fence_proxy("async.shared", space="cta")
        self._sync()
        if self.warp == 0:
            with cute.arch.elect_one():
                tma.add_floats(staged, target + number * self._numbers, self._numbers)
                cute.arch.cp_async_bulk_commit_group()

    @cute.jit
    def finish(self) -> None:
        """Wait until the last part has been read from shared memory; before the block ends."""
        if self.warp == 0:
            cute.arch.cp_async_bulk_wait_group(0, read=True)

    def _sync(self) -> None:
        cute.arch.barrier(barrier_id=self.barrier, number_of_threads=_THREADS)
