"""Lists of visits: every tile that is not empty once, from the last to the first of each kind."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flexfa4.errors import ArgumentError
from flexfa4.frontend.masks import limits
from flexfa4.frontend.masks.grid import FULL, PARTIAL
from flexfa4.frontend.masks.runs import BlockRuns
from flexfa4.kernels.blocks.lists import halves_of, listed, with_partial_end


@st.composite
def tables(draw: st.DrawFn) -> torch.Tensor:
    """Draw a table of kinds, int8 ``(classes, lines, width)``; neighbours tend to be alike."""
    shape = draw(st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(0, 9)))
    count = shape[0] * shape[1] * shape[2]
    kinds = draw(st.lists(st.sampled_from((0, 0, 1, 2, 2)), min_size=count, max_size=count))
    return torch.tensor(kinds, dtype=torch.int8).view(shape)


def expected(kinds: torch.Tensor) -> tuple[list[int], list[int]]:
    """Return `begins` and `tiles` by a loop over all tiles; behind the last one there is a 0."""
    begins, tiles = [0], []
    for line in kinds.flatten(0, 1).tolist():
        for kind in (PARTIAL, FULL):
            tiles += [tile for tile in reversed(range(len(line))) if line[tile] == kind]
            begins.append(len(tiles))
    return begins, [*tiles, 0]


@given(tables(), st.booleans())
def test_tiles_are_listed_in_the_order_of_visits(kinds: torch.Tensor, ragged: bool) -> None:
    length = kinds.shape[2] * 10 - (3 if ragged and kinds.shape[2] else 0)
    made = listed(BlockRuns.from_kinds(kinds), length, 10)
    if length % 10:
        kinds[..., -1].clamp_(max=PARTIAL)
    assert (made.begins.tolist(), made.tiles.tolist()) == expected(kinds)
    assert made.begins.dtype is made.tiles.dtype is torch.int32
    assert torch.equal(made.counts, (kinds != 0).sum(2))


@given(tables())
def test_of_each_visit_it_is_said_which_halves_take_part(kinds: torch.Tensor) -> None:
    classes, half_lines, width = kinds.shape
    padded = torch.nn.functional.pad(kinds, (0, 0, 0, half_lines % 2))
    pairs = padded.view(classes, -(-half_lines // 2), 2, width)
    first, second = pairs.unbind(2)
    both = torch.minimum(first, second)
    whole = torch.where(both == FULL, FULL, torch.maximum(first, second).clamp(max=PARTIAL))
    lists = listed(BlockRuns.from_kinds(whole.to(torch.int8)), width * 10, 10)
    flags = halves_of(lists, listed(BlockRuns.from_kinds(kinds), width * 10, 10))
    assert flags.dtype is torch.int32 and len(flags) == len(lists.tiles)
    visits = iter(zip(lists.tiles.tolist(), flags.tolist(), strict=True))
    for line, count in enumerate(lists.counts.flatten().tolist()):
        at = divmod(line, pairs.shape[1])
        for tile, seen in (next(visits) for _ in range(count)):
            assert seen == int(first[at][tile] > 0) + 2 * int(second[at][tile] > 0)


@given(tables())
def test_only_full_last_tiles_become_partial(kinds: torch.Tensor) -> None:
    cut = with_partial_end(BlockRuns.from_kinds(kinds)).to_kinds()
    if kinds.shape[2]:
        kinds[..., -1].clamp_(max=PARTIAL)
    assert torch.equal(cut, kinds)


def test_more_tiles_than_can_be_listed_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = torch.full((1, 2, 3), FULL, dtype=torch.int8)
    monkeypatch.setattr(limits, "MOST_LISTED", 6)
    assert listed(BlockRuns.from_kinds(kinds), 30, 10).tiles.tolist() == [2, 1, 0, 2, 1, 0, 0]
    monkeypatch.setattr(limits, "MOST_LISTED", 5)
    with pytest.raises(ArgumentError):
        listed(BlockRuns.from_kinds(kinds), 30, 10)
