"""PTX text to tokens, and a cursor over them.

An opcode with its modifiers (``ld.shared.v4.f32``) and a special register with its axis
(``%tid.x``) are one token each, for what they mean is looked up as a whole.

What this module deliberately does not do: know any opcode, directive or type.
"""

from __future__ import annotations

import bisect
import re
from dataclasses import dataclass, field

from flexfa4.emulator.errors import Place
from flexfa4.emulator.ptx.errors import (
    CharacterError,
    MissingMarkError,
    PtxError,
    SyntaxMistakeError,
    TruncatedError,
)

WORD, DIRECTIVE, NUMBER, STRING, MARK, END = "word", "directive", "number", "string", "mark", "end"

_TOKEN = re.compile(
    r"""
    (?P<space> [ \t\r\n\f]+ | //[^\n]* | /\*(?s:.*?)\*/ )
  | (?P<word>
        (?: [A-Za-z][A-Za-z0-9_$]* | [_$%][A-Za-z0-9_$]* )     # a name
        (?: \.[A-Za-z0-9_]+ (?: ::[A-Za-z0-9_]+ )* )*          # its modifiers or its axis
        (?: ::[A-Za-z0-9_]+ )*
    )
  | (?P<directive> \.[A-Za-z_][A-Za-z0-9_]* (?: ::[A-Za-z0-9_]+ )* )
  | (?P<number>
        0[fF][0-9a-fA-F]{8}\b | 0[dD][0-9a-fA-F]{16}\b         # bits of a float
      | 0[xX][0-9a-fA-F]+U?\b | 0[bB][01]+U?\b
      | [0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)? | [0-9]+U?\b
    )
  | (?P<string> "[^"\n]*" )
  | (?P<mark> [{}()\[\],;:@!|<>=+-] )
  | (?P<other> . )
    """,
    re.VERBOSE | re.ASCII,
)


@dataclass(frozen=True, slots=True)
class Token:
    """A token: its kind, its text, and its offset in the whole text."""

    kind: str
    text: str
    offset: int


@dataclass(frozen=True)
class Source:
    """PTX text that can say where an offset lies."""

    text: str
    starts: list[int] = field(repr=False)

    def line(self, offset: int) -> int:
        """Return the number of the line that holds an offset, counted from 1."""
        return bisect.bisect_right(self.starts, offset)

    def place(self, offset: int, width: int = 1) -> Place:
        """Return the place of an offset, for a message."""
        line = self.line(offset)
        start = self.starts[line - 1]
        end = self.text.find("\n", start)
        text = self.text[start : end if end >= 0 else len(self.text)]
        return Place(line, text, offset - start, min(width, max(len(text) - offset + start, 1)))


def source_of(text: str) -> Source:
    """Index the lines of a text."""
    return Source(text, [0, *(match.end() for match in re.finditer("\n", text))])


def scan(source: Source) -> list[Token]:
    """Return the tokens of a text; the last one is of kind ``end``.

    Raises:
        CharacterError: a character starts no token.
        TruncatedError: a comment or string is not closed.
    """
    tokens = []
    for match in _TOKEN.finditer(source.text):
        kind = match.lastgroup
        if kind == "space":
            continue
        if kind == "other" or kind is None:
            raise _no_token(source, match.start())
        tokens.append(Token(kind, match.group(), match.start()))
    tokens.append(Token(END, "", len(source.text)))
    return tokens


def _no_token(source: Source, offset: int) -> CharacterError | TruncatedError:
    where = source.place(offset)
    for opening, construct, closing in (("/*", "a comment", "*/"), ('"', "a string", '"')):
        if source.text.startswith(opening, offset):
            return TruncatedError(where=where, construct=construct, expected=f"a closing {closing}")
    return CharacterError(where=where, character=source.text[offset])


class Cursor:
    """A position in the tokens of a text, and the errors that a wrong token makes."""

    def __init__(self, text: str) -> None:
        self.source = source_of(text)
        self.tokens = scan(self.source)
        self.position = 0

    @property
    def token(self) -> Token:
        """The token that comes next."""
        return self.tokens[self.position]

    def advance(self) -> Token:
        """Return the next token and step over it."""
        token = self.tokens[self.position]
        self.position += 1
        return token

    def accept(self, text: str) -> bool:
        """Step over the next token if it is this text, and say whether it was."""
        if self.tokens[self.position].text != text:
            return False
        self.position += 1
        return True

    def expect(self, text: str, construct: str) -> Token:
        """Step over the next token, which has to be this text."""
        token = self.tokens[self.position]
        if token.text != text:
            raise self.mistake(construct, f"`{text}`")
        self.position += 1
        return token

    def expect_kind(self, kind: str, construct: str, expected: str) -> Token:
        """Step over the next token, which has to be of this kind."""
        token = self.tokens[self.position]
        if token.kind != kind:
            raise self.mistake(construct, expected)
        self.position += 1
        return token

    def mistake(self, construct: str, expected: str) -> PtxError:
        """Return the error that the next token makes inside a construct."""
        token, last = self.token, self.tokens[max(self.position - 1, 0)]
        if token.kind == END:
            where = self.place(last)
            return TruncatedError(where=where, construct=construct, expected=expected)
        if "`;`" in expected and self.line(last) < self.line(token):
            where = self.source.place(last.offset + len(last.text))
            return MissingMarkError(where=where, before=last.text, expected=expected)
        return SyntaxMistakeError(where=self.place(token), token=token.text, expected=expected)

    def place(self, token: Token) -> Place:
        """Return where a token stands."""
        return self.source.place(token.offset, len(token.text))

    def line(self, token: Token) -> int:
        """Return the line in which a token stands."""
        return self.source.line(token.offset)
