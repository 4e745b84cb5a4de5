"""What a mod captures: every value that it reads is wrapped, so that it can be read again.

A `Session` is one trace.  `Session.wrap` turns a captured value into what the mod sees instead::

    int, float                    HostScalar: a run-time scalar; a change never retraces
    tensor, numpy array           HostTensor: a buffer; sizes may change along indexed axes
    function, partial, method     rebuilt, so that what *it* captures is wrapped too (`recording`)
    list, tuple, dict             the same container of wrapped elements
    object, class, module         a stand-in that wraps what is read (`objects`)
    bool, None, str, dtype ...    itself; a call with another value is traced anew
    enum member, C function       itself; a call with another one is traced anew

The session declares the scalars and buffers that the graph reads and collects in a
`sources.Program` how to read them and under which conditions the trace holds.  A mod is a pure
function: changing something captured is an error, and so is reading a value in a way that could
not be repeated (`escapes`).
"""

from __future__ import annotations

import collections
import copy
import enum
import functools
import math
import numbers
import operator
import types
import weakref
from collections.abc import Callable
from typing import Any, Final, NoReturn

import torch

from flexfa4.errors import CaptureError, UnsupportedFunctionError
from flexfa4.frontend import integers, ir
from flexfa4.frontend.ir import F32, I32, Buffer, Graph, Node, Scalar
from flexfa4.frontend.tracing import classes, locate, objects, recording
from flexfa4.frontend.tracing.hosts import MATH_FUNCTIONS, HostScalar, HostTensor
from flexfa4.frontend.tracing.proxies import Traced, dtype_class
from flexfa4.frontend.tracing.sources import Attr, Call, Item, Program, Source, describe, identifier

_BY_VALUE: Final = (
    bool, type(None), str, bytes, complex, range, torch.dtype, torch.device, torch.layout,
    torch.memory_format, slice, type(Ellipsis), type(NotImplemented),
)  # fmt: skip
# Python's own functions and descriptors: what they give depends on their arguments alone.
_STATELESS: Final = (
    operator.itemgetter, operator.attrgetter, operator.methodcaller, types.MethodDescriptorType,
    types.WrapperDescriptorType, types.GetSetDescriptorType, types.ClassMethodDescriptorType,
    object,
)  # fmt: skip
_PURE_MODULES: Final = (
    "builtins", "math", "cmath", "operator", "_operator", "itertools", "functools", "_functools",
    "_bisect", "_heapq", "_collections", "_abc", "torch", "numpy",
)  # fmt: skip

_CACHED_FUNCTION: Final[Any] = type(functools.lru_cache(int))


class Session:
    """One trace: what it read, declared and required.

    Attributes:
        program: how to read the captured values and check that the trace holds.
        globals_read: for each module by the id of its globals, the function through which they are
            read and what was read.
        stand_ins: the stand-in of each object and class, by its id, and from where it was read.
    """

    def __init__(self) -> None:
        self.program = Program()
        self._names: set[str] = set()
        self._scalars: dict[Source, Scalar] = {}
        self._buffers: dict[Source, Buffer] = {}
        self._static: dict[str, dict[int, int]] = {}
        self._made: dict[int, torch.Tensor] = {}
        self.globals_read: dict[int, tuple[Source, dict[str, Any]]] = {}
        self.stand_ins: dict[int, tuple[Source, Any]] = {}
        self._snapshots: list[tuple[Source, Callable[[], bool]]] = []

    # ---- leaves of the graph --------------------------------------------------------------------

    def scalar(self, source: Source, value: int | float, name: str = "") -> Node:
        """Return the node of a captured number; its name is made of the source by default."""
        if source not in self._scalars:
            dtype = F32 if isinstance(value, (float, torch.SymFloat)) else I32
            if dtype is I32 and type(value) is int:
                self._require_64_bits(source, value)
            self._scalars[source] = Scalar(self._unique(name or identifier(source)), dtype)
        return ir.scalar(self._scalars[source])

    def _require_64_bits(self, source: Source, value: int) -> None:
        if not integers.fits(value):
            raise CaptureError(
                where=locate.here(),
                name=f"`{describe(source)}`",
                kind="an int beyond 64 bits",
                rewrite=f"a float: float({describe(source)})",
            )
        self.program.check(source, integers.fits, "64 bits")

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
        guard = f"{describe(source)} {'is' if value is None else '=='} {value!r}"
        if type(value) is set:
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
        if type(value) in _STATELESS:
            self.require_same(source, value)
            return value
        return objects.instance(self, value, source)

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
    rebuilt = functools.partial(function, *args, **keywords)
    for name, v in vars(value).items():
        setattr(rebuilt, name, session.wrap(v, Attr(source, name), parents))
    return rebuilt


