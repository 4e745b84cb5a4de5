"""Tilings and shared memory of the Hopper backward kernel."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from flexfa4.kernels.sm90.backward.storage import Storage, Tiling, plan_storage
from flexfa4.kernels.sm90.backward.tilings import BACKWARD
from flexfa4.kernels.sm90.forward.storage import SHARED_MEMORY

ALL = [pytest.param(dims, tiling, id=str(dims)) for dims, tiling in BACKWARD.items()]


def places(storage: Storage) -> list[int]:
    """Return all offsets, in order."""
    return [getattr(storage, f.name) for f in fields(storage) if f.type == "int"]


@pytest.mark.parametrize(("head_dims", "tiling"), ALL)
def test_everything_lies_one_behind_the_other_and_fits(
    head_dims: tuple[int, int], tiling: Tiling
) -> None:
    storage = plan_storage(tiling, head_dims)
    found = places(storage)
    assert found == sorted(found) and found[-1] == storage.bytes <= SHARED_MEMORY
    sizes = dict(zip(("q", "do", "k", "v"), found[1:5], strict=True))
    for name, behind in sizes.items():
        tile = getattr(storage, name)
        assert behind - getattr(storage, f"{name}_at") >= tile.bytes * tile.stages


@pytest.mark.parametrize(("head_dims", "tiling"), ALL)
def test_tiles_start_where_swizzles_repeat(head_dims: tuple[int, int], tiling: Tiling) -> None:
    storage = plan_storage(replace(tiling, staged=True), head_dims)
    at = (storage.q_at, storage.do_at, storage.k_at, storage.v_at, storage.p_at, storage.ds_at)
    assert not any(offset % 1024 for offset in at)
    assert storage.dq_at % 16 == storage.statistics_at % 16 == 0
    barriers = (storage.q_barriers, storage.outboxes_at, storage.ds_written_at, storage.numbers_at)
    assert not any(offset % 8 for offset in barriers)


@pytest.mark.parametrize(("head_dims", "tiling"), ALL)
def test_slabs_divide_what_a_warpgroup_takes_of_a_tile(
    head_dims: tuple[int, int], tiling: Tiling
) -> None:
    storage, (dim, value_dim) = plan_storage(tiling, head_dims), head_dims
    for tile in (storage.q, storage.k):
        assert tiling.gradient_columns(dim) % tile.slab == 0
    for tile in (storage.do, storage.v):
        assert tiling.gradient_columns(value_dim) % tile.slab == 0
    assert tiling.dq_columns(dim) % storage.k.slab == 0


CHANGES: dict[str, tuple[dict[str, Any], int]] = {
    "a stage of Q less": ({"q_stages": 1}, -64 * 128 * 2 - 64 * 8 - 16),
    "a stage of dO less": ({"do_stages": 1}, -64 * 128 * 2 - 16),
    "a stage of K and V less": ({"kv_stages": 1}, -2 * 128 * 128 * 2 - 2 * 16 - 8),
    "P in shared memory": ({"in_registers": False}, 2 * 64 * 128 * 2),
    "dQ staged": ({"staged": True}, 64 * 128 * 4 + 2 * (24 + 8)),
    "dQ a tile later": ({"staged": True, "lagged": True}, 64 * 128 * 4 + 2 * (24 + 8) + 2 * 8),
    "dQ finished": (
        {"staged": True, "lagged": True, "finishes": True},
        2 * 64 * 128 * 4 + 2 * (24 + 8) + 2 * 8,
    ),
}


LAGGED_LACKS: list[dict[str, Any]] = [
    {"in_registers": False},
    {"early": False},
    {"dp_parts": 2},
    {"ds_stages": 1},
]


@pytest.mark.parametrize("name", CHANGES)
def test_what_a_tiling_asks_for_takes_its_bytes(name: str) -> None:
    changed, more = CHANGES[name]
    tiling = Tiling(64, 128)
    before, after = (plan_storage(t, (128, 128)) for t in (tiling, replace(tiling, **changed)))
    assert after.bytes - before.bytes == more


@pytest.mark.parametrize(
    "changed",
    [
        {"staged": True, "warpgroups": 3},
        {"lagged": True},
        *({"staged": True, "lagged": True, **lacks} for lacks in LAGGED_LACKS),
    ],
    ids=str,
)
def test_a_tiling_has_what_it_takes(changed: dict[str, Any]) -> None:
    with pytest.raises(AssertionError):
        Tiling(64, 128, **changed)


def test_warpgroups_share_the_work_by_keys_or_by_columns() -> None:
    by_keys = Tiling(64, 128)
    assert by_keys.score_columns == 64 and by_keys.gradient_columns(128) == 128
    assert not by_keys.dq_by_rows and by_keys.dq_columns(128) == 64
    by_rows = Tiling(128, 128)
    assert by_rows.dq_by_rows and by_rows.dq_columns(64) == 64
    by_columns = Tiling(64, 64, by_keys=False, in_registers=False)
    assert by_columns.score_columns == 32 and by_columns.gradient_columns(256) == 128
