"""The words of the text form: fixed names, functions, operators, and how names are quoted.

All of it that concerns ops is derived from the ops table, so a new row needs no change here.  The
printer (`printing`), the grammar (`grammar`) and the reader (`parser`) share this module; it
neither prints nor reads anything itself.
"""

from __future__ import annotations

import keyword
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from flexfa4.frontend import composed
from flexfa4.frontend.ir import (
    BOOL,
    F32,
    I32,
    INPUTS,
    SYMBOLS,
    Buffer,
    Node,
    Scalar,
    const,
    input_,
    symbol,
)
from flexfa4.frontend.ops import BITS2, COMPARE, OPS, Call, Infix, Prefix, apply

# ---- values --------------------------------------------------------------------------------------

ALIASES: Final = {"q_idx": "q", "kv_idx": "kv"}
LITERALS: Final = {"inf": math.inf, "nan": math.nan, "pi": math.pi}  # `-inf` is one constant, too
DTYPES: Final = {dtype.value: dtype for dtype in (F32, I32, BOOL)}

VALUES: Final[dict[str, Callable[[], Node]]] = {
    **{name: partial(input_, name) for name in INPUTS},
    **{alias: partial(input_, name) for alias, name in ALIASES.items()},
    **{name: partial(symbol, name) for name in SYMBOLS},
    **{name: partial(const, value) for name, value in LITERALS.items()},
    "True": partial(const, True),
    "False": partial(const, False),
}

# ---- functions -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Function:
    """A function of the text form.

    Attributes:
        build: makes the node; `keywords` that were left out are None.
        positional: number of operands that are given by position only.
        keywords: operands that follow, each by position or by name; at least one is needed.
        usage: how to call it, for messages.
    """

    build: Callable[..., Node]
    positional: int
    usage: str
    keywords: tuple[str, ...] = ()

    def operands(self, names: list[str | None], args: list[Node]) -> list[Node | None] | None:
        """Return what `build` takes from the arguments of a call, or None where they do not fit.

        `names` holds the keyword of each argument, or None for one given by position.
        """
        split = next((i for i, name in enumerate(names) if name is not None), len(args))
        ordered, optional = args[: self.positional], args[self.positional : split]
        named: dict[str | None, Node] = dict(zip(self.keywords, optional, strict=False))
        by_name = dict(zip(names[split:], args[split:], strict=True))
        fits = (
            len(ordered) == self.positional <= split
            and len(optional) == len(named)
            and len(by_name) == len(args) - split
            and by_name.keys() <= set(self.keywords) - named.keys()
        )
        named |= by_name
        if not fits or (self.keywords and not named):
            return None
        return [*ordered, *(named.get(keyword) for keyword in self.keywords)]


_OPERANDS: Final = {1: "x", 2: "a, b", 3: "condition, a, b"}

FUNCTIONS: Final[dict[str, Function]] = {
    **{
        row.text.name: Function(
            partial(apply, row.name),
            row.dtypes.arity,
            f"{row.text.name}({_OPERANDS[row.dtypes.arity]})",
        )
        for row in OPS.values()
        if isinstance(row.text, Call)
    },
    "clamp": Function(composed.clamp, 1, "clamp(x, lo, hi) or clamp(x, lo=lo) or clamp(x, hi=hi)",
                      ("lo", "hi")),
    "relu": Function(composed.relu, 1, "relu(x)"),
    "square": Function(composed.square, 1, "square(x)"),
    "isnan": Function(composed.isnan, 1, "isnan(x)"),
}  # fmt: skip

# These take a captured tensor's name or a plain number instead of a value.
SHAPE_FUNCTIONS: Final = {"size": "size(table, axis)", "iota": "iota(length)"}

# ---- operators -----------------------------------------------------------------------------------

INFIX: Final = {row.text.symbol: row for row in OPS.values() if isinstance(row.text, Infix)}
PREFIX: Final = {row.text.symbol: row for row in OPS.values() if isinstance(row.text, Prefix)}
PRECEDENCE: Final = {
    row.name: row.text.precedence
    for row in OPS.values()
    if isinstance(row.text, (Infix, Prefix))
}  # fmt: skip

(COMPARISON,) = {PRECEDENCE[row.name] for row in INFIX.values() if row.dtypes is COMPARE}
BITWISE: Final = frozenset(symbol for symbol, row in INFIX.items() if row.dtypes is BITS2)
TIGHTEST_BITWISE: Final = max(PRECEDENCE[INFIX[symbol].name] for symbol in BITWISE)
(SIGN,) = {PRECEDENCE[row.name] for row in PREFIX.values()}

# ---- names ---------------------------------------------------------------------------------------

RESERVED: Final = frozenset({*VALUES, *FUNCTIONS, *SHAPE_FUNCTIONS, *keyword.kwlist})

PLAIN_NAME: Final = r"[^\W\d]\w*"
QUOTED_NAME: Final = (
    r"`(?:[^`\\\n]|\\(?:[\\nrt]|x[0-9a-f]{2}|u[0-9a-f]{4}|U00(?:0[0-9a-f]|10)[0-9a-f]{4}))*`"
)


def quote(name: str) -> str:
    """Return how a captured value is written: in backticks where its bare name means another.

    Captures may be called anything (``cfg['slope']``, or ``b``, the batch index of the language).
    """
    if re.fullmatch(PLAIN_NAME, name) and name not in RESERVED:
        return name
    return "`" + name.encode("unicode_escape").decode("ascii").replace("`", r"\x60") + "`"


def unquote(word: str) -> str:
    """Return the name behind a word of the text, in backticks or not."""
    if not word.startswith("`"):
        return str(word)  # not a parser's token
    return word[1:-1].encode("ascii", "backslashreplace").decode("unicode_escape")


def type_text(declaration: Buffer | Scalar) -> str:
    """Return how the type of a captured value is written: ``i32``, ``f32[_, 64]``."""
    if isinstance(declaration, Scalar):
        return declaration.dtype.value
    axes = ", ".join("_" if n is None else str(n) for n in declaration.shape)
    return f"{declaration.dtype.value}[{axes}]"
