"""`BlockMask`: a mask together with which of its blocks are empty, partial or full.

A block mask is a snapshot: it holds copies of what it captured, so that the backward pass computes
with what the forward pass saw, and it refuses to be used when the captures have changed since.
Making one evaluates the mask strip by strip (`frontend.blocks`); using one is the kernels'
business.

A mask that `attention` gets as a function is made into a block mask once and kept, as long as what
it captures can be seen to stay the same (`block_mask_for`).
"""

from __future__ import annotations

import functools
import operator
import struct
import threading
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Any, Final, NoReturn

import torch

from flexfa4.checks import check_mod
from flexfa4.counters import count
from flexfa4.errors import (
    ArgumentError,
    BlockMaskMismatchError,
    DeviceError,
    MaskOutOfRangeError,
    MaskReadsBatchError,
    MaskReadsKeyHeadsError,
    OutOfRangeError,
    StaleBlockMaskError,
    describe,
)
from flexfa4.frontend.analysis.bounds import premises, unproved_loads
from flexfa4.frontend.binding import BoundGraph
from flexfa4.frontend.blocks import EMPTY, Blocks, MaskSize, classify, mask_tile
from flexfa4.frontend.evaluate import Program, Values
from flexfa4.frontend.ir import Graph, topological
from flexfa4.frontend.sizes import Sizes
from flexfa4.frontend.tracing.trace import resolve

BLOCK_SIZE: Final = (128, 128)


class _Moved(dict[torch.device, Blocks]):
    """A mask without captured tensors, to be evaluated on other devices."""


class BlockMask:
    """A mask and the kinds of its blocks; made by `create_block_mask`.

    Attributes:
        mask: the mask function or text it was made from.
        batch, heads: None where the mask is the same for every batch or head.
        q_len, kv_len: lengths it was made for.
        block_size: queries and keys in a block.
    """

    def __init__(self, mask: Any, bound: BoundGraph, spec: _Spec, blocks: Blocks) -> None:
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
    def captures_tensors(self) -> bool:
        """Whether the mask reads captured tensors, which live on one device."""
        return bool(self._bound.tensors)

    @property
    def counts_heads(self) -> bool:
        """Whether the mask reads ``flexfa4.num_heads``, so that it holds for that number only."""
        return "num_heads" in reads(self._blocks.graph)

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
            raise BlockMaskMismatchError(
                problem=f"the block mask was made for q_len={self.q_len}, kv_len={self.kv_len},"
                f" but query has length {lengths[0]} and key {lengths[1]}",
                expected="the lengths that it was made for",
                rewrite=f"{again()}  # to decode at a position, let the mask add it to q_idx",
            )
        for name, made, found in (("batch", self.batch, batch), ("heads", self.heads, heads)):
            counted = name == "heads" and self.counts_heads
            if made is not None and made != found and (made != 1 or counted):
                anywhere = f", or {name}=None for a mask that is the same everywhere"
                raise BlockMaskMismatchError(
                    problem=f"the block mask was made for {name}={made}, but query has {found}",
                    expected=f"{name}={found}" + ("" if counted else anywhere),
                    rewrite=again(),
                )
        if self.device != query.device and self.captures_tensors:
            raise DeviceError(
                problem=f"the block mask is on {self.device}, query on {query.device}",
                expected="one device",
                rewrite=f"{again()} with captured tensors on {query.device}",
            )

    def check_current(self) -> None:
        """Raise if a value that the mask reads has changed since this was made.

        Tensors are compared by content with the copies that were made; off the CPU by identity and
        torch's count of in-place changes, where that says enough.

        Raises:
            StaleBlockMaskError: a captured number, tensor or choice changed.
        """
        made, now = self._bound, resolve(self.mask, "mask")
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
        raise StaleBlockMaskError(name=name, rewrite=_call_text(self._spec))

    def call_for(self, batch: int, heads: int, q_len: int, kv_len: int) -> str:
        """Return the call that makes it again for other sizes, for messages."""
        return _call_text(
            self._spec,
            batch=None if self.batch is None else batch,
            heads=None if self.heads is None else heads,
            q_len=q_len,
            kv_len=kv_len,
        )

    def __repr__(self) -> str:
        b, h, q, kv = self.shape
        size_q, size_kv = self.block_size
        return (
            f"BlockMask(batch={b}, heads={h}, q_len={q}, kv_len={kv}, "
            f"block_size={size_q}x{size_kv}, {self.density:.1%} of the blocks not empty)"
        )


