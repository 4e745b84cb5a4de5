"""The grammar groups operators as Python does, on random expressions."""

from __future__ import annotations

import ast
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexfa4.errors import FlexFA4Error, OperandError, TextSyntaxError
from flexfa4.frontend import ir
from flexfa4.frontend.ir import BOOL, F32, I32, Node, Scalar
from flexfa4.frontend.ops import OPS, Infix, apply, cast
from flexfa4.frontend.text.grammar import _parser, grammar, read_tree
from flexfa4.frontend.text.printing import parse_graph
from flexfa4.frontend.text.syntax import Source

PYTHON_OPS: dict[type[ast.AST], str] = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div", ast.FloorDiv: "floordiv",
    ast.Mod: "mod", ast.Pow: "pow", ast.LShift: "shl", ast.RShift: "shr", ast.BitAnd: "and",
    ast.BitXor: "xor", ast.BitOr: "or", ast.USub: "neg", ast.Invert: "not", ast.Not: "not",
    ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge", ast.Eq: "eq", ast.NotEq: "ne",
    ast.And: "and", ast.Or: "or",
}  # fmt: skip
BITWISE = (ast.BitAnd, ast.BitXor, ast.BitOr)
NAMES = {
    "q": ir.input_("q"),
    "kv": ir.input_("kv"),
    "w": ir.scalar(Scalar("w", I32)),
    "x": ir.scalar(Scalar("x", F32)),
}
BINDINGS = {"w": 3, "x": 0.5}


class PythonReading(ast.NodeVisitor):
    """From Python's own syntax tree of an expression to the nodes that it should give."""

    def __init__(self, text: str) -> None:
        self.text = text

    def in_parentheses(self, node: ast.expr) -> bool:
        assert node.end_col_offset is not None
        before = self.text[: node.col_offset].rstrip()
        after = self.text[node.end_col_offset :].lstrip()
        return before.endswith("(") and after.startswith(")")

    def visit_Expression(self, node: ast.Expression) -> Node:
        for part in ast.walk(node):
            if not isinstance(part, ast.Compare):
                continue
            for operand in (part.left, *part.comparators):
                is_bitwise = isinstance(operand, ast.BinOp) and isinstance(operand.op, BITWISE)
                if is_bitwise and not self.in_parentheses(operand):
                    raise SyntaxError("refused on purpose")
        root: Node = self.visit(node.body)
        return cast(root, F32) if root.dtype is I32 else root

    def visit_Name(self, node: ast.Name) -> Node:
        return NAMES[node.id]

    def visit_Constant(self, node: ast.Constant) -> Node:
        assert isinstance(node.value, (bool, int, float))
        return ir.const(node.value)

    def visit_BinOp(self, node: ast.BinOp) -> Node:
        return apply(PYTHON_OPS[type(node.op)], self.visit(node.left), self.visit(node.right))

    def visit_UnaryOp(self, node: ast.UnaryOp) -> Node:
        operand = node.operand
        if isinstance(operand, ast.Constant) and isinstance(node.op, ast.USub):
            assert isinstance(operand.value, (int, float))
            if not isinstance(operand.value, bool) and operand.col_offset == node.col_offset + 1:
                return ir.const(-operand.value)
        value = self.visit(operand)
        return self.condition(value) if isinstance(node.op, ast.Not) else apply(
            PYTHON_OPS[type(node.op)], value
        )  # fmt: skip

    def condition(self, value: Node) -> Node:
        return apply("not", *self.conditions([value]))

    def conditions(self, values: list[Node]) -> list[Node]:
        if any(v.dtype is not BOOL for v in values):
            raise OperandError(name="", operands="", expected="", rewrite="")
        return values

    def visit_BoolOp(self, node: ast.BoolOp) -> Node:
        first, *rest = self.conditions([self.visit(v) for v in node.values])
        for value in rest:
            first = apply(PYTHON_OPS[type(node.op)], first, value)
        return first

    def visit_Compare(self, node: ast.Compare) -> Node:
        values = [self.visit(v) for v in (node.left, *node.comparators)]
        signs = [PYTHON_OPS[type(op)] for op in node.ops]
        first, *rest = (apply(s, a, b) for s, a, b in zip(signs, values, values[1:], strict=False))
        for value in rest:
            first = apply("and", first, value)
        return first

    def visit_IfExp(self, node: ast.IfExp) -> Node:
        (condition,) = self.conditions([self.visit(node.test)])
        return apply("where", condition, self.visit(node.body), self.visit(node.orelse))


