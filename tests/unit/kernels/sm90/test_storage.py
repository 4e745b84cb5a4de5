"""Shared memory of the forward kernel: nothing lies where something else does that is in use."""

from __future__ import annotations

import itertools

import pytest

from flexfa4.kernels.sm90.forward.storage import SHARED_MEMORY, Storage, plan_storage

DIMS = range(16, 257, 48)


def plans() -> list[Storage]:
    choices = itertools.product((64, 128, 192), (64, 96), itertools.product(DIMS, DIMS), (1, 2, 3))
    return [plan_storage(*choice) for choice in choices]


def regions(storage: Storage) -> list[tuple[int, int]]:
    """Return where tiles lie, but for an output in the place of Q."""
    tiles = [(storage.q, storage.q_at), (storage.k, storage.k_at), (storage.v, storage.v_at)]
    found = [(at, at + tile.bytes * tile.stages) for tile, at in tiles]
    if not storage.out_takes_place_of_q:
        found.append((storage.out_at, storage.out_at + storage.out.bytes))
    first = min(storage.q_barriers, storage.k_barriers, storage.v_barriers, storage.numbers_at)
    return [*found, (first, storage.bytes)]


def test_no_two_tiles_share_memory_and_swizzles_repeat_where_they_start() -> None:
    for storage in plans():
        for one, other in itertools.combinations(regions(storage), 2):
            assert one[1] <= other[0] or other[1] <= one[0]
        for at in (storage.q_at, storage.k_at, storage.v_at, storage.out_at):
            assert at % 1024 == 0


def test_an_output_in_the_place_of_q_writes_only_where_the_same_rows_were() -> None:
    shared = [storage for storage in plans() if storage.out_takes_place_of_q]
    assert shared
    for storage in shared:
        q, out = storage.q, storage.out
        assert (q.swizzle, q.slab, q.rows) == (out.swizzle, out.slab, out.rows)
        assert out.bytes <= q.bytes


@pytest.mark.parametrize("head_dims", [(224, 64), (64, 256), (256, 96)])
def test_where_rows_lie_differently_the_output_has_room_of_its_own(
    head_dims: tuple[int, int],
) -> None:
    storage = plan_storage(128, 64, head_dims, 2)
    assert not storage.out_takes_place_of_q
    assert storage.bytes <= SHARED_MEMORY


def test_q_has_a_second_stage_where_there_is_room() -> None:
    assert plan_storage(128, 128, (128, 128), 2).q.stages == 2
    assert plan_storage(128, 80, (256, 256), 2).q.stages == 1
