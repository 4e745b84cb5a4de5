"""The split of a score mod around the product holds as algebra and finds the cheapest form."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import flexfa4
from flexfa4.frontend.evaluate import Program, Values
from flexfa4.frontend.ir import Node
from flexfa4.frontend.lanes import Lanes
from flexfa4.frontend.tracing.trace import resolve
from flexfa4.kernels.cpu.score_form import ScoreForm, score_form

LANES = Lanes((0, 1), (0, 2), (0, 5), (0, 7))
TABLE = torch.linspace(-1.0, 1.0, 20)
SLOPE = 0.3

MODS: dict[str, Any] = {
    "identity": lambda s, b, h, q, kv: s,
    "affine": lambda s, b, h, q, kv: 2.0 * (s - 3.0) / 5.0 + 1.0,
    "negated": lambda s, b, h, q, kv: 1.0 - s,
    "row factor": lambda s, b, h, q, kv: s * TABLE[q] + TABLE[kv],
    "key factor": lambda s, b, h, q, kv: s * TABLE[kv],
    "slope": lambda s, b, h, q, kv: s + TABLE[h] * (kv - q),
    "softcap": lambda s, b, h, q, kv: 5.0 * torch.tanh(s / 5.0) + q,
    "row in core": lambda s, b, h, q, kv: torch.tanh(s * TABLE[q]) * TABLE[h] - kv,
    "two uses": lambda s, b, h, q, kv: s * s + s,
    "choice": lambda s, b, h, q, kv: torch.where(q > kv, s * SLOPE, -s * SLOPE),
    "ignores": lambda s, b, h, q, kv: TABLE[kv] * q,
    "scaled ignored": lambda s, b, h, q, kv: 3.0 * (TABLE[kv] + 0.0 * q) - 1.0,
    "row term": lambda s, b, h, q, kv: s + torch.sin(q * 1.0),
    "divided by row": lambda s, b, h, q, kv: (s + kv) / (q + 1.0),
}


def form_of(mod: Any, *, fold: bool = True) -> ScoreForm:
    return score_form(resolve(mod, "score").graph.root, fold=fold)


def evaluate(mod: Any, form: ScoreForm, score: torch.Tensor) -> torch.Tensor:
    """Return outer * core(inner * score) + bias."""
    bound = resolve(mod, "score")
    values = Values(
        dict(zip(bound.graph.buffers, bound.tensors, strict=True)),
        dict(zip(bound.graph.scalars, bound.scalars, strict=True)),
        dtype=torch.float64,
    )

    def run(node: Node | None, default: float, given: torch.Tensor | None = None) -> Any:
        return default if node is None else Program((node,)).run(values, LANES, given)[0]

    x = score * run(form.inner, 1.0)
    core = x if form.core is None else run(form.core, 0.0, x)
    return torch.as_tensor(core * run(form.outer, 1.0) + run(form.bias, 0.0)).expand(LANES.shape)


@pytest.mark.parametrize("fold", [True, False])
@pytest.mark.parametrize("name", MODS)
def test_the_parts_of_a_form_give_the_mod_again(name: str, fold: bool) -> None:
    mod = MODS[name]
    score = torch.randn(LANES.shape, dtype=torch.float64)
    index = [
        torch.arange(n).view(-1, *[1] * i) for i, n in zip((3, 2, 1, 0), LANES.shape, strict=True)
    ]
    right = mod(score, *index).double().expand(LANES.shape)
    form = form_of(mod, fold=fold)
    torch.testing.assert_close(evaluate(mod, form, score), right, rtol=1e-6, atol=1e-6)
    rows = [n for n in (form.inner, form.outer) if n is not None]
    assert all(not n.depends & {"score", "kv"} for n in rows)
    assert "score" not in form.bias_depends


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("identity", ""),
        ("affine", "outer bias"),
        ("row factor", "outer bias"),
        ("slope", "bias factors"),
        ("key factor", "core"),
        ("row term", "bias"),
        ("softcap", "inner core outer bias"),
        ("row in core", "inner core outer bias"),
        ("two uses", "core"),
        ("ignores", "outer bias factors"),
    ],
)
def test_a_form_has_no_part_that_the_mod_does_not_need(name: str, parts: str) -> None:
    form = form_of(MODS[name])
    present = [n for n in ("inner", "core", "outer", "bias", "factors") if getattr(form, n)]
    assert present == parts.split()


def test_only_a_mod_without_score_ignores_it() -> None:
    assert [n for n in MODS if form_of(MODS[n]).ignores_score] == ["ignores", "scaled ignored"]


def test_an_unfolded_form_moves_nothing() -> None:
    form = form_of(MODS["row factor"], fold=False)
    assert form == ScoreForm(core=resolve(MODS["row factor"], "score").graph.root)


def test_factors_that_may_be_infinite_are_named() -> None:
    assert form_of(MODS["affine"]).factors_to_check() == ()
    assert len(form_of(MODS["row factor"]).factors_to_check()) == 1
    assert len(form_of(MODS["row in core"]).factors_to_check()) == 2
    assert form_of(MODS["ignores"]).factors_to_check() == ()


@pytest.mark.parametrize("value", [float("inf"), float("-inf")])
def test_an_infinite_row_factor_means_what_it_does_eagerly(value: float) -> None:
    q = torch.zeros(1, 1, 3, 2)
    k = torch.ones(1, 1, 4, 2)
    q[0, 0, 1] = torch.tensor([1.0, 0.0])
    factor = torch.tensor([1.0, value, 1.0])
    out, lse = flexfa4.attention(
        q, k, k, score_mod=lambda s, b, h, q, kv: torch.tanh(s * factor[q]), return_lse=True
    )
    right = torch.tensor([0.0, 1.0 if value > 0 else -1.0, 0.0]) + torch.tensor(4.0).log()
    torch.testing.assert_close(lse[0, 0], right)
    torch.testing.assert_close(out, torch.ones(1, 1, 3, 2))
