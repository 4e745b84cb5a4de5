"""Whatever a mod reads and however it reads it: a change is followed or refused, never missed.

Each case makes a mask and a change of one value that the mask reads.  The mask's graph must agree
with the mask called on whole index tensors, before the change and after it; `REFUSED` cases raise
a CaptureError instead.
"""

from __future__ import annotations

import abc
import argparse
import array
import collections
import copy
import cProfile
import ctypes
import dataclasses
import enum
import functools
import itertools
import operator
import random
import sys
import threading
import time
import types
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import pytest
import torch

from flexfa4.errors import CaptureError
from flexfa4.frontend.evaluate import Lanes, Program, Values
from flexfa4.frontend.tracing.trace import resolve

Mask = Callable[..., Any]
Case = Callable[[], tuple[Mask, Callable[[], object]]]
SIZE = 8
WINDOW = 5
SETTINGS = types.ModuleType("settings_of_a_test")
SETTINGS.window = 5  # type: ignore[attr-defined]
sys.modules["settings_of_a_test"] = SETTINGS


def dense(mask: Mask) -> torch.Tensor:
    """Call a mask on index tensors."""
    q, kv = torch.arange(SIZE).view(-1, 1), torch.arange(SIZE)
    zero = torch.tensor(0)
    return torch.as_tensor(mask(zero, zero, q, kv)).broadcast_to(SIZE, SIZE)


def traced(mask: Mask) -> torch.Tensor:
    """Evaluate a mask's graph with the values that it captures now."""
    bound = resolve(mask, "mask")
    values = Values(
        tensors=dict(zip(bound.graph.buffers, bound.tensors, strict=True)),
        scalars=dict(zip(bound.graph.scalars, bound.scalars, strict=True)),
    )
    lanes = Lanes((0, 1), (0, 1), (0, SIZE), (0, SIZE))
    (result,) = Program([bound.graph.root]).run(values, lanes, None)
    return torch.as_tensor(result).broadcast_to(1, 1, SIZE, SIZE)[0, 0]


def set_global(value: int) -> None:
    global WINDOW
    WINDOW = value


@pytest.fixture(autouse=True)
def fresh_values() -> Any:
    set_global(5)
    SETTINGS.window = 5  # type: ignore[attr-defined]
    for kind in (Plain, Base, Meta, Abstract):
        kind.window = 5
    yield


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


def case(table: dict[str, Case]) -> Callable[[Case], Case]:
    def add(make: Case) -> Case:
        table[make.__name__.replace("_", " ")] = make
        return make

    return add


def attribute(owner: Any, name: str = "window") -> tuple[Mask, Callable[[], object]]:
    """The mask reads an attribute, and the change assigns to it."""
    return lambda b, h, q, kv: q - kv < owner.window, lambda: setattr(owner, name, 2)


def reads(compute: Callable[[], Any], change: Callable[[], object]) -> Any:
    return lambda b, h, q, kv: q - kv < compute(), change


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
        lambda b, h, q, kv: q - kv < Frozen(held.extra).doubled,
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
def bound_get_of_a_dict():
    held = {"w": 5}
    get = held.get
    return reads(lambda: get("w"), lambda: held.update(w=2))


@case(FOLLOWED)
def bound_getitem_of_a_list():
    held = [5]
    get = held.__getitem__
    return reads(lambda: get(0), lambda: held.__setitem__(0, 2))


@case(FOLLOWED)
def unbound_get_of_a_dict():
    held = {"w": 5}
    return reads(lambda: dict.get(held, "w"), lambda: held.update(w=2))


@case(FOLLOWED)
def attribute_by_computed_name():
    held = Plain(5)
    return reads(lambda: getattr(held, "ext" + "ra"), lambda: setattr(held, "extra", 2))


@case(FOLLOWED)
def getattr_with_a_default():
    held = types.SimpleNamespace()
    return reads(lambda: getattr(held, "window", 5), lambda: setattr(held, "window", 2))


@case(FOLLOWED)
def attrgetter():
    held, get = Plain(5), operator.attrgetter("extra")
    return reads(lambda: get(held), lambda: setattr(held, "extra", 2))


