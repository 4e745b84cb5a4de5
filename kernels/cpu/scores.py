"""The scores of one tile: product, score mod, mask; in base 2, ready for the online softmax.

Masked lanes are set to zero or -inf by one or two bit operations on the integer view of the scores:
exact whatever the lane held (NaN and infinities included), and 15 to 20 times faster on a CPU than
torch's ``masked_fill_`` with a broadcast mask (measured: 0.1 and 1.5 to 1.8 ns per element).
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from flexfa4.frontend.evaluate import Values, mask_tile
from flexfa4.frontend.lanes import Lanes
from flexfa4.frontend.masks.structure import MaskBlocks
from flexfa4.frontend.pool import Pool
from flexfa4.kernels.cpu.lowering import Core
from flexfa4.kernels.cpu.plan import CpuPlan
from flexfa4.kernels.cpu.schedule import Chunk
from flexfa4.primitives.key_runs import KeyRun, QueryTile
from flexfa4.primitives.online_softmax import LOG2E

# Evaluated mask tiles kept with a mask: enough for short sequences and for masks that follow the
# diagonal, where evaluating them again would dominate, and nothing at scale.
_MASK_CACHE_BYTES: Final = 4 << 20
_BITS: Final = {torch.float32: torch.int32, torch.float64: torch.int64}
_MINUS_INF: Final = {torch.float32: -(1 << 23), torch.float64: -(1 << 52)}


@dataclass(frozen=True, eq=False)
class Call:
    """One call of attention, as its tiles see it.

    Attributes:
        q: ``(B, Hq, Lq, D)``; k: ``(B or 1, Hkv, Lk, D)``; v: ``(B or 1, Hkv, Lk, Dv)``.
        scale: factor of ``q . k``.
        plan: programs of the score mod and mask.
        values: captures of the score mod, and the sizes.
        blocks: the mask, or None.
        chunks: the schedule.
        bounded: every score is proved to be within `BOUNDED_SCORE`.
        fast_core: one of `CpuPlan.fast_cores` that is proved to be right, or None.
        pool: memory for temporaries of a score mod, reclaimed after each rectangle; None for none.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    scale: float
    plan: CpuPlan
    values: Values
    blocks: MaskBlocks | None
    chunks: tuple[Chunk, ...]
    bounded: bool = False
    fast_core: Core | None = None
    pool: Pool | None = None

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of scores and accumulators."""
        return self.values.dtype


def unrecorded() -> contextlib.AbstractContextManager[Any]:
    """Return a context for the work on tiles, of which autograd need know nothing.

    No view is tracked and no change in place is counted: of a call of 16 queries 92 us are left of
    107, and 98 with torch's own class around this guard.  What is made there is no ordinary tensor,
    so results are written into tensors from outside, or made of its tensors afterwards.
    """
    return torch._C._InferenceMode(True)


@dataclass(frozen=True, eq=False)
class RowFactors:
    """Factors of a query tile's rows.

    Attributes:
        query: what q is multiplied by before the product; includes the scale, and log2(e) where
            nothing follows the product but the bias.
        gradient: d (core's operand or score after the mod) / d (q . k).
        outer: factor of the core, natural units; None is one.
    """

    query: Any
    gradient: Any
    outer: Any


def row_factors(call: Call, chunk: Chunk, tile: QueryTile) -> RowFactors:
    """Evaluate the row factors of a query tile: numbers, or ``(b|1, h|1, rows|1, 1)``."""
    plan = call.plan
    inner: Any = 1.0
    outer: Any = None
    if plan.row is not None:
        lanes = Lanes(chunk.b, chunk.h, (tile.start, tile.stop), (0, 1))
        found = list(plan.row.run(call.values, lanes))
        if plan.form.inner is not None:
            inner = found.pop(0)
        if plan.form.outer is not None:
            outer = found.pop(0)
    gradient = call.scale * inner
    if plan.form.core is not None:
        return RowFactors(gradient, gradient, outer)
    if outer is not None:
        gradient = gradient * outer
    return RowFactors(gradient * LOG2E, gradient, None)


def part(
    x: torch.Tensor, b: tuple[int, int], h: tuple[int, int], rows: tuple[int, int]
) -> torch.Tensor:
    """Return a range of batches, heads and rows of ``(B, H, L, ...)``."""
    # Each narrow costs a microsecond, which is much for a short sequence: only where it cuts.
    if x.shape[:3] == (b[1] - b[0], h[1] - h[0], rows[1] - rows[0]):
        return x
    for axis, (start, stop) in enumerate((b, h, rows)):
        if stop - start != x.shape[axis]:
            x = x.narrow(axis, start, stop - start)
    return x


def tile_rows(x: torch.Tensor, chunk: Chunk, tile: QueryTile) -> torch.Tensor:
    """Return what ``(B, H, L, ...)`` has for the rows of a tile, ``(b, heads, rows, ...)``.

    The copies of a tile, of which there is more than one in a chunk of one batch only, have the
    place of the batches.
    """
    if tile.copies == 1:
        return part(x, chunk.b, chunk.h, (tile.start, tile.stop))
    rows = part(x, chunk.b, chunk.h, (tile.start, tile.end)).squeeze(0)
    return rows.view(-1, tile.copies, tile.rows, *rows.shape[2:]).transpose(0, 1)


def query_rows(call: Call, chunk: Chunk, tile: QueryTile, factor: Any = None) -> torch.Tensor:
    """Return the tile's queries, packed ``(b * kv heads, group * rows, D)``.

    Copies have the place of batches.  They are multiplied by `factor`, unless that is None.
    """
    q = tile_rows(call.q, chunk, tile)
    rows: torch.Tensor = q if q.dtype is call.dtype else q.to(call.dtype)
    if factor is not None:
        rows = rows * factor
    batch = rows.shape[0] * (chunk.kv_heads[1] - chunk.kv_heads[0])
    return rows.reshape(batch, -1, q.shape[-1])


def key_rows(
    x: torch.Tensor, call: Call, chunk: Chunk, tile: QueryTile, run: KeyRun
) -> torch.Tensor:
    """Return keys or values of a run of a tile, ``(b * kv heads, keys, D)``.

    A view where possible.  Copies have the place of batches; their keys overlap in memory.
    """
    b = chunk.b if x.shape[0] > 1 else (0, 1)
    keys = run.stop - run.start
    last = run.stop if tile.copies == 1 else run.stop + tile.end - tile.stop
    cut = part(x, b, chunk.kv_heads, (run.start, last))
    rows = cut.squeeze(0) if cut.shape[0] == 1 else cut.flatten(0, 1)
    rows = rows if rows.dtype is call.dtype else rows.to(call.dtype)
    return rows if tile.copies == 1 else rows.squeeze(0).unfold(0, keys, tile.rows).mT


def raw_scores(
    call: Call,
    chunk: Chunk,
    tile: QueryTile,
    queries: torch.Tensor,
    keys: torch.Tensor,
    scratch: torch.Tensor | None,
    factor: float = 1.0,
) -> torch.Tensor:
    """Return ``factor * queries . keys`` as ``(b or copies, heads, rows, keys)``.

    The result is in `scratch`, or in new memory.  The product applies the factor, not 0, for free.
    """
    n, packed, _ = queries.shape
    width = keys.shape[1]
    shape = (n, packed, width)
    if scratch is None:
        scores = queries.new_empty(shape)
    else:
        scores = scratch[: n * packed * width].view(shape)
    if call.plan.form.ignores_score:  # not 0 * (q . k), which is NaN for infinite q
        scores.zero_()
    else:
        # with beta = 0 no scores are read; torch's counter of operations knows this form only
        torch.baddbmm(scores, queries, keys.mT, beta=0, alpha=factor, out=scores)
    return scores.view(-1, chunk.h[1] - chunk.h[0], tile.rows, width)


def visible_lanes(call: Call, lanes: Lanes, run: KeyRun) -> torch.Tensor | None:
    """Return which lanes of a run are visible; None where no load asks for it, or all are."""
    if not call.values.unproved or not run.partial:
        return None
    assert call.blocks is not None and call.plan.mask is not None
    class_ = _class_at(call.blocks, lanes)
    visible = torch.ones(lanes.shape, dtype=torch.bool, device=call.values.device)
    for start, stop in run.partial:
        part = Lanes(lanes.b, lanes.h, lanes.q, (start, stop))
        visible[..., start - run.start : stop - run.start] = mask_tile(
            call.plan.mask, call.blocks.values, _mask_lanes(call.blocks, class_, part)
        )
    return visible


def to_base2(core: torch.Tensor, outer: Any) -> None:
    """Apply the outer factor to the values of a core, and the change to base 2, in place."""
    core.mul_(LOG2E if outer is None else outer * LOG2E)


def add_bias(
    call: Call, scores: torch.Tensor, lanes: Lanes, visible: torch.Tensor | None
) -> torch.Tensor | None:
    """Add the bias to scores in base 2, in place, but for what is the same along each row.

    Returns:
        What was not added, the row shift ``(b|1, h|1, rows|1, 1)``, or None.
    """
    plan, values = call.plan, call.values
    if plan.bias is None:
        return None
    found = plan.bias.run(values, lanes, visible=visible, pool=call.pool)
    if len(found) == 2:
        a, b = (torch.as_tensor(x, dtype=call.dtype, device=values.device) for x in found)
        scores.addcmul_(a, b, value=LOG2E)
        return None
    (bias,) = found
    if "kv" not in plan.form.bias_depends:
        return _shift(bias, call)
    scores.add_(bias, alpha=LOG2E)
    return None


def _shift(bias: Any, call: Call) -> torch.Tensor:
    """Return a row term in base 2 with the rank of the scores."""
    t = torch.as_tensor(bias, dtype=call.dtype, device=call.values.device) * LOG2E
    return t.expand(1, 1, 1, 1) if t.dim() == 0 else t.view((1,) * (4 - t.dim()) + t.shape)


# ---- masks ---------------------------------------------------------------------------------------


@dataclass
class MaskTiles:
    """Evaluated rectangles of one mask, as `mask_bits` returns them, and the memory they take."""

    tiles: dict[tuple[Any, ...], tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)
    nbytes: int = 0


def _class_at(blocks: MaskBlocks, lanes: Lanes) -> int:
    """Return the class of the batches and heads of a rectangle of scores, which share one mask.

    A mask made for one batch or one head serves all of them.
    """
    size = blocks.size
    if size.b == size.h == 1:
        return 0
    return int(blocks.classes.of[min(lanes.b[0], size.b - 1), min(lanes.h[0], size.h - 1)])


def _mask_lanes(blocks: MaskBlocks, class_: int, lanes: Lanes) -> Lanes:
    """Return where a mask is evaluated for a rectangle of scores: for one of its class."""
    b, h = blocks.classes.members[class_]
    return Lanes((b, b + 1), (h, h + 1), lanes.q, lanes.kv)


def mask_bits(call: Call, lanes: Lanes) -> tuple[torch.Tensor, torch.Tensor]:
    """Return bit patterns ``(keep, fill)`` of a rectangle: ``scores & keep | fill`` masks it.

    `keep` is all ones where the mask is True and zero elsewhere; `fill` is -inf where it is False.
    They broadcast over the batches and heads, which are of one class.
    """
    assert call.blocks is not None and call.plan.mask is not None
    cache = call.blocks.cache(MaskTiles)
    class_ = _class_at(call.blocks, lanes)
    place: tuple[Any, ...] = (lanes.q, lanes.kv)
    if call.blocks.follows_diagonal:  # one rectangle stands for all at its distance from there
        place = (lanes.q[0] - lanes.kv[0], *lanes.shape[2:])
    key = (call.dtype, class_, place)
    found = cache.tiles.get(key)
    if found is not None:
        return found
    lanes = _mask_lanes(call.blocks, class_, lanes)
    mask = mask_tile(call.plan.mask, call.blocks.values, lanes)
    keep = mask.to(_BITS[call.dtype]).neg_()
    fill = (~keep).bitwise_and_(_MINUS_INF[call.dtype])
    used = cache.nbytes + 2 * keep.nbytes
    if used <= _MASK_CACHE_BYTES:
        cache.nbytes = used
        cache.tiles[key] = (keep, fill)
    return keep, fill


def mask_run(call: Call, lanes: Lanes, run: KeyRun, scores: torch.Tensor, value: float) -> None:
    """Set the masked lanes of a run to `value`, -inf or 0.

    Only the columns of partial blocks are touched, or, where they are half of the run or more and
    the mask's bits need not be computed anew, all of them: threads then share the memory as they do
    in the products and exponentials, and no scores move between the caches of cores (measured: 20
    us in place of 150 for 1.5 MB).
    """
    bits = scores.view(_BITS[call.dtype])
    assert call.blocks is not None
    for keys in (lanes.kv,) if _worth_whole(call.blocks, run) else run.partial:
        columns, part = bits, lanes
        if keys != lanes.kv:
            columns = bits[..., keys[0] - run.start : keys[1] - run.start]
            part = Lanes(lanes.b, lanes.h, lanes.q, keys)
        keep, fill = mask_bits(call, part)
        columns.bitwise_and_(keep)
        if value:
            columns.bitwise_or_(fill)


def _worth_whole(blocks: MaskBlocks, run: KeyRun) -> bool:
    """Whether a run is masked as a whole."""
    if len(run.partial) == 1 and run.partial[0] == (run.start, run.stop):
        return True
    masked = sum(stop - start for start, stop in run.partial)
    return blocks.follows_diagonal and 2 * masked >= run.stop - run.start
