"""Mods under ``torch.compile``: recorded while Dynamo traces the user's function.

Dynamo runs the user's Python symbolically, closures, partials and objects included, and guards what
it reads.  So nothing of `trace` can run there; but a torch function mode can, and sees every torch
call.  `record` calls the mod with stand-ins, empty tensors on the CPU, under such a mode:

    the user's function       inlined by Dynamo
    Tape                      inlined too: names each operand, hands the call to `_step`
    _step                     run by Python itself: does the call on traced values (`replay`), and
                              tells the dtype and shape of the stand-in for its result

At the end the graph is text, the captured tensors are tensors of Dynamo's graph, and the captured
numbers are either constants of the text, where Dynamo holds them for constant, or symbolic numbers
of Dynamo's graph, whose change compiles nothing anew.  A computation on captures alone does not
come here: it is an ordinary part of Dynamo's graph.

This module does not call attention (`flexfa4.torch_op`), and nothing imports it unless Dynamo
traces: it loads much of torch.
"""

from __future__ import annotations

import functools
import itertools
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NoReturn, TypeVar, cast

import torch
from torch._dynamo.comptime import comptime
from torch.fx.experimental.symbolic_shapes import has_static_value
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

from flexfa4.errors import FlexFA4Error, OperandError, UnsupportedFunctionError
from flexfa4.frontend.binding import BoundGraph
from flexfa4.frontend.ir import Node
from flexfa4.frontend.tracing import torch_functions, trace
from flexfa4.frontend.tracing.contract import Kind
from flexfa4.frontend.tracing.dynamo import (
    compare_nodes,
    constant,
    is_absolute_value,
    is_stand_in,
    let_modes_change,
    look_at,
    maker,
    mark,
    outside,
    place,
    refuse,
    unseen_change,
)
from flexfa4.frontend.tracing.indexing import View
from flexfa4.frontend.tracing.proxies import Traced
from flexfa4.frontend.tracing.replay import Replay, UnknownSizeError

F = TypeVar("F", bound=Callable[..., Any])

# ---- what Dynamo traces --------------------------------------------------------------------------

_DTYPES: Final = {
    "float32": torch.float32,
    "int64": torch.int64,
    "bool": torch.bool,
}
INPUTS: Final = {
    "score": ("float32", "int64", "int64", "int64", "int64"),
    "mask": ("int64", "int64", "int64", "int64"),
}
_CONSTANTS: Final = (
    int, float, complex, str, type(None), type(Ellipsis), torch.dtype, torch.device, torch.layout,
    torch.memory_format,
)  # fmt: skip
# Asked of a stand-in, these are answered by the stand-in: it has the dtype and the shape.
_ABOUT_THE_TENSOR: Final = (
    "size", "dim", "ndimension", "is_floating_point", "is_complex", "numel", "__len__", "__get__",
)  # fmt: skip


@dataclass(frozen=True)
class Recorded:
    """A mod as what a registered op takes.

    Attributes:
        text: the graph.
        tensors: captured tensors, in the order in which the text declares them.
        ints: captured ints, likewise.
        floats: captured floats, likewise.
    """

    text: str
    tensors: list[torch.Tensor]
    ints: list[int]
    floats: list[float]


def running() -> Tape | None:
    """Return the tape of the mod that Dynamo traces now, None where it traces something else."""
    for mode in _get_current_function_mode_stack():  # type: ignore[no-untyped-call]
        if isinstance(mode, Tape):
            return mode
    return None


def record(mod: Callable[..., Any], kind: Kind) -> Recorded:
    """Call a mod once under Dynamo and return what it computes.

    Args:
        mod: a Python callable; see `contract` for its parameters.
        kind: ``"score"`` or ``"mask"``.

    Raises:
        TraceError: as `trace.resolve`; Dynamo reports it with the user's line.
    """
    tape = Tape(kind)
    with torch._dynamo.error_on_graph_break(True):
        let_modes_change(True)
        with tape:
            let_modes_change(False)
            result = mod(*tape.arguments)
            let_modes_change(True)
        let_modes_change(False)
    return tape.finish(result)


def fixed(number: int) -> int:
    """Return an int that Dynamo holds constant from here on: range() asks for the value."""
    return range(number, number + 1)[0]


