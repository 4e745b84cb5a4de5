"""Masks that serve whatever the lengths are, and those that do not."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flexfa4.frontend.analysis.bounds import premises
from flexfa4.frontend.sizes import Sizes
from flexfa4.frontend.tracing.trace import resolve
from flexfa4.kernels.blocks.walk import Walk
from flexfa4.kernels.varlen import walk
from flexfa4.kernels.varlen.walk import walk_of
from flexfa4.primitives.tile_walk import TileShape

SHAPE = TileShape(128, 128)
SIZES = Sizes(4, 8, 8, 1000, 2000)  # four sequences, and tokens in all
PER_SEQUENCE = torch.tensor([3, 5, 2, 9])
PER_HEAD = torch.arange(8)
PER_KEY = torch.arange(2000)


def walked(mask: Any, sizes: Sizes = SIZES) -> Walk | None:
    return walk_of(None if mask is None else resolve(mask, "mask"), SHAPE, sizes)


SERVED: dict[str, tuple[Any, str]] = {
    "none": (None, "dense"),
    "causal": ("q >= kv", "edges"),
    "at the end": ("q + kv_len - q_len >= kv", "edges"),
    "window": ("(q >= kv) & (q - kv < 100)", "edges"),
    "prefix of each sequence": (
        lambda b, h, q, kv: (kv <= q) | (kv < PER_SEQUENCE[b]),
        "edges",
    ),
    "window by head": (lambda b, h, q, kv: (q >= kv) & (q - kv < PER_HEAD[h]), "edges"),
    "rises and falls": ("kv < min(q, q_len - q)", "all"),
}


@pytest.mark.parametrize(("mask", "how"), SERVED.values(), ids=SERVED)
def test_one_interval_of_keys_serves(mask: Any, how: str) -> None:
    found = walked(mask)
    assert found is not None and how in (found.plan.source, found.plan.sampling)
    assert found.plan.parameters == () and found.plan.has_limits


NOT_SERVED: dict[str, Any] = {
    "two intervals": "(q >= kv) & ((q - kv < 20) | (kv < 4))",
    "a search": lambda b, h, q, kv: PER_KEY[q] == PER_KEY[kv],
    "a float": lambda b, h, q, kv: kv < 0.5 * q,
    "reads beyond what is proved": lambda b, h, q, kv: kv < PER_SEQUENCE[q],
    "no closed form": lambda b, h, q, kv: (q * kv) % 7 != 3,
}


@pytest.mark.parametrize("mask", NOT_SERVED.values(), ids=NOT_SERVED)
def test_what_needs_more_than_an_interval_does_not(mask: Any) -> None:
    assert walked(mask) is None


def test_what_holds_for_the_totals_has_to_hold_for_every_length() -> None:
    """The divisor is positive only where a sequence has more than 900 queries."""
    mask = resolve("kv // (q_len - 900) < 5", "mask")
    assert walk._interval(premises(mask, SIZES), ()) is not None
    assert walk_of(mask, SHAPE, SIZES) is None


def test_the_interval_has_what_the_mask_captures() -> None:
    found = walked(lambda b, h, q, kv: kv < PER_SEQUENCE[b])
    assert found is not None and found.interval is not None
    assert [t is PER_SEQUENCE for t in found.interval.tensors] == [True]
