"""What to write instead of ``if``, ``and``, ``int()`` ... on a value that differs for each score.

From the syntax that asked for one Python value, `truth` and `number` find the construct's name and
compose its replacement: ``a and b`` becomes ``a & b``, an ``if`` whose branches return or assign
becomes ``torch.where``.  Works on syntax only: it sees neither values nor frames (`locate` does).
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final


@dataclass(frozen=True)
class Found:
    """A construct that asks for a Python value, see `locate.Request`."""

    node: ast.expr
    construct: str
    expression: str
    rewrite: str


class Parents:
    """The parent and the following sibling of every node of a tree, and the text around it."""

    def __init__(self, tree: ast.AST, lines: Sequence[str] = ()) -> None:
        self._lines = lines
        self._parent: dict[ast.AST, ast.AST] = {}
        for node in ast.walk(tree):
            for child in ast.iter_child_nodes(node):
                self._parent[child] = node

    def of(self, node: ast.AST) -> ast.AST | None:
        """Return the parent of a node."""
        return self._parent.get(node)

    def has_parentheses(self, node: ast.expr) -> bool:
        """Return whether an expression stands in parentheses of its own."""
        end_line, end = node.end_lineno or 0, node.end_col_offset or 0
        before = self._lines[node.lineno - 1].encode()[: node.col_offset].rstrip()
        after = self._lines[end_line - 1].encode()[end:].lstrip()
        return before.endswith(b"(") and after.startswith(b")")

    def next_statement(self, node: ast.stmt) -> ast.stmt | None:
        """Return the statement after `node` in the same block."""
        body = getattr(self.of(node), "body", [])
        if isinstance(body, list) and node in body[:-1]:
            following: ast.stmt = body[body.index(node) + 1]
            return following
        return None


Describe = Callable[[ast.expr, Parents], "Found | None"]


# ---- conditions: and, or, not, chained comparisons -----------------------------------------------


class _Elementwise(ast.NodeTransformer):
    """Turn logic on Python truth values into logic on every element."""

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        self.generic_visit(node)
        return _join(ast.BitAnd() if isinstance(node.op, ast.And) else ast.BitOr(), node.values)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        self.generic_visit(node)
        if isinstance(node.op, ast.Not):
            return ast.UnaryOp(ast.Invert(), node.operand)
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        self.generic_visit(node)
        terms = [node.left, *node.comparators]
        if len(node.ops) == 1 and isinstance(node.ops[0], (ast.In, ast.NotIn)):
            return _membership(node)
        pairs: list[ast.expr] = [
            ast.Compare(left, [op], [right])
            for left, op, right in zip(terms, node.ops, terms[1:], strict=False)
        ]
        return _join(ast.BitAnd(), pairs)

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        self.generic_visit(node)
        return _where(node.test, node.body, node.orelse)


def _join(op: ast.operator, terms: list[ast.expr]) -> ast.expr:
    joined = terms[0]
    for term in terms[1:]:
        joined = ast.BinOp(joined, op, term)
    return joined


def _membership(node: ast.Compare) -> ast.expr:
    """``x in (a, b)`` as ``(x == a) | (x == b)``; as it is where the container is no display."""
    container = node.comparators[0]
    if not isinstance(container, (ast.List, ast.Tuple, ast.Set)) or not container.elts:
        return node
    one_of = _join(
        ast.BitOr(), [ast.Compare(node.left, [ast.Eq()], [item]) for item in container.elts]
    )
    return one_of if isinstance(node.ops[0], ast.In) else ast.UnaryOp(ast.Invert(), one_of)


def _elementwise(node: ast.expr) -> ast.expr:
    changed: ast.expr = _Elementwise().visit(copy.deepcopy(node))
    return changed


def _call(name: str, *args: ast.expr) -> ast.expr:
    return ast.Call(ast.parse(name, mode="eval").body, list(args), [])


def _where(test: ast.expr, yes: ast.expr, no: ast.expr) -> ast.expr:
    """``torch.where``, or just the condition where the choices are True and False."""
    constants = [c.value if isinstance(c, ast.Constant) else None for c in (yes, no)]
    if constants[0] is True and constants[1] is False:
        return test
    if constants[0] is False and constants[1] is True:
        return ast.UnaryOp(ast.Invert(), test)
    return _call("torch.where", test, yes, no)


def _text(node: ast.AST) -> str:
    return ast.unparse(ast.fix_missing_locations(node))


def _operand(node: ast.expr) -> str:
    """Return the text of an expression, in parentheses where an operator or method may follow."""
    is_atom = isinstance(node, (ast.Name, ast.Attribute, ast.Call, ast.Subscript))
    return _text(node) if is_atom else f"({_text(node)})"


def chosen_by(node: ast.expr) -> str:
    """Return the condition of a call ``torch.where(condition, a, b)`` as text, "" for another."""
    is_where = isinstance(node, ast.Call) and _text(node.func) == "torch.where"
    if not isinstance(node, ast.Call) or not is_where or len(node.args) != 3:
        return ""
    return _text(_elementwise(node.args[0]))


# ---- & binds tighter than comparisons ------------------------------------------------------------

_BITWISE: Final = (ast.BitAnd, ast.BitXor, ast.BitOr)


def parentheses(node: ast.expr, parents: Parents) -> Found | None:
    """Return the comparison around an ``&``, ``|`` or ``^`` that was meant to join comparisons."""
    parent = parents.of(node)
    while isinstance(parent, ast.BinOp) and isinstance(parent.op, _BITWISE):
        parent = parents.of(parent)
    if not isinstance(node, ast.BinOp) or not isinstance(parent, ast.Compare):
        return None
    instead = _regrouped(parent, parents)
    return None if instead is None else _found(parent, "a comparison", _text(node), instead)


def _regrouped(node: ast.Compare, parents: Parents) -> ast.expr | None:
    """Return a comparison read as if ``&`` bound looser: ``a < b & c < d`` as both conditions.

    None where no operand is an ``&``, ``|`` or ``^`` without parentheses of its own, and where the
    parts would be numbers again.
    """
    groups: list[list[ast.expr | ast.cmpop]] = [[]]
    joints: list[ast.operator] = []

    def split(term: ast.expr) -> None:
        is_joint = isinstance(term, ast.BinOp) and isinstance(term.op, _BITWISE)
        if is_joint and not parents.has_parentheses(term):
            assert isinstance(term, ast.BinOp)
            split(term.left)
            joints.append(term.op)
            groups.append([])
            split(term.right)
        else:
            groups[-1].append(term)

    split(node.left)
    for comparison, term in zip(node.ops, node.comparators, strict=True):
        groups[-1].append(comparison)
        split(term)
    if not joints or any(len(g) == 1 and isinstance(g[0], ast.BinOp) for g in groups):
        return None
    conditions = [_elementwise(_condition(group)) for group in groups]
    # through text, for the joints bind by their own order
    words = {ast.BitAnd: "&", ast.BitXor: "^", ast.BitOr: "|"}
    pieces = [f"({_text(conditions[0])})"]
    for joint, condition in zip(joints, conditions[1:], strict=True):
        pieces += [words[type(joint)], f"({_text(condition)})"]
    return ast.parse(" ".join(pieces), mode="eval").body


def _condition(group: list[Any]) -> ast.expr:
    """Return the comparison of terms and signs that alternate, or the one term."""
    return ast.Compare(group[0], group[1::2], group[2::2]) if len(group) > 1 else group[0]


# ---- who asks for a truth value ------------------------------------------------------------------

_COMPREHENSIONS: Final = (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)


def truth(node: ast.expr, parents: Parents) -> Found | None:
    """Return the construct around `node` that asks it for True or False, None if there is none."""
    parent = parents.of(node)
    # the node itself holds the operator
    if isinstance(node, ast.Compare) and len(node.ops) > 1:
        first = _text(ast.Compare(node.left, node.ops[:1], node.comparators[:1]))
        instead = _regrouped(node, parents) or _whole(node, parents)
        return Found(node, "a chained comparison", first, _text(instead))
    if isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.In, ast.NotIn)):
        return _found(node, "`in`", _text(node.left), _whole(node, parents))
    if isinstance(node, ast.BoolOp):
        return _found(node, _word(node), _text(node.values[0]), _whole(node, parents))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return _found(node, "`not`", _text(node.operand), _whole(node, parents))
    if isinstance(node, ast.IfExp):
        return _found(node, "a conditional expression", _text(node.test), _elementwise(node))
    if isinstance(node, ast.Call):
        return _truth_call(node)
    if isinstance(node, _COMPREHENSIONS):
        tests = [test for loop in node.generators for test in loop.ifs]
        advice = "a comprehension over a fixed range, with torch.where inside"
        return Found(node, "`if`", _text(tests[0]), advice) if tests else None
    # the node is what a parent asks
    if isinstance(parent, (ast.BoolOp, ast.UnaryOp)) or (
        isinstance(parent, ast.IfExp) and parent.test is node
    ):
        found = truth(parent, parents)
        return found and Found(node, found.construct, _text(node), found.rewrite)
    if isinstance(parent, (ast.If, ast.While, ast.Assert)) and parent.test is node:
        word = f"`{type(parent).__name__.lower()}`"
        return Found(node, word, _text(node), _block(parent, parents))
    return None


def _found(node: ast.expr, construct: str, expression: str, instead: ast.expr) -> Found:
    return Found(node, construct, expression, _text(instead))


def _whole(node: ast.expr, parents: Parents) -> ast.expr:
    """Return the elementwise form of the largest logical expression that `node` is part of."""
    return _elementwise(_logic(node, parents))


def _logic(node: ast.expr, parents: Parents) -> ast.expr:
    """Return the largest logical expression that `node` is part of."""
    parent = parents.of(node)
    while isinstance(parent, (ast.BoolOp, ast.UnaryOp)):
        node, parent = parent, parents.of(parent)
    return node


def _word(node: ast.BoolOp) -> str:
    return "`and`" if isinstance(node.op, ast.And) else "`or`"


# Python's function -> torch's for two values, and the bound that clamp() takes for a number
_PAIRWISE: Final = {"min": ("torch.minimum", "max"), "max": ("torch.maximum", "min")}


def _is_number(node: ast.expr) -> bool:
    value = node.operand if isinstance(node, ast.UnaryOp) else node
    return isinstance(value, ast.Constant)


def _truth_call(node: ast.Call) -> Found | None:
    """``min``, ``max``, ``bool``, ``any``, ``all``, ``sorted`` ... of traced values."""
    name = _text(node.func)
    if name in _PAIRWISE and len(node.args) > 1:
        function, bound = _PAIRWISE[name]
        instead, *others = sorted(node.args, key=_is_number)  # numbers last, in their order
        for arg in others:
            if _is_number(arg):
                clamp = ast.Attribute(instead, "clamp", ast.Load())
                instead = ast.Call(clamp, [], [ast.keyword(bound, arg)])
            else:
                instead = _call(function, instead, arg)
        return _found(node, f"`{name}()`", _text(node.args[0]), _elementwise(instead))
    advice = {
        "bool": "{0} != 0",
        "any": "conditions joined by |",
        "all": "conditions joined by &",
    }.get(name, "torch.where(condition, a, b), torch.minimum(a, b), torch.maximum(a, b)")
    if not node.args:
        return None
    text = advice.format(_operand(node.args[0]))
    return Found(node, f"`{name}()`", _text(node.args[0]), text)


def _block(parent: ast.AST, parents: Parents) -> str:
    """Return what to write instead of a whole ``if``, ``while`` or ``assert``."""
    if isinstance(parent, ast.If):
        return _if(parent, parents)
    if isinstance(parent, ast.While):
        return "a loop over a fixed range, with torch.where for what depends on the score"
    return "check it outside the mod, or remove the assert"


def _if(node: ast.If, parents: Parents) -> str:
    test = _elementwise(node.test)
    after = node.orelse[0] if len(node.orelse) == 1 else None
    if not node.orelse:
        after = parents.next_statement(node)
    if len(node.body) == 1:
        body = node.body[0]
        yes, no = (s.value if isinstance(s, ast.Return) else None for s in (body, after))
        if yes is not None and no is not None:
            return f"return {_text(_where(test, _elementwise(yes), _elementwise(no)))}"
        target = _assigned(body)
        if target is not None:
            other = _assigned(after) if node.orelse else (target[0], ast.Name(target[0]))
            if other is not None and other[0] == target[0]:
                return f"{target[0]} = {_text(_where(test, target[1], other[1]))}"
    return f"torch.where({_text(test)}, <value if true>, <value if false>)"


def _assigned(statement: ast.stmt | None) -> tuple[str, ast.expr] | None:
    """Return the name and the new value of ``x = ...`` or ``x += ...``."""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target = statement.targets[0]
        if isinstance(target, ast.Name):
            return target.id, _elementwise(statement.value)
    if isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name):
        name = statement.target.id
        value = ast.BinOp(ast.Name(name), statement.op, _elementwise(statement.value))
        return name, value
    return None


def truth_of_mask(node: ast.expr, parents: Parents) -> Found | None:
    """Return the construct around `node` that asks a mask for its truth, with & | ~ instead."""
    return _truth_of_mod(node, parents, lambda logic: _text(_elementwise(logic)))


def truth_of_score_mod(node: ast.expr, parents: Parents) -> Found | None:
    """Return the construct around `node` that asks a score mod for its truth."""

    def composed(logic: ast.expr) -> str:
        if isinstance(logic, ast.BoolOp):
            return f"flexfa4.compose({', '.join(map(_text, logic.values))})"
        assert isinstance(logic, ast.UnaryOp)
        return f"{_operand(logic.operand)} is None"

    return _truth_of_mod(node, parents, composed)


def _truth_of_mod(
    node: ast.expr, parents: Parents, combined: Callable[[ast.expr], str]
) -> Found | None:
    """Return who asks a mod for its truth; `combined` rewrites ``and``, ``or`` and ``not``."""
    found = truth(node, parents)
    if found is None or (isinstance(node, ast.Call) and found.construct != "`bool()`"):
        return found  # any() and all() have advice of their own
    logic = _logic(found.node, parents)
    is_logic = isinstance(logic, ast.BoolOp) or (
        isinstance(logic, ast.UnaryOp) and isinstance(logic.op, ast.Not)
    )
    rewrite = combined(logic) if is_logic else f"{found.expression} is not None"
    return replace(found, rewrite=rewrite)


# ---- who asks for a number -----------------------------------------------------------------------

_NUMBER_CALLS: Final = {
    "int": "{0}.to(torch.int32)",
    "float": "{0}.to(torch.float32)",
    "range": "a loop over a fixed range, with torch.where for what depends on the score",
    "list": "a loop over a fixed range",
    "complex": "real numbers",
}


def number(node: ast.expr, parents: Parents) -> Found | None:
    """Return the call or subscript at `node` that asks for a number, None if there is none."""
    if isinstance(node, ast.Call):
        name = _text(node.func)
        if name.endswith(".item") or name.endswith(".tolist"):
            value = name.rsplit(".", 1)[0]
            return Found(node, f"`{name}()`", value, value)
        arguments = [_text(a) for a in node.args] or ["this value"]
        if name.startswith("math."):
            advice = f"torch.{name[5:]}({', '.join(arguments)})"
        else:
            template = _NUMBER_CALLS.get(name, "a torch function or an operator")
            advice = template.format(_operand(node.args[0]) if node.args else "x")
        return Found(node, f"`{name}()`", arguments[0], advice)
    if isinstance(node, (ast.FormattedValue, ast.JoinedStr)):
        parts = node.values if isinstance(node, ast.JoinedStr) else [node]
        values = [_text(p.value) for p in parts if isinstance(p, ast.FormattedValue)]
        if values:
            plain = f"the value without a format: {{{values[0]}}}"
            return Found(node, "a format", values[0], plain)
    parent = parents.of(node)
    loop = node.generators[0] if isinstance(node, _COMPREHENSIONS) else parent
    if isinstance(loop, (ast.For, ast.comprehension)) and (loop is not parent or loop.iter is node):
        advice = "a loop over range(n) with a fixed n"
        return Found(node, "a loop", _text(loop.iter), advice)
    if isinstance(node, ast.Subscript):
        container, index = _text(node.value), _text(node.slice)
        advice = f"make `{container}` a tensor: torch.tensor({container})[{index}]"
        return Found(node, "a list index", index, advice)
    return None


def torch_call(node: ast.expr, parents: Parents) -> Found | None:
    """Return the call at `node`, of a function of numpy, as that of torch's function."""
    if not isinstance(node, ast.Call):
        return None
    name = _text(node.func).rsplit(".", 1)[-1]
    name = _TORCH_NAMES.get(name, name)
    arguments = ", ".join(_text(a) for a in [*node.args, *(k.value for k in node.keywords)])
    return Found(node, name, arguments, f"torch.{name}({arguments})")


_TORCH_NAMES: Final = {"absolute": "abs", "fabs": "abs", "power": "pow", "arctan": "atan",
                       "invert": "bitwise_not", "rint": "round", "mod": "remainder"}  # fmt: skip
