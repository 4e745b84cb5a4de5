"""`BlockMask`: a mask together with which of its blocks are empty, partial or full.

A block mask is a snapshot: it holds the captures that it was made from, and says so when they have
changed since.  Making one evaluates the mask strip by strip (`frontend.blocks`); using one is the
kernels' business.
"""

from __future__ import annotations

import operator
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Final

import torch

from flexfa4.counters import count
from flexfa4.errors import ArgumentError, DeviceError, MaskReadsBatchError, StaleBlockMaskError
from flexfa4.frontend.binding import BoundGraph
from flexfa4.frontend.blocks import EMPTY, Blocks, MaskSize, classify, mask_tile
from flexfa4.frontend.evaluate import Program, Values
from flexfa4.frontend.ir import topological
from flexfa4.frontend.trace import resolve
from flexfa4.kernels.cpu.function import Binding, unproved_loads


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
        self.batch = spec.batch
        self.heads = spec.heads
        self.q_len = spec.size.q_len
        self.kv_len = spec.size.kv_len
        self.block_size = spec.block_size
        self._bound = bound
        self._blocks = blocks
        self._versions = tuple(tensor_version(t) for t in bound.tensors)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """``(batch, heads, q_len, kv_len)``, 1 where the mask is the same for all."""
        return (self.batch or 1, self.heads or 1, self.q_len, self.kv_len)

    @property
    def device(self) -> torch.device:
        """The device of its captures."""
        return self._blocks.values.device

    @property
    def blocks(self) -> Blocks:
        """What kernels iterate."""
        return self._blocks

    @property
    def captures_tensors(self) -> bool:
        """Whether the mask reads captured tensors, which live on one device."""
        return bool(self._bound.tensors)

    @property
    def density(self) -> float:
        """Share of the blocks that are not empty, 0 to 1 (0 where there are no blocks)."""
        kinds = self._blocks.kinds
        return float(kinds.ne(EMPTY).float().mean()) if kinds.numel() else 0.0

    def block_kinds(self) -> torch.Tensor:
        """Return int8 ``(batch|1, heads|1, query blocks, key blocks)``: 0 empty, 1 partial, 2 full."""
        return self._blocks.kinds.clone()

    def to_dense(self) -> torch.Tensor:
        """Return the mask itself, bool ``shape``; for looking at, it has ``q_len * kv_len`` elements."""
        program = Program((self._blocks.graph.root,))
        mask = mask_tile(program, self._blocks.values, self._blocks.size.lanes())
        return mask.expand(self.shape).clone()

    def check_current(self) -> None:
        """Raise if a value that the mask reads has changed since this was made.

        Raises:
            StaleBlockMaskError: a captured number, or a tensor whose version torch counts, changed.
        """
        graph = self._bound.graph
        for buffer, tensor, version in zip(
            graph.buffers, self._bound.tensors, self._versions, strict=True
        ):
            if version is not None and tensor._version != version:
                raise StaleBlockMaskError(name=f"the captured tensor `{buffer.name}`")
        if not graph.scalars:
            return
        now = resolve(self.mask, "mask")
        if now.graph is not graph:
            raise StaleBlockMaskError(name="a captured value that the mask was specialised for")
        for scalar, old, new in zip(
            graph.scalars, self._bound.scalars, now.scalars, strict=True
        ):
            if old != new:
                raise StaleBlockMaskError(name=f"`{scalar.name}` ({old} then, {new} now)")

    def __repr__(self) -> str:
        b, h, q, kv = self.shape
        size_q, size_kv = self.block_size
        return (
            f"BlockMask(batch={b}, heads={h}, q_len={q}, kv_len={kv}, "
            f"block_size={size_q}x{size_kv}, {self.density:.1%} of the blocks not empty)"
        )


@dataclass(frozen=True)
class _Spec:
    """What a block mask is made for."""

    batch: int | None
    heads: int | None
    size: MaskSize
    block_size: tuple[int, int]


