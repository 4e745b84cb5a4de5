"""Where in the user's source something happened, and what the user could have written instead.

Python hands a traced value no more than "are you true?"; this module finds out who asked.  It walks
to the innermost frame of the user's own code, reads the position of the instruction being executed
(Python 3.11 and newer; by line before that), finds the syntax around it in the parsed source file
and writes the replacement with `ast.unparse`.

It runs only when an error is about to be raised, so it is written for clarity, not for speed.
Source that cannot be found (``exec``, some interactive shells) costs the caret and the advice that
depends on it, never the error.  It does not decide what is an error.
"""

from __future__ import annotations

import ast
import functools
import linecache
import sys
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

from flexfa4.errors import Where
from flexfa4.frontend.places import Place
from flexfa4.frontend.tracing import advice

_INTERNAL = ("torch", "flexfa4.frontend", "flexfa4.kernels", "flexfa4.primitives")


@dataclass(frozen=True)
class Request:
    """Who asked a traced value for a Python value.

    Attributes:
        where: the place in the user's source, None where no user frame is on the stack.
        construct: the syntax that asks, such as ``a chained comparison``.
        expression: source text of the value that was asked.
        rewrite: source text to write instead.
    """

    where: Where | None
    construct: str
    expression: str
    rewrite: str


def is_internal(module: str) -> bool:
    """Return whether a module belongs to torch or to the compiler, not to the user."""
    return any(module == name or module.startswith(name + ".") for name in _INTERNAL)


def is_library(module: str) -> bool:
    """Return whether a module comes with Python, torch or the compiler, not from the user."""
    top = module.split(".")[0]
    is_known = top in sys.stdlib_module_names or top == "numpy" or top.startswith("namedtuple_")
    return is_internal(module) or (is_known and top != "__main__")


def user_frame() -> FrameType | None:
    """Return the innermost frame on this thread's stack that runs the user's code."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and is_internal(str(frame.f_globals.get("__name__", ""))):
        frame = frame.f_back
    return frame


def here() -> Where | None:
    """Return the place in the user's source that is being executed."""
    return place()()


def place() -> Place:
    """Return what tells the place in the user's source that is now being executed, later on.

    Cheap until it is asked, and keeps no code alive.
    """
    frame = user_frame()
    if frame is None:
        return lambda: None
    return functools.partial(_instruction, weakref.ref(frame.f_code), frame.f_lineno, frame.f_lasti)


def _instruction(code: Callable[[], CodeType | None], line: int, offset: int) -> Where | None:
    found = code()
    return None if found is None else _where(found, line, _span_of_code(found, offset))


def call(frame: FrameType) -> Where | None:
    """Return the place in the user's source from which a frame was called."""
    caller = frame.f_back
    while caller is not None and is_library(str(caller.f_globals.get("__name__", ""))):
        caller = caller.f_back
    if caller is None:
        return None
    return _where(caller.f_code, caller.f_lineno, _span_of_instruction(caller))


def raised(error: BaseException) -> Where | None:
    """Return the innermost place in the user's source from which an exception came."""
    where, traceback = None, error.__traceback__
    while traceback is not None:
        frame = traceback.tb_frame
        if not is_library(str(frame.f_globals.get("__name__", ""))):
            where = _where(
                frame.f_code, traceback.tb_lineno, _span_of_code(frame.f_code, traceback.tb_lasti)
            )
        traceback = traceback.tb_next
    return where


def truth_request() -> Request:
    """Describe who is asking a traced value for one True or False."""
    return _request(advice.truth, "Python", "combine conditions with &, |, ~ and torch.where")


def mod_truth_request(kind: str) -> Request:
    """Describe who is asking a mod of this kind, rather than its result, for its truth."""
    if kind == "mask":
        return _request(advice.truth_of_mask, "Python", "mask & another, mask | another, ~mask")
    return _request(advice.truth_of_score_mod, "Python", "flexfa4.compose(score_mod, another)")


def number_request() -> Request:
    """Describe who is asking a traced value for one number."""
    return _request(advice.number, "Python", "use a torch function or an operator")


