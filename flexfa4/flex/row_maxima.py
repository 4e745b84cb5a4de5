"""The largest score of each row: `max_scores` of FlexAttention, computed for itself.

Attention itself keeps no such number: where scores are proved bounded it needs no maximum at all.
So this is a second pass over the scores, by rows of at most `_SCORES_AT_ONCE`, with the meaning of
record (`frontend.evaluate`); it computes no attention and no gradients.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import torch

from flexfa4.block_mask import BlockMask
from flexfa4.frontend.analysis.bounds import premises, unproved_loads
from flexfa4.frontend.evaluate import Program, Values, mask_tile
from flexfa4.frontend.lanes import Lanes
from flexfa4.frontend.masks.structure import MaskBlocks
from flexfa4.frontend.sizes import Sizes
from flexfa4.frontend.tracing.trace import resolve
from flexfa4.masks.cache import block_mask_for
from flexfa4.masks.spec import GivenSizes
from flexfa4.torch_op.deferred import DeferredBlockMask

_SCORES_AT_ONCE: Final = 1 << 20


@dataclass(frozen=True)
class Scores:
    """What makes the scores of a call.

    Attributes:
        score_mod: as in `flexfa4.attention`.
        mask: as `flexfa4.attention` takes it, or None.
        scale: None is ``1/sqrt(D)``.
    """

    score_mod: Any
    mask: Any
    scale: float | None


@torch.no_grad()
def row_maxima(scores: Scores, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Return the largest score of each row, scaled, modified and masked.

    Args:
        scores: what makes them.
        query: ``(B, Hq, Lq, D)``.
        key: ``(B or 1, Hkv, Lk, D)``.

    Returns:
        ``(B, Hq, Lq)``, fp32 (fp64 for fp64 inputs), minus infinity where nothing is visible; as in
        torch it has no gradient.

    Raises:
        OutOfRangeError: a captured tensor is read outside its bounds on a visible score.
    """
    dtype = torch.promote_types(query.dtype, torch.float32)
    batch, heads, q_len, dim = query.shape
    kv_heads, kv_len = key.shape[1], key.shape[2]
    best = torch.full((batch, heads, q_len), -math.inf, dtype=dtype, device=query.device)
    if kv_len == 0:
        return best
    sizes = Sizes(batch, heads, kv_heads, q_len, kv_len)
    blocks = None if scores.mask is None else _blocks(scores.mask, sizes, query.device)
    modify = _Modifier(scores.score_mod, blocks, sizes, dtype, query.device)
    factor = dim**-0.5 if scores.scale is None else scores.scale
    rows = max(1, _SCORES_AT_ONCE // (heads * kv_len))
    for b in range(batch):
        keys = key[b % key.shape[0]].to(dtype).transpose(-1, -2)[:, None]  # (Hkv, 1, D, Lk)
        for start in range(0, q_len, rows):
            stop = min(q_len, start + rows)
            part = query[b, :, start:stop].to(dtype) * factor
            tile = part.view(kv_heads, heads // kv_heads, stop - start, dim) @ keys
            lanes = Lanes((b, b + 1), (0, heads), (start, stop), (0, kv_len))
            seen = modify(tile.view(lanes.shape), lanes)
            best[b, :, start:stop] = seen.amax(-1)[0]
    return best


def _blocks(mask: Any, sizes: Sizes, device: torch.device) -> MaskBlocks:
    if isinstance(mask, DeferredBlockMask):  # made in a graph: only its function serves here
        mask = mask.mask
    if not isinstance(mask, BlockMask):
        given = GivenSizes(sizes.batch, sizes.heads, sizes.q_len, sizes.kv_len, sizes.kv_heads)
        mask = block_mask_for(mask, given, device)
    made: BlockMask = mask
    return made.blocks_on(device)


class _Modifier:
    """Applies the score mod and the mask of a call to a rectangle of scores."""

    def __init__(
        self,
        score_mod: Any,
        blocks: MaskBlocks | None,
        sizes: Sizes,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._blocks = blocks
        self._mask = None if blocks is None else Program((blocks.graph.root,))
        self._score: Program | None = None
        if score_mod is not None:
            bound = resolve(score_mod, "score")
            self._score = Program((bound.graph.root,))
            self._values = Values.of(
                bound,
                sizes,
                dtype=dtype,
                device=device,
                unproved=unproved_loads(premises(bound, sizes)),
            )

    def __call__(self, tile: torch.Tensor, lanes: Lanes) -> torch.Tensor:
        """Return the modified and masked scores, of shape ``lanes.shape``."""
        visible = self._visible(lanes)
        if self._score is not None:
            (result,) = self._score.run(self._values, lanes, tile, visible)
            tile = torch.as_tensor(result, dtype=tile.dtype, device=tile.device)
        if visible is not None:
            tile = torch.where(visible, tile, -math.inf)
        return tile.expand(lanes.shape)

    def _visible(self, lanes: Lanes) -> torch.Tensor | None:
        if self._blocks is None or self._mask is None:
            return None
        size = self._blocks.size
        one = (0, 1)  # where one batch or head stands for all
        b, h = (lanes.b if size.b > 1 else one), (lanes.h if size.h > 1 else one)
        return mask_tile(self._mask, self._blocks.values, Lanes(b, h, lanes.q, lanes.kv))
