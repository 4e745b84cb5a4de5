"""Shift invariance: what is claimed holds on every shift, and the usual masks are recognised."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import flexfa4
from flexfa4.frontend.analysis.shifts import shift_invariant, shift_premises
from flexfa4.frontend.evaluate import Program, Values
from flexfa4.frontend.ir import BOOL, I32, Node, const, input_
from flexfa4.frontend.lanes import Lanes
from flexfa4.frontend.ops import apply
from flexfa4.frontend.tracing.trace import trace
from flexfa4.variants import Document, PrefixLM, SlidingWindow, causal
from tests.leaves import KV, Q

TABLE = torch.arange(64)


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        (causal, True),
        (SlidingWindow(8) & causal, True),
        (~SlidingWindow(8) | causal, True),
        (lambda b, h, q, kv: (q - kv).abs() % 3 == b, True),
        (lambda b, h, q, kv: 2 * q - kv * 2 < h, True),
        (lambda b, h, q, kv: 2 * q - kv < h, False),
        (lambda b, h, q, kv: q // 16 == kv // 16, False),
        (lambda b, h, q, kv: kv - q <= flexfa4.kv_len - flexfa4.q_len, True),
        (PrefixLM(5), False),
        (Document(TABLE), False),
    ],
    ids=range(10),
)
def test_masks_that_follow_the_diagonal_are_recognised(
    mask: Callable[..., Any], expected: bool
) -> None:
    assert shift_invariant(trace(mask, "mask").graph.root) is expected


@st.composite
def masks(draw: st.DrawFn, depth: int = 4) -> Node:
    """Draw a mask of comparisons between integer expressions of q and kv."""

    def integer(depth: int) -> Node:
        if depth == 0 or draw(st.booleans()):
            return draw(st.sampled_from((input_("q"), input_("kv"), const(2), const(-1))))
        op = draw(st.sampled_from(("add", "sub", "mul", "floordiv", "mod", "min", "max")))
        return apply(op, integer(depth - 1), integer(depth - 1))

    compare = draw(st.sampled_from(("lt", "le", "eq", "ne", "ge", "gt")))
    return apply(compare, integer(depth), integer(depth))


@given(masks())
def test_a_mask_called_invariant_is_the_same_after_every_shift(root: Node) -> None:
    assert root.dtype is BOOL and input_("q").dtype is I32
    if not shift_invariant(root):
        return
    program = Program((root,))

    def at(offset: int) -> torch.Tensor:
        lanes = Lanes((0, 1), (0, 1), (offset, offset + 9), (offset, offset + 9))
        return torch.as_tensor(program.run(Values(), lanes)[0]).expand(1, 1, 9, 9)

    assert all(torch.equal(at(0), at(offset)) for offset in (1, 2, 17))


def test_the_premises_are_the_positions_that_are_compared_by_order() -> None:
    away, later = apply("sub", Q, KV), apply("add", KV, const(3))
    window = apply("and", apply("lt", away, const(9)), apply("ge", later, Q))
    assert shift_premises(window) == (later, Q)
    assert shift_premises(apply("eq", Q, later)) == ()  # as good where both wrap around
    assert shift_premises(apply("lt", Q, const(9))) is None
