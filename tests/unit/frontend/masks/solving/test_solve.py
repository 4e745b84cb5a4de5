"""Masks solved for an index: which are, what their intervals are, and why others are not."""

from __future__ import annotations

import pytest

import flexfa4
from flexfa4.frontend.ir import Graph
from flexfa4.frontend.masks.solving.in_words import describe, describe_premises
from flexfa4.frontend.masks.solving.solve import ClosedForm, NotClosed, closed_form
from flexfa4.frontend.pipeline import optimise
from flexfa4.frontend.text.printing import parse_graph

DECLARED = (
    "w: i32; c: i32; s: i32; f: f32; lens: i32[_]; width: i32[_]; doc: i32[_]; text: i32[_, _]; "
    "start: i32[_]; level: f32[_]; shown: bool[_]; table: bool[_, _]; pair: i32[_, 2]; "
    "many: i32[_, 9]; "
)


def mask(text: str) -> Graph:
    return optimise(parse_graph(DECLARED + text, {}).graph)


def solution(text: str, index: str = "kv") -> str:
    form = closed_form(mask(text), index)
    return describe(form) if isinstance(form, ClosedForm) else f"not: {form.reason}"


FORMS = [
    ("q >= kv", "kv <= q", "q >= kv"),
    ("kv <= q + (kv_len - q_len)", "kv <= q + kv_len - q_len", "q >= kv + q_len - kv_len"),
    ("kv <= q + lens[b]", "kv <= q + lens[b]", "q >= kv - lens[b]"),
    ("kv < lens[b]", "kv < lens[b]", "kv < lens[b]"),
    ("abs(q - kv) <= w", "q - w <= kv <= q + w", "kv - w <= q <= kv + w"),
    ("w > q - kv and q >= kv", "q - w + 1 <= kv <= q", "kv <= q < kv + w"),
    ("q - kv < width[h] and q >= kv", "q - width[h] + 1 <= kv <= q", "kv <= q < kv + width[h]"),
    (
        "kv < lens[b] or kv <= q",
        "kv < max(lens[b], q + 1)",
        "kv < lens[b] or kv >= lens[b] and q >= kv",
    ),
    ("q // c == kv // c and kv <= q", "q // c * c <= kv <= q", "kv <= q < kv // c * c + c"),
    ("q // 64 == kv // 64 and kv <= q", "q // 64 * 64 <= kv <= q", "kv <= q < kv // 64 * 64 + 64"),
    ("q >> 6 == kv >> 6 and kv <= q", "(q >> 6) * 64 <= kv <= q", "kv <= q < (kv >> 6) * 64 + 64"),
    ("kv // c <= q // c", "kv < q // c * c + c", "q >= kv // c * c"),
    (
        "kv <= q and (kv < s or q - kv < w)",
        "kv < min(q + 1, s) or max(q - w + 1, min(q + 1, s)) <= kv <= q",
        "kv < s and q >= kv or kv >= s and kv <= q < kv + w",
    ),
    (
        "doc[q] == doc[kv]",
        "first(doc[:] == doc[q]) <= kv < end(doc[:] == doc[q])",
        "first(doc[:] == doc[kv]) <= q < end(doc[:] == doc[kv])",
    ),
    (
        "kv <= q and doc[kv] == doc[q]",
        "first(doc[:] == doc[q]) <= kv <= q",
        "kv <= q < end(doc[:] == doc[kv])",
    ),
    (
        "text[b, kv] == text[b, q] and kv <= q",
        "first(text[b, :] == text[b, q]) <= kv <= q",
        "kv <= q < end(text[b, :] == text[b, kv])",
    ),
    ("doc[kv] < doc[q]", "kv < count(doc[:] < doc[q])", "q >= count(doc[:] <= doc[kv])"),
    ("level[kv] <= f", "kv < count(level[:] <= f)", "level[kv] <= f"),
    ("shown[kv]", "first(shown[:] == True) <= kv < end(shown[:] == True)", "shown[kv]"),
    (
        "not shown[kv]",
        "kv < first(shown[:] == True) or kv >= end(shown[:] == True)",
        "~shown[kv]",
    ),
    (
        "start[doc[kv]] + 1 <= kv and kv <= q and doc[kv] == doc[q]",
        "max(start[doc[q]] + 1, first(doc[:] == doc[q])) <= kv <= q",
        "start[doc[kv]] + 1 <= kv and kv <= q < end(doc[:] == doc[kv])",
    ),
    (
        "q // c == kv // c and q % c - kv % c >= w",
        "q // c * c <= kv < min(q // c * c + c, q - w + 1)",
        "max(kv // c * c, kv + w) <= q < kv // c * c + c",
    ),
    ("q - kv < 2.5", "kv >= q - 2", "q < kv + 3"),
    ("c * kv <= q", "kv <= q // c", "q >= c * kv"),
    ("3 * kv > q + kv", "kv >= (q + 2) // 2", "q < kv * 2"),
    ("kv // -2 >= q", "kv <= q * -2", "q <= kv // -2"),
    ("min(kv, s) < q", "s >= q and kv < q or s < q", "q >= min(kv, s) + 1"),
    ("kv != q", "kv < q or kv >= q + 1", "q < kv or q >= kv + 1"),
    ("where(q < s, kv < w, kv <= q)", "q < s and kv < w or q >= s and kv <= q",
     "kv < w and q < s or q >= max(s, kv)"),
    ("(kv < w) == (kv <= q)", "kv < min(w, q + 1) or kv >= max(w, q + 1)",
     "kv >= w and q < kv or kv < w and q >= kv"),
    ("any(pair[q, :] == kv // 8)",
     "pair[q, 0] * 8 <= kv < pair[q, 0] * 8 + 8 or pair[q, 1] * 8 <= kv < pair[q, 1] * 8 + 8",
     "first(pair[:, 0] == kv // 8) <= q < end(pair[:, 0] == kv // 8) or "
     "first(pair[:, 1] == kv // 8) <= q < end(pair[:, 1] == kv // 8)"),
    ("kv - q <= 0 or kv > q", "every kv", "every q"),
    ("kv < q and kv > q", "no kv", "no q"),
    ("q < 3 and kv < 0", "no kv", "no q"),
    ("kv >= 0 and kv < kv_len", "every kv", "kv < kv_len"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "of_kv", "of_q"), FORMS, ids=[form[0] for form in FORMS])
