"""Consumer warpgroups of the backward kernel: five products for each tile of queries.

::

    S  = K Q^T      P  = exp2(score(S) - lse)
    dP = V dO^T     dS = P * (dP - delta) * score'(S)
    dV += P dO      dK += dS Q      dQ += dS^T K

with P and dS transposed: keys by queries.  Those of a tile are operands of the products for dV and
dK in the registers that they were computed in; for that of dQ, which sums over the keys of all
warpgroups, dS goes through shared memory.  Where registers do not suffice, so it goes for the
others, too.

A warpgroup adds its part of a tile of dQ straight from registers, or leaves it to a warp that does
nothing else (`flexfa4.kernels.sm90.backward.outbox`); that who adds waits for its turn, where sums
have to have the same bits on every run.  Here all five products of a tile come before those of the
next; in `flexfa4.kernels.sm90.backward.lagged` that for dQ does not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import Float32, Int32, cute

from flexfa4.kernels.backward import dq
from flexfa4.kernels.backward.parameters import Parameters
from flexfa4.kernels.backward.plan import STATISTICS
from flexfa4.kernels.backward.scores import KeyScores, Statistics
from flexfa4.kernels.forward.tiles import ELEMENT, TileShape
from flexfa4.kernels.sm90.backward.load import Places, Rings
from flexfa4.kernels.sm90.backward.outbox import NOBODY, Outbox
from flexfa4.kernels.sm90.backward.storage import Storage
from flexfa4.primitives import wgmma
from flexfa4.primitives.pipeline import Position, Ring
from flexfa4.primitives.semaphores import Turn, UsedTurn
from flexfa4.primitives.tile_walk import Visits


@dataclass(frozen=True)
class Operands:
    """Fragments of one warpgroup's products: descriptors of shared memory, and registers.

    Attributes:
        score, change, dv, dk, dq: the tiled products; the second is that of dP.
        k, q: A and B of S; v, do: of dP, B for each of its parts.  ``(.., 1, depth/16, stages)``,
            as what follows.
        do_of_dv, q_of_dk, k_of_dq: B of the other products.
        ds_of_dq: A of that for dQ.
        p, ds: A of those for dV and dK: ``(.., 1, queries/16)`` in registers, or in shared memory
            with stages.
        p_rounded, ds_rounded: P and (a part of) dS in registers.
        p_tile: the warpgroup's part of P in shared memory, ``(64, queries, stages)``; None where it
            does not go there.
        ds_tiles: likewise dS, for each of its parts.
        sum_v, sum_k: dV and dK, fp32.
    """

    score: Any
    change: Any
    dv: Any
    dk: Any
    dq: Any
    k: Any
    q: Any
    v: Any
    do: list[Any]
    do_of_dv: Any
    q_of_dk: Any
    k_of_dq: Any
    ds_of_dq: Any
    p: Any
    ds: Any
    p_rounded: Any
    ds_rounded: Any
    p_tile: Any
    ds_tiles: list[Any]
    sum_v: Any
    sum_k: Any


@dataclass(frozen=True)
class Consumer:
    """The role of a consumer warpgroup.

    Attributes:
        storage: what lies where in shared memory.
        parameters: of the launch.
        rings: shared with the producer.
        operands: of the warpgroup's products.
        statistics: those of the first stage, at the thread's first column, in shared memory.
        barrier: number of the named barrier of all consumers.
        warpgroup: its number among the consumers.
        thread: in the warpgroup.
        kv_stage: where K and V are.
        outbox: where the warpgroup leaves its part of dQ; None where it adds that itself.
    """

    storage: Storage
    parameters: Parameters
    rings: Rings
    operands: Operands
    statistics: cute.Pointer
    barrier: int
    warpgroup: Int32
    thread: Int32
    kv_stage: Int32 | int = 0
    outbox: Outbox | None = None

    def begin(self, base: cute.Pointer) -> None:
        """Make ready for the first tile; `base` is the start of shared memory."""

    def finish(self, at: Places) -> None:
        """Do what is left to do behind the last tile."""
        if self.outbox is not None:
            self.outbox.close(at.mail, self.thread)

    @cute.jit
    def take_in(
        self,
        scores: KeyScores,
        tiles: Visits,
        place: tuple[Int32, Int32, Int32],
        at: Places,
    ) -> Places:
        """Take in the tiles of queries of a head; return the places behind them.

        Args:
            scores: of the tile of keys with the head's queries.
            tiles: that it visits.
            place: batch and head of the queries, and the tile of keys.
            at: the places of the first one.
        """
        batch, head, _ = place
        used = UsedTurn.none()
        for i in cutlass.range(tiles.partial_count, unroll=1):
            q_tile = (batch, head, tiles.partial(i))
            rank = self._rank(tiles, place, True, i)
            at, used = self._step(scores, q_tile, rank, (at, used), True)
        for i in cutlass.range(tiles.full_count, unroll=1):
            q_tile = (batch, head, tiles.full(i))
            rank = self._rank(tiles, place, False, i)
            at, used = self._step(scores, q_tile, rank, (at, used), False)
        if cutlass.const_expr(self._takes_turns):
            used.end()
        return at

    @property
    def _takes_turns(self) -> bool:
        """Whether the warpgroup itself waits for its turns, rather than who empties its outbox."""
        return self.outbox is None and self.parameters.plan.ordered

    def _rank(self, tiles: Visits, place: Any, partial: bool, i: Int32) -> Int32:
        """Return whose turn it is at the i-th tile; 0 where there are no turns."""
        parameters = self.parameters
        if not parameters.plan.ordered:
            return Int32(0)
        return Int32(parameters.ranks.rank(tiles, place[2], partial, i))

    @cute.jit
    def _step(
        self,
        scores: KeyScores,
        place: tuple[Int32, Int32, Int32],
        rank: Int32,
        before: tuple[Places, UsedTurn],
        masked: bool,
    ) -> tuple[Places, UsedTurn]:
        """Take in a tile of queries.

        Args:
            scores: of the tile of keys with a head's queries.
            place: batch, head and number of the tile.
            rank: how many tiles of keys add to its dQ before, where they take turns.
            before: where it is, and the turn that was used for the last tile.
            masked: it needs the mask.

        Returns:
            The places of the next tile, and the turn that was used for this one.
        """
        at, used = before
        o, rings, tiling = self.operands, self.rings, self.parameters.plan.tiling
        shape = o.score.partition_shape_C((wgmma.ROWS, tiling.score_columns))
        s = cute.make_rmem_tensor(shape, Float32)
        rings.q.wait(at.q)
        q = o.q[None, None, None, at.q.stage]
        wgmma.issue(o.score, s, o.k[None, None, None, self.kv_stage], q, accumulate=False)
        rings.do.wait(at.do)
        dp = self._issue_dp(at, 0)
        if cutlass.const_expr(self._takes_turns):
            used.end()
        tile = scores.at_tile(place[2], masked)
        wgmma.wait(1)
        if cutlass.const_expr(tiling.ds_stages == 1):
            self.sync()  # all are done with the last tile's
        tile.probabilities(s, self._statistics(at.q, 0), o.p_rounded if tiling.early else None)
        if cutlass.const_expr(tiling.early):
            self._begin_dv(at)
        for part in cutlass.range_constexpr(tiling.dp_parts):
            wgmma.wait(1 if tiling.early and tiling.in_registers else 0)
            also = None if tiling.early else o.p_rounded
            first = part * cute.size(dp)
            tile.gradients(s, dp, self._statistics(at.q, 1), also, first)
            wgmma.round_to(o.ds_rounded, dp)
            if cutlass.const_expr(tiling.in_registers):
                wgmma.settle(o.ds_rounded)
            self._to_shared(o.ds_rounded, o.ds_tiles[part], o.change, at)
            if cutlass.const_expr(part + 1 < tiling.dp_parts):
                dp = self._issue_dp(at, part + 1)
        if cutlass.const_expr(not tiling.early):
            self._begin_dv(at)
        cute.arch.fence_proxy("async.shared", space="cta")
        self.sync()
        if cutlass.const_expr(not tiling.in_registers):
            self._add_dv(at)
        sums = self._begin_dq(at)
        wgmma.wait(1)
        self._release(rings.do, at.do)
        self._add_dk(at)
        if cutlass.const_expr(self._takes_turns):
            warp = (self.warpgroup * wgmma.THREADS + self.thread) // wgmma.WARP
            turn = Turn(self.parameters.turn_of(*place, warp), rank)
            seen = turn.look()
            wgmma.wait(0)  # what waits for others must not hold up a product
            self._release(rings.q, at.q)
            turn.wait(seen)
            self._add(place, sums)
            used = turn.used()
        else:
            wgmma.wait(1)
            if cutlass.const_expr(self.outbox is None):
                self._add(place, sums)
            else:
                at = self._post(at, Int32(self.parameters.tile_number(*place)), rank, sums)
            wgmma.wait(0)
            self._release(rings.q, at.q)
        return at.next(), used

    def _add(self, place: tuple[Int32, Int32, Int32], sums: Any) -> None:
        """Add a part of dQ straight from registers."""
        order, tile = self.parameters.plan.dq_order, self.parameters.dq_of(*place)
        dq.add_vectors(dq.own_place(order, tile, self.warpgroup, self.thread), sums)

    def _post(self, at: Places, receiver: Int32, rank: Int32, sums: Any) -> Places:
        """Leave a part of dQ in the outbox; return the places behind that."""
        assert self.outbox is not None
        beside = rank if self.parameters.plan.ordered else Int32(NOBODY)
        self.outbox.put(at.mail, self.thread, (receiver, beside), sums)
        self._tell_asynchronous()
        self.outbox.send(self.thread)
        return at.posted()

    def _tell_asynchronous(self) -> None:
        """Let asynchronous copies and products see what the warp has written to shared memory.

        A lane of it then tells who waits for that.
        """
        cute.arch.fence_proxy("async.shared", space="cta")
        cute.arch.sync_warp()

    def _begin_dq(self, at: Places) -> Any:
        """Begin the product for the warpgroup's part of dQ; return its accumulator."""
        o, columns = self.operands, self.parameters.plan.dq_order.columns
        sums = cute.make_rmem_tensor(o.dq.partition_shape_C((wgmma.ROWS, columns)), Float32)
        ds = o.ds_of_dq[None, None, None, at.ds.stage]
        wgmma.issue(o.dq, sums, ds, o.k_of_dq[None, None, None, self.kv_stage], accumulate=False)
        return sums

    def _issue_dp(self, at: Places, part: int) -> Any:
        """Begin the product for a part of dP; return its accumulator."""
        o, tiling = self.operands, self.parameters.plan.tiling
        columns = tiling.score_columns // tiling.dp_parts
        dp = cute.make_rmem_tensor(o.change.partition_shape_C((wgmma.ROWS, columns)), Float32)
        do = o.do[part][None, None, None, at.do.stage]
        wgmma.issue(o.change, dp, o.v[None, None, None, self.kv_stage], do, accumulate=False)
        return dp

    def _begin_dv(self, at: Places) -> None:
        """Begin the product for dV, or at least write P to shared memory for it."""
        if self.parameters.plan.tiling.in_registers:
            self._add_dv(at)
        else:
            o = self.operands
            self._to_shared(o.p_rounded, o.p_tile, o.score, at)

    def _add_dv(self, at: Places) -> None:
        o = self.operands
        if self.parameters.plan.tiling.in_registers:
            wgmma.settle(o.p_rounded)
        b = o.do_of_dv[None, None, None, at.do.stage]
        wgmma.issue(o.dv, o.sum_v, self._operand(o.p, at), b, accumulate=True)

    def _add_dk(self, at: Places) -> None:
        o = self.operands
        b = o.q_of_dk[None, None, None, at.q.stage]
        wgmma.issue(o.dk, o.sum_k, self._operand(o.ds, at), b, accumulate=True)

    def _operand(self, operand: Any, at: Places) -> Any:
        in_registers = self.parameters.plan.tiling.in_registers
        return operand if in_registers else operand[None, None, None, at.ds.stage]

    def _statistics(self, at: Position, which: int) -> Statistics:
        """Return one of the statistics of the queries in the thread's columns."""
        queries = self.storage.q.rows
        place = self.statistics + (at.stage * (STATISTICS * queries) + which * queries)
        return Statistics(place, self.parameters.plan.fragment)

    def _to_shared(self, rounded: Any, tiles: Any, product: Any, at: Places) -> None:
        """Write P or dS, or a part of it, to shared memory."""
        columns = cute.size(rounded) // 2 * 4
        shape = product.partition_shape_C((wgmma.ROWS, columns))
        like = cute.make_rmem_tensor(shape, rounded.element_type)
        values = cute.make_tensor(rounded.iterator, like.layout)
        tile = tiles[None, None, at.ds.stage]
        wgmma.to_shared(product, values, tile, self.thread, transposed=True)

    def sync(self) -> None:
        """Wait for all consumers."""
        threads = self.parameters.plan.tiling.warpgroups * wgmma.THREADS
        cute.arch.barrier(barrier_id=self.barrier, number_of_threads=threads)

    @cute.jit
    def _release(self, ring: Ring, at: Position) -> None:
        if self.thread % wgmma.WARP == 0:
            ring.release(at)


