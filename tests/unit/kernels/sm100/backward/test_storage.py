"""The shared memory of the Blackwell backward kernel."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import pytest

from flexfa4.kernels.emit.gradient import GradientProgram
from flexfa4.kernels.sm100.backward.storage import BARRIERS, Storage, Tiling, plan_storage
from flexfa4.kernels.sm100.backward.tuning import tiling_for
from flexfa4.kernels.sm100.forward.storage import SHARED_MEMORY

DIMS = [(dim, dim_v) for dim in (16, 64, 80, 96, 128) for dim_v in (16, 48, 64, 112, 128)]
WIDE = [(192, 128), (160, 160)]
TOGETHER = Tiling(blocks=2, q_stages=1)
TILES = ("q", "do", "k", "v", "q_of_dk", "do_of_dv", "k_of_dq", "ds")


def storages() -> Iterator[Any]:
    for head_dims in (*DIMS, *WIDE):
        found = tiling_for(head_dims, GradientProgram())
        assert found is not None
        yield pytest.param(plan_storage(found, head_dims), id=f"{head_dims} {found.blocks}")
    for head_dims in ((64, 64), (128, 128), (96, 32)):
        yield pytest.param(plan_storage(TOGETHER, head_dims), id=f"{head_dims} together")


@pytest.mark.parametrize("storage", [*storages()])
def test_tiles_fit_one_behind_the_other_where_swizzles_repeat(storage: Storage) -> None:
    tiles = [(getattr(storage, f"{name}_at"), getattr(storage, name)) for name in TILES]
    places = {(at, tile.bytes * tile.stages) for at, tile in tiles}
    ends = 0
    for at, nbytes in sorted(places):
        assert at >= ends and at % 1024 == 0
        ends = at + nbytes
    assert ends <= storage.dq_at < storage.statistics_at < storage.bytes <= SHARED_MEMORY
    assert storage.dq_at % 16 == storage.statistics_at % 16 == storage.q_barriers % 8 == 0


@pytest.mark.parametrize("storage", [*storages()])
def test_barriers_have_places_of_their_own(storage: Storage) -> None:
    places = [storage.barrier(name) for name in BARRIERS]
    assert places == [storage.barriers_at + 8 * i for i in range(len(BARRIERS))]
    rings = {f.name: getattr(storage, f.name) for f in fields(storage) if "_barriers" in f.name}
    shared = {"q_of_dk_barriers": "q_barriers", "do_of_dv_barriers": "do_barriers"}
    for name, at in rings.items():
        alike = [other for other, place in rings.items() if place == at and other != name]
        assert not alike or set(alike) <= {shared.get(name), *_keys_of(shared, name)}
    assert max(rings.values()) < storage.barriers_at
    assert places[-1] + 8 == storage.written_at


def _keys_of(of: dict[str, str], value: str) -> list[str]:
    return [key for key, found in of.items() if found == value]


def test_a_block_that_computes_alone_has_one_tile_for_two_products() -> None:
    storage = plan_storage(Tiling(), (128, 128))
    assert (storage.q_of_dk, storage.q_of_dk_at) == (storage.q, storage.q_at)
    assert (storage.do_of_dv, storage.do_of_dv_at) == (storage.do, storage.do_at)
    assert (storage.k_of_dq, storage.k_of_dq_at) == (storage.k, storage.k_at)
    assert storage.q_of_dk_barriers == storage.q_barriers


def test_of_two_blocks_each_has_half_of_second_operands() -> None:
    storage = plan_storage(TOGETHER, (128, 64))
    shapes = {name: (getattr(storage, name).rows, getattr(storage, name).columns) for name in TILES}
    assert shapes == {
        "k": (128, 128), "v": (128, 64),  # first operands: the block's keys
        "q": (64, 128), "do": (64, 64),  # half of the queries
        "q_of_dk": (128, 64), "do_of_dv": (128, 32), "k_of_dq": (256, 64),  # half of the head dim
        "ds": (256, 64),  # all keys, and half of the queries
    }  # fmt: skip


def test_two_tiles_share_a_place_where_a_tile_of_queries_is_done_before_the_next() -> None:
    storage = plan_storage(TOGETHER, (192, 128))
    assert storage.one_place and storage.q_of_dk != storage.q
    assert (storage.q_of_dk_at, storage.q_of_dk_barriers) == (storage.q_at, storage.q_barriers)
    assert (storage.do_of_dv_at, storage.do_of_dv.bytes) == (storage.do_at, storage.do.bytes)
    assert storage.k_of_dq_at != storage.k_at


CHANGES: dict[str, tuple[dict[str, Any], int]] = {
    "a stage of Q more": ({"q_stages": 3}, 128 * 128 * 2 + 16),
    "a stage of dO more": ({"do_stages": 2}, 128 * 128 * 2 + 16),
    "a stage of K and V more": ({"kv_stages": 2}, 2 * 128 * 128 * 2 + 2 * 16 + 8),
    "a part of dQ less": ({"dq_stages": 1}, -128 * 32 * 4),
    "two blocks": ({"blocks": 2}, -2 * 128 * 64 * 2 + 128 * 64 * 2 + 256 * 64 * 2 + 2 * 16),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_a_tiling_asks_for_takes_its_bytes(name: str) -> None:
    changed, more = CHANGES[name]
    before, after = (plan_storage(t, (128, 128)) for t in (Tiling(), replace(Tiling(), **changed)))
    assert after.bytes - before.bytes == more
