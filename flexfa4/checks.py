"""Checks of a call's arguments, before any arithmetic.

One function for each kind of mistake, all run by `check_call`; combinations that passed are
remembered by their shapes, strides play no role.  Says nothing about mods (`frontend`).
"""

from __future__ import annotations

import math
import numbers
from typing import Any, Final

import torch

from flexfa4.block_mask import BlockMask
from flexfa4.errors import (
    ArgumentError,
    BackendError,
    BlockMaskMismatchError,
    DeviceError,
    DTypeError,
    ShapeMismatchError,
)

DTYPES: Final = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
BACKENDS: Final = ("auto", "cpu")
_CHECKED: set[tuple[Any, ...]] = set()
_CHECKED_LIMIT: Final = 4096


def check_tensors(q: Any, k: Any, v: Any, sink: Any) -> None:
    """Check shapes, dtypes and devices of the tensor arguments.

    Raises:
        ArgumentError: one of them is no tensor of the right rank.
        ShapeMismatchError: shapes do not go together.
        DTypeError: an unsupported dtype, or different ones.
        DeviceError: different devices.
    """
    try:
        key = (q.shape, k.shape, v.shape, q.dtype, k.dtype, v.dtype, q.device, k.device, v.device,
               None if sink is None else (sink.shape, sink.dtype, sink.device))  # fmt: skip
    except AttributeError:
        key = None
    if key in _CHECKED:
        return
    named = {"query": q, "key": k, "value": v}
    for name, tensor in named.items():
        _check_rank(name, tensor)
    _check_dtypes(named)
    _check_devices(named)
    _check_shapes(q, k, v)
    if sink is not None:
        _check_sink(q, sink)
    if len(_CHECKED) >= _CHECKED_LIMIT:
        _CHECKED.clear()
    _CHECKED.add(key)


def _shape(tensor: torch.Tensor) -> str:
    return str(tuple(tensor.shape))


def _check_rank(name: str, tensor: Any) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise ArgumentError(
            name=name,
            found_value=f"a {type(tensor).__name__}",
            expected="a torch.Tensor of shape (batch, heads, length, head dimension)",
            rewrite=f"torch.as_tensor({name})",
        )
    if tensor.dim() != 4:
        raise ShapeMismatchError(
            problem=f"{name} has shape {_shape(tensor)}",
            expected="(batch, heads, length, head dimension)",
            rewrite=f"{name}.unsqueeze(0) for a missing batch, or {name}.transpose(1, 2) for"
            " (batch, length, heads, head dimension)",
        )
    if tensor.layout is not torch.strided or tensor.is_nested:
        raise ArgumentError(
            name=name,
            found_value="a nested or sparse tensor",
            expected="a dense tensor",
            rewrite="pack the sequences into one and mask with document ids"
            " (flexfa4.variants.Document)",
        )


def _check_dtypes(named: dict[str, torch.Tensor]) -> None:
    dtypes = {t.dtype for t in named.values()}
    found = ", ".join(f"{n}: {str(t.dtype)[6:]}" for n, t in named.items())
    if len(dtypes) > 1:
        raise DTypeError(
            problem=f"dtypes differ ({found})",
            expected="one dtype for query, key and value",
            rewrite="key = key.to(query.dtype); value = value.to(query.dtype)",
        )
    if dtypes.pop() not in DTYPES:
        raise DTypeError(
            problem=f"an unsupported dtype ({found})",
            expected=", ".join(str(d)[6:] for d in DTYPES),
            rewrite="query, key, value = (x.float() for x in (query, key, value))",
        )


def _check_devices(named: dict[str, torch.Tensor]) -> None:
    if len({t.device for t in named.values()}) > 1:
        found = ", ".join(f"{n}: {t.device}" for n, t in named.items())
        raise DeviceError(
            problem=f"devices differ ({found})",
            expected="one device for query, key and value",
            rewrite="key = key.to(query.device); value = value.to(query.device)",
        )


