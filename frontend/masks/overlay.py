"""Weighted stretches laid over lines of blocks and added up: the sweep behind unions and counts.

Whether a block is in any, in all or in which of many stretches is read from the sum of their
weights there.  The sums are found from the ends alone, sorted along each line, so the work does not
depend on how long the stretches are.  Knows lines and numbers, nothing of masks.

Lines are laid one behind the other: block ``i`` of line ``l`` is the place ``l * pitch + i``.  The
pitch is one more than a line has blocks, so the end of a line is a place of its own, at which all
sums are 0 again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from flexfa4.frontend.gather import taken


def pitch_of(width: int) -> int:
    """Return how many places a line of some blocks takes."""
    return width + 1


@dataclass(frozen=True, eq=False)
class Stretches:
    """Stretches ``start ... stop - 1`` of lines: integer tensors on one device.

    They have any shape that broadcasts to that of a start; `weight` has all its dimensions.

    Attributes:
        line: int64, the line of each, from 0.
        ends: ``(2, ...)``: the starts and the stops, blocks along the line; ``start <= stop``.
        weight: a number for each; of a dtype that holds all sums of them.
    """

    line: torch.Tensor
    ends: torch.Tensor
    weight: torch.Tensor


@dataclass(frozen=True, eq=False)
class Steps:
    """Numbers along lines that change at some places, and hold from each to the next.

    Attributes:
        place: int64 ``(n,)``, ascending.  Of several steps at one place the last counts.
        value: ``(n,)``: the number from there on; it is 0 at the end of every line.
    """

    place: torch.Tensor
    value: torch.Tensor

    @classmethod
    def none(cls, device: torch.device) -> Steps:
        """Return no steps of int8 numbers."""
        place = torch.empty(0, dtype=torch.int64, device=device)
        return cls(place, place.to(torch.int8))

    @classmethod
    def concatenated(cls, parts: Sequence[Steps]) -> Steps:
        """Return the steps of some parts, at least one, each of which is of later lines."""
        if len(parts) == 1:
            return parts[0]
        return cls(torch.cat([p.place for p in parts]), torch.cat([p.value for p in parts]))

    def settled(self) -> Steps:
        """Return the steps with the number that counts for all steps at one place."""
        behind = torch.searchsorted(self.place, self.place, right=True)
        return Steps(self.place, taken(self.value, behind - 1))


def overlay(stretches: Stretches, width: int) -> Steps:
    """Return where the weights of overlapping stretches add up to which sum.

    Args:
        stretches: in any order.
        width: blocks along a line; lines times pitch must fit in 63 bits.

    Returns:
        Two steps for each stretch, even where it is empty: places repeat, and so may sums.
    """
    place = torch.add(stretches.ends, stretches.line, alpha=pitch_of(width))
    weight = torch.stack((stretches.weight, -stretches.weight)).expand(place.shape)
    place, order = place.flatten().sort()
    weight = taken(weight.reshape(-1), order)
    return Steps(place, weight.cumsum(0, dtype=weight.dtype))
