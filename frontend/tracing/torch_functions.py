"""torch's functions and tensor methods on traced values: where every torch call of a mod arrives.

`dispatch` sends a call to the table of `torch_table` if an argument differs from score to score,
computes it on the spot if its arguments are captured values (`hosts`), and else lets torch make a
constant.  Calls outside the vocabulary, with results of a shape that depends on values, with random
numbers, or that change a tensor, are refused here with the user's line.
"""

from __future__ import annotations

import difflib
import inspect
import types
from collections.abc import Callable
from typing import Any, Final

import torch
from torch.overrides import TorchFunctionMode

from flexfa4.errors import (
    DataDependentShapeError,
    OperandError,
    UnknownAttributeError,
    UnsupportedFunctionError,
)
from flexfa4.frontend.tracing import activations, conversions, hosts, locate
from flexfa4.frontend.tracing.proxies import Traced
from flexfa4.frontend.tracing.torch_table import OPERATIONS, unsupported

__all__ = ["FUNCTIONS", "OPERATIONS", "Interception", "call", "dispatch", "method"]

# the one table, once these modules have added to it
assert activations.FUNCTIONS is conversions.FUNCTIONS
FUNCTIONS: Final = activations.FUNCTIONS


def dispatch(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Do what a torch function means for these arguments."""
    named = function._overloadpacket if isinstance(function, _OPS[:1]) else function
    name = plain_name(getattr(named, "__name__", ""))
    everything = (args, kwargs)
    refuse_random(name)
    if hosts.any_traced(everything):
        if not _is_torchs(function):
            raise UnsupportedFunctionError(
                where=locate.here(),
                name=f"`{_full_name(function)}`, which is not torch's,",
                names="torch's element-wise functions, and functions written with them",
                rewrite="what it computes, written with torch's functions",
            )
        return call(name, args, kwargs, is_method=getattr(torch.Tensor, name, None) is function)
    if hosts.any_host(everything):
        in_place = (name.endswith("_") and name[:2] != "__") or kwargs.get("out") is not None
        if in_place or name in ("__setitem__", *_IN_PLACE_OPERATORS):
            raise hosts.in_place_error(repr(args[0]) if args else "a tensor", f"{name}()")
        return hosts.evaluate(function, args, kwargs)
    result = function(*args, **kwargs)
    session = hosts.ACTIVE.session
    return result if session is None else session.made(result)


_OPS: Final = (torch._ops.OpOverload, torch._ops.OpOverloadPacket)


def _is_torchs(function: Callable[..., Any]) -> bool:
    """Whether a function is torch's own: others may share its name and compute something else."""
    if isinstance(function, _OPS):
        return _full_name(function).startswith(("aten::", "prims::"))
    if isinstance(function, types.FunctionType):
        return function.__module__.split(".")[0] == "torch"
    return not hasattr(function, "_opoverload")  # else made by torch.library.custom_op


def _full_name(function: Any) -> str:
    for attribute in ("_qualified_op_name", "_name", "_qualname", "__qualname__"):
        if isinstance(name := getattr(function, attribute, None), str):
            return name
    return repr(function)


def plain_name(name: str) -> str:
    """Return the name by which the table knows a function: torch calls some _threshold."""
    name = name.removeprefix("special_")
    return name if name.startswith("__") else name.removeprefix("_")


class Interception(TorchFunctionMode):
    """Sends every torch call that a mod makes through `dispatch`."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Handle one call."""
        return dispatch(func, args, kwargs or {})


def call(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], is_method: bool = False) -> Any:
    """Apply the function of this name to arguments of which some are traced.

    Raises:
        DataDependentShapeError, UnsupportedFunctionError: the name is outside the vocabulary.
        OperandError: the arguments do not fit.
    """
    refuse_random(name)
    if name in _DATA_DEPENDENT or (name == "where" and len(args) + len(kwargs) == 1):
        raise DataDependentShapeError(
            where=locate.here(), name=f"`{name}`", rewrite="torch.where(condition, a, b)"
        )
    if is_method and name == "where":  # x.where(condition, other)
        args = (args[1], args[0], *args[2:])
    handler = FUNCTIONS.get(name)
    if handler is None:
        unsupported(name)
    try:
        bound = inspect.signature(handler).bind(*args, **kwargs)
    except TypeError as error:
        raise OperandError(
            where=locate.here(),
            name=f"`{name}`",
            operands=f"these arguments: {error}",
            expected=f"{name}({', '.join(inspect.signature(handler).parameters)})",
            rewrite="leave out the arguments that are not listed",
        ) from None
    if bound.arguments.get("inplace"):
        unsupported(f"{name}_")
    return handler(*args, **kwargs)


def refuse_random(name: str) -> None:
    """Refuse a function that makes random numbers: they would be those of the first call."""
    if name in _RANDOM:
        unsupported(name, "random numbers made outside the mod, in a captured tensor")


def method(value: Traced, name: str) -> Any:
    """Return the bound method `name` of a traced value.

    Raises:
        UnknownAttributeError: torch has none; an AttributeError, so that hasattr() works.
        UnsupportedFunctionError: it is no method.
    """
    known = getattr(torch.Tensor, name, None)
    if name.startswith("__"):  # Python asks for protocols
        raise AttributeError(f"a value of the mod has no attribute {name!r}")
    if known is None:
        close = difflib.get_close_matches(name, [n for n in FUNCTIONS if n[0] != "_"], n=1)
        advice = "a function of the value: f(x), or an attribute of what the mod captures"
        raise UnknownAttributeError(
            where=locate.here(), name=name, rewrite=f".{close[0]}" if close else advice
        )
    if not callable(known):
        unsupported(f".{name}")
    return lambda *args, **kwargs: call(name, (value, *args), kwargs, is_method=True)


_DATA_DEPENDENT: Final = frozenset(
    ("nonzero", "argwhere", "masked_select", "unique", "unique_consecutive", "bincount")
)
_RANDOM: Final = frozenset((
    "rand", "randn", "randint", "rand_like", "randn_like", "randint_like", "randperm", "bernoulli",
    "multinomial", "normal", "poisson", "dropout", "alpha_dropout", "feature_dropout", "bernoulli_",
    "normal_", "uniform_", "random_", "exponential_", "geometric_", "log_normal_", "cauchy_",
))  # fmt: skip
_IN_PLACE_OPERATORS: Final = (
    "__iadd__", "__isub__", "__imul__", "__itruediv__", "__idiv__", "__ifloordiv__", "__imod__",
    "__ipow__", "__iand__", "__ior__", "__ixor__", "__ilshift__", "__irshift__",
)  # fmt: skip
