"""Whatever a mod reads and however it reads it: a change is followed or refused, never missed.

Each case makes a mask and a change of one value that the mask reads.  The mask's graph must agree
with the mask called on whole index tensors, before the change and after it; `REFUSED` cases raise
a CaptureError instead.
"""

from __future__ import annotations

import array
import collections
import cProfile
import ctypes
import functools
import itertools
import operator
import random
import sys
import time
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

from flexfa4.frontend.tracing.trace import resolve
from tests.changes import Case, case, reads

SIZE = 8
WINDOW = 5
SETTINGS = types.ModuleType("settings_of_a_test")
SETTINGS.window = 5  # type: ignore[attr-defined]
sys.modules["settings_of_a_test"] = SETTINGS


def set_global(value: int) -> None:
    global WINDOW
    WINDOW = value


@pytest.fixture(autouse=True)
def fresh_values() -> None:
    set_global(5)
    SETTINGS.window = 5  # type: ignore[attr-defined]


# ---- followed ------------------------------------------------------------------------------------

FOLLOWED: dict[str, Case] = {}
REFUSED: dict[str, Case] = {}


def globally() -> Callable[[], object]:
    return lambda: set_global(2)


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
    held = types.SimpleNamespace(extra=5)
    return reads(lambda: getattr(held, "ext" + "ra"), lambda: setattr(held, "extra", 2))


@case(FOLLOWED)
def getattr_with_a_default():
    held = types.SimpleNamespace()
    return reads(lambda: getattr(held, "window", 5), lambda: setattr(held, "window", 2))


@case(FOLLOWED)
def attrgetter():
    held, get = types.SimpleNamespace(extra=5), operator.attrgetter("extra")
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
    held = types.SimpleNamespace(extra=5)
    return reads(lambda: vars(held)["extra"], lambda: setattr(held, "extra", 2))


@case(FOLLOWED)
def item_of_a_namespaces_dict():
    held = types.SimpleNamespace(window=5)
    return reads(lambda: held.__dict__["window"], lambda: setattr(held, "window", 2))


@case(FOLLOWED)
def imported_inside():
    def mask(b, h, q, kv):
        import settings_of_a_test  # type: ignore[import-not-found]

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
def mutable_default():
    def mask(b, h, q, kv, held=[5]):  # noqa: B006 - what the test is about
        return q - kv < held[0]

    held: Any = mask.__defaults__
    return mask, lambda: held[0].__setitem__(0, 2)


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
def slice_of_a_list():
    held, part = [1, 2, 3], [slice(0, 2)]
    return reads(lambda: sum(held[part[0]]), lambda: part.__setitem__(0, slice(0, 1)))


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
def default_factory_of_a_dict():
    held: dict[str, int] = collections.defaultdict(lambda: WINDOW)
    return reads(lambda: held["w"], list)


@case(REFUSED)
def items_of_globals():
    return reads(lambda: dict(globals().items())["WINDOW"], list)


@pytest.mark.parametrize("name", FOLLOWED)
def test_a_changed_value_is_followed(name: str, follows: Callable[..., None]) -> None:
    follows(*FOLLOWED[name]())


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_followed_is_refused(name: str, refuses: Callable[..., None]) -> None:
    refuses(REFUSED[name]()[0])


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
