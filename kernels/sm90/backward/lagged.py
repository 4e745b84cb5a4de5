"""A consumer whose product for dQ lags behind by a tile of queries.

dQ sums over the keys of all warpgroups, so its product has to wait until all have written their
part of dS.  Where it is computed with the tile that dS belongs to, all warpgroups wait for each
other, and then compute their probabilities at the same time, while no product is under way.  Here
it begins behind the scores of the next tile: by then the others have long written dS, it runs
beside the computation of probabilities, and warpgroups may be apart by most of a tile::

    tile i      S(i)  dQ(i-1)  |  dP(i)  dV(i)  |  dK(i)
    meanwhile         P(i)     |         dS(i)  |

The first tile has none before it.  A branch around a product would keep the compiler from letting
any two run at once, so there it is computed of zeros, or of an older tile's dS, for nobody.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import Int32, cute

from flexfa4.kernels.backward.scores import KeyScores
from flexfa4.kernels.sm90.backward.consume import Consumer
from flexfa4.kernels.sm90.backward.load import Places
from flexfa4.kernels.sm90.backward.outbox import NOBODY
from flexfa4.primitives import wgmma
from flexfa4.primitives.pipeline import Position
from flexfa4.primitives.tile_walk import Visits

_VECTOR = 16  # bytes that a thread clears at once


@dataclass(frozen=True)
class LaggedConsumer(Consumer):
    """See the module.

    Attributes:
        ds_written: an mbarrier for each tile of dS: all consumers have written it.
    """

    ds_written: cute.Pointer | None = None

    @cute.jit
    def begin(self, base: cute.Pointer) -> None:
        """Clear the tile of dS that the first product for dQ takes."""
        tiling, tile = self.parameters.plan.tiling, self.storage.ds
        threads = tiling.warpgroups * wgmma.THREADS
        zeros = cute.make_rmem_tensor(_VECTOR // 4, Int32)
        zeros.fill(0)
        own = self.warpgroup * wgmma.THREADS + self.thread
        last = base + (self.storage.ds_at + (tiling.ds_stages - 1) * tile.bytes)
        for first in range(0, tile.bytes, _VECTOR * threads):
            place = last + cute.assume(own * _VECTOR + first, divby=_VECTOR)
            at = cute.recast_ptr(place, dtype=Int32)
            cute.autovec_copy(zeros, cute.make_tensor(at, cute.make_layout(_VECTOR // 4)))
        cute.arch.fence_proxy("async.shared", space="cta")
        self.sync()

    @cute.jit
    def take_in(
        self,
        scores: KeyScores,
        tiles: Visits,
        place: tuple[Int32, Int32, Int32],
        at: Places,
    ) -> Places:
        """See `Consumer.take_in`."""
        batch, head, _ = place
        last, turn = Int32(NOBODY), Int32(0)
        for i in cutlass.range(tiles.partial_count, unroll=1):
            q_tile = (batch, head, tiles.partial(i))
            rank = self._rank(tiles, place, True, i)
            at, last = self._tile(scores, q_tile, (at, last, turn), True)
            turn = rank
        for i in cutlass.range(tiles.full_count, unroll=1):
            q_tile = (batch, head, tiles.full(i))
            rank = self._rank(tiles, place, False, i)
            at, last = self._tile(scores, q_tile, (at, last, turn), False)
            turn = rank
        if last != NOBODY:
            sums = self._begin_last_dq(at)
            wgmma.wait(0)
            at = self._post(at, last, turn, sums)
        return at

    @cute.jit
    def _tile(
        self,
        scores: KeyScores,
        place: tuple[Int32, Int32, Int32],
        before: tuple[Places, Int32, Int32],
        masked: bool,
    ) -> tuple[Places, Int32]:
        """Take in a tile of queries.

        Args:
            scores: of the tile of keys with a head's queries.
            place: batch, head and number of the tile.
            before: where it is; the number of the tile before it in the workspace of dQ, and of
                the turn there, where there are turns.
            masked: it needs the mask.

        Returns:
            The places of the next tile, and this one's number in the workspace.
        """
        at, last, turn = before
        assert self.outbox is not None
        o, rings, tiling = self.operands, self.rings, self.parameters.plan.tiling
        shape = o.score.partition_shape_C((wgmma.ROWS, tiling.score_columns))
        s = cute.make_rmem_tensor(shape, cutlass.Float32)
        rings.q.wait(at.q)
        q = o.q[None, None, None, at.q.stage]
        wgmma.issue(o.score, s, o.k[None, None, None, self.kv_stage], q, accumulate=False)
        sums = self._begin_last_dq(at)
        tile = scores.at_tile(place[2], masked)
        wgmma.wait(1)
        tile.probabilities(s, self._statistics(at.q, 0), o.p_rounded)
        wgmma.wait(0)
        number = Int32(self.parameters.tile_number(*place))
        beside = turn if self.parameters.plan.ordered else number
        self.outbox.put(at.mail, self.thread, (last, beside), sums)
        rings.do.wait(at.do)
        dp = self._issue_dp(at, 0)
        self._add_dv(at)
        wgmma.wait(1)
        tile.gradients(s, dp, self._statistics(at.q, 1), None)
        wgmma.round_to(o.ds_rounded, dp)
        wgmma.settle(o.ds_rounded)
        self._to_shared(o.ds_rounded, o.ds_tiles[0], o.change, at)
        self._tell_asynchronous()
        self.outbox.send(self.thread)
        self._tell_written(at.ds)
        self._add_dk(at)
        wgmma.wait(0)
        self._release(rings.do, at.do)
        self._release(rings.q, at.q)
        return at.next().posted(), number

    def _begin_last_dq(self, at: Places) -> Any:
        """Begin the product for dQ of the tile before; return its accumulator."""
        last = at.previous()
        assert self.ds_written is not None
        cute.arch.mbarrier_wait(self.ds_written + last.ds.stage, last.ds.parity)
        return self._begin_dq(last)

    @cute.jit
    def _tell_written(self, at: Position) -> None:
        if self.thread % wgmma.WARP == 0:
            cute.arch.mbarrier_arrive(self.ds_written + at.stage)
