"""Functions, objects and modules that a mod reaches, rebuilt so that their reads are seen.

A function is rebuilt around its own code object with wrapped closure variables and defaults, and
with globals that are wrapped when they are first read.  An object or module is replaced by a
stand-in whose attributes are read from the real one and wrapped; methods and properties run with
the stand-in as ``self``.  `captures` decides which value gets which treatment and wraps what is
read.
"""

from __future__ import annotations

import builtins
import inspect
import operator
import sys
import types
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import torch

from flexfa4.errors import CaptureError
from flexfa4.frontend.tracing import locate
from flexfa4.frontend.tracing.indexing import View
from flexfa4.frontend.tracing.proxies import Traced
from flexfa4.frontend.tracing.sources import (
    Attr,
    Call,
    Cell,
    Const,
    Default,
    Global,
    KwDefault,
    Source,
    describe,
)

if TYPE_CHECKING:
    from flexfa4.frontend.tracing.captures import Session

Parents = tuple[tuple[types.FunctionType, Source, types.FunctionType], ...]
"""The functions being rebuilt around a value: the real one, its source, the rebuilt one."""


# ---- functions -----------------------------------------------------------------------------------


def function(
    session: Session, value: types.FunctionType, source: Source, parents: Parents
) -> Callable[..., Any]:
    """Return a function with the code of `value` whose captured values are wrapped."""
    original = getattr(value, "_torchdynamo_orig_callable", None)
    if original is not None:  # made by torch.compile
        rebuilt: Callable[..., Any] = session.wrap(
            original, Attr(source, "_torchdynamo_orig_callable"), parents
        )
        return rebuilt
    module = str(value.__globals__.get("__name__", ""))
    if locate.is_internal(module) and not hasattr(value, "__wrapped__"):
        session.require_same(source, value)
        return value
    for known, its_source, its_rebuilt in parents:
        if known is value:  # a function that refers to itself
            session.require_true(Call(operator.is_, (source, its_source)))
            return its_rebuilt
    code = weakref.ref(value.__code__)
    session.program.check(
        source,
        lambda f: type(f) is types.FunctionType and f.__code__ is code(),
        ("code", id(value.__code__)),
    )
    return _rebuild(session, value, source, parents)


def _rebuild(
    session: Session, value: types.FunctionType, source: Source, parents: Parents
) -> types.FunctionType:
    names = value.__code__.co_freevars
    cells = tuple(types.CellType() for _ in names)
    variables = _Globals(session, value, source)
    rebuilt = types.FunctionType(value.__code__, variables, value.__name__, None, cells)
    rebuilt.__qualname__ = value.__qualname__
    parents = (*parents, (value, source, rebuilt))
    variables.parents = parents
    for i, (name, cell, theirs) in enumerate(
        zip(names, cells, value.__closure__ or (), strict=True)
    ):
        try:
            contents = theirs.cell_contents
        except ValueError:  # a variable that has no value yet
            continue
        cell_source = Cell(source, i, name)
        cell.cell_contents = ours = session.wrap(contents, cell_source, parents)
        session.watch(cell_source, _holds(cell, ours))
    parameters = value.__code__.co_varnames[: value.__code__.co_argcount]
    defaults = value.__defaults__ or ()
    rebuilt.__defaults__ = (
        tuple(
            session.wrap(v, Default(source, i, name), parents)
            for i, (v, name) in enumerate(
                zip(defaults, parameters[len(parameters) - len(defaults) :], strict=True)
            )
        )
        or None
    )
    rebuilt.__kwdefaults__ = {
        name: session.wrap(v, KwDefault(source, name), parents)
        for name, v in (value.__kwdefaults__ or {}).items()
    } or None
    for name, v in vars(value).items():
        if name != "__wrapped__":
            setattr(rebuilt, name, session.wrap(v, Attr(source, name), parents))
    return rebuilt


def _holds(cell: types.CellType, value: Any) -> Callable[[], bool]:
    return lambda: cell.cell_contents is value


def _same_globals(f: Any, g: Any) -> bool:
    return f.__globals__ is g.__globals__


class _Globals(dict[str, Any]):
    """The globals of a rebuilt function: each name is read and wrapped when it is first used.

    The interpreter looks names up with ``__missing__`` where globals are a subclass of dict.
    """

    def __init__(self, session: Session, value: types.FunctionType, source: Source) -> None:
        super().__init__(
            __builtins__=_BUILTINS, __name__=str(value.__globals__.get("__name__", ""))
        )
        self.parents: Parents = ()
        self._session, self._function, self._source = session, value, source
        # functions of one module share what they read, so that one global is one captured value
        self._owner, self._read = session.globals_read.setdefault(
            id(value.__globals__), (source, {})
        )
        session.watch(Global(source, "a global"), lambda: len(self) == 2)

    def __missing__(self, name: str) -> Any:
        if name not in self._read:
            value = self._function.__globals__[name]  # KeyError: a builtin, or no such name
            if self._owner != self._source:
                alias = Call(_same_globals, (self._source, self._owner))
                self._session.require_true(alias)
            source = Global(self._owner, name)
            self._read[name] = self._session.wrap(value, source, self.parents)
        return self._read[name]


def _isinstance(value: Any, kinds: Any) -> bool:
    """``isinstance`` for which traced values are tensors, as they are without tracing."""
    if isinstance(value, kinds):
        return True
    is_tensor = issubclass(type(value), (Traced, View))
    return is_tensor and torch.Tensor in (kinds if isinstance(kinds, tuple) else (kinds,))


