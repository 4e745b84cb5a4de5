"""What a mod reads from objects and classes: a change is followed or refused, never missed.

Cases are as in `test_changes`.
"""

from __future__ import annotations

import abc
import argparse
import collections
import copy
import ctypes
import dataclasses
import enum
import functools
import threading
import types
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import pytest

from tests.changes import Case, Mask, case, reads

SIZE = 8
WINDOW = 5
SETTINGS = types.ModuleType("settings_of_a_test")
SETTINGS.window = 5  # type: ignore[attr-defined]


def set_global(value: int) -> None:
    global WINDOW
    WINDOW = value


@pytest.fixture(autouse=True)
def fresh_values() -> None:
    set_global(5)
    SETTINGS.window = 5  # type: ignore[attr-defined]
    for kind in (Plain, Base, Meta, Abstract):
        kind.window = 5


# ---- classes that masks use ----------------------------------------------------------------------


class Plain:
    window: ClassVar[int] = 5

    def __init__(self, extra: int = 0) -> None:
        self.extra = extra

    def reads_global(self, q, kv):
        return q - kv < WINDOW + self.extra

    def reads_class(self, q, kv):
        return q - kv < self.window

    @classmethod
    def of_class(cls, q, kv):
        return q - kv < cls.window

    @staticmethod
    def static(q, kv):
        return q - kv < WINDOW

    @property
    def width(self):
        return WINDOW

    def __call__(self, b, h, q, kv):
        return q - kv < self.window

    def __lt__(self, other):
        return other < WINDOW


class Base:
    window: ClassVar[int] = 5


class Child(Base):
    def inherited(self, q, kv):
        return q - kv < super().window


class MadeByNew:
    width: int

    def __new__(cls, *args):
        self = super().__new__(cls)
        self.width = WINDOW
        return self


class Meta(metaclass=abc.ABCMeta):  # noqa: B024
    window: ClassVar[int] = 5


class Abstract(abc.ABC):  # noqa: B024 - the metaclass is what the test is about
    window: ClassVar[int] = 5


class Dict(dict):  # type: ignore[type-arg]
    def width(self):
        return WINDOW


class List(list):  # type: ignore[type-arg]
    pass


class Int(int):
    def width(self):
        return WINDOW


class Text(str):
    pass


class Named(NamedTuple):
    window: int

    def width(self):
        return WINDOW + self.window - 5


Pair = collections.namedtuple("Pair", "first second")


@dataclasses.dataclass
class Record:
    window: int = 5
    table: list[int] = dataclasses.field(default_factory=list)

    def width(self):
        return WINDOW


@dataclasses.dataclass(frozen=True)
class Frozen:
    window: int

    def __post_init__(self):
        object.__setattr__(self, "doubled", self.window * 2)


class Struct(ctypes.Structure):
    _fields_: ClassVar = [("window", ctypes.c_int)]


class Mode(enum.Enum):
    WIDE = 5
    NARROW = 2

    def width(self):
        return WINDOW

    def plain(self):
        return self.value


class Listed(enum.Enum):
    SOME = [5]  # noqa: RUF012 - an enum, whose member this is


class Number(enum.IntEnum):
    WIDE = 5
    NARROW = 2


class Local(threading.local):
    window = 5


# ---- followed ------------------------------------------------------------------------------------

FOLLOWED: dict[str, Case] = {}
REFUSED: dict[str, Case] = {}


def attribute(owner: Any, name: str = "window") -> tuple[Mask, Callable[[], object]]:
    """The mask reads an attribute, and the change assigns to it."""
    return lambda b, h, q, kv: q - kv < owner.window, lambda: setattr(owner, name, 2)


def globally() -> Callable[[], object]:
    return lambda: set_global(2)


def with_attribute(value: Any) -> Any:
    value.window = 5
    return value


