"""The lists of blocks that FlexAttention's `BlockMask` is made of, and the table they stand for.

A list pair says for each row of blocks how many blocks it has (`num`, int32 ``(B, H, rows)``) and
which (`indices`, int32 ``(B, H, rows, width)``; what follows the counted ones means nothing).  A
table of kinds says the same densely: int8 ``(B, H, rows, columns)`` of EMPTY, PARTIAL and FULL, as
everywhere else in FlexFA4.

This module converts between the two and refuses lists that stand for no table.  It knows nothing of
mask functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import torch
from torch._subclasses.fake_tensor import FakeTensor

from flexfa4.errors import describe
from flexfa4.flex.errors import (
    BlockCountError,
    BlockListPairError,
    BlockListRowsError,
    BlockListTypeError,
    BlockOutsideError,
    PartialAndFullError,
    RepeatedBlockError,
    TransposedListError,
)
from flexfa4.frontend.masks.grid import EMPTY, FULL, PARTIAL, block_count

Lists: TypeAlias = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor | None]
"""The list pairs of partial and of full blocks; the second may be missing."""

LISTS: Final = (
    "kv_num_blocks",
    "kv_indices",
    "full_kv_num_blocks",
    "full_kv_indices",
    "q_num_blocks",
    "q_indices",
    "full_q_num_blocks",
    "full_q_indices",
)
"""The lists of a mask, in torch's order: partial and full blocks by rows, the same by columns."""
PAIRS: Final = tuple(zip(LISTS[::2], LISTS[1::2], strict=True))

_INTEGERS: Final = (torch.int32, torch.int64)
AXES: Final = {
    3: "batch, heads, rows of blocks",
    4: "batch, heads, rows of blocks, blocks in a row",
}  # of counts and of lists


