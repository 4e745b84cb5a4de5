"""Stand-ins for the objects and classes that a mod reaches, which see every read.

A `StandIn` takes the place of a captured object: its attributes are read from the real one and
wrapped; methods and properties run with the stand-in as ``self``.  A `ClassStandIn` takes the place
of a class of the user's: class attributes are read likewise, and calling it makes a `MadeInside`, a
real object whose class attributes and methods are wrapped, too.  What is compiled code offers
attributes only: its operators and methods would read values unseen and are refused.

`captures` decides which value gets which treatment and wraps what is read; `recording` rebuilds
functions and modules.
"""

from __future__ import annotations

import enum
import inspect
import operator
import sys
import types
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, NoReturn

from flexfa4.errors import CaptureError
from flexfa4.frontend.tracing import hosts, locate
from flexfa4.frontend.tracing.sources import Attr, Call, Const, Item, Source, describe

if TYPE_CHECKING:
    from flexfa4.frontend.tracing.captures import Session

_MISSING: Final = object()
_COMPILED_METHODS: Final = (types.MethodDescriptorType, types.WrapperDescriptorType)


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
        _refuse_assignment(state_of(self), name)

    def __delattr__(self, name: str) -> None:
        _refuse_assignment(state_of(self), name)


class _Property:
    """A property's function; run on each read, as without tracing."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function

    def __call__(self) -> Any:
        return self._function()


def _refuse_assignment(state: State, name: str) -> None:
    raise CaptureError(
        where=locate.here(),
        name=f"`{describe(Attr(state.source, name))}`",
        kind="assigned to inside the mod, which is called once and not for every score",
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
    attribute = _MISSING
    if not isinstance(real, types.ModuleType):
        attribute = inspect.getattr_static(type(real), name, _MISSING)
    class_source = Attr(Call(type, (source,)), name)
    if isinstance(attribute, property) and isinstance(attribute.fget, types.FunctionType):
        getter = session.wrap(attribute.fget, Attr(class_source, "fget"))
        return _Property(types.MethodType(getter, stand_in))
    if isinstance(attribute, (types.FunctionType, *_COMPILED_METHODS)) and not _own(real, name):
        session.program.check(source, lambda v: not _own(v, name), ("not its own", name))
        if isinstance(attribute, types.FunctionType):
            return types.MethodType(session.wrap(attribute, class_source), stand_in)
        if _is_visible(attribute.__objclass__):
            return attribute.__get__(stand_in, type(stand_in))
        return _refusal(describe(Attr(source, name)))
    try:
        value = getattr(real, name)
    except AttributeError:
        session.specialise(Call(hasattr, (source, Const(name))), False)
        raise
    return session.wrap(value, Attr(source, name))


def _refusal(what: str) -> Callable[..., Any]:
    return lambda *args, **kwargs: refuse_compiled(what)


# ---- super() ---------------------------------------------------------------------------------


def _after(cls: type, start: int, name: str) -> Any:
    """Return what the classes from `start` in the order of inheritance define as `name`."""
    for base in cls.__mro__[start:]:
        if name in vars(base):
            return vars(base)[name]
    raise AttributeError(name)


class Super:
    """What ``super()`` returns in a method of a stand-in or of an object made inside."""

    def __init__(self, owner: type, instance: Any) -> None:
        self._owner, self._instance = owner, instance

    def __getattr__(self, name: str) -> Any:
        stand_in = class_of(self._instance)
        session, cls = stand_in.session, stand_in.real
        start = cls.__mro__.index(self._owner) + 1
        try:
            attribute = _after(cls, start, name)
        except AttributeError:
            return getattr(super(self._owner, self._instance), name)
        source = Call(_after, (stand_in.source, Const(start), Const(name)))
        if isinstance(attribute, types.FunctionType):
            return types.MethodType(session.wrap(attribute, source), self._instance)
        if isinstance(attribute, property) and isinstance(attribute.fget, types.FunctionType):
            return session.wrap(attribute.fget, Attr(source, "fget"))(self._instance)
        if isinstance(attribute, (classmethod, staticmethod)):
            function = session.wrap(attribute.__func__, Attr(source, "__func__"))
            owner = session.wrap(cls, stand_in.source)
            return (
                types.MethodType(function, owner)
                if isinstance(attribute, classmethod)
                else function
            )
        if isinstance(attribute, _COMPILED_METHODS):
            if _is_visible(attribute.__objclass__):
                return attribute.__get__(self._instance, type(self._instance))
            return _refusal(f"super().{name}")
        if hasattr(type(attribute), "__get__"):
            return getattr(super(self._owner, self._instance), name)
        return session.wrap(attribute, source)


def class_of(instance: Any) -> State:
    """Return what the class of a stand-in, or of an object made inside, stands for."""
    if isinstance(instance, MadeInside):
        return class_state(type.__getattribute__(type(instance), "_made_by"))
    state = state_of(instance)
    return State(state.session, type(state.real), Call(type, (state.source,)))


# ---- objects -------------------------------------------------------------------------------------

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


def _special(cls: type, kinds: tuple[type, ...]) -> dict[str, type]:
    """Return the special methods of some kinds that a class has, and who defines them."""
    return {
        name: base
        for base in reversed(cls.__mro__[:-1])
        for name, value in vars(base).items()
        if name[:2] == name[-2:] == "__" and isinstance(value, kinds) and name not in _NOT_FORWARDED
    }


# Compiled classes whose content a stand-in holds itself, and how it is filled.
_CONTENT: Final = (dict, list, tuple, int, float, complex, str, bytes)


def _is_visible(cls: type) -> bool:
    """Return whether methods of a compiled class read only what its stand-ins hold."""
    return cls is object or cls in _CONTENT


def _compiled_base(cls: type) -> type:
    """Return the compiled class that lays out a class's objects."""
    return next(
        c for c in cls.__mro__ if isinstance(vars(c).get("__new__"), types.BuiltinFunctionType)
    )