def _super(*args: Any) -> Any:
    """``super`` for which methods run with the stand-in as ``self`` and are rebuilt, too."""
    if not args:
        frame = sys._getframe(1)
        owner = frame.f_locals["__class__"]
        args = (owner, frame.f_locals[frame.f_code.co_varnames[0]])
    owner, self = args[0], args[1] if len(args) > 1 else None
    if not isinstance(self, _StandIn):
        return super(*args)
    return _Super(owner, self)


_BUILTINS: Final = {**vars(builtins), "isinstance": _isinstance, "super": _super}


# ---- objects and modules -------------------------------------------------------------------------


class _State:
    """What a stand-in stands for."""

    def __init__(self, session: Session, real: Any, source: Source) -> None:
        self.session, self.real, self.source = session, real, source
        self.read: dict[str, Any] = {}


class _StandIn:
    """Base of stand-ins: reads attributes of the real object and wraps them."""

    def __getattribute__(self, name: str) -> Any:
        state = _state(self)
        if name in ("__class__", "__init_subclass__"):
            return getattr(state.real, name)
        if name not in state.read:
            state.read[name] = _read_attribute(self, state, name)
        found = state.read[name]
        return found() if type(found) is _Property else found

    def __setattr__(self, name: str, value: Any) -> None:
        _refuse_assignment(_state(self), name)

    def __delattr__(self, name: str) -> None:
        _refuse_assignment(_state(self), name)


class _Property:
    """A property's function; run on each read, as without tracing."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function

    def __call__(self) -> Any:
        return self._function()


def _state(stand_in: Any) -> _State:
    state: _State = object.__getattribute__(stand_in, "__dict__")[""]
    return state


def _refuse_assignment(state: _State, name: str) -> None:
    raise CaptureError(
        where=locate.here(),
        name=f"`{describe(Attr(state.source, name))}`",
        kind="assigned to inside the mod, which is called once and not for every score",
        rewrite="a local variable, or an assignment outside the mod",
    )


def _read_attribute(stand_in: Any, state: _State, name: str) -> Any:
    session, real, source = state.session, state.real, state.source
    attribute = _MISSING
    if not isinstance(real, types.ModuleType):
        attribute = inspect.getattr_static(type(real), name, _MISSING)
    class_source = Attr(Call(type, (source,)), name)
    if isinstance(attribute, property) and isinstance(attribute.fget, types.FunctionType):
        getter = session.wrap(attribute.fget, Attr(class_source, "fget"))
        return _Property(types.MethodType(getter, stand_in))
    shadowed = name in getattr(real, "__dict__", ())
    if isinstance(attribute, types.FunctionType) and not shadowed:
        return types.MethodType(session.wrap(attribute, class_source), stand_in)
    try:
        value = getattr(real, name)
    except AttributeError:
        session.specialise(Call(hasattr, (source, Const(name))), False)
        raise
    return session.wrap(value, Attr(source, name))


_MISSING: Final = object()


class _Super:
    """What ``super()`` returns in a method of a stand-in."""

    def __init__(self, owner: type, stand_in: Any) -> None:
        self._owner, self._stand_in = owner, stand_in

    def __getattr__(self, name: str) -> Any:
        state = _state(self._stand_in)
        order = type(state.real).__mro__
        for cls in order[order.index(self._owner) + 1 :]:
            attribute = vars(cls).get(name)
            if isinstance(attribute, types.FunctionType):
                source = Attr(Const(cls), name)
                rebuilt = state.session.wrap(attribute, source)
                return types.MethodType(rebuilt, self._stand_in)
        return getattr(super(self._owner, state.real), name)


# Special methods that are about making, changing or copying an object, not about using it.
_NOT_FORWARDED: Final = frozenset((
    "__new__", "__init__", "__init_subclass__", "__class_getitem__", "__set_name__",
    "__getattribute__", "__getattr__", "__setattr__", "__delattr__", "__del__", "__reduce__",
    "__reduce_ex__", "__getstate__", "__setstate__", "__dir__", "__sizeof__", "__subclasshook__",
    "__post_init__", "__repr__",
))  # fmt: skip


def _forward(name: str) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(self, name)(*args, **kwargs)

    return method


def instance(session: Session, real: Any, source: Source) -> Any:
    """Return a stand-in for an object, None where its class allows none."""
    cls = type(real)
    special = {
        name
        for base in cls.__mro__[:-1]
        for name, value in vars(base).items()
        if name[:2] == name[-2:] == "__" and isinstance(value, types.FunctionType)
    }
    methods: dict[str, Any] = {name: _forward(name) for name in special - _NOT_FORWARDED}
    if hasattr(cls, "__del__"):
        methods["__del__"] = lambda self: None
    try:
        make: Callable[..., Any] = type(cls)  # the metaclass
        kind = make(cls.__name__, (_StandIn, cls), {**methods, "__module__": cls.__module__})
        stand_in = object.__new__(kind)
        object.__getattribute__(stand_in, "__dict__")[""] = _State(session, real, source)
    except Exception:  # an enum, a class written in C, a metaclass with rules of its own
        return None
    session.require_type(source, real)
    return stand_in


class _ModuleStandIn(_StandIn, types.ModuleType):
    """A stand-in for a module."""


def module(session: Session, real: types.ModuleType, source: Source) -> Any:
    """Return a stand-in for a module."""
    session.require_same(source, real)
    stand_in = _ModuleStandIn.__new__(_ModuleStandIn)
    types.ModuleType.__init__(stand_in, real.__name__)
    object.__getattribute__(stand_in, "__dict__")[""] = _State(session, real, source)
    return stand_in
