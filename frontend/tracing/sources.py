"""How to read a captured value again: source expressions, and the program that evaluates them.

A `Source` says where a value comes from, as a path from the mod that the user passes on each call::

    source ::= Root                     the mod itself
             | Cell(f, i) | Global(f, name) | Default(f, i) | KwDefault(f, name)
             | Attr(owner, name) | Item(owner, key)
             | Call(function, args)     a computation on captured values only, done on each call
             | Build(type, items)       a list, tuple, slice or dict of sources
             | Const(value)             a value of the trace itself

A `Program` is what one trace learned: in the order in which the trace needed them, the steps that
read values, and the checks under which the trace holds.  Running it on a mod gives the values of
all registers, or None where a check fails; it never calls the user's function.

What the values mean to the graph is the business of `wrappers`.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

Registers = list[Any]
Step = Callable[[Registers], Any]
"""Fills a register and returns None, or checks one and returns True for a mismatch."""


@dataclass(frozen=True)
class Source:
    """Base of all sources; see the module's docstring."""


@dataclass(frozen=True)
class Root(Source):
    """The mod that the user passes."""


@dataclass(frozen=True)
class Cell(Source):
    """Variable `index` of a function's closure."""

    function: Source
    index: int
    name: str


@dataclass(frozen=True)
class Global(Source):
    """A name of a function's module."""

    function: Source
    name: str


@dataclass(frozen=True)
class Default(Source):
    """Default value `index` of a function's positional parameters."""

    function: Source
    index: int
    name: str


@dataclass(frozen=True)
class KwDefault(Source):
    """Default value of a keyword-only parameter."""

    function: Source
    name: str


@dataclass(frozen=True)
class Attr(Source):
    """An attribute."""

    owner: Source
    name: str


@dataclass(frozen=True)
class Item(Source):
    """An item of a list, tuple or dict."""

    owner: Source
    key: Any


@dataclass(frozen=True)
class Call(Source):
    """The result of a function of other sources."""

    function: Callable[..., Any]
    args: tuple[Source, ...]
    kwargs: tuple[tuple[str, Source], ...] = ()


@dataclass(frozen=True)
class Build(Source):
    """A list, tuple, slice or dict (alternating keys and values) made of other sources."""

    kind: type
    items: tuple[Source, ...]


_PLAIN: Final = (int, float, bool, str, type(None))


@dataclass(frozen=True, eq=False)
class Const(Source):
    """A value that is the same on every call; plain values are equal by value, others if same."""

    value: Any

    def _key(self) -> tuple[type, Any]:
        plain = type(self.value) in _PLAIN
        return type(self.value), repr(self.value) if plain else id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Const) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())


# ---- the program ---------------------------------------------------------------------------------


class Program:
    """The readings and checks of one trace, see the module's docstring.

    Attributes:
        guards: what was specialised, as text for people.
    """

    def __init__(self) -> None:
        self.guards: list[str] = []
        self._template: Registers = [None]
        self._steps: list[Step] = []
        self._what: list[str] = []
        self._computed: dict[Source, int] = {Root(): 0}
        self._checked: set[tuple[int, Any]] = set()

    def register(self, source: Source) -> int:
        """Return the number of the register that holds the value of `source`."""
        found = self._computed.get(source)
        if found is not None:
            return found
        # operands first: making the step registers what it reads
        step = None if isinstance(source, Const) else _STEPS[type(source)](self, source)
        out = self._computed[source] = len(self._template)
        self._template.append(source.value if isinstance(source, Const) else None)
        if step is not None:
            self._add(step(out), source)
        return out

    def check(self, source: Source, test: Callable[[Any], bool], key: Any, guard: str = "") -> None:
        """Require ``test(value)`` from now on.

        Args:
            source: where the value comes from.
            test: must hold for its value.
            key: equal for equal tests of one source, so that each is done once.
            guard: the test as text for people, where a value was specialised.
        """
        i = self.register(source)
        if (i, key) in self._checked:
            return
        self._checked.add((i, key))
        if guard:
            self.guards.append(guard)
        self._add(lambda r: not test(r[i]), source)

    def _add(self, step: Step, source: Source) -> None:
        self._steps.append(step)
        self._what.append(describe(source))

    def run(self, root: Any) -> Registers | None:
        """Return the values of all registers for this mod, None where a check fails.

        A reading that raises counts as a failed check: tracing the function again raises it in the
        user's own code, if it is still an error there.
        """
        registers = self._template.copy()
        registers[0] = root
        try:
            for step in self._steps:
                if step(registers):
                    return None
        except Exception:
            return None
        return registers

    def first_failure(self, root: Any) -> str:
        """Return which captured value fails its check, as text."""
        registers = self._template.copy()
        registers[0] = root
        for step, what in zip(self._steps, self._what, strict=True):
            try:
                if step(registers):
                    return what
            except Exception:
                return what
        return ""


def _cell_step(program: Program, s: Cell) -> Callable[[int], Step]:
    f, index = program.register(s.function), s.index

    def bind(out: int) -> Step:
        def step(r: Registers) -> None:
            r[out] = r[f].__closure__[index].cell_contents

        return step

    return bind


