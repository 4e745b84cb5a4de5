"""Masks as values: ``&``, ``|`` and ``~`` between mask functions.

    window = flexfa4.mask(lambda b, h, q_idx, kv_idx: q_idx - kv_idx < 128)
    both = window & flexfa4.mask("doc[q] == doc[kv]", doc=ids)

A combined mask is an ordinary mask function of its parts; tracing sees through it.  Nothing is
evaluated here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from flexfa4.checks import instance_of
from flexfa4.errors import ArgumentError, ArityError, describe
from flexfa4.frontend.tracing.contract import check_arity, result_node
from flexfa4.frontend.tracing.proxies import Operators, Traced
from flexfa4.frontend.tracing.trace import Mod, parse

MaskFunction = Callable[..., Any]


class MaskMod(ABC):
    """Base of masks that combine with ``&``, ``|`` and ``~``.

    A subclass defines ``__call__(b, h, q_idx, kv_idx)``.
    """

    @abstractmethod
    def __call__(self, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        """Return whether query `q_idx` of head `h` in batch `b` attends to key `kv_idx`."""

    def __and__(self, other: Any) -> MaskMod:
        return _Both(self, _as_mask(other, "&"))

    def __rand__(self, other: Any) -> MaskMod:
        return _Both(_as_mask(other, "&"), self)

    def __or__(self, other: Any) -> MaskMod:
        return _Either(self, _as_mask(other, "|"))

    def __ror__(self, other: Any) -> MaskMod:
        return _Either(_as_mask(other, "|"), self)

    def __invert__(self) -> MaskMod:
        return _Not(self)


def _value(part: MaskFunction, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    """Return a part's value; while it is traced, refuse here what is no condition.

    Numbers would combine by their bits, and what is no value at all would be refused by the name of
    the combination, not of the part.
    """
    result = part(b, h, q_idx, kv_idx)
    if isinstance(q_idx, Operators):
        result_node(part, "mask", result)
    return result


@dataclass(frozen=True)
class _Plain(MaskMod):
    function: MaskFunction

    def __call__(self, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return _value(self.function, b, h, q_idx, kv_idx)


@dataclass(frozen=True)
class _Both(MaskMod):
    left: MaskFunction
    right: MaskFunction

    def __call__(self, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return _value(self.left, b, h, q_idx, kv_idx) & _value(self.right, b, h, q_idx, kv_idx)


@dataclass(frozen=True)
class _Either(MaskMod):
    left: MaskFunction
    right: MaskFunction

    def __call__(self, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return _value(self.left, b, h, q_idx, kv_idx) | _value(self.right, b, h, q_idx, kv_idx)


@dataclass(frozen=True)
class _Not(MaskMod):
    inner: MaskFunction

    def __call__(self, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        inner = _value(self.inner, b, h, q_idx, kv_idx)
        # Python's ~True is -2
        return ~inner if isinstance(inner, (Traced, torch.Tensor)) else inner ^ True


def mask(function: MaskFunction | str, /, **bindings: Any) -> MaskMod:
    """Make a mask function combinable.

    Args:
        function: ``mask_mod(b, h, q_idx, kv_idx) -> bool``, or its text form.
        bindings: values of the names in a text.

    Returns:
        A mask that is used like the function and also understands ``&``, ``|`` and ``~``.

    Raises:
        ArgumentError: `function` is neither a mask function nor text, or bindings were given to a
            function.
        TextError: the text cannot be read, or the bindings do not fit it.
    """
    if isinstance(function, str):
        return _as_mask(parse(function, **bindings), "mask()")
    if bindings:
        raise ArgumentError(
            name="mask",
            found_value=f"a function with bindings {', '.join(bindings)}",
            expected="bindings with a text mask only",
            rewrite="let the function capture the values: lambda b, h, q_idx, kv_idx: ...",
        )
    return _as_mask(function, "mask()")


# Advice for a score mod where a mask was meant, and for two score mods.
_SCORE_MODS = (
    "attention(query, key, value, score_mod=score_mod, block_mask=mask)\n"
    "and for two score mods f and g a function that calls both:\n"
    "lambda score, b, h, q_idx, kv_idx: g(f(score, b, h, q_idx, kv_idx), b, h, q_idx, kv_idx)"
)


def _as_mask(function: Any, operator: str) -> MaskMod:
    """Return an operand as a MaskMod.

    Raises:
        ArgumentError: it is a score mod, a class, or no function at all.
        ArityError: it is a function that takes the parameters of neither kind of mod.
    """
    if isinstance(function, MaskMod):
        return function
    if isinstance(function, str):
        return mask(function)
    found = describe(function)
    if _is_score_mod(function):
        found, rewrite = "a score mod", _SCORE_MODS
    elif isinstance(function, type):
        found, rewrite = f"the class {function.__name__}", instance_of(function)
    elif callable(function):
        if not isinstance(function, Mod):
            check_arity(function, "mask", 4)
        return _Plain(function)
    elif hasattr(function, "shape"):
        rewrite = "flexfa4.mask(lambda b, h, q_idx, kv_idx: tensor[q_idx, kv_idx])"
    else:
        rewrite = "flexfa4.mask(lambda b, h, q_idx, kv_idx: q_idx >= kv_idx)"
    raise ArgumentError(
        name=f"an operand of {operator}",
        found_value=found,
        expected="mask functions mask_mod(b, h, q_idx, kv_idx) and text masks",
        rewrite=rewrite,
    )


def _is_score_mod(function: Any) -> bool:
    """Whether something can be called as a score mod and not as a mask."""
    if isinstance(function, Mod):
        return function.kind == "score"
    if isinstance(function, type) or not callable(function):
        return False
    return _takes(function, 5) and not _takes(function, 4)


def _takes(function: Any, count: int) -> bool:
    try:
        check_arity(function, "mask", count)
    except ArityError:
        return False
    return True
