"""Unions of intervals of an index, as a mask is solved: intersected, united, kept short.

A `Clause` is an interval given by all its lower and upper ends, and by conditions that do not read
the index.  What is redundant for every call is left out on the way, and clauses that meet become
one: so what is in the end of one interval is seen to be one, however the mask is written.

Does not know where the ends come from (`inversion`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from flexfa4.frontend.ir import F32, Node, const, substitute, with_args
from flexfa4.frontend.masks.solving.linear_forms import Form, Prover, form_of
from flexfa4.frontend.ops import apply
from flexfa4.frontend.rewriting.rules import simplify

Relation: TypeAlias = Literal["lt", "le", "gt", "ge", "eq", "ne"]

OPPOSITE: Final[dict[str, Relation]] = {
    "lt": "ge", "ge": "lt", "gt": "le", "le": "gt", "eq": "ne", "ne": "eq",
}  # fmt: skip
"""What holds where a comparison does not; for floats only if neither side is NaN."""

MOST_SPANS: Final = 8
"""Intervals of a closed form."""

_MOST_CLAUSES: Final = 32  # of an intermediate result, which may still become fewer
# Comparisons and clauses that are looked at for one mask, each in up to some milliseconds.  Masks
# that people write take a hundred; sums of choices, such as absolute values, double with each.
_MOST_STEPS: Final = 1000


class TooManyError(Exception):
    """A union has too many intervals."""


class TooLongError(Exception):
    """To solve a mask takes too many steps."""


@dataclass(frozen=True)
class Clause:
    """The positions from all of `lowers` on, before all of `uppers`, where all `guards` hold.

    Attributes:
        lowers: inclusive ends; none: from 0 on.
        uppers: exclusive ends; none: up to the length.
        guards: bool nodes that do not read the index, each with the value that it must have.
    """

    lowers: tuple[Form, ...] = ()
    uppers: tuple[Form, ...] = ()
    guards: frozenset[tuple[Node, bool]] = frozenset()


Union: TypeAlias = tuple[Clause, ...]

NOTHING: Final[Union] = ()
EVERYTHING: Final[Union] = (Clause(),)


def literal(node: Node, value: bool) -> tuple[Node, bool]:
    """Return a guard in the one form of all that say the same with a comparison or its opposite."""
    while node.op == "not":
        node, value = node.args[0], not value
    if node.op in ("ge", "gt", "ne") and node.args[0].dtype is not F32:
        return apply(OPPOSITE[node.op], *node.args), not value
    return node, value


@dataclass(frozen=True)
class Span:
    """The positions ``start <= x < stop``, and from 0 to the length: none if `stop` is less.

    Attributes:
        start, stop: i32 expressions that do not read the index.
    """

    start: Node
    stop: Node


@dataclass
class Algebra:
    """Operations on unions of intervals of an index.

    Attributes:
        length: the symbol of the index's length.
        prover: proves what is redundant.

    Operations raise `TooManyError` where a result is too long, and `TooLongError` where all of them
    together were too much work.
    """

    length: Node
    prover: Prover = field(default_factory=Prover)
    _steps: int = 0

    def step(self) -> None:
        """Count a step; raise `TooLongError` if it is one too many."""
        self._steps += 1
        if self._steps > _MOST_STEPS:
            raise TooLongError

    # ---- operations ------------------------------------------------------------------------------

    def both(self, a: Union, b: Union) -> Union:
        """Return the intersection."""
        return self._reduced(self._meet(one, other) for one in a for other in b)

    def either(self, a: Union, b: Union) -> Union:
        """Return the union."""
        return self._reduced(iter((*a, *b)))

    def spans(self, union: Union) -> tuple[tuple[Span, ...], bool]:
        """Return the intervals, and whether they are proved to ascend without overlapping.

        Raises:
            TooManyError: there are more than `MOST_SPANS`.
        """
        if len(union) > MOST_SPANS:
            raise TooManyError
        union = self._exclusive(union)
        ascending = self._ascending(list(union))
        clauses = union if ascending is None else ascending
        made: list[Span] = []
        for i, clause in enumerate(clauses):
            start = _extreme("max", clause.lowers, const(0))
            for before, span in zip(clauses[:i], made, strict=True):
                if ascending is not None and not self._apart(before, clause):
                    start = apply("max", start, span.stop)  # which starts no later
            stop = _extreme("min", clause.uppers, self.length)
            start, stop = (_decided(end, clause.guards) for end in (start, stop))
            if clause.guards:
                stop = apply("where", _all(clause.guards), stop, const(0))
            made.append(Span(simplify(start), simplify(stop)))
        return tuple(made), ascending is not None

    # ---- proofs ----------------------------------------------------------------------------------

    def _at_most(self, a: Form, b: Form) -> bool:
        return self.prover.never_negative(b.plus(a, -1))

    def _starts_before(self, a: Clause, b: Clause) -> bool:
        """Whether `a` is proved to start no later than `b`."""
        lowers = (*b.lowers, Form())
        return all(any(self._at_most(x, y) for y in lowers) for x in a.lowers)

    def _stops_before(self, a: Clause, b: Clause) -> bool:
        """Whether `a` is proved to stop no later than `b`."""
        uppers = (*a.uppers, form_of(self.length))
        return all(any(self._at_most(x, y) for x in uppers) for y in b.uppers)

    def _apart(self, a: Clause, b: Clause) -> bool:
        """Whether `a` is proved to stop before `b` starts, or one of them to be empty."""
        if any((node, not value) in b.guards for node, value in a.guards):
            return True
        return any(self._at_most(x, y) for x in a.uppers for y in b.lowers)

    def _holds(self, a: Clause, b: Clause) -> bool:
        """Whether `a` is proved to hold `b`, guards aside."""
        return self._starts_before(a, b) and self._stops_before(b, a)

    def _ascending(self, clauses: list[Clause]) -> Union | None:
        """Return clauses so ordered that each is apart from those behind it, or starts before."""
        order: list[Clause] = []
        while clauses:
            for first in clauses:
                rest = [clause for clause in clauses if clause is not first]
                if all(self._apart(first, c) or self._starts_before(first, c) for c in rest):
                    break
            else:
                return None
            order.append(first)
            clauses = rest
        return tuple(order)

    def _exclusive(self, union: Union) -> Union:
        """Return clauses of which none reaches into one that holds it where a guard is true."""
        clauses = list(union)
        for outer in clauses:
            for i, inner in enumerate(clauses):
                if inner is not outer and len(outer.guards) == 1 and self._holds(outer, inner):
                    ((node, value),) = outer.guards
                    guards = inner.guards | {(node, not value)}
                    clauses[i] = Clause(inner.lowers, inner.uppers, guards)
        return tuple(clauses)

    # ---- clauses ---------------------------------------------------------------------------------

    def _meet(self, a: Clause, b: Clause) -> Clause | None:
        """Return the intersection of two clauses without what is redundant; None: it is empty."""
        guards = a.guards | b.guards
        if any((node, not value) in guards for node, value in guards):
            return None
        lowers, uppers = (*a.lowers, *b.lowers), (*a.uppers, *b.uppers)
        zero, length = Form(), form_of(self.length)
        crossed = [(u, low) for u in uppers for low in (*lowers, zero)]
        crossed += [(length, low) for low in lowers]
        if any(self._at_most(u, low) for u, low in crossed):
            return None
        return Clause(
            _strictest([f for f in lowers if not self._at_most(f, zero)], self._at_least),
            _strictest([f for f in uppers if not self._at_most(length, f)], self._at_most),
            guards,
        )

    def _at_least(self, a: Form, b: Form) -> bool:
        return self._at_most(b, a)

    def _reduced(self, clauses: Iterator[Clause | None]) -> Union:
        """Return clauses of the same union, of which none holds another and no two make one."""
        kept: list[Clause] = []
        for clause in clauses:
            self.step()
            new = None if clause is None else self._meet(clause, Clause())
            while new is not None:
                for old in kept:
                    merged = self._merged(old, new)
                    if merged is not None:
                        break
                else:
                    kept.append(new)
                    break
                kept.remove(old)
                new = merged
            if len(kept) > _MOST_CLAUSES:
                raise TooManyError
        return tuple(kept)

    def _merged(self, a: Clause, b: Clause) -> Clause | None:
        """Return one clause for the union of two; None where none is known."""
        for one, other in ((a, b), (b, a)):
            if one.guards <= other.guards and self._holds(one, other):
                return one
        same_start, same_stop = set(a.lowers) == set(b.lowers), set(a.uppers) == set(b.uppers)
        if same_start and same_stop:
            return _without_opposite(a, b)
        if a.guards != b.guards:
            return None
        for one, other in ((a, b), (b, a)):
            if (
                self._starts_before(one, other)
                and self._stops_before(one, other)
                and all(self._at_most(low, u) for low in other.lowers for u in one.uppers)
            ):
                return Clause(one.lowers, other.uppers, a.guards)
        if same_start and a.uppers and b.uppers:
            return Clause(a.lowers, _extreme_of("max", "min", a.uppers, b.uppers), a.guards)
        if same_stop and a.lowers and b.lowers:
            return Clause(_extreme_of("min", "max", a.lowers, b.lowers), a.uppers, a.guards)
        return None


def _strictest(forms: list[Form], implies: Callable[[Form, Form], bool]) -> tuple[Form, ...]:
    """Return the forms that no other implies."""
    kept: list[Form] = []
    for form in forms:
        if not any(implies(other, form) for other in kept):
            kept = [other for other in kept if not implies(form, other)]
            kept.append(form)
    return tuple(kept)


def _without_opposite(a: Clause, b: Clause) -> Clause | None:
    """Return one clause for two that differ in the value of one guard only."""
    ((*one,), (*other,)) = a.guards - b.guards, b.guards - a.guards
    if len(one) != 1 or len(other) != 1 or one[0][0] is not other[0][0]:
        return None
    return Clause(a.lowers, a.uppers, a.guards & b.guards)


def _extreme(op: str, forms: Iterable[Form], default: Node) -> Node:
    nodes = [form.node for form in forms]
    return functools.reduce(functools.partial(apply, op), nodes) if nodes else default


def _extreme_of(
    outer: str, inner: str, a: tuple[Form, ...], b: tuple[Form, ...]
) -> tuple[Form, ...]:
    """Return the outer extreme of the inner extremes of two groups, as one form."""
    nodes = (functools.reduce(functools.partial(apply, inner), [f.node for f in g]) for g in (a, b))
    return (form_of(simplify(apply(outer, *nodes))),)


def _decided(end: Node, guards: frozenset[tuple[Node, bool]]) -> Node:
    """Return an end with the selections decided that guards decide."""

    def replace(node: Node, args: tuple[Node, ...]) -> Node:
        if node.op == "where":
            test, value = literal(args[0], True)
            for holds in (True, False):
                if (test, holds) in guards:
                    return args[1] if holds is value else args[2]
        return with_args(node, args)

    return substitute(end, replace) if guards else end


def _all(guards: frozenset[tuple[Node, bool]]) -> Node:
    """Return the conjunction of guards, in an order that does not depend on the run."""
    nodes = sorted(
        (simplify(node if value else apply("not", node)) for node, value in guards), key=repr
    )
    return functools.reduce(functools.partial(apply, "and"), nodes)