def _global_step(program: Program, s: Global) -> Callable[[int], Step]:
    f, name = program.register(s.function), s.name

    def bind(out: int) -> Step:
        def step(r: Registers) -> None:
            r[out] = r[f].__globals__[name]

        return step

    return bind


def _reader(program: Program, owner: Source, read: Callable[[Any], Any]) -> Callable[[int], Step]:
    i = program.register(owner)

    def bind(out: int) -> Step:
        def step(r: Registers) -> None:
            r[out] = read(r[i])

        return step

    return bind


def _default_step(program: Program, s: Default) -> Callable[[int], Step]:
    return _reader(program, s.function, lambda f: f.__defaults__[s.index])


def _kwdefault_step(program: Program, s: KwDefault) -> Callable[[int], Step]:
    return _reader(program, s.function, lambda f: f.__kwdefaults__[s.name])


def _attr_step(program: Program, s: Attr) -> Callable[[int], Step]:
    # not operator.attrgetter: a name with a dot is one name here
    return _reader(program, s.owner, lambda v, name=s.name: getattr(v, name))  # type: ignore[misc]


def _item_step(program: Program, s: Item) -> Callable[[int], Step]:
    return _reader(program, s.owner, operator.itemgetter(s.key))


def _call_step(program: Program, s: Call) -> Callable[[int], Step]:
    function, args = s.function, [program.register(a) for a in s.args]
    kwargs = {name: program.register(a) for name, a in s.kwargs}

    def bind(out: int) -> Step:
        def general(r: Registers) -> None:
            r[out] = function(*[r[i] for i in args], **{n: r[i] for n, i in kwargs.items()})

        def of_two(r: Registers) -> None:
            r[out] = function(r[args[0]], r[args[1]])

        return of_two if len(args) == 2 and not kwargs else general

    return bind


def _build_step(program: Program, s: Build) -> Callable[[int], Step]:
    items = [program.register(i) for i in s.items]

    def bind(out: int) -> Step:
        def step(r: Registers) -> None:
            values = [r[i] for i in items]
            if s.kind is dict:
                r[out] = dict(zip(values[::2], values[1::2], strict=True))
            else:
                r[out] = slice(*values) if s.kind is slice else s.kind(values)

        return step

    return bind


_STEPS: Final[dict[type[Source], Callable[[Program, Any], Callable[[int], Step]]]] = {
    Cell: _cell_step,
    Global: _global_step,
    Default: _default_step,
    KwDefault: _kwdefault_step,
    Attr: _attr_step,
    Item: _item_step,
    Call: _call_step,
    Build: _build_step,
}


# ---- sources as text -----------------------------------------------------------------------------

_INFIX: Final = {
    operator.add: "+", operator.sub: "-", operator.mul: "*", operator.truediv: "/",
    operator.floordiv: "//", operator.mod: "%", operator.pow: "**", operator.lt: "<",
    operator.le: "<=", operator.gt: ">", operator.ge: ">=", operator.eq: "==", operator.ne: "!=",
    operator.and_: "&", operator.or_: "|", operator.xor: "^",
}  # fmt: skip


def describe(source: Source) -> str:
    """Return a source as the user would write it, such as ``self.window`` or ``bias * 2``."""
    match source:
        case Root():
            return "the mod"
        case Cell(name=name) | Global(name=name) | Default(name=name) | KwDefault(name=name):
            return name
        case Attr(name="__self__"):
            return "self"
        case Attr(owner=Root(), name=name):
            return name
        case Attr(owner=owner, name=name):
            return f"{describe(owner)}.{name}"
        case Item(owner=owner, key=key):
            return f"{describe(owner)}[{key!r}]"
        case Call(function=function, args=(a, b)) if function in _INFIX:
            return f"({describe(a)} {_INFIX[function]} {describe(b)})"
        case Call(function=function, args=args, kwargs=kwargs):
            inside = [describe(a) for a in args] + [f"{n}={describe(a)}" for n, a in kwargs]
            return f"{getattr(function, '__name__', 'function')}({', '.join(inside)})"
        case Build(kind=kind, items=items):
            return f"{kind.__name__}({', '.join(map(describe, items))})"
        case Const(value=value):
            return repr(value) if type(value) in _PLAIN else f"a {type(value).__name__}"
    raise AssertionError(source)


def identifier(source: Source) -> str:
    """Return a short name for a source's value, a Python identifier."""
    match source:
        case Attr(owner=owner, name="shape"):
            name = f"{identifier(owner)}_shape"
        case Attr(name=name):
            pass
        case Item(owner=owner, key=key):
            name = f"{identifier(owner)}_{key}"
        case Call(function=function, args=args):
            inputs = [identifier(a) for a in args if not isinstance(a, Const | Build)]
            verb = getattr(function, "__name__", "value").strip("_")
            name = "_".join([verb, *inputs])
        case Root() | Const():
            name = "constant"
        case _:
            name = describe(source)
    return re.sub(r"\W", "_", name).strip("_")[:40] or "value"