def _check_shapes(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    shapes = f"query {_shape(q)}, key {_shape(k)}, value {_shape(v)}"
    checks = (
        (k.shape[1] == v.shape[1], "key and value differ in heads",
         "the same number of heads in key and value", "value with key.shape[1] heads"),
        (k.shape[2] == v.shape[2], "key and value differ in length",
         "the same length in key and value", "value[:, :, : key.shape[2]]"),
        (q.shape[3] == k.shape[3], "query and key differ in head dimension",
         "the same head dimension in query and key (value may have another)",
         "project query and key to one size"),
        (q.shape[3] > 0 and v.shape[3] > 0, "a head dimension is zero",
         "head dimensions of at least 1", "query, key and value with features"),
        (k.shape[1] > 0 and q.shape[1] % k.shape[1] == 0 and q.shape[1] > 0,
         f"{q.shape[1]} query heads do not divide among {k.shape[1]} key heads",
         "query heads that are a multiple of the key heads (grouped-query attention)",
         "repeat or drop heads so that query.shape[1] % key.shape[1] == 0"),
        (k.shape[0] in (1, q.shape[0]) and v.shape[0] == k.shape[0],
         "batch sizes differ",
         "the same batch in all three, or a batch of 1 in both key and value",
         "key.expand(query.shape[0], -1, -1, -1)"),
    )  # fmt: skip
    for holds, problem, expected, rewrite in checks:
        if not holds:
            raise ShapeMismatchError(
                problem=f"{problem}: {shapes}", expected=expected, rewrite=rewrite
            )


def _check_sink(q: torch.Tensor, sink: Any) -> None:
    if not isinstance(sink, torch.Tensor) or tuple(sink.shape) != (q.shape[1],):
        found = f"shape {_shape(sink)}" if isinstance(sink, torch.Tensor) else repr(sink)
        raise ShapeMismatchError(
            problem=f"sink has {found} beside {q.shape[1]} query heads",
            expected=f"a tensor of shape ({q.shape[1]},): one logit for each query head",
            rewrite="sink.expand(query.shape[1])",
        )
    if not sink.dtype.is_floating_point:
        raise DTypeError(
            problem=f"sink is {str(sink.dtype)[6:]}",
            expected="a floating dtype",
            rewrite="sink.float()",
        )
    if sink.device != q.device:
        raise DeviceError(
            problem=f"sink is on {sink.device}, query on {q.device}",
            expected="one device",
            rewrite="sink.to(query.device)",
        )


def checked_scale(scale: Any, head_dim: int) -> float:
    """Return the scale, ``1/sqrt(head_dim)`` by default.

    Raises:
        ArgumentError: it is no finite real number.
    """
    if scale is None:
        return 1.0 / math.sqrt(head_dim)
    if isinstance(scale, numbers.Real) and not isinstance(scale, bool):
        number = float(scale)
        if math.isfinite(number):
            return number
    raise ArgumentError(
        name="scale",
        found_value=repr(scale),
        expected="a finite number, or None for 1/sqrt(head dimension)",
        rewrite="scale=None; for a learnable scale, multiply query by it",
    )


def check_backend(backend: Any) -> None:
    """Check the name of the backend.

    Raises:
        BackendError: there is no such backend.
    """
    if backend not in BACKENDS:
        raise BackendError(
            backend=backend,
            problem="there is no such backend",
            expected=", ".join(repr(b) for b in BACKENDS),
            rewrite='backend="auto"; `flexfa4 doctor` lists what this machine can run',
        )


def check_block_mask(block_mask: BlockMask, q: torch.Tensor, k: torch.Tensor) -> None:
    """Check that a block mask was made for a call of these sizes.

    Raises:
        BlockMaskMismatchError: it was made for other lengths, batches or heads.
        DeviceError: its captures live on another device.
    """
    lengths = (q.shape[2], k.shape[2])
    if (block_mask.q_len, block_mask.kv_len) != lengths:
        raise BlockMaskMismatchError(
            problem=f"the block mask was made for q_len={block_mask.q_len}, kv_len="
            f"{block_mask.kv_len}, but query has length {lengths[0]} and key {lengths[1]}",
            expected="the lengths that it was made for",
            rewrite=f"create_block_mask(mask, q_len={lengths[0]}, kv_len={lengths[1]}); to decode"
            " at a position, add an offset to q_idx in the mask",
        )
    for name, made, found in (
        ("batch", block_mask.batch, q.shape[0]),
        ("heads", block_mask.heads, q.shape[1]),
    ):
        if made is not None and made not in (1, found):
            raise BlockMaskMismatchError(
                problem=f"the block mask was made for {name}={made}, but query has {found}",
                expected=f"{name}={found}, or {name}=None or 1 for the same mask everywhere",
                rewrite=f"create_block_mask(mask, {name}={found}, ...)",
            )
    if block_mask.device != q.device and block_mask.captures_tensors:
        raise DeviceError(
            problem=f"the block mask is on {block_mask.device}, query on {q.device}",
            expected="one device",
            rewrite="make it from captures on that device, or pass device= to create_block_mask",
        )
