"""`BlockMask`: a mask together with which of its blocks are empty, partial or full.

A block mask is a snapshot: it holds copies of what it captured, so that the backward pass computes
with what the forward pass saw, and it refuses to be used when the captures have changed since.
Making one evaluates the mask strip by strip (`frontend.blocks`); using one is the kernels'
business.

Copies made by ``copy.deepcopy`` and pickle are snapshots for good: they hold the mask as text with
the values of its captures (`frontend.text.snapshots`) and no function, so a block mask of a lambda
can be sent to another process, too, and no change of the original's captures concerns a copy.

A mask that `attention` gets as a function is made into a block mask once and kept, as long as what
it captures can be seen to stay the same (`block_mask_for`).
"""

from __future__ import annotations

import functools
import struct
from dataclasses import asdict, replace
from typing import Any, Final, NoReturn

import torch

from flexfa4.checks import check_mod
from flexfa4.counters import count
from flexfa4.errors import (
    ArgumentError,
    BlockMaskCountError,
    BlockMaskLengthsError,
    DamagedPickleError,
    DeviceError,
    MaskOutOfRangeError,
    OutOfRangeError,
    StaleBlockMaskError,
    describe,
)
from flexfa4.frontend.binding import BoundGraph
from flexfa4.frontend.blocks import (
    EMPTY,
    FULL,
    Blocks,
    block_count,
    classify,
    mask_tile,
)
from flexfa4.frontend.evaluate import Program, Values
from flexfa4.frontend.ir import Graph
from flexfa4.frontend.text import snapshots
from flexfa4.frontend.tracing.forms import MaskLike
from flexfa4.frontend.tracing.trace import resolve, unpickled
from flexfa4.lru import LruCache
from flexfa4.mask_spec import (
    BLOCK_SIZE,
    READS,
    GivenSizes,
    Spec,
    capture_device,
    checked_device,
    reads,
)
from flexfa4.out_of_range import explained
from flexfa4.torch_op.arguments import captured
from flexfa4.torch_op.context import needs_op, refuse_jit_trace, untraced

__all__ = [
    "BLOCK_SIZE",
    "BlockMask",
    "GivenSizes",
    "block_mask_for",
    "create_block_mask",
    "tensor_identity",
]


class _Moved(dict[torch.device, Blocks]):
    """A mask without captured tensors, to be evaluated on other devices."""


