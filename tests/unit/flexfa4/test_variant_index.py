"""The index holds every variant, with what its docstring says and what its constructor takes."""

from __future__ import annotations

import inspect

import pytest

from flexfa4 import variants
from flexfa4.variant_index import entries, find

INSTANCES = [n for n in variants.__all__ if not isinstance(getattr(variants, n), type)]


def test_every_default_instance_has_an_entry_of_its_own() -> None:
    assert list(entries()) == INSTANCES


@pytest.mark.parametrize("name", INSTANCES)
def test_a_variant_says_what_it_computes_what_it_takes_and_where_it_comes_from(name: str) -> None:
    entry = entries()[name]
    assert entry.summary.endswith(".") and "\n" not in entry.summary
    opening = {"mask": ("Attend",), "score": ("Add", "Return")}[entry.kind]
    assert entry.summary.startswith(opening)
    assert entry.source.endswith(".") and "Source:" not in " ".join(entry.paragraphs)
    taken = list(inspect.signature(entry.variant).parameters)
    assert [p.name for p in entry.parameters] == taken
    assert all(p.meaning for p in entry.parameters)


def test_the_parts_of_an_entry_are_those_of_the_docstring() -> None:
    entry = entries()["sink_window"]
    assert entry.summary == "Attend to ``kv <= q and (kv < sinks or q - kv < window)``."
    assert entry.signature == "SinkWindow(sinks=4, window=1024)"
    assert [p.meaning for p in entry.parameters] == [
        "first keys that are always seen, at least 0.",
        "latest keys that a query sees, its own among them, at least 1.",
    ]
    assert entry.source.startswith("Xiao et al.") and entry.kind == "mask"


def test_a_list_that_belongs_to_the_first_sentence_is_part_of_the_summary() -> None:
    assert "``random_blocks[i]``." in entries()["big_bird"].summary


def test_a_mod_as_default_is_shown_by_its_name() -> None:
    assert entries()["folded_batch"].signature == "FoldedBatch(length=1024, inner=causal)"
    assert "activation=gelu" in entries()["activation_score"].signature


def test_find_takes_the_name_of_the_instance_and_of_the_class() -> None:
    assert find("sliding_window") is find("SlidingWindow") is entries()["sliding_window"]
    assert find("sliding-window") is None


def test_only_a_variant_without_its_data_lacks_something() -> None:
    missing = entries()["document"].missing()
    assert missing is not None and missing.fields["name"] == "Document.ids"
    assert entries()["document"].missing(variants.Document.from_lengths([2, 3])) is None
    assert entries()["causal"].missing() is None
