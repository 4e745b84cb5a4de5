"""An outbox behind which dQ is finished: no kernel clears its sums before, and none reads them.

Of the blocks that have a part of a tile the first one stores it, and those between add theirs.
The last one reads the sum, adds its part, and writes dQ: in the dtype of the inputs, scaled.  Who
that is, is known a tile ahead (`flexfa4.primitives.arrivals`): while a warpgroup computes a part,
the warp that empties its outbox comes on its behalf, and has the sum of the others brought to
shared memory if it is the last.  So a warpgroup does not wait for any of this.

No two blocks wait for each other for ever.  A warp tells of its part before it waits for others,
and it comes to the next part before it gives the outbox back.  The latter counts since the two
warpgroups of a block wait for each other's dS: a part that one warp waits for has been come to
before any part behind it can be computed, so all waits go back in time.

For tiles that blocks add to in turns, and where a part is not known ahead or the sum of the others
has no place, see `flexfa4.kernels.sm90.backward.postprocess`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import cutlass
from cutlass import Float32, Int32, Int64, cute

from flexfa4.kernels.backward import dq
from flexfa4.kernels.backward.parameters import Parameters
from flexfa4.kernels.forward.set_up import DTYPES
from flexfa4.kernels.forward.tiles import ELEMENT
from flexfa4.kernels.sm90.backward.outbox import CLOSED, NOBODY, Outbox
from flexfa4.primitives import arrivals, tma, wgmma
from flexfa4.primitives.arrivals import Arrivals
from flexfa4.primitives.pipeline import Position

_WARPS: Final = wgmma.THREADS // wgmma.WARP
_ROWS: Final = wgmma.ROWS // _WARPS  # of a part, that one warp of a warpgroup has
_HALF: Final = _ROWS // 2  # rows from a thread's upper row to its lower one
_VECTOR_COLUMNS: Final = 8  # of a part, that the first numbers of all its threads lie in
_SHARING: Final = 4  # lanes that have a row of these, two columns each
_PAIR_COLUMNS: Final = 4  # of a vector, that two lanes have and one of them writes


@dataclass(frozen=True)
class FinishingOutbox(Outbox):
    """See the module.

    Attributes:
        parameters: of the launch.
        number: of the warpgroup, and so of its parts of tiles.
        brought: an mbarrier in shared memory: the sum of the others is there.
        distance: numbers from a part to that sum, which lies behind it in shared memory.
    """

    parameters: Parameters
    number: Int32 | int
    brought: cute.Pointer
    distance: int

    def initialise(self) -> None:
        """See `Outbox.initialise`."""
        super().initialise()
        cute.arch.mbarrier_init(self.brought, 1)

    @cute.jit
    def forward(self, sums_of: Callable[[Int32], cute.Pointer]) -> None:
        """Store or add parts, or finish what they are of, until the outbox is closed; one warp.

        Args:
            sums_of: see `Outbox.forward`.
        """
        receiver, following, at = self._next(Position.start(1))
        role, brought = Int32(arrivals.FIRST), Position.start(1)
        while receiver != CLOSED:
            before = Int64(0)
            cute.arch.sync_warp()
            if (receiver == NOBODY) | (role < arrivals.LAST):
                if cute.arch.lane_idx() == 0:
                    before = self._send((receiver, following), sums_of, role)
            else:
                if role == arrivals.LAST:
                    cute.arch.mbarrier_wait(self.brought, brought.parity)
                    brought = brought.next()
                self._finish(receiver, role)
                cute.arch.sync_warp()
                if cute.arch.lane_idx() == 0:
                    before = self._come(following)
                    self._give_back()
                    cute.arch.fence_acq_rel_gpu()
            role = Int32(0)
            if (cute.arch.lane_idx() == 0) & (following != NOBODY):
                role = self._wait(following, sums_of, before)
            role = Int32(cute.arch.shuffle_sync(role, 0))
            receiver, following, at = self._next(at)

    @cute.jit
    def _send(
        self,
        receivers: tuple[Int32, Int32],
        sums_of: Callable[[Int32], cute.Pointer],
        role: Int32,
    ) -> Int64:
        """Store a part, or add it to its sum, and tell; one lane.

        Comes to the next part meanwhile, and returns what is known then.
        """
        receiver, following = receivers
        if receiver != NOBODY:
            if role == arrivals.FIRST:
                tma.store_floats(self.part, sums_of(receiver), self.order.part)
            else:
                tma.add_floats(self.part, sums_of(receiver), self.order.part)
            cute.arch.cp_async_bulk_commit_group()
        before = self._come(following)
        cute.arch.cp_async_bulk_wait_group(0, read=True)
        self._give_back()
        cute.arch.cp_async_bulk_wait_group(0, read=False)
        cute.arch.fence_acq_rel_gpu()
        if receiver != NOBODY:
            self._arrivals(receiver).leave()
        return before

    @cute.jit
    def _come(self, receiver: Int32) -> Int64:
        """Come to the next part, if there is one; one lane."""
        before = Int64(0)
        if receiver != NOBODY:
            before = self._arrivals(receiver).come()
        return before

    @cute.jit
    def _wait(
        self, receiver: Int32, sums_of: Callable[[Int32], cute.Pointer], before: Int64
    ) -> Int32:
        """Wait until the next part may be sent; one lane.  Returns the role there."""
        role = self._arrivals(receiver).wait(before)
        cute.arch.fence_proxy("async.global")
        if role == arrivals.LAST:
            nbytes = 4 * self.order.part
            cute.arch.mbarrier_arrive_and_expect_tx(self.brought, nbytes)
            tma.load_bytes(sums_of(receiver), self.part + self.distance, self.brought, nbytes)
        return role

    def _arrivals(self, receiver: Int32) -> Arrivals:
        return Arrivals(self.parameters.arrivals_at(receiver) + self.number)

    @cute.jit
    def _finish(self, receiver: Int32, role: Int32) -> None:
        """Write a part of dQ."""
        order, lane = self.order, cute.arch.lane_idx()
        across = order.head_dim // order.columns
        batch, head, q_tile = self.parameters.place_of(receiver)
        own = lane % 2  # which of two vectors a lane writes, of what it and the next lane have
        column = self.number % across * order.columns
        column += own * _VECTOR_COLUMNS + lane % _SHARING // 2 * _PAIR_COLUMNS
        query = q_tile * order.queries + self.number // across * wgmma.ROWS
        rows, row = self.parameters["q_len"] - query, lane // _SHARING
        source = self.part + cute.assume(lane * dq.VECTOR, divby=dq.VECTOR)
        upper = self.parameters.grad_q_at(batch, head, query + row, column)
        pairs = order.columns // (2 * _VECTOR_COLUMNS)
        half = self.parameters["grad_q_row_stride"] * (ELEMENT * _HALF)
        while row < wgmma.ROWS:
            for _ in cutlass.range(pairs, unroll=1):
                words = self._words(source, own, role)
                if row < rows:
                    _write(upper, words[0])
                if row + _HALF < rows:
                    _write(upper + half, words[1])
                source += 2 * wgmma.THREADS * dq.VECTOR
                upper += 2 * _VECTOR_COLUMNS * ELEMENT
            source += wgmma.WARP * dq.VECTOR - pairs * 2 * wgmma.THREADS * dq.VECTOR
            upper += 2 * half - pairs * 2 * _VECTOR_COLUMNS * ELEMENT
            row += _ROWS

    def _words(self, source: cute.Pointer, own: Int32, role: Int32) -> list[Any]:
        """Return what a lane writes of two vectors, that it and the next lane have, of each row.

        Two columns of each vector are a lane's, of two rows.  The even lane gets four columns of
        the first vector, the odd one those of the second; 32 bytes of a row are written at once.
        """
        one = self._vector(source, role)
        other = self._vector(source + wgmma.THREADS * dq.VECTOR, role)
        written = []
        for row in range(2):
            kept = cutlass.select_(own == 0, one[row], other[row])
            given = cutlass.select_(own == 0, other[row], one[row])
            got = Int32(cute.arch.shuffle_sync_bfly(given, 1))
            written.append(
                (cutlass.select_(own == 0, kept, got), cutlass.select_(own == 0, got, kept))
            )
        return written

    @cute.jit
    def _vector(self, place: cute.Pointer, role: Int32) -> tuple[Int32, Int32]:
        """Return a vector of dQ, rounded: two columns of each of two rows."""
        values = self._read(place)
        total = values.load()
        if role == arrivals.LAST:
            values.store(total + self._read(place + self.distance).load())
        rounded = cute.make_rmem_tensor(dq.VECTOR, DTYPES[self.parameters.plan.element])
        scaled = values.load() * self.parameters.scale
        rounded.store(scaled.to(rounded.element_type))
        words = cute.recast_tensor(rounded, Int32)
        return Int32(words[0]), Int32(words[1])

    def _read(self, place: cute.Pointer) -> Any:
        values = cute.make_rmem_tensor(dq.VECTOR, Float32)
        cute.autovec_copy(cute.make_tensor(place, cute.make_layout(dq.VECTOR)), values)
        return values


def _write(address: Int64, words: tuple[Int32, Int32]) -> None:
    """Write four columns of a row."""
    cute.arch.inline_ptx(
        "st.global.v2.b32 [{$r0}], {{$r1}, {$r2}};",
        read_only_args=[address, *words],
    )
