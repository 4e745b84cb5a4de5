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

from flexfa4.errors import ArgumentError, describe
from flexfa4.frontend.tracing.contract import result_node
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


@dataclass(frozen=True)
class _Plain(MaskMod):
    function: MaskFunction

    def __call__(self, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        result = self.function(b, h, q_idx, kv_idx)
        if isinstance(result, Operators):  # numbers would combine by their bits: refuse them here
            result_node(self.function, "mask", result)
        return result


@dataclass(frozen=True)
class _Both(MaskMod):
    left: MaskFunction
    right: MaskFunction

    def __call__(self, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return self.left(b, h, q_idx, kv_idx) & self.right(b, h, q_idx, kv_idx)


@dataclass(frozen=True)
class _Either(MaskMod):
    left: MaskFunction
    right: MaskFunction

    def __call__(self, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return self.left(b, h, q_idx, kv_idx) | self.right(b, h, q_idx, kv_idx)


@dataclass(frozen=True)
class _Not(MaskMod):
    inner: MaskFunction

    def __call__(self, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        inner = self.inner(b, h, q_idx, kv_idx)
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


def _as_mask(function: Any, operator: str) -> MaskMod:
    if isinstance(function, MaskMod):
        return function
    if isinstance(function, str):
        return mask(function)
    is_score_mod = isinstance(function, Mod) and function.kind != "mask"
    if is_score_mod or not callable(function):
        raise ArgumentError(
            name=f"an operand of {operator}",
            found_value="a score mod" if is_score_mod else describe(function),
            expected="mask functions mask_mod(b, h, q_idx, kv_idx) and text masks",
            rewrite="flexfa4.mask(lambda b, h, q_idx, kv_idx: tensor[q_idx, kv_idx])"
            if hasattr(function, "shape")
            else "flexfa4.mask(lambda b, h, q_idx, kv_idx: q_idx >= kv_idx)",
        )
    return _Plain(function)
