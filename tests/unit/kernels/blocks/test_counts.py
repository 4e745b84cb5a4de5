"""Whether ends are monotone, how many tiles are visited, and the order that follows."""

from __future__ import annotations

import pytest
import torch

from flexfa4.frontend.masks.solving.solved import Solved
from flexfa4.kernels.blocks import counts
from flexfa4.kernels.blocks.counts import (
    monotone_in_tiles,
    visited_tiles,
    visitors_of,
    visits_of,
)
from tests.tile_walks import CASES


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("causal", True),
        ("window by head", True),
        ("documents", True),
        ("reversed documents", True),
        ("crossed documents", False),
        ("levels", False),
        ("empty rows", False),
    ],
)
@pytest.mark.parametrize("at_once", [1, 700, 1 << 20])
def test_ends_are_looked_at_for_all_classes(
    name: str, expected: bool, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counts, "_ROWS_AT_ONCE", at_once)
    blocks = CASES[name].blocks
    assert blocks is not None and isinstance(blocks.by_rows, Solved)
    assert monotone_in_tiles(blocks.by_rows, blocks.classes, 128) is expected


def test_steps_from_tile_to_tile_do_not_count() -> None:
    blocks = CASES["empty rows"].blocks  # a row in 32 begins to see, or sees no more
    assert blocks is not None and isinstance(blocks.by_rows, Solved)
    assert monotone_in_tiles(blocks.by_rows, blocks.classes, 32)


@pytest.mark.parametrize("sampling", ["edges", "all"])
def test_visits_are_those_of_the_tiles_that_are_not_empty(sampling: str) -> None:
    case = CASES["window by head"]
    blocks = case.blocks
    assert blocks is not None and isinstance(blocks.by_rows, Solved)
    visited = visited_tiles(blocks.by_rows, blocks.classes, case.shape, sampling)  # type: ignore[arg-type]
    kinds = case.kinds()[0] != 0
    assert torch.equal(visits_of(visited), kinds.sum(2))
    found = visitors_of(visited, kinds.shape[2])
    assert found.dtype is torch.int32 and torch.equal(found.long(), kinds.sum(1))
