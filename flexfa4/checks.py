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
    BatchesDifferError,
    DeviceError,
    DTypesDifferError,
    EmptyDimensionError,
    HeadsDoNotDivideError,
    NoValuesError,
    RankError,
    ShapeMismatchError,
    SinkShapeError,
    SizesDifferError,
    UnsupportedDTypeError,
    describe,
)
from flexfa4.frontend.tracing.combining import instance_of
from flexfa4.frontend.tracing.contract import SIGNATURES
from flexfa4.torch_op.context import untraced

DTYPES: Final = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
BACKENDS: Final = (
    "auto", "cpu", "flex", "sm90", "sm100",
    "emulator", "emulator:sm_90a", "emulator:sm_103a",
)  # fmt: skip
_LARGEST: Final = torch.finfo(torch.float32).max
_CHECKED: set[tuple[Any, ...]] = set()
_CHECKED_LIMIT: Final = 4096


@untraced
def check_tensors(q: Any, k: Any, v: Any, sink: Any) -> None:
    """Check shapes, dtypes and devices of the tensor arguments.

    Raises:
        ArgumentError: one of them is no dense tensor.
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


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


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
        raise RankError(
            name=name,
            shape=_shape(tensor),
            rewrite=advice.get(tensor.dim(), f"{name}.reshape(batch, heads, length, head_dim)"),
        )


def _check_dtypes(named: dict[str, torch.Tensor]) -> None:
    dtypes = {t.dtype for t in named.values()}
    if len(dtypes) > 1:
        raise DTypesDifferError(
            dtypes=", ".join(f"{n}: {_dtype(t)}" for n, t in named.items()),
            names="query, key and value",
            rewrite="key = key.to(query.dtype); value = value.to(query.dtype)",
        )
    if dtypes.pop() not in DTYPES:
        raise UnsupportedDTypeError(
            name="query, key and value",
            dtype=_dtype(named["query"]),
            dtypes=", ".join(str(d)[6:] for d in DTYPES),
            rewrite="query, key, value = query.float(), key.float(), value.float()",
        )


def _check_devices(named: dict[str, torch.Tensor]) -> None:
    device = named["query"].device
    for name, tensor in named.items():
        if tensor.device != device:
            raise DeviceError(
                name=name,
                device=tensor.device,
                other="query",
                other_device=device,
                rewrite="key = key.to(query.device); value = value.to(query.device)",
            )
    if device.type == "meta":
        raise NoValuesError(
            what="query, key and value are",
            rewrite="query, key, value ="
            ' (torch.empty_like(x, device="cpu") for x in (query, key, value))',
        )


def _check_shapes(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    shapes = f"query {_shape(q)}, key {_shape(k)}, value {_shape(v)}"
    for holds, mistake in _shape_rules(q.shape, k.shape, v.shape):
        if not holds:
            error, fields, rewrite = mistake
            raise error(**fields, shapes=shapes, rewrite=rewrite())


_Mistake = tuple[type[ShapeMismatchError], dict[str, Any], Callable[[], str]]


def _shape_rules(q: torch.Size, k: torch.Size, v: torch.Size) -> tuple[tuple[bool, _Mistake], ...]:
    """Return rows of: whether shapes fit; the error where not, its fields, what to write instead.

    Advice that computes with sizes is made when it is needed: symbolic sizes note every question.
    `str` makes none, where the class itself says what to write.
    """
    pair = {"first": "key", "second": "value"}
    return (
        (q[3] > 0 and v[3] > 0,
         (EmptyDimensionError, {"name": "a head dimension", "dim": 3}, str)),
        (q[3] == k[3],
         (SizesDifferError, {"first": "query", "second": "key", "what": "head dimension"},
          lambda: "project query and key to one size; that of value may be another")),
        (k[2] == v[2],
         (SizesDifferError, {**pair, "what": "length"},
          partial(_fit, "key", "value", 2, k[2], v[2]))),
        (k[1] == v[1],
         (SizesDifferError, {**pair, "what": "number of heads"},
          partial(_fit, "key", "value", 1, k[1], v[1]))),
        (q[1] > 0 and k[1] > 0,
         (EmptyDimensionError, {"name": "the dimension of heads", "dim": 1}, str)),
        (k[1] > 0 and q[1] % k[1] == 0,
         (HeadsDoNotDivideError, {"q_heads": q[1], "kv_heads": k[1]}, partial(_fit_heads, q, k))),
        (k[0] == v[0],
         (SizesDifferError, {**pair, "what": "batch"},
          partial(_fit, "key", "value", 0, k[0], v[0]))),
        (k[0] in (1, q[0]),
         (BatchesDifferError, {"q_batch": q[0], "kv_batch": k[0]},
          partial(_fit, "query", "key", 0, q[0], k[0]))),
    )  # fmt: skip


def _fit_heads(q: torch.Size, k: torch.Size) -> str:
    """Return how query heads become a multiple of the key heads."""
    if k[1] > k[2] > 0 and q[2] % k[2] == 0:  # more heads than keys: they are lengths
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
    cut = f"{longer} = {longer}[{':, ' * axis}:{small}]"
    if axis < 2:
        return cut
    return f"{cut}  # if {name} has its first {small} positions; both are of one sequence"


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
        raise SinkShapeError(shape=_shape(sink), heads=heads, rewrite=_fit_sink(sink, heads))
    if not sink.dtype.is_floating_point:
        raise UnsupportedDTypeError(
            name="a sink",
            dtype=_dtype(sink),
            dtypes="any floating dtype",
            rewrite="sink = sink.float()",
        )
    _check_device("sink", sink, q, "sink")


def _fit_sink(sink: torch.Tensor, heads: int) -> str:
    """Return how a sink of another shape gets one logit for each query head."""
    if sink.numel() == heads:
        return "sink = sink.flatten()"
    if sink.numel() > 1 and heads % sink.numel() == 0:
        repeats = heads // sink.numel()
        return f"sink = sink.flatten().repeat_interleave({repeats})  # one for each key head"
    return "sink = sink.flatten()[0].expand(query.shape[1])  # the same for every head"


def check_captured(name: str, tensor: torch.Tensor, query: torch.Tensor) -> None:
    """Check the device of a captured tensor.

    Raises:
        DeviceError: it is not query's.
    """
    _check_device(name, tensor, query, "tensor")


def _check_device(name: str, tensor: torch.Tensor, query: torch.Tensor, variable: str) -> None:
    """Check that a tensor of a call is where query is; `variable` holds it in the user's code."""
    if tensor.device != query.device:
        raise DeviceError(
            name=name,
            device=tensor.device,
            other="query",
            other_device=query.device,
            rewrite=f"{variable} = {variable}.to(query.device)",
        )


@untraced
def checked_scale(scale: Any, head_dim: int) -> float:
    """Return the scale, ``1/sqrt(head_dim)`` by default.

    Raises:
        ArgumentError: it is no real number, or none that is finite in fp32.
    """
    if scale is None:
        return 1.0 / math.sqrt(head_dim)
    found = describe(scale)
    if isinstance(scale, numbers.Real) and not isinstance(scale, bool):
        try:
            number = float(scale)
        except OverflowError:
            number = math.inf
        if abs(number) <= _LARGEST:
            return number
        if math.isfinite(number):
            found = f"{found}, which is infinite in fp32"
    raise ArgumentError(
        name="scale",
        found_value=found,
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
        raise BackendError(backend=backend, names=", ".join(map(repr, BACKENDS)))


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


def options_error(found: str) -> ArgumentError:
    """Return the error for an argument `options` that is none; `found` says what it is."""
    return ArgumentError(
        name="options",
        found_value=found,
        expected="a flexfa4.Options, or None",
        rewrite="options=flexfa4.Options()",
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
