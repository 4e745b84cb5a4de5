"""What a mod must take and return, and the errors for one that does not.

A score mod takes ``score, b, h, q_idx, kv_idx`` and returns one number, a mask takes all but
``score`` and returns one bool; further parameters need defaults.
"""

from __future__ import annotations

import functools
import inspect
import re
import types
from collections.abc import Callable
from typing import Any, Final, Literal, NoReturn

import torch

from flexfa4.errors import (
    ArgumentError,
    ArityError,
    FlexFA4Error,
    NotAFunctionError,
    OperandError,
    ResultError,
    UnsupportedFunctionError,
    Where,
    describe,
)
from flexfa4.frontend.ir import BOOL, I32, Node
from flexfa4.frontend.tracing import locate
from flexfa4.frontend.tracing.proxies import Operators, as_node, op

Kind = Literal["score", "mask"]

SIGNATURES: Final = {
    "score": "def score_mod(score, b, h, q_idx, kv_idx): ...",
    "mask": "def mask_mod(b, h, q_idx, kv_idx): ...",
}
_RESULTS: Final = {"score": "number", "mask": "bool"}


def other_kind(found: Kind, wanted: Kind) -> dict[str, str]:
    """Return what a `ResultError` says of a mod of the other kind than is wanted."""
    return {
        "name": "the mod",
        "result": f"a {_RESULTS[found]}: it is a {found} mod",
        "expected": f"a {_RESULTS[wanted]} for a {wanted} mod",
        "rewrite": SIGNATURES[wanted],
    }


def code_of(mod: Any) -> Any:
    """Return the code object of the function that a callable runs, its class if there is none."""
    while True:
        kind = type(mod)
        if kind is types.FunctionType:
            return mod.__code__
        if kind is functools.partial:
            mod = mod.func
        elif kind is types.MethodType:
            mod = mod.__func__
        else:
            called = getattr(kind, "__call__", None)  # noqa: B004 - the function, not whether
            called = getattr(called, "__func__", called)  # a classmethod
            return called.__code__ if type(called) is types.FunctionType else kind


def _name(mod: Any) -> str:
    return f"`{getattr(mod, '__name__', type(mod).__name__)}`"


def definition(mod: Any) -> Where | None:
    """Return where a mod is defined, None where that cannot be known."""
    code = code_of(_function(mod))
    return locate.definition(code) if isinstance(code, types.CodeType) else None


def _function(mod: Any) -> Any:
    """Return what has the parameters of a mod: a module's own call takes any."""
    return mod.forward if isinstance(mod, torch.nn.Module) else mod


def check_arity(mod: Any, kind: Kind, needed: int) -> None:
    """Refuse a mod that cannot be called with `needed` arguments.

    Raises:
        ArityError: too few or too many parameters.
    """
    signature = _signature(mod)
    if signature is None:
        return
    try:
        signature.bind(*(None,) * needed)
    except TypeError:
        takes = len(_required(signature))
        raise ArityError(
            where=definition(mod), name=_name(mod), count=takes, rewrite=SIGNATURES[kind]
        ) from None


def _signature(mod: Any) -> inspect.Signature | None:
    mod = _function(mod)
    own = inspect.getattr_static(type(mod), "__call__", None)
    if isinstance(own, (staticmethod, classmethod)):
        mod = mod.__call__  # without this, Python takes the first parameter for `self`
    try:
        return inspect.signature(mod)
    except (TypeError, ValueError):  # a callable written in C
        return None


def _required(signature: inspect.Signature) -> list[inspect.Parameter]:
    """Return the parameters that a call must give."""
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [
        p
        for p in signature.parameters.values()
        if p.default is inspect.Parameter.empty and p.kind not in variable
    ]


def result_node(mod: Any, kind: Kind, result: Any) -> Node:
    """Return the root of the graph: a number for a score mod, a bool for a mask.

    Raises:
        ResultError: the mod returned something else.
    """
    if result is None:
        _refuse_result(mod, kind, "None", "a `return` with the result")
    if not isinstance(result, (Operators, torch.Tensor, bool, int, float)):
        is_tuple = isinstance(result, (tuple, list))
        _refuse_result(mod, kind, f"a {type(result).__name__}",
                       "return one value" if is_tuple else "return a value of the mod")  # fmt: skip
    node = as_node(result)
    if node.length is not None:
        _refuse_result(mod, kind, f"a vector of {node.length} elements",
                       "a reduction such as .sum(-1), or one more index")  # fmt: skip
    if kind == "mask" and node.dtype is not BOOL:
        what = "an integer" if node.dtype is I32 else "a float"
        rewrite = "return result != 0" if node.dtype is I32 else _condition(mod, node)
        _refuse_result(mod, kind, what, rewrite)
    if kind == "score" and node.dtype is BOOL:
        _refuse_result(mod, kind, "a bool", 'return torch.where(condition, score, float("-inf"))')
    return op("to_f32", node) if kind == "score" else node


