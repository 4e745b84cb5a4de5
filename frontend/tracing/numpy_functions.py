"""numpy's functions in a mod: computed on captured values, refused on traced ones.

On captured values alone a function of numpy is a captured computation, as one of `math` is: done
now, and again on each call.  On values that differ for each score there are the operators, which
numpy's own numbers hand over as functions, and torch's functions, which the refusal names.
Tensors are handed to numpy as arrays; numpy takes no gradients, so none that needs one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

from flexfa4.errors import OperandError, UnsupportedFunctionError
from flexfa4.frontend.ops import OPS, written
from flexfa4.frontend.tracing import hosts, locate
from flexfa4.frontend.tracing.proxies import operate

_OPERATORS: Final = {
    "add": "add", "subtract": "sub", "multiply": "mul", "divide": "div", "true_divide": "div",
    "floor_divide": "floordiv", "remainder": "mod", "power": "pow", "matmul": "matmul",
    "bitwise_and": "and", "bitwise_or": "or", "bitwise_xor": "xor", "left_shift": "shl",
    "right_shift": "shr", "less": "lt", "less_equal": "le", "greater": "gt",
    "greater_equal": "ge", "equal": "eq", "not_equal": "ne",
}  # fmt: skip


def ufunc(function: Any, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Apply a universal function of numpy, or a method of one such as ``np.add.reduce``.

    Raises:
        OperandError: an operator is applied to a value of the mod and an array.
        UnsupportedFunctionError: see `call`.
    """
    name = function.__name__
    if method == "__call__" and name in _OPERATORS and not kwargs and len(args) == 2:
        result, row = operate(_OPERATORS[name], *args), OPS.get(_OPERATORS[name])
        if result is NotImplemented:  # an array, of which numpy itself would say less
            raise OperandError(
                where=locate.here(),
                name=f"`{written(row.name)}`" if row else f"`numpy.{name}`",
                operands="a value of the mod and an array that is made inside it",
                expected="traced values, captured tensors, numbers and bools",
                rewrite="make the array outside the mod, and index it: array[kv_idx]",
            )
        return result
    return call(function if method == "__call__" else getattr(function, method), args, kwargs)


def call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Apply another function of numpy.

    Raises:
        UnsupportedFunctionError: an argument differs from score to score, or needs a gradient.
    """
    name = getattr(function, "__name__", "this")
    if hosts.any_traced((args, kwargs)):
        raise _refused(name, "functions of torch")
    if any(_is_beyond_numpy(v) for v in hosts.captured((args, kwargs))):
        raise _refused(name, "functions of numpy on CPU tensors that need no gradient")
    return hosts.evaluate(_Computed(function), args, kwargs)


def _is_beyond_numpy(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and (value.requires_grad or not value.is_cpu)


def _refused(name: str, allowed: str) -> UnsupportedFunctionError:
    return UnsupportedFunctionError(
        where=locate.here(),
        name=f"`numpy.{name}`",
        names=allowed,
        rewrite=locate.torch_call() or "the function of torch of that name",
    )


class _Computed:
    """A function of numpy that takes tensors, by name the function itself."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function, self.__name__ = function, getattr(function, "__name__", "function")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Computed) and self.function == other.function

    def __hash__(self) -> int:
        return hash(self.function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the function gives on arrays."""
        return self.function(*map(_array, args), **{n: _array(v) for n, v in kwargs.items()})


def _array(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.numpy()  # raises where a later call needs a gradient: traced anew, and refused
    if type(value) in (list, tuple):
        return type(value)(map(_array, value))
    return value