def test_masks_are_solved_for_both_indices(text: str, of_kv: str, of_q: str) -> None:
    assert (solution(text), solution(text, "q")) == (of_kv, of_q)


@pytest.mark.parametrize(
    "text",
    [
        "abs(kv - q) <= 9 and not kv > q",
        "not (q < kv or 9 < q - kv)",
        "q >= kv and kv + 9 >= q",
        "(kv <= q) ^ (q - kv > 9 and kv <= q)",
        "where(kv > q, kv < 0, q <= 9 + kv)",
        "max(kv, q - 9) <= min(q, kv)",
        "(q >= kv) == True and i32(q - kv > 9) < 1",
        "-9 <= kv - q and 0 >= kv - q",
    ],
)
def test_one_window_is_one_interval_however_it_is_written(text: str) -> None:
    assert solution(text) == "q - 9 <= kv <= q"


REASONS = [
    ("(q - kv) % w == 0", "`(q - kv) % w` repeats along kv"),
    ("table[q, kv]", "`table[q, kv]` is an element of a table over q and kv"),
    ("table[kv, kv]", "`table[kv, kv]` is read along kv in more than one axis"),
    ("any(many[q, :] == kv)", "`any(many[q, :] == kv)` is not solved for kv"),
    ("sum(pair[q, :]) < sum(pair[kv, :])", "`sum(pair[kv, :])` is not solved for kv"),
    ("exp(kv) < f", "`exp(kv)` is not solved for kv"),
    ("(kv ^ q) < 8", "`kv ^ q` is not solved for kv"),
    ("kv * kv < q", "`kv * kv` is not solved for kv"),
    ("q // kv < 3", "`q // kv` is not solved for kv"),
    ("kv - doc[kv] < q", "`kv` and `doc[kv]` are compared, which both vary along kv"),
    (" or ".join(f"kv == q * {i}" for i in range(2, 12)), "more than 8 intervals of kv"),
    (f"kv + {2**63 - 1} + {2**63 - 1} < q * w",
     "a number that follows from its constants does not fit 64 bits"),
    (f"f + q + kv {'+ q + kv' * 20} < w", "`f + q + kv + q + kv + q + kv + q + kv + q + kv + q + "),
]  # fmt: skip