def _same_items(a: dict[Any, Any], b: dict[Any, Any]) -> bool:
    same = (v is dict.get(b, k, _MISSING) for k, v in dict.items(a))
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
    defined = _special(cls, (types.WrapperDescriptorType,))
    hidden = {n: _refusal(f"{cls.__name__}.{n}") for n, c in defined.items() if not _is_visible(c)}
    return {"__hash__": object.__hash__, **hidden} if "__eq__" in hidden else hidden


def _subclassed(session: Session, real: Any, source: Source) -> Any:
    """Return an object of a subclass of the real object's class, None where there can be none."""
    cls = type(real)
    methods = _refusing(cls)
    for name in _special(cls, (types.FunctionType,)):
        methods[name] = _forward(name)
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
    for name in _special(cls, (types.FunctionType,)):
        methods[name] = _forward(name)
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


# ---- classes -------------------------------------------------------------------------------------


def is_users(cls: type) -> bool:
    """Return whether a class is Python code of the user's, whose attributes may change."""
    top = str(getattr(cls, "__module__", "")).split(".")[0]
    is_python = bool(cls.__flags__ & (1 << 9)) and not issubclass(cls, BaseException)
    return is_python and not locate.is_library(str(cls.__module__)) and top != "builtins"


class ClassStandIn:
    """A stand-in for a class of the user's."""

    def __getattribute__(self, name: str) -> Any:
        state = class_state(self)
        if name == "__class__":
            return type(state.real)
        if name not in state.read:
            try:
                value = getattr(state.real, name)
            except AttributeError:
                state.session.specialise(Call(hasattr, (state.source, Const(name))), False)
                raise
            state.read[name] = state.session.wrap(value, Attr(state.source, name))
        return state.read[name]

    def __setattr__(self, name: str, value: Any) -> None:
        _refuse_assignment(class_state(self), name)

    def __delattr__(self, name: str) -> None:
        _refuse_assignment(class_state(self), name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Make an object of the class."""
        state = class_state(self)
        if type(state.real).__call__ is not type.__call__:  # Mode(1)
            return _computed(state, _make, *args, **kwargs)
        return _make_inside(self, state, args, kwargs)

    def __instancecheck__(self, value: Any) -> bool:
        return isinstance(value, class_state(self).real)

    def __subclasscheck__(self, cls: Any) -> bool:
        return issubclass(real_class(cls), class_state(self).real)

    def __eq__(self, other: object) -> bool:
        return class_state(self).real is real_class(other)

    def __hash__(self) -> int:
        return hash(class_state(self).real)

    def __getitem__(self, key: Any) -> Any:
        return _computed(class_state(self), operator.getitem, key)

    def __iter__(self) -> Iterator[Any]:
        return iter(_computed(class_state(self), list))

    def __len__(self) -> int:
        return int(_computed(class_state(self), len))

    def __contains__(self, value: Any) -> bool:
        return bool(_computed(class_state(self), operator.contains, value))

    def __mro_entries__(self, bases: Any) -> NoReturn:
        raise CaptureError(
            where=locate.here(),
            name=f"`{describe(class_state(self).source)}`",
            kind="the base of a class that is defined inside the mod",
            rewrite="define the class outside the mod",
        )

    def __or__(self, other: Any) -> Any:  # for isinstance(x, A | B)
        return class_state(self).real | real_class(other)

    def __ror__(self, other: Any) -> Any:
        return real_class(other) | class_state(self).real


def class_state(stand_in: Any) -> State:
    """Return what the stand-in of a class stands for."""
    state: State = object.__getattribute__(stand_in, "__dict__")["state"]
    return state


def real_class(value: Any) -> Any:
    """Return the class that a value stands for; tuples of classes element by element."""
    if type(value) is ClassStandIn:
        return class_state(value).real
    return tuple(map(real_class, value)) if type(value) is tuple else value


def user_class(session: Session, real: type, source: Source) -> ClassStandIn:
    """Return the stand-in for a class."""
    known = session.stand_ins.get(id(real))
    if known is None:
        stand_in = object.__new__(ClassStandIn)
        object.__getattribute__(stand_in, "__dict__")["state"] = State(session, real, source)
        known = session.stand_ins[id(real)] = source, stand_in
    found: ClassStandIn = known[1]
    return found


def _make(cls: Any, *args: Any, **kwargs: Any) -> Any:
    return cls(*args, **kwargs)


def _computed(state: State, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Compute on a real class and captured values now, and again on each call."""
    return hosts.compute(
        state.session, function, (hosts.Reading(state.real, state.source), *args), kwargs
    )


class MadeInside:
    """Base of the classes of objects that a mod makes itself."""


def _make_inside(
    stand_in: ClassStandIn, state: State, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Return an object of the user's class, whose class attributes are wrapped when read."""
    cls, session = state.real, state.session
    kind = state.read.get("")
    if kind is None:
        kind = state.read[""] = _inside_kind(stand_in, state)
    new = inspect.getattr_static(cls, "__new__")
    if isinstance(new, staticmethod) and isinstance(new.__func__, types.FunctionType):
        made = session.wrap(new.__func__, Attr(state.source, "__new__"))(kind, *args, **kwargs)
    elif cls.__new__ is object.__new__:
        made = cls.__new__(kind)
    else:
        made = cls.__new__(kind, *args, **kwargs)
    if isinstance(made, kind):
        made.__init__(*args, **kwargs)
    return made


def _inside_kind(stand_in: ClassStandIn, state: State) -> Any:
    cls, session = state.real, state.session

    def read(self: Any, name: str) -> Any:
        if name == "__class__":
            return stand_in
        attribute = inspect.getattr_static(cls, name, _MISSING)
        source = Attr(state.source, name)
        is_own = name in object.__getattribute__(self, "__dict__")
        if attribute is _MISSING or (is_own and not hasattr(type(attribute), "__set__")):
            return object.__getattribute__(self, name)
        if isinstance(attribute, types.FunctionType):
            return types.MethodType(session.wrap(attribute, source), self)
        if isinstance(attribute, property) and isinstance(attribute.fget, types.FunctionType):
            return session.wrap(attribute.fget, Attr(source, "fget"))(self)
        if isinstance(attribute, (classmethod, staticmethod)):
            return session.wrap(getattr(cls, name), source)
        if hasattr(type(attribute), "__get__"):  # slots, and what is compiled
            return object.__getattribute__(self, name)
        return session.wrap(attribute, source)

    methods: dict[str, Any] = {n: _forward(n) for n in _special(cls, (types.FunctionType,))}
    methods |= {"__getattribute__": read, "__module__": cls.__module__, "_made_by": stand_in}
    make: Callable[..., Any] = type(cls)
    try:
        return make(cls.__name__, (MadeInside, cls), methods)
    except Exception as error:
        raise CaptureError(
            where=locate.here(),
            name=f"`{describe(state.source)}`",
            kind=f"a class of which no objects can be followed: {error}",
            rewrite="make the object outside the mod and capture it",
        ) from None


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
