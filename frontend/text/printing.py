"""The text form of a graph: printing, and the entry for reading.

    slope: f32[_]                     a captured tensor of rank 1; `_` is a size that may change
    w: i32                            a captured number
    t0 = kv - q                       a value that is used more than once
    where(t0 <= w, score + slope[h] * t0, -inf)

It is a language with Python's precedence; what is printed reads back to the identical nodes.  The
precedence, the function names and everything else about ops comes from the ops table.  Conversions
that the dtype rules restore are not printed: `kv * slope[h]` stands for `f32(kv) * slope[h]`.

This module does not read: `parse_graph` hands the text to `parser`, imported on first use
since it needs lark.  It does not simplify either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch

from flexfa4.errors import MissingBindingError, OperandError
from flexfa4.frontend import integers
from flexfa4.frontend.binding import BoundGraph
from flexfa4.frontend.ir import I32, Buffer, DType, Graph, Node, Scalar, topological
from flexfa4.frontend.ops import OPS, Call, Infix, Prefix, apply, written
from flexfa4.frontend.text.vocabulary import COMPARISON, SIGN, TIGHTEST_BITWISE, quote, type_text

if TYPE_CHECKING:
    from flexfa4.frontend.text.parser import ParsedGraph

# A line that nests deeper or runs longer than this is split, so that every graph can be read back:
# the reader refuses brackets nested like no person would.
_MAX_NESTING: Final = 40
_MAX_WIDTH: Final = 2000

_ATOM: Final = 100  # binds tighter than every operator


@dataclass(frozen=True)
class _Piece:
    """Printed text, how tightly it binds, and how deep its brackets nest."""

    text: str
    precedence: int = _ATOM
    nesting: int = 0

    def within(self, precedence: int) -> _Piece:
        """Return this piece as an operand that must bind at least as tightly as `precedence`."""
        if self.precedence >= precedence:
            return self
        return _Piece(f"({self.text})", nesting=self.nesting + 1)


def parse_graph(text: str, bindings: Mapping[str, object] | None = None) -> ParsedGraph:
    """Read a graph from text.  Nothing in the text is executed.

    Args:
        text: statements, separated by newlines or ``;``: declarations ``name: f32[_, 64]``, locals
            ``name = expression``, and the result, an expression, last.
        bindings: the captured values by name.  A tensor becomes a buffer, an int an i32 and a float
            an f32 scalar; a bool is a constant.  Names that the text declares need no binding.

    Returns:
        The graph, not simplified, and the declaration of each captured value.

    Raises:
        TextSyntaxError: the grammar refuses the text.
        UnknownNameError: a name means nothing.
        BindingError: a binding is never read, of a wrong kind, or not what the text declares.
        OperandError, IndexingError, ResultError: as in a traced function.
    """
    from flexfa4.frontend.text.parser import parse

    return parse(text, bindings or {})


def bind_values(graph: Graph, bindings: Mapping[str, object]) -> BoundGraph:
    """Return `graph`, which came from a text, with the values of `bindings` for what it reads.

    `bindings` are those given to `parse_graph`; the graph may have been simplified since.

    Raises:
        MissingBindingError: a captured value is declared in the text but has no binding.
    """

    def value(decl: Buffer | Scalar) -> Any:
        if decl.name not in bindings:
            raise MissingBindingError(name=quote(decl.name))
        return bindings[decl.name]

    tensors: list[torch.Tensor] = [value(decl) for decl in graph.buffers]
    numbers: list[int | float] = [
        value(decl) if decl.dtype is I32 else float(value(decl)) for decl in graph.scalars
    ]
    return BoundGraph(graph, tuple(tensors), tuple(numbers))


def to_text(graph: Graph) -> str:
    """Return the graph as text that `parse_graph` reads back to the identical root.

    Declarations come first, then a local for each value that is used more than once (or whose line
    would be too long), then the result.
    """
    operands = _printed_operands(graph.root)
    uses = dict.fromkeys(operands, 0)
    for node in operands:
        for arg in operands[node]:
            uses[arg] += 1

    captured: list[Buffer | Scalar] = [*graph.buffers, *graph.scalars]
    lines = [f"{quote(decl.name)}: {type_text(decl)}" for decl in captured]
    fresh = _local_names({decl.name for decl in captured})
    pieces: dict[Node, _Piece] = {}
    for node in topological(graph.root):
        if node not in operands:
            continue  # a conversion that is not printed
        piece = _print(node, [pieces[arg] for arg in operands[node]])
        too_big = piece.nesting > _MAX_NESTING or len(piece.text) > _MAX_WIDTH
        if node.args and node is not graph.root and (uses[node] > 1 or too_big):
            name = next(fresh)
            lines.append(f"{name} = {piece.text}")
            piece = _Piece(name)
        pieces[node] = piece
    return "\n".join([*lines, pieces[graph.root].text])


def expression(node: Node) -> str:
    """Return one node as one expression for people, with ``...`` where it grows too long."""
    printed: dict[Node, _Piece] = {}
    operands = _printed_operands(node)
    for n in topological(node):
        if n in operands:
            piece = _print(n, [printed[a] for a in operands[n]])
            # shared values, written out, can be exponentially long
            printed[n] = piece if len(piece.text) <= _MAX_WIDTH else _Piece("...")
    return printed[node].text


def check_integers(graph: Graph, bindings: Mapping[str, object]) -> None:
    """Refuse integer operations of a text that have no result with its bindings.

    Raises:
        OperandError: a division by 0, a negative exponent, or a constant beyond 64 bits.
    """

    values: dict[Node, int | None] = {}
    for node in topological(graph.root):
        known = values.get
        if found := integers.problem(node.op, node.args, known):
            raise OperandError(
                where=f"the text, at `{expression(node)}`",
                name=f"`{written(node.op)}`",
                **vars(found),
            )
        bound = bindings.get(node.attr.name) if node.op == "scalar" else None
        if node.dtype is I32:
            values[node] = bound if type(bound) is int else integers.result(node, known)


def _local_names(taken: set[str]) -> Iterator[str]:
    number = 0
    while True:
        if f"t{number}" not in taken:
            yield f"t{number}"
        number += 1


def _printed_operands(root: Node) -> dict[Node, tuple[Node, ...]]:
    """Map each node that is printed to the operands to print for it."""
    printed: dict[Node, tuple[Node, ...]] = {root: ()}
    for node in reversed(list(topological(root))):  # users before their operands
        if node in printed:
            printed[node] = _without_restored_conversions(node)
            printed.update((arg, ()) for arg in printed[node] if arg not in printed)
    return printed


def _without_restored_conversions(node: Node) -> tuple[Node, ...]:
    """Return the node's operands, without each conversion that `apply` puts back by itself."""
    if node.op not in OPS:
        return node.args
    args = list(node.args)
    for i, arg in enumerate(node.args):
        if arg.op not in _CONVERSIONS:
            continue
        args[i] = arg.args[0]
        if not _gives(node, args):
            args[i] = arg
    return tuple(args)


