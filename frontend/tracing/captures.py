"""What a mod captures: every value that it reads is wrapped, so that it can be read again.

A `Session` is one trace.  `Session.wrap` turns a captured value into what the mod sees instead::

    int, float                    HostScalar: a run-time scalar; a change never retraces
    tensor, numpy array           HostTensor: a buffer; sizes may change along indexed axes
    function, partial, method     rebuilt, so that what *it* captures is wrapped too (`recording`)
    list, tuple, dict             the same container of wrapped elements
    module, object                a recording stand-in that wraps what is read (`recording`)
    bool, None, str, dtype ...    itself; a call with another value is traced anew
    everything else               itself; a call with another object is traced anew

The session declares the scalars and buffers that the graph reads and collects in a
`sources.Program` how to read them and under which conditions the trace holds.  A mod is a pure
function: changing something captured is an error.  What a class that is instantiated inside the mod
reads from its module is taken as constant, since its methods are not rebuilt.
"""

from __future__ import annotations

import copy
import functools
import math
import numbers
import operator
import types
import weakref
from collections.abc import Callable
from typing import Any, Final

import torch

from flexfa4.errors import CaptureError
from flexfa4.frontend import ir
from flexfa4.frontend.ir import F32, I32, Buffer, Graph, Node, Scalar
from flexfa4.frontend.tracing import locate, recording
from flexfa4.frontend.tracing.hosts import MATH_FUNCTIONS, HostScalar, HostTensor
from flexfa4.frontend.tracing.proxies import Traced, dtype_class
from flexfa4.frontend.tracing.sources import Attr, Call, Item, Program, Source, describe, identifier

_BY_VALUE: Final = (
    bool, type(None), str, bytes, complex, range, torch.dtype, torch.device, torch.layout,
    torch.memory_format, frozenset, set, type(Ellipsis),
)  # fmt: skip


_CACHED_FUNCTION: Final[Any] = type(functools.lru_cache(int))


