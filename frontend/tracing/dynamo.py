"""What recording needs of Dynamo beyond its public interface; nothing else touches its internals.

Each function says which behaviour it works around.  Loaded only while Dynamo traces.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch._dynamo.comptime import ComptimeContext
from torch._dynamo.symbolic_convert import InstructionTranslator
from torch._dynamo.variables.base import ValueMutationExisting
from torch._dynamo.variables.torch_function import TorchFunctionModeStackVariable

F = TypeVar("F", bound=Callable[..., Any])


def constant(function: F) -> F:
    """Make a function one that Python runs while Dynamo traces, and whose result is a constant."""
    marked: F = torch.compiler.assume_constant_result(function)  # type: ignore[no-untyped-call]
    return marked


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


class _Comparison:
    """What the last `compare_nodes` found."""

    holds = False


def compare_nodes(context: ComptimeContext) -> None:
    """Compare the local variables `tensor` and `known` of the function that Dynamo traces."""
    proxies: list[Any] = [context.get_local(name).as_proxy() for name in ("tensor", "known")]
    made, known = (proxy.node for proxy in proxies)
    _Comparison.holds = made.target is operator.abs and made.args == (known,)


@constant
def is_absolute_value() -> bool:
    """Return what the last `compare_nodes` found: ``tensor = abs(known)``."""
    return _Comparison.holds
