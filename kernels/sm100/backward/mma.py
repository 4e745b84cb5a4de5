"""Product warp of the backward kernel: issues the five products of each tile of queries.

With S the scores and dP the gradients of probabilities, keys by queries, in the order of issue, as
the plan of tensor memory has room for it (`tmem`)::

    S0 dP0 | dV0 S1 dK0 dP1 dQ0 | dV1 S2 dK1 dP2 dQ1 | .. | dV dK dQ
    S0 dP0 | dV0 S1 dK0 dQ0 dP1 | dV1 S2 dK1 dQ1 dP2 | .. | dV dK dQ
    S0 dP0 | dV0 dK0 dQ0 S1 dP1 | dV1 dK1 dQ1 S2 dP2 | .. | dV dK dQ

In the first order, products run at all times: dK0 and dP1 while the scores of the next tile are
exponentiated, dQ0, dV1 and S2 while its gradients are computed.  Products are done in order: S1 may
take the place of the probabilities that dV0 reads, and dP1 or dQ0 that of the gradients that dK0
reads.

Of two blocks that compute together, the first one's warp issues for both: 256 keys are the rows of
all products but dQ, which has the queries, half of them in each block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import Boolean, Int32, cute

from flexfa4.kernels.sm100.backward.barriers import Barriers
from flexfa4.kernels.sm100.backward.load import Places, Rings
from flexfa4.kernels.sm100.backward.plan import BackwardPlan
from flexfa4.kernels.sm100.backward.tmem import GROUPS, Region
from flexfa4.primitives import tcgen05, tmem
from flexfa4.primitives.pipeline import Position, Ring
from flexfa4.primitives.tcgen05 import DEPTH, SharedTile, TensorTile


@dataclass(frozen=True)
class Products:
    """The role of the product warp.

    Attributes:
        plan: of the kernel.
        rings: of loaded tiles.
        barriers: of the block.
        shared: address of dynamic shared memory.
        address: of tensor memory.
    """

    plan: BackwardPlan
    rings: Rings
    barriers: Barriers
    shared: Int32
    address: Int32

    @cute.jit
    def issue_item(
        self, count: Int32, kv_at: Position, of_items: Int32, at: Places, phase: Int32
    ) -> tuple[Places, Int32]:
        """Issue the products of an item.

        Args:
            count: tiles of queries that its keys meet.
            kv_at: where K and V are.
            of_items: phase of what happens once for an item.
            at: places of the first tile of queries.
            phase: of what happens for each tile.

        Returns:
            Place and phase behind the item.
        """
        self.rings.k.wait(kv_at)
        self.rings.v.wait(kv_at)
        self.barriers.wait("emptied", of_items ^ 1)
        steps = self.plan.tensor_memory.steps
        if count > 0:
            self._begin_scores(kv_at, at, phase ^ 1)
            self._begin_changes(kv_at, at, phase, phase ^ 1)
        for i in cutlass.range(count, unroll=1):
            following, further = at.next(), Boolean(i + 1 < count)
            last = phase ^ 1  # of the dQ before
            for number in cutlass.range_constexpr(len(steps)):
                step = steps[number]
                if cutlass.const_expr(step == "dv"):
                    self._add_dv(at, phase, Boolean(i > 0))
                elif cutlass.const_expr(step == "dk"):
                    self._add_dk(at, phase, Boolean(i > 0))
                elif cutlass.const_expr(step == "dq"):
                    self._begin_dq(kv_at, phase, further)
                    last = phase
                elif cutlass.const_expr(step == "next scores"):
                    if further:
                        self._begin_scores(kv_at, following, last)
                else:
                    if further:
                        self._begin_changes(kv_at, following, phase ^ 1, last)
            at = following
            phase = phase ^ 1
        with cute.arch.elect_one():
            self._commit("sums")
            self._give_back(self.rings.k, kv_at)
            self._give_back(self.rings.v, kv_at)
        return at, phase

    # ---- products of a tile ----------------------------------------------------------------------

    @cute.jit
    def _begin_scores(self, kv_at: Position, at: Places, last: Int32) -> None:
        """Issue scores; `last`: phase of the last dQ."""
        storage, memory = self.plan.storage, self.plan.tensor_memory
        k = self._tile(storage.k, storage.k_at, kv_at)
        at_q = at.of(storage.q)
        q = self._tile(storage.q, storage.q_at, at_q)
        self.rings.q.wait(at_q)
        if cutlass.const_expr("next scores" in memory.wait_for_dq):
            self.barriers.wait("taken", last)
        tmem.behind_barrier()
        with cute.arch.elect_one():
            self._multiply(memory.scores[0], k, q, storage.q.columns)
            self._commit("scores")
            if cutlass.const_expr(self._blocks > 1):
                self._give_back(self.rings.q, at_q)

    @cute.jit
    def _begin_changes(self, kv_at: Position, at: Places, phase: Int32, last: Int32) -> None:
        """Issue the gradients of probabilities; `phase`: of their tile, `last`: of the last dQ."""
        storage, memory = self.plan.storage, self.plan.tensor_memory
        v = self._tile(storage.v, storage.v_at, kv_at)
        at_do = at.of(storage.do)
        do = self._tile(storage.do, storage.do_at, at_do)
        self.rings.do.wait(at_do)
        if cutlass.const_expr("next changes" in memory.wait_for_dq):
            self.barriers.wait("taken", last)
        if cutlass.const_expr(memory.scores_until == "next changes"):
            self.barriers.wait("read", phase)
        tmem.behind_barrier()
        with cute.arch.elect_one():
            self._multiply(memory.changes[0], v, do, storage.do.columns)
            self._commit("changes")
            if cutlass.const_expr(self._blocks > 1):
                self._give_back(self.rings.do, at_do)

    @cute.jit
    def _add_dv(self, at: Places, phase: Int32, accumulate: Boolean) -> None:
        storage, memory = self.plan.storage, self.plan.tensor_memory
        tile = storage.do_of_dv
        do = self._tile(tile, storage.do_of_dv_at, at.of(tile), transposed=True)
        if cutlass.const_expr(self._blocks > 1):
            self.rings.do_of_dv.wait(at.of(tile))
        self.barriers.wait("probabilities", phase)
        tmem.behind_barrier()
        with cute.arch.elect_one():
            self._multiply_rounded(memory.dv, memory.probabilities, do, accumulate)
            self._give_back(self.rings.do_of_dv, at.of(tile))

    @cute.jit
    def _add_dk(self, at: Places, phase: Int32, accumulate: Boolean) -> None:
        storage, memory = self.plan.storage, self.plan.tensor_memory
        tile = storage.q_of_dk
        q = self._tile(tile, storage.q_of_dk_at, at.of(tile), transposed=True)
        if cutlass.const_expr(self._blocks > 1):
            self.rings.q_of_dk.wait(at.of(tile))
        self.barriers.wait("gradients", phase)
        tmem.behind_barrier()
        with cute.arch.elect_one():
            self._multiply_rounded(memory.dk, memory.gradients, q, accumulate)
            self._give_back(self.rings.q_of_dk, at.of(tile))

    @cute.jit
    def _begin_dq(self, kv_at: Position, phase: Int32, further: Boolean) -> None:
        storage, memory = self.plan.storage, self.plan.tensor_memory
        k = self._tile(storage.k_of_dq, storage.k_of_dq_at, kv_at, transposed=True)
        ds = SharedTile(
            self.shared + storage.ds_at, storage.ds.rows, storage.ds.swizzle, transposed=True
        )
        self.barriers.wait("shared", phase)
        if cutlass.const_expr("dq" in memory.wait_for_dq):
            self.barriers.wait("taken", phase ^ 1)
        if cutlass.const_expr(memory.scores_until == "dq"):  # noqa: SIM102 (decided when compiled)
            if further:
                self.barriers.wait("read", phase ^ 1)
        tmem.behind_barrier()
        with cute.arch.elect_one():
            self._multiply(memory.dq, ds, k, storage.ds.rows)
            self._commit("dq")

    # ---- issue -----------------------------------------------------------------------------------

    def _multiply(self, target: Region, a: SharedTile, b: SharedTile, depth: int) -> None:
        """Issue a product of two tiles in shared memory, over a depth."""
        plan, tiling = self.plan, self.plan.tiling
        of_dq = a.transposed  # the only one that has queries for rows, and head dim for columns
        kind = tcgen05.instruction(
            plan.element,
            tiling.queries if of_dq else tiling.keys,
            plan.head_dims[0] if of_dq else tiling.queries,
            b_is_transposed=b.transposed,
            a_is_transposed=a.transposed,
        )
        accumulator, steps = self.address + target.first, range(depth // DEPTH)
        tcgen05.issue(kind, accumulator, a, b, steps, accumulate=False, blocks=self._blocks)

    def _multiply_rounded(
        self, target: Region, parts: tuple[Region, ...], b: SharedTile, accumulate: Boolean
    ) -> None:
        """Add the product of what the warpgroups have rounded, and a tile in shared memory."""
        kind = tcgen05.instruction(
            self.plan.element, self.plan.tiling.keys, target.columns, b_is_transposed=True
        )
        steps = self.plan.tiling.queries // GROUPS // DEPTH
        adds: Any = accumulate
        for group, part in enumerate(parts):
            a = TensorTile(self.address + part.first - group * steps * DEPTH // 2)
            own = range(group * steps, (group + 1) * steps)
            tcgen05.issue(kind, self.address + target.first, a, b, own, adds, self._blocks)
            adds = True

    def _tile(self, tile: Any, start: int, at: Position, transposed: bool = False) -> SharedTile:
        """Return a tile of a ring as an operand; the whole warp."""
        stage: Any = 0 if tile.stages == 1 else cute.arch.make_warp_uniform(at.stage)
        place = self.shared + (start + stage * tile.bytes)
        return SharedTile(place, tile.rows, tile.swizzle, transposed)

    def _give_back(self, ring: Ring, at: Position) -> None:
        """Give a stage back when the products so far are done."""
        tcgen05.commit(ring.empty(at), self._blocks)

    def _commit(self, name: str) -> None:
        """Arrive on a barrier when the products so far are done."""
        tcgen05.commit(self.barriers.at(name), self._blocks)

    @property
    def _blocks(self) -> int:
        return self.plan.tiling.blocks