@pytest.mark.parametrize(("text", "reason"), REASONS, ids=[r[1][:40] for r in REASONS])
def test_what_is_not_recognised_is_named_in_one_line(text: str, reason: str) -> None:
    form = closed_form(mask(text), "kv")
    assert isinstance(form, NotClosed)
    assert form.reason.startswith(reason)
    assert "\n" not in form.reason
    assert len(form.reason) < 160


def test_deep_expressions_are_refused_rather_than_followed() -> None:
    lines = [f"t{i} = max({f't{i - 1}' if i else 'q'} + 1, kv - {i})" for i in range(80)]
    form = closed_form(mask("; ".join([*lines, "t79 < w"])), "kv")
    assert form == NotClosed("its expressions are nested more than 64 deep")


@pytest.mark.parametrize(
    "text",
    [
        " + ".join(f"abs(q - kv - {i})" for i in range(40)) + " < w",
        " + ".join(f"i32(kv < q + {7 * i})" for i in range(40)) + " < 5",
    ],
)
def test_sums_whose_cases_double_with_each_term_are_given_up(text: str) -> None:
    form = closed_form(mask(text), "kv")
    assert form == NotClosed("it has more cases than are worth solving")


def test_nested_comparisons_of_bools_are_solved_once_each() -> None:
    chain = "kv <= q"
    for i in range(30):
        chain = f"({chain}) ^ (kv + {i % 4} <= q)"
    form = closed_form(mask(f"{chain} ^ (kv <= q + 9)"), "kv")
    assert isinstance(form, ClosedForm)


@pytest.mark.parametrize(
    ("text", "premises"),
    [
        ("kv < q + w", []),
        ("kv // c == q // c", ["`c` is at least 1"]),
        ("kv // 8 == q // 8", []),
        ("c * kv <= q", ["`c` is at least 1"]),
        ("doc[kv] == doc[q]", ["equal elements of `doc` stand together"]),
        ("text[b, kv] == 3", ["the elements 3 of `text` stand together along axis 1"]),
        ("shown[kv]", ["the elements True of `shown` stand together"]),
        ("doc[kv] <= 5", ["`doc` ascends"]),
        ("doc[kv - 1] <= 5", ["`kv - 1` is at least 0", "`doc` ascends"]),
        ("level[kv] < f", ["`f` is not NaN", "`level` ascends"]),
        ("q - kv <= f", ["`q - kv` is from -16777216 to 16777216", "`f` is not NaN"]),
    ],
)
def test_a_solution_says_what_it_rests_on(text: str, premises: list[str]) -> None:
    form = closed_form(mask(text), "kv")
    assert isinstance(form, ClosedForm)
    assert describe_premises(form) == premises


@pytest.mark.parametrize(
    ("text", "ordered"),
    [
        ("kv <= q and (kv < s or q - kv < w)", True),
        ("kv != q", True),
        ("abs(q - kv) > w", True),
        ("where(q < s, kv < w, kv >= c)", True),  # one of the two is empty
        ("abs(kv - q) < w or abs(kv - s) < w", False),
    ],
)
def test_intervals_are_ordered_where_that_can_be_proved(text: str, ordered: bool) -> None:
    form = closed_form(mask(text), "kv")
    assert isinstance(form, ClosedForm)
    assert len(form.spans) == 2
    assert form.ordered is ordered


def test_a_mask_is_solved_once_for_all_lengths_numbers_and_contents() -> None:
    before = flexfa4.stats()
    for _ in range(3):
        closed_form(mask("kv <= q + w + c + 77"), "kv")
    assert (flexfa4.stats() - before).closed_forms == 1
