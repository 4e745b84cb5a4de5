"""The grammar of the text form, and text -> syntax tree.

Text is read in three steps: lark's lexer cuts it into tokens; `_Statements` drops the line ends
inside brackets, checks the brackets and refuses keywords; lark's LALR parser builds the tree.  No
step recurses, so no text can exhaust Python's stack.  The infix and prefix levels of the grammar
are generated from the ops table.

The tree says nothing about names, dtypes or shapes: that is `parser`.  Only `parser`
imports this module, since it loads lark.
"""

from __future__ import annotations

import functools
import keyword
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import lark
from lark import Token
from lark.exceptions import UnexpectedCharacters, UnexpectedToken

from flexfa4.errors import AmbiguousOperatorError, TextSyntaxError, TextTooLongError
from flexfa4.frontend.text.syntax import Source, Syntax
from flexfa4.frontend.text.vocabulary import (
    BITWISE,
    COMPARISON,
    INFIX,
    PLAIN_NAME,
    PRECEDENCE,
    PREFIX,
    QUOTED_NAME,
    SIGN,
)

MAX_CHARACTERS: Final = 200_000  # about 3 s to read
MAX_NESTING: Final = 200  # as in Python's own tokenizer

_GRAMMAR: Final = r"""
start: statement (_SEPARATOR statement)*
?statement: test
    | NAME "=" test                                     -> assignment
    | NAME ":" NAME                                     -> scalar_declaration
    | NAME ":" NAME "[" _items? "]"                     -> buffer_declaration

?test: or_test | or_test _IF or_test _ELSE test         -> choice
?or_test: and_test | or_test _OR and_test               -> disjunction
?and_test: not_test | and_test _AND not_test            -> conjunction
?not_test: {loosest} | _NOT not_test                    -> negation
{levels}
?atom: INTEGER                                          -> integer
    | FLOAT                                             -> floating
    | NAME                                              -> reference
    | NAME "(" _items? ")"                              -> call
    | NAME "[" _items "]"                               -> subscript
    | "(" test ")"                                      -> group

_items: item ("," item)* ","?
?item: test
    | NAME "=" test                                     -> keyword
    | ":"                                               -> full

%declare _IF _ELSE _OR _AND _NOT {operators}
OPERATOR: /{symbols}/
NAME: /{plain}|{quoted}/
INTEGER: /0[xX][0-9a-fA-F_]+|0[oO][0-7_]+|0[bB][01_]+|[0-9][0-9_]*/
FLOAT.1: /([0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)([eE][+-]?[0-9]+)?|[0-9][0-9_]*[eE][+-]?[0-9]+/
_SEPARATOR: /;|\n/
%ignore /([ \t\f]|\\\n)+|#[^\n]*/
"""

_WORDS: Final = {"if": "_IF", "else": "_ELSE", "or": "_OR", "and": "_AND", "not": "_NOT"}
_CLOSING: Final = {"(": ")", "[": "]"}
_ADVICE_ON_KEYWORDS: Final = {
    "return": "leave `return` out: the last expression is the result",
    "is": "compare with ==",
    "in": "compare with ==, and join comparisons with `or`",
    "lambda": "write only the body, with the names score, b, h, q_idx, kv_idx",
    "def": "write only the body, with the names score, b, h, q_idx, kv_idx",
    "None": "use a number, or leave the operand out",
}
_KEYWORDS: Final = frozenset(keyword.kwlist) - {*_WORDS, "True", "False"}


def _operator(symbol: str) -> str:
    """Return the terminal of an operator: one for each pair of infix and prefix precedence."""
    levels = (PRECEDENCE[rows[symbol].name] if symbol in rows else 0 for rows in (INFIX, PREFIX))
    return "OPERATOR_{}_{}".format(*levels)


_OPERATORS: Final = {symbol: _operator(symbol) for symbol in (*INFIX, *PREFIX)}


def grammar() -> str:
    """Return the grammar, with one rule for each precedence of the ops table."""
    precedences = sorted(set(PRECEDENCE.values()))
    names = [f"level{p}" for p in precedences] + ["atom"]
    rules = []
    for p, own, tighter in zip(precedences, names, names[1:], strict=False):
        infix, prefix = (
            "|".join(sorted({_OPERATORS[s] for s in rows if PRECEDENCE[rows[s].name] == p}))
            for rows in (INFIX, PREFIX)
        )
        rules.append(f"?{own}: {tighter}")
        if prefix:
            rules.append(f"    | ({prefix}) {own} -> prefix")
        if infix and p == COMPARISON:  # a < b < c is one comparison of three
            rules.append(f"    | {tighter} (({infix}) {tighter})+ -> comparison")
        elif infix and p > SIGN:  # a ** -b ** c is a ** (-(b ** c))
            rules.append(f"    | {tighter} ({infix}) level{SIGN} -> infix")
        elif infix:
            rules.append(f"    | {own} ({infix}) {tighter} -> infix")
    symbols = sorted(_OPERATORS, key=len, reverse=True)  # the longest first: ** before *
    return _GRAMMAR.format(
        loosest=names[0],
        levels="\n".join(rules),
        operators=" ".join(sorted(set(_OPERATORS.values()))),
        symbols="|".join(map(re.escape, symbols)).replace("/", r"\/"),
        plain=PLAIN_NAME,
        quoted=QUOTED_NAME,
    )


