"""Functions that a mod reaches, rebuilt so that their reads are seen.

A function is rebuilt around its own code object with wrapped closure variables and defaults, with
globals that are wrapped when they are first read, and with builtins for which stand-ins are what
they stand for.  `wrappers` decides which value gets which treatment and wraps what is read;
`objects` and `classes` have the stand-ins for everything else.
"""

from __future__ import annotations

import builtins
import functools
import operator
import sys
import types
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NoReturn

import torch

from flexfa4.errors import CaptureError
from flexfa4.frontend.tracing import classes, hosts, locate, objects
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
    if value.__globals__ is vars(functools) and hasattr(value, "registry"):
        raise CaptureError(
            where=locate.here(),
            name=f"`{describe(source)}`",
            kind="a function of functools.singledispatch, which chooses by its argument's type",
            rewrite="the function for tensors itself: f.dispatch(torch.Tensor)",
        )
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


def _is_global(f: Any, name: str) -> bool:
    return name in f.__globals__


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

    def get(self, name: str, default: Any = None) -> Any:
        """Return a global, as ``globals().get(name)`` does."""
        return self[name] if name in self else default  # noqa: SIM401 - it is what get() is

    def __contains__(self, name: object) -> bool:
        is_global = name in self._function.__globals__
        if not dict.__contains__(self, name):
            known = Call(_is_global, (self._source, Const(name)))
            self._session.specialise(known, is_global)
        return is_global

    def _refuse(self, *args: Any) -> NoReturn:
        raise CaptureError(
            where=locate.here(),
            name="`globals()`",
            kind="read as a whole, with every name of the module",
            rewrite='globals()["name"], or the name itself',
        )

    items = keys = values = copy = __iter__ = __reversed__ = __or__ = __ror__ = _refuse

    def __missing__(self, name: str) -> Any:
        if name not in self._read:
            if name not in self._function.__globals__:  # a builtin, or no such name
                self._session.program.check(
                    self._source, lambda f: name not in f.__globals__, ("no global", name)
                )
            value = self._function.__globals__[name]
            if self._owner != self._source:
                alias = Call(_same_globals, (self._source, self._owner))
                self._session.require_true(alias)
            source = Global(self._owner, name)
            self._read[name] = self._session.wrap(value, source, self.parents)
        return self._read[name]


def is_rebuilt(frame: types.FrameType) -> bool:
    """Return whether a frame runs a rebuilt function."""
    return type(frame.f_globals) is _Globals


# ---- builtins for which stand-ins are what they stand for ----------------------------------------


def _isinstance(value: Any, kinds: Any) -> bool:
    """``isinstance`` for which traced values are tensors, as they are without tracing."""
    kinds = _classes(kinds)
    if isinstance(value, kinds):
        return True
    is_tensor = issubclass(type(value), (Traced, View))
    return is_tensor and torch.Tensor in (kinds if isinstance(kinds, tuple) else (kinds,))


def _classes(kinds: Any) -> Any:
    if type(kinds) is tuple:
        return tuple(map(_classes, kinds))
    return type if kinds is _type else classes.real_class(kinds)


def _issubclass(cls: Any, kinds: Any) -> bool:
    return issubclass(classes.real_class(cls), _classes(kinds))


def _super(*args: Any) -> Any:
    """``super`` for which methods run with the stand-in as ``self`` and are rebuilt, too."""
    if not args:
        frame = sys._getframe(1)
        owner = frame.f_locals["__class__"]
        args = (owner, frame.f_locals[frame.f_code.co_varnames[0]])
    owner, self = classes.real_class(args[0]), args[1] if len(args) > 1 else None
    if issubclass(type(self), (objects.StandIn, classes.MadeInside)):
        return classes.Super(owner, self)
    return super(owner, classes.real_class(self))


def _type(*args: Any, **kwargs: Any) -> Any:
    """``type``, which gives the class of what a value stands for."""
    if len(args) != 1:
        return type(*args, **kwargs)
    (value,) = args
    kind = type(value)
    if issubclass(kind, (objects.StandIn, classes.MadeInside, hosts.HostScalar)):
        return value.__class__
    if kind is classes.ClassStandIn:
        return value.__class__
    return torch.Tensor if issubclass(kind, (Traced, View)) else kind


def _import(
    name: str, globals: Any = None, locals: Any = None, names: Any = (), level: int = 0
) -> Any:
    """``import``: modules that are imported inside are wrapped like captured ones."""
    module = builtins.__import__(name, globals, locals, names or (), level)
    session = hosts.ACTIVE.session
    return module if session is None else objects.imported(session, module.__name__)


_BUILTINS: Final = {
    **vars(builtins),
    "__import__": _import,
    "isinstance": _isinstance,
    "issubclass": _issubclass,
    "super": _super,
    "type": _type,
}
