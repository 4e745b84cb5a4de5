"""Errors about reading a captured tensor point at the read in the user's source."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

import flexfa4
from flexfa4.errors import OutOfRangeError, Where
from flexfa4.frontend.places import NOWHERE, Places
from flexfa4.frontend.tracing.trace import resolve
from flexfa4.variants import causal

IDS, TABLE, FULL = torch.arange(10), torch.zeros(2, 10), torch.arange(16)


def looked_up(index: Any) -> Any:
    return IDS[index]


# what is read out of range, as written, and the mask that reads it
MASKS: dict[str, Any] = {
    "IDS[q // 2 + 3]": lambda b, h, q, kv: (q >= kv) & (IDS[q // 2 + 3] > 0),
    "IDS[0 + kv * 1]": lambda b, h, q, kv: FULL[q] == IDS[0 + kv * 1],
    "TABLE[h][kv]": lambda b, h, q, kv: TABLE[h][kv] > TABLE[h, q // 2],
    "TABLE[:, kv]": lambda b, h, q, kv: TABLE[:, kv].sum(-1) > 0,
    "IDS[index]": lambda b, h, q, kv: looked_up(q) > 0,
    "IDS[kv]": causal & (lambda b, h, q, kv: FULL[kv] == IDS[kv]),
    "t[q]": flexfa4.parse("t[q // 2] < 3 and t[q] == t[kv // 2]", t=IDS),
    "t[kv + 1]": ~flexfa4.parse("t[kv + 1] == u[q]", t=IDS, u=FULL) | causal,
}


def pointed_at(where: Where | str | None) -> str:
    assert isinstance(where, Where)
    return where.source[where.column : where.column + where.width]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="an instruction knows its line only")
@pytest.mark.parametrize("read", MASKS)
def test_a_mask_that_reads_out_of_range_is_shown_where_it_does(read: str) -> None:
    with pytest.raises(OutOfRangeError) as made:
        flexfa4.create_block_mask(MASKS[read], heads=2, q_len=16, kv_len=16)
    assert pointed_at(made.value.where) == read


@pytest.mark.skipif(sys.version_info < (3, 11), reason="an instruction knows its line only")
def test_a_score_mod_that_reads_out_of_range_is_shown_where_it_does() -> None:
    bias = torch.zeros(10)
    q = torch.randn(1, 1, 16, 8)
    mods: list[Any] = [
        lambda score, b, h, q, kv: score + FULL[q] + bias[kv],
        flexfa4.compose("score * 2", lambda score, b, h, q, kv: score - bias[kv]),
        flexfa4.trace(lambda score, b, h, q, kv: torch.where(kv < 3, score, bias[kv] * score)),
    ]
    for score_mod in mods:
        with pytest.raises(OutOfRangeError) as caught:
            flexfa4.attention(q, q, q, score_mod=score_mod)
        assert pointed_at(caught.value.where) == "bias[kv]"


def test_equal_reads_of_two_functions_are_told_apart() -> None:
    def first(b: Any, h: Any, q: Any, kv: Any) -> Any:
        return IDS[q] == IDS[kv]

    def second(b: Any, h: Any, q: Any, kv: Any) -> Any:
        return IDS[q] == IDS[kv]

    assert resolve(first, "mask").graph == resolve(second, "mask").graph
    for function in (first, second, first):
        with pytest.raises(OutOfRangeError) as caught:
            flexfa4.create_block_mask(function, q_len=16, kv_len=16)
        assert isinstance(caught.value.where, Where)
        assert caught.value.where.function == function.__name__


def test_a_mod_without_source_costs_the_place_not_the_error() -> None:
    made: dict[str, Any] = {"IDS": IDS}
    exec("mask = lambda b, h, q, kv: IDS[q] == IDS[kv]", made)
    with pytest.raises(OutOfRangeError, match="has size 10"):
        flexfa4.create_block_mask(made["mask"], q_len=16, kv_len=16)


def test_places_keep_no_function_alive() -> None:
    def make() -> Callable[..., Any]:
        made: dict[str, Any] = {"IDS": FULL}
        exec("def mask(b, h, q, kv): return IDS[q] == IDS[kv]", made)
        function: Callable[..., Any] = made["mask"]
        return function

    function = make()
    bound = resolve(function, "mask")
    code = weakref.ref(function.__code__)
    del function
    gc.collect()
    assert code() is None
    load = bound.graph.root.args[0]
    assert load.op == "load" and bound.places.where(load) is None


def test_a_rewritten_read_is_found_by_its_tensor_if_that_is_read_once() -> None:
    graph = resolve(lambda b, h, q, kv: FULL[q] == TABLE[h, kv], "mask").graph
    full, table = (n for n in graph.root.args for n in (n, *n.args) if n.op == "load")
    here = Where("mods.py", 3)
    once = Places({full: lambda: here})
    assert once.where(full) is here and once.where(table) is None
    other = resolve(lambda b, h, q, kv: FULL[kv] > 3, "mask").graph.root
    load = next(n for n in (other, *other.args) if n.op == "load")
    assert once.where(load) is here
    assert Places({full: lambda: here, table: lambda: None}).where(load) is here
    assert NOWHERE.where(full) is None