class BlockMask:
    """A mask and the kinds of its blocks; made by `create_block_mask`.

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
        kinds: int8 ``(batch, heads, query blocks, key blocks)`` on the CPU, where batch and heads
            are 1 if the mask does not tell them apart; not to be changed.
        table: `kinds`, or for one made in a graph of torch's a `frontend.blocks.kinds_table`.
    """

    def __init__(self, mask: MaskLike, bound: BoundGraph, spec: Spec, blocks: Blocks) -> None:
        self.mask = mask
        self.batch = spec.sizes.batch
        self.heads = spec.sizes.heads
        self.q_len = spec.sizes.q_len
        self.kv_len = spec.sizes.kv_len
        self.block_size = spec.block_size
        self._spec = spec
        self._bound = bound
        self._blocks = blocks
        self._identities = tuple(tensor_identity(t) for t in bound.tensors)
        # plain attributes, not properties that ask the graph: torch.compile reads them
        self.captures_tensors = bool(bound.tensors)
        self.counts_heads = "num_heads" in reads(blocks.graph)
        self.captured = captured(replace(bound, tensors=tuple(blocks.values.tensors.values())))
        self.kinds = blocks.kinds
        self.table = blocks.kinds

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """``(batch, heads, q_len, kv_len)``, 1 where the mask is the same for all."""
        batch, heads = (1 if n is None else n for n in (self.batch, self.heads))
        return (batch, heads, self.q_len, self.kv_len)

    @property
    def device(self) -> torch.device:
        """The device of its captures."""
        return self._blocks.values.device

    def blocks_on(self, device: torch.device) -> Blocks:
        """Return what kernels iterate, with the mask evaluated on a device.

        A mask that captures no tensors can be evaluated anywhere, wherever its block mask was made.
        """
        blocks = self._blocks
        if blocks.values.device == device or self._bound.tensors:
            return blocks
        moved = blocks.cache(_Moved)
        if device not in moved:
            values = replace(blocks.values, device=device)
            moved[device] = replace(blocks, values=values, caches={})
        return moved[device]

    @property
    def density(self) -> float:
        """Share of the blocks that are not empty, 0 to 1 (0 where there are no blocks)."""
        kinds = self._blocks.kinds
        return float(kinds.ne(EMPTY).float().mean()) if kinds.numel() else 0.0

    def block_kinds(self) -> torch.Tensor:
        """Return int8 ``(batch, heads, query blocks, key blocks)``: 0 empty, 1 partial, 2 full.

        Batch and heads are those of `shape`.
        """
        return self._blocks.kinds.expand(*self.shape[:2], -1, -1).clone()

    def to_dense(self) -> torch.Tensor:
        """Return the mask itself, bool `shape`; for looking at: ``q_len * kv_len`` elements."""
        program = Program((self._blocks.graph.root,))
        mask = mask_tile(program, self._blocks.values, self._blocks.size.lanes())
        return mask.expand(self.shape).clone()

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
        batch, heads, lengths = query.shape[0], query.shape[1], (query.shape[2], key.shape[2])
        again = functools.partial(self.call_for, batch, heads, *lengths)
        if (self.q_len, self.kv_len) != lengths:
            raise BlockMaskLengthsError(
                made_q_len=self.q_len,
                made_kv_len=self.kv_len,
                q_len=lengths[0],
                kv_len=lengths[1],
                rewrite=f"{again()}  # to decode at a position, let the mask add it to q_idx",
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
                rewrite=f"{again()} with captured tensors on {query.device}",
            )

    @untraced
    def check_current(self) -> None:
        """Raise if a value that the mask reads has changed since this was made.

        Tensors are compared by content with the copies that were made; off the CPU by identity and
        torch's count of in-place changes, where that says enough.

        Raises:
            StaleBlockMaskError: a captured number, tensor or choice changed.
        """
        made, now = self._bound, resolve(self.mask, "mask")
        if now is made and not made.tensors:  # it captures nothing
            return
        if now.graph != made.graph:
            self._refuse_stale("a captured value that the mask was specialised for")
        for scalar, old, new in zip(made.graph.scalars, made.scalars, now.scalars, strict=True):
            if _number_key(old) != _number_key(new):
                self._refuse_stale(f"`{scalar.name}` ({old} then, {new} now)")
        kept = self._blocks.values.tensors
        for buffer, tensor, identity in zip(
            made.graph.buffers, now.tensors, self._identities, strict=True
        ):
            counted = identity is not None and tensor_identity(tensor) == identity
            if not _unchanged(kept[buffer], tensor, counted=counted):
                self._refuse_stale(f"the captured tensor `{buffer.name}`")

    def holds(self, tensors: tuple[torch.Tensor, ...]) -> bool:
        """Return whether captured tensors of known identity still have their content."""
        kept = self._blocks.values.tensors.values()
        return all(_unchanged(k, t, counted=True) for k, t in zip(kept, tensors, strict=True))

    def _refuse_stale(self, name: str) -> NoReturn:
        raise StaleBlockMaskError(name=name, rewrite=self._spec.call_text())

    def call_for(self, batch: int, heads: int, q_len: int, kv_len: int) -> str:
        """Return the call that makes it again for other sizes, for messages."""
        return self._spec.call_text(
            batch=None if self.batch is None else batch,
            heads=None if self.heads is None else heads,
            q_len=q_len,
            kv_len=kv_len,
        )

    def __copy__(self) -> BlockMask:
        return self

    def __getstate__(self) -> dict[str, Any]:
        values = self._blocks.values
        kept = replace(self._bound, tensors=tuple(values.tensors.values()))
        return {
            "format": snapshots.FORMAT,
            "mask": snapshots.state_of(kept),
            "sizes": asdict(self._spec.sizes),
            "block_size": self.block_size,
            "device": str(self.device),
            "kinds": self._blocks.kinds,
        }

    def __setstate__(self, state: Any) -> None:
        with snapshots.reading("BlockMask", state):
            self.__dict__.update(vars(_restored(state)))

    def __repr__(self) -> str:
        b, h, q, kv = self.shape
        size_q, size_kv = self.block_size
        return (
            f"BlockMask(batch={b}, heads={h}, q_len={q}, kv_len={kv}, "
            f"block_size={size_q}x{size_kv}, {self._summary()})"
        )

    def _summary(self) -> str:
        return f"{self.density:.1%} of the blocks not empty"


def _unchanged(kept: torch.Tensor, tensor: torch.Tensor, *, counted: bool) -> bool:
    """Return whether a captured tensor still holds what was copied from it.

    Where torch counts changes and says there were none, the content is compared all the same if
    that needs no transfer: changes through numpy or ``.data`` are not counted.
    """
    if kept is tensor or (counted and tensor.device.type != "cpu"):
        return True
    if (kept.shape, kept.dtype, kept.device) != (tensor.shape, tensor.dtype, tensor.device):
        return False
    if torch.equal(kept, tensor):
        return True
    same = (kept == tensor) | (kept.isnan() & tensor.isnan())
    return bool(same.all())


def _number_key(number: int | float) -> Any:
    """Return what tells numbers apart that compare equal (0.0, -0.0) and keeps NaN equal to NaN."""
    return number if isinstance(number, int) else struct.pack("<d", number)


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
        ArgumentError: a length, count or block size is no integer in its range, or there is no
            such device.
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
    return _make(mask, bound, spec, where)


def _make(mask: Any, bound: BoundGraph, spec: Spec, device: torch.device) -> BlockMask:
    """Classify the blocks of a resolved mask; arguments have been checked."""
    copies = tuple([t.detach().clone() for t in bound.tensors])
    values = spec.values(replace(bound, tensors=copies), device)
    return _assembled(mask, bound, spec, values, _classified(bound, values, spec))