def torch_call() -> str:
    """Return the executing call of a numpy function as one of torch, "" where it is not found."""
    return _request(advice.torch_call, "", "").rewrite


def parentheses() -> str:
    """Return what is written, where ``&`` binds tighter than meant, with parentheses; else ""."""
    return _request(advice.parentheses, "", "").rewrite


def definition(code: CodeType) -> Where:
    """Return the line on which a function is defined."""
    return _where(code, code.co_firstlineno, _span_of_definition(code))


def result(code: CodeType) -> Where:
    """Return the ``return`` of a function where there is exactly one, else its definition."""
    function = _function_syntax(code)
    if isinstance(function, ast.Lambda):
        return _where(code, function.body.lineno, _span(function.body))
    returns = [n for n in _own_nodes(function) if isinstance(n, ast.Return)] if function else []
    if len(returns) != 1:
        return definition(code)
    return _where(code, returns[0].lineno, _span(returns[0]))


def kept(code: CodeType) -> str:
    """Return the condition of the ``torch.where`` that a function returns, as text; "" if unknown.

    Follows one assignment: ``bias = torch.where(...)`` and ``return bias``.
    """
    function = _function_syntax(code)
    nodes = list(_own_nodes(function)) if function is not None else []
    if isinstance(function, ast.Lambda):
        return advice.chosen_by(function.body)
    returned = [n.value for n in nodes if isinstance(n, ast.Return)]
    value = returned[0] if len(returned) == 1 else None
    if isinstance(value, ast.Name):
        name = value.id
        assigned = [
            n.value
            for n in nodes
            if isinstance(n, ast.Assign)
            and any(isinstance(t, ast.Name) and t.id == name for t in n.targets)
        ]
        value = assigned[0] if len(assigned) == 1 else None
    return "" if value is None else advice.chosen_by(value)


# ---- spans of source -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Span:
    """A range of source as `ast` counts it: lines from 1, columns in bytes from 0."""

    line: int
    column: int
    end_line: int
    end_column: int


def _span(node: Any) -> Span:
    return Span(node.lineno, node.col_offset, node.end_lineno, node.end_col_offset)


def _span_of_instruction(frame: FrameType) -> Span | None:
    """Return the span of the instruction that a frame is executing (None before Python 3.11)."""
    return _span_of_code(frame.f_code, frame.f_lasti)


def _span_of_code(code: CodeType, offset: int) -> Span | None:
    if sys.version_info < (3, 11):
        return None
    for i, (line, end_line, column, end_column) in enumerate(code.co_positions()):
        if i == offset // 2:  # two bytes an instruction
            if line is None or end_line is None or column is None or end_column is None:
                return None
            return Span(line, column, end_line, end_column)
    return None


def _where(code: CodeType, line: int, span: Span | None) -> Where:
    """Make a Where whose caret covers `span`, or only names the line."""
    line = span.line if span else line
    text = linecache.getline(code.co_filename, line).rstrip("\n")
    name = "" if code.co_name == "<lambda>" else code.co_name
    if span is None or not text:
        width = len(text.strip())
        return Where(code.co_filename, line, text, len(text) - len(text.lstrip()), width, name)
    end = span.end_column if span.end_line == span.line else len(text.encode())
    start_chars, end_chars = (len(text.encode()[:n].decode(errors="ignore"))
                              for n in (span.column, end))  # fmt: skip
    return Where(code.co_filename, line, text, start_chars, max(end_chars - start_chars, 1), name)


# ---- syntax around a span ------------------------------------------------------------------------


def _parse(filename: str) -> ast.Module | None:
    try:
        return ast.parse("".join(linecache.getlines(filename)))
    except SyntaxError:  # a notebook's magics, a file that changed since it was imported
        return None


