"""Forward: tiles -> out and lse.

Inside the backend the log-sum-exp is in base 2, as the scores are; `function` converts it.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import torch

from flexfa4.frontend.lanes import Lanes
from flexfa4.frontend.layout import empty_output
from flexfa4.kernels.cpu import scores as tiles
from flexfa4.kernels.cpu.lowering import Core
from flexfa4.kernels.cpu.schedule import Chunk, scratch_size
from flexfa4.kernels.cpu.scores import Call
from flexfa4.primitives.key_runs import QueryTile
from flexfa4.primitives.online_softmax import LOG2E, BoundedSoftmax, OnlineSoftmax


def forward(call: Call, sink: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute attention.

    Args:
        call: the call.
        sink: logits ``(Hq,)`` that join each row's denominator, or None.

    Returns:
        out ``(B, Hq, Lq, Dv)`` in q's dtype and lse ``(B, Hq, Lq)``, base 2, in the score dtype.
    """
    base2_sink = None if sink is None else (sink.to(call.dtype) * LOG2E)[:, None, None]
    if _one_rectangle(call.chunks):  # a short sequence: nothing to cut, gather or keep room for
        (chunk,) = call.chunks
        only = _tile(call, chunk, chunk.tiles[0], base2_sink)
        if call.q.dtype is call.dtype and call.q.is_contiguous():
            return only.acc / only.divisor, only.lse
        out = empty_output(call.q, call.v.shape[-1])
        return torch.div(only.acc, only.divisor, out=out), only.lse
    out = empty_output(call.q, call.v.shape[-1])
    lse = call.q.new_empty(out.shape[:3], dtype=call.dtype)
    if not call.chunks:  # no keys, or nothing to do
        out.zero_()
        _fill_lse(lse, base2_sink)
        return out, lse
    scratch = torch.empty(scratch_size(call.chunks), dtype=call.dtype, device=call.q.device)
    for chunk in call.chunks:
        chunk_sink = None if base2_sink is None else base2_sink[chunk.h[0] : chunk.h[1]]
        for tile in chunk.tiles:
            part = [tiles.tile_rows(x, chunk, tile) for x in (out, lse)]
            if tile.runs:
                _tile(call, chunk, tile, chunk_sink, scratch).write(*part)
            else:
                part[0].zero_()
                _fill_lse(part[1], chunk_sink)
    return out, lse


def _one_rectangle(chunks: tuple[Chunk, ...]) -> bool:
    """Whether one run of keys for one tile of queries is the whole call."""
    if len(chunks) != 1 or len(chunks[0].tiles) != 1:
        return False
    (tile,) = chunks[0].tiles
    return len(tile.runs) == 1 and tile.copies == 1


def _fill_lse(lse: torch.Tensor, sink: torch.Tensor | None) -> None:
    """Fill rows ``(b, heads, rows)`` that see no key; `sink` is ``(heads, 1, 1)``."""
    if sink is None:
        lse.fill_(-math.inf)
    else:
        lse.copy_(sink[..., 0])


@dataclass(frozen=True, eq=False)
class _Tile:
    """The results of one query tile.

    Attributes:
        acc: values weighted by unnormalised probabilities, ``(b, heads, rows, Dv)``.
        divisor: what makes averages of them, ``(b, heads, rows, 1)``.
        lse: ``(b, heads, rows)``, base 2.
    """

    acc: torch.Tensor
    divisor: torch.Tensor
    lse: torch.Tensor

    def write(self, out: torch.Tensor, lse: torch.Tensor) -> None:
        """Write the results to their places."""
        torch.div(self.acc, self.divisor, out=out)
        lse.copy_(self.lse)


def _tile(
    call: Call,
    chunk: Chunk,
    tile: QueryTile,
    sink: torch.Tensor | None,
    scratch: torch.Tensor | None = None,
) -> _Tile:
    """Compute one query tile, which has runs."""
    softmax = BoundedSoftmax() if call.bounded else OnlineSoftmax()
    with tiles.unrecorded():
        acc = _weighted_values(call, chunk, tile, softmax, scratch)
    divisor, lse = softmax.finish(sink)
    return _Tile(acc.view(*lse.shape[:-1], acc.shape[-1]), divisor, lse.squeeze(-1))


def _weighted_values(
    call: Call,
    chunk: Chunk,
    tile: QueryTile,
    softmax: BoundedSoftmax | OnlineSoftmax,
    scratch: torch.Tensor | None,
) -> torch.Tensor:
    """Return the values weighted by a tile's probabilities, ``(b * kv heads, group * rows, Dv)``.

    The probabilities are unnormalised; `softmax` gets their sums.
    """
    rows = (tile.start, tile.stop)
    factors = tiles.row_factors(call, chunk, tile)
    core = _fast_core(call, factors.outer)
    factor = factors.query if core is None else factors.query * core.prescale
    by_product = isinstance(factor, float) and factor != 0.0  # 0 * inf is for `query_rows`
    queries = tiles.query_rows(call, chunk, tile, None if by_product else factor)
    if not by_product:
        factor = 1.0
    acc: torch.Tensor | None = None
    for run in tile.runs:
        lanes = Lanes(chunk.b, chunk.h, rows, (run.start, run.stop))
        keys = tiles.key_rows(call.k, call, chunk, tile, run)
        score = tiles.raw_scores(call, chunk, tile, queries, keys, scratch, factor)
        visible = tiles.visible_lanes(call, lanes, run)
        if core is not None:
            core.run(score, LOG2E if factors.outer is None else factors.outer * LOG2E)
        elif call.plan.core is not None:
            (cored,) = call.plan.core.run(call.values, lanes, score, visible, call.pool)
            score = cored.expand(score.shape).contiguous()
            tiles.to_base2(score, factors.outer)
        shift = tiles.add_bias(call, score, lanes, visible)
        hide = functools.partial(tiles.mask_run, call, lanes, run) if run.partial else None
        rescale = softmax.update(score, shift, hide)
        values = tiles.key_rows(call.v, call, chunk, tile, run)
        weights = score.view(queries.shape[0], queries.shape[1], -1)
        if acc is None:
            acc = torch.bmm(weights, values)
        else:
            if rescale is not None:
                acc.view(*score.shape[:3], -1).mul_(rescale)
            acc.baddbmm_(weights, values)
        if call.pool is not None:
            call.pool.reclaim()
    assert acc is not None
    return acc


def _fast_core(call: Call, outer: Any) -> Core | None:
    """Return the core to use in place of the plan's program, where it is right."""
    core = call.fast_core
    if core is None or call.dtype is not torch.float32:
        return None
    return core if core.takes(LOG2E if outer is None else outer * LOG2E) else None