def create_block_mask(
    mask: Any,
    *,
    batch: int | None = None,
    heads: int | None = None,
    q_len: int,
    kv_len: int,
    device: torch.device | str | None = None,
    block_size: int | tuple[int, int] = 128,
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
        ArgumentError: a length, count or block size is no integer in its range.
        MaskReadsBatchError: the mask reads ``b`` or ``h`` and `batch` or `heads` is None.
        DeviceError: captured tensors live elsewhere than on `device`.
        OutOfRangeError: the mask reads a captured tensor outside its bounds.
        TraceError, TextError: the mask cannot be traced or read.
    """
    spec = _Spec(
        _checked_count("batch", batch),
        _checked_count("heads", heads),
        MaskSize(
            1 if batch is None else batch,
            1 if heads is None else heads,
            _checked_int("q_len", q_len, 0),
            _checked_int("kv_len", kv_len, 0),
        ),
        _checked_block_size(block_size),
    )
    bound = resolve(mask, "mask")
    return make_block_mask(mask, bound, spec, device)


def make_block_mask(
    mask: Any, bound: BoundGraph, spec: _Spec, device: torch.device | str | None
) -> BlockMask:
    """Classify the blocks of a resolved mask; arguments have been checked."""
    _check_reads(bound, spec)
    count("block_masks")
    graph, size = bound.graph, spec.size
    shapes = tuple(tuple(t.shape) for t in bound.tensors)
    heads = spec.heads or 1
    values = Values(
        tensors=dict(zip(graph.buffers, bound.tensors, strict=True)),
        scalars=dict(zip(graph.scalars, bound.scalars, strict=True)),
        symbols={
            "q_len": size.q_len,
            "kv_len": size.kv_len,
            "num_heads": heads,
            "num_kv_heads": heads,
        },
        device=_capture_device(bound, device),
        unproved=unproved_loads(
            Binding(graph, bound.scalars, shapes, (size.b, size.h, size.q_len, size.kv_len, heads))
        ),
    )
    kinds = classify(graph, values, size, spec.block_size)
    # Every lane has been read once: from here on the loads are known to be in range.
    settled = Values(values.tensors, values.scalars, values.symbols, values.dtype, values.device)
    return BlockMask(mask, bound, spec, Blocks(graph, settled, size, spec.block_size, kinds))


def _check_reads(bound: BoundGraph, spec: _Spec) -> None:
    """Refuse a mask that needs a batch or head count which was not given."""
    depends = bound.graph.root.depends
    if "b" in depends and spec.batch is None:
        raise MaskReadsBatchError(name="`b`", argument="batch", what="batch")
    if "h" in depends and spec.heads is None:
        raise MaskReadsBatchError(name="`h`", argument="heads", what="head")
    if spec.heads is None:
        for node in topological(bound.graph.root):
            if node.op == "symbol" and node.attr in ("num_heads", "num_kv_heads"):
                raise MaskReadsBatchError(name=f"`{node.attr}`", argument="heads", what="head")


def _capture_device(bound: BoundGraph, device: torch.device | str | None) -> torch.device:
    wanted = torch.device(device) if device is not None else None
    for buffer, tensor in zip(bound.graph.buffers, bound.tensors, strict=True):
        if wanted is None:
            wanted = tensor.device
        elif tensor.device != wanted:
            raise DeviceError(
                problem=f"captured tensor `{buffer.name}` is on {tensor.device}, the mask on {wanted}",
                expected="all captured tensors of a mask on one device",
                rewrite=f"{buffer.name} = {buffer.name}.to({str(wanted)!r})",
            )
    return wanted if wanted is not None else torch.device("cpu")


def _checked_int(name: str, value: Any, low: int) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        number = low - 1
    if number < low or isinstance(value, bool):
        raise ArgumentError(
            name=name,
            found_value=repr(value),
            expected=f"an integer, at least {low}",
            rewrite=f"{name}={low}",
        )
    return number


def _checked_count(name: str, value: Any) -> int | None:
    return None if value is None else _checked_int(name, value, 0)


def _checked_block_size(value: Any) -> tuple[int, int]:
    pair = value if isinstance(value, tuple) and len(value) == 2 else (value, value)
    for size in pair:
        if not isinstance(size, int) or isinstance(size, bool) or size < 16 or size % 16:
            raise ArgumentError(
                name="block_size",
                found_value=repr(value),
                expected="a multiple of 16, or a pair of them (queries, keys)",
                rewrite="block_size=128",
            )
    return pair


# ---- masks given to attention as functions -------------------------------------------------------


def tensor_version(tensor: torch.Tensor) -> int | None:
    """Return torch's count of in-place changes, or None where torch keeps none."""
    return None if tensor.is_inference() else tensor._version


@dataclass(frozen=True)
class Sizes:
    """Batch, query heads and lengths of a call."""

    batch: int
    heads: int
    q_len: int
    kv_len: int


# Block masks made for masks given as functions, newest last; enough for the layers of a model that
# alternates between a few masks.
_CACHE_SIZE: Final = 32
_CACHE: OrderedDict[Any, BlockMask] = OrderedDict()


def block_mask_for(mask: Any, sizes: Sizes, device: torch.device) -> BlockMask:
    """Return the block mask of a function given to attention; made once for each set of captures.

    Nothing is kept for a tensor whose version torch does not count.
    """
    bound = resolve(mask, "mask")
    versions = tuple(tensor_version(t) for t in bound.tensors)
    tensors = tuple(id(t) for t in bound.tensors)
    key = (bound.graph, bound.scalars, tensors, versions, sizes, device)
    found = _CACHE.get(key)
    if found is not None:
        _CACHE.move_to_end(key)
        return found
    depends = bound.graph.root.depends
    per_head = "h" in depends or any(
        n.op == "symbol" and n.attr in ("num_heads", "num_kv_heads")
        for n in topological(bound.graph.root)
    )
    batch = sizes.batch if "b" in depends else None
    heads = sizes.heads if per_head else None
    spec = _Spec(
        batch,
        heads,
        MaskSize(
            1 if batch is None else batch, 1 if heads is None else heads, sizes.q_len, sizes.kv_len
        ),
        (128, 128),
    )
    made = make_block_mask(mask, bound, spec, device)
    if None not in versions:  # the entry holds the tensors, so their ids stay taken
        _CACHE[key] = made
        if len(_CACHE) > _CACHE_SIZE:
            _CACHE.popitem(last=False)
    return made

