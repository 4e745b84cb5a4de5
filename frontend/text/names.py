"""What each name of a text means: fixed names, locals, declarations and bound Python values.

A bound value becomes a declaration when the text first reads it.  This module knows no expressions:
`parser` asks it for the meaning of single names.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

import torch
from lark import Token

from flexfa4.errors import (
    IndexingError,
    NameTakenError,
    ReservedBindingError,
    TextSyntaxError,
    UnknownNameError,
    UnusedBindingError,
)
from flexfa4.frontend import ir
from flexfa4.frontend.ir import Buffer, Node, Scalar
from flexfa4.frontend.text.bindings import Declaration, check, declare
from flexfa4.frontend.text.syntax import Source, Syntax
from flexfa4.frontend.text.vocabulary import (
    FUNCTIONS,
    RESERVED,
    SHAPE_FUNCTIONS,
    VALUES,
    unquote,
)

_MOST_NAMES: Final = 48  # shown in a message
_USAGES: Final = {**{name: f.usage for name, f in FUNCTIONS.items()}, **SHAPE_FUNCTIONS}
_CLOSE: Final = 0.7  # difflib's ratio: slop is close to slope, foo is not close to floor


class Names:
    """The names of one text.

    Attributes:
        bindings: Python values from outside.
        declared: what each captured value is, as declared in the text or read from its binding.
        locals: names that the text has assigned.
    """

    def __init__(self, source: Source, bindings: Mapping[str, object], tree: Syntax) -> None:
        self.bindings = bindings
        self.declared: dict[str, Declaration] = {}
        self.locals: dict[str, Node] = {}
        self._sizes: dict[str, Sequence[int]] = {}
        self._source = source
        self._full_axes = _full_axes(tree)

    def value(self, token: Token) -> Node:
        """Return the value that a bare name stands for.

        Raises:
            UnknownNameError: the name means nothing.
            IndexingError: it is a tensor, which needs indices.
        """
        if (fixed := VALUES.get(token)) is not None:
            return fixed()
        if token in self.locals:
            return self.locals[token]
        captured = self._captured(token)
        if isinstance(captured, bool):
            return ir.const(captured)
        if isinstance(captured, Scalar):
            return ir.scalar(captured)
        if captured.shape:
            raise IndexingError(
                where=self._source.where(token),
                name=f"`{captured.name}`",
                index="nothing",
                expected=index_usage(captured),
                rewrite="give one index for each dimension",
            )
        return ir.load(captured, ())

    def buffer(self, token: Token) -> Buffer:
        """Return the captured tensor of that name.

        Raises:
            UnknownNameError: the name means nothing.
            IndexingError: it is a number.
        """
        if token not in VALUES and token not in self.locals:
            captured = self._captured(token)
            if isinstance(captured, Buffer):
                return captured
        raise IndexingError(
            where=self._source.where(token),
            name=f"`{token}`",
            index="[ ], though it is one number",
            expected="indices on captured tensors",
            rewrite="bind a tensor under that name, or leave the index out",
        )

    def size_now(self, buffer: Buffer, axis: int) -> int | None:
        """Return the size of the tensor bound to a buffer, None where the text declares it.

        A declared size says what a graph needs, and a graph may hold an index that is out of range
        wherever the score is masked.
        """
        sizes = self._sizes.get(buffer.name)
        return None if sizes is None else sizes[axis]

    def assign(self, token: Token, value: Node) -> None:
        """Give a local name its value; a second assignment replaces the first, as in Python."""
        if token.startswith("`") or token in {*RESERVED, *self.declared, *self.bindings}:
            raise NameTakenError(
                where=self._source.where(token),
                name=_shown(token),
                use="assigned",
                rewrite="choose another name",
            )
        self.locals[str(token)] = value

    def declare(self, token: Token, declaration: Buffer | Scalar) -> None:
        """Give a captured name its declaration, which its binding (if any) must match."""
        name = declaration.name
        if token in RESERVED or token in self.locals or name in self.declared:
            raise NameTakenError(
                where=self._source.where(token),
                name=_shown(token),
                use="declared",
                rewrite=f"write the captured name in backticks: `{name}`"
                if token in RESERVED
                else "keep one of the declarations, or choose another name",
            )
        if name in self.bindings:
            check(declaration, self.bindings[name], self._source.where(token))
        self.declared[name] = declaration

    def check_that_bindings_are_read(self) -> None:
        """Refuse bindings that the text has neither read nor declared.

        Raises:
            UnusedBindingError: there is one.
            ReservedBindingError: there is one, under a name that the text has for something else.
        """
        for name in self.bindings:
            if name not in self.declared:
                raise (ReservedBindingError if name in RESERVED else UnusedBindingError)(name=name)

    def unknown_function(self, call: Syntax) -> UnknownNameError | TextSyntaxError:
        """Return the error for a call of something that is no function."""
        (token,) = call.tokens
        values = {*VALUES, *self.locals, *self.bindings, *self.declared}
        if unquote(token) in values:
            return TextSyntaxError(
                where=self._source.where(token),
                problem=f"{_shown(token)} is a value, not a function",
                expected="calls of functions, and tensors indexed with [ ]",
                rewrite=self._instead_of_call(token, call),
            )
        known = [*FUNCTIONS, *SHAPE_FUNCTIONS]
        return self._unknown(token, known, "use operators and these functions")

    def _instead_of_call(self, token: Token, call: Syntax) -> str:
        """Return what to write for a value in place of a call of it."""
        name = unquote(token)
        value = self.declared.get(name, self.bindings.get(name))
        arguments = self._source.between(call, call).removeprefix(token).strip()[1:-1]
        if token not in VALUES and isinstance(value, (Buffer, torch.Tensor)):
            return f"{token}[{arguments}] to index it, or {token}[...] * ({arguments}) to multiply"
        return f"{token} * ({arguments}) to multiply"

    def _captured(self, token: Token) -> Declaration:
        name = unquote(token)
        if token in _USAGES:
            raise TextSyntaxError(
                where=self._source.where(token),
                problem=f"`{token}` is a function, not a value",
                expected=_USAGES[token],
                rewrite=f"call it, or write `{token}` for a captured value of that name",
            )
        if name in self.declared:
            return self.declared[name]
        if name not in self.bindings or token in RESERVED:
            known = [*self.bindings, *self.declared, *self.locals, *VALUES]
            raise self._unknown(token, known, f"bind it: flexfa4.parse(text, {name}=...)")
        found = declare(name, self.bindings[name], self._full_axes.get(name, ()))
        self.declared[name] = found
        self._sizes[name] = getattr(self.bindings[name], "shape", ())
        return found

    def _unknown(self, token: Token, known: Iterable[str], advice: str) -> UnknownNameError:
        """Return the error for a name that is none of `known`: close matches come first."""
        name, candidates = unquote(token), list(dict.fromkeys(known))
        close = difflib.get_close_matches(name, candidates, n=3, cutoff=_CLOSE)
        names = [*close, *(c for c in candidates if c not in close)]
        more = ["..."] * (len(names) > _MOST_NAMES)
        return UnknownNameError(
            where=self._source.where(token),
            name=name,
            names=", ".join(names[:_MOST_NAMES] + more),
            rewrite=f"{close[0]}, if that is what you mean; otherwise {advice}"
            if close
            else advice,
        )


def index_usage(buffer: Buffer) -> str:
    """Return how to index a tensor, for messages."""
    axes = ", ".join("ijklmn"[axis % 6] for axis in range(len(buffer.shape)))
    return f"{buffer.name}[{axes}]" if axes else f"{buffer.name}, a tensor without dimensions"


def _shown(token: Token) -> str:
    return token if token.startswith("`") else f"`{token}`"


def _full_axes(tree: Syntax) -> dict[str, Collection[int]]:
    """Return the axes along which the text reads each tensor as a whole: ``table[h, :]``."""
    axes: dict[str, set[int]] = {}
    for subscript in tree.find_data("subscript"):
        assert isinstance(subscript, Syntax)
        (name,) = subscript.tokens
        full = {axis for axis, part in enumerate(subscript.parts) if part.data == "full"}
        axes.setdefault(unquote(name), set()).update(full)
    return {name: frozenset(found) for name, found in axes.items()}