_CONVERSIONS: Final = frozenset(f"to_{dtype.value}" for dtype in DType)


def _gives(node: Node, args: list[Node]) -> bool:
    try:
        return apply(node.op, *args) is node
    except OperandError:
        return False


# ---- one node ------------------------------------------------------------------------------------


def _print(node: Node, args: list[_Piece]) -> _Piece:
    if node.op in _LEAVES:
        return _LEAVES[node.op](node, args)
    text = OPS[node.op].text
    return _FORMS[type(text)](node, text, args)


def _print_infix(node: Node, text: Infix, args: list[_Piece]) -> _Piece:
    own = text.precedence
    if own == COMPARISON:
        # Python chains comparisons, and beside them the reader wants & | ^ in parentheses
        left = right = TIGHTEST_BITWISE + 1
    elif own > SIGN:
        left, right = own + 1, SIGN  # groups to the right, and takes a sign there: a ** -b
    else:
        left, right = own, own + 1
    a, b = args[0].within(left), args[1].within(right)
    return _Piece(f"{a.text} {text.symbol} {b.text}", own, max(a.nesting, b.nesting))


def _print_prefix(node: Node, text: Prefix, args: list[_Piece]) -> _Piece:
    # -(2.0) is a negation, -2.0 a constant
    is_literal = node.op == "neg" and node.args[0].op == "const"
    operand = args[0].within(_ATOM + 1 if is_literal else text.precedence)
    return _Piece(f"{text.symbol}{operand.text}", text.precedence, operand.nesting)


def _print_call(node: Node, text: Call, args: list[_Piece]) -> _Piece:
    return _bracketed(text.name + "(", args, ")")


def _print_load(node: Node, args: list[_Piece]) -> _Piece:
    name = quote(node.attr.name)
    if not args:
        return _Piece(name)
    full = [i.op == "iota" and i.attr == n for i, n in zip(node.args, node.attr.shape, strict=True)]
    pieces = [_Piece(":") if f else a for f, a in zip(full, args, strict=True)]
    return _bracketed(name + "[", pieces, "]")


def _print_constant(node: Node, args: list[_Piece]) -> _Piece:
    text = repr(node.attr)
    return _Piece(text, SIGN if text.startswith("-") else _ATOM)


def _bracketed(start: str, args: list[_Piece], end: str) -> _Piece:
    inside = ", ".join(a.text for a in args)
    return _Piece(start + inside + end, nesting=1 + max(a.nesting for a in args))


_SEARCHES: Final[dict[str, tuple[str, str]]] = {
    "first": ("first", "=="),
    "end": ("end", "=="),
    "below": ("count", "<"),
    "through": ("count", "<="),
}


def _print_search(node: Node, args: list[_Piece]) -> _Piece:
    """Print a search for people; it has no text that reads back, since no mod has one."""
    where, (*indices, value) = node.attr, args
    indices.insert(where.axis, _Piece(":"))
    table = _bracketed(quote(where.buffer.name) + "[", indices, "]")
    function, relation = _SEARCHES[where.side]
    value = value.within(TIGHTEST_BITWISE + 1)
    return _bracketed(
        f"{function}(",
        [_Piece(f"{table.text} {relation} {value.text}", nesting=value.nesting)],
        ")",
    )


_FORMS: Final[dict[type, Callable[[Node, Any, list[_Piece]], _Piece]]] = {
    Infix: _print_infix,
    Prefix: _print_prefix,
    Call: _print_call,
}

_LEAVES: Final[dict[str, Callable[[Node, list[_Piece]], _Piece]]] = {
    "const": _print_constant,
    "input": lambda node, args: _Piece(node.attr),
    "symbol": lambda node, args: _Piece(node.attr),
    "scalar": lambda node, args: _Piece(quote(node.attr.name)),
    "load": _print_load,
    "size": lambda node, args: _Piece(f"size({quote(node.attr[0].name)}, {node.attr[1]})"),
    "iota": lambda node, args: _Piece(f"iota({node.attr})"),
    "search": _print_search,
}
