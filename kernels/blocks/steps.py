"""How much an integer expression changes from a query, or a key, to the next: without any values.

An end of an interval that never falls, or never rises, along the queries has its extremes on the
edges of any range of them: a kernel then evaluates two rows of a tile instead of all.  And where
neighbouring intervals meet, there is no gap between the tiles that they touch.

Proofs for every call; what cannot be proved is unbounded.  Assumes what closed forms rest on: no
integer leaves 64 bits, and the elements that a search looks among ascend or stand together.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Final, Literal, NamedTuple

from flexfa4.frontend.ir import I32, Node, input_, own_place
from flexfa4.frontend.masks.solving.linear_forms import Prover, form_of
from flexfa4.frontend.masks.solving.solve import Index

Direction = Literal["ascending", "descending", "neither"]
"""The way through the tiles of a head from the most visits to the fewest."""


class Steps(NamedTuple):
    """The least and the greatest of ``f(x + 1) - f(x)``, over all queries or keys x."""

    least: float
    most: float

    @property
    def monotone(self) -> bool:
        """Whether the expression never falls or never rises."""
        return self.least >= 0 or self.most <= 0

    def plus(self, other: Steps) -> Steps:
        """Return the steps of a sum."""
        return Steps(self.least + other.least, self.most + other.most)

    def negated(self) -> Steps:
        """Return the steps of the negative."""
        return Steps(-self.most, -self.least)

    def joined(self, other: Steps) -> Steps:
        """Return the steps of what is one or the other, or the lesser or the greater of both."""
        return Steps(min(self.least, other.least), max(self.most, other.most))


NONE: Final = Steps(0, 0)
ANY: Final = Steps(-math.inf, math.inf)


@functools.lru_cache(maxsize=1024)
def steps_of(node: Node, index: Index = "q") -> Steps:
    """Return the steps of an i32 expression along the queries, or along the keys."""
    return _steps(node, _Known(index))


def neighbours_meet(begin: Node, end: Node, index: Index = "q") -> bool:
    """Return whether intervals of neighbouring queries, if not empty, are proved to meet.

    Either begins no later than the other ends: an interval of at least one key cannot be left
    behind by steps of at most one, and one that holds its own position is next to its neighbour's.
    Likewise for intervals of queries, of neighbouring keys.
    """
    if steps_of(begin, index).most <= 1 and steps_of(end, index).least >= -1:
        return True
    return _hold_their_own(begin, end, index)


@functools.lru_cache(maxsize=1024)
def _hold_their_own(begin: Node, end: Node, index: Index) -> bool:
    """Return whether the interval of each query is proved to hold the key at its position."""
    prover, own = Prover(), form_of(input_(index))
    return prover.never_negative(own.plus(form_of(begin), -1)) and prover.never_negative(
        form_of(end).plus(own, -1).shifted(-1)
    )


def direction_of_steps(
    begin: Node, end: Node, index: Index = "q", *, cut: bool
) -> Direction | None:
    """Return the way from the tiles that visit the most to those that visit the fewest, if proved.

    Where intervals grow, or shrink, from each query to the next, so do visits, but for one tile
    more or less where an interval begins or ends inside of one.

    Args:
        begin: of the intervals.
        end: of them.
        index: what they depend on.
        cut: some of them may go on behind the last key, and are shorter than they seem.
    """
    first, last = steps_of(begin, index), steps_of(end, index)
    if first == last == NONE:
        return "ascending"
    if (first.most <= 0 <= last.least) or (first.most <= last.least and not cut):
        return "descending"
    return "ascending" if last.most <= 0 <= first.least else None


class _Known(dict[Node, Steps]):
    """The steps that were found along an index."""

    def __init__(self, index: Index) -> None:
        super().__init__()
        self.index = index


def _steps(node: Node, known: _Known) -> Steps:
    if known.index not in node.depends:
        return NONE
    if node not in known:
        rule = _RULES.get(node.op)
        known[node] = ANY if rule is None else rule(node, known)
    return known[node]


def _input(node: Node, known: _Known) -> Steps:
    return Steps(1, 1)


def _add(node: Node, known: _Known) -> Steps:
    a, b = (_steps(arg, known) for arg in node.args)
    return a.plus(b.negated() if node.op == "sub" else b)


def _neg(node: Node, known: _Known) -> Steps:
    return _steps(node.args[0], known).negated()


def _mul(node: Node, known: _Known) -> Steps:
    for factor, other in (node.args, node.args[::-1]):
        if factor.op == "const":
            steps = _steps(other, known)
            least, most = sorted(_times(end, factor.attr) for end in steps)
            return Steps(least, most)
    return ANY


def _times(step: float, factor: int) -> float:
    return step * factor if factor else 0  # an unbounded step by 0 is no number


def _either(node: Node, known: _Known) -> Steps:
    if node.op == "where" and known.index in node.args[0].depends:
        return ANY
    a, b = (_steps(arg, known) for arg in node.args[-2:])
    return a.joined(b)


def _quotient(node: Node, known: _Known) -> Steps:
    dividend, by = node.args
    if by.op != "const":
        return ANY
    divisor = by.attr if node.op == "floordiv" else 1 << by.attr if 0 <= by.attr < 63 else 0
    if divisor <= 0:
        return ANY
    least, most = _steps(dividend, known)
    return Steps(_divided(least, divisor, math.floor), _divided(most, divisor, math.ceil))


def _search(node: Node, known: _Known) -> Steps:
    """Runs follow each other as places do, and what is found in ascending elements as values."""
    *others, value = node.args
    if any(known.index in other.depends for other in others):
        return ANY
    moving = own_place(node)
    if moving is None and node.attr.side in ("below", "through"):
        moving = value
    if moving is None or moving.dtype is not I32:
        return ANY
    least, most = _steps(moving, known)
    if moving is not value and not _counts_from_start(moving):
        return ANY
    return Steps(0, math.inf) if least >= 0 else Steps(-math.inf, 0) if most <= 0 else ANY


def _counts_from_start(place: Node) -> bool:
    """Whether a place is proved not to be negative: it would be one from the end."""
    return Prover().never_negative(form_of(place))


def _divided(step: float, divisor: int, rounded: Callable[[float], int]) -> float:
    return rounded(step / divisor) if math.isfinite(step) else step


_RULES: Final[dict[str, Callable[[Node, _Known], Steps]]] = {
    "input": _input,
    "add": _add,
    "sub": _add,
    "neg": _neg,
    "mul": _mul,
    "min": _either,
    "max": _either,
    "where": _either,
    "floordiv": _quotient,
    "shr": _quotient,
    "search": _search,
}
