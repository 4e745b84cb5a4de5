"""Packed sequences on the Hopper kernel, in the emulator: tiles that hold the ends of sequences."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("cutlass")

import flexfa4
from flexfa4.testing import Inputs, Mods, agrees, dense_reference
from tests.emulated_executor import emulated_gpu
from tests.forward_trials import poisoned_memory

Q_LENGTHS, KV_LENGTHS = [5, 0, 70, 130, 1, 9], [7, 3, 70, 0, 200, 3]
SLOPES = torch.tensor([0.5, 0.25, 0.125, 0.0625])

# Mods as they are for one sequence, of which b is the number.
ROWS: dict[str, dict[str, Any]] = {
    "sequences alone": {},
    "biased by sequence, causal": {
        "score_mod": lambda s, b, h, q, kv: s + SLOPES[h] * (b + kv - q),
        "block_mask": lambda b, h, q, kv: q >= kv,
    },
}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
@pytest.mark.parametrize("kv_lengths", [Q_LENGTHS, KV_LENGTHS], ids=["one set of lengths", "two"])
def test_each_sequence_gets_what_it_gets_alone(row: dict[str, Any], kv_lengths: list[int]) -> None:
    g = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(sum(lengths), heads, 64, generator=g).bfloat16()
        for lengths, heads in ((Q_LENGTHS, 4), (kv_lengths, 2), (kv_lengths, 2))
    )
    ends = (torch.tensor([0, *n]).cumsum(0).int() for n in (Q_LENGTHS, kv_lengths))
    with emulated_gpu(), poisoned_memory():
        out, lse = flexfa4.attention_varlen(q, k, v, *ends, return_lse=True, backend="sm90", **row)
    assert out.is_contiguous() and not out.isnan().any()
    parts = zip(*(x.split(n) for x, n in ((q, Q_LENGTHS), (k, kv_lengths), (v, kv_lengths),
                                          (out, Q_LENGTHS), (lse, Q_LENGTHS))),
                strict=True)  # fmt: skip
    for number, (*tensors, found, found_lse) in enumerate(parts):
        mods = Mods(of(row.get("score_mod"), number), row.get("block_mask"))
        one = Inputs(*(x.transpose(0, 1)[None] for x in tensors))
        exact, rounded, single = (
            dense_reference(one, mods, dtype=t)
            for t in (torch.float64, torch.bfloat16, torch.float32)
        )
        if not tensors[1].shape[0]:
            assert not found.any() and bool((found_lse == -torch.inf).all())
            continue
        terms = max(64, tensors[1].shape[0])
        for one_found, at in ((found, 0), (found_lse, 1)):
            eager = (rounded, single)[at][at]
            assert agrees(one_found.transpose(0, 1)[None], exact[at], eager, terms=terms), number


def of(score_mod: Any, number: int) -> Any:
    """Return a score mod of a sequence alone."""
    if score_mod is None:
        return None
    return lambda s, b, h, q, kv: score_mod(s, b + number, h, q, kv)