def _function_syntax(
    code: CodeType, tree: ast.Module | None = None
) -> ast.FunctionDef | ast.Lambda | None:
    """Return the definition whose code this is, if exactly one on its first line fits.

    `tree` is the parsed source where the caller needs nodes of its own tree.
    """
    tree = tree or _parse(code.co_filename)
    kind: Any = ast.Lambda if code.co_name == "<lambda>" else ast.FunctionDef
    found = []
    for node in ast.walk(tree) if tree else ():
        if isinstance(node, kind):
            decorators = getattr(node, "decorator_list", [])
            first = min([node.lineno, *(d.lineno for d in decorators)])
            if first == code.co_firstlineno and getattr(node, "name", "<lambda>") == code.co_name:
                found.append(node)
    if len(found) > 1:  # several lambdas on a line: the one around the code's own instructions
        inside = _spans_of_code(code)
        found = [
            n
            for n in found
            if (all(_contains(_span(n), s) for s in inside) if inside else _compiles_to(n, code))
        ]
    return found[0] if len(found) == 1 else None


def _compiles_to(node: ast.expr, code: CodeType) -> bool:
    """Return whether a lambda gives this code; not known where it reads variables around it."""
    (made, *_) = compile(ast.Expression(node), code.co_filename, "eval").co_consts
    alike = ("co_code", "co_names", "co_varnames", "co_consts")
    return all(getattr(made, name, None) == getattr(code, name) for name in alike)


def _spans_of_code(code: CodeType) -> list[Span]:
    """Return the spans of a code's instructions after the first (none before Python 3.11)."""
    if sys.version_info < (3, 11):
        return []
    return [
        Span(line, column, end_line, end_column)
        for line, end_line, column, end_column in list(code.co_positions())[1:]
        if line is not None
        and end_line is not None
        and column is not None
        and end_column is not None
        and end_column > column
    ]


def _contains(outer: Span, inner: Span) -> bool:
    return (outer.line, outer.column) <= (inner.line, inner.column) and (
        inner.end_line,
        inner.end_column,
    ) <= (outer.end_line, outer.end_column)


def _span_of_definition(code: CodeType) -> Span | None:
    function = _function_syntax(code)
    if function is None or isinstance(function, ast.Lambda):
        return None if function is None else _span(function)
    text = linecache.getline(code.co_filename, function.lineno).rstrip("\n")
    end = len(text.encode())
    return Span(function.lineno, function.col_offset, function.lineno, end)


def _own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """Yield the syntax of a function without that of functions defined inside it."""
    for child in ast.iter_child_nodes(function):
        yield child
        if not isinstance(child, (ast.FunctionDef, ast.Lambda, ast.AsyncFunctionDef)):
            yield from _own_nodes(child)


def _candidates(tree: ast.Module, frame: FrameType, span: Span | None) -> list[ast.expr]:
    """Return the expressions that the executing instruction may belong to, likeliest first."""
    if span is not None:
        # of `if name:`, the instruction that asks has the span of the whole statement
        asking = (ast.If, ast.While, ast.Assert)
        nodes = [n for n in ast.walk(tree) if isinstance(n, (ast.expr, *asking))]
        found = [n for n in nodes if _span(n) == span]
        return [n.test if isinstance(n, asking) else n for n in found]
    line, function = frame.f_lineno, _function_syntax(frame.f_code, tree)
    own = _own_nodes(function) if function is not None else ast.walk(tree)
    return [
        n for n in own if isinstance(n, ast.expr) and n.lineno <= line <= (n.end_lineno or n.lineno)
    ]


def _request(describe: advice.Describe, construct: str, instead: str) -> Request:
    frame = user_frame()
    if frame is None:
        return Request(None, construct, "this value", instead)
    span = _span_of_instruction(frame)
    tree = _parse(frame.f_code.co_filename)
    if tree is not None:
        parents = advice.Parents(tree, linecache.getlines(frame.f_code.co_filename))
        described = [describe(node, parents) for node in _candidates(tree, frame, span)]
        all_found = [found for found in described if found is not None]
        # by the line alone, several constructs may be meant: then none is named
        if all_found and (span is not None or len({f.rewrite for f in all_found}) == 1):
            found = all_found[0]
            where = _where(frame.f_code, frame.f_lineno, _span(found.node))
            return Request(where, found.construct, found.expression, found.rewrite)
    return Request(_where(frame.f_code, frame.f_lineno, span), construct, "this value", instead)