class Session:
    """One trace: what it read, declared and required.

    Attributes:
        program: how to read the captured values and check that the trace holds.
        globals_read: for each module by the id of its globals, the function through which they are
            read and what was read.
    """

    def __init__(self) -> None:
        self.program = Program()
        self._names: set[str] = set()
        self._scalars: dict[Source, Scalar] = {}
        self._buffers: dict[Source, Buffer] = {}
        self._static: dict[str, dict[int, int]] = {}
        self._made: dict[int, torch.Tensor] = {}
        self.globals_read: dict[int, tuple[Source, dict[str, Any]]] = {}
        self._snapshots: list[tuple[Source, Callable[[], bool]]] = []

    # ---- leaves of the graph --------------------------------------------------------------------

    def scalar(self, source: Source, value: int | float, name: str = "") -> Node:
        """Return the node of a captured number; its name is made of the source by default."""
        if source not in self._scalars:
            dtype = F32 if isinstance(value, (float, torch.SymFloat)) else I32
            self._scalars[source] = Scalar(self._unique(name or identifier(source)), dtype)
        return ir.scalar(self._scalars[source])

    def buffer(self, source: Source, tensor: torch.Tensor, name: str = "") -> Buffer:
        """Return the declaration of a captured tensor; its name is made of the source by default.

        Raises:
            CaptureError: the tensor is complex, sparse or quantized.
        """
        if source not in self._buffers:
            if tensor.is_complex() or tensor.layout is not torch.strided or tensor.is_quantized:
                kind = "a complex" if tensor.is_complex() else "a sparse or quantized"
                raise CaptureError(
                    where=locate.here(),
                    name=f"`{describe(source)}`",
                    kind=f"{kind} tensor",
                    rewrite="a dense tensor of real numbers, integers or bools",
                )
            self.require_tensor(source, tensor)
            shape = (None,) * tensor.dim()
            unique = self._unique(name or identifier(source))
            self._buffers[source] = Buffer(unique, dtype_class(tensor.dtype), shape)
        return self._buffers[source]

    def static_size(self, source: Source, tensor: torch.Tensor, axis: int) -> int:
        """Return the size along an axis and require it on each call."""
        size = int(tensor.shape[axis])
        self._static.setdefault(self.buffer(source, tensor).name, {})[axis] = size
        guard = f"{describe(source)}.shape[{axis}] == {size}"
        self.program.check(source, lambda t: bool(t.shape[axis] == size), ("size", axis), guard)
        return size

    def _unique(self, stem: str) -> str:
        name = stem
        count = 1
        while name in self._names:
            count += 1
            name = f"{stem}_{count}"
        self._names.add(name)
        return name

    def graph(self, kind: Any, root: Node) -> Graph:
        """Return the graph of a result, with the static sizes that the whole trace came to know."""

        def declared(buffer: Buffer) -> Buffer:
            static = self._static.get(buffer.name, {})
            shape = tuple(static.get(axis) for axis in range(len(buffer.shape)))
            return Buffer(buffer.name, buffer.dtype, shape)

        def replace(node: Node, args: tuple[Node, ...]) -> Node:
            if node.op == "load":
                return ir.load(declared(node.attr), args)
            return ir.with_args(node, args)

        return ir.make_graph(kind, ir.substitute(root, replace))

    def registers(self, graph: Graph) -> tuple[list[int], list[int]]:
        """Return where a run of the program leaves the graph's tensors and scalars."""
        tensors = {decl.name: source for source, decl in self._buffers.items()}
        scalars = {decl.name: source for source, decl in self._scalars.items()}
        return (
            [self.program.register(tensors[b.name]) for b in graph.buffers],
            [self.program.register(scalars[s.name]) for s in graph.scalars],
        )

    # ---- conditions under which the trace holds ----------------------------------------------

    def require_type(self, source: Source, value: Any) -> None:
        """Require a value of exactly this type on each call."""
        kind = type(value)
        # a class is held weakly: a cached trace must not keep a mod's own classes alive
        ref = weakref.ref(kind) if kind.__flags__ & (1 << 9) else lambda: kind  # heap types only
        self.program.check(source, lambda v: type(v) is ref(), ("type", id(kind)))

    def require_tensor(self, source: Source, tensor: torch.Tensor) -> None:
        """Require a tensor of this class of dtypes and this number of axes on each call."""
        rank, dtype = tensor.dim(), dtype_class(tensor.dtype)

        def test(value: Any) -> bool:
            return (
                isinstance(value, torch.Tensor)
                and value.dim() == rank
                and dtype_class(value.dtype) is dtype
            )

        self.program.check(source, test, "tensor")

    def require_true(self, source: Source) -> None:
        """Require on each call what holds by the structure of the code, such as ``f is f``."""
        self.program.check(source, lambda v: v is True, ("value", True))

    def specialise(self, source: Source, value: Any) -> None:
        """Require this value on each call."""
        guard = f"{describe(source)} == {value!r}"
        if type(value) in (set, frozenset):
            value = value.copy()
        kind = type(value)
        if value is None or kind is bool:
            self.program.check(source, lambda v: v is value, ("value", value), guard)
        elif value != value:  # NaN
            self.program.check(source, lambda v: type(v) is kind and v != v, "nan", guard)
        else:
            self.program.check(
                source, lambda v: type(v) is kind and v == value, ("value", repr(value)), guard
            )

    def require_same(self, source: Source, value: Any) -> None:
        """Require this very object on each call."""
        try:
            ref: Callable[[], Any] = weakref.ref(value)
        except TypeError:
            ref = lambda: value  # noqa: E731 - the object cannot be held weakly
        code = (types.ModuleType, types.FunctionType, types.BuiltinFunctionType, type)
        guard = f"{describe(source)} is the same {type(value).__name__}"
        guard = "" if isinstance(value, code) else guard  # what people never mean to vary
        self.program.check(source, lambda v: v is ref(), ("same", id(value)), guard)

    # ---- tensors made inside the mod ---------------------------------------------------------

    def made(self, value: Any) -> Any:
        """Note tensors that torch made while the mod ran; they are constants of the trace."""
        for tensor in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(tensor, torch.Tensor):
                self._made[id(tensor)] = tensor
        return value

    def made_inside(self, tensor: torch.Tensor) -> bool:
        """Return whether the mod made this tensor out of constants."""
        return self._made.get(id(tensor)) is tensor and not tensor.requires_grad

    # ---- wrapping -----------------------------------------------------------------------------

    def computed(self, value: Any, source: Source) -> Any:
        """Wrap the result of a computation on captured values; a bool is not specialised yet."""
        return HostScalar(self, source, value) if type(value) is bool else self.wrap(value, source)

    def wrap(self, value: Any, source: Source, parents: recording.Parents = ()) -> Any:
        """Return what the mod sees instead of a captured value.

        Args:
            value: the value as it is now.
            source: how to read it again.
            parents: the functions being rebuilt around it, which may be what it refers back to.
        """
        kind = type(value)
        if kind in (int, float, torch.SymInt, torch.SymFloat):
            return HostScalar(self, source, value)
        if kind in _BY_VALUE:
            self.specialise(source, value)
            return value
        for accepted, wrapper in _WRAPPERS:
            if isinstance(value, accepted):
                return wrapper(self, value, source, parents)
        return self._wrap_other(value, source, parents)

    def _wrap_other(self, value: Any, source: Source, parents: recording.Parents) -> Any:
        if hasattr(type(value), "__array_interface__"):  # numpy: arrays by memory, scalars by value
            if getattr(value, "shape", None) == () and hasattr(value, "item"):
                return self.wrap(value.item(), Call(operator.methodcaller("item"), (source,)))
            return self.wrap(torch.as_tensor(value), Call(torch.as_tensor, (source,)))
        if isinstance(value, _CACHED_FUNCTION):
            return self.wrap(value.__wrapped__, Attr(source, "__wrapped__"), parents)
        stand_in = recording.instance(self, value, source)
        if stand_in is None:
            self.require_same(source, value)
            return value
        return stand_in

    def watch(self, source: Source, unchanged: Callable[[], bool]) -> None:
        """Remember to check after the trace that something captured was not changed."""
        self._snapshots.append((source, unchanged))

    def check_unchanged(self, where: Any) -> None:
        """Refuse a mod that changed what it captured.

        Raises:
            CaptureError: a variable, container or global was assigned to.
        """
        for source, unchanged in self._snapshots:
            if not unchanged():
                raise CaptureError(
                    where=where,
                    name=f"`{describe(source)}`",
                    kind="changed inside the mod, which is called once and not for every score",
                    rewrite="change it outside the mod",
                )


