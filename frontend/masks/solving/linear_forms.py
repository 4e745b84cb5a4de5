"""Integer expressions as linear forms, ``3 * q - w + 1``, and proofs that one is never negative.

Two expressions are compared by the difference of their forms, in which equal terms cancel; what is
left is bounded by intervals and by what is known about quotients, extremes and searches.  Forms are
mathematical integers: that the expressions do not overflow is a premise of whoever uses them.

Does not know what is solved for (`inversion`) nor what intervals are made of the forms (`spans`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from flexfa4.frontend.analysis.bounds import bounds
from flexfa4.frontend.analysis.intervals import ANY_I32, Interval
from flexfa4.frontend.integers import fits
from flexfa4.frontend.ir import I32, Node, Side, const, own_place, search
from flexfa4.frontend.ops import OPS, apply
from flexfa4.frontend.pipeline import any_call
from flexfa4.frontend.rewriting.rules import simplify

# Products of longer forms stay products: their terms would be many and cancel nothing.
_MOST_PRODUCTS: Final = 8


class BeyondIntegersError(ArithmeticError):
    """A constant of a form does not fit 64 bits."""


@dataclass(frozen=True)
class Form:
    """``coefficient * node`` summed over `terms`, plus `constant`.

    Attributes:
        terms: each node once, no coefficient is 0; in the order in which they were written.
        constant: any integer.
    """

    terms: tuple[tuple[Node, int], ...] = ()
    constant: int = 0

    def plus(self, other: Form, times: int = 1) -> Form:
        """Return ``self + times * other``."""
        terms = dict(self.terms)
        for node, k in other.terms:
            terms[node] = terms.get(node, 0) + times * k
        kept = tuple([(node, k) for node, k in terms.items() if k])
        return Form(kept, self.constant + times * other.constant)

    def scaled(self, times: int) -> Form:
        """Return ``times * self``."""
        return Form().plus(self, times)

    def shifted(self, by: int) -> Form:
        """Return ``self + by``."""
        return Form(self.terms, self.constant + by)

    def without(self, node: Node) -> Form:
        """Return this without the term of a node."""
        return Form(tuple([term for term in self.terms if term[0] is not node]), self.constant)

    def times(self, factor: Node) -> Form:
        """Return the product with a node that is no constant, term by term."""
        products = tuple([(_product(node, factor), k) for node, k in self.terms])
        own = ((factor, self.constant),) if self.constant else ()
        return Form().plus(Form(products + own))

    @property
    def whole(self) -> Form:
        """The same with ``a % c + a // c * c`` made `a`."""
        for node, k in self.terms:
            if node.op == "mod":
                below = _multiple_below(*node.args).scaled(k)  # several terms if c is a sum
                if below.terms and set(below.terms) <= set(self.terms):
                    rest = self.without(node).plus(below, -1)
                    return rest.plus(form_of(node.args[0]), k).whole
        return self

    @property
    def node(self) -> Node:
        """The form as an expression, positive terms first.

        Raises:
            BeyondIntegersError: a number in it does not fit 64 bits.
        """
        if self.whole != self:
            return self.whole.node
        constant = self.constant
        total: Node | None = None
        if constant > 0 and all(k < 0 for _, k in self.terms):
            total, constant = _constant(constant), 0
        for node, k in sorted(self.terms, key=lambda term: (term[1] < 0, _rank(term[0]))):
            size = node if abs(k) == 1 else apply("mul", node, _constant(abs(k)))
            if total is None:
                total = size if k > 0 else apply("neg", size)
            else:
                total = apply("add" if k > 0 else "sub", total, size)
        if total is None:
            return _constant(constant)
        return _simplified(_moved(total, constant))


def _moved(node: Node, by: int) -> Node:
    """Return ``node + by``."""
    if not by:
        return node
    return apply("add" if by > 0 else "sub", node, _constant(abs(by)))


def _rank(node: Node) -> int:
    """Order terms as people write them: positions first, then what varies less."""
    return 0 if node.op == "input" else 1 if node.depends else 2


def _constant(value: int) -> Node:
    if not fits(value):
        raise BeyondIntegersError
    return const(value, I32)


@functools.lru_cache(maxsize=4096)
def _simplified(node: Node) -> Node:
    return simplify(node)


def _product(node: Node, factor: Node) -> Node:
    """Return a product with its operands in one order, however it was written."""
    if node.op == "mul" and factor.op != "mul":  # (a // c * d) * c is c times (a // c), times d
        a, b = node.args
        if a.op == "floordiv" and a.args[1] is factor:
            return apply("mul", apply("mul", a, factor), b)
    return apply("mul", node, factor)


# ---- from expressions ----------------------------------------------------------------------------


def form_of(node: Node, index: str | None = None) -> Form:
    """Return an i32 scalar as a form.

    Args:
        node: the expression.
        index: products with what varies along this index stay whole, so that each of its terms is
            found in one node.
    """
    rule = _RULES.get(node.op)
    made = None if rule is None else rule(node, index)
    return Form(((node, 1),)) if made is None else made


def _add(node: Node, index: str | None) -> Form:
    a, b = (form_of(arg, index) for arg in node.args)
    return a.plus(b, -1 if node.op == "sub" else 1)


def _mul(node: Node, index: str | None) -> Form | None:
    a, b = (form_of(arg, index) for arg in node.args)
    for form, other in ((a, b), (b, a)):
        if not other.terms:
            return form.scaled(other.constant)
    if index in node.depends or len(a.terms) * len(b.terms) > _MOST_PRODUCTS:
        return None
    total = Form()
    for factor, k in b.terms:
        total = total.plus(a.times(factor), k)
    return total.plus(a, b.constant)


