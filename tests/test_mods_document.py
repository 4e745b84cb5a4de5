"""docs/mods.md lists what the package has, and its examples run."""

from __future__ import annotations

import importlib
import re
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import flexfa4
from flexfa4.frontend.analysis import facts, in_words
from flexfa4.frontend.text import vocabulary
from flexfa4.frontend.tracing.torch_functions import FUNCTIONS

DOCUMENT = Path(__file__).parent.parent / "docs" / "mods.md"


@pytest.fixture(scope="module")
def maker() -> ModuleType:
    return importlib.import_module("docs.make_mods")


def document() -> str:
    return DOCUMENT.read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", document(), re.DOTALL)


def test_the_committed_lists_are_those_of_the_package(maker: ModuleType) -> None:
    assert document() == maker.text(document()), "run docs/make_mods.py"
    assert all(f"<!-- {name} -->" in document() for name in maker.parts())


def test_a_list_that_was_edited_by_hand_is_put_right(maker: ModuleType) -> None:
    edited = document().replace("`addcmul`, ", "").replace("`expm1(x)`, ", "")
    assert edited != document() and maker.text(edited) == document()


def test_every_function_and_operator_that_works_is_listed(maker: ModuleType) -> None:
    parts = maker.parts()
    missing = {
        name
        for name in FUNCTIONS
        if name[0] != "_" and f"`{name}`" not in parts["functions"] + parts["refused"]
    }
    # torch has these under other names, or Python asks for them
    assert missing == {"expit", "item", "log_sigmoid", "pos", "tolist", "view_as_type"}
    symbols = {*vocabulary.INFIX, *vocabulary.PREFIX}
    shown = parts["operators"].replace("\\|", "|")
    assert all(f"`{symbol}`" in shown for symbol in symbols)


def test_the_words_of_explain_are_explained() -> None:
    rewrites = [
        value for name, value in vars(facts).items() if name.isupper() and isinstance(value, str)
    ]
    assert len(rewrites) == 6
    assert all(f"| `{name}` |" in document() for name in rewrites)
    explanation = " ".join(document().split())
    for words in in_words.STATES.values():
        assert f"*{words.partition('{')[0]}*" in explanation


def test_the_examples_run() -> None:
    q, k, v = (torch.randn(1, 2, n, 8) for n in (16, 16, 16))
    names: dict[str, Any] = {"flexfa4": flexfa4, "torch": torch, "q": q, "k": k, "v": v}
    names |= {"slope": torch.rand(2), "window": 4, "__name__": __name__}
    for block in blocks("python"):
        exec(compile(block, str(DOCUMENT), "exec"), names)
    assert names["out"].shape == q.shape
    assert repr(names["mask"]) == "Every(step=2) & Causal()"
    flexfa4.attention(q, k, v, score_mod=names["capped"], block_mask=names["mask"])
    flexfa4.attention(q, k, v, score_mod=names["biased"], block_mask=names["causal_window"])


def test_the_texts_are_read() -> None:
    (text,), (configuration,) = blocks("text"), blocks("yaml")
    assert flexfa4.parse(text, table=torch.zeros(9, 64), w=3).kind == "score"
    block = textwrap.dedent(configuration.partition("\n")[2])
    assert flexfa4.parse(block, w=3).kind == "mask"