def pythons(text: str) -> Node | type[Exception]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            tree = ast.parse(text, mode="eval")
        node: Node = PythonReading(text).visit(tree)
    except (SyntaxError, OperandError) as e:
        return type(e)
    return node


def ours(text: str) -> Node | type[Exception]:
    used = {name: value for name, value in BINDINGS.items() if name in text}
    try:
        return parse_graph(text, used).graph.root
    except TextSyntaxError:
        return SyntaxError
    except FlexFA4Error as e:
        return type(e)


INFIX = [row.text.symbol for row in OPS.values() if isinstance(row.text, Infix)]
EXPRESSIONS = st.recursive(
    st.sampled_from([*NAMES, "2", "0.5", "True", "(q < kv)", "(w == 1)"]),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from([*INFIX, "and", "or"]), inner).map(" ".join),
        st.tuples(st.sampled_from(["-", "~", "not "]), inner).map("".join),
        st.tuples(st.just("("), inner, st.just(")")).map("".join),
        st.tuples(inner, inner, inner).map(lambda t: f"{t[0]} if {t[1]} else {t[2]}"),
    ),
    max_leaves=8,
)


@given(EXPRESSIONS)
def test_an_expression_is_grouped_as_in_python(text: str) -> None:
    assert ours(text) is pythons(text)


@pytest.mark.parametrize("second", [*INFIX, "and", "or"])
@pytest.mark.parametrize("first", [*INFIX, "and", "or"])
def test_each_pair_of_operators_groups_as_in_python(first: str, second: str) -> None:
    kinds = set()
    for operands in (("q", "kv", "w"), ("(q < 1)", "(kv < 2)", "(w < 3)")):
        a, b, c = operands
        for text in (f"{a} {first} {b} {second} {c}", f"{a} {first} -{b} {second} {c}"):
            assert ours(text) is pythons(text), text
            kinds.add(type(ours(text)))
    assert kinds


def test_a_power_takes_a_sign_on_its_right_and_binds_tighter_than_one_on_its_left() -> None:
    for text in ("-q ** -kv", "-2 ** 2", "2 ** -1", "q ** kv ** w", "(-2) ** q", "-q ** ~kv ** w"):
        assert isinstance(ours(text), Node)
        assert ours(text) is pythons(text)


def test_a_rule_exists_for_each_precedence_of_the_ops_table() -> None:
    precedences = {r.text.precedence for r in OPS.values() if isinstance(r.text, Infix)}
    assert precedences
    for precedence in precedences:
        assert f"?level{precedence}:" in grammar()


def test_the_parser_is_built_once() -> None:
    read_tree(Source("score"))
    before = _parser.cache_info().misses
    read_tree(Source("score + 1"))
    assert _parser.cache_info().misses == before


@pytest.mark.parametrize(
    "text",
    [
        "d = q - kv\nd",
        "d = q - kv; d",
        "\n\n  d = q - kv  # distance\n\n  # more\n  ;; d ;\n",
        "d = (q\n  # a line of its own\n - kv)\nd",
        "d = q \\\n - kv\r\nd\r\n",
    ],
)
def test_statements_end_at_line_ends_and_semicolons_but_not_inside_brackets(text: str) -> None:
    expected = cast(apply("sub", NAMES["q"], NAMES["kv"]), F32)
    assert parse_graph(text).graph.root is expected


@pytest.mark.parametrize("text", ["-" * 20_000 + "score", "2 ** " * 10_000 + "score"])
def test_long_chains_of_operators_need_no_stack(text: str) -> None:
    assert parse_graph(text).graph.kind == "score"
