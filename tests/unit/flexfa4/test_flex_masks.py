"""`and_masks`, `or_masks` and `noop_mask`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.attention import flex_attention as torch_flex

from flexfa4 import variants
from flexfa4.errors import ArgumentError
from flexfa4.flex import and_masks, create_mask, noop_mask, or_masks


def causal(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return q_idx >= kv_idx


def near(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return (q_idx - kv_idx).abs() < 3


def tokens(mask_mod: Any) -> torch.Tensor:
    return create_mask(mask_mod, 1, 1, 8, 8, "cpu")


@pytest.mark.parametrize("names", [(), ("causal",), ("causal", "near"), ("near", "noop", "causal")])
@pytest.mark.parametrize("combine", ["and_masks", "or_masks"])
def test_combinations_are_torchs(combine: str, names: tuple[str, ...]) -> None:
    known = {"causal": causal, "near": near}
    ours = {"and_masks": and_masks, "or_masks": or_masks}[combine](
        *(known.get(name, noop_mask) for name in names)
    )
    theirs = getattr(torch_flex, combine)(
        *(known.get(name, torch_flex.noop_mask) for name in names)
    )
    right = torch_flex.create_mask(theirs, 1, 1, 8, 8, "cpu").expand(1, 1, 8, 8)
    assert torch.equal(tokens(ours).expand(1, 1, 8, 8), right)
    assert torch.equal(tokens(theirs).expand(1, 1, 8, 8), right)  # torch's are taken, too
    called = torch_flex.create_mask(ours, 1, 1, 8, 8, "cpu").expand(1, 1, 8, 8)
    assert torch.equal(called, right)  # and torch takes ours


def test_texts_and_variants_combine_too() -> None:
    both = and_masks("q >= kv", variants.SlidingWindow(3), near)
    assert torch.equal(tokens(both), tokens(causal) & tokens(near))


def test_what_is_no_mask_is_not_combined() -> None:
    with pytest.raises(ArgumentError, match="an operand"):
        or_masks(causal, 3)  # type: ignore[arg-type]
