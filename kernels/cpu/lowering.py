"""Functions that this backend computes otherwise than torch does, because it is faster on a CPU.

Each takes a tensor and where to put the result, and states its accuracy.  Small tensors, other
dtypes and other devices go to torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import torch

# Worth the extra passes from here on; and the piece worked on at once, so that its temporary stays
# small (measured: pieces of 64K are 1.5 times slower, one piece for all no faster).
_SMALL: Final = 1 << 14
_PIECE: Final = 1 << 18


def tanh(x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """Return tanh(x) = e / (e + 2) with e = exp(2x) - 1; within 3 ulp in fp32 (torch: 1 ulp).

    Measured on 2 cores: 0.9 ns for an element, torch.tanh 1.27 ns.  The quotient keeps its digits
    near zero, where ``1 - 2 / (exp(2x) + 1)`` would lose them.
    """
    slow = x.dtype is not torch.float32 or x.device.type != "cpu" or x.numel() < _SMALL
    if slow or not x.is_contiguous() or (out is not None and not out.is_contiguous()):
        return torch.tanh(x, out=out) if out is not None else torch.tanh(x)
    result = torch.empty_like(x) if out is None else out
    source, target = x.view(-1), result.view(-1)
    for start in range(0, source.numel(), _PIECE):
        e = target[start : start + _PIECE]
        torch.mul(source[start : start + _PIECE], 2.0, out=e)
        e.clamp_max_(60.0).expm1_()  # past 2x = 17 the quotient is 1; inf / inf would be NaN
        torch.div(e, e + 2.0, out=e)
    return result


LOWERINGS: Final[Mapping[str, Callable[..., torch.Tensor]]] = {"tanh": tanh}
