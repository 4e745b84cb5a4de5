"""What captured tensors hold: the least and greatest element of each, as a whole.

Looked at where shapes and dtypes do not prove what has to hold for every read.  Bounds of parts of
a tensor are `search.zones`' business.
"""

from __future__ import annotations

import math

import torch

from flexfa4.frontend.analysis.intervals import Interval
from flexfa4.frontend.evaluate import Values, widened
from flexfa4.frontend.ir import Buffer


class Contents:
    """Bounds of the elements of captured tensors, found when they are asked for.

    Args:
        values: the captures, which do not change.
    """

    def __init__(self, values: Values) -> None:
        self._values = values
        self._found: dict[Buffer, Interval | None] = {}

    def bounds(self, buffer: Buffer) -> Interval | None:
        """Return the least and greatest element, as a mask reads them; None if there is none."""
        if buffer not in self._found:
            self._found[buffer] = self._looked_at(buffer)
        return self._found[buffer]

    def _looked_at(self, buffer: Buffer) -> Interval | None:
        tensor = widened(self._values.tensors[buffer], buffer.dtype, self._values.dtype)
        if not tensor.numel():
            return None
        lo, hi = torch.stack(tensor.aminmax()).tolist()  # at once: each would wait for the device
        if lo != lo:  # NaN comes out of both
            return Interval(-math.inf, math.inf, nan=True)
        return Interval(lo, hi)