def _unchanged(kept: torch.Tensor, tensor: torch.Tensor, *, counted: bool) -> bool:
    """Return whether a captured tensor still holds what was copied from it.

    Where torch counts changes and says there were none, the content is compared all the same if
    that needs no transfer: changes through numpy or ``.data`` are not counted.
    """
    if counted and tensor.device.type != "cpu":
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


@dataclass(frozen=True)
class GivenSizes:
    """Batch, query heads, lengths and key heads of a call; None where they are not known."""

    batch: int | None
    heads: int | None
    q_len: int
    kv_len: int
    kv_heads: int | None = None


@dataclass(frozen=True)
class _Spec:
    """What a block mask is made for."""

    sizes: GivenSizes
    block_size: tuple[int, int]


def _call_text(spec: _Spec, **changed: Any) -> str:
    """Return the call that makes a block mask, for messages that tell users to write it."""
    sizes = spec.sizes
    given = {
        "batch": sizes.batch,
        "heads": sizes.heads,
        "q_len": sizes.q_len,
        "kv_len": sizes.kv_len,
        "block_size": None if spec.block_size == BLOCK_SIZE else spec.block_size,
        **changed,
    }
    arguments = [f"{name}={value}" for name, value in given.items() if value is not None]
    return f"create_block_mask({', '.join(['mask', *arguments])})"


