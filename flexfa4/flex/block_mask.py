"""`BlockMask` with FlexAttention's attributes and methods, over a block mask of FlexFA4.

What it means is fixed by its lists and its mask function together: a block listed as full is
visible, a listed partial block is visible where `mask_mod` is True, any other is not.  Where the
mask function masks nothing, the lists are the mask.  `native_mask` turns that meaning into a
`flexfa4.BlockMask`, and the rest of FlexFA4 sees only that.

Copies made by ``copy.deepcopy`` and pickle hold the mask function as text with the values that it
captures now, so a mask of a closure can be sent to another process.

As in torch, the attributes may be assigned (`mask_mod` and `seq_lengths` of a slice, to decode).
Making a mask from a function is `creation`'s business, computing with it `attention`'s.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from typing import Any, Final

import torch
from torch.nn.attention import flex_attention as torch_flex

from flexfa4.block_mask import BlockMask as NativeBlockMask
from flexfa4.block_mask import tensor_identity
from flexfa4.errors import ArgumentError, describe
from flexfa4.flex.block_lists import (
    AXES,
    ListPair,
    check_transposed,
    checked_kinds,
    lists_by,
    readable,
    stated_kinds,
)
from flexfa4.flex.block_picture import picture
from flexfa4.flex.errors import BlockListTypeError, BlockMaskAdjustmentError
from flexfa4.flex.listed_mask import Part, Picked
from flexfa4.flex.masks import (
    MaskFunction,
    callable_mask,
    checked_mask_mod,
    is_noop,
    noop_mask,
)
from flexfa4.flex.native_mask import Native, native_of
from flexfa4.flex.sizes import BLOCK_SIZE as DEFAULT_BLOCK_SIZE
from flexfa4.flex.sizes import block_size_pair, length_pair
from flexfa4.flex.slicing import is_whole, picked, rows_length
from flexfa4.frontend.blocks import EMPTY, block_count
from flexfa4.frontend.text import snapshots
from flexfa4.frontend.tracing.trace import Mod, resolve, unpickled


@dataclass(frozen=True)
class _Found:
    """The kinds of the blocks that lists say, and which lists."""

    kinds: torch.Tensor
    lists: tuple[Any, ...]


@dataclass(eq=False, repr=False)
class BlockMask:
    """A mask with lists of its partial and full blocks, as torch's FlexAttention has it.

    Attributes:
        seq_lengths: queries and keys.
        kv_num_blocks, kv_indices: partial blocks by rows: int32 ``(B, H, rows)`` and
            ``(B, H, rows, width)``; B and H are 1 where the mask is the same for all.
        full_kv_num_blocks, full_kv_indices: full blocks; None: they are among the partial ones.
        q_num_blocks, q_indices, full_q_num_blocks, full_q_indices: the same by columns, or None.
        BLOCK_SIZE: queries and keys in a block: any numbers, dividing the lengths or not.
        mask_mod: the mask function; None and `noop_mask`: the lists are the mask.
        dq_write_order, dq_write_order_full, dq_kv_order, dq_kv_order_spt: kept for `to_torch`, and
            otherwise without meaning: gradients are deterministic always.

    Raises:
        BlockListError: lists that stand for no mask.
        ArgumentError: lengths or block sizes that are no pairs of integers, or a `mask_mod` that is
            no mask.
        ArityError: a `mask_mod` that does not take the parameters of a mask.
    """

    seq_lengths: tuple[int, int]
    kv_num_blocks: torch.Tensor
    kv_indices: torch.Tensor
    full_kv_num_blocks: torch.Tensor | None
    full_kv_indices: torch.Tensor | None
    q_num_blocks: torch.Tensor | None
    q_indices: torch.Tensor | None
    full_q_num_blocks: torch.Tensor | None
    full_q_indices: torch.Tensor | None
    BLOCK_SIZE: tuple[int, int] = (DEFAULT_BLOCK_SIZE, DEFAULT_BLOCK_SIZE)
    mask_mod: MaskFunction = noop_mask
    _: KW_ONLY
    dq_write_order: torch.Tensor | None = None
    dq_write_order_full: torch.Tensor | None = None
    dq_kv_order: torch.Tensor | None = None
    dq_kv_order_spt: bool | None = None
    _found: _Found | None = field(default=None, init=False)
    _native: Native | None = field(default=None, init=False)
    # what found the blocks, where mask_mod alone is the mask, and no list says more
    _origin: NativeBlockMask | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        """Check the lists."""
        self.block_kinds()

    def __setattr__(self, name: str, value: Any) -> None:
        check = _CHECKS.get(name)
        object.__setattr__(self, name, value if check is None else check(value))
        if not name.startswith("_"):  # what was made of the attributes is made again
            object.__setattr__(self, "_native", None)
            object.__setattr__(self, "_origin", None)
            if name != "mask_mod":
                object.__setattr__(self, "_found", None)

    @classmethod
    def from_kv_blocks(
        cls,
        kv_num_blocks: torch.Tensor,
        kv_indices: torch.Tensor,
        full_kv_num_blocks: torch.Tensor | None = None,
        full_kv_indices: torch.Tensor | None = None,
        BLOCK_SIZE: int | tuple[int, int] = DEFAULT_BLOCK_SIZE,
        mask_mod: MaskFunction | None = None,
        seq_lengths: tuple[int, int] | None = None,
        compute_q_blocks: bool = True,
        *,
        dq_write_order: torch.Tensor | None = None,
        dq_write_order_full: torch.Tensor | None = None,
        dq_kv_order: torch.Tensor | bool | None = None,
    ) -> BlockMask:
        """Make a block mask from lists by rows; those by columns are made from them.

        Args:
            kv_num_blocks: how many partial blocks each row has, int32 ``(B, H, rows)``.
            kv_indices: which, int32 ``(B, H, rows, width)``.
            full_kv_num_blocks: how many full ones, or None.
            full_kv_indices: which, or None.
            BLOCK_SIZE: queries and keys in a block, or one number for both.
            mask_mod: the mask function of partial blocks; None: the lists are the mask.
            seq_lengths: queries and keys; None: whole blocks, as many columns as the lists are
                wide.
            compute_q_blocks: make the lists by columns.
            dq_write_order: kept for `to_torch`.
            dq_write_order_full: kept for `to_torch`.
            dq_kv_order: a bool is `dq_kv_order_spt`, a tensor `dq_kv_order`.

        Raises:
            BlockListError: the lists stand for no mask.
        """
        size = block_size_pair(BLOCK_SIZE)
        if seq_lengths is None:
            rows, width = ListPair(_NAMES[0], kv_num_blocks, kv_indices).extent()
            seq_lengths = (rows * size[0], width * size[1])
        made = cls(
            seq_lengths,
            kv_num_blocks,
            kv_indices,
            full_kv_num_blocks,
            full_kv_indices,
            *(None, None, None, None),  # by columns
            BLOCK_SIZE=size,
            mask_mod=noop_mask if mask_mod is None else mask_mod,
            dq_write_order=dq_write_order,
            dq_write_order_full=dq_write_order_full,
            dq_kv_order=None if isinstance(dq_kv_order, bool) else dq_kv_order,
            dq_kv_order_spt=dq_kv_order if isinstance(dq_kv_order, bool) else None,
        )
        if compute_q_blocks:
            by_columns = lists_by(made.block_kinds().transpose(-2, -1), full=made.separates_full)
            for name, tensor in zip(_BY_COLUMNS, by_columns, strict=True):
                object.__setattr__(made, name, tensor)  # known to fit
        return made

    # ---- what it is ------------------------------------------------------------------------------

    def block_kinds(self) -> torch.Tensor:
        """Return int8 ``(B, H, rows, columns)``: 0 empty, 1 partial, 2 full.

        Raises:
            BlockListError: lists that stand for no mask.
        """
        found = self._found
        if not readable(self.kv_indices):
            if found is None:
                found = _Found(stated_kinds(self), ())
                object.__setattr__(self, "_found", found)
            return found.kinds
        lists = tuple(map(tensor_identity, self._lists()))
        if found is None or found.lists != lists or None in lists:
            kinds = self._checked_kinds()
            if found is None or not torch.equal(kinds, found.kinds):
                found, self._native, self._origin = _Found(kinds, lists), None, None
            self._found = found
        return found.kinds

    def _lists(self) -> list[torch.Tensor]:
        return [t for name in LISTS[:4] if (t := getattr(self, name)) is not None]

    def _checked_kinds(self) -> torch.Tensor:
        lengths, size = length_pair(self.seq_lengths), block_size_pair(self.BLOCK_SIZE)
        rows, columns = map(block_count, lengths, size)
        partial, full, partial_q, full_q = (self._pair(names) for names in _NAMES)
        if partial is None:
            raise BlockListTypeError(
                name=LISTS[0],
                found_value="None",
                axes=AXES[3],
                rewrite="torch.zeros_like(full_kv_num_blocks) where no block is partial",
            )
        kinds = checked_kinds(partial, full, rows, columns)
        if partial_q is not None:
            check_transposed(kinds, partial_q, full_q)
        return kinds

    def _pair(self, names: tuple[str, str]) -> ListPair | None:
        num, indices = (getattr(self, name) for name in names)
        return None if num is None and indices is None else ListPair(names, num, indices)

    @property
    def separates_full(self) -> bool:
        """Whether full blocks have lists of their own."""
        return self.full_kv_num_blocks is not None

    @property
    def shape(self) -> tuple[int, ...]:
        """``(B, H, queries, keys)``."""
        return (*self.kv_indices.shape[:2], *self.seq_lengths)

    def numel(self) -> int:
        """Return the number of scores of the mask, visible or not."""
        b, h, q_len, kv_len = self.shape
        return b * h * q_len * kv_len

    def sparsity(self) -> float:
        """Return the share of the blocks that are not computed, in percent, 0 to 100."""
        table = self.to_dense()
        return 100 * (1 - float(table.double().mean())) if table.numel() else 0.0

    def to_dense(self) -> torch.Tensor:
        """Return which *blocks* are computed, int32 ``(B, H, rows, columns)`` of 0 and 1.

        As in torch this is no mask of scores: `token_mask` is.
        """
        return (self.block_kinds() != EMPTY).to(torch.int32)

    def token_mask(self) -> torch.Tensor:
        """Return the mask of the scores, bool ``(B, H, queries, keys)``; for looking at.

        Where B or H is 1 and `mask_mod` tells batches or heads apart, it is that of the first.
        """
        batch, heads = self.shape[:2]
        return native_of(self, batch, heads).to_dense().expand(*self.shape)

    def to_string(self, grid_size: int | tuple[int, int] = (20, 20), limit: int = 4) -> str:
        """Return a picture of the blocks.

        Args:
            grid_size: rows and columns of the picture at most, or one number for both; -1: all.
            limit: how many pairs of batch and head are shown at most.
        """
        grid = (grid_size, grid_size) if isinstance(grid_size, int) else grid_size
        return picture(self.to_dense(), grid, limit)

    def __str__(self) -> str:
        head = f"BlockMask(shape={self.shape}, sparsity={self.sparsity():.2f}%, \n"
        return head + self.to_string().strip() + "\n)"

    def __repr__(self) -> str:
        shown = {
            name: None if tensor is None else tuple(tensor.shape)
            for name in LISTS
            for tensor in (getattr(self, name),)
        }
        shown["BLOCK_SIZE"] = self.BLOCK_SIZE
        shown["shape"] = self.shape
        lines = [f"    {name}={value},\n" for name, value in shown.items()]
        name = getattr(self.mask_mod, "__name__", self.mask_mod)
        lines.append(f"    sparsity={self.sparsity():.2f}%,\n    mask_mod={name}\n")
        return f"BlockMask(\n{''.join(lines)})"

    def as_tuple(self, flatten: bool = True) -> tuple[Any, ...]:
        """Return all attributes, in torch's order.

        Args:
            flatten: lengths and block sizes as two numbers each rather than as pairs.
        """
        lengths = tuple(self.seq_lengths) if flatten else (self.seq_lengths,)
        size = tuple(self.BLOCK_SIZE) if flatten else (self.BLOCK_SIZE,)
        between = (getattr(self, name) for name in (*LISTS, *_ORDERS))
        return (*lengths, *between, *size, self.mask_mod)

    # ---- parts and copies ------------------------------------------------------------------------

    def __getitem__(self, index: Any) -> BlockMask:
        """Return the part for some batches, heads and rows of blocks.

        Args:
            index: up to three of int, slice and integer tensor: batch, head, row of blocks.  An int
                keeps its dimension, with size 1.

        Returns:
            The block mask of the part, for as many queries as its rows have.  Its `mask_mod` is
            that of the whole at the positions that the part has there, so each query is masked as
            the query of the whole that it is.

        Raises:
            BlockIndexError: there is no such batch, head or row, or a row that is cut short by the
                length does not come last.
        """
        kinds = self.block_kinds()
        batches, heads, rows = kinds.shape[:3]
        picks = picked(index, (batches, heads, rows))
        q_len = rows_length(index, picks[2], self.seq_lengths[0], self.BLOCK_SIZE[0])
        places: list[Picked | None] = []
        for axis, (pick, size) in enumerate(zip(picks, (batches, heads, rows), strict=True)):
            whole = is_whole(pick, size) or not len(pick)
            places.append(None if whole else Picked.of(pick, kinds.device))
            kinds = kinds.index_select(axis, pick.to(kinds.device))
        mask_mod, (batch, head, row) = self.mask_mod, places
        if any(places) and not is_noop(mask_mod):
            mask_mod = Part(callable_mask(mask_mod), batch, head, row, self.BLOCK_SIZE[0])
        return self._with(kinds, (q_len, self.seq_lengths[1]), mask_mod)

    def _adjust(self, new_q_len: int, new_kv_len: int) -> BlockMask:
        """Return the upper left part for other lengths, which may not need more blocks.

        The mask function stays as it is, so this is for masks that count positions from the start.

        Raises:
            BlockMaskAdjustmentError: the lengths need more blocks than there are.
        """
        kinds = self.block_kinds()
        lengths = length_pair((new_q_len, new_kv_len))
        rows, columns = map(block_count, lengths, self.BLOCK_SIZE)
        if rows > kinds.shape[2] or columns > kinds.shape[3]:
            raise BlockMaskAdjustmentError(made=length_pair(self.seq_lengths), lengths=lengths)
        return self._with(kinds[:, :, :rows, :columns], lengths, self.mask_mod)

    def _with(
        self, kinds: torch.Tensor, lengths: tuple[int, int], mask_mod: MaskFunction
    ) -> BlockMask:
        """Return the block mask of other kinds, with the lists that this one has."""
        made = from_kinds(
            kinds,
            Layout(lengths, block_size_pair(self.BLOCK_SIZE), self.separates_full),
            mask_mod,
            by_columns=self.q_indices is not None,
        )
        made._origin = self._origin
        return made

    def to(self, device: torch.device | str) -> BlockMask:
        """Return a copy with its lists on a device; what `mask_mod` captures stays where it is."""
        lists = {name: getattr(self, name) for name in (*LISTS, *_ORDERS)}
        moved: dict[str, Any] = {
            n: t.to(device) for n, t in lists.items() if isinstance(t, torch.Tensor)
        }
        copy = replace(self, **moved)
        copy._native, copy._origin = self._native, self._origin
        return copy

    def __copy__(self) -> BlockMask:
        return replace(self)

    def __getstate__(self) -> dict[str, Any]:
        noop = is_noop(self.mask_mod)
        return {
            "format": snapshots.FORMAT,
            **self._given(),
            "mask_mod": None if noop else snapshots.state_of(resolve(self.mask_mod, "mask")),
        }

    def __setstate__(self, state: Any) -> None:
        with snapshots.reading("BlockMask", state):
            values = {one.name: state[one.name] for one in fields(self) if one.init}
            stored = values["mask_mod"]
            values["mask_mod"] = None if stored is None else unpickled(stored)
            self.__dict__.update(vars(BlockMask(**values)))

    def _given(self) -> dict[str, Any]:
        """Return the arguments that make this block mask."""
        return {one.name: getattr(self, one.name) for one in fields(self) if one.init}

    # ---- torch's ---------------------------------------------------------------------------------

    @classmethod
    def from_torch(cls, block_mask: Any) -> BlockMask:
        """Return the block mask of FlexFA4 that means the same as one of torch's.

        Raises:
            ArgumentError: it is no block mask of torch.
            BlockListError: its lists stand for no mask.
        """
        if not isinstance(block_mask, torch_flex.BlockMask):
            raise ArgumentError(
                name="block_mask",
                found_value=describe(block_mask),
                expected="a BlockMask of torch.nn.attention.flex_attention",
                rewrite="flexfa4.flex.create_block_mask(mask_mod, B, H, Q_LEN, KV_LEN)",
            )
        names = (one.name for one in fields(cls) if one.init)
        values = {name: getattr(block_mask, name) for name in names}
        if is_noop(values["mask_mod"]):
            values["mask_mod"] = noop_mask
        return cls(**values)

    def to_torch(self) -> Any:
        """Return the same as a ``torch.nn.attention.flex_attention.BlockMask``.

        Raises:
            ArgumentError: the mask function is a text or a `flexfa4.Mod`, which torch cannot call.
        """
        if isinstance(self.mask_mod, (str, Mod)):
            raise ArgumentError(
                name="mask_mod",
                found_value=describe(self.mask_mod),
                expected="a Python function, for torch to call it",
                rewrite="create_block_mask(function, ...)",
            )
        values = self._given()
        if is_noop(self.mask_mod):
            values["mask_mod"] = torch_flex.noop_mask
        return torch_flex.BlockMask(**values)


# What an attribute must be; the values are as the checks return them.
_CHECKS: Final[dict[str, Callable[[Any], Any]]] = {
    "seq_lengths": length_pair,
    "BLOCK_SIZE": block_size_pair,
    "mask_mod": checked_mask_mod,
}
LISTS: Final = tuple(f.name for f in fields(BlockMask))[1:9]
_ORDERS: Final = ("dq_write_order", "dq_write_order_full", "dq_kv_order", "dq_kv_order_spt")
_BY_COLUMNS: Final = LISTS[4:]
_NAMES: Final = tuple(zip(LISTS[::2], LISTS[1::2], strict=True))


@dataclass(frozen=True)
class Layout:
    """How kinds of blocks become lists: lengths, block size, and whether full ones are apart."""

    lengths: tuple[int, int]
    block_size: tuple[int, int]
    separate_full: bool = True


def from_kinds(
    kinds: torch.Tensor, layout: Layout, mask_mod: MaskFunction, *, by_columns: bool = True
) -> BlockMask:
    """Return the block mask of a table of kinds, int8 ``(B, H, rows, columns)``."""
    num, indices, full_num, full_indices = lists_by(kinds, full=layout.separate_full)
    assert num is not None and indices is not None
    return BlockMask.from_kv_blocks(
        num,
        indices,
        full_num,
        full_indices,
        layout.block_size,
        mask_mod,
        layout.lengths,
        by_columns,
    )
