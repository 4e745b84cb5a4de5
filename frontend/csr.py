"""Lists of lists in flat tensors (compressed sparse rows): where each begins, and what they hold.

Arithmetic of sizes only; what is listed is the business of whoever asks.
"""

from __future__ import annotations

import torch

from flexfa4.frontend.gather import taken


def offsets_of_lengths(lengths: torch.Tensor) -> torch.Tensor:
    """Return where lists of some lengths begin, and where the last ends.

    Args:
        lengths: integers ``(lists,)``.

    Returns:
        int64 ``(lists + 1,)``.
    """
    offsets = torch.zeros(len(lengths) + 1, dtype=torch.int64, device=lengths.device)
    torch.cumsum(lengths, 0, dtype=torch.int64, out=offsets[1:])
    return offsets


def offsets_of_owners(owner: torch.Tensor, lists: int, each: int = 1) -> torch.Tensor:
    """Return where lists begin, and where the last ends, given the list of each element.

    Args:
        owner: int64 ``(elements,)``, ascending: the list that an element belongs to, or a number
            that tells it.
        lists: how many there are; some may be empty.
        each: how many such numbers a list has: list ``i`` those from ``i * each``.

    Returns:
        int64 ``(lists + 1,)``.
    """
    firsts = torch.arange(0, (lists + 1) * each, each, device=owner.device)
    return torch.searchsorted(owner, firsts)


def ranges(
    first: torch.Tensor, lengths: torch.Tensor, step: int = 1
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the numbers of ranges, one range after the other.

    Args:
        first: integers ``(ranges,)``: where each begins.
        lengths: int64 ``(ranges,)``: how many numbers it has, at least 0.
        step: from each of its numbers to the next; positive.

    Returns:
        ``(owner, number)``, int64 ``(numbers,)``: the range that each number is of, and the number.
    """
    owner = torch.repeat_interleave(lengths)
    before = lengths.cumsum(0) - lengths
    number = taken(torch.sub(first, before, alpha=step), owner)
    return owner, number + torch.arange(0, len(owner) * step, step, device=owner.device)
