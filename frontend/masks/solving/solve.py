"""A mask solved for one index: a short union of intervals, with what it rests on.

``(kv <= q) & (q - kv < w)`` holds for the keys from ``q - w + 1`` to ``q``, whatever the lengths
and the window are.  The predicate is taken apart by its logic: negations are pushed to the
comparisons, those are solved each by itself (`inversion`), and their intervals are intersected and
united (`spans`).  The result is symbolic: it is found once for a graph, and serves all lengths,
captured numbers and contents for which its premises hold (`solved`).

Does not evaluate anything, and gives up, with a reason in one line, on what it does not recognise.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from flexfa4.counters import count
from flexfa4.frontend.ir import (
    BOOL,
    I32,
    Graph,
    Node,
    substitute,
    symbol,
    topological,
    with_args,
)
from flexfa4.frontend.masks.solving.inversion import Inversion, UnsolvedError
from flexfa4.frontend.masks.solving.linear_forms import BeyondIntegersError
from flexfa4.frontend.masks.solving.premises import Premise
from flexfa4.frontend.masks.solving.spans import (
    EVERYTHING,
    MOST_SPANS,
    OPPOSITE,
    Algebra,
    Relation,
    Span,
    TooLongError,
    TooManyError,
    Union,
)
from flexfa4.frontend.masks.unroll import unrolled
from flexfa4.frontend.ops import apply
from flexfa4.frontend.rewriting.rules import simplify

Index: TypeAlias = Literal["kv", "q"]

# Nesting that no mask by hand has; what is deeper is not worth the stack.
_DEEPEST: Final = 64


@dataclass(frozen=True)
class ClosedForm:
    """Where a mask is true along an index: the union of `spans`, for each value of the rest.

    Attributes:
        root: the mask.
        index: the index that it is solved for.
        spans: intervals; the mask is true nowhere if there are none.
        premises: what must hold for the values of a call, besides that no integer of `root` and
            `spans` leaves 64 bits.
        ordered: those of `spans` that are not empty ascend and do not overlap, for every call;
            otherwise they may lie anyhow.
    """

    root: Node
    index: Index
    spans: tuple[Span, ...]
    premises: tuple[Premise, ...]
    ordered: bool


@dataclass(frozen=True)
class NotClosed:
    """A mask without a closed form, or without one for the values of a call.

    Attributes:
        reason: one line that names the part of the mask that is to blame.
    """

    reason: str


@functools.lru_cache(maxsize=512)
def closed_form(graph: Graph, index: Index) -> ClosedForm | NotClosed:
    """Return a mask solved for an index.

    Args:
        graph: a simplified mask graph.
        index: "kv": the keys of each query; "q": the queries of each key.
    """
    count("closed_forms")
    if _depth(graph.root) > _DEEPEST:
        return NotClosed(f"its expressions are nested more than {_DEEPEST} deep")
    solver = _Solver(index)
    try:
        spans, ordered = solver.algebra.spans(solver.condition(graph.root, True))
    except UnsolvedError as error:
        return NotClosed(str(error))
    except TooManyError:
        return NotClosed(f"more than {MOST_SPANS} intervals of {index}")
    except TooLongError:
        return NotClosed("it has more cases than are worth solving")
    except BeyondIntegersError:
        return NotClosed("a number that follows from its constants does not fit 64 bits")
    return ClosedForm(graph.root, index, spans, tuple(solver.inversion.premises), ordered)


def _depth(root: Node) -> int:
    depth: dict[Node, int] = {}
    for node in topological(root):
        depth[node] = 1 + max((depth[arg] for arg in node.args), default=0)
    return depth[root]


def _conjuncts(node: Node, value: bool) -> Iterator[tuple[Node, bool]]:
    """Yield conditions, and the value of each, that together say that a node has a value."""
    stack = [(node, value)]
    while stack:
        node, value = stack.pop()
        if node.op == ("and" if value else "or"):
            stack += [(arg, value) for arg in reversed(node.args)]
        elif node.op == "not":
            stack.append((node.args[0], not value))
        else:
            yield node, value


def _replaced(root: Node, old: Node, new: Node) -> Node:
    """Return an expression with a node replaced; remainders follow a quotient."""

    def replace(node: Node, args: tuple[Node, ...]) -> Node:
        if node is old:
            return new
        if node.op == "mod" and old.op == "floordiv" and node.args == old.args:
            return apply("sub", args[0], apply("mul", new, args[1]))
        return with_args(node, args)

    return simplify(substitute(root, replace))


class _Solver:
    """Solves conditions by their logic."""

    def __init__(self, index: Index) -> None:
        self.algebra = Algebra(symbol(f"{index}_len"))
        self.inversion = Inversion(index, self.condition, self.algebra)
        self._solved: dict[tuple[Node, bool], Union] = {}

    def condition(self, node: Node, value: bool) -> Union:
        """Return where a bool node has a value.

        Found once for each: what is compared with bools asks for both values of both sides, over
        and over where such comparisons are nested.
        """
        if (node, value) not in self._solved:
            self._solved[node, value] = self._condition(node, value)
        return self._solved[node, value]

    def _condition(self, node: Node, value: bool) -> Union:
        if not self.inversion.varies(node):
            return self.inversion.guard(node, value)
        if node.op == "load":
            return self.inversion.truth(node, value)
        rule = _RULES.get(node.op)
        if rule is None:
            raise self.inversion.unsolved(node)
        return rule(self, node, value)

    def _comparison(self, node: Node, value: bool) -> Union:
        u, v = node.args
        if u.dtype is BOOL:
            return self._equivalence(node, value)
        relation: Relation = node.op if value else OPPOSITE[node.op]  # type: ignore[assignment]
        return self.inversion.compare(relation, u, v)

    def _equivalence(self, node: Node, value: bool) -> Union:
        """Comparisons of bools, and exclusive or: the pairs of values for which they hold."""
        u, v = node.args
        holds = _OF_BOOLS[node.op]
        pairs = ((a, b) for a in (False, True) for b in (False, True) if holds(a, b) is value)
        union: Union = ()
        for a, b in pairs:
            pair = self.algebra.both(self.condition(u, a), self.condition(v, b))
            union = self.algebra.either(union, pair)
        return union

    def _junction(self, node: Node, value: bool) -> Union:
        if (node.op == "and") is not value:
            u, v = node.args
            return self.algebra.either(self.condition(u, value), self.condition(v, value))
        union = EVERYTHING
        for part, holds in self._with_equals_replaced(list(_conjuncts(node, value))):
            union = self.algebra.both(union, self.condition(part, holds))
        return union

    def _with_equals_replaced(self, parts: list[tuple[Node, bool]]) -> list[tuple[Node, bool]]:
        """Replace what a conjunct equates with a value free of the index in the other conjuncts.

        ``(doc[kv] == doc[q]) & (kv - start[doc[kv]] <= w)`` reads the start of ``doc[q]`` instead.
        """
        for i in range(len(parts)):
            equal = self._equated(*parts[i])
            if equal is not None:
                parts = [
                    part if j == i else (_replaced(part[0], *equal), part[1])
                    for j, part in enumerate(parts)
                ]
        return parts

    def _equated(self, node: Node, value: bool) -> tuple[Node, Node] | None:
        """Return what a conjunct says of a read or a quotient that varies: what it is equal to."""
        if node.op != ("eq" if value else "ne") or node.args[0].dtype is not I32:
            return None
        u, v = node.args if self.inversion.varies(node.args[0]) else reversed(node.args)
        known = u.op in ("load", "floordiv") and not self.inversion.varies(v)
        return (u, v) if known else None

    def _negation(self, node: Node, value: bool) -> Union:
        return self.condition(node.args[0], not value)

    def _of_elements(self, node: Node, value: bool) -> Union:
        """Any or all of a short vector: its elements joined."""
        joined = unrolled(node) if (node.args[0].length or 0) <= MOST_SPANS else node
        if joined is node:
            raise self.inversion.unsolved(node)
        return self.condition(simplify(joined), value)

    def _selection(self, node: Node, value: bool) -> Union:
        condition, a, b = node.args
        return self.algebra.either(
            self.algebra.both(self.condition(condition, True), self.condition(a, value)),
            self.algebra.both(self.condition(condition, False), self.condition(b, value)),
        )


_OF_BOOLS: Final[dict[str, Callable[[bool, bool], bool]]] = {
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "xor": lambda a, b: a != b,
}

_RULES: Final[dict[str, Callable[[_Solver, Node, bool], Union]]] = {
    **dict.fromkeys(OPPOSITE, _Solver._comparison),
    "xor": _Solver._equivalence,
    "and": _Solver._junction,
    "or": _Solver._junction,
    "not": _Solver._negation,
    "where": _Solver._selection,
    "any": _Solver._of_elements,
    "all": _Solver._of_elements,
}
