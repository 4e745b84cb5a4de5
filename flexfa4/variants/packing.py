"""Where packed documents begin and end: offsets and lengths as tables that masks read by position.

``offsets`` are the cumulative lengths, ``[0, 2, 6, 9]`` for documents of 2, 4 and 3 positions: what
variable-length attention calls ``cu_seqlens``.  A mask cannot search in them, so they become tables
with an entry for each position, when the variant is made.  Each table has one entry more than there
are packed positions; it stands for every position behind the last document, the padding, so that a
sequence may be longer than its documents.

Not here: what a document sees.  That is each variant's formula.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from flexfa4.errors import ArgumentError
from flexfa4.variants.parameters import require_index_tensor, require_values, require_wholes


def require_offsets(name: str, value: object) -> None:
    """Refuse what are not offsets: integers (D + 1,) from 0 on that never fall.

    Raises:
        ArgumentError: they are not.
    """
    require_index_tensor(name, value, dims=(1,))
    assert isinstance(value, torch.Tensor)
    require_values(name, value)
    ends = value.tolist()
    if not ends or ends[0] != 0 or ends != sorted(ends):
        raise ArgumentError(
            name=name,
            found_value=repr(ends[:8] + ["..."] * (len(ends) > 8)),
            expected="the position at which each document begins, from 0 on and never falling, "
            "then the end of the last one",
            rewrite="from lengths: torch.tensor([0, *lengths]).cumsum(0)",
        )


def to_offsets(
    name: str, lengths: Sequence[int], device: torch.device | str | None
) -> torch.Tensor:
    """Return the offsets (D + 1,), int64, of documents of these lengths.

    Raises:
        ArgumentError: they are no list of ints of at least 0.
    """
    require_wholes(name, lengths, at_least=0)
    return torch.tensor([0, *lengths], dtype=torch.long, device=device).cumsum(0)


def document_of(offsets: torch.Tensor) -> torch.Tensor:
    """Return the number of the document of each position, (S + 1,), int64; D for padding."""
    numbers = torch.arange(offsets.shape[0], device=offsets.device)
    counts = offsets.diff().long()
    return torch.cat((numbers[:-1].repeat_interleave(counts), numbers[-1:]))


def start_of(offsets: torch.Tensor) -> torch.Tensor:
    """Return where the document of each position begins, (S + 1,), int64; S for padding."""
    return offsets.long()[document_of(offsets)]


def entry(table: torch.Tensor, position: Any) -> Any:
    """Return what a table with an entry for padding says of a position."""
    return table[position.clamp(max=table.shape[0] - 1)]


def is_packed(table: torch.Tensor, position: Any) -> Any:
    """Return whether a position belongs to a document, by a table with an entry for padding."""
    return position < table.shape[0] - 1
