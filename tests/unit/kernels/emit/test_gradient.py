"""Score mods as backward kernels compute them: what is computed where, and what is summed up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest
import torch

from flexfa4.frontend.ir import F32, const
from flexfa4.frontend.tracing.trace import resolve
from flexfa4.kernels.emit.captures import loads_of
from flexfa4.kernels.emit.errors import KernelLimitError
from flexfa4.kernels.emit.gradient import GradientProgram, over, prepare_gradient

SLOPE, GATE, BY_KEY = torch.rand(4), torch.rand(4, 9), torch.rand(4, 9)
PARTS: dict[str, tuple[Callable[..., Any], str]] = {
    "nothing": (lambda s, b, h, q, kv: s, ""),
    "alibi": (lambda s, b, h, q, kv: s + SLOPE[h] * (kv - q), "linear"),
    "bias by key": (lambda s, b, h, q, kv: s + BY_KEY[h, kv], "of_rows"),
    "bias by query": (lambda s, b, h, q, kv: s + GATE[h, q], "of_columns"),
    "gate by query": (lambda s, b, h, q, kv: s * GATE[h, q], "outer factor"),
    "gate by key": (lambda s, b, h, q, kv: s * BY_KEY[h, kv], "core derivative"),
    "two sides": (lambda s, b, h, q, kv: s - SLOPE[h] * (q - kv).abs(), "terms"),
    "softcap": (lambda s, b, h, q, kv: 30 * torch.tanh(s / 30), "inner core outer derivative"),
    "no score": (lambda s, b, h, q, kv: BY_KEY[h, kv] * 1.0, "of_rows ignores_score"),
}


def program(mod: Callable[..., Any], learned: bool = False) -> GradientProgram:
    graph = resolve(mod, "score").graph
    needs = frozenset(b for b in graph.buffers if b.dtype is F32) if learned else frozenset()
    return prepare_gradient(graph, needs)


@pytest.mark.parametrize("name", PARTS)
def test_a_mod_is_split_where_its_parts_vary_least(name: str) -> None:
    mod, parts = PARTS[name]
    made = program(mod)
    present = {f.name for f in fields(made) if getattr(made, f.name)} - {"graph"}
    assert present == set(parts.split())
    assert set(made.nodes()) >= {n for n in (made.core, made.outer, made.derivative) if n}


def test_no_mod_is_nothing_to_compute() -> None:
    assert prepare_gradient(None) == GradientProgram()
    assert GradientProgram().nodes() == () and GradientProgram().keeps_probabilities


def test_a_term_has_a_coefficient_of_a_row_or_a_column() -> None:
    (term,) = program(lambda s, b, h, q, kv: s - GATE[h, q] * (q - kv).abs()).terms
    assert term.coefficient is not None and term.part is not None
    assert "kv" not in term.coefficient.depends and {"q", "kv"} <= term.part.depends
    (linear,) = program(lambda s, b, h, q, kv: s + SLOPE[h] * (kv - q)).linear
    assert linear.coefficient.depends == {"h"}
    (term,) = program(lambda s, b, h, q, kv: s + BY_KEY[h, kv] * q).terms  # by q: not of a column
    assert term.part is not None


def test_shares_have_derivatives_by_what_is_read() -> None:
    made = program(lambda s, b, h, q, kv: s + SLOPE[h] * (kv - q) + BY_KEY[h, kv], True)
    by_name = {share.load.attr.name: share for share in made.shares}
    assert by_name["BY_KEY"].derivative is const(1.0) and by_name["BY_KEY"].over == "key"
    assert by_name["SLOPE"].derivative.depends == {"q", "kv"}
    assert by_name["SLOPE"].over == "pair"
    assert made.keeps_probabilities and not made.reads_score


def test_derivatives_that_read_the_score_read_it_unfolded() -> None:
    made = program(lambda s, b, h, q, kv: torch.tanh(s * SLOPE[h]) * 2, True)
    assert made.inner is None and made.reads_score and made.keeps_probabilities
    folded = program(lambda s, b, h, q, kv: torch.tanh(s * SLOPE[h]) * 2)
    assert folded.inner is not None and not folded.keeps_probabilities


@pytest.mark.parametrize(
    ("read", "kind"),
    [
        (lambda t, b, h, q, kv: t[h, 0], "pair"),
        (lambda t, b, h, q, kv: t[b, kv], "key"),
        (lambda t, b, h, q, kv: t[h, q // 3], "query"),
        (lambda t, b, h, q, kv: t[h, (q - kv).clamp(-4, 4) + 4], "distance"),
        (lambda t, b, h, q, kv: t[q % 4, kv], "element"),
        (lambda t, b, h, q, kv: t[h, q * 2 - kv], "element"),
        (lambda t, b, h, q, kv: (t[h] * 2).sum(), None),
    ],
)
def test_what_is_read_alone_is_summed_up_for_what_it_varies_with(read: Any, kind: Any) -> None:
    graph = resolve(lambda s, b, h, q, kv: s + read(BY_KEY, b, h, q, kv), "score").graph
    assert [over(load) for load in loads_of(graph)] == [kind]


def test_what_forward_kernels_have_no_code_for_is_refused() -> None:
    rows = torch.rand(9, 99)
    with pytest.raises(KernelLimitError):
        program(lambda s, b, h, q, kv: s + (rows[q] * rows[kv]).sum(-1))
