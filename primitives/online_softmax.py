"""Online softmax in base 2, over tiles of scores.

The state of each row is its maximum ``m`` and its sum ``l = sum 2^(s - m)`` (Milakov and
Gimelshein, arXiv 1805.02867, as used by FlashAttention, arXiv 2205.14135).  Scores are in units of
log2, because ``exp2`` is what both the GPU's MUFU and torch's vectorised CPU kernels do best
(measured on an AVX-512 CPU: exp2 0.17, exp 0.43 to 1.3 ns per element).

Scores that are known to be small need no maximum at all: `BoundedSoftmax`.

This is the torch form.  It does not know masks, but has them applied where that is cheapest
(`Hide`), and does not multiply matrices.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import torch

LN2: Final = math.log(2.0)
LOG2E: Final = math.log2(math.e)


# Scores of at most this magnitude (base 2) are exponentiated as they are: 2^80 and sums of billions
# of them stay far from fp32's overflow at 2^128, and 2^-80 times a value far from its underflow.
BOUNDED_SCORE: Final = 80.0
_LEAST_SUM: Final = 2.0 ** (-BOUNDED_SCORE - 1)  # less than that of any row that sees something


Hide = Callable[[torch.Tensor, float], None]
"""``hide(x, value)`` sets the masked lanes of ``x (..., rows, keys)`` to a value, -inf or 0."""

_LARGEST: Final = {dtype: torch.finfo(dtype).max for dtype in (torch.float32, torch.float64)}


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
        self, scores: torch.Tensor, shift: torch.Tensor | None = None, hide: Hide | None = None
    ) -> torch.Tensor | None:
        """Replace `scores` by their unnormalised probabilities and take them into the state.

        Args:
            scores: ``(..., rows, keys)``, base 2; overwritten with ``2^(scores + shift - m)``.
            shift: ``(..., rows, 1)``: a term of each row that was left out of `scores`.
            hide: masks them; None where all are visible, or the masked ones are -inf already.

        Returns:
            The factor ``(..., rows, 1)`` by which earlier results must be multiplied; None on the
            first update.
        """
        if hide is not None:
            hide(scores, -math.inf)
        top = scores.amax(-1, keepdim=True)
        if shift is not None:
            # the term of a row with nothing visible may be anything: NaN, inf
            shift = torch.where(top == -math.inf, 0.0, shift)
            top = top.add_(shift)
        old = self.m
        if old is not None:
            top = torch.maximum(old, top)
        self.m = top
        # inf - inf would be NaN: the largest finite numbers stand in where the maximum is infinite,
        # which leaves -inf (nothing visible) and inf as they are.
        finite = top.clamp(-_LARGEST[top.dtype], _LARGEST[top.dtype])
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
            sink: a logit that joins each row's sum only, base 2, broadcastable to ``(..., rows,
                1)``.

        Returns:
            The divisor that turns accumulated results into averages, and the log-sum-exp in base 2
            (-inf for rows with nothing visible, unless there is a sink), both ``(..., rows, 1)``.
            The accumulated result of a row with nothing visible is zero, and stays so.
        """
        assert self.m is not None and self.l is not None
        lse = self.l.log2().add_(self.m)
        # The largest score of a row adds 2^0: the sum is at least 1 where anything is visible.
        divisor = self.l.clamp_min(1.0)
        if sink is not None:
            finite = self.m.clamp_min(torch.finfo(lse.dtype).min)
            divisor = divisor.add_((sink - finite).exp2_())
            lse = torch.logaddexp2(lse, sink)
        return divisor, lse


class BoundedSoftmax:
    """Softmax without a maximum, for scores within `BOUNDED_SCORE` or -inf.

    Used as `OnlineSoftmax` is.  It saves two passes over the scores and all rescaling, and half of
    the masking: a masked lane need not be -inf before, only zero after.  Whoever uses it must have
    proved the bound for all lanes.

    Attributes:
        l: sum of ``2^s`` over the scores so far, ``(..., rows, 1)``.
    """

    __slots__ = ("l",)

    def __init__(self) -> None:
        self.l: torch.Tensor | None = None

    def update(
        self, scores: torch.Tensor, shift: torch.Tensor | None = None, hide: Hide | None = None
    ) -> None:
        """Replace `scores` by ``2^scores`` and take them into the sum; earlier results stay."""
        if shift is not None:
            scores.add_(shift)
        scores.exp2_()
        if hide is not None:
            hide(scores, 0.0)
        total = scores.sum(-1, keepdim=True)
        self.l = total if self.l is None else self.l.add_(total)

    def finish(self, sink: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """Close the rows; as `OnlineSoftmax.finish`."""
        assert self.l is not None
        lse = self.l.log2()
        divisor = self.l.clamp_min(_LEAST_SUM)  # nothing visible: 0 / anything
        if sink is not None:
            divisor = divisor.add_(sink.exp2())
            lse = torch.logaddexp2(lse, sink)
        return divisor, lse
