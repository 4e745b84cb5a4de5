"""Product warp of the forward kernel: issues what the tensor cores compute for both halves.

In the order of issue, with S the scores and O the outputs of halves a and b at tiles 0, 1, ..::

    Sa0 Sb0 | Oa0 Sa1 Ob0 Sb1 | Oa1 Sa2 Ob1 Sb2 | .. | Oa Ob

so that the scores of a half are computed while the other one is exponentiated.  Products are done
in order: scores may take the place of the probabilities that the product in front of them reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import cutlass
from cutlass import Boolean, Int32, cute

from flexfa4.kernels.sm100.forward.barriers import Barriers, bit
from flexfa4.kernels.sm100.forward.halves import Halves
from flexfa4.kernels.sm100.forward.load import Rings
from flexfa4.kernels.sm100.forward.plan import ForwardPlan
from flexfa4.kernels.sm100.forward.storage import DEPTH, ROWS
from flexfa4.kernels.sm100.forward.tmem import HALVES
from flexfa4.kernels.sm100.search import KEYS
from flexfa4.primitives import tcgen05, tmem
from flexfa4.primitives.pipeline import Position
from flexfa4.primitives.tcgen05 import SharedTile, TensorTile

_TOGETHER: Final = 8
"""Products of scores in one piece of code, at most, where a mod leaves the softmax no registers to
spare: ptxas makes the descriptors of all products of a piece first, four uniform registers of a
warp's 80 for each.  With twelve, which a head dim of 192 takes, it spills what the softmax keeps,
and without them it does not (found by compiling the case table)."""


class Progress:
    """Where the product warp stands between items; a value that loops may carry.

    Attributes:
        q_at: in the ring of Q.
        at: in the ring of K and V.
        parities: of the probabilities' barriers, a bit for each half.
    """

    def __init__(self, q_at: Position, at: Position, parities: Int32) -> None:
        self.q_at, self.at, self.parities = q_at, at, parities

    def __extract_mlir_values__(self) -> list[Any]:
        return [
            *self.q_at.__extract_mlir_values__(),
            *self.at.__extract_mlir_values__(),
            self.parities.ir_value(),
        ]

    def __new_from_mlir_values__(self, values: list[Any]) -> Progress:
        return Progress(
            self.q_at.__new_from_mlir_values__(values[:2]),
            self.at.__new_from_mlir_values__(values[2:4]),
            Int32(values[4]),
        )


@dataclass(frozen=True)
class Products:
    """The role of the product warp.

    Attributes:
        plan: of the kernel.
        rings: of loaded tiles.
        barriers: of the halves.
        shared: address of dynamic shared memory.
        address: of tensor memory.
    """

    plan: ForwardPlan
    rings: Rings
    barriers: Barriers
    shared: Int32
    address: Int32

    @cute.jit
    def issue_item(self, halves: Halves, progress: Progress) -> Progress:
        """Issue the products of an item.

        Args:
            halves: of the item.
            progress: where this warp stands.

        Returns:
            Where it stands then.
        """
        count = halves.tiles.partial_count + halves.tiles.full_count
        at, parities, q_at = progress.at, progress.parities, progress.q_at
        started = Int32(0)
        before = Int32(0)
        if count > 0:
            before = halves.of_visit(0)
            self._begin(before, q_at, at)
            at = self._behind_k(at)
        for i in cutlass.range(1, count, unroll=1):
            now = halves.of_visit(i)
            self._step(before, now, started, parities, at)
            at = self._behind_k(self._behind_v(at))
            started = started | before
            parities = parities ^ before
            before = now
        self._release_q(q_at)
        if count > 0:
            self._finish(before, started, parities, at)
            at = self._behind_v(at)
        return Progress(q_at.moved(HALVES), at, parities ^ before)

    @cute.jit
    def _begin(self, now: Int32, q_at: Position, at: Position) -> None:
        """Issue the scores of the first tile."""
        self._wait_for_k(at)
        for half in cutlass.range_constexpr(HALVES):
            self.rings.q.wait(q_at)
            tmem.behind_barrier()
            self._issue_scores(half, now, at)
            q_at = q_at.next()
        self._release_k(at)

    @cute.jit
    def _step(
        self, before: Int32, now: Int32, started: Int32, parities: Int32, at: Position
    ) -> None:
        """Issue the values of a tile and the scores of the next one."""
        k_at = self._behind_v(at)
        self._wait_for_v(at)
        for half in cutlass.range_constexpr(HALVES):
            self._issue_values(half, before, started, parities, at)
            if cutlass.const_expr(half == HALVES - 1):
                self._release_v(at)
            if cutlass.const_expr(half == 0):
                self._wait_for_k(k_at)
                tmem.behind_barrier()
            self._issue_scores(half, now, k_at)
        self._release_k(k_at)

    @cute.jit
    def _finish(self, before: Int32, started: Int32, parities: Int32, at: Position) -> None:
        """Issue the values of the last tile; each half's output is whole then, if it has any."""
        self._wait_for_v(at)
        for half in cutlass.range_constexpr(HALVES):
            self._issue_values(half, before, started, parities, at)
            if bit(started | before, half):
                with cute.arch.elect_one():
                    tcgen05.commit(self.barriers.at("out", half), self._blocks)
        self._release_v(at)

    # ---- products --------------------------------------------------------------------------------

    @cute.jit
    def _issue_scores(self, half: int, now: Int32, at: Position) -> None:
        """Issue the scores of a half, if it sees the tile."""
        if bit(now, half):
            stages = self._stages(at, self.plan.storage.k_parts)
            pieces = self._pieces()
            shared = self.shared
            if cutlass.const_expr(len(pieces) > 1):
                # not known to be constant, or descriptors of Q would be kept for the whole walk
                shared = cute.arch.make_warp_uniform(shared)
            for i in cutlass.range_constexpr(len(pieces)):
                with cute.arch.elect_one():
                    self._multiply_scores(half, shared, stages, pieces[i])
                    if cutlass.const_expr(i == len(pieces) - 1):
                        tcgen05.commit(self.barriers.at("scores", half), self._blocks)

    def _pieces(self) -> list[range]:
        """Return which parts of K are multiplied in one piece of code, in order.

        All are, but where a mod has made tiles of fewer keys, for its registers.
        """
        parts, steps = self.plan.storage.k_parts, self.plan.storage.k.columns // DEPTH
        crowded = self.plan.tiling.keys < KEYS[0]
        together = max(1, _TOGETHER // steps) if crowded else parts
        return [range(parts)[first : first + together] for first in range(0, parts, together)]

    def _multiply_scores(self, half: int, shared: Int32, stages: list[Int32], parts: range) -> None:
        storage, memory = self.plan.storage, self.plan.tensor_memory
        q, k = storage.q, storage.k
        kind = self._instruction(k.rows, b_is_transposed=False)
        steps = k.columns // DEPTH
        for part in parts:
            # a part of K has whole slabs: those of Q that belong to it
            skipped = part * k.slabs * q.rows * q.swizzle
            a = SharedTile(shared + (storage.q_at + half * q.bytes + skipped), q.rows, q.swizzle)
            b = SharedTile(stages[part], k.rows, k.swizzle)
            target = self.address + memory.scores[half]
            tcgen05.issue(kind, target, a, b, range(steps), part > 0, self._blocks)

    @cute.jit
    def _issue_values(
        self, half: int, before: Int32, started: Int32, parities: Int32, at: Position
    ) -> None:
        """Issue the values of a half, if it has seen the tile, as its probabilities arrive."""
        if bit(before, half):
            parity = (parities >> half) & 1
            accumulates = Boolean(bit(started, half))
            tiling = self.plan.tiling
            steps, early = tiling.keys // DEPTH, tiling.early // DEPTH
            stages = self._stages(at, self.plan.storage.v_parts)
            self.barriers.wait("probabilities", half, parity)
            tmem.behind_barrier()
            with cute.arch.elect_one():
                self._multiply_values(half, stages, range(early), accumulates)
            self.barriers.wait("rest", half, parity)
            tmem.behind_barrier()
            with cute.arch.elect_one():
                self._multiply_values(half, stages, range(early, steps), True)

    def _multiply_values(
        self, half: int, stages: list[Int32], steps: range, accumulates: Boolean | bool
    ) -> None:
        storage, memory = self.plan.storage, self.plan.tensor_memory
        v = storage.v
        kind = self._instruction(v.columns, b_is_transposed=True)
        of_part = v.rows // DEPTH
        for part, stage in enumerate(stages):
            first = part * of_part
            own = [step for step in steps if first <= step < first + of_part]
            if own:
                columns = memory.probabilities[half] + first * DEPTH // 2
                a = TensorTile(self.address + columns)
                b = SharedTile(stage, v.rows, v.swizzle, transposed=True)
                target = self.address + memory.out[half]
                inside = range(own[0] - first, own[-1] - first + 1)
                tcgen05.issue(kind, target, a, b, inside, accumulates, self._blocks)
                accumulates = True

    @property
    def _blocks(self) -> int:
        return self.plan.tiling.blocks

    def _instruction(self, columns: int, *, b_is_transposed: bool) -> int:
        """Return the instruction descriptor for a block's part of the columns of B."""
        blocks = self._blocks
        return tcgen05.instruction(
            self.plan.element, ROWS * blocks, columns * blocks, b_is_transposed=b_is_transposed
        )

    def _stages(self, at: Position, parts: int) -> list[Int32]:
        """Return the addresses of parts in the ring; the whole warp."""
        storage, found = self.plan.storage, []
        for _ in range(parts):
            stage = cute.arch.make_warp_uniform(at.stage)
            found.append(self.shared + (storage.ring_at + stage * storage.stage_bytes))
            at = at.next()
        return found

    # ---- tiles -----------------------------------------------------------------------------------

    def _behind_k(self, at: Position) -> Position:
        return at.moved(self.plan.storage.k_parts)

    def _behind_v(self, at: Position) -> Position:
        return at.moved(self.plan.storage.v_parts)

    def _wait_for_k(self, at: Position) -> None:
        self._wait(at, self.plan.storage.k_parts)

    def _wait_for_v(self, at: Position) -> None:
        self._wait(at, self.plan.storage.v_parts)

    def _release_k(self, at: Position) -> None:
        self._release(at, self.plan.storage.k_parts)

    def _release_v(self, at: Position) -> None:
        self._release(at, self.plan.storage.v_parts)

    def _wait(self, at: Position, parts: int) -> None:
        for _ in range(parts):
            self.rings.k.wait(at)
            at = at.next()

    def _release(self, at: Position, parts: int) -> None:
        """Give parts back when the products so far are done."""
        with cute.arch.elect_one():
            for _ in range(parts):
                tcgen05.commit(self.rings.k.empty(at), self._blocks)
                at = at.next()

    def _release_q(self, at: Position) -> None:
        """Give Q back when the products so far are done, unless the output takes its place."""
        self.rings.q.wait(at)  # it was loaded, even if nothing is visible
        self.rings.q.wait(at.next())
        if self.plan.storage.out_takes_place_of_q:
            return
        with cute.arch.elect_one():
            for _ in range(HALVES):
                tcgen05.commit(self.rings.q.empty(at), self._blocks)
                at = at.next()