@dataclass(eq=False)  # exceptions are hashable
class _Refusal(Exception):  # caught in this module, which knows the source
    """A token that is refused before the parser sees it."""

    token: Token
    problem: str
    expected: str
    rewrite: str


class _Statements:
    """From lark's tokens to those of the grammar; lark calls this its postlex step."""

    always_accept = ("OPERATOR",)

    def process(self, tokens: Iterable[Token]) -> Iterator[Token]:
        """Return the tokens, with one separator between statements and none inside brackets."""
        # all before the first one is parsed: a bracket that is never closed is the better message
        return iter(list(self._filtered(tokens)))

    def _filtered(self, tokens: Iterable[Token]) -> Iterator[Token]:
        opened: list[Token] = []
        separator: Token | None = None
        started = False
        for token in tokens:
            if token.type == "_SEPARATOR":
                if opened and token == ";":
                    raise _never_closed(opened[-1])
                separator = None if opened else token
                continue
            if separator is not None and started:
                yield separator
            separator, started = None, True
            _check_brackets(token, opened)
            yield _retyped(token)
        if opened:
            raise _never_closed(opened[-1])


def _retyped(token: Token) -> Token:
    if token in _KEYWORDS:
        raise _Refusal(
            token,
            f"the keyword `{token}` has no meaning in a text",
            "expressions, `name = expression`, and/or/not, `a if condition else b`",
            _ADVICE_ON_KEYWORDS.get(token, "write it as one expression, or pass a function"),
        )
    kind = _OPERATORS.get(token) or _WORDS.get(token)
    return token if kind is None else token.update(type=kind)


def _check_brackets(token: Token, opened: list[Token]) -> None:
    if token in _CLOSING:
        opened.append(token)
        if len(opened) > MAX_NESTING:
            raise _Refusal(
                token,
                "brackets are nested too deep",
                f"{MAX_NESTING} levels",
                "name parts of the expression in lines of their own: t = ...",
            )
    elif token in _CLOSING.values() and (not opened or _CLOSING[opened.pop()] != token):
        raise _Refusal(
            token,
            f"`{token}` closes nothing",
            "brackets in pairs: ( ) and [ ]",
            "remove it, or open it before",
        )


def _never_closed(token: Token) -> _Refusal:
    return _Refusal(
        token,
        f"`{token}` is never closed",
        "brackets in pairs: ( ) and [ ]",
        f"add a `{_CLOSING[token]}`",
    )


@functools.cache
def _parser() -> lark.Lark:
    """Return the parser, built once (25 to 35 ms)."""
    return lark.Lark(
        grammar(),
        parser="lalr",
        lexer="basic",
        postlex=_Statements(),
        tree_class=Syntax,
        propagate_positions=True,
        maybe_placeholders=False,
    )


def read_tree(source: Source) -> Syntax:
    """Return the syntax tree of a text, with the start and end of each part in its `meta`.

    Raises:
        TextTooLongError: the text is too long.
        AmbiguousOperatorError: ``&``, ``|`` or ``^`` stands bare beside a comparison.
        TextSyntaxError: the grammar refuses it.
    """
    text = source.text
    if len(text) > MAX_CHARACTERS:
        raise TextTooLongError(length=len(text), limit=MAX_CHARACTERS)
    try:
        tree = _parser().parse(text)
    except _Refusal as e:
        raise TextSyntaxError(
            where=source.where(e.token),
            problem=e.problem,
            expected=e.expected,
            rewrite=e.rewrite,
        ) from None
    except UnexpectedCharacters as e:
        raise _unexpected_character(source, e.line, e.column) from None
    except UnexpectedToken as e:
        raise _unexpected_token(source, e.token, set(e.expected)) from None
    assert isinstance(tree, Syntax)
    for comparison in tree.find_data("comparison"):
        assert isinstance(comparison, Syntax)
        _check_bitwise_operands(source, comparison)
    return tree


# ---- & | ^ beside a comparison -------------------------------------------------------------------


def _check_bitwise_operands(source: Source, comparison: Syntax) -> None:
    """Refuse `a < b & c < d`, which Python reads as `a < (b & c) < d`, and show both readings."""
    bare = [part for part in comparison.parts if _is_bitwise(part)]
    if not bare:
        return
    (sign,) = bare[0].tokens
    as_python = " ".join(
        f"({source.between(item, item)})" if item in bare else source.between(item, item)
        for item in comparison.items
    )
    raise AmbiguousOperatorError(
        where=source.where(sign),
        operator=str(sign),
        rewrite=_comparisons_first(source, comparison),
        as_python=as_python,
    )


def _is_bitwise(item: Syntax | Token) -> bool:
    return isinstance(item, Syntax) and item.data == "infix" and item.tokens[0] in BITWISE


