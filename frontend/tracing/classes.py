"""Stand-ins for the classes that a mod reaches, and ``super()``.

A `ClassStandIn` takes the place of a class of the user's: class attributes are read from the real
one and wrapped.  Calling it makes a `MadeInside`, a real object whose class attributes and methods
are wrapped, too.  Classes of Python, torch and exceptions stand for themselves.
"""

from __future__ import annotations

import inspect
import operator
import types
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

from flexfa4.errors import CaptureError
from flexfa4.frontend.tracing import hosts, locate
from flexfa4.frontend.tracing.objects import (
    COMPILED_METHODS,
    MISSING,
    PYTHON_METHODS,
    State,
    forward,
    is_visible,
    refusal,
    refuse_assignment,
    special_methods,
    state_of,
)
from flexfa4.frontend.tracing.sources import Attr, Call, Const, Source, describe

if TYPE_CHECKING:
    from flexfa4.frontend.tracing.captures import Session


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
        refuse_assignment(class_state(self), name)

    def __delattr__(self, name: str) -> None:
        refuse_assignment(class_state(self), name)

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
        attribute = inspect.getattr_static(cls, name, MISSING)
        source = Attr(state.source, name)
        is_own = name in object.__getattribute__(self, "__dict__")
        if attribute is MISSING or (is_own and not hasattr(type(attribute), "__set__")):
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

    methods: dict[str, Any] = {n: forward(n) for n in special_methods(cls, PYTHON_METHODS)}
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
        if isinstance(attribute, COMPILED_METHODS):
            if is_visible(attribute.__objclass__):
                return attribute.__get__(self._instance, type(self._instance))
            return refusal(f"super().{name}")
        if hasattr(type(attribute), "__get__"):
            return getattr(super(self._owner, self._instance), name)
        return session.wrap(attribute, source)


def class_of(instance: Any) -> State:
    """Return what the class of a stand-in, or of an object made inside, stands for."""
    if isinstance(instance, MadeInside):
        return class_state(type.__getattribute__(type(instance), "_made_by"))
    state = state_of(instance)
    return State(state.session, type(state.real), Call(type, (state.source,)))
