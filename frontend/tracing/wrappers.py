"""What a mod sees instead of each captured value, by the value's type.

Every value that a mod reads is wrapped, so that it can be read again::

    int, float                    HostScalar: a run-time scalar; a change never retraces
    tensor, numpy array           HostTensor: a buffer; sizes may change along indexed axes
    function, partial, method     rebuilt, so that what *it* captures is wrapped too (`recording`)
    list, tuple, dict             the same container of wrapped elements
    object, class, module         a stand-in that wraps what is read (`objects`)
    bool, None, str, dtype ...    itself; a call with another value is traced anew
    enum member, C function       itself; a call with another one is traced anew

The table at the end says which type gets which treatment; `captures.Session` keeps what they note.
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
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NoReturn

import torch

from flexfa4.errors import CaptureError, UnsupportedFunctionError
from flexfa4.frontend.tracing import classes, locate, objects, recording
from flexfa4.frontend.tracing.combining import KnownMod, inside
from flexfa4.frontend.tracing.hosts import MATH_FUNCTIONS, HostScalar, HostTensor
from flexfa4.frontend.tracing.proxies import Traced
from flexfa4.frontend.tracing.sources import Attr, Call, Item, Source, describe

if TYPE_CHECKING:
    from flexfa4.frontend.tracing.captures import Session

_BY_VALUE: Final = (
    bool, type(None), str, bytes, complex, range, torch.dtype, torch.device, torch.layout,
    torch.memory_format, slice, type(Ellipsis), type(NotImplemented),
)  # fmt: skip
# Python's own functions and descriptors, and registered ops of torch: what they give depends on
# their arguments alone.
_STATELESS: Final = (
    operator.itemgetter, operator.attrgetter, operator.methodcaller, types.MethodDescriptorType,
    types.WrapperDescriptorType, types.GetSetDescriptorType, types.ClassMethodDescriptorType,
    object, torch._ops.OpOverload, torch._ops.OpOverloadPacket,
    torch._library.custom_ops.CustomOpDef,
)  # fmt: skip
_PURE_MODULES: Final = (
    "builtins", "math", "cmath", "operator", "_operator", "itertools", "functools", "_functools",
    "_bisect", "_heapq", "_collections", "_abc", "torch", "numpy",
)  # fmt: skip

_CACHED_FUNCTION: Final[Any] = type(functools.lru_cache(int))


def wrap(session: Session, value: Any, source: Source, parents: recording.Parents) -> Any:
    """Return what a mod sees instead of a captured value; see `captures.Session.wrap`."""
    kind = type(value)
    if kind in (int, float, torch.SymInt, torch.SymFloat):
        return HostScalar(session, source, value)
    if kind in _BY_VALUE:
        session.specialise(source, value)
        return value
    for accepted, wrapper in _WRAPPERS:
        if isinstance(value, accepted):
            return wrapper(session, value, source, parents)
    return _other(session, value, source, parents)


def _other(session: Session, value: Any, source: Source, parents: recording.Parents) -> Any:
    if hasattr(type(value), "__array_interface__"):  # numpy: arrays by memory, scalars by value
        if getattr(value, "shape", None) == () and hasattr(value, "item"):
            return session.wrap(value.item(), Call(operator.methodcaller("item"), (source,)))
        return session.wrap(torch.as_tensor(value), Call(torch.as_tensor, (source,)))
    if isinstance(value, _CACHED_FUNCTION):
        return session.wrap(value.__wrapped__, Attr(source, "__wrapped__"), parents)
    if type(value) in _STATELESS:
        session.require_same(source, value)
        return value
    return objects.instance(session, value, source)


# ---- by type -------------------------------------------------------------------------------------


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


def _mod(session: Session, value: KnownMod, source: Source, parents: Any) -> Any:
    return inside(value, value.captured(session, source, parents))


_WRAPPERS: Final[tuple[tuple[Any, Callable[[Session, Any, Source, Any], Any]], ...]] = (
    (torch.Tensor, _tensor),
    (Traced, _traced),
    (KnownMod, _mod),
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