@case(FOLLOWED)
def itemgetter():
    held, get = [5], operator.itemgetter(0)
    return reads(lambda: get(held), lambda: held.__setitem__(0, 2))


@case(FOLLOWED)
def methodcaller():
    held, get = {"w": 5}, operator.methodcaller("get", "w")
    return reads(lambda: get(held), lambda: held.update(w=2))


@case(FOLLOWED)
def item_of_globals():
    return lambda b, h, q, kv: q - kv < globals()["WINDOW"], globally()


@case(FOLLOWED)
def get_of_globals():
    return lambda b, h, q, kv: q - kv < globals().get("WINDOW", 1), globally()


@case(FOLLOWED)
def name_in_globals():
    space: dict[str, Any] = {"__name__": "elsewhere"}
    exec("def mask(b, h, q, kv):\n    return q - kv < (2 if 'LATER' in globals() else 5)", space)
    return space["mask"], lambda: space.update(LATER=1)


@case(FOLLOWED)
def item_of_vars():
    held = Plain(5)
    return reads(lambda: vars(held)["extra"], lambda: setattr(held, "extra", 2))


@case(FOLLOWED)
def item_of_a_namespaces_dict():
    held = types.SimpleNamespace(window=5)
    return reads(lambda: held.__dict__["window"], lambda: setattr(held, "window", 2))


@case(FOLLOWED)
def imported_inside():
    def mask(b, h, q, kv):
        import settings_of_a_test

        return q - kv < settings_of_a_test.window

    return mask, lambda: setattr(SETTINGS, "window", 2)


@case(FOLLOWED)
def name_imported_inside():
    def mask(b, h, q, kv):
        from settings_of_a_test import window

        return q - kv < window

    return mask, lambda: setattr(SETTINGS, "window", 2)


@case(FOLLOWED)
def values_of_a_dict():
    held = {"a": 2, "b": 3}
    return reads(lambda: sum(held.values()), lambda: held.update(b=0))


@case(FOLLOWED)
def new_key_of_a_dict():
    held = {"a": 5}
    return reads(lambda: sum(held.values()) - len(held), lambda: held.update(b=-3))


@case(FOLLOWED)
def keys_of_a_dict():
    held = {5: 1}
    return reads(lambda: sum(held), lambda: (held.clear(), held.update({2: 1})))


@case(FOLLOWED)
def set_of_numbers():
    held = {2, 3}
    return reads(lambda: sum(held), lambda: held.remove(3))


@case(FOLLOWED)
def default_dict():
    held = collections.defaultdict(lambda: WINDOW, w=5)
    return reads(lambda: held["w"], lambda: held.update(w=2))


@case(FOLLOWED)
def counter():
    held = collections.Counter("aaaaa")
    return reads(lambda: held["a"], lambda: held.subtract("aaa"))


@case(FOLLOWED)
def deque():
    held = collections.deque([5])
    return reads(lambda: held[0], lambda: held.appendleft(2))


@case(FOLLOWED)
def mapping_proxy():
    held = {"w": 5}
    proxy = types.MappingProxyType(held)
    return reads(lambda: proxy["w"], lambda: held.update(w=2))


@case(FOLLOWED)
def chain_map():
    held = {"w": 5}
    return reads(lambda chain=collections.ChainMap({}, held): chain["w"], lambda: held.update(w=2))


@case(FOLLOWED)
def copied_object():
    held = Record(5)
    return reads(
        lambda: copy.copy([*held.table, held.window])[0], lambda: setattr(held, "window", 2)
    )


@case(FOLLOWED)
def mutable_default():
    def mask(b, h, q, kv, held=[5]):  # noqa: B006 - what the test is about
        return q - kv < held[0]

    return mask, lambda: mask.__defaults__[0].__setitem__(0, 2)


@case(FOLLOWED)
def partial_of_a_list():
    held = [5]
    mask = functools.partial(lambda held, b, h, q, kv: q - kv < held[0], held)
    return mask, lambda: held.__setitem__(0, 2)


@case(FOLLOWED)
def generator_inside():
    held = [2, 3]
    return lambda b, h, q, kv: q - kv < sum(x for x in held if x), lambda: held.pop()


