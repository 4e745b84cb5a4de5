"""Checks of a call's arguments, before any arithmetic.

One function for each kind of mistake.  Combinations of tensors that passed are remembered by their
shapes, dtypes and devices; strides play no role.  Says nothing about mods (`frontend`).
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Literal

import torch

from flexfa4.errors import (
    ArgumentError,
    BackendError,
    DeviceError,
    DTypeError,
    NoValuesError,
    ShapeMismatchError,
    describe,
)
from flexfa4.frontend.tracing.combining import instance_of
from flexfa4.frontend.tracing.contract import SIGNATURES

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
               q.layout, k.layout, v.layout,
               None if sink is None else (sink.shape, sink.dtype, sink.device, sink.layout),
               )  # fmt: skip
        if key in _CHECKED:
            return
    except (AttributeError, RuntimeError, TypeError):  # no tensors, or nested ones
        key = None
    named = {"query": q, "key": k, "value": v}
    for name, tensor in named.items():
        _check_rank(name, tensor)
    _check_dtypes(named)
    _check_devices(named)
    _check_shapes(q, k, v)
    if sink is not None:
        _check_sink(q, sink)
    if key is not None:
        if len(_CHECKED) >= _CHECKED_LIMIT:
            _CHECKED.clear()
        _CHECKED.add(key)


def _shape(tensor: torch.Tensor) -> str:
    return str(tuple(tensor.shape))


def _check_rank(name: str, tensor: Any) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise ArgumentError(
            name=name,
            found_value=describe(tensor),
            expected="a torch.Tensor of shape (batch, heads, length, head dimension)",
            rewrite=f"{name} = torch.as_tensor({name})",
        )
    if tensor.layout is not torch.strided or tensor.is_nested:
        raise ArgumentError(
            name=name,
            found_value="a nested or sparse tensor",
            expected="a dense tensor",
            rewrite="pack the sequences into one row and mask with their document ids"
            " (flexfa4.variants.Document)",
        )
    if tensor.dim() != 4:
        advice = {
            2: f"{name}[None, None] for a missing batch and heads",
            3: f"{name}[None] for a missing batch, or {name}[:, None] for missing heads",
        }
        raise ShapeMismatchError(
            problem=f"{name} has shape {_shape(tensor)}",
            expected="(batch, heads, length, head dimension)",
            rewrite=advice.get(tensor.dim(), f"{name}.reshape(batch, heads, length, head_dim)"),
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
            rewrite="query, key, value = query.float(), key.float(), value.float()",
        )


def _check_devices(named: dict[str, torch.Tensor]) -> None:
    if len({t.device for t in named.values()}) > 1:
        found = ", ".join(f"{n}: {t.device}" for n, t in named.items())
        raise DeviceError(
            problem=f"devices differ ({found})",
            expected="one device for query, key and value",
            rewrite="key = key.to(query.device); value = value.to(query.device)",
        )
    if named["query"].device.type == "meta":
        raise NoValuesError(
            what="query, key and value are",
            rewrite="query, key, value ="
            ' (torch.empty_like(x, device="cpu") for x in (query, key, value))',
        )


def _check_shapes(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    shapes = f"query {_shape(q)}, key {_shape(k)}, value {_shape(v)}"
    for holds, problem, expected, rewrite in _shape_rules(q.shape, k.shape, v.shape):
        if not holds:
            advice = rewrite if isinstance(rewrite, str) else rewrite()
            raise ShapeMismatchError(
                problem=f"{problem}: {shapes}", expected=expected, rewrite=advice
            )


def _shape_rules(
    q: torch.Size, k: torch.Size, v: torch.Size
) -> tuple[tuple[bool, str, str, str | Callable[[], str]], ...]:
    """Return rows of: whether shapes fit, what does not, what would, and what to write instead.

    Advice that computes with sizes is made when it is needed: symbolic sizes note every question.
    """
    return (
        (q[3] > 0 and v[3] > 0, "a head dimension is zero",
         "head dimensions of at least 1", "give query, key and value a last dimension above 0"),
        (q[3] == k[3], "query and key differ in head dimension",
         "the same head dimension in query and key (value may have another)",
         "project query and key to one size"),
        (k[2] == v[2], "key and value differ in length",
         "the same length in key and value", partial(_fit, "key", "value", 2, k[2], v[2])),
        (k[1] == v[1], "key and value differ in heads",
         "the same number of heads in key and value",
         partial(_fit, "key", "value", 1, k[1], v[1])),
        (q[1] > 0 and k[1] > 0, "there are no heads",
         "at least one head", "give query, key and value a second dimension above 0"),
        (k[1] > 0 and q[1] % k[1] == 0,
         f"{q[1]} query heads do not divide among {k[1]} key heads",
         "query heads that are a multiple of the key heads (grouped-query attention)",
         partial(_fit_heads, q, k)),
        (k[0] == v[0], "key and value differ in batch",
         "the same batch in key and value", partial(_fit, "key", "value", 0, k[0], v[0])),
        (k[0] in (1, q[0]), f"a batch of {q[0]} in query and of {k[0]} in key",
         "one batch for all, or 1 in both key and value",
         partial(_fit, "query", "key", 0, q[0], k[0])),
    )  # fmt: skip


def _fit_heads(q: torch.Size, k: torch.Size) -> str:
    """Return how query heads become a multiple of the key heads."""
    if k[2] > 0 and q[2] % k[2] == 0 and q[1] != q[2]:
        return (
            "query, key, value = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)"
            "  # if they are (batch, length, heads, head dimension)"
        )
    if k[1] > q[1]:
        return f"key, value = key[:, :{q[1]}], value[:, :{q[1]}]"
    return f"query = query[:, :{q[1] - q[1] % max(k[1], 1)}]"


def _fit(first: str, second: str, axis: int, size: int, other: int) -> str:
    """Return how two tensors get the same size along an axis: repeat the smaller, or cut."""
    (small, name), (large, longer) = sorted(((size, first), (other, second)))
    if axis < 2 and small and large % small == 0:
        return f"{name} = {name}.repeat_interleave({large // small}, dim={axis})"
    return f"{longer} = {longer}[{':, ' * axis}:{small}]"


def _check_sink(q: torch.Tensor, sink: Any) -> None:
    heads = q.shape[1]
    if not isinstance(sink, torch.Tensor):
        raise ArgumentError(
            name="sink",
            found_value=describe(sink),
            expected=f"a tensor of shape ({heads},): one logit for each query head",
            rewrite="sink=torch.zeros(query.shape[1], device=query.device)",
        )
    if tuple(sink.shape) != (heads,):
        raise ShapeMismatchError(
            problem=f"sink has shape {_shape(sink)} beside {heads} query heads",
            expected=f"a tensor of shape ({heads},): one logit for each query head",
            rewrite="sink = sink.flatten()"
            if sink.numel() == heads
            else "sink = sink.flatten()[0].expand(query.shape[1])  # the same for every head",
        )
    if not sink.dtype.is_floating_point:
        raise DTypeError(
            problem=f"sink is {str(sink.dtype)[6:]}",
            expected="a floating dtype",
            rewrite="sink = sink.float()",
        )
    if sink.device != q.device:
        raise DeviceError(
            problem=f"sink is on {sink.device}, query on {q.device}",
            expected="one device",
            rewrite="sink = sink.to(query.device)",
        )


def check_captured(name: str, tensor: torch.Tensor, query: torch.Tensor) -> None:
    """Check the device of a captured tensor.

    Raises:
        DeviceError: it is not query's.
    """
    if tensor.device != query.device:
        raise DeviceError(
            problem=f"{name} is on {tensor.device}, query on {query.device}",
            expected="captured tensors on query's device",
            rewrite="tensor = tensor.to(query.device)",
        )


def checked_scale(scale: Any, head_dim: int) -> float:
    """Return the scale, ``1/sqrt(head_dim)`` by default.

    Raises:
        ArgumentError: it is no finite real number.
    """
    if scale is None:
        return 1.0 / math.sqrt(head_dim)
    if isinstance(scale, numbers.Real) and not isinstance(scale, bool):
        try:
            number = float(scale)
        except OverflowError:
            number = math.inf
        if math.isfinite(number):
            return number
    raise ArgumentError(
        name="scale",
        found_value=describe(scale),
        expected="a finite number, or None for 1/sqrt(head dimension)",
        rewrite="attention(query * scale, key, value, scale=1.0)"
        if isinstance(scale, torch.Tensor)
        else "scale=None",
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
            rewrite='backend="auto", and `flexfa4 doctor` in a shell lists what this machine'
            " can run",
        )


def check_flag(name: str, value: Any) -> None:
    """Check that an argument is True or False.

    Raises:
        ArgumentError: it is neither.
    """
    if not isinstance(value, bool):
        raise ArgumentError(
            name=name,
            found_value=describe(value),
            expected="True or False",
            rewrite=f"{name}=True",
        )


# ---- mods ----------------------------------------------------------------------------------------


def check_mod(name: str, mod: Any, kind: Literal["score", "mask"]) -> None:
    """Check that an argument can be a mod at all; what it does is the business of tracing.

    Raises:
        ArgumentError: it is no function, text or `Mod`.
    """
    if (callable(mod) and not isinstance(mod, type)) or isinstance(mod, str):
        return
    advice = SIGNATURES[kind]
    signature = advice.removeprefix("def ").removesuffix(": ...")
    if kind == "mask" and isinstance(mod, torch.Tensor):
        advice = "block_mask=lambda b, h, q_idx, kv_idx: tensor[q_idx, kv_idx]"
    elif isinstance(mod, type):
        advice = instance_of(mod)
    elif hasattr(mod, "mask_mod"):  # a BlockMask of FlexAttention, torch's or flexfa4.flex's
        call = "flexfa4.flex.flex_attention(query, key, value, block_mask=block_mask)"
        advice = call if name == "block_mask" else f"{name}.mask_mod"
    raise ArgumentError(
        name=name,
        found_value=f"the class {mod.__name__}" if isinstance(mod, type) else describe(mod),
        expected=f"a function {signature}, its text form, or a flexfa4.Mod",
        rewrite=advice,
    )
