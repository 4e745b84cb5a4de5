"""Mods as values: ``&``, ``|`` and ``~`` between masks, and score mods one after the other.

A combination is a mod of its parts.  The compiler knows these classes and wraps the parts where a
combination is captured (`KnownMod`), so none of the frames here is taken for the user's.  Which
operands people may give, and the messages for others, are here as well; the public functions are in
`flexfa4.combine`.  Nothing is evaluated.
"""

from __future__ import annotations

import functools
import inspect
import operator
import types
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from flexfa4.errors import ArgumentError, ArityError, ModTruthError, describe
from flexfa4.frontend.tracing import locate
from flexfa4.frontend.tracing.contract import Kind, check_arity, result_node
from flexfa4.frontend.tracing.proxies import Operators, Traced
from flexfa4.frontend.tracing.sources import Attr, Item, Source

if TYPE_CHECKING:
    from flexfa4.frontend.tracing.captures import Session
    from flexfa4.frontend.tracing.forms import MaskLike

Function = Callable[..., Any]


def written(function: Any) -> str:
    """Return how a mod's part reads in source: a function by its name, other things by repr."""
    if isinstance(function, functools.partial):
        given = [*map(repr, function.args), *(f"{k}={v!r}" for k, v in function.keywords.items())]
        return f"partial({', '.join([written(function.func), *given])})"
    if isinstance(function, (types.FunctionType, types.MethodType)):
        return function.__name__
    return repr(function)


class KnownMod(ABC):
    """A mod that the compiler knows, and that says itself how another mod captures it."""

    @abstractmethod
    def captured(self, session: Session, source: Source, parents: Any) -> Function:
        """Return the callable that stands for this mod inside a mod that captures it."""


# ---- masks ---------------------------------------------------------------------------------------


class Combinable:
    """What ``&``, ``|`` and ``~`` may stand beside; they refuse what is no mask.

    Python's ``and``, ``or`` and ``not`` cannot be given a meaning, and are errors.
    """

    def __and__(self, other: MaskLike) -> MaskMod:
        return _Pair("&", as_mask(self, "&"), as_mask(other, "&"))

    def __rand__(self, other: MaskLike) -> MaskMod:
        return _Pair("&", as_mask(other, "&"), as_mask(self, "&"))

    def __or__(self, other: MaskLike) -> MaskMod:
        return _Pair("|", as_mask(self, "|"), as_mask(other, "|"))

    def __ror__(self, other: MaskLike) -> MaskMod:
        return _Pair("|", as_mask(other, "|"), as_mask(self, "|"))

    def __invert__(self) -> MaskMod:
        return _Not(as_mask(self, "~"))

    def __bool__(self) -> bool:
        # by Python's rule every mod is true: `a and b` would be b alone
        kind = _kind_of(self) or "mask"
        request = locate.mod_truth_request(kind)
        raise ModTruthError(
            where=request.where,
            construct=request.construct,
            expression=request.expression,
            kind={"mask": "mask", "score": "score mod"}[kind],
            rewrite=request.rewrite,
        )


class Inside(Combinable):
    """What a mod sees of another that it captures: called and combined as that one is."""

    def __init__(self, function: Function, kind: Kind) -> None:
        self._function, self.kind = function, kind

    def __call__(self, *args: Any) -> Any:
        """Return the result of the mod that is captured."""
        return self._function(*args)


