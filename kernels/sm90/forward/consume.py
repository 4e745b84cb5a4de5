"""Consumer warpgroups of the forward kernel: scores, softmax, and the sum over values.

Each warpgroup has 64 of the block's queries to itself; they share the tiles of K and V.  In the
steady state two products are in flight: the scores of the next tile of keys, which are waited for
first, and this tile's probabilities times its values, which run on beside the next softmax.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import Boolean, Float32, Int32, cute
from cutlass._mlir.dialects import arith

from flexfa4.kernels.forward.parameters import Parameters
from flexfa4.kernels.forward.tiles import ELEMENT
from flexfa4.kernels.sm90.forward.load import Rings
from flexfa4.kernels.sm90.forward.scores import ROWS, ItemScores, TileScores
from flexfa4.kernels.sm90.forward.storage import Storage
from flexfa4.primitives import wgmma
from flexfa4.primitives.pipeline import Position
from flexfa4.primitives.row_softmax import RowSoftmax, RowTerms, rescale_rows
from flexfa4.primitives.turns import Turns


@dataclass(frozen=True)
class Operands:
    """Fragments of one warpgroup's products: descriptors of shared memory, and registers.

    Attributes:
        scores, values: the tiled products, of q by k and of probabilities by v.
        q: A of the first, ``(.., 1, D/16, 1)``.
        k: B of the first, ``(.., 1, D/16, stages)``.
        v: B of the second, ``(.., 1, keys/16, stages)``.
        accumulated_scores: fp32, 64 by keys.
        scores_of_rows: the same by row and column, as `out_of_rows`.
        probabilities: A of the second, in registers.
        out: fp32, 64 by Dv.
    """

    scores: Any
    values: Any
    q: Any
    k: Any
    v: Any
    accumulated_scores: Any
    scores_of_rows: wgmma.Rows
    probabilities: Any
    out: Any
    out_of_rows: wgmma.Rows


@dataclass(frozen=True)
class Consumer:
    """The role of a consumer warpgroup.

    Attributes:
        warpgroup: its number among the consumers.
        turns: taken at the change of items.
        thread: in the warpgroup.
        early: see `Tiling.early`.
    """

    storage: Storage
    parameters: Parameters
    rings: Rings
    operands: Operands
    turns: Turns
    warpgroup: Int32
    thread: Int32
    early: float

    @cute.jit
    def begin(self, q_at: Position, kv_at: Position) -> None:
        """Compute the scores of the first item's first tile."""
        self.rings.q.wait(q_at)
        self.rings.k.wait(kv_at)
        self._issue_scores(q_at, kv_at)
        wgmma.wait(0)
        self._release(self.rings.k, kv_at)

    @cute.jit
    def attend(
        self, scores: ItemScores, tiles: Any, q_at: Position, kv_at: Position
    ) -> tuple[Position, RowSoftmax]:
        """Take in the tiles of keys of an item, but for the values of the last one.

        The products of the first tile are in their accumulator.  It is masked in any case.

        Returns:
            The position of the last tile, and the state of the rows.
        """
        plan = self.parameters.plan
        softmax = RowSoftmax.start(plan.tau)
        self.operands.out.fill(0.0)
        values, terms = self._scores(scores.at_tile(tiles.first, True))
        softmax.update(values, terms, plan.tiling.emulated)
        self._keep_probabilities()
        if cutlass.const_expr(self.early > 0):
            self.rings.v.wait(kv_at)
        for i in cutlass.range(1, tiles.partial_count, unroll=1):
            kv_at = self._step(softmax, scores, tiles.partial(i), (q_at, kv_at), True)
        first_full = Int32(tiles.partial_count == 0)
        for i in cutlass.range(first_full, tiles.full_count, unroll=1):
            kv_at = self._step(softmax, scores, tiles.full(i), (q_at, kv_at), False)
        return kv_at, softmax

    @cute.jit
    def change_over(
        self,
        at: tuple[Position, Position],
        at_next: tuple[Position, Position],
        goes_on: Boolean,
    ) -> None:
        """Sum the last values of an item, and begin the scores of the next one's first tile.

        These run on beside the epilogue; `settle` waits for them.  They are computed without a
        condition, on what is there if no item is left: ptxas has to know which products are in
        flight, or runs one at a time.

        Args:
            at: positions of Q and of the last tile of keys of the item.
            at_next: positions of Q and of the first tile of keys of the next one.
            goes_on: there is a next one.
        """
        q_at, kv_at = at
        self.turns.take(self.warpgroup)
        if cutlass.const_expr(self.early == 0):
            self.rings.v.wait(kv_at)
        self._issue_values(kv_at)
        if cutlass.const_expr(self.storage.q.stages > 1):
            self._issue_next(at, at_next, goes_on)
            self.turns.pass_on(self.warpgroup)
            wgmma.wait(1)
            if cutlass.const_expr(self.storage.out_takes_place_of_q):
                self._wait_at_the_end(goes_on)
        else:
            self.turns.pass_on(self.warpgroup)
            wgmma.wait(0)
        self._release(self.rings.v, kv_at)
        if cutlass.const_expr(not self.storage.out_takes_place_of_q):
            self._release(self.rings.q, q_at)

    @cute.jit
    def _wait_at_the_end(self, goes_on: Boolean) -> None:
        """Wait for products that are of the last item's Q, before the output takes its place."""
        if not goes_on:
            wgmma.wait(0)

    @cute.jit
    def settle(
        self,
        at: tuple[Position, Position],
        at_next: tuple[Position, Position],
        goes_on: Boolean,
    ) -> None:
        """Wait for the scores of the next item's first tile; begin them, if that had to wait.

        Takes what `change_over` does.
        """
        if cutlass.const_expr(self.storage.q.stages == 1):
            self._issue_next(at, at_next, goes_on)
        wgmma.wait(0)
        if goes_on:
            self._release(self.rings.k, at_next[1])

    @cute.jit
    def _issue_next(
        self,
        at: tuple[Position, Position],
        at_next: tuple[Position, Position],
        goes_on: Boolean,
    ) -> None:
        q_next, kv_next = at_next
        if goes_on:
            self.rings.q.wait(q_next)
            self.rings.k.wait(kv_next)
        self._issue_scores(q_next.where(goes_on, at[0]), kv_next.where(goes_on, at[1]))

    @cute.jit
    def _step(
        self,
        softmax: RowSoftmax,
        scores: ItemScores,
        kv_tile: Int32,
        at: tuple[Position, Position],
        masked: bool,
    ) -> Position:
        """Take in a further tile of keys, while the last one's values are summed.

        Args:
            softmax: the state of the rows.
            scores: of the item.
            kv_tile: the tile of keys.
            at: positions of Q and of the last tile of keys.
            masked: the tile needs the mask.

        Returns:
            This tile's position.
        """
        q_at, kv_at = at
        now = kv_at.next()
        self.rings.k.wait(now)
        self._issue_scores(q_at, now)
        if cutlass.const_expr(self.early == 0):
            self.rings.v.wait(kv_at)
        self._issue_values(kv_at)
        tile = scores.at_tile(kv_tile, masked)
        wgmma.wait(1)
        self._release(self.rings.k, now)
        values, terms = self._scores(tile)
        rescale, correction = softmax.grow(values, terms)
        columns, emulated = values.columns, self.parameters.plan.tiling.emulated
        # With a mask there are no registers for two parts.
        early = columns if masked or self.early == 0 else int(columns * self.early)
        softmax.exponentiate(values, range(early), emulated)
        if cutlass.const_expr(self.early > 0):
            # For these values there is time until the next tile; here their wait, a loop to ptxas,
            # keeps what comes behind it from being scheduled before the exponentials.
            self.rings.v.wait(now)
        wgmma.wait(0)
        self._release(self.rings.v, kv_at)
        rescale_rows(self.operands.out_of_rows, rescale, correction)
        softmax.exponentiate(values, range(early, columns), emulated)
        self._keep_probabilities()
        return now

    def _issue_scores(self, q_at: Position, kv_at: Position) -> None:
        o = self.operands
        wgmma.issue(
            o.scores,
            o.accumulated_scores,
            o.q[None, None, None, q_at.stage],
            o.k[None, None, None, kv_at.stage],
            accumulate=False,
        )

    def _issue_values(self, at: Position) -> None:
        o = self.operands
        wgmma.issue(
            o.values,
            o.out,
            o.probabilities,
            o.v[None, None, None, at.stage],
            accumulate=True,
        )

    def _scores(self, tile: TileScores) -> tuple[wgmma.Rows, RowTerms]:
        """Apply the mod and mask to the products; return them and what the rows have in common."""
        values = self.operands.scores_of_rows
        tile.apply(values)
        terms = RowTerms(
            tuple(tile.factor(row) for row in range(ROWS)),
            tuple(tile.shift(row) for row in range(ROWS)),
        )
        return values, terms

    def _keep_probabilities(self) -> None:
        wgmma.round_to(self.operands.probabilities, self.operands.accumulated_scores)

    @cute.jit
    def _release(self, ring: Any, at: Position) -> None:
        if self.thread % wgmma.WARP == 0:
            ring.release(at)