def _shl(node: Node, index: str | None) -> Form | None:
    a, b = node.args
    if b.op != "const" or not 0 <= b.attr < 63:
        return None
    return form_of(a, index).scaled(1 << b.attr)


_RULES: Final[dict[str, Callable[[Node, str | None], Form | None]]] = {
    "const": lambda node, index: Form((), node.attr),
    "add": _add,
    "sub": _add,
    "neg": lambda node, index: form_of(node.args[0], index).scaled(-1),
    "mul": _mul,
    "shl": _shl,
}


# ---- proofs --------------------------------------------------------------------------------------

# How many terms a proof may replace one after the other; each multiplies the work at worst.
_DEPTH: Final = 5
# Forms that are looked at for one mask.  Masks that people write take a few hundred.
_MOST_STEPS: Final = 5000


@dataclass
class Prover:
    """Proves that forms are never negative, with limited effort: what is not proved may be true.

    Attributes:
        positive: nodes known to be at least 1; make it larger with `assume`.
    """

    positive: frozenset[Node] = frozenset()
    _proofs: dict[tuple[Form, int], bool] = field(default_factory=dict)

    def assume(self, node: Node) -> None:
        """Rely on a node being at least 1."""
        if node not in self.positive:
            self.positive |= {node}
            self._proofs = {key: proved for key, proved in self._proofs.items() if proved}

    def never_negative(self, form: Form, depth: int = _DEPTH) -> bool:
        """Return whether it is proved that a form is at least 0, for every call.

        Args:
            form: the form.
            depth: how many terms the proof may replace.
        """
        proved = self._proofs.get((form, depth))
        if proved is None:
            proved = _lowest(form) >= 0 or self._by_replacing(form, depth)
            self._proofs[form, depth] = proved
        return proved

    def _by_replacing(self, form: Form, depth: int) -> bool:
        if not depth or len(self._proofs) > _MOST_STEPS:
            return False
        return any(
            quantifier(
                self.never_negative(form.without(node).plus(part), depth - 1) for part in parts
            )
            for node, k in form.terms
            for quantifier, parts in _replacements(node, k, self.positive)
        )


def _lowest(form: Form) -> int | float:
    total: int | float = form.constant
    for node, k in form.terms:
        ends = known(node)
        total += k * (ends.lo if k > 0 else ends.hi)
    return total


@functools.lru_cache(maxsize=4096)
def known(node: Node) -> Interval:
    """Return bounds of a node for every call, computed with integers of any size.

    Nothing is known of what is made of integers that may not fit 64 bits.
    """
    found = bounds(node, any_call)
    wraps = any(found[n] == ANY_I32 and n.op in OPS for n in found)
    return Interval(-math.inf, math.inf) if wraps else found[node]


_Replacement = tuple[Callable[[Iterable[bool]], bool], list[Form]]


def _replacements(node: Node, k: int, positive: frozenset[Node]) -> list[_Replacement]:
    """Return forms that may stand for ``k * node`` in a proof that a sum is not negative.

    Either each is at most ``k * node``, and `any` of them proves it, or they are all that it can
    be, and `all` of them must.
    """
    match node.op:
        case "min" | "max" | "where":
            least = node.op == ("max" if k > 0 else "min")
            return [(any if least else all, [form_of(arg).scaled(k) for arg in node.args[-2:]])]
        case "floordiv" | "shr":
            divisor = _divisor(node)
            if divisor is None or k % divisor:
                return []
            return [(any, [_multiple(node.args[0], Form((), divisor), k // divisor)])]
        case "mul":
            quotient, c = node.args
            if quotient.op != "floordiv" or quotient.args[1] is not c or c not in positive:
                return []
            return [(any, [_multiple(quotient.args[0], form_of(c), k)])]
        case "mod":
            a, c = node.args
            return [(any, [form_of(a).plus(_multiple_below(a, c), -1).scaled(k)])]
        case "search":
            return _found(node, k)
    return []


def _divisor(node: Node) -> int | None:
    """Return the constant that a floor division or a right shift divides by, if it is positive."""
    by = node.args[1]
    if by.op != "const":
        return None
    value: int = by.attr
    if node.op == "shr":
        return 1 << value if 0 <= value < 63 else None
    return value if value > 0 else None


def _multiple_below(a: Node, c: Node) -> Form:
    """Return ``a // c * c``, which with ``a % c`` makes `a`."""
    return form_of(apply("mul", apply("floordiv", a, c), c))


def _multiple(u: Node, c: Form, k: int) -> Form:
    """Return the least that ``k * (u // c * c)`` can be: the product is from ``u - c + 1`` to u."""
    return form_of(u).plus(c.shifted(-1), -1 if k > 0 else 0).scaled(k)


_COUNTERPART: Final[dict[str, Side]] = {"end": "first", "through": "below"}


def _found(node: Node, k: int) -> list[_Replacement]:
    """A run ends behind its first place, and a position's own value is found around it."""
    where, (*others, value) = node.attr, node.args
    late = where.side in _COUNTERPART
    if late != (k > 0):
        return []
    found: list[_Replacement] = []
    if late:
        first = search(replace(where, side=_COUNTERPART[where.side]), tuple(others), value)
        found.append((any, [Form(((first, k),))]))
    at = own_place(node)
    if at is not None and known(at).lo >= 0:
        found.append((any, [form_of(at).shifted(1 if late else 0).scaled(k)]))
    return found
