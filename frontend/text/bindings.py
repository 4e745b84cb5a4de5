"""Captured values of a text mod: which declaration each Python value gets, and whether they agree.

Knows Python values and declarations only, not the text that reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final, TypeAlias

import torch

from flexfa4.errors import BindingTypeError, DeclarationMismatchError, Where
from flexfa4.frontend.ir import BOOL, F32, I32, Buffer, DType, Scalar
from flexfa4.frontend.text.vocabulary import type_text

Declaration: TypeAlias = Buffer | Scalar | bool


def declare(name: str, value: object, full_axes: Collection[int]) -> Declaration:
    """Return what a bound value is in the graph; a bool is a constant and stands for itself.

    `full_axes` are the axes along which the text reads whole vectors (``table[h, :]``): their sizes
    become part of the graph.

    Raises:
        BindingTypeError: the value is of no kind that a text can read.
    """
    for kind, make in _KINDS.items():
        if isinstance(value, kind):
            return make(name, value, full_axes)
    advice = "convert it with torch.as_tensor(...), int(...) or float(...)"
    raise BindingTypeError(name=name, kind=f"a {type(value).__name__}", rewrite=advice)


def of_lists(bindings: Mapping[str, object]) -> dict[str, object]:
    """Return bindings with a tensor for each list of numbers, made once: a copy of the list.

    Raises:
        BindingTypeError: a list holds something else, or lists of unequal lengths.
    """
    return {n: _of_list(n, v) if isinstance(v, list) else v for n, v in bindings.items()}


def _of_list(name: str, values: list[object]) -> torch.Tensor:
    try:
        return torch.tensor(values)
    except (ValueError, TypeError, RuntimeError, OverflowError) as error:
        raise BindingTypeError(
            name=name,
            kind=f"a list that is no tensor: {error}",
            rewrite="numbers, in lists of equal lengths",
        ) from None


def check(declaration: Buffer | Scalar, value: object, where: Where) -> None:
    """Refuse a value that is not what the text declares.

    Raises:
        DeclarationMismatchError: the kind, dtype class, rank or a static size differs.
    """
    name = declaration.name
    shape = declaration.shape if isinstance(declaration, Buffer) else ()
    found = declare(name, value, [axis for axis, n in enumerate(shape) if n is not None])
    is_int_for_float = declaration == Scalar(name, F32) and found == Scalar(name, I32)
    if found == declaration or is_int_for_float:
        return
    wanted = type_text(declaration)
    given = f"the constant {found}" if isinstance(found, bool) else type_text(found)
    raise DeclarationMismatchError(where=where, name=name, declared=wanted, bound=given)


def _buffer(name: str, tensor: torch.Tensor, full_axes: Collection[int]) -> Buffer:
    if tensor.is_complex():
        raise BindingTypeError(
            name=name, kind="a complex tensor", rewrite="bind its .real and its .imag"
        )
    if tensor.layout is not torch.strided:
        raise BindingTypeError(
            name=name, kind="a sparse tensor", rewrite="call .to_dense() on it first"
        )
    if tensor.is_quantized:
        raise BindingTypeError(
            name=name, kind="a quantized tensor", rewrite="call .dequantize() on it first"
        )
    shape = tuple(n if axis in full_axes else None for axis, n in enumerate(tensor.shape))
    return Buffer(name, _dtype(tensor), shape)


def _dtype(tensor: torch.Tensor) -> DType:
    if tensor.dtype is torch.bool:
        return BOOL
    return F32 if tensor.is_floating_point() else I32


def _integer(name: str, value: int, full_axes: Collection[int]) -> Scalar:
    if not -(2**63) <= value < 2**63:
        raise BindingTypeError(name=name, kind="an int beyond 64 bits", rewrite="bind a float")
    return Scalar(name, I32)


# in this order: a bool is an int, too
_KINDS: Final[dict[type, Callable[..., Declaration]]] = {
    torch.Tensor: _buffer,
    bool: lambda name, value, full_axes: value,
    int: _integer,
    float: lambda name, value, full_axes: Scalar(name, F32),
}
