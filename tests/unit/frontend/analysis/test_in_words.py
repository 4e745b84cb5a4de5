"""Facts in words: a row for each, with the reason of a rewrite."""

from __future__ import annotations

from typing import get_args

from flexfa4.frontend.analysis import in_words
from flexfa4.frontend.analysis.facts import (
    ROW_MAX_FIRST,
    Shape,
    State,
    mask_facts,
    score_facts,
)
from flexfa4.frontend.ir import F32, Buffer, Node, load, make_graph
from flexfa4.frontend.ops import apply
from flexfa4.frontend.pipeline import optimise
from tests.leaves import KV, SCORE, H, Q

SLOPES = Buffer("slopes", F32, (None,))
SLOPE, DISTANCE = load(SLOPES, (H,)), apply("sub", KV, Q)


def biased(bias: Node) -> Node:
    return apply("add", SCORE, bias)


def test_a_score_mod_has_a_row_for_every_fact_and_the_reason_of_a_rewrite() -> None:
    root = biased(apply("mul", SLOPE, DISTANCE))
    facts = score_facts(optimise(make_graph("score", root)))
    rows = dict(in_words.describe(facts))
    assert rows["slope along kv"] == "slopes[h]"
    assert rows["reads slopes"] == "one element for all keys of a query"
    assert rows["GPU instructions per score"] == "3 multiply-adds, 1 other"
    assert rows["GPU instructions per query"] == "none"
    rewrite = facts.rewrite(ROW_MAX_FIRST)
    assert rewrite is not None
    words = in_words.describe_rewrite(rewrite)
    assert words.startswith("not done (it needs a positive scale")
    assert words.endswith("): the bias differs along the row")


def test_a_mask_says_what_it_reads() -> None:
    table = Buffer("table", F32, (None, None))
    root = apply("gt", load(table, (KV, H)), load(SLOPES, (apply("add", KV, Q),)))
    rows = dict(in_words.describe_mask(mask_facts(optimise(make_graph("mask", root)))))
    assert rows["reads"] == "h, q, kv" and rows["along the diagonal"] == "may differ"
    assert rows["reads table"].endswith("(axis 0, step 1)")
    assert rows["reads slopes"] == "neighbouring elements for neighbouring keys"


def test_every_state_and_every_way_of_reading_has_words() -> None:
    assert set(in_words.STATES) == set(get_args(State))
    assert set(in_words.SHAPES) == set(get_args(Shape))
