"""Mods of packed sequences: what they say, and what they still say of closed forms."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import flexfa4
from flexfa4.frontend.analysis.facts import score_facts
from flexfa4.frontend.binding import BoundGraph
from flexfa4.frontend.eager import result_on
from flexfa4.frontend.masks.solving.in_words import describe
from flexfa4.frontend.masks.solving.solve import ClosedForm, closed_form
from flexfa4.frontend.rewriting.packed import Kind, bound_packed, packed
from flexfa4.frontend.verify import verify
from flexfa4.sequences import sequences_of
from tests.random_masks import RandomMask, Space, random_masks


def keys_of(text: str, *, shared: bool, **bindings: Any) -> str:
    form = closed_form(packed("mask", flexfa4.parse(text, **bindings).graph, shared).graph, "kv")
    assert isinstance(form, ClosedForm), form
    return describe(form)


def expression(kind: Kind, text: str, *, shared: bool, **bindings: Any) -> str:
    graph = packed(kind, flexfa4.parse(text, **bindings).graph, shared).graph
    verify(graph)
    return str(graph).split("\n")[-1]


# ---- closed forms --------------------------------------------------------------------------------

# A mask -> the keys of each query, with one set of lengths and with two.
FORMS = {
    "q >= kv": (
        "q_begin[q] <= kv < min(q_end[q], q + 1)",
        "kv_begin[q] <= kv < min(kv_end[q], q + kv_begin[q] - q_begin[q] + 1)",
    ),
    "q + kv_len - q_len >= kv": (
        "q_begin[q] <= kv < min(q_end[q], q + 1)",
        "kv_begin[q] <= kv < min(kv_end[q], q + kv_end[q] - q_end[q] + 1)",
    ),
    "q >= kv and q - kv < 8": (
        "max(q_begin[q], q - 7) <= kv < min(q_end[q], q + 1)",
        "max(kv_begin[q], q + kv_begin[q] - q_begin[q] - 7) <= kv"
        " < min(kv_end[q], q + kv_begin[q] - q_begin[q] + 1)",
    ),
}


@pytest.mark.parametrize("text", FORMS)
@pytest.mark.parametrize("shared", [True, False])
def test_closed_forms_stay_closed(text: str, shared: bool) -> None:
    assert keys_of(text, shared=shared) == FORMS[text][0 if shared else 1]


def test_without_a_mask_a_query_sees_its_sequence() -> None:
    form = closed_form(packed("mask", None, False).graph, "kv")
    assert isinstance(form, ClosedForm) and describe(form) == "kv_begin[q] <= kv < kv_end[q]"


# ---- scores --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["score + 0.5 * (kv - q)", "score * 2", "score + h", "where(q >= kv, score, 0)"]
)
def test_what_is_the_same_for_shifted_positions_stays_as_it_is(text: str) -> None:
    graph = flexfa4.parse(text).graph
    made = packed("score", graph, True)
    assert made.graph == graph and not made.tables


# A score mod -> what it becomes with one set of lengths.
SCORES = {
    "score + b": "score + sequence[q]",
    "score + q_len": "score + q_length[q]",
    "score + (2 * kv - 2 * q)": "score + (kv * 2 - q * 2)",
    "score + min(q, kv)": "score + (min(q, kv) - q_begin[q])",
    "score + min(q, kv) - q": "score + (min(q, kv) - t0) - (q - t0)",
}


@pytest.mark.parametrize("text", SCORES)
def test_shifts_are_written_where_they_do_not_cancel(text: str) -> None:
    assert expression("score", text, shared=True) == SCORES[text]


def test_the_table_of_a_name_that_a_capture_has_gets_another() -> None:
    text = expression("score", "score + q_begin * b + sequence[q]", shared=True, q_begin=2.0,
                      sequence=torch.zeros(3))  # fmt: skip
    assert "sequence_[q]" in text and "sequence[q" in text


def test_a_bias_that_is_linear_in_the_keys_stays_linear() -> None:
    graph = packed("score", flexfa4.parse("score - 0.5 * (q - kv)").graph, False).graph
    slope = score_facts(graph).kv_slope
    assert slope is not None and slope.attr == 0.5


# ---- meaning -------------------------------------------------------------------------------------

Q_LENGTHS, KV_LENGTHS = (5, 0, 9, 6), (7, 3, 4, 6)


def remainder(mask: Any, *, shared: bool) -> torch.Tensor:
    """Return the packed mask, with the mask of each sequence taken off by exclusive or."""
    mod = flexfa4.trace(mask, "mask")
    kv_lengths = Q_LENGTHS if shared else KV_LENGTHS
    q_ends, kv_ends = (torch.tensor([0, *n]).cumsum(0) for n in (Q_LENGTHS, kv_lengths))
    totals = (int(q_ends[-1]), int(kv_ends[-1]))
    sequences = sequences_of(q_ends, kv_ends, totals, torch.device("cpu"))
    left = evaluated(bound_packed("mask", mod.bind(), shared, sequences.table), 0, *totals)
    for number, (q_len, kv_len) in enumerate(zip(Q_LENGTHS, kv_lengths, strict=True)):
        q, kv = int(q_ends[number]), int(kv_ends[number])
        left[:, q : q + q_len, kv : kv + kv_len] ^= evaluated(mod.bind(), number, q_len, kv_len)
    return left


def evaluated(bound: BoundGraph, b: int, q_len: int, kv_len: int) -> torch.Tensor:
    at = {"b": torch.tensor(b), "h": torch.arange(2)[:, None, None],
          "q": torch.arange(q_len)[:, None], "kv": torch.arange(kv_len)}  # fmt: skip
    return result_on(bound, at, lambda: None).expand(2, q_len, kv_len).clone()


LONGEST = max(*Q_LENGTHS, *KV_LENGTHS)
SPACE = Space(len(Q_LENGTHS), 2, LONGEST, LONGEST)


@given(mask=random_masks, shared=st.booleans())
def test_a_random_mask_is_that_of_each_sequence_and_false_elsewhere(
    mask: RandomMask, shared: bool
) -> None:
    assert not remainder(mask.function(SPACE), shared=shared).any()


def test_integers_that_overflow_are_compared_as_they_are() -> None:
    far = torch.tensor([2**63 - 3])

    def mask(b: Any, h: Any, q: Any, kv: Any) -> Any:
        return far[0] + q >= kv

    assert not remainder(mask, shared=True).any()
