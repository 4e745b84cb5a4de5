"""Closed forms in words: inequalities that say exactly which ends belong, and what they rest on."""

from __future__ import annotations

import pytest

from flexfa4.frontend.ir import BOOL, I32, Buffer, Node, Search, const, load, search, symbol
from flexfa4.frontend.masks.solving.in_words import describe, failed, out_of_range, overflow
from flexfa4.frontend.masks.solving.premises import Ascending, Bounded, Grouped, Premise
from flexfa4.frontend.masks.solving.solve import ClosedForm
from flexfa4.frontend.masks.solving.spans import Span
from flexfa4.frontend.ops import apply
from tests.leaves import Q

DOC = Buffer("doc", I32, (None, None))
ZERO, END, NEXT = const(0), symbol("kv_len"), apply("add", Q, const(1))
EARLY = apply("lt", Q, const(4))


def form(*spans: tuple[Node, Node]) -> ClosedForm:
    return ClosedForm(const(True), "kv", tuple(Span(*span) for span in spans), (), True)


@pytest.mark.parametrize(
    ("spans", "text"),
    [
        ((), "no kv"),
        (((ZERO, END),), "every kv"),
        (((ZERO, NEXT),), "kv <= q"),
        (((ZERO, Q),), "kv < q"),
        (((Q, END),), "kv >= q"),
        (((Q, NEXT), (NEXT, END)), "q <= kv <= q or kv >= q + 1"),
        (((ZERO, apply("min", NEXT, apply("add", NEXT, const(2)))),), "kv < min(q + 1, q + 1 + 2)"),
        (((ZERO, apply("min", NEXT, apply("add", symbol("q_len"), const(1)))),),
         "kv <= min(q, q_len)"),
        (((ZERO, apply("where", EARLY, END, ZERO)),), "q < 4"),
        (((Q, apply("where", EARLY, ZERO, NEXT)),), "q >= 4 and q <= kv <= q"),
    ],
)  # fmt: skip
def test_intervals_are_inequalities(spans: tuple[tuple[Node, Node], ...], text: str) -> None:
    assert describe(form(*spans)) == text


@pytest.mark.parametrize(
    ("premise", "text"),
    [
        (Bounded(Q, 1), "`q` is at least 1"),
        (Bounded(Q, -2, 2), "`q` is from -2 to 2"),
        (Bounded(Q), "`q` is not NaN"),
        (Ascending(DOC, 1), "`doc` ascends along axis 1"),
        (Ascending(Buffer("flat", I32, (None,)), 0), "`flat` ascends"),
        (Grouped(DOC, 0, None), "equal elements of `doc` stand together along axis 0"),
        (Grouped(Buffer("shown", BOOL, (None,)), 0, True),
         "the elements True of `shown` stand together"),
    ],
)  # fmt: skip
def test_premises_that_do_not_hold_are_named(premise: Premise, text: str) -> None:
    assert failed(premise) == f"for these values it does not hold that {text}"


def test_overflow_and_range_are_named() -> None:
    assert overflow(NEXT) == "for these values `q + 1` may not fit 64 bits"
    assert out_of_range(load(DOC, (Q, NEXT))) == (
        "for these values `doc[q, q + 1]` may be out of range"
    )


def test_searches_are_printed_as_what_they_find() -> None:
    texts = {"first": "first(doc[q, :] == (q < 4))", "through": "count(doc[q, :] <= (q < 4))"}
    shown = Buffer("doc", BOOL, (None, None))
    for side, text in texts.items():
        node = search(Search(shown, 1, side), (Q,), EARLY)  # type: ignore[arg-type]
        assert describe(form((node, END))) == f"kv >= {text}"
