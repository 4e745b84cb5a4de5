"""Stand-ins for the objects and modules that a mod reaches, which see every read.

A `StandIn` takes the place of a captured object: its attributes are read from the real one and
wrapped; methods and properties run with the stand-in as ``self``.  What is compiled code offers
attributes only: its operators and methods would read values unseen and are refused.

`wrappers` decides which value gets which treatment and wraps what is read; `classes` has the
stand-ins for classes, `recording` rebuilds functions.
"""

from __future__ import annotations

import enum
import inspect
import operator
import sys
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NoReturn

from flexfa4.errors import CaptureError, ChangedCaptureError
from flexfa4.frontend.tracing import locate
from flexfa4.frontend.tracing.sources import Attr, Call, Const, Item, Source, describe

if TYPE_CHECKING:
    from flexfa4.frontend.tracing.captures import Session

MISSING: Final = object()
PYTHON_METHODS: Final = (types.FunctionType, staticmethod, classmethod)
COMPILED_METHODS: Final = (types.MethodDescriptorType, types.WrapperDescriptorType)


class State:
    """What a stand-in stands for."""

    def __init__(self, session: Session, real: Any, source: Source) -> None:
        self.session, self.real, self.source = session, real, source
        self.read: dict[str, Any] = {}


def state_of(stand_in: Any) -> State:
    """Return what a stand-in stands for."""
    state: State = object.__getattribute__(stand_in, "__dict__")[""]
    return state


class StandIn:
    """Base of stand-ins: reads attributes of the real object and wraps them."""

    def __getattribute__(self, name: str) -> Any:
        state = state_of(self)
        if name == "__class__":
            return state.session.wrap(type(state.real), Call(type, (state.source,)))
        if name == "__init_subclass__":
            return getattr(state.real, name)
        if name not in state.read:
            state.read[name] = _read_attribute(self, state, name)
        found = state.read[name]
        return found() if type(found) is _Property else found

    def __setattr__(self, name: str, value: Any) -> None:
        refuse_assignment(state_of(self), name)

    def __delattr__(self, name: str) -> None:
        refuse_assignment(state_of(self), name)


class _Property:
    """A property's function; run on each read, as without tracing."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function

    def __call__(self) -> Any:
        return self._function()


def refuse_assignment(state: State, name: str) -> None:
    """Refuse to change a captured object."""
    raise ChangedCaptureError(
        where=locate.here(),
        name=f"`{describe(Attr(state.source, name))}`",
        change="assigned to",
        rewrite="a local variable, or an assignment outside the mod",
    )


def refuse_compiled(what: str) -> NoReturn:
    """Refuse to run compiled code that reads values unseen."""
    raise CaptureError(
        where=locate.here(),
        name=f"`{what}`",
        kind="compiled code, whose result could change without notice",
        rewrite="call it outside the mod and capture the result",
    )


def _own(value: Any, name: str) -> bool:
    return name in getattr(value, "__dict__", ())


def _read_attribute(stand_in: Any, state: State, name: str) -> Any:
    session, real, source = state.session, state.real, state.source
    attribute = MISSING
    if not isinstance(real, types.ModuleType):
        attribute = inspect.getattr_static(type(real), name, MISSING)
    class_source = Attr(Call(type, (source,)), name)
    if isinstance(attribute, property) and isinstance(attribute.fget, types.FunctionType):
        getter = session.wrap(attribute.fget, Attr(class_source, "fget"))
        return _Property(types.MethodType(getter, stand_in))
    if isinstance(attribute, (types.FunctionType, *COMPILED_METHODS)) and not _own(real, name):
        session.program.check(source, lambda v: not _own(v, name), ("not its own", name))
        if isinstance(attribute, types.FunctionType):
            return types.MethodType(session.wrap(attribute, class_source), stand_in)
        if is_visible(attribute.__objclass__):
            return attribute.__get__(stand_in, type(stand_in))
        return refusal(describe(Attr(source, name)))
    try:
        value = getattr(real, name)
    except AttributeError:
        session.specialise(Call(hasattr, (source, Const(name))), False)
        raise
    return session.wrap(value, Attr(source, name))


def refusal(what: str) -> Callable[..., Any]:
    """Return a callable that refuses, for a compiled method or operator."""
    return lambda *args, **kwargs: refuse_compiled(what)


# ---- objects -------------------------------------------------------------------------------------

# Special methods that are about making, changing or copying an object, not about using it.
_NOT_FORWARDED: Final = frozenset((
    "__new__", "__init__", "__init_subclass__", "__class_getitem__", "__set_name__",
    "__getattribute__", "__getattr__", "__setattr__", "__delattr__", "__del__", "__reduce__",
    "__reduce_ex__", "__getstate__", "__setstate__", "__dir__", "__sizeof__", "__subclasshook__",
    "__post_init__", "__repr__",
))  # fmt: skip


def forward(name: str) -> Callable[..., Any]:
    """Return a special method that calls the wrapped one of that name."""

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(self, name)(*args, **kwargs)

    return method


def special_methods(cls: type, kinds: tuple[type, ...]) -> dict[str, type]:
    """Return the special methods of some kinds that a class has, and who defines them."""
    return {
        name: base
        for base in reversed(cls.__mro__[:-1])
        for name, value in vars(base).items()
        if name[:2] == name[-2:] == "__" and isinstance(value, kinds) and name not in _NOT_FORWARDED
    }


# Compiled classes whose content a stand-in holds itself, and how it is filled.
_CONTENT: Final = (dict, list, tuple, int, float, complex, str, bytes)


def is_visible(cls: type) -> bool:
    """Return whether methods of a compiled class read only what its stand-ins hold."""
    return cls is object or cls in _CONTENT


def _compiled_base(cls: type) -> type:
    """Return the compiled class that lays out a class's objects."""
    return next(
        c for c in cls.__mro__ if isinstance(vars(c).get("__new__"), types.BuiltinFunctionType)
    )


