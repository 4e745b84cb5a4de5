"""Mods as plain data: equal after pickle and deepcopy, and damage is named."""

from __future__ import annotations

import copy
import functools
import math
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch

import flexfa4
from flexfa4.errors import DamagedPickleError, PickleFormatError
from flexfa4.frontend.binding import BoundGraph
from flexfa4.frontend.text.snapshots import FORMAT, restored, state_of
from flexfa4.frontend.tracing.trace import resolve
from flexfa4.variants import Alibi, Document, SlidingWindow, causal, softcap

Mod = Callable[..., Any]
IDS = torch.arange(12) // 5
TABLE = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


def module_level(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return q_idx >= kv_idx


def closure() -> Mod:
    score, where, q = 2.5, 7, IDS  # names that mean something in a text

    def mod(s: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return s * score + where * q[q_idx] - math.inf * (q_idx < 0)

    return mod


def deep() -> Mod:
    def mod(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        for i in range(600):
            score = torch.tanh(score + i)
        return score

    return mod


class Module(torch.nn.Module):
    """A mod with a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.slope = torch.nn.Parameter(torch.ones(4))

    def forward(self, score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return score + self.slope[h] * (kv_idx - q_idx)


MODS: dict[str, Any] = {
    "text": flexfa4.parse("q >= kv"),
    "text with bindings": flexfa4.parse("ids[q] == ids[kv] and q - kv < w", ids=IDS, w=3),
    "strange binding": flexfa4.parse("score * `a b`", **{"a b": -0.0}),
    "float constants": flexfa4.parse("where(q > kv, score * 0.1, -inf) + 1e-300 + nan"),
    "reduction": flexfa4.parse("score + sum(t[h % 3, :] * t[b % 3, :])", t=TABLE),
    "lambda": flexfa4.trace(lambda b, h, q_idx, kv_idx: (q_idx - kv_idx) % 3 == 0),
    "closure": flexfa4.trace(closure()),
    "function": flexfa4.trace(module_level),
    "partial": flexfa4.trace(functools.partial(module_level)),
    "bound method": flexfa4.trace(Module().forward),
    "deep": flexfa4.trace(deep()),
    "variant": flexfa4.trace(Document(IDS) & ~SlidingWindow(3) | causal),
    "number of heads": flexfa4.trace(Alibi()),
}


def same(a: BoundGraph, b: BoundGraph) -> bool:
    tensors = zip(a.tensors, b.tensors, strict=True)
    return (
        a.graph == b.graph
        and repr(a.scalars) == repr(b.scalars)  # -0.0 is not 0.0
        and all(torch.equal(x, y) and x.dtype is y.dtype for x, y in tensors)
    )


@pytest.mark.parametrize("name", MODS)
def test_a_mod_of_any_origin_is_equal_after_pickle(name: str) -> None:
    mod = MODS[name]
    read = pickle.loads(pickle.dumps(mod))
    assert read.kind == mod.kind and same(read.bind(), mod.bind())
    assert same(pickle.loads(pickle.dumps(read)).bind(), mod.bind())


@pytest.mark.parametrize("name", MODS)
def test_a_mod_of_any_origin_is_equal_after_deepcopy(name: str) -> None:
    mod = MODS[name]
    assert same(copy.deepcopy(mod).bind(), mod.bind()) and copy.copy(mod) is mod


@pytest.mark.parametrize("mod", [causal, softcap, Document(IDS) & causal, ~SlidingWindow(2)])
def test_variants_and_their_combinations_can_be_pickled_and_copied_as_they_are(mod: Any) -> None:
    kind = flexfa4.trace(mod).kind
    for again in (pickle.loads(pickle.dumps(mod)), copy.deepcopy(mod)):
        assert type(again) is type(mod) and same(resolve(again, kind), resolve(mod, kind))


def test_a_pickled_mod_holds_the_values_of_its_moment() -> None:
    class State:
        window = 3

    mod = flexfa4.trace(lambda b, h, q_idx, kv_idx: q_idx - kv_idx < State.window)
    read = pickle.loads(pickle.dumps(mod))
    State.window = 5
    assert mod.bind().scalars == (5,) and read.bind().scalars == (3,)


def test_a_deepcopied_module_and_the_mod_that_it_holds_share_the_copied_parameter() -> None:
    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.slope = torch.nn.Parameter(torch.ones(4))
            self.text = flexfa4.parse("score + slope[h] * (kv - q)", slope=self.slope)
            self.traced = flexfa4.trace(Module(), "score")

    layer = Layer()
    again = copy.deepcopy(layer)
    assert again.slope is not layer.slope
    assert again.text.bind().tensors[0] is again.slope
    assert again.traced.bind().tensors[0] is not layer.traced.bind().tensors[0]


def test_a_mod_that_was_pickled_is_part_of_other_mods() -> None:
    window = pickle.loads(pickle.dumps(flexfa4.parse("q - kv < w", w=3)))
    again = flexfa4.trace(lambda b, h, q_idx, kv_idx: window(b, h, q_idx, kv_idx) & (q_idx >= 2))
    assert str(again) == "w: i32\n(q - kv < w) & (q >= 2)"
    assert str(flexfa4.trace(causal & window)) == "w: i32\n(kv <= q) & (q - kv < w)"


# ---- damage --------------------------------------------------------------------------------------


def good() -> dict[str, Any]:
    return state_of(MODS["text with bindings"].bind())


def test_a_state_is_plain_data() -> None:
    state = good()
    assert list(state) == ["format", "text", "tensors", "scalars"] and state["format"] == FORMAT
    assert type(state["text"]) is str and state["scalars"] == {"w": 3}
    assert state["tensors"]["ids"] is IDS


def test_another_format_is_refused_and_both_are_named() -> None:
    with pytest.raises(PickleFormatError, match=rf"has format 99, .* reads format {FORMAT}"):
        restored({**good(), "format": 99})


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"text": "q >= kv"}, "never read"),
        ({"text": "ids: i32[_]\nids["}, "is never closed"),
        ({"text": 7}, "'int' object"),
        ({"text": "__import__('os')"}, "has no meaning in a text"),
        ({"tensors": {}}, "was given no value"),
        ({"tensors": None}, "NoneType"),
        ({"tensors": {"ids": IDS.float()}}, "`ids` is declared as i32"),
        ({"tensors": {"ids": IDS[None]}}, "`ids` is declared as i32"),
        ({"tensors": {"ids": [1, 2]}}, "is a list"),
        ({"scalars": {"w": 3.5}}, "`w` is declared as i32"),
        ({"scalars": {"w": True}}, "`w` is declared as i32"),
        ({"scalars": {"w": 3, "more": 4}}, "`more` is never read"),
        ({"format": None}, "its format is not given"),
    ],
)
def test_a_state_whose_parts_do_not_go_together_is_refused(
    change: dict[str, Any], problem: str
) -> None:
    with pytest.raises(DamagedPickleError, match=problem):
        restored({**good(), **change})


@pytest.mark.parametrize("key", ["text", "tensors", "scalars", "format"])
def test_a_missing_part_is_named(key: str) -> None:
    state = good()
    del state[key]
    with pytest.raises(DamagedPickleError, match=f"{key}.* (is missing|not given)"):
        restored(state)


@pytest.mark.parametrize("state", [None, 7, "q >= kv", [], {}])
def test_what_is_no_state_is_refused(state: Any) -> None:
    with pytest.raises(DamagedPickleError, match="its format is not given"):
        restored(state)