@case(FOLLOWED)
def itertools_inside():
    held = [2, 3]
    return (
        lambda b, h, q, kv: q - kv < sum(itertools.chain(held, map(abs, held))) - 5,
        lambda: held.pop(),
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
def tensor_to_list():
    held = torch.tensor([5])
    return reads(lambda: held.tolist()[0], lambda: held.fill_(2))


@case(FOLLOWED)
def element_of_an_array():
    held = pytest.importorskip("numpy").array([5, 7])
    return reads(lambda: held[0], lambda: held.__setitem__(0, 2))


@case(FOLLOWED)
def element_of_an_array_by_position():
    held = pytest.importorskip("numpy").arange(SIZE)
    return lambda b, h, q, kv: held[q] > 3, lambda: held.__setitem__(0, 6)


@case(FOLLOWED)
def scalar_of_numpy():
    held = [pytest.importorskip("numpy").int32(5)]
    return reads(lambda: held[0], lambda: held.__setitem__(0, type(held[0])(2)))


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
    held = [Plain()]
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
def slice_of_a_list():
    held, part = [1, 2, 3], [slice(0, 2)]
    return reads(lambda: sum(held[part[0]]), lambda: part.__setitem__(0, slice(0, 1)))


@case(FOLLOWED)
def replaced_class():
    holder = types.SimpleNamespace(kind=Plain)
    return (
        lambda b, h, q, kv: q - kv < holder.kind.window,
        lambda: setattr(holder, "kind", types.SimpleNamespace(window=2)),
    )


@pytest.mark.parametrize("name", FOLLOWED)
def test_a_changed_value_is_followed(name: str) -> None:
    mask, change = FOLLOWED[name]()
    before = dense(mask)
    assert torch.equal(traced(mask), before)
    change()
    after = dense(mask)
    assert torch.equal(traced(mask), after)
    assert not torch.equal(before, after), "the case changes nothing"


@pytest.mark.parametrize("kind", ["function", "cProfile"])
def test_a_profiler_goes_on_after_a_mod_was_traced(kind: str) -> None:
    events: list[str] = []
    if kind == "function":
        sys.setprofile(lambda frame, event, arg: events.append(frame.f_code.co_name))
        resolve(lambda b, h, q, kv: helper(q) > kv, "mask")
        helper(1)
        sys.setprofile(None)
        assert events.count("helper") == 4  # two calls and two returns
    else:
        profile = cProfile.Profile()
        profile.enable()
        resolve(lambda b, h, q, kv: helper(q) >= kv, "mask")
        helper(1)
        profile.disable()
        assert any(getattr(e.code, "co_name", "") == "helper" for e in profile.getstats())
    assert sys.getprofile() is None


def helper(q):
    return q + 1


# ---- refused -------------------------------------------------------------------------------------


@case(REFUSED)
def captured_generator():
    made = (x for x in [5, 2])
    return reads(lambda: next(made), list)


@case(REFUSED)
def captured_iterator():
    made = iter([5, 2])
    return reads(lambda: next(made), list)


@case(REFUSED)
def captured_count():
    made = itertools.count(5)
    return reads(lambda: next(made), list)


@case(REFUSED)
def clock():
    return reads(time.time, list)


@case(REFUSED)
def random_number():
    return reads(random.random, list)


@case(REFUSED)
def array_of_the_library():
    held = array.array("i", [5])
    return reads(lambda: held[0], list)


@case(REFUSED)
def byte_array():
    held = bytearray([5])
    return reads(lambda: held[0], list)


@case(REFUSED)
def ctypes_array():
    held = (ctypes.c_int * 2)(5, 2)
    return reads(lambda: held[0], list)


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


@case(REFUSED)
def default_factory_of_a_dict():
    held = collections.defaultdict(lambda: WINDOW)
    return reads(lambda: held["w"], list)


@case(REFUSED)
def items_of_globals():
    return reads(lambda: dict(globals().items())["WINDOW"], list)


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_followed_is_refused(name: str) -> None:
    mask, _ = REFUSED[name]()
    with pytest.raises(CaptureError) as caught:
        resolve(mask, "mask")
    assert caught.value.where is not None