def ordered(dense: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the list pair of a bool table ``(B, H, rows, columns)``.

    Each row lists its blocks in ascending order, and after them those that it has not.
    """
    rank = dense.cumsum(-1, dtype=torch.int32)
    counts = dense.sum(-1, dtype=torch.int32)
    blocks = torch.arange(dense.shape[-1], dtype=torch.int32, device=dense.device)
    # where each block goes: behind those of its row before it, or behind all of them
    place = torch.where(dense, rank - 1, counts[..., None] + blocks - rank)
    order = torch.empty_like(place).scatter_(-1, place.long(), blocks.expand_as(place))
    return counts, order


def marked(num: torch.Tensor, indices: torch.Tensor, columns: int) -> torch.Tensor:
    """Return the bool table ``(B, H, rows, columns)`` of a list pair that has been checked."""
    width = indices.shape[-1]
    counted = torch.arange(width, device=indices.device) < num[..., None]
    target = torch.where(counted, indices, columns).long()  # one column more, for the others
    table = torch.zeros(*num.shape, columns + 1, dtype=torch.bool, device=indices.device)
    return table.scatter_(-1, target, True)[..., :columns]


def kinds_of(partial: torch.Tensor, full: torch.Tensor | None) -> torch.Tensor:
    """Return the table of kinds of two bool tables."""
    kinds = partial.to(torch.int8) * PARTIAL
    return kinds if full is None else kinds.masked_fill_(full, FULL)


def stated_kinds(mask: Any) -> torch.Tensor:
    """Return the table of kinds of a block mask's lists without a look at their values.

    Args:
        mask: a block mask, ours or torch's.
    """
    columns = block_count(mask.seq_lengths[1], mask.BLOCK_SIZE[1])
    partial = marked(mask.kv_num_blocks, mask.kv_indices, columns)
    if mask.full_kv_num_blocks is None:
        return kinds_of(partial, None)
    return kinds_of(partial, marked(mask.full_kv_num_blocks, mask.full_kv_indices, columns))


def readable(tensor: Any) -> bool:
    """Return whether a tensor has values to look at: not on meta, nor in a graph of torch's."""
    if torch.compiler.is_dynamo_compiling() or isinstance(tensor, FakeTensor):
        return False
    return not getattr(tensor, "is_meta", False)


def split(kinds: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the bool tables of the partial and of the full blocks."""
    return kinds == PARTIAL, kinds == FULL


def lists_by(kinds: torch.Tensor, *, full: bool) -> Lists:
    """Return the lists of the rows of a table: partial pair, full pair (None without `full`)."""
    if not full:
        return (*ordered(kinds != EMPTY), None, None)
    partial, whole = split(kinds)
    return (*ordered(partial), *ordered(whole))


@dataclass(frozen=True)
class ListPair:
    """A list pair as a user gave it.

    Attributes:
        names: what its two tensors are called, for messages.
        num, indices: as in the module's docstring.
    """

    names: tuple[str, str]
    num: Any
    indices: Any

    def table(self, rows: int, columns: int) -> torch.Tensor:
        """Return its bool table ``(B, H, rows, columns)``.

        Raises:
            BlockListError: shapes, dtypes or devices do not fit; a count exceeds its list; an index
                is outside the mask, or listed twice.
        """
        self._check_tensors()
        if self.num.shape[2] != rows:
            raise BlockListRowsError(name=self.names[0], rows=self.num.shape[2], needed=rows)
        num, indices = self.num, self.indices
        names = {"num": self.names[0], "indices": self.names[1]}
        width = indices.shape[-1]
        if bool(((num < 0) | (num > width)).any()):
            raise BlockCountError(**names, count=int(num.max()), width=width)
        if num.numel():  # lists are as wide as the mask, and most rows short
            indices = indices[..., : int(num.max())]
        counted = torch.arange(indices.shape[-1], device=indices.device) < num[..., None]
        wrong = counted & ((indices < 0) | (indices >= columns))
        if bool(wrong.any()):
            block = int(indices[wrong][0])
            raise BlockOutsideError(**names, block=block, blocks=columns, last=columns - 1)
        table = marked(num, indices, columns)
        if not torch.equal(table.sum(-1), num.long()):
            raise RepeatedBlockError(indices=self.names[1])
        return table

    def extent(self) -> tuple[int, int]:
        """Return how many rows there are, and how wide the lists.

        Raises:
            BlockListError: these are no lists.
        """
        self._check_tensors()
        return self.indices.shape[2], self.indices.shape[3]

    def _check_tensors(self) -> None:
        for name, tensor, rank in zip(self.names, (self.num, self.indices), (3, 4), strict=True):
            if not isinstance(tensor, torch.Tensor):
                found, advice = describe(tensor), f"torch.tensor({name}, dtype=torch.int32)"
            elif tensor.dtype not in _INTEGERS:
                found = f"a tensor of {str(tensor.dtype)[6:]}"
                advice = f"{name}.to(torch.int32)"
            elif tensor.dim() != rank:
                found = describe(tensor)
                advice = f"{name}[None, None] for one batch and one head"
            else:
                continue
            raise BlockListTypeError(name=name, found_value=found, axes=AXES[rank], rewrite=advice)
        if self.num.shape != self.indices.shape[:3]:
            raise BlockListPairError(
                first=self.names[0],
                first_value=f"shape {tuple(self.num.shape)}",
                second=self.names[1],
                second_value=f"shape {tuple(self.indices.shape)}",
                what="number of batches, heads and rows",
                rewrite=f"{self.names[0]} of shape {tuple(self.indices.shape[:3])}",
            )
        if self.num.device != self.indices.device:
            raise BlockListPairError(
                first=self.names[0],
                first_value=f"device {self.num.device}",
                second=self.names[1],
                second_value=f"device {self.indices.device}",
                what="device",
                rewrite=f"{self.names[0]}.to({self.names[1]}.device)",
            )


def checked_kinds(
    partial: ListPair, full: ListPair | None, rows: int, columns: int
) -> torch.Tensor:
    """Return the table of kinds of the lists of a mask.

    Raises:
        BlockListError: see `ListPair.table`; or a block is both partial and full, or the two pairs
            have different shapes or devices.
    """
    table = partial.table(rows, columns)
    if full is None:
        return kinds_of(table, None)
    if full.num is None or full.indices is None:
        given, missing = full.names if full.indices is None else full.names[::-1]
        raise BlockListTypeError(
            name=missing,
            found_value=f"None beside {given}",
            axes=AXES[3 if missing == full.names[0] else 4],
            rewrite=f"{missing}=..., or neither of them",
        )
    whole = full.table(rows, columns)
    if whole.shape[:2] != table.shape[:2] or whole.device != table.device:
        raise BlockListPairError(
            first=partial.names[0],
            first_value=f"shape {tuple(partial.num.shape)} on {table.device}",
            second=full.names[0],
            second_value=f"shape {tuple(full.num.shape)} on {whole.device}",
            what="number of batches and heads, and one device,",
            rewrite=f"{full.names[0]}.expand_as({partial.names[0]})",
        )
    if bool((table & whole).any()):
        raise PartialAndFullError(partial=partial.names[1], full=full.names[1])
    return kinds_of(table, whole)


def kinds_of_lists(
    lists: Mapping[str, torch.Tensor | None], rows: int, columns: int
) -> torch.Tensor:
    """Return the table of kinds of all lists of a mask.

    Args:
        lists: by the names of `LISTS`, None for those that are not there.
        rows: of blocks.
        columns: of blocks.

    Raises:
        BlockListError: see `checked_kinds`; or the lists by columns, where there are any, are not
            the transpose of those by rows.
    """
    partial, full, partial_q, full_q = (
        None if lists[num] is lists[indices] is None else
        ListPair((num, indices), lists[num], lists[indices])
        for num, indices in PAIRS
    )  # fmt: skip
    if partial is None:
        raise BlockListTypeError(
            name=LISTS[0],
            found_value="None",
            axes=AXES[3],
            rewrite="torch.zeros_like(full_kv_num_blocks) where no block is partial",
        )
    kinds = checked_kinds(partial, full, rows, columns)
    if partial_q is not None:
        transposed = checked_kinds(partial_q, full_q, columns, rows).transpose(-2, -1)
        if not torch.equal(transposed, kinds):
            raise TransposedListError(indices=partial_q.names[1])
    return kinds


__all__ = [
    "LISTS",
    "PAIRS",
    "ListPair",
    "Lists",
    "checked_kinds",
    "kinds_of",
    "kinds_of_lists",
    "lists_by",
    "marked",
    "ordered",
    "readable",
    "stated_kinds",
]
