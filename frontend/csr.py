"""Lists of lists in flat tensors (compressed sparse rows): where each begins, and what they hold.

Arithmetic of sizes only; what is listed is the business of whoever asks.
"""

from __future__ import annotations

import torch


def offsets_of_lengths(lengths: torch.Tensor) -> torch.Tensor:
    """Return where lists of some lengths begin, and where the last ends.

    Args:
        lengths: int64 ``(lists,)``.

    Returns:
        int64 ``(lists + 1,)``.
    """
    return torch.nn.functional.pad(lengths.cumsum(0), (1, 0))


def offsets_of_owners(owner: torch.Tensor, lists: int) -> torch.Tensor:
    """Return where lists begin, and where the last ends, given the list of each element.

    Args:
        owner: int64 ``(elements,)``, ascending: the list that an element belongs to.
        lists: how many there are; some may be empty.

    Returns:
        int64 ``(lists + 1,)``.
    """
    return torch.searchsorted(owner, torch.arange(lists + 1, device=owner.device))


def ranges(first: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the numbers of ranges, ``first ... first + length - 1``, one range after the other.

    Args:
        first: integers ``(ranges,)``: where each begins.
        lengths: int64 ``(ranges,)``: how many numbers it has, at least 0.

    Returns:
        ``(owner, number)``, int64 ``(numbers,)``: the range that each number is of, and the number.
    """
    owner = torch.repeat_interleave(lengths)
    before = lengths.cumsum(0) - lengths
    return owner, (first - before)[owner] + torch.arange(len(owner), device=owner.device)
