"""How items reach blocks: a counter, and by the model nothing that would be clearly faster."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flexfa4.ahead_of_time import Call, plan_of
from flexfa4.api import Options
from flexfa4.kernels.architectures import named
from flexfa4.kernels.sm100.dispatch import (
    exposed_fetch,
    prefers_launch_control,
    share_of_launch_control,
)
from flexfa4.kernels.sm100.model import FITTED, GPUS, Tile
from flexfa4.kernels.sm100.search import CLASSES, VariantClass, feasible
from flexfa4.kernels.sm100.tilings import TABLE


def tiles(known: VariantClass, name: str, head_dims: tuple[int, int]) -> list[Tile]:
    """Return the tiles of every tiling that fits."""
    found = feasible(head_dims, known.mod)
    return [Tile(name, tiling, head_dims, known.mod) for tiling in found]


@pytest.mark.parametrize("known", CLASSES, ids=lambda known: known.name)
def test_no_tiling_of_the_table_or_of_fewer_keys_would_gain_by_launch_control(
    known: VariantClass,
) -> None:
    for name, head_dims in {(row.name, row.head_dims) for row in TABLE}:
        found = tiles(known, name, head_dims)
        assert len(found) > 1
        assert not any(map(prefers_launch_control, found))
        assert exposed_fetch(found[0]) == 0 and share_of_launch_control(found[0]) == 1


def test_the_model_prefers_launch_control_where_a_fetch_takes_much_longer_than_a_tile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tile, *_), name = tiles(CLASSES[0], "sm_100a", (128, 128)), "sm_100a"
    waits = tile.time().total + 1000.0
    slow = replace(GPUS[name], fitted=replace(FITTED, load=waits))
    monkeypatch.setitem(GPUS, name, slow)
    assert exposed_fetch(tile) == 1000.0
    assert prefers_launch_control(tile)
    least = FITTED.item + tile.time().total
    assert share_of_launch_control(tile) == least / (least + 1000.0)


def test_it_is_told_how_items_reach_blocks_and_what_launch_control_would_take() -> None:
    def about(options: Options | None = None) -> str:
        plan = plan_of(None, None, Call(options=options), "sm_100a")
        return dict(named("sm_100a").describe(plan, "sm_100a"))["items"]

    assert about().startswith("fetched from a counter, 490 cycles of which 0 are not behind a tile")
    assert "launch control would take 1.00 of the time by the model" in about()
    assert about(Options(tile=(512, 128))).startswith("every n-th of n pairs of blocks")