def _condition(mod: Any, node: Node) -> str:
    """Return what a mask returns instead of a float, most often a bias of 0 and -inf."""
    ends = [a.attr for a in node.args[1:] if a.op == "const"]
    if node.op != "where" or len(ends) < 2 or ends[0] == ends[1]:
        return (
            "return the condition under which a score is kept, such as q_idx >= kv_idx; "
            'for a bias of 0 and -inf: return result > float("-inf")'
        )
    code = code_of(mod)
    text = locate.kept(code) if isinstance(code, types.CodeType) else ""
    if ends[0] > ends[1]:  # the larger is kept
        return f"return {text or 'the condition itself'}"
    return f"return ~({text})" if text else "return the negated condition: ~condition"


def _refuse_result(mod: Any, kind: Kind, result: str, rewrite: str) -> NoReturn:
    code = code_of(mod)
    where = locate.result(code) if isinstance(code, types.CodeType) else None
    expected = f"one {_RESULTS[kind]} for each score from a {kind} mod"
    raise ResultError(
        where=where, name=_name(mod), result=result, expected=expected, rewrite=rewrite
    )


def called(mod: Any, kind: Kind, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Call a mod, and explain what torch refuses before it asks the values that stand for tensors.

    Raises:
        UnsupportedFunctionError: the mod called a method of a class, ``torch.Tensor.abs(x)``.
        OperandError: an argument of a torch function is no number and no tensor.
        NotAFunctionError: the mod is a function written in C that takes other arguments.

    Args:
        mod: what the user gave.
        kind: its kind.
        function: what to call for it.
        arguments: with which arguments.
    """
    try:
        return function(*arguments)
    except RecursionError as error:
        raise UnsupportedFunctionError(
            where=locate.raised(error),
            name="a function that calls itself without an end",
            names="calls that end whatever the score is, after a number of steps that is fixed",
            rewrite="a loop over a fixed range, with torch.where for what depends on the score",
        ) from None
    except FlexFA4Error:
        raise
    except TypeError as error:
        message = str(error)
        if found := _UNBOUND.match(message):
            raise UnsupportedFunctionError(
                where=locate.raised(error),
                name=f"`torch.Tensor.{found[1]}`",
                names="functions of torch, and methods of the values themselves",
                rewrite=f"x.{found[1]}(...)",
            ) from None
        if found := _WRONG_ARGUMENT.match(message):
            raise OperandError(
                where=locate.raised(error),
                name=f"`{found[1]}`",
                operands=f"a {found[3]} as `{found[2]}`",
                expected="traced values, captured tensors, numbers and bools",
                rewrite="convert it to a number or a tensor",
            ) from None
        if locate.raised(error) is None:  # nothing of the user's ran: a function written in C
            name = getattr(mod, "__name__", type(mod).__name__)
            raise NotAFunctionError(
                value=f"`{name}`, which does not take the parameters of a mod",
                rewrite=SIGNATURES[kind],
            ) from None
        raise


# messages of torch
_UNBOUND: Final = re.compile(r"descriptor '(\w+)' for 'torch\._C\.")
_WRONG_ARGUMENT: Final = re.compile(
    r"(\w+)\(\): argument '(\w+)' \(position \d+\) must be \w+, not (\w+)"
)


def check_kind(kind: Any) -> None:
    """Refuse a kind that there is not; None leaves the choice to the number of parameters.

    Raises:
        ArgumentError: it is neither "score" nor "mask".
    """
    if kind not in (None, *SIGNATURES):
        raise ArgumentError(
            name="kind",
            found_value=repr(kind),
            expected='"score", "mask" or None',
            rewrite="kind=None",
        )


def kind_of(fn: Any) -> Kind:
    """Return the kind of a mod by its number of parameters without defaults.

    Raises:
        NotAFunctionError: it has none.
        ArityError: they are neither 4 nor 5.
    """
    if not callable(fn):
        raise NotAFunctionError(value=describe(fn), rewrite=SIGNATURES["mask"])
    signature = _signature(fn)
    required = len(_required(signature)) if signature is not None else 0
    if required in (4, 5):
        return "score" if required == 5 else "mask"
    variable = signature is not None and any(
        p.kind is inspect.Parameter.VAR_POSITIONAL for p in signature.parameters.values()
    )
    raise ArityError(
        where=definition(fn),
        name=_name(fn),
        count="any number of" if variable else required,
        rewrite='flexfa4.trace(fn, kind="score") or flexfa4.trace(fn, kind="mask")'
        if variable
        else SIGNATURES["mask"],
    )
