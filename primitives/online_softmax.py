"""Online softmax in base 2, over tiles of scores.

The state of each row is its maximum ``m`` and its sum ``l = sum 2^(s - m)`` (Milakov and
Gimelshein, arXiv 1805.02867, as used by FlashAttention, arXiv 2205.14135).  Scores are in units of
log2, because ``exp2`` is what both the GPU's MUFU and torch's vectorised CPU kernels do best
(measured on an AVX-512 CPU: exp2 0.17, exp 0.43 to 1.3 ns per element).

This is the torch form.  It does not mask (a masked score arrives as -inf) and does not multiply
matrices.
"""

from __future__ import annotations

import math
from typing import Final

import torch

LN2: Final = math.log(2.0)
LOG2E: Final = math.log2(math.e)


class OnlineSoftmax:
    """Running maximum and sum of a tile's rows.

    Attributes:
        m: maximum of each row so far, base 2, ``(..., rows, 1)``; -inf where nothing was visible.
        l: sum of ``2^(s - m)`` over the scores so far, same shape.
    """

    __slots__ = ("l", "m")

    def __init__(self) -> None:
        self.m: torch.Tensor | None = None
        self.l: torch.Tensor | None = None

    def update(
        self, scores: torch.Tensor, shift: torch.Tensor | None = None
    ) -> torch.Tensor | None:
        """Replace `scores` by their unnormalised probabilities and take them into the state.

        Args:
            scores: ``(..., rows, keys)``, base 2; overwritten with ``2^(scores + shift - m)``.
            shift: ``(..., rows, 1)``: a term of each row that was left out of `scores`.

        Returns:
            The factor ``(..., rows, 1)`` by which earlier results must be multiplied; None on the
            first update.
        """
        top = scores.amax(-1, keepdim=True)
        if shift is not None:
            top = top.add_(shift)
        old = self.m
        if old is not None:
            top = torch.maximum(old, top)
        self.m = top
        # A row with nothing visible has top = -inf; -inf - -inf would be NaN.
        finite = top.nan_to_num(nan=math.nan, posinf=math.inf, neginf=0.0)
        scores.sub_(finite if shift is None else finite - shift).exp2_()
        total = scores.sum(-1, keepdim=True)
        if old is None:
            self.l = total
            return None
        factor = old.sub(finite).exp2_()
        assert self.l is not None
        self.l = self.l.mul_(factor).add_(total)
        return factor

    def finish(self, sink: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """Close the rows.

        Args:
            sink: a logit that joins each row's sum only, base 2, broadcastable to ``(..., rows, 1)``.

        Returns:
            The factor that turns accumulated results into averages (0 for rows with nothing
            visible), and the log-sum-exp in base 2 (-inf for such rows without a sink), both
            ``(..., rows, 1)``.
        """
        assert self.m is not None and self.l is not None
        m, total = self.m, self.l
        lse = total.log2().add_(m)
        if sink is not None:
            lse = torch.logaddexp2(lse, sink)
            # 2^(m - lse), with nothing visible 2^(-inf): never -inf - -inf
            safe = torch.where(lse == -math.inf, torch.zeros_like(lse), lse)
            return m.sub(safe).exp2_(), lse
        empty = m == -math.inf
        return torch.where(empty, torch.zeros_like(total), total.reciprocal()), lse