def normalise(rows: wgmma.Rows, inverse: Any) -> None:
    """Divide the accumulated output by the rows' sums; rows that saw nothing become 0."""
    zero = Float32(0.0)
    for row in range(ROWS):
        nothing, factor = (inverse[row] == zero).ir_value(), inverse[row].ir_value()
        for column in range(rows.columns):
            value = arith.mulf(rows.value(row, column), factor)
            rows.set(row, column, arith.select(nothing, zero.ir_value(), value))


def make_operands(
    storage: Storage, base: cute.Pointer, warpgroup: Int32, thread: Int32
) -> Operands:
    """Return a warpgroup's fragments."""
    dtype = base.dtype
    q, k, v = storage.q, storage.k, storage.v
    scores = wgmma.product(dtype, k.rows, b_is_transposed=False, a_in_registers=False)
    values = wgmma.product(dtype, v.columns, b_is_transposed=True, a_in_registers=True)
    q_tile = wgmma.tile(base + storage.q_at // ELEMENT, q.rows, q.columns, q.stages, q.swizzle)
    q_rows = cute.local_tile(q_tile, (wgmma.ROWS, q.columns, q.stages), (warpgroup, 0, 0))
    k_tile = wgmma.tile(base + storage.k_at // ELEMENT, k.rows, k.columns, k.stages, k.swizzle)
    v_tile = wgmma.tile(base + storage.v_at // ELEMENT, v.rows, v.columns, v.stages, v.swizzle)
    of_scores, of_values = scores.get_slice(thread), values.get_slice(thread)
    accumulated = cute.make_rmem_tensor(scores.partition_shape_C((wgmma.ROWS, k.rows)), Float32)
    out = cute.make_rmem_tensor(values.partition_shape_C((wgmma.ROWS, v.columns)), Float32)
    return Operands(
        scores=scores,
        values=values,
        q=scores.make_fragment_A(of_scores.partition_A(q_rows)),
        k=scores.make_fragment_B(of_scores.partition_B(k_tile)),
        v=values.make_fragment_B(of_values.partition_B(wgmma.transposed(v_tile))),
        accumulated_scores=accumulated,
        scores_of_rows=wgmma.Rows(accumulated),
        probabilities=wgmma.operand_of(accumulated, dtype),
        out=out,
        out_of_rows=wgmma.Rows(out),
    )