def make_operands(
    storage: Storage, parameters: Parameters, base: cute.Pointer, warpgroup: Int32, thread: Int32
) -> Operands:
    """Return a warpgroup's fragments; `base` is the start of shared memory, of the dtype."""
    dtype, plan = base.dtype, parameters.plan
    tiling, (head_dim, head_dim_v) = plan.tiling, plan.head_dims
    in_registers, queries = tiling.in_registers, tiling.queries
    columns, dq_columns = tiling.score_columns, plan.dq_order.columns
    of_rows = warpgroup if tiling.by_keys else 0
    of_columns = 0 if tiling.by_keys else warpgroup

    def tiles(tile: TileShape, at: int, stages: int) -> Any:
        return wgmma.tile(base + at // ELEMENT, tile.rows, tile.columns, stages, tile.swizzle)

    q, do = (
        tiles(storage.q, storage.q_at, tiling.q_stages),
        tiles(storage.do, storage.do_at, tiling.do_stages),
    )
    k, v = (
        tiles(storage.k, storage.k_at, tiling.kv_stages),
        tiles(storage.v, storage.v_at, tiling.kv_stages),
    )
    ds = tiles(storage.ds, storage.ds_at, tiling.ds_stages)

    def part(tile: Any, rows: int, depth: int, number: Any) -> Any:
        return cute.local_tile(tile, (rows, depth, cute.size(tile, mode=[2])), (number, 0, 0))

    def gradient(dim: int) -> Any:
        return wgmma.product(
            dtype,
            tiling.gradient_columns(dim),
            b_is_transposed=True,
            a_in_registers=in_registers,
            a_is_transposed=not in_registers,
        )

    score = wgmma.product(dtype, columns, b_is_transposed=False, a_in_registers=False)
    narrow = columns // tiling.dp_parts
    change = wgmma.product(dtype, narrow, b_is_transposed=False, a_in_registers=False)
    of_score, of_change = score.get_slice(thread), change.get_slice(thread)
    dv, dk = gradient(head_dim_v), gradient(head_dim)
    dq_product = wgmma.product(dtype, dq_columns, b_is_transposed=True, a_in_registers=False)
    of_dq = dq_product.get_slice(thread)

    def rounded(product: Any, count: int) -> Any:
        shape = product.partition_shape_C((wgmma.ROWS, count))
        return wgmma.operand_of(cute.make_rmem_tensor(shape, Float32), dtype)

    p_rounded, ds_rounded = rounded(score, columns), rounded(change, narrow)

    def own_part(tile: Any, width: int, number: Any) -> Any:
        """Return a part of P or dS that the warpgroup computes, keys by queries."""
        shape = (wgmma.ROWS, width, cute.size(tile, mode=[2]))
        return cute.local_tile(wgmma.transposed(tile), shape, (of_rows, number, 0))

    parts = [of_columns * tiling.dp_parts + i for i in range(tiling.dp_parts)]

    def a_of(product: Any, tile: Any) -> Any:
        sliced = product.get_slice(thread)
        keys = part(wgmma.transposed(tile), wgmma.ROWS, queries, of_rows)
        return product.make_fragment_A(sliced.partition_A(keys))

    def b_of(product: Any, tile: Any, width: int, number: Any) -> Any:
        sliced = product.get_slice(thread)
        depth = cute.size(tile, mode=[0])
        own = part(wgmma.transposed(tile), width, depth, number)
        return product.make_fragment_B(sliced.partition_B(own))

    def sums(product: Any, dim: int) -> Any:
        shape = product.partition_shape_C((wgmma.ROWS, tiling.gradient_columns(dim)))
        return cute.make_rmem_tensor(shape, Float32)

    p_tile = None
    p, ds_operand = p_rounded, ds_rounded
    if not in_registers:
        p_shared = tiles(storage.ds, storage.p_at, tiling.ds_stages)
        p_tile = own_part(p_shared, columns, of_columns)
        p, ds_operand = a_of(dv, p_shared), a_of(dk, ds)
    dq_rows = warpgroup if tiling.dq_by_rows else 0
    return Operands(
        score=score,
        change=change,
        dv=dv,
        dk=dk,
        dq=dq_product,
        k=score.make_fragment_A(of_score.partition_A(part(k, wgmma.ROWS, head_dim, of_rows))),
        q=score.make_fragment_B(of_score.partition_B(part(q, columns, head_dim, of_columns))),
        v=change.make_fragment_A(of_change.partition_A(part(v, wgmma.ROWS, head_dim_v, of_rows))),
        do=[
            change.make_fragment_B(of_change.partition_B(part(do, narrow, head_dim_v, number)))
            for number in parts
        ],
        do_of_dv=b_of(dv, do, tiling.gradient_columns(head_dim_v), of_columns),
        q_of_dk=b_of(dk, q, tiling.gradient_columns(head_dim), of_columns),
        k_of_dq=b_of(dq_product, k, dq_columns, 0 if tiling.dq_by_rows else warpgroup),
        ds_of_dq=dq_product.make_fragment_A(
            of_dq.partition_A(part(ds, wgmma.ROWS, tiling.keys, dq_rows))
        ),
        p=p,
        ds=ds_operand,
        p_rounded=p_rounded,
        ds_rounded=ds_rounded,
        p_tile=p_tile,
        ds_tiles=[own_part(ds, narrow, number) for number in parts],
        sum_v=sums(dv, head_dim_v),
        sum_k=sums(dk, head_dim),
    )