# ---- wrappers by type --------------------------------------------------------------------------


def _tensor(session: Session, value: torch.Tensor, source: Source, parents: Any) -> HostTensor:
    return HostTensor(session, source, value)


def _traced(session: Session, value: Traced, source: Source, parents: Any) -> Traced:
    node = value.node
    session.program.check(source, lambda v: type(v) is Traced and v.node is node, "node")
    return value


def _partial(session: Session, value: Any, source: Source, parents: Any) -> Any:
    session.require_type(source, value)
    function = session.wrap(value.func, Attr(source, "func"), parents)
    args = session.wrap(value.args, Attr(source, "args"), parents)
    keywords = session.wrap(value.keywords, Attr(source, "keywords"), parents)
    return functools.partial(function, *args, **keywords)


def _method(session: Session, value: types.MethodType, source: Source, parents: Any) -> Any:
    session.require_type(source, value)
    function = session.wrap(value.__func__, Attr(source, "__func__"), parents)
    return types.MethodType(function, session.wrap(value.__self__, Attr(source, "__self__")))


def _sequence(session: Session, value: Any, source: Source, parents: Any) -> Any:
    kind, length = type(value), len(value)
    if all(type(v) in _BY_VALUE for v in value):
        before = copy.copy(value)
        session.program.check(source, lambda v: type(v) is kind and v == before, "all equal")
        same = copy.copy(value)
        session.watch(source, lambda: bool(same == before))
        return same
    session.program.check(source, lambda v: type(v) is kind and len(v) == length, "length")
    items = [session.wrap(v, Item(source, i), parents) for i, v in enumerate(value)]
    if isinstance(value, tuple):
        named = hasattr(kind, "_make")
        return kind._make(items) if named else tuple(items) if kind is torch.Size else kind(items)
    wrapped = copy.copy(value)
    wrapped[:] = items

    def unchanged() -> bool:
        return len(wrapped) == length and all(map(operator.is_, wrapped, items))

    session.watch(source, unchanged)
    return wrapped


def _mapping(session: Session, value: Any, source: Source, parents: Any) -> Any:
    kind, keys = type(value), list(value)
    session.program.check(source, lambda v: type(v) is kind and list(v) == keys, "keys")
    items = {k: session.wrap(v, Item(source, k), parents) for k, v in value.items()}
    wrapped = copy.copy(value)
    wrapped.update(items)

    def unchanged() -> bool:
        return list(wrapped) == keys and all(wrapped[k] is items[k] for k in keys)

    session.watch(source, unchanged)
    return wrapped


def _builtin(session: Session, value: Any, source: Source, parents: Any) -> Any:
    session.require_same(source, value)
    return MATH_FUNCTIONS.get(value.__name__, value) if value.__module__ == "math" else value


def _same(session: Session, value: Any, source: Source, parents: Any) -> Any:
    session.require_same(source, value)
    return value


def _module(session: Session, value: types.ModuleType, source: Source, parents: Any) -> Any:
    if value is math:
        session.require_same(source, value)
        return types.SimpleNamespace(**{**vars(math), **MATH_FUNCTIONS})
    if locate.is_internal(value.__name__) or value.__name__.split(".")[0] == "numpy":
        session.require_same(source, value)
        return value
    return recording.module(session, value, source)


def _number(session: Session, value: Any, source: Source, parents: Any) -> Any:
    """Numbers of other libraries, and subclasses of int and float, by their plain value."""
    if isinstance(value, (int, float)) and not hasattr(value, "dtype"):  # IntEnum and the like
        session.require_same(source, value)
        return value
    plain: Callable[..., Any] = int if isinstance(value, numbers.Integral) else float
    return session.wrap(plain(value), Call(plain, (source,)))


def _mod(session: Session, value: Any, source: Source, parents: Any) -> Any:
    return value.captured(session, source, parents)


def _mod_type() -> type:
    from flexfa4.frontend.tracing.trace import Mod

    return Mod


class _IsMod(type):
    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, _mod_type())


class _AnyMod(metaclass=_IsMod):
    """Stands for `trace.Mod`, which imports this module."""


_WRAPPERS: Final[tuple[tuple[Any, Callable[[Session, Any, Source, Any], Any]], ...]] = (
    (torch.Tensor, _tensor),
    (Traced, _traced),
    (_AnyMod, _mod),
    (types.FunctionType, recording.function),
    (types.MethodType, _method),
    (functools.partial, _partial),
    ((list, tuple), _sequence),
    (dict, _mapping),
    (types.ModuleType, _module),
    (types.BuiltinFunctionType, _builtin),
    (type, _same),
    (numbers.Real, _number),
)
