"""Comparisons solved for an index: ``relation(q - kv // 2, w)`` becomes intervals of ``kv``.

A comparison is brought to ``form <= 0`` (or ``== 0``, ``!= 0``).  Choices in the form (minimum,
maximum, absolute value, selection) become unions and intersections.  Then, if one term is left that
varies along the index, it is taken apart from the outside: a coefficient, a floor division, a
product, a read of an ascending captured tensor, until the index stands alone.  There is one rule
for each op, in a table; each requires what it rests on.

Conditions and what joins them are the business of `solve`, which this calls back for the
conditions of selections.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from flexfa4.frontend.ir import BOOL, F32, I32, Node, Search, Side, const, search
from flexfa4.frontend.masks.solving.linear_forms import Form, form_of, known
from flexfa4.frontend.masks.solving.premises import Ascending, Bounded, Grouped, Premise
from flexfa4.frontend.masks.solving.spans import (
    EVERYTHING,
    NOTHING,
    OPPOSITE,
    Algebra,
    Clause,
    Relation,
    Union,
    literal,
)
from flexfa4.frontend.ops import apply
from flexfa4.frontend.rewriting.rules import simplify
from flexfa4.frontend.text.printing import expression

_MIRRORED: Final[dict[Relation, Relation]] = {
    "lt": "gt", "gt": "lt", "le": "ge", "ge": "le", "eq": "eq", "ne": "ne",
}  # fmt: skip

_LONGEST_TEXT: Final = 60


class UnsolvedError(Exception):
    """A part of a mask is not recognised; the text says which, in one line."""


def quoted(node: Node) -> str:
    """Return an expression as text, short enough for a line."""
    text = expression(node)
    return f"`{text}`" if len(text) <= _LONGEST_TEXT else f"`{text[: _LONGEST_TEXT - 3]}...`"


@dataclass
class Inversion:
    """Solves comparisons for one index.

    Attributes:
        index: "kv" or "q".
        condition: solves a bool node for the index: where it is true, or where it is false.
        algebra: of unions of intervals of the index.
        premises: what the solutions so far rest on, in the order in which they were needed.
    """

    index: str
    condition: Callable[[Node, bool], Union]
    algebra: Algebra
    premises: dict[Premise, None] = field(default_factory=dict)

    def varies(self, node: Node) -> bool:
        """Return whether a node reads the index."""
        return self.index in node.depends

    def require(self, premise: Premise) -> None:
        """Let the solution rest on a premise, unless it holds for every call."""
        if isinstance(premise, Bounded):
            if known(premise.node).within(premise.lo, premise.hi):
                return
            if premise.lo >= 1:
                self.algebra.prover.assume(premise.node)
        self.premises[premise] = None

    def unsolved(self, node: Node, why: str = "is not solved for {index}") -> UnsolvedError:
        """Return the error that says that a node is not recognised."""
        return UnsolvedError(f"{quoted(node)} {why.format(index=self.index)}")

    # ---- comparisons -----------------------------------------------------------------------------

    def compare(self, relation: Relation, u: Node, v: Node) -> Union:
        """Return where a comparison of two i32 or f32 scalars holds.

        Raises:
            UnsolvedError: it is not recognised.
            TooManyError: there are too many intervals.
        """
        if u.dtype is F32:
            return self._compare_floats(relation, u, v)
        return self.relate(relation, self._form(u).plus(self._form(v), -1))

    def _compare_floats(self, relation: Relation, u: Node, v: Node) -> Union:
        if not self.varies(u):
            relation, u, v = _MIRRORED[relation], v, u
        if u.op == "to_f32" and u.args[0].dtype is I32:
            whole = u.args[0]
            self.require(Bounded(whole, -_EXACT, _EXACT))
            if v.op == "to_f32" and v.args[0].dtype is I32:
                self.require(Bounded(v.args[0], -_EXACT, _EXACT))
                return self.compare(relation, whole, v.args[0])
            if not self.varies(v):
                self.require(Bounded(v))
                return self._compare_whole(relation, whole, v)
        if u.op == "load" and not self.varies(v):
            self.require(Bounded(v))
            return self._load(relation, u, v)
        raise self.unsolved(u if self.varies(u) else v)

    def _compare_whole(self, relation: Relation, whole: Node, limit: Node) -> Union:
        """Return where an integer compares as it should with a float that is not NaN."""
        within = apply("min", apply("max", limit, const(-2.0 * _EXACT)), const(2.0 * _EXACT))
        down, up = (
            form_of(simplify(apply("to_i32", apply(name, within)))) for name in ("floor", "ceil")
        )
        form, algebra = self._form(whole), self.algebra

        def related(relation: Relation, limit: Form) -> Union:
            return self.relate(relation, form.plus(limit, -1))

        match relation:
            case "lt" | "ge":
                return related(relation, up)
            case "le" | "gt":
                return related(relation, down)
            case "eq":
                return algebra.both(related("le", down), related("ge", up))
            case "ne":
                return algebra.either(related("gt", down), related("lt", up))

    def relate(self, relation: Relation, form: Form) -> Union:
        """Return where a form compares with 0 as it should."""
        self.algebra.step()
        match relation:
            case "lt":
                return self.relate("le", form.shifted(1))
            case "ge":
                return self.relate("le", form.scaled(-1))
            case "gt":
                return self.relate("le", form.scaled(-1).shifted(1))
        moving = [(node, k) for node, k in form.terms if self.varies(node)]
        if not moving:
            return self._decided(relation, form)
        for node, k in moving:
            if node.op in ("where", "to_i32"):
                return self._cases(relation, form, node, k)
        single = len(moving) == 1
        if single and relation != "le" and moving[0][0].op == "load" and abs(moving[0][1]) == 1:
            node, k = moving[0]
            return self._load(relation, node, form.without(node).scaled(-k).node)
        if relation == "eq":
            return self.algebra.both(self.relate("le", form), self.relate("ge", form))
        if relation == "ne":
            return self.algebra.either(self.relate("lt", form), self.relate("gt", form))
        for node, k in moving:
            if node.op in _EXTREMES:
                return self._extreme(form, node, k)
        if not single:
            texts = " and ".join(quoted(node) for node, _ in moving[:2])
            raise UnsolvedError(f"{texts} are compared, which both vary along {self.index}")
        return self._single(form, *moving[0])

    def _form(self, node: Node) -> Form:
        return form_of(node, self.index)

    def _decided(self, relation: Relation, form: Form) -> Union:
        """Return everything or nothing, as a form that does not read the index compares with 0."""
        if relation == "le":
            if self.algebra.prover.never_negative(form.scaled(-1)):
                return EVERYTHING
            if self.algebra.prover.never_negative(form.shifted(-1)):
                return NOTHING
            if form.constant == 1:
                relation, form = "lt", form.shifted(-1)
        left = Form(tuple([t for t in form.terms if t[1] > 0]), max(form.constant, 0))
        right = left.plus(form, -1)
        return self.guard(apply(relation, left.node, right.node), True)

    def guard(self, node: Node, value: bool) -> Union:
        """Return everything where a node that does not read the index has a value, else nothing."""
        if known(node).decided:
            return EVERYTHING if known(node).lo == value else NOTHING
        return (Clause(guards=frozenset({literal(simplify(node), value)})),)

    # ---- choices ---------------------------------------------------------------------------------

    def _cases(self, relation: Relation, form: Form, node: Node, k: int) -> Union:
        """Split a form by the condition of a selection, or by the bool that a term counts."""
        if node.op == "where":
            condition, *values = node.args
            parts = [self._form(value) for value in values]
        else:
            (condition,), parts = node.args, [Form((), 1), Form()]
            if condition.dtype is not BOOL:
                raise self.unsolved(node)
        rest = form.without(node)
        chosen = (
            self.algebra.both(
                self.condition(condition, value), self.relate(relation, rest.plus(part, k))
            )
            for value, part in zip((True, False), parts, strict=True)
        )
        return self.algebra.either(*chosen)

    def _extreme(self, form: Form, node: Node, k: int) -> Union:
        """Split ``k * max(u, v) + rest <= 0``: both must hold for a maximum, one for a minimum."""
        if node.op == "abs":
            u = self._form(node.args[0])
            parts = [u, u.scaled(-1)]
        else:
            parts = [self._form(arg) for arg in node.args]
        rest = form.without(node)
        one, other = (self.relate("le", rest.plus(part, k)) for part in parts)
        join = self.algebra.either if (node.op == "min") == (k > 0) else self.algebra.both
        return join(one, other)

    # ---- one term --------------------------------------------------------------------------------

    def _single(self, form: Form, node: Node, k: int) -> Union:
        """Return where ``k * node + rest <= 0``, of which only the node reads the index."""
        limit = form.without(node).scaled(-1)  # k * node <= limit
        rule = _RULES.get(node.op)
        if rule is None:
            raise self.unsolved(node)
        if k > 0:
            return rule(self, node, _divided(limit, const(k)), True)
        return rule(self, node, _divided(limit.scaled(-1), const(-k), up=True), False)

    def _at_index(self, node: Node, limit: Form, upper: bool) -> Union:
        clause = Clause(uppers=(limit.shifted(1),)) if upper else Clause(lowers=(limit,))
        return self.algebra.both((clause,), EVERYTHING)

    def _floor_division(self, node: Node, limit: Form, upper: bool) -> Union:
        """``u // c <= e`` is ``u <= c * e + c - 1``, and ``u // c >= e`` is ``u >= c * e``."""
        u, c = node.args
        form = self._form(u)
        if self.varies(c):
            raise self.unsolved(node)
        if c.op == "const":
            if c.attr < 0:
                form, c = form.scaled(-1), const(-c.attr)
            if c.attr == 0:
                raise self.unsolved(node)
        return self._quotient(form, c, limit, upper)

    def _quotient(self, form: Form, c: Node, limit: Form, upper: bool) -> Union:
        self.require(Bounded(c, 1))
        product = limit.scaled(c.attr) if c.op == "const" else limit.times(c)
        if upper:
            last = product.plus(form_of(c)).shifted(-1)
            return self.relate("le", form.plus(last, -1))
        return self.relate("le", product.plus(form, -1))

    def _right_shift(self, node: Node, limit: Form, upper: bool) -> Union:
        u, bits = node.args
        if bits.op != "const" or not 0 <= bits.attr < 63:
            raise self.unsolved(node)
        return self._quotient(self._form(u), const(1 << bits.attr), limit, upper)

    def _product(self, node: Node, limit: Form, upper: bool) -> Union:
        """``u * c <= e`` is ``u <= e // c`` for a positive c."""
        u, c = node.args
        if self.varies(c):
            u, c = c, u
        if self.varies(c):
            raise self.unsolved(node)
        self.require(Bounded(c, 1))
        if upper:
            return self.relate("le", self._form(u).plus(_divided(limit, c), -1))
        return self.relate("le", _divided(limit, c, up=True).plus(self._form(u), -1))

    def _element(self, node: Node, limit: Form, upper: bool) -> Union:
        relation: Relation = "le" if upper else "ge"
        if limit.constant == (-1 if upper else 1):
            relation, limit = ("lt", limit.shifted(1)) if upper else ("gt", limit.shifted(-1))
        return self._load(relation, node, limit.node)

    def _load(self, relation: Relation, node: Node, value: Node) -> Union:
        """Return where an element of a captured tensor compares with a value free of the index."""
        axis, form, others = self._along(node)

        def place(side: Side) -> Form:
            return Form(((search(Search(node.attr, axis, side), others, value), 1),))

        if relation in ("eq", "ne"):
            known = value.attr if value.op == "const" else None
            self.require(Grouped(node.attr, axis, known))
            join = self.algebra.both if relation == "eq" else self.algebra.either
            after: Relation = "ge" if relation == "eq" else "lt"
            return join(
                self.relate(after, form.plus(place("first"), -1)),
                self.relate(OPPOSITE[after], form.plus(place("end"), -1)),
            )
        self.require(Ascending(node.attr, axis))
        side: Side = "below" if relation in ("lt", "ge") else "through"
        before: Relation = "lt" if relation in ("lt", "le") else "ge"
        return self.relate(before, form.plus(place(side), -1))

    def truth(self, node: Node, value: bool) -> Union:
        """Return where an element of a captured tensor of bools has a value."""
        return self._load("eq" if value else "ne", node, const(True))

    def _along(self, node: Node) -> tuple[int, Form, tuple[Node, ...]]:
        """Return the axis of a load that the index runs along, its place there, the other indices.

        The place must not count from the end, so it is required not to be negative.
        """
        axes = [d for d, arg in enumerate(node.args) if self.varies(arg)]
        others = tuple([arg for arg in node.args if not self.varies(arg)])
        if node.length is not None:
            raise self.unsolved(node, "is a vector")
        if len(axes) > 1:
            raise self.unsolved(node, "is read along {index} in more than one axis")
        if any(arg.depends & {"q", "kv"} for arg in others):
            raise self.unsolved(node, "is an element of a table over q and kv")
        place = node.args[axes[0]]
        self.require(Bounded(place, 0))
        return axes[0], self._form(place), others

    def _periodic(self, node: Node, limit: Form, upper: bool) -> Union:
        raise self.unsolved(node, "repeats along {index}")


# Integers up to this size are floats of every precision, and so are exact in comparisons.
_EXACT: Final = 1 << 24

_EXTREMES: Final = ("min", "max", "abs")

_Rule = Callable[[Inversion, Node, Form, bool], Union]

# From a node that reads the index and an upper or lower limit (inclusive) to where it keeps it.
_RULES: Final[dict[str, _Rule]] = {
    "input": Inversion._at_index,
    "floordiv": Inversion._floor_division,
    "shr": Inversion._right_shift,
    "mul": Inversion._product,
    "load": Inversion._element,
    "mod": Inversion._periodic,
}


def _divided(form: Form, divisor: Node, *, up: bool = False) -> Form:
    """Return the form divided by a positive integer, rounded down, or up."""
    if divisor is const(1):
        return form
    if up:
        form = form.plus(form_of(divisor)).shifted(-1)
    if not form.terms and divisor.op == "const":
        return Form((), form.constant // divisor.attr)
    return form_of(simplify(apply("floordiv", form.node, divisor)))
