"""Each variant against its formula, written here on whole matrices of positions."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

import flexfa4
from flexfa4 import variants
from flexfa4.errors import ArgumentError
from flexfa4.variants import (
    Alibi,
    Causal,
    Document,
    PrefixLM,
    SlidingWindow,
    Softcap,
    causal,
    document,
)

Q_LEN, KV_LEN = 40, 56
Q = torch.arange(Q_LEN)[:, None]
KV = torch.arange(KV_LEN)
IDS = torch.tensor([0] * 10 + [3] * 1 + [1] * 25 + [0] * 20)

MASKS = {
    "causal": (Causal(), Q >= KV),
    "window of 1": (SlidingWindow(1), Q == KV),
    "window of 5": (SlidingWindow(5), (Q - KV >= 0) & (Q - KV <= 4)),
    "prefix of 0": (PrefixLM(0), Q >= KV),
    "prefix of 7": (PrefixLM(7), (KV <= 6) | (Q >= KV)),
    "documents": (Document(IDS), IDS[:Q_LEN, None] == IDS),
    "document lengths": (
        Document.from_lengths([10, 0, 30, 16]),
        torch.block_diag(torch.ones(10, 10), torch.ones(30, 30), torch.ones(16, 16))[:Q_LEN] > 0,
    ),
    "combined": (
        Document(IDS) & causal & ~SlidingWindow(2),
        (IDS[:Q_LEN, None] == IDS) & (Q - KV >= 2),
    ),
}


def dense(mask: Any, batch: int | None = None) -> torch.Tensor:
    made = flexfa4.create_block_mask(mask, batch=batch, q_len=Q_LEN, kv_len=KV_LEN)
    seen: torch.Tensor = made.to_dense()[:, 0]
    return seen


@pytest.mark.parametrize("name", MASKS)
def test_a_mask_sees_what_its_formula_says(name: str) -> None:
    mask, expected = MASKS[name]
    assert torch.equal(dense(mask)[0], expected)


@pytest.mark.parametrize("window", [1, 2, 9])
def test_a_window_is_the_number_of_keys_that_a_query_sees(window: int) -> None:
    seen = dense(SlidingWindow(window))[0].sum(-1)
    assert seen.tolist() == [min(q + 1, window) for q in range(Q_LEN)]


def test_document_ids_may_differ_by_batch() -> None:
    ids = torch.stack((IDS, IDS.flip(0)))
    expected = ids[:, :Q_LEN, None] == ids[:, None, :]
    assert torch.equal(dense(Document(ids), batch=2), expected)


def test_prefixes_may_differ_by_batch() -> None:
    prefixes = torch.tensor([0, 5, 30])
    expected = (prefixes[:, None, None] > KV) | (Q >= KV)
    assert torch.equal(dense(PrefixLM(prefixes), batch=3), expected)


@pytest.mark.parametrize(
    ("mod", "text", "bindings"),
    [
        (Alibi(8), "score + exp2(-8.0 * (h + 1) / n) * (kv - q)", {"n": 8}),
        (Alibi(), "score + exp2(-8.0 * (h + 1) / num_heads) * (kv - q)", {}),
        (Softcap(30.0), "cap * tanh(score / cap)", {"cap": 30.0}),
    ],
    ids=repr,
)
def test_a_score_mod_modifies_as_its_formula_says(
    mod: Any, text: str, bindings: dict[str, Any]
) -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 8, n, 16, dtype=torch.float64) for n in (Q_LEN, KV_LEN, KV_LEN))
    ours = flexfa4.attention(q, k, v, score_mod=mod)
    assert torch.equal(ours, flexfa4.attention(q, k, v, score_mod=flexfa4.parse(text, **bindings)))


def test_alibi_equals_a_dense_softmax_with_the_papers_slopes() -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 8, n, 16, dtype=torch.float64) for n in (Q_LEN, KV_LEN, KV_LEN))
    slopes = torch.tensor([1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256])
    scores = q @ k.mT / 4 + slopes[:, None, None].double() * (KV - Q)
    expected = scores.softmax(-1) @ v
    torch.testing.assert_close(flexfa4.attention(q, k, v, score_mod=Alibi()), expected)


def test_every_class_has_a_lowercase_default_instance_of_its_own() -> None:
    classes = {n for n in variants.__all__ if isinstance(getattr(variants, n), type)}
    instances = set(variants.__all__) - classes
    assert {type(getattr(variants, n)).__name__ for n in instances} == classes
    for name in instances:
        kind = type(getattr(variants, name))
        assert name.islower() and name.replace("_", "") == kind.__name__.lower()
        assert dataclasses.is_dataclass(kind)
        with pytest.raises(dataclasses.FrozenInstanceError):
            getattr(variants, name).anything = 1


def test_no_submodule_takes_the_name_of_an_instance() -> None:
    import pkgutil

    submodules = {m.name for m in pkgutil.iter_modules(variants.__path__)}
    assert submodules and not submodules & set(variants.__all__)


WRONG = {
    "a window of nothing": (lambda: SlidingWindow(0), "SlidingWindow.window is 0"),
    "a fractional window": (lambda: SlidingWindow(2.5), "SlidingWindow.window is 2.5"),  # type: ignore[arg-type]
    "a bool as window": (lambda: SlidingWindow(True), "SlidingWindow.window is True"),
    "no heads": (lambda: Alibi(0), "Alibi.num_heads is 0"),
    "a cap of zero": (lambda: Softcap(0.0), "Softcap.cap is 0.0"),
    "a cap of NaN": (lambda: Softcap(float("nan")), "Softcap.cap is nan"),
    "an endless cap": (lambda: Softcap(float("inf")), "Softcap.cap is inf"),
    "a negative prefix": (lambda: PrefixLM(-1), "PrefixLM.prefix is -1"),
    "a prefix for each row": (
        lambda: PrefixLM(torch.zeros(2, 2, dtype=torch.long)),
        r"PrefixLM.prefix is a tensor of shape \(2, 2\)",
    ),
    "ids in a list": (lambda: Document([0, 0, 1]), r"Document.ids is \[0, 0, 1\]"),  # type: ignore[arg-type]
    "ids in floats": (
        lambda: Document(torch.zeros(4)),
        "Document.ids is a tensor of torch.float32",
    ),
    "lengths that are one number": (
        lambda: Document.from_lengths(5),  # type: ignore[arg-type]
        "lengths.* is 5",
    ),
    "a negative length": (lambda: Document.from_lengths([3, -1]), "lengths.* is -1"),
    "documents without ids": (lambda: dense(document), "Document.ids is None"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_parameter_is_refused_by_name(name: str) -> None:
    make, message = WRONG[name]
    with pytest.raises(ArgumentError, match=message):
        make()


def test_a_misspelt_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(AttributeError, match="'SlidngWindow'; SlidingWindow, if that"):
        variants.SlidngWindow  # noqa: B018
    with pytest.raises(AttributeError, match="`flexfa4 variants` lists them"):
        variants.nothing_of_the_kind  # noqa: B018
    assert not hasattr(variants, "__wrapped__")


@pytest.mark.parametrize(
    ("value", "near"), [(-3, 3), (0, 1), (2.5, 2), ("4", 4), (float("nan"), 1), (None, 1)]
)
def test_a_wrong_whole_number_is_answered_with_the_one_that_was_meant(
    value: Any, near: int
) -> None:
    with pytest.raises(ArgumentError, match=rf"such as {near}$"):
        variants.SlidingWindow(value)
