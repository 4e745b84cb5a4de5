"""`BlockMask`: a mask together with which of its blocks are empty, partial or full.

A block mask is a snapshot: it holds copies of what it captured, so that the backward pass computes
with what the forward pass saw, and it refuses to be used when the captures have changed since.  The
blocks are found by `frontend.masks`: nothing is computed for a mask in closed form before it is
asked for.  Using one is the kernels' business.

Copies made by ``copy.deepcopy`` and pickle are snapshots for good: they hold the mask as text with
the values of its captures (`masks.copies`) and no function, so a block mask of a lambda can be sent
to another process, too, and no change of the original's captures concerns a copy.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import torch

from flexfa4.checks import check_mod
from flexfa4.errors import (
    BlockMaskCountError,
    BlockMaskLengthsError,
    DeviceError,
    MaskOutOfRangeError,
    NoValuesError,
    OutOfRangeError,
)
from flexfa4.frontend.binding import BoundGraph
from flexfa4.frontend.evaluate import Values
from flexfa4.frontend.masks.limits import check_dense, check_lines
from flexfa4.frontend.masks.runs import BlockList, Priority
from flexfa4.frontend.masks.solving.in_words import describe
from flexfa4.frontend.masks.solving.solved import Solved
from flexfa4.frontend.masks.structure import Lines, MaskBlocks, analyse
from flexfa4.frontend.tracing.forms import MaskLike
from flexfa4.frontend.tracing.trace import TextMod, resolve
from flexfa4.lru import LruCache
from flexfa4.masks.registry import register
from flexfa4.masks.snapshot import Snapshot, number_key
from flexfa4.masks.spec import (
    BLOCK_SIZE,
    READS,
    GivenSizes,
    Spec,
    capture_device,
    checked_block_size,
    checked_choice,
    checked_device,
    reads,
)
from flexfa4.out_of_range import explained
from flexfa4.torch_op.arguments import captured, text_of
from flexfa4.torch_op.context import needs_op, refuse_jit_trace, untraced

if TYPE_CHECKING:  # pickling and parts are not on the way of a first call
    from flexfa4.masks.parts import Part

__all__ = ["BlockLists", "BlockMask", "create_block_mask"]

# Rows up to which a block mask says in its repr how many of its blocks are empty.
_COUNTED_ROWS = 1 << 12
# Forms of calls for which a block mask remembers that it fits.
_KEPT_FORMS = 64


@dataclass(frozen=True, eq=False)
class BlockLists:
    """The blocks of a mask that are not empty, line by line.

    Batches and heads whose masks are equal share their lists: they are of one class.

    Attributes:
        partial, full: lists of blocks: ``offsets``, int64 ``(classes, lines + 1)``, and
            ``indices``, int32: the blocks of line ``l`` of class ``c`` are
            ``indices[offsets[c, l]:offsets[c, l + 1]]``, ascending.
        classes: int64 ``(batch, heads)``, the class of each.
    """

    partial: BlockList
    full: BlockList
    classes: torch.Tensor


class BlockMask:
    """A mask and the kinds of its blocks; made by `create_block_mask`.

    ``block_mask[b]``, ``block_mask[b, h]`` and ``block_mask[:, :, first:last]`` are the block masks
    of some batches, heads or queries (see `__getitem__`).

    ``copy.deepcopy`` and pickle give an equal block mask that is independent of the original's
    captures: its `mask` is a `Mod` of the mask's text and copies of their values.  To read one with
    ``torch.load``, allow it: ``torch.serialization.add_safe_globals([flexfa4.BlockMask])``.

    Attributes:
        mask: the mask function, text or `Mod` it was made from.
        batch, heads: None where the mask is the same for every batch or head.
        q_len, kv_len: lengths it was made for.
        block_size: queries and keys in a block.
        captures_tensors: whether the mask reads captured tensors, which live on one device.
        counts_heads: whether the mask reads ``flexfa4.num_heads``, so that it holds for that number
            only.
        captured: the mask as text with the values that it captured.
        table: for one made in a graph of torch's, the kinds of its blocks as the graph has them
            (`torch_op.tables`); otherwise None, and ops find the blocks by what it captured.
    """

    # plain attributes, not properties that ask the graph: torch.compile reads them
    table: torch.Tensor | None = None
    _part: tuple[BlockMask, Part] | None = None

    def __init__(
        self,
        mask: MaskLike,
        bound: BoundGraph,
        spec: Spec,
        blocks: MaskBlocks,
        snapshot: Snapshot,
    ) -> None:
        """Make one of blocks that were found.

        Args:
            mask: see the class.
            bound: its graph, with copies of what it captured.
            spec: what the blocks were made for.
            blocks: the blocks.
            snapshot: what must not have changed when it is used.
        """
        self.mask = mask
        self.batch = spec.sizes.batch
        self.heads = spec.sizes.heads
        self.q_len = spec.sizes.q_len
        self.kv_len = spec.sizes.kv_len
        self.block_size = spec.block_size
        self.captures_tensors = bool(bound.tensors)
        self.counts_heads = "num_heads" in reads(bound.graph)
        self.captured = captured(bound)
        self._bound = bound
        self._spec = spec
        self._blocks = blocks
        self._snapshot = snapshot
        self._of_forms: dict[Hashable, MaskBlocks] = {}
        register(bound, spec, blocks)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """``(batch, heads, q_len, kv_len)``, 1 where the mask is the same for all."""
        batch, heads = (1 if n is None else n for n in (self.batch, self.heads))
        return (batch, heads, self.q_len, self.kv_len)

    @property
    def device(self) -> torch.device:
        """The device of its captures, on which everything about its blocks lies."""
        return self._blocks.values.device

    # ---- the blocks ------------------------------------------------------------------------------

    @property
    def closed_form(self) -> str | None:
        """The keys that a query sees, such as ``q - 8 <= kv <= q``; None without a closed form.

        Its captured numbers and tensors are those of the mask's text, ``str(flexfa4.trace(mask))``.
        """
        form = self._blocks.by_rows
        return describe(form.form) if isinstance(form, Solved) else None

    def lists(self, by: Lines = "rows") -> BlockLists:
        """Return the partial and the full blocks of each row or column of blocks.

        Args:
            by: "rows", the key blocks of each block of queries, as a forward pass goes through
                them, or "columns", the query blocks of each block of keys.
        """
        checked_choice("by", by, Lines)
        runs = self._blocks.lines(by)
        check_lines(self.batch or 1, self.heads or 1)
        classes = self._blocks.classes.of_on(self.device).expand(self.shape[:2])
        return BlockLists(*runs.lists(), classes.contiguous())

    def counts(self, by: Lines = "rows") -> torch.Tensor:
        """Return how many blocks of each line are not empty, int64 ``(batch, heads, lines)``.

        Args:
            by: see `lists`, of which none is made for a mask in closed form.
        """
        checked_choice("by", by, Lines)
        return self._of_each(self._blocks.counts(by))

    def order(self, priority: Priority = "lpt", by: Lines = "rows") -> torch.Tensor:
        """Return the lines in an order in which to work on them.

        Args:
            priority: "lpt", longest processing time first: lines with many blocks that are not
                empty; or "spt", shortest first.
            by: see `lists`, of which none is made for a mask in closed form.

        Returns:
            int32 ``(batch, heads, lines)``, each a permutation; equally long lines stay in order.
        """
        checked_choice("priority", priority, Priority)
        checked_choice("by", by, Lines)
        return self._of_each(self._blocks.order(priority, by))

    def block_kinds(self) -> torch.Tensor:
        """Return int8 ``(batch, heads, query blocks, key blocks)``: 0 empty, 1 partial, 2 full.

        Batch and heads are those of `shape`.
        """
        return self._table(self._blocks.kinds(), "blocks")

    def to_dense(self) -> torch.Tensor:
        """Return the mask itself, bool `shape`; for looking at: ``q_len * kv_len`` elements."""
        return self._table(self._blocks.dense(), "scores")

    def _of_each(self, of_classes: torch.Tensor) -> torch.Tensor:
        """Return what holds for ``(classes, lines)`` as ``(batch, heads, lines)``."""
        each = self._blocks.for_each(of_classes)
        check_lines((self.batch or 1) * (self.heads or 1), each.shape[2])
        return each.expand(*self.shape[:2], -1).contiguous()

    def _table(self, each: torch.Tensor, what: str) -> torch.Tensor:
        """Return a dense table, of one batch or head where they are equal, with those of `shape`.

        Args:
            each: ``(batch or 1, heads or 1, lines, width)``.
            what: what its elements are, for the message that there are too many.
        """
        shape = (*self.shape[:2], *each.shape[2:])
        check_dense(what, shape, "block_mask[:1, :1]")
        return each.expand(shape).contiguous()

    @property
    def density(self) -> float:
        """Share of the blocks that are not empty, 0 to 1 (0 where there are no blocks)."""
        return 0.0 if self.batch == 0 else self._blocks.density

    @property
    def nbytes(self) -> int:
        """Bytes that it holds now: copies of captures, and lists of blocks that have been found."""
        return self._blocks.nbytes + sum(t.nbytes for t in self._bound.tensors)

    # ---- other block masks of the same mask ------------------------------------------------------

    def with_block_size(self, block_size: int | tuple[int, int]) -> BlockMask:
        """Return the block mask of the same mask, with the values of its snapshot.

        Args:
            block_size: queries and keys in a block, or one number for both; multiples of 16.
        """
        spec = replace(self._spec, block_size=checked_block_size(block_size))
        blocks = self._blocks.with_block_size(spec.block_size)
        return BlockMask(self.mask, self._bound, spec, blocks, self._snapshot)

    def to(self, device: torch.device | str) -> BlockMask:
        """Return the block mask on a device, with the values of its snapshot.

        One that captures tensors becomes a snapshot for good, as copies are: its `mask` is a `Mod`
        of the mask's text and its values.

        Raises:
            ArgumentError: there is no such device.
            NoValuesError: it is the meta device.
        """
        where = checked_device(device)
        if where == self.device:
            return self
        if where.type == "meta":
            raise NoValuesError(
                what="the block mask was to be moved there:", rewrite="device='cpu'"
            )
        mask, bound, snapshot = self.mask, self._bound, self._snapshot
        if bound.tensors:
            bound = replace(bound, tensors=tuple([t.to(where) for t in bound.tensors]))
            mask = _mod_of(bound)
            snapshot = Snapshot.for_good(mask, bound)
        values = Values.of(bound, self._spec.known_sizes, device=where)
        runs = self._blocks.runs.to(where) if self._blocks.has_runs else None
        blocks = replace(self._blocks, values=values, known_runs=runs, caches={})
        return BlockMask(mask, bound, self._spec, blocks, snapshot)

    def __getitem__(self, index: Any) -> BlockMask:
        """Return the block mask of some batches, heads or queries, with the values of its snapshot.

        It is one like any other, for calls with these batches, heads and queries alone: its indices
        begin at 0, and its mask adds where the part begins, so positions stay what they are.  For
        a step of decoding, ``block_mask[:, :, t:t + 1]``.

        Args:
            index: up to three of int and slice: batch, head and query.  An int keeps its dimension.
                Where the mask is the same for every batch or head (None), any index picks that.

        Raises:
            ArgumentError: it is no such index.
            BlockMaskIndexError: there is no such batch, head or query.
        """
        if torch.compiler.is_dynamo_compiling():
            from flexfa4.torch_op import compiled

            return compiled.part_outside(self, index)
        return self._picked(index)

    __iter__ = None  # or else Python would count indices up

    def _picked(self, index: Any) -> BlockMask:
        from flexfa4.masks.parts import part_of

        part = part_of(index, self._spec.sizes)
        if self._part is None:
            return self._cut(part)
        whole, place = self._part
        inside = part.of(place)
        return self if inside == place else whole._cut(inside)

    def _cut(self, part: Part) -> BlockMask:
        from flexfa4.masks.parts import bound_part

        bound, spec = bound_part(self._bound, self._spec, part)
        if spec == self._spec:
            return self
        values = Values.of(bound, spec.known_sizes, device=self.device)  # loads as proved before
        values = replace(values, value_runs=self._blocks.value_runs)
        blocks = MaskBlocks(bound.graph, values, spec.space(bound.graph), spec.block_size)
        if not self._blocks.is_closed:
            blocks = part.found_in(self._blocks, blocks)
        made = BlockMask(_mod_of(bound), bound, spec, blocks.found(), self._snapshot)
        made._part = (self, part)
        return made

    # ---- use in a call ---------------------------------------------------------------------------

    def blocks_on(self, device: torch.device) -> MaskBlocks:
        """Return what kernels iterate, with the mask evaluated on a device.

        A mask that captures no tensors can be evaluated anywhere, wherever its block mask was made.
        """
        return self._blocks.on(device)

    def blocks_for(self, query: torch.Tensor, key: torch.Tensor, form: Hashable) -> MaskBlocks:
        """Return `blocks_on` the device of a call that it fits; raise if it is not current.

        Args:
            query: see `check_fits`.
            key: likewise.
            form: what tells calls apart whose tensors differ.

        Raises:
            BlockMaskMismatchError, DeviceError: see `check_fits`.
            StaleBlockMaskError: see `check_current`.
        """
        found = self._of_forms.get(form)
        if found is None:
            self.check_fits(query, key)
            if len(self._of_forms) >= _KEPT_FORMS:
                self._of_forms.clear()
            found = self._of_forms[form] = self.blocks_on(query.device)
        self._check_current()
        return found

    @untraced
    def check_fits(self, query: torch.Tensor, key: torch.Tensor) -> None:
        """Check that this was made for a call of these sizes.

        Args:
            query: ``(B, Hq, Lq, D)``.
            key: ``(B or 1, Hkv, Lk, D)``.

        Raises:
            BlockMaskMismatchError: it was made for other lengths, batches or heads.
            DeviceError: its captures live on another device.
        """
        batch, heads, q_len, _ = query.shape
        lengths = (q_len, key.shape[2])
        again = functools.partial(self.call_for, batch, heads, *lengths)
        if (self.q_len, self.kv_len) != lengths:
            advice = "to decode at a position, let the mask add it to q_idx"
            if lengths[1] == self.kv_len and lengths[0] < self.q_len:
                advice = "for these of the queries, block_mask[:, :, first:last]"
            raise BlockMaskLengthsError(
                made_q_len=self.q_len,
                made_kv_len=self.kv_len,
                q_len=lengths[0],
                kv_len=lengths[1],
                rewrite=f"{again()}  # {advice}",
            )
        for name, made, found in (("batch", self.batch, batch), ("heads", self.heads, heads)):
            counted = name == "heads" and self.counts_heads
            if made is not None and made != found and (made != 1 or counted):
                raise BlockMaskCountError(
                    name=name, made=made, count=found, reads=READS[name], rewrite=again()
                )
        if self.device != query.device and self.captures_tensors:
            raise DeviceError(
                name="the block mask",
                device=self.device,
                other="query",
                other_device=query.device,
                rewrite=f"block_mask.to({str(query.device)!r})",
            )

    @untraced
    def check_current(self) -> None:
        """Raise if a value that the mask reads has changed since this was made.

        A part is refused when what the whole captured has changed.  Tensors are compared by content
        with the copies that were made; off the CPU by identity and torch's count of in-place
        changes, where that says enough.

        Raises:
            StaleBlockMaskError: a captured number, tensor or choice changed.
        """
        self._check_current()

    def _check_current(self) -> None:
        whole = self if self._part is None else self._part[0]
        self._snapshot.check_current(whole._spec.call_text)

    def holds(self, tensors: tuple[torch.Tensor, ...]) -> bool:
        """Return whether captured tensors of known identity still have their content."""
        return self._snapshot.holds(tensors)

    def call_for(self, batch: int, heads: int, q_len: int, kv_len: int) -> str:
        """Return the call that makes it again for other sizes, for messages."""
        return self._spec.call_text(
            batch=None if self.batch is None else batch,
            heads=None if self.heads is None else heads,
            q_len=q_len,
            kv_len=kv_len,
        )

    # ---- copies and text -------------------------------------------------------------------------

    def __copy__(self) -> BlockMask:
        return self

    def __getstate__(self) -> dict[str, Any]:
        from flexfa4.masks.copies import state_of

        return state_of(self._bound, self._spec, self._blocks)

    def __setstate__(self, state: Any) -> None:
        from flexfa4.masks.copies import restored

        found = restored(state)
        mask, bound = found.mask, found.bound
        snapshot = Snapshot.for_good(mask, bound)
        BlockMask.__init__(self, mask, bound, found.spec, found.blocks, snapshot)

    def __repr__(self) -> str:
        b, h, q, kv = self.shape
        size_q, size_kv = self.block_size
        return (
            f"BlockMask(batch={b}, heads={h}, q_len={q}, kv_len={kv}, "
            f"block_size={size_q}x{size_kv}, {self._summary()})"
        )

    def _summary(self) -> str:
        if not self._blocks.has_runs and self._blocks.grid.rows > _COUNTED_ROWS:
            return "in closed form"
        return f"{self.density:.1%} of the blocks not empty"


def _mod_of(bound: BoundGraph) -> TextMod:
    return TextMod(bound, text_of(bound.graph), "mask")


def create_block_mask(
    mask: MaskLike,
    *,
    batch: int | None = None,
    heads: int | None = None,
    q_len: int,
    kv_len: int,
    device: torch.device | str | None = None,
    block_size: int | tuple[int, int] = BLOCK_SIZE,
) -> BlockMask:
    """Find the empty, partial and full blocks of a mask.

    For a mask in closed form nothing is computed here, whatever the lengths; of others, the blocks
    are found whose kind does not follow from the mask's bounds (docs/masks.md of the project).

    Args:
        mask: ``mask_mod(b, h, q_idx, kv_idx) -> bool`` (True = attend), its text form, or a `Mod`.
        batch: number of batches; None if the mask is the same for each.
        heads: number of query heads; None if the mask is the same for each.
        q_len: number of queries.
        kv_len: number of keys.
        device: where to evaluate; None: where its captured tensors live, else the CPU.
        block_size: queries and keys in a block, or one number for both; multiples of 16.

    Returns:
        The block mask, for calls of these lengths.

    Raises:
        ArgumentError: a length, count or block size is no integer in its range, there is no such
            device, or the mask has more blocks than can be listed.
        MaskReadsBatchError: the mask reads ``b`` or ``h`` and `batch` or `heads` is None.
        MaskReadsKeyHeadsError: the mask reads ``flexfa4.num_kv_heads``, which only a call knows.
        DeviceError: captured tensors live elsewhere than on `device`.
        OutOfRangeError: the mask reads a captured tensor outside its bounds.
        TransformError: ``torch.jit.trace`` records the call.
        TraceError, TextError: the mask cannot be traced or read.
    """
    if torch.compiler.is_dynamo_compiling():
        from flexfa4.torch_op import compiled

        return compiled.create_block_mask(mask, (batch, heads, q_len, kv_len), device, block_size)
    refuse_jit_trace("create_block_mask", "block_mask=mask, the mask function itself")
    spec = Spec.checked(GivenSizes(batch, heads, q_len, kv_len), block_size)
    wanted = None if device is None else checked_device(device)
    check_mod("mask", mask, "mask")
    bound = resolve(mask, "mask")
    spec.check_known(bound.graph)
    where = capture_device(bound, wanted)
    if needs_op(*bound.tensors):
        from flexfa4.torch_op import deferred

        return deferred.block_mask(mask, captured(bound), spec, where)
    return made(mask, bound, spec, where)


def made(mask: Any, bound: BoundGraph, spec: Spec, device: torch.device) -> BlockMask:
    """Return the block mask of a resolved mask; arguments have been checked."""
    snapshot = Snapshot.of(mask, bound)
    frozen = snapshot.frozen
    return BlockMask(mask, frozen, spec, found_blocks(frozen, spec, device), snapshot)


def found_blocks(bound: BoundGraph, spec: Spec, device: torch.device) -> MaskBlocks:
    """Return the blocks of a resolved mask; arguments have been checked.

    Equal masks in closed form that capture no tensors share them, and what backends keep with them.

    Args:
        bound: the mask, with tensors that nobody changes.
        spec: what the blocks are for.
        device: where to evaluate.

    Raises:
        OutOfRangeError: the mask reads a captured tensor outside its bounds.
    """
    key = (bound.graph, tuple(map(number_key, bound.scalars)), spec, device)
    found = None if bound.tensors else _EQUAL.get(key)
    if found is not None:
        return found
    space = spec.space(bound.graph)
    try:
        found = analyse(bound.graph, spec.values(bound, device), space, spec.block_size)
    except OutOfRangeError as error:
        raise explained(error, bound, spec.known_sizes, MaskOutOfRangeError) from None
    if not bound.tensors and found.is_closed:
        _EQUAL.put(key, found)
    return found


_EQUAL: Final[LruCache[MaskBlocks]] = LruCache(64)