def _varies(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is a stand-in, or what Dynamo made of one without a torch call."""
    comptime(look_at)  # reads `tensor`
    return is_stand_in()


class Tape(TorchFunctionMode):
    """Records torch calls on stand-ins; Dynamo runs this class symbolically.

    Attributes:
        arguments: the stand-ins with which to call the mod.
    """

    def __init__(self, kind: Kind) -> None:
        super().__init__()
        self._replay = _begin(kind)
        self._kind = kind
        self._has_gradient = torch.is_grad_enabled()
        self._stand_ins: list[torch.Tensor] = []
        self._tensors: list[torch.Tensor] = []
        self._ints: list[int] = []
        self._floats: list[float] = []
        for dtype in INPUTS[kind]:
            self._stand_in(dtype + "|")
        self.arguments = tuple(self._stand_ins)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Handle one call."""
        named = kwargs or {}
        name = func.__name__
        if name in _ABOUT_THE_TENSOR:
            return func(*args, **named)
        if not self._concerns((args, named)):
            return func(*args, **named)
        how = "method" if getattr(torch.Tensor, name, None) is func else "function"
        return self.record(how, name, args, named)

    def operate(self, name: str, args: tuple[Any, ...]) -> torch.Tensor:
        """Apply an operator to sizes such as ``flexfa4.q_len``, which are no tensors."""
        return self.record("operate", name, args, {})

    def inline(self, text: str, tensors: Any, scalars: Any, args: tuple[Any, ...]) -> torch.Tensor:
        """Return the value of a text mod that is called inside the mod."""
        # new containers: Dynamo cannot guard those of a mod that `parsed` made
        values = tuple([*tensors]), tuple([*scalars])
        return self.record("inline", text, (*values, args), {})

    def record(
        self, how: str, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> torch.Tensor:
        """Have a call done on traced values, and return the stand-in of its result."""
        if self._kind == "score" and torch.is_grad_enabled() != self._has_gradient:
            refuse(
                UnsupportedFunctionError,
                name="`torch.no_grad`",
                names="functions that have a gradient: a mod cannot stop the gradient of a part",
                rewrite="the mod without it; detach captured tensors outside: t = t.detach()",
            )
        positional = self._refer(args)
        named = tuple([(key, self._refer(value)) for key, value in kwargs.items()])
        found = _step(self._replay, how, name, positional, named)
        while found.startswith("size "):
            self._specialise(found)
            found = _step(self._replay, how, name, positional, named)
        return self._stand_in(found)

    def finish(self, result: Any) -> Recorded:
        """Return what the mod computes."""
        found = _finish(self._replay, self._refer(result))
        while found.startswith("size "):
            self._specialise(found)
            found = _finish(self._replay, self._refer(result))
        tensors, ints, floats, text = found.split("\n", 3)
        return Recorded(
            text,
            [self._tensors[int(i)] for i in tensors.split()],
            [self._ints[int(i)] for i in ints.split()],
            [self._floats[int(i)] for i in floats.split()],
        )

    def _stand_in(self, description: str) -> torch.Tensor:
        """Return an empty tensor of a described dtype and shape, such as ``float32|3,t0.1``."""
        dtype, _, shape = description.partition("|")
        sizes = [self._size(size) for size in shape.split(",") if size]
        # This line is what Dynamo shows for an `if` on a value of a mod: write torch.where instead.
        tensor = torch.empty(sizes, dtype=_DTYPES[dtype], device="cpu")  # no `if`: use torch.where
        comptime(mark)  # reads `tensor`
        self._stand_ins.append(tensor)
        return tensor

    def _size(self, text: str) -> int:
        if text[0] != "t":
            return int(text)
        tensor, _, axis = text[1:].partition(".")
        return self._tensors[int(tensor)].shape[int(axis)]

    def _specialise(self, request: str) -> None:
        """Hold the size that a step asks for constant, and tell it."""
        tensor, axis = [int(part) for part in request[5:].split(".")]
        size = self._tensors[tensor].shape[axis]
        _tell_size(self._replay, tensor, axis, fixed(size))

    def _concerns(self, value: Any) -> bool:
        """Return whether an argument, however deeply nested, differs from score to score."""
        if isinstance(value, torch.Tensor):
            return _varies(value)
        if isinstance(value, (tuple, list)):
            return any([self._concerns(v) for v in value])
        if isinstance(value, dict):
            return any([self._concerns(v) for v in value.values()])
        return isinstance(value, Traced)

    def _refer(self, value: Any) -> Any:
        """Return an operand as nested tuples of constants, which `Replay.operand` reads."""
        if type(value).__name__ == "ndarray":  # Dynamo has tensors for numpy's arrays
            value = torch.as_tensor(value)
        if isinstance(value, torch.Tensor):
            return self._refer_to_tensor(value)
        if isinstance(value, (tuple, list)):
            return ("list", tuple([self._refer(v) for v in value]))
        if isinstance(value, Traced):
            return self._refer_to_node(value._node)
        if isinstance(value, slice):
            return ("slice", tuple([self._refer(v) for v in (value.start, value.stop, value.step)]))
        if isinstance(value, bool):
            return ("constant", True if value else False)  # noqa: SIM210 - bool() stays symbolic
        if isinstance(value, int):
            if has_static_value(value):
                return ("constant", fixed(value))
            self._ints.append(value)
            return ("int", len(self._ints) - 1)
        if isinstance(value, float) and not has_static_value(value):
            self._floats.append(value)
            return ("float", len(self._floats) - 1)
        if not isinstance(value, _CONSTANTS):
            refuse(
                OperandError,
                name="an operation on scores or indices",
                operands=f"a {type(value).__name__}",
                expected="traced values, captured tensors, numbers and bools",
                rewrite="convert it to a number or a tensor",
            )
        return ("constant", value)

    def _refer_to_tensor(self, tensor: torch.Tensor) -> Any:
        if _varies(tensor):
            for i, known in enumerate(self._stand_ins):
                if known is tensor:
                    if change := unseen_change():
                        _note_change(self._replay, i, change)
                    return ("value", i)
            return self._refer_to_tensor(self._seen_late(tensor))
        for i, known in enumerate(self._tensors):
            if known is tensor:
                return ("tensor", i)
        self._tensors.append(tensor)
        sizes = tuple([fixed(n) if has_static_value(n) else None for n in tensor.shape])
        _declare(self._replay, tensor.dtype, sizes)
        return ("tensor", len(self._tensors) - 1)

    def _seen_late(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the stand-in of a result that Dynamo made without a torch call: ``abs(x)``."""
        name = maker()
        for known in self._stand_ins:
            comptime(compare_nodes)  # reads `tensor` and `known`
            if is_absolute_value():
                return self.record("function", "abs", (known,), {})
        _refuse_unseen(name)

    def _refer_to_node(self, node: Node) -> Any:
        """Return an expression of sizes, which may have been made before Dynamo began."""
        attr = node.attr
        return ("node", node.op, attr, tuple([self._refer_to_node(a) for a in node.args]))


# ---- what Python runs ----------------------------------------------------------------------------

# Dynamo traces one mod after the other; what is left of traces that it gave up is dropped.
_KEPT: Final = 16
_REPLAYS: Final[OrderedDict[str, Replay]] = OrderedDict()
_NUMBERS: Final = itertools.count()


@constant
def _begin(kind: Kind) -> str:
    name = f"{kind} {next(_NUMBERS)}"
    _REPLAYS[name] = Replay.of(kind)
    if len(_REPLAYS) > _KEPT:
        _REPLAYS.popitem(last=False)
    return name


@constant
def _declare(name: str, dtype: torch.dtype, sizes: tuple[int | None, ...]) -> None:
    _REPLAYS[name].declare(dtype, sizes)


@constant
def _note_change(name: str, stand_in: int, function: str) -> None:
    _REPLAYS[name].changed[stand_in] = function


@constant
def _tell_size(name: str, tensor: int, axis: int, size: int) -> None:
    _REPLAYS[name].tell_size(tensor, axis, size)


trace_outside: Final = outside(trace.trace, "flexfa4.trace")
parse_outside: Final = outside(trace.parse, "flexfa4.parse with values for names")


@constant
def parsed(text: str) -> BoundGraph:
    """Return the graph of a text mod without bindings."""
    return trace.parse(text).bind()


@constant
def parsed_text(text: str) -> str:
    """Return the text form of that graph."""
    return str(trace.parse(text).graph)


@constant
def parsed_kind(text: str) -> Kind:
    """Return its kind."""
    return trace.parse(text).kind


def _for_dynamo(function: F) -> F:
    """Make a function of this module one that Dynamo calls, and whose result it takes as is.

    Its errors lose their place, which would be in torch: Dynamo adds the user's.
    """

    @functools.wraps(function)
    def run(*args: Any) -> Any:
        try:
            return function(*args)
        except UnknownSizeError as error:
            return f"size {error}"
        except FlexFA4Error as error:
            raise type(error)(**error.fields) from None

    return cast(F, constant(run))


@_for_dynamo
def _refuse_unseen(function: str) -> NoReturn:
    torch_functions.refuse_random(function)
    raise OperandError(
        name=f"`{function}`",
        operands="a value of the mod, and torch.compile did not see it",
        expected="operators, torch functions and methods of the values",
        rewrite="torch.abs(x) for abs(x)",
    )


@_for_dynamo
def _step(name: str, how: str, function: str, args: Any, kwargs: Any) -> str:
    replay = _REPLAYS[name]
    named = {key: replay.operand(value) for key, value in kwargs}
    result = replay.call(how, function, replay.operand(args), named)
    if isinstance(result, View):
        result.made_at(place())
    if how in ("method", "function"):
        replay.note_change(function, args)
    return replay.describe(result)


@_for_dynamo
def _finish(name: str, result: Any) -> str:
    replay = _REPLAYS[name]
    return replay.graph_text(replay.operand(result))
