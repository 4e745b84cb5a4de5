"""The language of rewrite rules: patterns over nodes, written with operators.

``Rule((x * c) * d, x * (c * d))`` reads as the equation that it is.  A pattern is an `Expr`: a
variable (which matches any node of its dtypes, the same node wherever it occurs), a number (which
matches that constant), or an op of two or three of these.  The replacement is an `Expr` as well;
its ops are made with `ops.apply`, which converts numbers to the dtype they meet.

Operands of commutative ops are matched in either order: `Rule` writes out all orders once, so
matching itself needs no search.  Constants stand on the right (`rule_table` sees to it).

Which equations hold is the business of `rule_table`, applying them that of `rules`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from flexfa4.frontend.ir import BOOL, F32, I32, DType, Node, const
from flexfa4.frontend.ops import OPS, Infix, Prefix, apply

COMMUTATIVE: Final = frozenset({"add", "mul", "min", "max", "eq", "ne", "and", "or", "xor"})

Number: TypeAlias = "int | float | bool"
Bindings: TypeAlias = "dict[str, Node]"


class Expr:
    """A pattern or a replacement; see the subclasses."""

    def __add__(self, other: Expr | Number) -> Operation:
        return op("add", self, other)

    def __sub__(self, other: Expr | Number) -> Operation:
        return op("sub", self, other)

    def __rsub__(self, other: Number) -> Operation:
        return op("sub", other, self)

    def __mul__(self, other: Expr | Number) -> Operation:
        return op("mul", self, other)

    def __truediv__(self, other: Expr | Number) -> Operation:
        return op("div", self, other)

    def __rtruediv__(self, other: Number) -> Operation:
        return op("div", other, self)

    def __floordiv__(self, other: Expr | Number) -> Operation:
        return op("floordiv", self, other)

    def __mod__(self, other: Expr | Number) -> Operation:
        return op("mod", self, other)

    def __pow__(self, other: Expr | Number) -> Operation:
        return op("pow", self, other)

    def __neg__(self) -> Operation:
        return op("neg", self)

    def __lt__(self, other: Expr | Number) -> Operation:
        return op("lt", self, other)

    def __le__(self, other: Expr | Number) -> Operation:
        return op("le", self, other)

    def __gt__(self, other: Expr | Number) -> Operation:
        return op("gt", self, other)

    def __ge__(self, other: Expr | Number) -> Operation:
        return op("ge", self, other)

    def __and__(self, other: Expr | Number) -> Operation:
        return op("and", self, other)

    def __or__(self, other: Expr | Number) -> Operation:
        return op("or", self, other)

    def __xor__(self, other: Expr | Number) -> Operation:
        return op("xor", self, other)

    def __invert__(self) -> Operation:
        return op("not", self)

    def __lshift__(self, other: Expr | Number) -> Operation:
        return op("shl", self, other)

    def __rshift__(self, other: Expr | Number) -> Operation:
        return op("shr", self, other)


@dataclass(frozen=True, eq=False)
class Var(Expr):
    """Matches a node of one of the dtypes; only a constant if `constant`."""

    name: str
    dtypes: frozenset[DType] = frozenset({F32, I32, BOOL})
    constant: bool = False

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, eq=False)
class Literal(Expr):
    """Matches a constant of this value: a bool for a bool, a number for i32 and f32."""

    value: Number

    def __str__(self) -> str:
        return str(self.value)


@dataclass(frozen=True, eq=False)
class Operation(Expr):
    """Matches a node of this op whose operands match."""

    name: str
    args: tuple[Expr, ...]

    def __str__(self) -> str:
        form = OPS[self.name].text
        if isinstance(form, Infix):
            return f"({self.args[0]} {form.symbol} {self.args[1]})"
        if isinstance(form, Prefix):
            return f"{form.symbol}{self.args[0]}"
        return f"{form.name}({', '.join(map(str, self.args))})"


def op(name: str, *args: Expr | Number) -> Operation:
    """Return the pattern of an op; needed where Python has no operator for it."""
    return Operation(name, tuple(a if isinstance(a, Expr) else Literal(a) for a in args))


@dataclass(frozen=True, eq=False)
class Rule:
    """An equation, used from left to right.

    Attributes:
        pattern: the left side.
        replacement: the right side; a number takes the dtype of the node that it replaces.
        when: what the bound nodes must fulfil besides.
        orders: the pattern with the operands of commutative ops in every order.
    """

    pattern: Operation
    replacement: Expr | Number
    when: Callable[[Mapping[str, Node]], bool] | None = None
    orders: tuple[Operation, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "orders", tuple(_orders(self.pattern)))

    def __str__(self) -> str:
        return f"{self.pattern} = {self.replacement}"

    def rewrite(self, node: Node, order: Operation) -> Node | None:
        """Return what replaces `node`, or None where this order of the pattern does not match.

        A replacement that would turn a vector into a scalar is refused.
        """
        found: Bindings = {}
        if not _match(order, node, found) or not (self.when is None or self.when(found)):
            return None
        made = _build(self.replacement, found, node.dtype)
        return made if made.dtype is node.dtype and made.length == node.length else None


def may_match(order: Operation, name: str, operands: tuple[str, ...]) -> bool:
    """Return whether a node of op `name` whose operands have these ops can match at all."""
    return order.name == name and all(
        (not _is_constant(p) or found == "const")
        and (not isinstance(p, Operation) or found == p.name)
        for p, found in zip(order.args, operands, strict=True)
    )


def _orders(pattern: Expr) -> Iterator[Operation]:
    if not isinstance(pattern, Operation):
        yield pattern  # type: ignore[misc]  # an operand; the root is always an operation
        return
    for args in itertools.product(*(tuple(_orders(a)) for a in pattern.args)):
        yield Operation(pattern.name, args)
        if pattern.name in COMMUTATIVE and not any(map(_is_constant, args)):
            yield Operation(pattern.name, args[::-1])


def _is_constant(pattern: Expr) -> bool:
    return isinstance(pattern, Literal) or (isinstance(pattern, Var) and pattern.constant)


def _match(pattern: Expr, node: Node, found: Bindings) -> bool:
    if isinstance(pattern, Operation):
        if node.op != pattern.name:
            return False
        return all(_match(p, a, found) for p, a in zip(pattern.args, node.args, strict=True))
    if isinstance(pattern, Var):
        before = found.get(pattern.name)
        if before is not None:
            return before is node
        if node.dtype not in pattern.dtypes or (pattern.constant and node.op != "const"):
            return False
        found[pattern.name] = node
        return True
    assert isinstance(pattern, Literal)
    same_kind = isinstance(pattern.value, bool) == (node.dtype is BOOL)
    return node.op == "const" and same_kind and bool(node.attr == pattern.value)


def _build(made: Expr | Number, found: Bindings, dtype: DType) -> Node:
    if isinstance(made, Var):
        return found[made.name]
    if isinstance(made, Operation):
        return apply(made.name, *(_operand(a, found) for a in made.args))
    return const(made.value if isinstance(made, Literal) else made, dtype)  # type: ignore[arg-type]


def _operand(made: Expr, found: Bindings) -> Node:
    return const(made.value) if isinstance(made, Literal) else _build(made, found, BOOL)
