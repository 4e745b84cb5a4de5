"""What is proved about the ends of intervals from one query to the next."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flexfa4.frontend.evaluate import Program, Values
from flexfa4.frontend.ir import (
    I32,
    Buffer,
    Node,
    Scalar,
    Search,
    Side,
    const,
    load,
    scalar,
    search,
    symbol,
)
from flexfa4.frontend.lanes import Lanes
from flexfa4.frontend.ops import apply
from flexfa4.frontend.value_runs import value_runs
from flexfa4.kernels.blocks.steps import (
    ANY,
    NONE,
    Steps,
    direction_of_steps,
    neighbours_meet,
    steps_of,
)
from tests.leaves import B, Q

W = scalar(Scalar("w", I32))
LENS = Buffer("lens", I32, (None,))
IDS = Buffer("ids", I32, (None, None))
SORTED = Buffer("sorted", I32, (None,))
VALUES = Values(
    tensors={LENS: torch.tensor([3, -20])},
    scalars={W.attr: 7},
    symbols={"q_len": 40, "kv_len": 33},
)


def nodes(depth: int) -> st.SearchStrategy[Node]:
    leaf = st.sampled_from((Q, const(5), const(-3), W, symbol("kv_len"), load(LENS, (B,))))
    if not depth:
        return leaf
    below = nodes(depth - 1)
    return st.one_of(
        leaf,
        st.builds(apply, st.sampled_from(("add", "sub", "min", "max", "mul")), below, below),
        st.builds(lambda a: apply("neg", a), below),
        st.builds(
            lambda op, a, by: apply(op, a, const(by)),
            st.sampled_from(("floordiv", "mod", "shr", "mul")), below,
            st.sampled_from((1, 2, 5, 16)),
        ),
        st.builds(lambda c, a, b: apply("where", apply("lt", c, W), a, b), below, below, below),
    )  # fmt: skip


@given(nodes(3))
def test_no_step_is_outside_of_what_is_proved(node: Node) -> None:
    (found,) = Program((node,)).run(VALUES, Lanes((0, 2), (0, 1), (0, 40), (0, 1)))
    values = torch.as_tensor(found).expand(2, 1, 40, 1)
    least, most = steps_of(node)
    steps = values.diff(dim=2)
    assert least <= int(steps.min()) and int(steps.max()) <= most


@pytest.mark.parametrize(
    ("node", "steps"),
    [
        (apply("sub", Q, W), Steps(1, 1)),
        (apply("max", apply("sub", Q, W), const(0)), Steps(0, 1)),
        (apply("min", apply("add", Q, const(1)), load(LENS, (B,))), Steps(0, 1)),
        (apply("mul", apply("floordiv", Q, const(128)), const(128)), Steps(0, 128)),
        (apply("neg", apply("mul", Q, const(3))), Steps(-3, -3)),
        (load(LENS, (B,)), NONE),
        (load(LENS, (Q,)), ANY),
        (apply("mul", load(LENS, (Q,)), const(0)), NONE),
        (apply("mod", Q, const(5)), ANY),
    ],
)
def test_ends_that_people_write_are_bounded(node: Node, steps: Steps) -> None:
    assert steps_of(node) == steps
    assert steps.monotone == (steps is not ANY)


def test_a_band_has_no_gaps_and_blocks_of_queries_may() -> None:
    after = apply("add", Q, const(1))
    assert neighbours_meet(apply("sub", Q, W), after)
    coarse = apply("mul", apply("floordiv", Q, const(64)), const(64))
    assert neighbours_meet(coarse, after)
    assert not neighbours_meet(coarse, apply("add", coarse, const(1)))
    assert steps_of(coarse) == Steps(0, 64) and not math.isinf(steps_of(coarse).most)


OWN_BEGIN, OWN_END = (
    search(Search(IDS, 1, side), (B,), load(IDS, (B, Q))) for side in ("first", "end")
)


@pytest.mark.parametrize("index", [Q, apply("sub", const(39), Q), apply("floordiv", Q, const(2))])
@pytest.mark.parametrize("side", ["first", "end"])
def test_runs_follow_each_other_as_the_places_in_them(side: Side, index: Node) -> None:
    rows = torch.stack((torch.tensor([7, 3, 5])[torch.arange(40) // 15], torch.arange(40) // 9))
    values = replace(VALUES, tensors={IDS: rows}, value_runs={(IDS, 1): value_runs(rows, 1)})
    node = search(Search(IDS, 1, side), (B,), load(IDS, (B, index)))
    (found,) = Program((node,)).run(values, Lanes((0, 2), (0, 1), (0, 40), (0, 1)))
    least, most = steps_of(node)
    steps = found.expand(2, 1, 40, 1).diff(dim=2)
    assert least <= int(steps.min()) and int(steps.max()) <= most
    # a place that may be negative would be one from the end
    assert steps_of(node).monotone == (index.op != "sub")


@pytest.mark.parametrize(
    ("node", "steps"),
    [
        (search(Search(SORTED, 0, "below"), (), apply("sub", Q, W)), Steps(0, math.inf)),
        (search(Search(SORTED, 0, "through"), (), apply("neg", Q)), Steps(-math.inf, 0)),
        (search(Search(SORTED, 0, "below"), (), apply("mod", Q, const(5))), ANY),
        (search(Search(SORTED, 0, "first"), (), Q), ANY),
        (search(Search(IDS, 1, "first"), (Q,), load(IDS, (Q, Q))), ANY),
        (search(Search(IDS, 1, "first"), (B,), load(IDS, (const(0), Q))), ANY),
    ],
)
def test_what_is_found_in_ascending_elements_moves_as_what_is_looked_for(
    node: Node, steps: Steps
) -> None:
    assert steps_of(node) == steps


def test_intervals_that_hold_their_own_position_meet() -> None:
    after = apply("add", Q, const(1))
    for begin in (OWN_BEGIN, apply("max", OWN_BEGIN, apply("sub", Q, const(7)))):
        assert neighbours_meet(begin, after) and neighbours_meet(begin, OWN_END)
    assert neighbours_meet(Q, apply("min", OWN_END, apply("add", Q, const(8))))
    assert not neighbours_meet(OWN_BEGIN, apply("sub", OWN_END, const(1)))
    assert not neighbours_meet(apply("max", OWN_BEGIN, const(64)), after)
    other = search(Search(IDS, 1, "first"), (const(0),), load(IDS, (B, Q)))
    assert not neighbours_meet(other, after)


@pytest.mark.parametrize(
    ("begin", "end", "whole", "cut"),
    [
        (const(0), apply("add", Q, const(1)), "descending", "descending"),  # causal
        (Q, symbol("kv_len"), "ascending", "ascending"),  # its mirror image
        (apply("sub", Q, W), apply("add", Q, const(1)), "descending", None),  # a window
        (const(3), symbol("kv_len"), "ascending", "ascending"),  # all alike
        (apply("mul", Q, const(2)), Q, None, None),
        (load(LENS, (Q,)), symbol("kv_len"), None, None),
    ],
)
def test_the_order_of_work_follows_from_the_steps_of_the_ends(
    begin: Node, end: Node, whole: str | None, cut: str | None
) -> None:
    assert direction_of_steps(begin, end, cut=False) == whole
    assert direction_of_steps(begin, end, cut=True) == cut
