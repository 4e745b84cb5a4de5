"""Text -> graph: dtypes, shapes and calls are resolved here, on the syntax tree of `grammar`.

The tree is walked bottom-up with a stack of our own, so deep texts cannot exhaust Python's; each
kind of tree has one method, found in one table.  Nodes are built by `ops.apply` alone: a text has
exactly the dtype rules of a traced function.  Nothing is evaluated and nothing is simplified.

`printing.parse_graph` is the entry; it imports this module, and lark with it, when the first text
is read.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from lark import Token

from flexfa4.counters import count
from flexfa4.errors import (
    FunctionArgumentsError,
    IndexingError,
    OperandError,
    ResultError,
    TextSyntaxError,
)
from flexfa4.frontend import ir
from flexfa4.frontend.ir import BOOL, F32, I32, Buffer, Graph, Node, Scalar
from flexfa4.frontend.ops import apply, cast
from flexfa4.frontend.places import Place
from flexfa4.frontend.text.grammar import read_tree
from flexfa4.frontend.text.names import Names, index_usage
from flexfa4.frontend.text.syntax import Source, Syntax
from flexfa4.frontend.text.vocabulary import (
    DTYPES,
    FUNCTIONS,
    INFIX,
    LITERALS,
    PREFIX,
    SHAPE_FUNCTIONS,
    unquote,
)

_MAX_INTEGER: Final = 2**63 - 1


@dataclass(frozen=True)
class ParsedGraph:
    """What a text says.

    Attributes:
        graph: the graph, not simplified.
        declarations: what each captured value is, by name, whether or not the result depends on it.
        loads: where the text reads captured tensors.
    """

    graph: Graph
    declarations: Mapping[str, Buffer | Scalar]
    loads: Mapping[Node, Place]


def parse(text: str, bindings: Mapping[str, object]) -> ParsedGraph:
    """Read a graph from text; see `printing.parse_graph`."""
    count("parses")
    source = Source(text.replace("\r\n", "\n").replace("\r", "\n"))
    tree = read_tree(source)
    names = Names(source, bindings, tree)
    reader = _Reader(source, names)
    graph = reader.read(tree)
    names.check_that_bindings_are_read()
    captured = {n: d for n, d in names.declared.items() if not isinstance(d, bool)}
    return ParsedGraph(graph, captured, reader.loads)


class _Reader:
    """From the syntax tree of one text to its graph."""

    def __init__(self, source: Source, names: Names) -> None:
        self.source = source
        self.names = names
        self.loads: dict[Node, Place] = {}

    def read(self, tree: Syntax) -> Graph:
        """Read all statements; the last one is the result."""
        *statements, result = tree.parts
        for statement in statements:
            if statement.data not in _STATEMENTS:
                raise TextSyntaxError(
                    where=self.source.where(statement),
                    problem="this value is not used",
                    expected="declarations, `name = expression`, and the result as the last line",
                    rewrite="give it a name, or remove it",
                )
            _STATEMENTS[statement.data](self, statement)
        if result.data in _STATEMENTS:
            raise TextSyntaxError(
                where=self.source.where(result),
                problem="the text ends without a result",
                expected="an expression as the last line",
                rewrite="add the new score, or the condition under which a score is kept;"
                " to compare, write ==",
            )
        return self._graph(result, self._value(result))

    def _graph(self, tree: Syntax, root: Node) -> Graph:
        if root.length is not None:
            raise ResultError(
                where=self.source.where(tree),
                name="the text",
                result=f"a vector of {root.length}",
                expected="one score or one condition",
                rewrite="reduce it, for example with sum(...) or any(...)",
            )
        if root.dtype is BOOL and "score" in root.depends:
            raise ResultError(
                where=self.source.where(tree),
                name="the text",
                result="a condition that reads `score`",
                expected="masks that read b, h, q, kv and captured values, or a score",
                rewrite="for a score mod: where(condition, score, -inf)",
            )
        if root.dtype is BOOL:
            return ir.make_graph("mask", root)
        return ir.make_graph("score", cast(root, F32))

    # ---- statements ------------------------------------------------------------------------------

    def _assignment(self, tree: Syntax) -> None:
        self.names.assign(tree.tokens[0], self._value(tree.parts[0]))

    def _scalar_declaration(self, tree: Syntax) -> None:
        name, dtype = tree.tokens
        if dtype not in (F32.value, I32.value):
            raise self._bad_declaration(dtype)
        self.names.declare(name, Scalar(unquote(name), DTYPES[dtype]))

    def _buffer_declaration(self, tree: Syntax) -> None:
        name, dtype = tree.tokens
        if dtype not in DTYPES:
            raise self._bad_declaration(dtype)
        shape = tuple(self._axis(part) for part in tree.parts)
        self.names.declare(name, Buffer(unquote(name), DTYPES[dtype], shape))

    def _axis(self, part: Syntax) -> int | None:
        if part.data == "integer":
            return self._literal(part)
        if part.data == "reference" and part.tokens == ["_"]:
            return None
        raise self._bad_declaration(part)

    def _bad_declaration(self, part: Syntax | Token) -> TextSyntaxError:
        return TextSyntaxError(
            where=self.source.where(part),
            problem=f"`{self.source.between(part, part)}` has no meaning in a declaration",
            expected="name: f32, name: i32; for tensors f32[...], i32[...] and bool[...]",
            rewrite="for sizes, _ where it may change and a number where it may not: f32[_, 64]",
        )

    # ---- values ----------------------------------------------------------------------------------

    def _value(self, root: Syntax) -> Node:
        """Return the node of an expression, operands before users."""
        values: list[Node] = []
        stack: list[tuple[Syntax, bool]] = [(root, False)]
        while stack:
            tree, expanded = stack.pop()
            operands = _operands(tree)
            if operands and not expanded:
                stack.append((tree, True))
                stack.extend((operand, False) for operand in reversed(operands))
                continue
            first = len(values) - len(operands)
            args = values[first:]
            del values[first:]
            values.append(_EXPRESSIONS[str(tree.data)](self, tree, args))
        return values.pop()

    def _apply(self, at: Syntax | Token, op: str, *args: Node) -> Node:
        try:
            return apply(op, *args)
        except OperandError as e:
            name = f"`{at}`" if isinstance(at, Token) else e.fields["name"]
            raise OperandError(where=self.source.where(at), **{**e.fields, "name": name}) from None

    def _integer(self, tree: Syntax, args: list[Node]) -> Node:
        return ir.const(self._literal(tree))

    def _literal(self, tree: Syntax, sign: int = 1) -> int:
        (token,) = tree.tokens
        try:
            # the length first: Python refuses very long numbers, and is slow at long ones
            value = int(token, 0) if len(token) <= 80 else _MAX_INTEGER + 2
        except ValueError:
            raise TextSyntaxError(
                where=self.source.where(token),
                problem=f"`{token}` is not a number",
                expected="numbers as in Python: 10, 1_000, 0x1f",
                rewrite="remove leading zeros and stray underscores",
            ) from None
        if value > _MAX_INTEGER + (sign < 0):
            raise TextSyntaxError(
                where=self.source.where(token),
                problem="this integer is beyond 64 bits",
                expected=f"integers from {-_MAX_INTEGER - 1} to {_MAX_INTEGER}",
                rewrite="write a float: 1e20",
            )
        return sign * value

    def _floating(self, tree: Syntax, args: list[Node]) -> Node:
        return ir.const(self._float(tree))

    def _float(self, tree: Syntax) -> float:
        (token,) = tree.tokens
        try:
            return float(token)
        except ValueError:
            raise TextSyntaxError(
                where=self.source.where(token),
                problem=f"`{token}` is not a number",
                expected="numbers as in Python: 0.5, 1e-5, 1_000.0",
                rewrite="remove stray underscores",
            ) from None

    def _reference(self, tree: Syntax, args: list[Node]) -> Node:
        return self.names.value(tree.tokens[0])

    def _prefix(self, tree: Syntax, args: list[Node]) -> Node:
        (token,) = tree.tokens
        if args:
            return self._apply(token, PREFIX[token].name, *args)
        (literal,) = tree.parts  # -2.0 is one constant
        if literal.data == "integer":
            return ir.const(self._literal(literal, sign=-1))
        if literal.data == "floating":
            return ir.const(-self._float(literal))
        return ir.const(-LITERALS[literal.tokens[0]])

    def _infix(self, tree: Syntax, args: list[Node]) -> Node:
        (token,) = tree.tokens
        return self._apply(token, INFIX[token].name, *args)

    def _comparison(self, tree: Syntax, args: list[Node]) -> Node:
        results = [
            self._apply(sign, INFIX[sign].name, a, b)
            for sign, a, b in zip(tree.tokens, args, args[1:], strict=False)
        ]
        return self._joined(tree, "and", results)  # a < b < c is a < b and b < c

    def _disjunction(self, tree: Syntax, args: list[Node]) -> Node:
        self._check_conditions(tree, "or", args)
        return self._joined(tree, "or", args)

    def _conjunction(self, tree: Syntax, args: list[Node]) -> Node:
        self._check_conditions(tree, "and", args)
        return self._joined(tree, "and", args)

    def _negation(self, tree: Syntax, args: list[Node]) -> Node:
        self._check_conditions(tree, "not", args)
        return self._apply(tree, "not", *args)

    def _choice(self, tree: Syntax, args: list[Node]) -> Node:
        value, condition, other = args
        self._check_conditions(tree, "if", [condition])
        return self._apply(tree, "where", condition, value, other)

    def _joined(self, tree: Syntax, op: str, args: list[Node]) -> Node:
        result, *rest = args
        for arg in rest:
            result = self._apply(tree, op, result, arg)
        return result

    def _check_conditions(self, tree: Syntax, word: str, args: list[Node]) -> None:
        if any(a.dtype is not BOOL for a in args):
            raise OperandError(
                where=self.source.where(tree),
                name=f"`{word}`",
                operands=", ".join(a.dtype.value for a in args),
                expected="conditions (bool)",
                rewrite="compare numbers with != 0",
            )

    def _inner(self, tree: Syntax, args: list[Node]) -> Node:
        return args[0]

    # ---- tensors ---------------------------------------------------------------------------------

    def _subscript(self, tree: Syntax, args: list[Node]) -> Node:
        buffer = self.names.buffer(tree.tokens[0])
        if len(tree.parts) != len(buffer.shape):
            raise self._bad_index(buffer, tree, f"{len(tree.parts)} indices", index_usage(buffer))
        values = iter(args)
        indices = tuple(
            self._whole_axis(buffer, axis, part)
            if part.data == "full"
            else self._index(buffer, axis, part, next(values))
            for axis, part in enumerate(tree.parts)
        )
        if len({i.length for i in indices} - {None}) > 1:
            raise self._bad_index(
                buffer, tree, "vectors of different lengths", "numbers, and vectors of one length"
            )
        load = ir.load(buffer, indices)
        self.loads.setdefault(load, functools.partial(self.source.where, tree))
        return load

    def _whole_axis(self, buffer: Buffer, axis: int, part: Syntax) -> Node:
        length = buffer.shape[axis]
        if length is None:
            expected = "`:` along axes whose size is declared as a number"
            raise self._bad_index(buffer, part, f"`:` along axis {axis}, declared as _", expected)
        return ir.iota(length)

    def _index(self, buffer: Buffer, axis: int, part: Syntax, index: Node) -> Node:
        if part.data == "keyword":
            raise self._bad_index(buffer, part, "a keyword", index_usage(buffer))
        if index.dtype is not I32:
            found = f"a value of type {index.dtype.value}"
            raise self._bad_index(buffer, part, found, "integers", "convert it: i32(x)")
        length = self.names.size_now(buffer, axis)
        if index.op == "const" and length is not None and not -length <= index.attr < length:
            found = f"{index.attr} along axis {axis}, which has size {length}"
            expected = f"indices from {-length} to {length - 1}" if length else "no index at all"
            raise self._bad_index(buffer, part, found, expected, "choose another index")
        return index

    def _bad_index(
        self,
        buffer: Buffer,
        at: Syntax,
        index: str,
        expected: str,
        rewrite: str = "give one index for each dimension; `:` takes the whole of one",
    ) -> IndexingError:
        return IndexingError(
            where=self.source.where(at),
            name=f"`{buffer.name}`",
            index=index,
            expected=expected,
            rewrite=rewrite,
        )

    # ---- calls -----------------------------------------------------------------------------------

    def _call(self, tree: Syntax, args: list[Node]) -> Node:
        (name,) = tree.tokens
        if name in _SHAPE_FUNCTIONS:
            return _SHAPE_FUNCTIONS[name](self, tree)
        function = FUNCTIONS.get(name)
        if function is None:
            raise self.names.unknown_function(tree)
        operands = None
        if all(part.data != "full" for part in tree.parts):
            keywords = [str(p.tokens[0]) if p.data == "keyword" else None for p in tree.parts]
            operands = function.operands(keywords, args)
        if operands is None:
            raise self._misused(tree, function.usage)
        try:
            return function.build(*operands)
        except OperandError as e:
            raise OperandError(where=self.source.where(name), **e.fields) from None

    def _size(self, tree: Syntax) -> Node:
        if [p.data for p in tree.parts] != ["reference", "integer"]:
            raise self._misused(tree, SHAPE_FUNCTIONS["size"])
        table, axis = tree.parts
        buffer, number = self.names.buffer(table.tokens[0]), self._literal(axis)
        if number >= len(buffer.shape):
            rank = len(buffer.shape)
            found, expected = f"axis {number} in size()", f"axes below {rank}, its rank"
            raise self._bad_index(buffer, axis, found, expected, "count axes from 0")
        return ir.size(buffer, number)

    def _iota(self, tree: Syntax) -> Node:
        if [p.data for p in tree.parts] != ["integer"]:
            raise self._misused(tree, SHAPE_FUNCTIONS["iota"])
        return ir.iota(self._literal(tree.parts[0]))

    def _misused(self, tree: Syntax, usage: str) -> FunctionArgumentsError:
        (name,) = tree.tokens
        return FunctionArgumentsError(where=self.source.where(tree), name=str(name), usage=usage)


def _operands(tree: Syntax) -> list[Syntax]:
    """Return the parts whose values are the operands of `tree`."""
    if tree.data == "call" and tree.tokens[0] in SHAPE_FUNCTIONS:
        return []
    if tree.data == "prefix" and tree.tokens == ["-"] and _is_literal(tree.parts[0]):
        return []
    return [part for part in tree.parts if part.data != "full"]


def _is_literal(tree: Syntax) -> bool:
    is_named = tree.data == "reference" and tree.tokens[0] in LITERALS
    return is_named or tree.data in ("integer", "floating")


_STATEMENTS: Final[dict[str, Callable[[_Reader, Syntax], None]]] = {
    "assignment": _Reader._assignment,
    "scalar_declaration": _Reader._scalar_declaration,
    "buffer_declaration": _Reader._buffer_declaration,
}

_EXPRESSIONS: Final[dict[str, Callable[[_Reader, Syntax, list[Node]], Node]]] = {
    "integer": _Reader._integer,
    "floating": _Reader._floating,
    "reference": _Reader._reference,
    "group": _Reader._inner,
    "keyword": _Reader._inner,
    "prefix": _Reader._prefix,
    "infix": _Reader._infix,
    "comparison": _Reader._comparison,
    "negation": _Reader._negation,
    "conjunction": _Reader._conjunction,
    "disjunction": _Reader._disjunction,
    "choice": _Reader._choice,
    "subscript": _Reader._subscript,
    "call": _Reader._call,
}

_SHAPE_FUNCTIONS: Final[dict[str, Callable[[_Reader, Syntax], Node]]] = {
    "size": _Reader._size,
    "iota": _Reader._iota,
}