def create_block_mask(
    mask: Any,
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
        TraceError, TextError: the mask cannot be traced or read.
    """
    sizes = GivenSizes(
        None if batch is None else _checked_int("batch", batch, 0),
        None if heads is None else _checked_int("heads", heads, 1),
        _checked_int("q_len", q_len, 0),
        _checked_int("kv_len", kv_len, 0),
    )
    spec = _Spec(sizes, _checked_block_size(block_size))
    wanted = None if device is None else _checked_device(device)
    check_mod("mask", mask, "mask")
    bound = resolve(mask, "mask")
    _check_known(bound.graph, spec)
    return _make(mask, bound, spec, _capture_device(bound, wanted))


@functools.lru_cache(maxsize=1024)
def reads(graph: Graph) -> frozenset[str]:
    """Return which of ``b``, ``h``, ``q``, ``kv`` and of the sizes of a call a graph reads."""
    symbols = (node.attr for node in topological(graph.root) if node.op == "symbol")
    return graph.root.depends.union(symbols)


# What a mask may read -> the argument that must be given then; where users take arguments from.
_NEEDS: Final = {"b": "batch", "h": "heads", "num_heads": "heads"}
_SOURCES: Final = {
    "batch": "query.shape[0]",
    "heads": "query.shape[1]",
    "q_len": "query.shape[2]",
    "kv_len": "key.shape[2]",
}


def _check_known(graph: Graph, spec: _Spec) -> None:
    """Refuse a mask that needs a batch or head count which was not given."""
    read, sizes = reads(graph), spec.sizes
    missing = {name: argument for name, argument in _NEEDS.items()
               if name in read and getattr(sizes, argument) is None}  # fmt: skip
    for name, argument in missing.items():
        given = {needed: _SOURCES[needed] for needed in missing.values()}
        raise MaskReadsBatchError(
            name=name,
            argument=argument,
            what="batch" if argument == "batch" else "head",
            rewrite=_call_text(spec, **given),
        )
    if sizes.kv_heads is None and "num_kv_heads" in read:
        raise MaskReadsKeyHeadsError


def _make(mask: Any, bound: BoundGraph, spec: _Spec, device: torch.device) -> BlockMask:
    """Classify the blocks of a resolved mask; arguments have been checked."""
    count("block_masks")
    graph, sizes = bound.graph, spec.sizes
    read = reads(graph)
    # One batch or head stands for all where the mask does not tell them apart.
    size = MaskSize(
        _known(sizes.batch) if "b" in read else 1,
        _known(sizes.heads) if "h" in read else 1,
        sizes.q_len,
        sizes.kv_len,
    )
    heads, kv_heads = _known(sizes.heads), _known(sizes.kv_heads)
    known = Sizes(_known(sizes.batch), heads, kv_heads, sizes.q_len, sizes.kv_len)
    copies = (t.detach().clone() for t in bound.tensors)
    values = Values(
        tensors=dict(zip(graph.buffers, copies, strict=True)),
        scalars=dict(zip(graph.scalars, bound.scalars, strict=True)),
        symbols=known.symbols(),
        device=device,
        unproved=unproved_loads(premises(bound, known)),
    )
    try:
        kinds = classify(graph, values, size, spec.block_size)
    except OutOfRangeError as error:
        raise MaskOutOfRangeError(**error.fields) from None
    # Every lane has been read once: from here on the loads are known to be in range.
    settled = replace(values, unproved=frozenset())
    return BlockMask(mask, bound, spec, Blocks(graph, settled, size, spec.block_size, kinds))


def _known(number: int | None) -> int:
    """Return a count, 1 where it is not known (and, as has been checked, not read)."""
    return 1 if number is None else number


def _capture_device(bound: BoundGraph, device: torch.device | None) -> torch.device:
    """Return the one device of the captures and of `device`, the CPU where there are none."""
    wanted = device
    for buffer, tensor in zip(bound.graph.buffers, bound.tensors, strict=True):
        if wanted is None:
            wanted = tensor.device
        elif tensor.device != wanted:
            raise DeviceError(
                problem=f"captured tensor `{buffer.name}` is on {tensor.device},"
                f" the mask on {wanted}",
                expected="all captured tensors of a mask on one device",
                rewrite=f"{buffer.name} = {buffer.name}.to({str(wanted)!r})",
            )
    if wanted is None:
        return torch.device("cpu")
    if wanted.type == "meta":
        raise DeviceError(
            problem="the mask is on meta, whose tensors hold no values",
            expected="devices that compute, such as cpu",
            rewrite='make it under torch.device("cpu"), captured tensors included',
        )
    return wanted


def _checked_device(device: Any) -> torch.device:
    """Return the device with its index, as tensors on it have it."""
    try:
        return torch.empty(0, device=device).device
    except (AssertionError, NotImplementedError, RuntimeError, TypeError) as error:
        raise ArgumentError(
            name="device",
            found_value=f"{device!r}, which torch cannot use here",
            expected="a device of this machine, or None for where the captured tensors live",
            rewrite="device=None",
        ) from error


def _checked_int(name: str, value: Any, low: int) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        number = low - 1
    if number < low or isinstance(value, bool):
        raise ArgumentError(
            name=name,
            found_value=describe(value),
            expected=f"an integer, at least {low}",
            rewrite=f"{name}={_SOURCES[name]}",
        )
    return number


def _checked_block_size(value: Any) -> tuple[int, int]:
    pair = value if isinstance(value, tuple) and len(value) == 2 else (value, value)
    for size in pair:
        if not isinstance(size, int) or isinstance(size, bool) or size < 16 or size % 16:
            raise ArgumentError(
                name="block_size",
                found_value=describe(value),
                expected="a multiple of 16, or a pair of them (queries, keys)",
                rewrite="block_size=128",
            )
    return pair


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


# Block masks made for masks given as functions, newest last; enough for the layers of a model that
# alternates between a few masks.
_CACHE_SIZE: Final = 32
_CACHE: OrderedDict[Any, BlockMask] = OrderedDict()
_LOCK: Final = threading.Lock()


def block_mask_for(mask: Any, sizes: GivenSizes, device: torch.device) -> BlockMask:
    """Return the block mask of a function given to attention; made once for each set of captures.

    Nothing is kept for a tensor whose changes torch does not count.

    Args:
        mask: a mask function, its text, or a `Mod`.
        sizes: those of the call, all of them known.
        device: the call's.
    """
    bound = resolve(mask, "mask")
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
    with _LOCK:
        found = _CACHE.get(key)
        if found is not None and found.holds(bound.tensors):
            _CACHE.move_to_end(key)
            return found
    made = _make(mask, bound, _Spec(needed, BLOCK_SIZE), _capture_device(bound, device))
    if None not in tensors:  # the entry holds the tensors, so their ids stay taken
        with _LOCK:
            _CACHE[key] = made
            if len(_CACHE) > _CACHE_SIZE:
                _CACHE.popitem(last=False)
    return made