OWNERS: dict[str, Callable[[], Any]] = {
    "simple namespace": lambda: types.SimpleNamespace(window=5),
    "thread's own": lambda: with_attribute(threading.local()),
    "class of thread's own": Local,
    "argparse namespace": lambda: argparse.Namespace(window=5),
    "ctypes structure": lambda: Struct(5),
    "dict with attributes": lambda: with_attribute(Dict(a=1)),
    "list with attributes": lambda: with_attribute(List([1])),
    "int with attributes": lambda: with_attribute(Int(3)),
    "text with attributes": lambda: with_attribute(Text("a")),
    "class": lambda: Plain,
    "base class": lambda: Base,
    "class with a metaclass": lambda: Meta,
    "abstract class": lambda: Abstract,
    "module": lambda: SETTINGS,
    "record": Record,
    "exception": lambda: with_attribute(ValueError("x")),
    "function": lambda: with_attribute(lambda: 1),
    "partial": lambda: with_attribute(functools.partial(int, 1)),
    "user dict": lambda: with_attribute(collections.UserDict(a=1)),
}
for _name, _make in OWNERS.items():
    FOLLOWED[f"attribute of a {_name}"] = lambda _make=_make: attribute(_make())


@case(FOLLOWED)
def class_attribute_through_an_instance():
    held = Plain()
    return lambda b, h, q, kv: q - kv < held.window, lambda: setattr(Plain, "window", 2)


@case(FOLLOWED)
def class_attribute_through_type():
    held = Plain()
    return lambda b, h, q, kv: q - kv < type(held).window, lambda: setattr(Plain, "window", 2)


@case(FOLLOWED)
def class_attribute_through_dunder_class():
    held = Plain()
    return lambda b, h, q, kv: q - kv < held.__class__.window, lambda: setattr(Plain, "window", 2)


@case(FOLLOWED)
def class_attribute_through_a_subclass():
    return lambda b, h, q, kv: q - kv < Child.window, lambda: setattr(Base, "window", 2)


@case(FOLLOWED)
def class_attribute_through_super():
    held = Child()
    return lambda b, h, q, kv: held.inherited(q, kv), lambda: setattr(Base, "window", 2)


@case(FOLLOWED)
def class_method_of_a_class():
    return lambda b, h, q, kv: Plain.of_class(q, kv), lambda: setattr(Plain, "window", 2)


@case(FOLLOWED)
def class_method_of_an_instance():
    held = Plain()
    return lambda b, h, q, kv: held.of_class(q, kv), lambda: setattr(Plain, "window", 2)


@case(FOLLOWED)
def static_method():
    return lambda b, h, q, kv: Plain.static(q, kv), globally()


@case(FOLLOWED)
def plain_function_of_a_class():
    held = Plain()
    return lambda b, h, q, kv: Plain.reads_global(held, q, kv), globally()


@case(FOLLOWED)
def method_of_an_object_made_inside():
    return lambda b, h, q, kv: Plain(0).reads_global(q, kv), globally()


@case(FOLLOWED)
def class_attribute_of_an_object_made_inside():
    return lambda b, h, q, kv: Plain().reads_class(q, kv), lambda: setattr(Plain, "window", 2)


@case(FOLLOWED)
def inherited_attribute_of_an_object_made_inside():
    return lambda b, h, q, kv: Child().inherited(q, kv), lambda: setattr(Base, "window", 2)


@case(FOLLOWED)
def property_of_an_object_made_inside():
    return lambda b, h, q, kv: q - kv < Plain().width, globally()


@case(FOLLOWED)
def call_of_an_object_made_inside():
    return lambda b, h, q, kv: Plain()(b, h, q, kv), lambda: setattr(Plain, "window", 2)


@case(FOLLOWED)
def operator_of_an_object_made_inside():
    return lambda b, h, q, kv: Plain() < q - kv, globally()


@case(FOLLOWED)
def record_made_inside():
    return lambda b, h, q, kv: q - kv < Record(3).width(), globally()


@case(FOLLOWED)
def frozen_record_made_inside():
    held = Plain(5)
    return (
        lambda b, h, q, kv: q - kv < Frozen(held.extra).doubled,  # type: ignore[attr-defined]
        lambda: setattr(held, "extra", 1),
    )


@case(FOLLOWED)
def named_tuple_made_inside():
    return lambda b, h, q, kv: Pair(q, kv).first - kv < Named(5).width(), globally()


@case(FOLLOWED)
def attribute_set_by_new():
    return lambda b, h, q, kv: q - kv < MadeByNew().width, globally()


@case(FOLLOWED)
def method_of_a_dict_subclass():
    held = Dict()
    return reads(held.width, globally())


@case(FOLLOWED)
def item_of_a_dict_subclass():
    held = Dict(w=5)
    return reads(lambda: held["w"], lambda: held.update(w=2))


