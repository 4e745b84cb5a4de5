"""`BlockMask` with FlexAttention's attributes and methods, over a block mask of FlexFA4.

What it means is fixed by its lists and its mask function together: a block listed as full is
visible, a listed partial block is visible where `mask_mod` is True, any other is not.  Where the
mask function masks nothing, the lists are the mask.  `native_mask` turns that meaning into a
`flexfa4.BlockMask`, and the rest of FlexFA4 sees only that.

Copies made by ``copy.deepcopy`` and pickle hold the mask function as text with the values that it
captures now, so a mask of a closure can be sent to another process.

The lists of a mask that was made from a function are written when the first of them is read: they
take four bytes for each block of the whole mask, four times over, and attention needs none of them.

As in torch, the attributes may be assigned (`mask_mod` and `seq_lengths` of a slice, to decode).
Making a mask from a function is `creation`'s business, computing with it `attention`'s.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.nn.attention import flex_attention as torch_flex

from flexfa4.block_mask import BlockMask as NativeBlockMask
from flexfa4.errors import ArgumentError, describe
from flexfa4.flex.block_lists import LISTS, PAIRS, ListPair, kinds_of_lists, readable, stated_kinds
from flexfa4.flex.block_picture import attributes, picture
from flexfa4.flex.block_table import BlockTable, ListedKinds
from flexfa4.flex.errors import BlockMaskAdjustmentError
from flexfa4.flex.found_blocks import Layout, blocks_of, is_deferred
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
from flexfa4.frontend.masks.grid import EMPTY, block_count
from flexfa4.frontend.text import snapshots
from flexfa4.frontend.tracing.trace import Mod, resolve, unpickled
from flexfa4.masks.snapshot import tensor_identity


@dataclass(frozen=True)
class _Found:
    """The blocks of a mask, and the identities of the lists that say so, where there are any."""

    table: BlockTable
    lists: tuple[Any, ...] = ()


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
    # how to write the lists, where nobody has read one yet; there is _found then, or _origin
    _unwritten: Layout | None = field(default=None, init=False)
    _native: Native | None = field(default=None, init=False)
    # what found the blocks, where mask_mod alone is the mask, and no list says more
    _origin: NativeBlockMask | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        """Check the lists."""
        self.blocks()

    if not TYPE_CHECKING:  # lists are no reason to take any attribute for known

        def __getattr__(self, name: str) -> Any:
            """Write the lists when the first of them is read."""
            if name not in LISTS or self._unwritten is None:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            if torch.compiler.is_dynamo_compiling():  # they belong to the graph, not to the mask
                return self._lists_to_write()[name]
            self._write_lists()
            return self.__dict__[name]

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("_") and self._unwritten is not None:
            self.blocks() if name == "mask_mod" else self._write_lists()
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
            rows, width = ListPair(PAIRS[0], kv_num_blocks, kv_indices).extent()
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
            by_columns = made.blocks().transposed().lists(full=made.separates_full)
            for name, tensor in zip(LISTS[4:], by_columns, strict=True):
                object.__setattr__(made, name, tensor)  # known to fit
        return made

    def _lists_to_write(self) -> dict[str, torch.Tensor | None]:
        """Return the lists of blocks that were found from a mask."""
        table, layout = self.blocks(), self._unwritten
        assert layout is not None
        full, none = layout.separate_full, (None, None, None, None)
        by_columns = table.transposed().lists(full=full) if layout.by_columns else none
        return dict(zip(LISTS, (*table.lists(full=full), *by_columns), strict=True))

    def _write_lists(self) -> None:
        for name, tensor in self._lists_to_write().items():
            object.__setattr__(self, name, tensor)
        found = _Found(self.blocks(), tuple(map(tensor_identity, self._lists())))
        self._found, self._unwritten = found, None

    # ---- what it is ------------------------------------------------------------------------------

    def block_kinds(self) -> torch.Tensor:
        """Return int8 ``(B, H, rows, columns)``: 0 empty, 1 partial, 2 full.

        Raises:
            BlockListError: lists that stand for no mask.
        """
        return self.blocks().kinds()

    def blocks(self) -> BlockTable:
        """Return the blocks in the form that FlexFA4 keeps them in.

        Raises:
            BlockListError: lists that stand for no mask.
        """
        found, layout = self._found, self._unwritten
        if layout is not None:
            traced = torch.compiler.is_dynamo_compiling()
            if found is not None:
                return _in_graph(found.table) if traced else found.table
            assert self._origin is not None
            table = blocks_of(self._origin, layout)
            if not traced:
                self._found = _Found(table)
            return table
        if not readable(self.kv_indices):
            if found is None:
                found = _Found(ListedKinds(stated_kinds(self)))
                object.__setattr__(self, "_found", found)
            return _in_graph(found.table)
        lists = tuple(map(tensor_identity, self._lists()))
        if found is None or found.lists != lists or None in lists:
            kinds = self._checked_kinds()
            if found is None or not torch.equal(kinds, found.table.kinds()):
                found = _Found(ListedKinds(kinds))
                self._native, self._origin = None, None
            self._found = found = replace(found, lists=lists)
        return found.table

    @property
    def _device(self) -> torch.device:
        """Where the lists are."""
        return self.kv_indices.device if self._unwritten is None else self._unwritten.device

    def _lists(self) -> list[torch.Tensor]:
        return [t for name in LISTS[:4] if (t := getattr(self, name)) is not None]

    def _checked_kinds(self) -> torch.Tensor:
        lengths, size = length_pair(self.seq_lengths), block_size_pair(self.BLOCK_SIZE)
        rows, columns = map(block_count, lengths, size)
        return kinds_of_lists({name: getattr(self, name) for name in LISTS}, rows, columns)

    @property
    def is_listed(self) -> bool:
        """Whether its lists have been written."""
        return self._unwritten is None

    @property
    def separates_full(self) -> bool:
        """Whether full blocks have lists of their own."""
        layout = self._unwritten
        return self.full_kv_num_blocks is not None if layout is None else layout.separate_full

    @property
    def shape(self) -> tuple[int, ...]:
        """``(B, H, queries, keys)``."""
        if self._unwritten is None:
            counts: tuple[int, ...] = self.kv_indices.shape
        elif self._found is not None:
            counts = self._found.table.shape
        else:
            assert self._origin is not None
            counts = self._origin.shape
        return (*counts[:2], *self.seq_lengths)

    def numel(self) -> int:
        """Return the number of scores of the mask, visible or not."""
        b, h, q_len, kv_len = self.shape
        return b * h * q_len * kv_len

    def sparsity(self) -> float:
        """Return the share of the blocks that are not computed, in percent, 0 to 100."""
        return 100 * (1 - self.blocks().share())

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
        return picture(self.blocks(), grid, limit)

    def __str__(self) -> str:
        head = f"BlockMask(shape={self.shape}, sparsity={self.sparsity():.2f}%, \n"
        return head + self.to_string().strip() + "\n)"

    def __repr__(self) -> str:
        layout = self._unwritten
        if layout is None:
            lists = {name: getattr(self, name) for name in LISTS}
            shown = {name: t if t is None else tuple(t.shape) for name, t in lists.items()}
        else:
            shown = dict(zip(LISTS, layout.shapes(self.blocks().shape), strict=True))
        name = getattr(self.mask_mod, "__name__", self.mask_mod)
        rest = {"sparsity": f"{self.sparsity():.2f}%", "mask_mod": name}
        return attributes({**shown, "BLOCK_SIZE": self.BLOCK_SIZE, "shape": self.shape}, rest)

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
        blocks = self.blocks()
        sizes = blocks.shape[:3]
        picks = picked(index, sizes)
        q_len = rows_length(index, picks[2], self.seq_lengths[0], self.BLOCK_SIZE[0])
        mask_mod = self.mask_mod
        if not is_noop(mask_mod):
            batch, head, row = (
                None if is_whole(pick, size) or not len(pick) else Picked.of(pick, self._device)
                for pick, size in zip(picks, sizes, strict=True)
            )
            if batch or head or row:
                mask_mod = Part(callable_mask(mask_mod), batch, head, row, self.BLOCK_SIZE[0])
        return self._with(blocks.picked(picks), (q_len, self.seq_lengths[1]), mask_mod)

    def _adjust(self, new_q_len: int, new_kv_len: int) -> BlockMask:
        """Return the upper left part for other lengths, which may not need more blocks.

        The mask function stays as it is, so this is for masks that count positions from the start.

        Raises:
            BlockMaskAdjustmentError: the lengths need more blocks than there are.
        """
        blocks = self.blocks()
        lengths = length_pair((new_q_len, new_kv_len))
        rows, columns = map(block_count, lengths, self.BLOCK_SIZE)
        if rows > blocks.shape[2] or columns > blocks.shape[3]:
            raise BlockMaskAdjustmentError(made=length_pair(self.seq_lengths), lengths=lengths)
        return self._with(blocks.cropped(rows, columns), lengths, self.mask_mod)

    def _with(
        self, blocks: BlockTable, lengths: tuple[int, int], mask_mod: MaskFunction
    ) -> BlockMask:
        """Return the block mask of other blocks, with the lists that this one has."""
        layout = self._unwritten
        if layout is None:
            layout = Layout(
                lengths,
                block_size_pair(self.BLOCK_SIZE),
                self.kv_indices.device,
                separate_full=self.separates_full,
                by_columns=self.q_indices is not None,
            )
        made = from_blocks(blocks, replace(layout, lengths=lengths), mask_mod)
        made._origin = self._origin
        return made

    def to(self, device: torch.device | str) -> BlockMask:
        """Return a copy with its lists on a device; what `mask_mod` captures stays where it is."""
        if self._unwritten is not None:
            copy, where = self.__copy__(), torch.device(device)
            copy._unwritten = replace(self._unwritten, device=where)
            copy._found = None if self._found is None else _Found(self._found.table.to(where))
            return copy
        lists = {name: getattr(self, name) for name in (*LISTS, *_ORDERS)}
        moved: dict[str, Any] = {
            n: t.to(device) for n, t in lists.items() if isinstance(t, torch.Tensor)
        }
        copy = replace(self, **moved)
        copy._native, copy._origin = self._native, self._origin
        return copy

    def __copy__(self) -> BlockMask:
        copy = object.__new__(BlockMask)
        copy.__dict__.update(self.__dict__)
        return copy

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

    # ---- other block masks -----------------------------------------------------------------------

    @classmethod
    def from_flexfa4(cls, block_mask: NativeBlockMask) -> BlockMask:
        """Return the block mask that means the same as one of `flexfa4.create_block_mask`.

        Raises:
            ArgumentError: it is none of those.
        """
        if not isinstance(block_mask, NativeBlockMask):
            raise ArgumentError(
                name="block_mask",
                found_value=describe(block_mask),
                expected="a flexfa4.BlockMask",
                rewrite="flexfa4.create_block_mask(mask, q_len=..., kv_len=...)",
            )
        lengths = (block_mask.q_len, block_mask.kv_len)
        layout = Layout(lengths, block_mask.block_size, block_mask.device)
        return found_by(block_mask, layout, callable_mask(block_mask.mask))

    def to_flexfa4(self, batch: int | None = None, heads: int | None = None) -> NativeBlockMask:
        """Return the `flexfa4.BlockMask` that means the same.

        Args:
            batch: for how many batches; None: as many as there are lists for.
            heads: for how many query heads, likewise.

        Raises:
            BlockMaskMismatchError: this was made for other batches or heads.
            StaleBlockMaskError: a value that `mask_mod` captures changed since the blocks were
                found.
        """
        counts = zip((batch, heads), self.shape, strict=False)
        batches, query_heads = (own if given is None else given for given, own in counts)
        return native_of(self, batches, query_heads)

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
_ORDERS: Final = ("dq_write_order", "dq_write_order_full", "dq_kv_order", "dq_kv_order_spt")


def found_by(origin: NativeBlockMask, layout: Layout, mask_mod: MaskFunction) -> BlockMask:
    """Return the block mask of a mask that FlexFA4 has made one of."""
    if is_deferred(origin):
        made = from_blocks(blocks_of(origin, layout), layout, mask_mod)
    else:
        made = _unlisted(layout, mask_mod)
    made._native, made._origin = Native(origin), origin
    return made


def from_blocks(blocks: BlockTable, layout: Layout, mask_mod: MaskFunction) -> BlockMask:
    """Return the block mask of some blocks.

    Torch's graphs hold lists, not promises of them: there they are written at once.
    """
    if torch.compiler.is_dynamo_compiling():
        num, indices, full_num, full_indices = blocks.lists(full=layout.separate_full)
        return BlockMask.from_kv_blocks(
            num,
            indices,
            full_num,
            full_indices,
            layout.block_size,
            mask_mod,
            layout.lengths,
            layout.by_columns,
        )
    made = _unlisted(layout, mask_mod)
    made._found = _Found(blocks)
    return made


def _unlisted(layout: Layout, mask_mod: MaskFunction) -> BlockMask:
    """Return a block mask whose lists are not written; arguments have been checked."""
    made = object.__new__(BlockMask)
    made.__dict__.update(
        seq_lengths=layout.lengths,
        BLOCK_SIZE=layout.block_size,
        mask_mod=mask_mod,
        _unwritten=layout,
    )
    return made


def _in_graph(table: BlockTable) -> BlockTable:
    """Return blocks as graphs of torch's can hold them."""
    return table if isinstance(table, ListedKinds) else ListedKinds(table.kinds())
