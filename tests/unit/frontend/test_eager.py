"""Mods called on tensors: every case of the table as text against its function, vmap, messages."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import flexfa4
from flexfa4.errors import ArityError, OutsideModError
from flexfa4.frontend import ir
from flexfa4.frontend.eager import result_on
from flexfa4.frontend.tracing.contract import Kind
from flexfa4.testing import CASES, Case, Inputs, Mods, Sizes, Trial, dense_reference, excess

SIZES = Sizes(batch=2, heads=2, kv_heads=1, q_len=9, kv_len=11, dim=4, value_dim=4)
ROWS, COLUMNS = torch.arange(9)[:, None], torch.arange(11)


def called(mod: Any, kind: Kind) -> Any:
    """Return a function that calls a mod's graph; None if there is none, or it reads a size."""
    if mod is None:
        return None
    bound = flexfa4.trace(mod, kind).bind()
    if any(node.op == "symbol" for node in ir.topological(bound.graph.root)):
        return None
    names = [name for name in ir.INPUTS if name != "score" or kind == "score"]
    return lambda *args: result_on(bound, dict(zip(names, args, strict=True)), lambda: None)


def dense_on_graphs(inputs: Inputs, mods: Mods) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute attention densely with the graphs of the mods in place of their functions."""
    graphs = replace(
        mods,
        eager_score_mod=called(mods.score_mod, "score") or mods.eager_score_mod,
        eager_mask=called(mods.mask, "mask") or mods.eager_mask,
    )
    return dense_reference(inputs, graphs, dtype=inputs.q.dtype)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_graph_called_on_tensors_gives_what_the_function_gives(case: Case) -> None:
    assert not excess(Trial(case, SIZES), dense_on_graphs)


def test_a_text_mask_is_called_like_the_function_it_stands_for() -> None:
    mask = flexfa4.parse("q >= kv and q - kv < window", window=3)
    expected = (ROWS >= COLUMNS) & (ROWS - COLUMNS < 3)
    assert torch.equal(mask(0, 0, ROWS, COLUMNS), expected)
    combined = flexfa4.mask(lambda b, h, q_idx, kv_idx: kv_idx != 4) & "q >= kv and q - kv < 3"
    assert torch.equal(combined(0, 0, ROWS, COLUMNS), expected & (COLUMNS != 4))


def test_a_text_score_mod_passes_gradients_on() -> None:
    table = torch.randn(4, dtype=torch.float64, requires_grad=True)
    score = torch.randn(9, 11, dtype=torch.float64, requires_grad=True)
    mod = flexfa4.parse("score * 2 + table[h] * (q - kv)", table=table)
    found = mod(score, 0, torch.tensor(3), ROWS, COLUMNS)
    assert torch.equal(found, score * 2 + table[3] * (ROWS - COLUMNS))
    grads = torch.autograd.grad(found.sum(), (score, table))
    assert torch.equal(grads[0], torch.full_like(score, 2.0))
    assert grads[1].tolist() == [0.0, 0.0, 0.0, float((ROWS - COLUMNS).sum())]


def test_vectors_are_reduced_at_each_score() -> None:
    a, c = torch.arange(12.0).view(4, 3), torch.arange(15.0).view(5, 3)
    mod = flexfa4.parse("score + sum(a[q % 4, :] * c[kv % 5, :])", a=a, c=c)
    found = mod(torch.zeros(9, 11), 0, 0, ROWS, COLUMNS)
    assert torch.equal(found, a[torch.arange(9) % 4] @ c[torch.arange(11) % 5].T)


def test_vmap_maps_a_text_mask_as_flexattention_does() -> None:
    mask = flexfa4.parse("ids[q] == ids[kv]", ids=torch.arange(11) // 4)
    rows = torch.func.vmap(mask, in_dims=(None, None, None, 0))
    whole = torch.func.vmap(rows, in_dims=(None, None, 0, None))
    zero = torch.tensor(0)
    expected = torch.arange(9)[:, None] // 4 == torch.arange(11) // 4
    assert torch.equal(whole(zero, zero, torch.arange(9), torch.arange(11)), expected)


@pytest.mark.parametrize(
    ("dtype", "result"),
    [
        (torch.float16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
)
def test_scores_are_at_least_single_precision(dtype: torch.dtype, result: torch.dtype) -> None:
    found = flexfa4.parse("score + q / 3")(torch.ones((), dtype=dtype), 0, 0, torch.tensor(1), 0)
    assert found.dtype is result
    assert found == torch.ones((), dtype=result) + torch.ones((), dtype=result) / 3


def test_sizes_of_a_call_have_no_value_outside_of_one() -> None:
    with pytest.raises(OutsideModError, match="`kv_len` has a value in a call of attention only"):
        flexfa4.parse("q + kv_len > kv")(0, 0, ROWS, COLUMNS)
    with pytest.raises(OutsideModError, match=r"flexfa4\.q_len"):
        ROWS + flexfa4.q_len


def test_the_number_of_arguments_is_that_of_a_mod() -> None:
    with pytest.raises(ArityError, match="takes 4 parameters"):
        flexfa4.parse("q >= kv")(ROWS, COLUMNS)
