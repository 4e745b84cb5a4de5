"""Vectors taken apart: the same mask, and bounds of each element by itself."""

from __future__ import annotations

import functools

import pytest
import torch

from flexfa4.frontend.analysis.bounds import bound
from flexfa4.frontend.analysis.intervals import Interval
from flexfa4.frontend.evaluate import Program, Values
from flexfa4.frontend.ir import F32, I32, Buffer, Node, const, iota, load, topological
from flexfa4.frontend.lanes import Lanes
from flexfa4.frontend.masks import unroll as module
from flexfa4.frontend.masks.search.zones import Zones
from flexfa4.frontend.masks.unroll import unrolled
from flexfa4.frontend.ops import apply
from tests.leaves import KV, Q

STARTS, WEIGHTS = Buffer("starts", I32, (3,)), Buffer("weights", F32, (None, 3))
VALUES = Values({STARTS: torch.tensor([0, 20, 44]), WEIGHTS: torch.randn(50, 3)})
START = load(STARTS, (iota(3),))
LENGTH = apply("add", iota(3), const(4))


def within(node: Node) -> Node:
    """Return whether a position lies in each of three spans, of 4, 5 and 6 positions."""
    return apply("and", apply("ge", node, START), apply("lt", node, apply("add", START, LENGTH)))


SPANS = apply("any", apply("and", within(Q), within(KV)))
WEIGHT = load(WEIGHTS, (Q, iota(3)))
MASKS = {
    "spans": SPANS,
    "none": apply("all", apply("not", within(KV))),
    "extremes": apply("lt", apply("amin", START), apply("sub", apply("amax", START), Q)),
    "float": apply("gt", apply("amax", WEIGHT), apply("amin", load(WEIGHTS, (KV, iota(3))))),
    "two steps": apply("any", apply("gt", START, apply("amax", apply("add", START, Q)))),
    "sum": apply("gt", apply("sum", WEIGHT), const(0.0)),
    "no vector": apply("ge", Q, KV),
}


@pytest.mark.parametrize("name", MASKS)
def test_the_mask_stays_the_same(name: str) -> None:
    lanes = Lanes((0, 1), (0, 1), (0, 50), (0, 50))
    (right,), (found,) = (
        Program((root,)).run(VALUES, lanes) for root in (MASKS[name], unrolled(MASKS[name]))
    )
    assert torch.equal(right.expand(lanes.shape), found.expand(lanes.shape))


@pytest.mark.parametrize("name", MASKS)
def test_only_sums_keep_their_vectors(name: str) -> None:
    vectors = any(node.length is not None for node in topological(unrolled(MASKS[name])))
    assert vectors == (name == "sum")


def test_each_element_has_bounds_of_its_own() -> None:
    ranges = {"q": Interval(30, 36), "kv": Interval(30, 36)}  # between two spans

    def leaf(node: Node) -> Interval | None:
        return ranges.get(node.attr) if node.op == "input" else None

    bounded = functools.partial(bound, leaf=leaf, load=Zones(VALUES).load)
    assert bounded(SPANS) == Interval(False, True)
    assert bounded(unrolled(SPANS)) == Interval(False, False)


def test_a_mask_that_would_grow_too_large_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST", 20)
    assert unrolled(SPANS) is SPANS
