"""Shared memory of the forward kernel: nothing lies where something else does that is in use."""

from __future__ import annotations

import itertools

import pytest

from flexfa4.kernels.sm100.forward.storage import (
    DEPTH,
    SHARED_MEMORY,
    Storage,
    parts_of,
    plan_storage,
    stages_that_fit,
)

DIMS = range(16, 257, 16)
MODELS = [(64, 64), (64, 128), (96, 96), (128, 128), (192, 128)]


def plans() -> list[Storage]:
    choices = itertools.product((32, 64, 96, 128), itertools.product(DIMS, DIMS))
    return [plan_storage(keys, dims, stages_that_fit(keys, dims)) for keys, dims in choices]


def test_no_two_things_share_memory_and_swizzles_repeat_where_tiles_start() -> None:
    for storage in plans():
        regions = dict(storage.regions)
        if storage.out_takes_place_of_q:
            out, q = regions.pop("out"), regions["q"]
            assert q[0] <= out[0] and out[1] <= q[1]
        for one, other in itertools.combinations(regions.values(), 2):
            assert one[1] <= other[0] or other[1] <= one[0]
        assert max(end for _, end in regions.values()) == storage.bytes
        tiles = (storage.q_at, storage.ring_at, storage.out_at)
        steps = (storage.q.bytes, storage.stage_bytes, storage.out_step)
        for at, step, shape in zip(tiles, steps, (storage.q, storage.k, storage.out), strict=True):
            assert at % (8 * shape.swizzle) == step % (8 * shape.swizzle) == 0


def test_parts_are_whole_slabs_of_keys_and_whole_products_of_values() -> None:
    for storage in plans():
        whole = plan_storage(storage.k.rows, (storage.q.columns, storage.out.columns), 0)
        assert storage.k_parts * storage.k.columns == whole.q.columns
        assert storage.v_parts * storage.v.rows == storage.k.rows
        assert storage.k.swizzle == storage.q.swizzle and storage.v.rows % DEPTH == 0
        assert max(storage.k.bytes, storage.v.bytes) <= storage.stage_bytes


@pytest.mark.parametrize(
    ("dims", "parts"),
    [((128, 128), (1, 1)), ((192, 128), (3, 2)), ((64, 128), (1, 2)), ((80, 48), (1, 1))],
)
def test_different_head_dims_are_cut_into_equal_parts_where_that_is_possible(
    dims: tuple[int, int], parts: tuple[int, int]
) -> None:
    assert parts_of(128, dims) == parts
    storage = plan_storage(128, dims, 4)
    equal = storage.k.bytes == storage.v.bytes
    assert equal == (dims != (80, 48))


@pytest.mark.parametrize("dims", MODELS, ids=str)
def test_models_have_two_tiles_in_use_and_one_on_its_way(dims: tuple[int, int]) -> None:
    stages = stages_that_fit(128, dims)
    storage = plan_storage(128, dims, stages)
    own_out = not storage.out_takes_place_of_q
    more = plan_storage(128, dims, stages + 1, own_out=own_out)
    assert storage.bytes <= SHARED_MEMORY < more.bytes
    assert stages >= storage.k_parts + storage.v_parts + min(storage.k_parts, storage.v_parts)


def test_the_widest_queries_lend_their_place_to_the_output() -> None:
    assert plan_storage(128, (192, 128), 8).out_takes_place_of_q
    assert not plan_storage(128, (128, 128), 3).out_takes_place_of_q
    # an output that is wider than its queries has no room there
    assert not plan_storage(128, (64, 128), 40).out_takes_place_of_q


def test_every_barrier_of_a_half_has_a_place_of_its_own() -> None:
    storage = plan_storage(128, (128, 128), 3)
    names = ("scores", "probabilities", "rest", "factors", "out", "inverse", "taken")
    places = sorted(storage.barrier(name) + 8 * half for name in names for half in range(2))
    assert places == list(range(storage.half_barriers, storage.numbers_at, 8))
