"""Memory for large temporaries that is used again, rectangle after rectangle.

A temporary of some megabytes that is made anew gets pages that the system must first clear, which
takes longer than to compute it (measured on one core: 1.7 ns for an fp32 element, the product
itself 0.1).  A `Pool` keeps the memory of one call instead.  It is of one thread.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import torch

# Elements from which on an allocator asks the system for memory each time.
LARGE: Final = 1 << 16


class Pool:
    """Flat tensors of one dtype on one device, lent and taken back.

    Args:
        dtype: of all tensors.
        device: where they live.
    """

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._dtype, self._device = dtype, device
        self._free: list[torch.Tensor] = []
        self._lent: dict[int, torch.Tensor] = {}

    def lend(self, shape: Sequence[int]) -> torch.Tensor | None:
        """Return an uninitialised tensor: the smallest free one that is large enough, or new.

        None where it would be so small that memory of its own costs no more.
        """
        size = math.prod(shape)
        if size < LARGE:
            return None
        fitting = [i for i, flat in enumerate(self._free) if flat.numel() >= size]
        if fitting:
            flat = self._free.pop(min(fitting, key=lambda i: self._free[i].numel()))
        else:
            if self._free:  # a larger one takes its place: as many are kept as are used at once
                self._free.pop()
            flat = torch.empty(size, dtype=self._dtype, device=self._device)
        self._lent[flat.data_ptr()] = flat
        return flat[:size].view(*shape)

    def give_back(self, tensor: torch.Tensor) -> None:
        """Take back what was lent; anything else is left alone."""
        flat = self._lent.pop(tensor.data_ptr(), None)
        if flat is not None:
            self._free.append(flat)

    def reclaim(self) -> None:
        """Take everything back: nothing that was lent is used any more."""
        self._free += self._lent.values()
        self._lent.clear()