def _same_items(a: dict[Any, Any], b: dict[Any, Any]) -> bool:
    same = (v is dict.get(b, k, MISSING) for k, v in dict.items(a))
    return dict.__len__(a) == len(b) and all(same)


def _fill(kind: type, base: type, session: Session, real: Any, source: Source) -> Any:
    """Return an object of `kind`, a subclass of `base`, with the wrapped content of `real`."""
    make: Any = base.__new__
    if base in (list, tuple):
        length = len(real)
        session.program.check(source, lambda v: len(v) == length, "length")
        items = [session.wrap(v, Item(source, i)) for i, v in enumerate(base.__iter__(real))]
        if base is tuple:
            return make(kind, items)
        stand_in = make(kind)
        list.extend(stand_in, items)
        session.watch(
            source, lambda: len(stand_in) == length and all(map(operator.is_, stand_in, items))
        )
        return stand_in
    if base is dict:
        stand_in = make(kind)
        plain = session.wrap(dict(real), Call(dict, (source,)))
        dict.update(stand_in, plain)
        session.watch(source, lambda: _same_items(stand_in, plain))
        return stand_in
    if base in _CONTENT:
        value = base(real)
        session.program.check(source, lambda v: base(v) == value, ("value", repr(value)),
                              f"{describe(source)} == {value!r}")  # fmt: skip
        return make(kind, value)
    return make(kind)


def instance(session: Session, real: Any, source: Source) -> Any:
    """Return the stand-in for an object; one object has one, whatever the paths to it."""
    known = session.stand_ins.get(id(real))
    if known is not None:
        if known[0] != source:
            session.require_true(Call(operator.is_, (source, known[0])))
        return known[1]
    session.require_type(source, real)
    stand_in = _subclassed(session, real, source)
    if stand_in is None:
        stand_in = _opaque(real)
    object.__getattribute__(stand_in, "__dict__")[""] = State(session, real, source)
    session.stand_ins[id(real)] = source, stand_in
    return stand_in


def _refusing(cls: type) -> dict[str, Any]:
    """Return the operators of a class that are compiled code, as methods that refuse."""
    defined = special_methods(cls, (types.WrapperDescriptorType,))
    hidden = {n: refusal(f"{cls.__name__}.{n}") for n, c in defined.items() if not is_visible(c)}
    return {"__hash__": object.__hash__, **hidden} if "__eq__" in hidden else hidden


def _subclassed(session: Session, real: Any, source: Source) -> Any:
    """Return an object of a subclass of the real object's class, None where there can be none."""
    cls = type(real)
    methods = _refusing(cls)
    for name in special_methods(cls, PYTHON_METHODS):
        methods[name] = forward(name)
    if hasattr(cls, "__del__"):
        methods["__del__"] = lambda self: None
    make: Callable[..., Any] = type(cls)  # the metaclass
    try:
        kind = make(cls.__name__, (StandIn, cls), {**methods, "__module__": cls.__module__})
        return _fill(kind, _compiled_base(cls), session, real, source)
    except CaptureError:
        raise
    except Exception:  # a compiled class that allows no subclasses, a metaclass with rules
        return None


def _opaque(real: Any) -> Any:
    """Return an object of no relation to the real one's class."""
    cls = type(real)
    methods = _refusing(cls)
    for name in special_methods(cls, PYTHON_METHODS):
        methods[name] = forward(name)
    return object.__new__(type(cls.__name__, (StandIn,), methods))


def enum_member(session: Session, value: enum.Enum, source: Source) -> Any:
    """Return an enum's member: itself, once it is known to hold values that cannot change."""
    held = {n: v for n, v in vars(value).items() if n != "__objclass__"}
    for name, content in held.items():
        if not is_constant(content):
            raise CaptureError(
                where=locate.here(),
                name=f"`{describe(source)}`",
                kind=f"an enum's member whose {name.strip('_')} is a {type(content).__name__}",
                rewrite="keep that value in a variable, and name it by the member in a dict",
            )
    session.require_same(source, value)
    session.program.check(
        source,
        lambda v: {n: x for n, x in vars(v).items() if n != "__objclass__"} == held,
        "members",
    )
    return value


def is_constant(value: Any) -> bool:
    """Return whether a value is a number, a text or the like, of which nothing can change."""
    if type(value) in (tuple, frozenset):
        return all(map(is_constant, value))
    plain = (int, float, complex, str, bytes, bool, type(None), range, type(Ellipsis))
    return type(value) in plain or isinstance(value, enum.Enum)


# ---- modules -------------------------------------------------------------------------------------


class _ModuleStandIn(StandIn, types.ModuleType):
    """A stand-in for a module."""


def module(session: Session, real: types.ModuleType, source: Source) -> Any:
    """Return a stand-in for a module."""
    session.require_same(source, real)
    stand_in = _ModuleStandIn.__new__(_ModuleStandIn)
    types.ModuleType.__init__(stand_in, real.__name__)
    object.__getattribute__(stand_in, "__dict__")[""] = State(session, real, source)
    return stand_in


def imported(session: Session, name: str) -> Any:
    """Return the wrapped module that ``import`` inside a mod finds."""
    modules = Attr(Const(sys), "modules")
    return session.wrap(sys.modules[name], Item(modules, name))