def _comparisons_first(source: Source, comparison: Syntax) -> str:
    """Return the comparison's text with its bare & | ^ moved outside it."""
    runs: list[list[Syntax | Token]] = [[]]  # what is compared, between the bitwise signs
    signs: list[Token] = []
    rest: list[Syntax | Token] = comparison.items[::-1]
    while rest:
        item = rest.pop()
        if _is_bitwise(item):
            assert isinstance(item, Syntax)
            rest.extend(item.items[::-1])
        elif isinstance(item, Token) and item in BITWISE:
            signs.append(item)
            runs.append([])
        else:
            runs[-1].append(item)
    texts = [source.between(run[0], run[-1]) for run in runs]
    first, *others = (f"({t})" if len(r) > 1 else t for r, t in zip(runs, texts, strict=True))
    return " ".join([first, *(f"{s} {t}" for s, t in zip(signs, others, strict=True))])


# ---- messages ------------------------------------------------------------------------------------

_EXPRESSIONS: Final = "numbers, names, operators, function calls and table[index]"

# what the lexer stopped at; what that is; what to write instead
_CHARACTERS: Final = (
    (r"""['"]""", "a string", "use numbers and names only"),
    (r"\.", "attribute access", "call functions by their bare names: exp(x), not torch.exp(x)"),
    (r"[{}]", "a curly bracket", "group with ( ) and index with [ ]"),
    (r"!", "`!`", "write `not x` or `~x`, and `!=` to compare"),
    (r"`", "a backtick without a name", "close the name with a second backtick on the same line"),
    (r"[^\x00-\x7f]", "a character outside ASCII", "use ASCII operators"),
    (r"", "an unknown character", "remove it"),
)

# What stands before a token in the wrong place, the text from it on, and what was meant.
_MEANT: Final = tuple(
    (re.compile(before + r"\Z"), re.compile(after), advice)
    for before, after, advice in (
        (r"&", r"&", "write `and`"),
        (r"\|", r"\|", "write `or`"),
        (r"", r"\|", "write abs(...) for an absolute value"),
        (r"[<>=!]\s+", r"=", "write <=, >=, == and != without a space inside"),
        (r"=\s*", r">", "write >= for at least"),
        (r"", r"=\s*>", "write >= for at least"),
        (r"=\s*", r"<", "write <= for at most"),
        (r"", r"=\s*<", "write <= for at most"),
        (r"<", r">", "write != for unequal"),
    )
)  # fmt: skip

_ADVICE_ON_TOKENS: Final = {
    "NAME": "write an operator between two values",
    "INTEGER": "write an operator between two values",
    "FLOAT": "write an operator between two values",
    "EQUAL": "write == to compare; `name = expression` is a statement of its own",
    "LSQB": "index a captured tensor by its name, once: table[i, j]",
    "LPAR": "call a function by its name; write * to multiply",
    "COLON": "write `:` alone for a whole axis: table[h, :]",
    "COMMA": "give one expression as the result",
    "_SEPARATOR": "put an expression over several lines in parentheses",
    "_NOT": "put the negation in parentheses: (not x)",
    "_IF": "write `a if condition else b`",
    "_ELSE": "write `a if condition else b`",
    "$END": "complete the expression, for example: score + 1.0",
}

# what cannot begin a statement, and in a new line goes on with the one before
_CONTINUING: Final = frozenset({"_AND", "_OR", "_IF", "_ELSE", *_OPERATORS.values()})


def _unexpected_character(source: Source, line: int, column: int) -> TextSyntaxError:
    lines = source.text.split("\n")
    position = sum(len(earlier) + 1 for earlier in lines[: line - 1]) + column - 1
    rest = source.text[position : position + 1]
    what, advice = next((w, a) for pattern, w, a in _CHARACTERS if re.match(pattern, rest))
    return TextSyntaxError(
        where=source.place(position, position + 1),
        problem=f"{what} ({rest!r}) has no meaning in a text",
        expected=_EXPRESSIONS,
        rewrite=advice,
    )


def _unexpected_token(source: Source, token: Token, expected: set[str]) -> TextSyntaxError:
    text = source.text
    if token.type == "$END":
        found, start = "the end of the text", token.end_pos or 0  # of the token before it
    elif token.type == "_SEPARATOR":
        found, start = "the end of the statement", token.start_pos or 0
    else:
        found, start = f"`{token}`", token.start_pos or 0
    wanted = "a value" if "NAME" in expected else "an operator, or the end of the expression"
    advice = _ADVICE_ON_TOKENS.get(token.type, "check the operators on both sides of it")
    if token.type in _CONTINUING and not text[:start].rpartition("\n")[2].strip() and start:
        advice = _ADVICE_ON_TOKENS["_SEPARATOR"]
    if start == 0 and token.type == "$END":
        found = "an empty text"
    return TextSyntaxError(
        where=source.place(start, start + len(token)) if text.strip() else None,
        problem=f"{found} where {wanted} was expected",
        expected=_EXPRESSIONS,
        rewrite=_meant(text[:start], text[start:]) or advice,
    )


def _meant(before: str, after: str) -> str:
    """Return what to write for something that has another meaning elsewhere, "" if unknown."""
    rows = (advice for b, a, advice in _MEANT if b.search(before) and a.match(after))
    return next(rows, "")
