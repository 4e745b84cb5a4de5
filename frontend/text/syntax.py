"""Parts of a text: the syntax tree that `grammar` makes, and how messages point into a text.

Data only.  It is imported with lark, when the first text is read.
"""

from __future__ import annotations

from dataclasses import dataclass

from lark import Token, Tree

from flexfa4.errors import Where
from flexfa4.frontend.places import TEXT_FILE


class Syntax(Tree[Token]):
    """A part of the syntax tree: `data` names the rule, see the grammar."""

    @property
    def tokens(self) -> list[Token]:
        """The tokens that carry meaning: names, numbers and operators."""
        return [child for child in self.children if isinstance(child, Token)]

    @property
    def parts(self) -> list[Syntax]:
        """The parts that this part is made of."""
        return [child for child in self.children if isinstance(child, Syntax)]

    @property
    def items(self) -> list[Syntax | Token]:
        """Parts and tokens in their order."""
        return [c for c in self.children if isinstance(c, (Token, Syntax))]


@dataclass(frozen=True)
class Source:
    """A text, and how to point into it."""

    text: str

    def where(self, part: Syntax | Token) -> Where:
        """Return the place of a part (of its first line)."""
        return self.place(*_span(part))

    def place(self, start: int, end: int) -> Where:
        """Return the place of the characters from `start` to `end`, in the line of `start`."""
        line_start = self.text.rfind("\n", 0, start) + 1
        line_end = self.text.find("\n", start)
        line_end = len(self.text) if line_end < 0 else line_end
        # a message shows at most one screen line of a machine-made text
        left = line_start if start - line_start <= 100 else start - 60
        line = self.text[left : min(line_end, left + 120)]
        number = self.text.count("\n", 0, start) + 1
        width = max(min(end, line_end) - start, 1)
        return Where(TEXT_FILE, number, line.rstrip(), start - left, width)

    def between(self, first: Syntax | Token, last: Syntax | Token) -> str:
        """Return the text from the start of one part to the end of another, on one short line."""
        text = " ".join(self.text[_span(first)[0] : _span(last)[1]].split())
        return text if len(text) <= 100 else text[:97] + "..."


def _span(part: Syntax | Token) -> tuple[int, int]:
    place = part if isinstance(part, Token) else part.meta
    assert place.start_pos is not None and place.end_pos is not None
    return place.start_pos, place.end_pos