@case(FOLLOWED)
def get_of_a_dict_subclass():
    held = Dict(w=5)
    return reads(lambda: held.get("w"), lambda: held.update(w=2))


@case(FOLLOWED)
def sum_of_a_list_subclass():
    held = List([2, 3])
    return reads(lambda: sum(held), lambda: held.pop())


@case(FOLLOWED)
def int_subclass_itself():
    held = [Int(5)]
    return reads(lambda: held[0], lambda: held.__setitem__(0, Int(2)))


@case(FOLLOWED)
def method_of_an_int_subclass():
    held = Int(5)
    return reads(held.width, globally())


@case(FOLLOWED)
def method_of_a_named_tuple():
    held = Named(5)
    return reads(lambda: held.width(), globally())


@case(FOLLOWED)
def field_of_a_named_tuple():
    held = [Named(5)]
    return reads(lambda: held[0].window, lambda: held.__setitem__(0, Named(2)))


@case(FOLLOWED)
def copied_object():
    held = Record(5)
    return reads(
        lambda: copy.copy([*held.table, held.window])[0], lambda: setattr(held, "window", 2)
    )


@case(FOLLOWED)
def cached_property():
    class Cached:
        extra = 5

        @functools.cached_property
        def width(self):
            return self.extra

    held = Cached()
    return reads(lambda: held.width, lambda: held.__dict__.update(width=2))


@case(FOLLOWED)
def attributes_computed_on_demand():
    class Computed:
        def __getattr__(self, name):
            return WINDOW

    held = Computed()
    return reads(lambda: held.anything, globally())


@case(FOLLOWED)
def enum_member():
    held = [Mode.WIDE]
    return reads(lambda: held[0].value, lambda: held.__setitem__(0, Mode.NARROW))


@case(FOLLOWED)
def enum_member_by_name():
    held = ["WIDE"]
    return reads(lambda: Mode[held[0]].value, lambda: held.__setitem__(0, "NARROW"))


@case(FOLLOWED)
def int_enum_member():
    held = [Number.WIDE]
    return reads(lambda: held[0], lambda: held.__setitem__(0, Number.NARROW))


@case(FOLLOWED)
def enum_member_as_a_key():
    held = {Mode.WIDE: 5, Mode.NARROW: 3}
    return reads(lambda: held[Mode.WIDE], lambda: held.update({Mode.WIDE: 2}))


@case(FOLLOWED)
def kind_of_an_object():
    held: list[Any] = [Plain()]
    return (
        lambda b, h, q, kv: q - kv < (5 if type(held[0]) is Plain else 2),
        lambda: held.__setitem__(0, Record()),
    )


@case(FOLLOWED)
def instance_check_with_a_class():
    held: list[Any] = [Child()]
    return (
        lambda b, h, q, kv: q - kv < (5 if isinstance(held[0], (Base, int)) else 2),
        lambda: held.__setitem__(0, Record()),
    )


@case(FOLLOWED)
def replaced_class():
    holder = types.SimpleNamespace(kind=Plain)
    return (
        lambda b, h, q, kv: q - kv < holder.kind.window,
        lambda: setattr(holder, "kind", types.SimpleNamespace(window=2)),
    )


@case(REFUSED)
def comparison_of_namespaces():
    held = types.SimpleNamespace(window=5)
    other = types.SimpleNamespace(window=5)
    return reads(lambda: 5 if held == other else 2, list)


@case(REFUSED)
def set_of_objects():
    held = {Plain()}
    return reads(lambda: sum(x.extra for x in held), list)


@case(REFUSED)
def object_as_a_key():
    held = {Plain(): 1}
    return reads(lambda: sum(x.extra for x in held), list)


@case(REFUSED)
def method_of_an_enum_member():
    return reads(lambda: Mode.WIDE.width(), list)


@case(REFUSED)
def enum_member_of_a_list():
    return reads(lambda: Listed.SOME.value[0], list)


@pytest.mark.parametrize("name", FOLLOWED)
def test_a_changed_value_is_followed(name: str, follows: Callable[..., None]) -> None:
    follows(*FOLLOWED[name]())


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_followed_is_refused(name: str, refuses: Callable[..., None]) -> None:
    refuses(REFUSED[name]()[0])