class MaskMod(Combinable, ABC):
    """Base of masks that combine with ``&``, ``|`` and ``~``.

    A subclass defines ``__call__(b, h, q_idx, kv_idx)``.
    """

    @abstractmethod
    def __call__(self, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        """Return whether query `q_idx` of head `h` in batch `b` attends to key `kv_idx`."""


def _condition(part: Function, function: Function, args: tuple[Any, ...]) -> Any:
    """Return a part's value; while it is traced, refuse here what is no condition.

    Numbers would combine by their bits, and what is no value at all would be refused by the name of
    the combination, not of the part.

    Args:
        part: the part, whose name messages use.
        function: what stands for it.
        args: b, h, q_idx, kv_idx.
    """
    result = function(*args)
    if isinstance(args[-1], Operators):
        result_node(part, "mask", result)
    return result


@dataclass(frozen=True, repr=False)
class _Plain(MaskMod, KnownMod):
    function: Function

    def __repr__(self) -> str:
        return f"mask({written(self.function)})"

    def __call__(self, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return _condition(self.function, self.function, (b, h, q_idx, kv_idx))

    def captured(self, session: Session, source: Source, parents: Any) -> Function:
        session.require_type(source, self)
        function = session.wrap(self.function, Attr(source, "function"), parents)
        return lambda *args: _condition(self.function, function, args)


_PAIRS: dict[str, Function] = {"&": operator.and_, "|": operator.or_}


@dataclass(frozen=True, repr=False)
class _Pair(MaskMod, KnownMod):
    symbol: str
    left: MaskMod
    right: MaskMod

    def __repr__(self) -> str:
        left, right = (
            repr(part) if _tightness(part) >= _tightness(self) + is_right else f"({part!r})"
            for is_right, part in enumerate((self.left, self.right))
        )
        return f"{left} {self.symbol} {right}"

    def __call__(self, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        args = (b, h, q_idx, kv_idx)
        left = _condition(self.left, self.left, args)
        return _PAIRS[self.symbol](left, _condition(self.right, self.right, args))

    def captured(self, session: Session, source: Source, parents: Any) -> Function:
        session.require_type(source, self)
        symbol = session.wrap(self.symbol, Attr(source, "symbol"))
        left = session.wrap(self.left, Attr(source, "left"), parents)
        right = session.wrap(self.right, Attr(source, "right"), parents)

        def pair(*args: Any) -> Any:
            first = _condition(self.left, left, args)
            return _PAIRS[symbol](first, _condition(self.right, right, args))

        return pair


def _tightness(part: MaskMod) -> int:
    """Return how tightly the operator of a mask binds, as in Python."""
    return {"|": 0, "&": 1}[part.symbol] if isinstance(part, _Pair) else 2


@dataclass(frozen=True, repr=False)
class _Not(MaskMod, KnownMod):
    inner: MaskMod

    def __repr__(self) -> str:
        return f"~({self.inner!r})" if isinstance(self.inner, _Pair) else f"~{self.inner!r}"

    def __call__(self, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return _inverse(_condition(self.inner, self.inner, (b, h, q_idx, kv_idx)))

    def captured(self, session: Session, source: Source, parents: Any) -> Function:
        session.require_type(source, self)
        inner = session.wrap(self.inner, Attr(source, "inner"), parents)
        return lambda *args: _inverse(_condition(self.inner, inner, args))


def _inverse(value: Any) -> Any:
    # Python's ~True is -2
    return ~value if isinstance(value, (Traced, torch.Tensor)) else value ^ True


def as_mask(function: Any, operator: str) -> MaskMod:
    """Return an operand as a MaskMod.

    Args:
        function: a mask of any form.
        operator: of what it is an operand, for messages.

    Raises:
        ArgumentError: it is a score mod, a class, or no function at all.
        ArityError: it is a function that takes the parameters of neither kind of mod.
        TextError: it is a text that cannot be read.
    """
    if isinstance(function, MaskMod):
        return function
    if _unchecked(function):
        return _Plain(function)
    function = _parsed(function)
    found = describe(function)
    if _kind_of(function) == "score":
        found, rewrite = "a score mod", _SCORE_MODS
    elif isinstance(function, type):
        found, rewrite = f"the class {function.__name__}", instance_of(function)
    elif callable(function):
        if not isinstance(function, KnownMod):
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


# Advice for a score mod where a mask was meant, and for several score mods.
_SCORE_MODS = (
    "attention(query, key, value, score_mod=score_mod, block_mask=mask)\n"
    "and for score mods one after the other: flexfa4.compose(score_mod, another)"
)


# ---- score mods ----------------------------------------------------------------------------------


class ScoreMod(Combinable, ABC):
    """Base of score mods; those of `flexfa4.variants` derive from it.

    A subclass defines ``__call__(score, b, h, q_idx, kv_idx)``.  Score mods follow one another by
    `flexfa4.compose`; ``&``, ``|`` and ``~`` are for masks and refuse them with that advice.
    """

    @abstractmethod
    def __call__(self, score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        """Return the new score of query `q_idx` of head `h` in batch `b` for key `kv_idx`."""


@dataclass(frozen=True, repr=False)
class _Sequence(ScoreMod, KnownMod):
    parts: tuple[Function, ...]

    def __repr__(self) -> str:
        return f"compose({', '.join(map(written, self.parts))})"

    def __call__(self, score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return _in_turn(self.parts, self.parts, score, (b, h, q_idx, kv_idx))

    def captured(self, session: Session, source: Source, parents: Any) -> Function:
        session.require_type(source, self)
        count, path = len(self.parts), Attr(source, "parts")
        session.program.check(path, lambda parts: len(parts) == count, "length")
        functions = [session.wrap(p, Item(path, i), parents) for i, p in enumerate(self.parts)]
        return lambda score, *args: _in_turn(self.parts, functions, score, args)


def _in_turn(parts: Any, functions: Any, score: Any, args: tuple[Any, ...]) -> Any:
    for part, function in zip(parts, functions, strict=True):
        score = function(score, *args)
        if isinstance(args[-1], Operators):
            score = Traced(result_node(part, "score", score))
    return score


def in_sequence(score_mods: tuple[Any, ...]) -> ScoreMod:
    """Return the score mod that applies score mods in their order; see `flexfa4.compose`."""
    parts: list[Function] = []
    for score_mod in map(_parsed, score_mods):
        parts += score_mod.parts if isinstance(score_mod, _Sequence) else [_as_part(score_mod)]
    if not parts:
        raise ArgumentError(
            name="compose()",
            found_value="called without score mods",
            expected="one score mod or more, in the order in which they are applied",
            rewrite="flexfa4.compose(score_mod, another)",
        )
    return _Sequence(tuple(parts))


def _as_part(function: Any) -> Function:
    if _unchecked(function):
        unchecked: Function = function
        return unchecked
    found = describe(function)
    if _kind_of(function) == "mask":
        found, rewrite = "a mask", "attention(query, key, value, block_mask=mask)"
    elif isinstance(function, type):
        found, rewrite = f"the class {function.__name__}", instance_of(function)
    elif callable(function):
        if not isinstance(function, KnownMod):
            check_arity(function, "score", 5)
        checked: Function = function
        return checked
    else:
        rewrite = "flexfa4.compose(lambda score, b, h, q_idx, kv_idx: score + bias[q_idx, kv_idx])"
    raise ArgumentError(
        name="a part of compose()",
        found_value=found,
        expected="score mods score_mod(score, b, h, q_idx, kv_idx) and their text form",
        rewrite=rewrite,
    )


# ---- what an operand is --------------------------------------------------------------------------


def _unchecked(function: Any) -> bool:
    """Return whether this is a function of the user's while Dynamo traces: it reads no sources."""
    known = (str, type, MaskMod, ScoreMod, KnownMod)
    return (
        torch.compiler.is_dynamo_compiling()
        and callable(function)
        and not isinstance(function, known)
    )


def inside(mod: KnownMod, function: Function) -> Inside:
    """Return what a mod sees of one that it captures, of what `captured` returned."""
    return Inside(function, _kind_of(mod) or "mask")


def _parsed(function: Any) -> Any:
    from flexfa4.frontend.tracing.trace import parse  # which is made of what is defined here

    return parse(function) if isinstance(function, str) else function


def _kind_of(function: Any) -> Kind | None:
    """Return which kind of mod something can be called as, None where that is open."""
    if isinstance(function, MaskMod):
        return "mask"
    if isinstance(function, ScoreMod):
        return "score"
    if isinstance(function, (Inside, KnownMod)):
        kind: Kind = function.kind  # type: ignore[union-attr]  # a `trace.Mod`
        return kind
    if isinstance(function, type) or not callable(function):
        return None
    as_score, as_mask = _takes(function, 5), _takes(function, 4)
    return None if as_score == as_mask else "score" if as_score else "mask"


def _takes(function: Any, count: int) -> bool:
    try:
        check_arity(function, "mask", count)
    except ArityError:
        return False
    return True


def instance_of(kind: type) -> str:
    """Return how to make an instance of a class, such as ``SlidingWindow(window=...)``."""
    try:
        names = list(inspect.signature(kind).parameters)
    except ValueError:  # a builtin class tells nothing about its parameters
        names = []
    return f"an instance: {kind.__name__}({', '.join(f'{name}=...' for name in names)})"
