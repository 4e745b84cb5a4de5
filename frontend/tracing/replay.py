"""Recorded calls done on traced values: the half of recording under Dynamo that Python runs.

A `Replay` follows one mod.  It is told call by call, in nested tuples of constants, what Dynamo saw
(`tape`), does it on traced values (`proxies`), so that functions, dtypes and errors are those of
`trace`, and tells dtype and shape of the result.  Captured tensors are known by dtype and shape
only; where the size of an axis matters, `UnknownSizeError` asks for it, and the call comes again.

Knows nothing of Dynamo.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

import torch

from flexfa4.errors import TracedBoolError, TracedNumberError, UnsupportedFunctionError
from flexfa4.frontend import ir
from flexfa4.frontend.ir import F32, I32, Node, Scalar
from flexfa4.frontend.places import of_text
from flexfa4.frontend.tracing import contract, proxies, torch_functions, torch_table
from flexfa4.frontend.tracing.captures import Session
from flexfa4.frontend.tracing.contract import Kind
from flexfa4.frontend.tracing.hosts import HostTensor
from flexfa4.frontend.tracing.indexing import Open, View
from flexfa4.frontend.tracing.proxies import Traced, op
from flexfa4.frontend.tracing.sources import Global, Root


class UnknownSizeError(Exception):
    """A step needs the size of an axis that Dynamo does not hold constant."""


class _UnknownSize:
    """The size of such an axis: within it lies every index, and asking for it stops the step."""

    def __init__(self, tensor: int, axis: int) -> None:
        self.text = f"{tensor}.{axis}"

    def __int__(self) -> int:
        raise UnknownSizeError(self.text)

    __index__ = __int__

    def __neg__(self) -> _UnknownSize:
        return self

    def __le__(self, index: int) -> bool:
        return True

    def __gt__(self, index: int) -> bool:
        return True


class _Captured:
    """What a trace asks of a captured tensor, in place of the tensor."""

    layout = torch.strided
    is_quantized = False
    is_nested = False

    def __init__(self, dtype: torch.dtype, shape: list[Any]) -> None:
        self.dtype, self.shape = dtype, shape

    def dim(self) -> int:
        """Return the number of axes."""
        return len(self.shape)

    def is_complex(self) -> bool:
        """Return whether the dtype is complex."""
        return self.dtype.is_complex


@dataclass
class Replay:
    """One mod being traced: the traced value for each stand-in and each captured tensor."""

    kind: Kind
    values: list[Any]
    session: Session = field(default_factory=Session)
    tensors: list[HostTensor] = field(default_factory=list)
    changed: dict[int, str] = field(default_factory=dict)

    @classmethod
    def of(cls, kind: Kind) -> Replay:
        """Return one that has the arguments of a mod."""
        return cls(kind, list(proxies.inputs(kind)))

    def declare(self, dtype: torch.dtype, sizes: tuple[int | None, ...]) -> None:
        """Note the next captured tensor; None is a size that Dynamo does not hold constant."""
        number = len(self.tensors)
        shape = [_UnknownSize(number, axis) if n is None else n for axis, n in enumerate(sizes)]
        tensor: Any = _Captured(dtype, shape)
        self.tensors.append(HostTensor(self.session, Global(Root(), f"tensor{number}"), tensor))

    def tell_size(self, tensor: int, axis: int, size: int) -> None:
        """Note a size that a step asked for."""
        shape: Any = self.tensors[tensor].value.shape
        shape[axis] = size

    def operand(self, reference: Any) -> Any:
        """Return what an operand is here; see `Tape._refer`."""
        match reference:
            case ("value", i):
                if i in self.changed:
                    torch_table.unsupported(self.changed[i])
                return self.values[i]
            case ("tensor", i):
                return self.tensors[i]
            case ("int", i):
                return Traced(ir.scalar(Scalar(f"int{i}", I32)))
            case ("float", i):
                return Traced(ir.scalar(Scalar(f"float{i}", F32)))
            case ("list", items):
                return tuple(map(self.operand, items))
            case ("slice", parts):
                return slice(*map(self.operand, parts))
            case ("node", name, attr, args):
                return Traced(
                    _node(name, attr, tuple(self.operand(("node", *a[1:])) for a in args))
                )
            case ("constant", value):
                return value
        raise AssertionError(reference)

    def call(self, how: str, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Do one recorded call."""
        if how == "operate":
            return proxies.operate(name, *args)
        if how == "inline":
            return self._inline(name, *args)
        refused = _REFUSED.get(name)
        if refused is not None:
            refused(name, args[0])
        if name.startswith("__"):
            name = _OTHER_NAMES.get(name, name)
            result = getattr(args[0], name)(*args[1:])
            if result is NotImplemented:
                torch_table.unsupported(name)
            return result
        if how == "function" and name not in torch_functions.FUNCTIONS and hasattr(operator, name):
            return getattr(operator, name)(*args)
        is_value = isinstance(args[0], (Traced, View)) and not isinstance(args[0], HostTensor)
        if name.endswith("_") and is_value:
            name = name.removesuffix("_")  # `x += 1`: x is then another value
        return torch_functions.call(
            torch_functions.plain_name(name), args, kwargs, is_method=how == "method"
        )

    def note_change(self, name: str, args: Any) -> None:
        """Note the value that a call such as ``x += 1`` or ``x.add_(1)`` changed.

        Values are immutable: what the call gives is another one, and the old one, which torch would
        have changed for whoever holds it, is not to be read again.
        """
        is_change = name in _OTHER_NAMES and name.startswith("__i")
        if is_change or (name.endswith("_") and not name.startswith("__")):
            kind, number = args[1][0]
            if kind == "value":
                self.changed[number] = name

    def _inline(self, text: str, tensors: Any, scalars: Any, args: Any) -> Traced:
        from flexfa4.frontend.text.printing import parse_graph
        from flexfa4.frontend.tracing.trace import inline_graph

        graph = parse_graph(text).graph
        leaves: dict[Any, Any] = {}
        for buffer, tensor in zip(graph.buffers, tensors, strict=True):
            leaves[buffer] = self.session.buffer(tensor.source, tensor.value)
            for axis, size in enumerate(buffer.shape):
                if size is not None:
                    self.session.static_size(tensor.source, tensor.value, axis)
        for scalar, number in zip(graph.scalars, scalars, strict=True):
            leaves[scalar] = op("to_" + scalar.dtype.value, proxies.as_node(number))
        return inline_graph(graph, args, leaves)

    def describe(self, result: Any) -> str:
        """Return dtype and shape of a result, as `Tape._stand_in` reads them."""
        if isinstance(result, View):
            entries = enumerate(result.entries)
            sizes = [self._axis(result, axis, e) for axis, e in entries if isinstance(e, Open)]
        elif isinstance(result, Traced):
            sizes = [str(n) for n in result.shape]
        else:
            raise UnsupportedFunctionError(
                name=f"a function that gives {type(result).__name__}",
                names="functions that give one value for each score",
                rewrite="element-wise functions and reductions over one axis",
            )
        self.values.append(result)
        return f"{str(result.dtype)[6:]}|{','.join(sizes)}"

    def _axis(self, view: View, axis: int, entry: Open) -> str:
        if entry.length is not None:
            return str(entry.length)
        size: Any = view._tensor.value.shape[axis]
        return f"t{size.text}" if isinstance(size, _UnknownSize) else str(size)

    def graph_text(self, result: Any) -> str:
        """Return the order of tensors, ints and floats, a line each, and the graph's text."""
        from flexfa4.frontend.pipeline import optimise
        from flexfa4.frontend.text.printing import to_text

        root = contract.result_node(_THE_MOD, self.kind, result)
        graph = optimise(self.session.graph(self.kind, root))
        names = [b.name.removeprefix("tensor") for b in graph.buffers]
        ints = [s.name.removeprefix("int") for s in graph.scalars if s.dtype is I32]
        floats = [s.name.removeprefix("float") for s in graph.scalars if s.dtype is F32]
        text = to_text(graph)
        of_text(text).add(self.session.places())
        return "\n".join([*map(" ".join, (names, ints, floats)), text])


