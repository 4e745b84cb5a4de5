"""torch's conversions, fillings and shape questions on traced values, added to `torch_table`.

Casts to a narrower float are casts to the score type: ``x.half()`` does not round.
"""

from __future__ import annotations

from typing import Any

import torch

from flexfa4.errors import OperandError
from flexfa4.frontend import ir
from flexfa4.frontend.ir import BOOL, F32, I32, DType
from flexfa4.frontend.tracing import locate
from flexfa4.frontend.tracing.proxies import Operators, Traced, as_node, dtype_class, refuse_number
from flexfa4.frontend.tracing.torch_table import (
    FUNCTIONS,
    Handler,
    cast,
    dtype_of,
    register,
    unsupported,
)

__all__ = ["FUNCTIONS"]


@register("to", "type", "type_as", "view_as_type")
def _to(input: Any, *args: Any, **kwargs: Any) -> Traced:
    for arg in (*args, *kwargs.values()):
        if isinstance(arg, torch.dtype):
            return cast(input, dtype_class(arg))
        if isinstance(arg, (Operators, torch.Tensor)) and hasattr(arg, "dtype"):
            return cast(input, dtype_class(arg.dtype))
    return Traced(as_node(input))  # a device, or a copy


def _conversion(dtype: DType) -> Handler:
    return lambda input: cast(input, dtype)


for _dtype, _names in {
    F32: ("float", "double", "half", "bfloat16"),
    I32: ("int", "long", "short", "char", "byte"),
    BOOL: ("bool",),
}.items():
    register(*_names)(_conversion(_dtype))


@register("clone", "contiguous", "squeeze", "cpu", "cuda", "flatten", "ravel", "conj", "real")
def _identity(input: Any, *args: Any, **kwargs: Any) -> Traced:
    return Traced(as_node(input))


@register("unsqueeze")
def _unsqueeze(input: Any, dim: Any) -> Traced:
    node = as_node(input)
    if node.length is not None or dim not in (0, -1):
        kind = "a number" if node.length is None else f"a vector of {node.length}"
        raise OperandError(
            where=locate.here(),
            name="`unsqueeze`",
            operands=f"{kind}, with dim={dim!r}",
            expected="a number, with dim=-1: a value of the mod has one axis at most",
            rewrite="the value itself: numbers and vectors of one length go together",
        )
    return Traced(node)  # goes with vectors as an axis of one element does


@register("detach")
def _detach(input: Any) -> Traced:
    node = as_node(input)
    for below in ir.topological(node):
        if below.dtype is F32 and below.op in ("input", "load"):
            unsupported("detach")
    return Traced(node)  # nothing in it has a gradient


def _filled(like: Any, value: Any, dtype: Any) -> Traced:
    wanted = dtype_of(like) if dtype is None else dtype_class(dtype)
    return cast(value, wanted)


@register("zeros_like")
def _zeros_like(input: Any, dtype: Any = None, device: Any = None) -> Traced:
    return _filled(input, 0, dtype)


@register("ones_like")
def _ones_like(input: Any, dtype: Any = None, device: Any = None) -> Traced:
    return _filled(input, 1, dtype)


@register("full_like")
def _full_like(input: Any, fill_value: Any, dtype: Any = None, device: Any = None) -> Traced:
    return _filled(input, fill_value, dtype)


@register("new_tensor")
def _new_tensor(input: Any, data: Any, dtype: Any = None, device: Any = None) -> Traced:
    return _filled(data if dtype is None else input, data, dtype)


def _new(value: Any) -> Handler:
    def handler(input: Any, size: Any, *rest: Any, dtype: Any = None, device: Any = None) -> Traced:
        if tuple(size if isinstance(size, (tuple, list)) else (size,)) not in ((), (1,)):
            unsupported("new_zeros of this size", "torch.zeros(size)")
        return _filled(input, rest[0] if rest else value, dtype)

    return handler


FUNCTIONS["new_zeros"], FUNCTIONS["new_ones"], FUNCTIONS["new_full"] = _new(0), _new(1), _new(0)
FUNCTIONS["size"] = lambda input, dim=None: input.shape if dim is None else input.shape[dim]
FUNCTIONS["dim"] = FUNCTIONS["ndimension"] = lambda input: input.ndim
FUNCTIONS["numel"] = lambda input: as_node(input).length or 1
FUNCTIONS["is_floating_point"] = lambda input: dtype_of(input) is F32
FUNCTIONS["item"] = FUNCTIONS["tolist"] = lambda input: refuse_number()
FUNCTIONS["__get__"] = lambda input, *rest: unsupported("this attribute")