def found_kinds(bound: BoundGraph, spec: Spec, device: torch.device) -> torch.Tensor:
    """Return the kinds of the blocks of a resolved mask; arguments have been checked.

    Returns:
        int8 ``(batch, heads, query blocks, key blocks)`` on the CPU, where batch and heads are 1 if
        the mask does not read them.
    """
    return _classified(bound, spec.values(bound, device), spec)


def _classified(bound: BoundGraph, values: Values, spec: Spec) -> torch.Tensor:
    count("block_masks")
    try:
        return classify(bound.graph, values, spec.space(bound.graph), spec.block_size)
    except OutOfRangeError as error:
        raise explained(error, bound, spec.known_sizes, MaskOutOfRangeError) from None


def _assembled(
    mask: Any, bound: BoundGraph, spec: Spec, values: Values, kinds: torch.Tensor
) -> BlockMask:
    # Every lane has been read once: from here on the loads are known to be in range.
    settled = replace(values, unproved=frozenset())
    graph, size = bound.graph, spec.space(bound.graph)
    return BlockMask(mask, bound, spec, Blocks(graph, settled, size, spec.block_size, kinds))


def _restored(state: dict[str, Any]) -> BlockMask:
    """Return the block mask that `BlockMask.__getstate__` described; raises whatever fails."""
    mask = unpickled(state["mask"])
    bound = resolve(mask, "mask")
    spec = Spec.checked(GivenSizes(**state["sizes"]), state["block_size"])
    spec.check_known(bound.graph)
    named = state["device"]
    if not isinstance(named, str):
        raise DamagedPickleError(what="BlockMask", problem=f"its device is {describe(named)}")
    try:
        device = capture_device(bound, None if bound.tensors else checked_device(named))
    except ArgumentError:  # made on a device that this machine lacks; it serves any
        device = torch.device("cpu")
    values = spec.values(bound, device)
    # Where the shapes alone do not prove that loads are in range, all of them are read once more.
    kinds = (
        _classified(bound, values, spec)
        if values.unproved
        else _checked_kinds(state["kinds"], bound.graph, spec)
    )
    return _assembled(mask, bound, spec, values, kinds)


def _checked_kinds(kinds: torch.Tensor, graph: Graph, spec: Spec) -> torch.Tensor:
    size = spec.space(graph)
    blocks = map(block_count, (size.q_len, size.kv_len), spec.block_size)
    shape = (size.b, size.h, *blocks)
    is_table = kinds.dtype is torch.int8 and kinds.shape == shape
    if not is_table or bool(((kinds < EMPTY) | (kinds > FULL)).any()):
        raise DamagedPickleError(
            what="BlockMask",
            problem=f"its kinds of blocks are no table of shape {shape} of {EMPTY} to {FULL}",
        )
    return kinds.cpu()


# ---- masks given to attention as functions -------------------------------------------------------


def tensor_identity(tensor: torch.Tensor) -> Any:
    """Return what stays equal while a tensor is the same one and unchanged.

    Two views of one tensor that cover the same elements are the same one.  None where torch does
    not count in-place changes.
    """
    if tensor.is_inference():
        return None
    own = (id(tensor), tensor._version, tensor.data_ptr())  # the address: `t.data = other`
    base = tensor._base
    if base is None:
        return own
    return (id(base), *own[1:], tensor.shape, tensor.stride(), tensor.dtype)


# Block masks made for masks given as functions; enough for the layers of a model that alternates
# between a few masks.
_CACHE: Final[LruCache[BlockMask]] = LruCache(32)


def block_mask_for(mask: Any, sizes: GivenSizes, device: torch.device) -> BlockMask:
    """Return the block mask of a function given to attention; made once for each set of captures.

    Nothing is kept for a tensor whose changes torch does not count.

    Args:
        mask: a mask function, its text, or a `Mod`.
        sizes: those of the call, all of them known.
        device: the call's.
    """
    return block_mask_of(mask, resolve(mask, "mask"), sizes, device)


def block_mask_of(
    mask: Any, bound: BoundGraph, sizes: GivenSizes, device: torch.device
) -> BlockMask:
    """Return the block mask of a resolved mask; see `block_mask_for`."""
    read = reads(bound.graph)
    needed = GivenSizes(
        sizes.batch if "b" in read else None,
        sizes.heads if "h" in read or "num_heads" in read else None,
        sizes.q_len,
        sizes.kv_len,
        sizes.kv_heads if "num_kv_heads" in read else None,
    )
    tensors = tuple([tensor_identity(t) for t in bound.tensors])
    key = (bound.graph, tuple(map(_number_key, bound.scalars)), tensors, needed, device)
    found = _CACHE.get(key)
    if found is not None and found.holds(bound.tensors):
        return found
    made = _make(mask, bound, Spec(needed, BLOCK_SIZE), capture_device(bound, device))
    if None not in tensors:  # the entry holds the tensors, so their ids stay taken
        _CACHE.put(key, made)
    return made