def _method(session: Session, value: types.MethodType, source: Source, parents: Any) -> Any:
    if value.__func__ is torch.autograd.Function.apply.__func__:  # type: ignore[attr-defined]
        return functools.partial(_refuse_custom_backward, describe(source))
    session.require_type(source, value)
    function = session.wrap(value.__func__, Attr(source, "__func__"), parents)
    return types.MethodType(function, session.wrap(value.__self__, Attr(source, "__self__")))


def _refuse_custom_backward(name: str, *args: Any) -> NoReturn:
    raise UnsupportedFunctionError(
        where=locate.here(),
        name=f"`{name}`",
        names="functions whose derivative follows from their forward: a custom backward cannot be "
        "traced",
        rewrite="the forward, written with torch functions",
    )


def _sequence(session: Session, value: Any, source: Source, parents: Any) -> Any:
    kind, length = type(value), len(value)
    if classes.is_users(kind):
        return objects.instance(session, value, source)
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


def _set(session: Session, value: Any, source: Source, parents: Any) -> Any:
    if classes.is_users(type(value)):
        return objects.instance(session, value, source)
    _require_constants(value, source, "a set")
    session.specialise(source, value)
    same = copy.copy(value)
    session.watch(source, lambda: bool(same == value))
    return same


def _require_constants(values: Any, source: Source, kind: str) -> None:
    for value in values:
        code = isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType))
        if not (objects.is_constant(value) or code or isinstance(value, _BY_VALUE)):
            raise CaptureError(
                where=locate.here(),
                name=f"`{describe(source)}`",
                kind=f"{kind} of {type(value).__name__} objects",
                rewrite="a list or a dict that holds them as values",
            )


def _mapping(session: Session, value: Any, source: Source, parents: Any) -> Any:
    kind, keys = type(value), list(value)
    if classes.is_users(kind):
        return objects.instance(session, value, source)
    _require_constants(keys, source, "a dict with keys")
    session.program.check(source, lambda v: type(v) is kind and list(v) == keys, "keys")
    items = {k: session.wrap(v, Item(source, k), parents) for k, v in value.items()}
    wrapped = copy.copy(value)
    dict.update(wrapped, items)  # Counter's own adds

    def unchanged() -> bool:
        return list(wrapped) == keys and all(wrapped[k] is items[k] for k in keys)

    session.watch(source, unchanged)
    return wrapped


def _builtin(session: Session, value: Any, source: Source, parents: Any) -> Any:
    owner = getattr(value, "__self__", None)
    if owner is not None and not isinstance(owner, (types.ModuleType, type)):
        # a method of a list, a dict ...: that of the wrapped one
        session.require_type(source, value)
        name = value.__name__
        session.program.check(source, lambda v: v.__name__ == name, ("name", name))
        return getattr(session.wrap(owner, Attr(source, "__self__"), parents), name)
    session.require_same(source, value)
    module = str(value.__module__ or "torch").split(".")[0]
    if module not in _PURE_MODULES:
        return functools.partial(objects.refuse_compiled, describe(source))
    return MATH_FUNCTIONS.get(value.__name__, value) if value.__module__ == "math" else value


def _class(session: Session, value: type, source: Source, parents: Any) -> Any:
    session.require_same(source, value)
    return classes.user_class(session, value, source) if classes.is_users(value) else value


def _enum_member(session: Session, value: enum.Enum, source: Source, parents: Any) -> Any:
    return objects.enum_member(session, value, source)


def _converted(kind: type) -> Callable[[Session, Any, Source, Any], Any]:
    """Wrap by its content what is a view of, or as good as, a container of this kind."""

    def wrap(session: Session, value: Any, source: Source, parents: Any) -> Any:
        return session.wrap(kind(value), Call(kind, (source,)), parents)

    return wrap


def _module(session: Session, value: types.ModuleType, source: Source, parents: Any) -> Any:
    if value is math:
        session.require_same(source, value)
        return types.SimpleNamespace(**{**vars(math), **MATH_FUNCTIONS})
    if locate.is_internal(value.__name__) or value.__name__.split(".")[0] == "numpy":
        session.require_same(source, value)
        return value
    return objects.module(session, value, source)


def _number(session: Session, value: Any, source: Source, parents: Any) -> Any:
    """Numbers of other libraries by their plain value, subclasses of int and float as objects."""
    if isinstance(value, (int, float)) and not hasattr(value, "dtype"):
        return objects.instance(session, value, source)
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
    (enum.Enum, _enum_member),
    (types.FunctionType, recording.function),
    (types.MethodType, _method),
    (functools.partial, _partial),
    ((list, tuple), _sequence),
    (dict, _mapping),
    ((set, frozenset), _set),
    ((collections.deque, type({}.values()), type({}.keys()), type({}.items())), _converted(list)),
    (types.MappingProxyType, _converted(dict)),
    (types.ModuleType, _module),
    ((types.BuiltinFunctionType, types.MethodWrapperType), _builtin),
    (type, _class),
    (numbers.Real, _number),
)
