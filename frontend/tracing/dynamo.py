"""What recording needs of Dynamo beyond its public interface; nothing else touches its internals.

Each function says which behaviour it works around.  Loaded only while Dynamo traces.
"""

from __future__ import annotations

import functools
import linecache
import operator
from collections.abc import Callable
from pathlib import Path
from traceback import FrameSummary
from typing import Any, Final, NoReturn, TypeVar

import torch
from torch._dynamo.comptime import ComptimeContext
from torch._dynamo.symbolic_convert import InstructionTranslator
from torch._dynamo.variables.base import ValueMutationExisting
from torch._dynamo.variables.torch_function import TorchFunctionModeStackVariable
from torch._guards import TracingContext

from flexfa4.errors import FlexFA4Error, Where
from flexfa4.frontend.places import Place

F = TypeVar("F", bound=Callable[..., Any])


def constant(function: F) -> F:
    """Make a function one that Python runs while Dynamo traces, and whose result is a constant."""
    marked: F = torch.compiler.assume_constant_result(function)  # type: ignore[no-untyped-call]
    return marked


def outside(function: F, name: str) -> F:
    """Return a public function as one that Dynamo leaves to Python.

    Args:
        function: it makes a mod.
        name: how users call it.
    """
    run: F = torch.compiler.disable(
        function,
        reason=f"{name} makes a mod of what is known in Python only; make the mod outside the"
        " compiled function, or compile without fullgraph=True",
    )  # type: ignore[no-untyped-call]
    return run


def place() -> Place:
    """Return what tells the place in the user's source that Dynamo traces now.

    Python's stack, which `locate` walks, holds Dynamo's frames instead of the user's.
    """
    for frame in reversed(TracingContext.extract_stack()):
        file = Path(frame.filename).resolve()
        if not any(file.is_relative_to(folder) for folder in _INTERNAL):
            return functools.partial(_where, frame)
    return lambda: None


# the frontend and torch: never the places where a mod reads a tensor
_INTERNAL: Final = (Path(__file__).resolve().parents[1], Path(torch.__file__).resolve().parent)


def _where(frame: FrameSummary) -> Where:
    line = frame.lineno or 1
    text = linecache.getline(frame.filename, line).rstrip("\n")
    name = "" if frame.name == "<lambda>" else frame.name
    start, width = len(text) - len(text.lstrip()), len(text.strip())
    if frame.colno is not None and frame.end_colno is not None and text.isascii():
        start, width = frame.colno, max(1, frame.end_colno - frame.colno)
    return Where(frame.filename, line, text, start, width, name)


def leave_to_python(reason: str) -> None:
    """Have Python run what Dynamo traces; with ``fullgraph=True`` the reason is an error."""
    torch._dynamo.graph_break(msg=reason)


@constant
def refuse(error: type[FlexFA4Error], **fields: Any) -> NoReturn:
    """Raise an error of the catalogue: Dynamo itself cannot follow the making of its message.

    The error has no place, which would be in torch: Dynamo adds the user's.

    Args:
        error: its class.
        fields: what the message says, constants.
    """
    raise error(**fields)


class _Before:
    """What Dynamo knew about torch function modes before `let_modes_change`."""

    allowed: bool = False
    is_modified: bool = False


@constant
def let_modes_change(now: bool) -> None:
    """Let a tape be entered and left anywhere, and leave no trace of it.

    The stack of torch function modes is the world outside, for Dynamo: inside
    ``torch.utils.checkpoint`` it forbids to change it, and elsewhere compiled code would restore it
    on each call.  A tape leaves it as it was.
    """
    output = InstructionTranslator.current_tx().output
    tracer, effects = output.current_tracer, output.side_effects
    stack = TorchFunctionModeStackVariable.stack_value_singleton
    change = effects[stack].mutation_type if stack in effects else None
    if now:
        _Before.allowed, tracer.allow_side_effects_in_hop = tracer.allow_side_effects_in_hop, True
        _Before.is_modified = isinstance(change, ValueMutationExisting) and change.is_modified
        return
    tracer.allow_side_effects_in_hop = _Before.allowed
    if isinstance(change, ValueMutationExisting):
        change.is_modified = _Before.is_modified


_STAND_IN: Final = "flexfa4.stand_in"  # key in the `meta` of a node of Dynamo's graph


class _Look:
    """What the last `look_at` found."""

    is_stand_in = False
    change = ""
    maker = ""


def mark(context: ComptimeContext) -> None:
    """Make the local variable `tensor` of the function that Dynamo traces a stand-in."""
    _node_of(context, "tensor").meta[_STAND_IN] = True


def look_at(context: ComptimeContext) -> None:
    """Find out about the local variable `tensor` what the functions below return.

    Modes of torch functions do not see ``torch.relu_(x)`` and its like, but tensors count changes.
    """
    node = _node_of(context, "tensor")
    makers = (node, *node.all_input_nodes)
    _Look.is_stand_in = any(_STAND_IN in made.meta for made in makers)
    _Look.maker = getattr(node.target, "__name__", str(node.target))
    _Look.change = ""
    if _Look.is_stand_in and node.meta["example_value"]._version:
        names = [getattr(n.target, "__name__", str(n.target)) for n in (node, *node.users)]
        changes = [name for name in names if name.endswith("_")]
        _Look.change = changes[0] if changes else "an in-place function"


@constant
def is_stand_in() -> bool:
    """Return what `look_at` found: a stand-in, or what Dynamo made of one unseen."""
    return _Look.is_stand_in


@constant
def unseen_change() -> str:
    """Return what `look_at` found: a function that changed the stand-in in place, or ""."""
    return _Look.change


@constant
def maker() -> str:
    """Return what `look_at` found: the name of the function that made the tensor."""
    return _Look.maker


def _node_of(context: ComptimeContext, name: str) -> torch.fx.Node:
    proxy: Any = context.get_local(name).as_proxy()
    node: torch.fx.Node = proxy.node
    return node


class _Comparison:
    """What the last `compare_nodes` found."""

    holds = False


def compare_nodes(context: ComptimeContext) -> None:
    """Compare the local variables `tensor` and `known` of the function that Dynamo traces."""
    made, known = (_node_of(context, name) for name in ("tensor", "known"))
    _Comparison.holds = made.target is operator.abs and made.args == (known,)


@constant
def is_absolute_value() -> bool:
    """Return what the last `compare_nodes` found: ``tensor = abs(known)``."""
    return _Comparison.holds
