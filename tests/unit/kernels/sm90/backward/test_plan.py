"""Plans of the Hopper backward kernels: their parameters, and how tiles of dQ lie."""

from __future__ import annotations

import math

import pytest

from flexfa4.kernels.backward.plan import DqOrder, PostprocessPlan, PreprocessPlan
from flexfa4.kernels.blocks.walk import WalkPlan
from flexfa4.kernels.sm90.backward.plan import BackwardPlan
from flexfa4.kernels.sm90.backward.storage import Tiling
from flexfa4.kernels.sm90.backward.tilings import BACKWARD
from flexfa4.primitives.tile_walk import TileShape

ALL = [pytest.param(dims, tiling, id=str(dims)) for dims, tiling in BACKWARD.items()]


def planned(head_dims: tuple[int, int], tiling: Tiling) -> BackwardPlan:
    shape = TileShape(tiling.queries, tiling.keys)
    walk = WalkPlan("dense", shape, by="columns")
    return BackwardPlan(element="bf16", head_dims=head_dims, tiling=tiling, walk=walk)


@pytest.mark.parametrize(("head_dims", "tiling"), ALL)
def test_the_parts_of_a_tile_of_dq_are_the_tile(head_dims: tuple[int, int], tiling: Tiling) -> None:
    order = planned(head_dims, tiling).dq_order
    assert order.parts * order.part == tiling.queries * head_dims[0]
    assert order.parts == tiling.warpgroups


@pytest.mark.parametrize(("head_dims", "tiling"), ALL)
def test_copies_move_whole_tiles(head_dims: tuple[int, int], tiling: Tiling) -> None:
    plan = planned(head_dims, tiling)
    boxes = {tensor_map.name: tensor_map for tensor_map in plan.maps}
    assert list(boxes) == ["q", "k", "v", "do", "dk", "dv"]
    for name, tensor_map in boxes.items():
        tile = getattr(plan.storage, {"dk": "k", "dv": "v"}.get(name, name))
        assert math.prod(tensor_map.box) == tile.elements


def names(plan: BackwardPlan | PreprocessPlan | PostprocessPlan) -> list[str]:
    return [parameter.name for parameter in plan.signature]


def test_parameters_are_there_where_they_are_needed() -> None:
    plan = planned((128, 128), BACKWARD[128, 128])
    assert len(set(names(plan))) == len(plan.signature)
    assert "counter" in names(plan)
    order = plan.dq_order
    plain = names(PreprocessPlan("bf16", 128, order))
    assert "grad_lse" not in plain and "sink" not in plain
    both = names(PreprocessPlan("bf16", 128, order, grad_lse=True, sink=True))
    assert set(both) - set(plain) == {"grad_lse", "sink", "grad_sink"}
    assert names(PostprocessPlan("bf16", order)) == ["dq", "sums", "scale"]


def test_plans_are_keys() -> None:
    first, second = (planned((128, 128), BACKWARD[128, 128]) for _ in range(2))
    assert first == second and hash(first) == hash(second)


@pytest.mark.parametrize(("columns", "parts", "swizzle"), [(64, 4, 128), (48, 2, 32), (96, 2, 64)])
def test_a_part_of_dq_is_written_by_slabs_that_divide_it(
    columns: int, parts: int, swizzle: int
) -> None:
    order = DqOrder(64 * parts // 2, 2 * columns, columns, 64)
    plan = PostprocessPlan("f16", order)
    assert order.parts == parts and plan.swizzle == swizzle
    assert columns % plan.slab == 0 and plan.maps[0].box == (plan.slab, 64, 1, 1, 1)