# Stands for the user's function in messages; Dynamo says which it is, and where.
_THE_MOD: Final = type("mod", (), {})()


def _node(name: str, attr: Any, args: tuple[Traced, ...]) -> Node:
    if name == "const":
        return ir.const(attr)
    return ir.symbol(attr) if name == "symbol" else op(name, *[a.node for a in args])


# torch's names of Python 2's operators, and Python's of `x &= y`, which gives another value here
_OTHER_NAMES: Final = {
    "__div__": "__truediv__",
    "__rdiv__": "__rtruediv__",
    **{f"__i{name}__": f"__{name}__" for name in ("and", "or", "xor", "lshift", "rshift")},
}


def _refuse_truth(name: str, value: Any) -> NoReturn:
    raise TracedBoolError(
        construct="`if`, `and`, `or`, `not` or a chained comparison",
        expression=repr(value),
        rewrite="(q_idx >= kv_idx) & ~other, torch.where(condition, a, b)",
    )


def _refuse_number(name: str, value: Any) -> NoReturn:
    raise TracedNumberError(
        construct=f"`{name.strip('_')}`",
        expression=repr(value),
        rewrite="the value itself, or value.to(torch.float32)",
    )


_REFUSED: Final[dict[str, Callable[[str, Any], NoReturn]]] = {
    "__bool__": _refuse_truth,
    **dict.fromkeys(
        ("__int__", "__float__", "__index__", "item", "tolist", "numpy"), _refuse_number
    ),
}
