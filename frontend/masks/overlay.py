"""Weighted stretches laid over lines of blocks and added up: the sweep behind unions and counts.

Whether a block is in any, in all or in which of many stretches is read from the sum of their
weights there.  The sums are found from the ends alone, sorted along each line, so the work does not
depend on how long the stretches are.  Knows lines and numbers, nothing of masks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True, eq=False)
class Stretches:
    """Stretches ``start ... stop - 1`` of lines; int64 tensors ``(n,)`` on one device.

    Attributes:
        line: the line of each, from 0.
        start, stop: blocks along the line; ``start <= stop``.
        weight: a number for each.
    """

    line: torch.Tensor
    start: torch.Tensor
    stop: torch.Tensor
    weight: torch.Tensor

    @classmethod
    def none(cls, device: torch.device) -> Stretches:
        """Return no stretches."""
        return cls(*torch.empty(4, 0, dtype=torch.int64, device=device))

    @classmethod
    def concatenated(cls, parts: Sequence[Stretches]) -> Stretches:
        """Return the stretches of all parts, one part after the other; at least one part."""
        return cls(
            torch.cat([p.line for p in parts]),
            torch.cat([p.start for p in parts]),
            torch.cat([p.stop for p in parts]),
            torch.cat([p.weight for p in parts]),
        )


def overlay(stretches: Stretches, width: int) -> Stretches:
    """Return where the weights of overlapping stretches add up to which sum.

    Args:
        stretches: in any order.
        width: blocks along a line; lines times width must fit in 63 bits.

    Returns:
        Disjoint, not empty stretches of constant sum other than 0, sorted by line and start.
        Neighbours of one sum may touch.
    """
    pitch = max(1, width)
    base = stretches.line * pitch
    edges, order = torch.cat((base + stretches.start, base + stretches.stop)).sort()
    total = torch.cat((stretches.weight, -stretches.weight))[order].cumsum(0)
    # Every stretch ends in its own line, so the sum is 0 from its last edge to the next line.
    here, after, total = edges[:-1], edges[1:], total[:-1]
    kept = ((total != 0) & (after > here)).nonzero().squeeze(1)
    here, after, total = here[kept], after[kept], total[kept]
    line = here // pitch
    base = line * pitch
    return Stretches(line, here - base, after - base, total)
