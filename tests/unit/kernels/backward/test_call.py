"""From the tensors of a call to the plans of the backward kernels, and to values of a launch."""

from __future__ import annotations

from typing import Any

import torch

import flexfa4
from flexfa4.frontend.ir import F32
from flexfa4.frontend.tracing.trace import resolve
from flexfa4.kernels.backward.call import (
    Memory,
    PlannedBackward,
    Template,
    Wishes,
    first_distance,
    plan_backward,
    share_shapes,
    summed_in_kernel,
    work_of,
)
from flexfa4.kernels.cache.keys import canonical_text
from flexfa4.kernels.request import Inputs, Request
from flexfa4.kernels.sm90.backward.architecture import HOPPER_BACKWARD
from flexfa4.primitives.scheduler import Sections, Work

CPU = torch.device("cpu")
SLOPE, TABLE = torch.rand(4), torch.rand(40)


def inputs(length: int = 300, keys: int = 333, dim: int = 64, kv_batch: int = 2) -> Inputs:
    def empty(batch: int, heads: int, n: int) -> torch.Tensor:
        return torch.empty(batch, heads, n, dim, dtype=torch.bfloat16)

    return Inputs(empty(2, 4, length), empty(kv_batch, 2, keys), empty(kv_batch, 2, keys), None)


def planned(
    given: Inputs, mod: Any = None, mask: Any = None, learned: bool = False, **wishes: Any
) -> PlannedBackward:
    score = None if mod is None else resolve(mod, "score")
    blocks = None
    if mask is not None:
        sizes = given.sizes
        made = flexfa4.create_block_mask(
            mask, batch=2, heads=4, q_len=sizes.q_len, kv_len=sizes.kv_len
        )
        blocks = made.blocks_on(CPU)
    captures = frozenset[Any]()
    if score is not None and learned:
        captures = summed_in_kernel(score.graph, frozenset(score.graph.buffers))
    request = Request(score, blocks, 0.125, captures, False)
    found = plan_backward(HOPPER_BACKWARD, given, request, Wishes(captures, False, **wishes))
    assert found is not None
    return found


def causal(b: Any, h: Any, q: Any, kv: Any) -> Any:
    return q >= kv


def test_lengths_scales_and_captured_numbers_make_no_other_plan() -> None:
    def plan(window: int, keys: int) -> str:
        def mask(b: Any, h: Any, q: Any, kv: Any) -> Any:
            return (q >= kv) & (q - kv < window)

        mod = lambda s, b, h, q, kv: s * (window / 50) + SLOPE[h] * (kv - q)  # noqa: E731
        made = planned(inputs(keys=keys), mod, mask)
        return canonical_text((made.main, made.preprocess, made.postprocess))

    assert plan(70, 333) == plan(90, 450)


def test_what_changes_the_code_makes_another_plan() -> None:
    mod = lambda s, b, h, q, kv: s + SLOPE[h] * (kv - q)  # noqa: E731
    plans = [
        planned(inputs()), planned(inputs(), mod), planned(inputs(), mod, learned=True),
        planned(inputs(), None, causal), planned(inputs(), None, causal, deterministic=True),
        planned(inputs(dim=128)),
    ]  # fmt: skip
    assert len({canonical_text(made.main) for made in plans}) == len(plans)


def test_captures_and_masks_are_planned_along_queries() -> None:
    made = planned(
        inputs(), lambda s, b, h, q, kv: s + TABLE[q % 40], lambda b, h, q, kv: q % 3 < kv
    )
    plans = (made.main.score_captures, made.main.mask_captures, made.main.limit_captures)
    assert {plan.along for plan in plans} == {"q"}
    assert made.main.walk.by == "columns" and made.main.walk.shape.group == 1


def test_head_dims_without_a_kernel_are_none() -> None:
    given = inputs(dim=80)
    request = Request(None, None, 1.0, frozenset(), False)
    wishes = Wishes(frozenset(), False)
    assert plan_backward(HOPPER_BACKWARD, given, request, wishes) is None


def test_items_are_tiles_of_keys_of_key_heads() -> None:
    made = planned(inputs(kv_batch=1))
    keys = made.main.tiling.keys
    assert work_of(made.main, inputs(kv_batch=1)) == Work(-(-333 // keys), 2, 1)


def test_values_stand_in_the_order_of_the_signature() -> None:
    mod = lambda s, b, h, q, kv: s + SLOPE[h] * (kv - q)  # noqa: E731
    given, scale = inputs(kv_batch=1), 0.5
    made = planned(given, mod, lambda b, h, q, kv: (q // 50 + kv // 30) % 2 == 0, True,
                   deterministic=True)  # fmt: skip
    memory = Memory.of(made.main, given.sizes, made.score)
    counter, do = torch.zeros(1, dtype=torch.int32), torch.empty_like(given.q)
    tensors = memory.given(given, do, counter)
    template = Template(made, given, tensors)
    score = resolve(mod, "score")
    values = template.fill(given, tensors, Request(score, None, scale, frozenset(), False))
    named = dict(zip([p.name for p in made.main.signature], values, strict=True))
    for name, tensor in (("q", given.q), ("do", do), ("dk", tensors.dk), ("dv", tensors.dv)):
        assert named[name][0] == tensor.data_ptr()
    assert (named["q_len"], named["kv_len"], named["heads"], named["kv_heads"]) == (300, 333, 4, 2)
    assert named["shared_batches"] == 2 and named["scale"] == scale
    assert named["statistics"] == tensors.statistics.data_ptr()
    assert named["turns"] == tensors.turns.data_ptr() and not tensors.turns.any()
    assert named["share0"] == tensors.shares[0].data_ptr()
    assert named["score.SLOPE.pointer"] == score.tensors[0].data_ptr()
    numbers = Sections.of(work_of(made.main, given), 10**6, made.walk.descending).numbers()
    assert named["items"] == numbers[0]
    lists = [v for v in made.walk.values if isinstance(v, torch.Tensor)]
    assert named["line_begins"] == lists[0].data_ptr()
    assert {t.data_ptr() for t in lists} <= {t.data_ptr() for t in template.kept}


def test_sums_of_distances_are_as_many_as_whole_tiles_have() -> None:
    mod = lambda s, b, h, q, kv: s + TABLE[(q - kv).abs() % 40] + SLOPE[h]  # noqa: E731
    given = inputs()
    made = planned(given, mod, learned=True)
    tiling = made.main.tiling
    first = first_distance(made.main, given.sizes)
    assert -first % tiling.keys == 0 and -first - tiling.keys < 333 <= -first
    shapes = dict(zip([s.over for s in made.main.score.shares],
                      share_shapes(made.main, given.sizes, made.score), strict=True))  # fmt: skip
    assert shapes["pair"] == (2, 4, 1, 333)
    distances = shapes["distance"][3] + first
    assert distances % tiling.queries == 0 and distances - tiling.queries < 300 <= distances
    cleared = dict(
        zip(
            shapes,
            [c for _, c in Memory.of(made.main, given.sizes, made.score).shares],
            strict=True,
        )
    )
    assert cleared == {"pair": False, "distance": True}


def test_what_is_added_in_any_order_is_not_summed_up_deterministically() -> None:
    graph = resolve(
        lambda s, b, h, q, kv: s + SLOPE[h] * TABLE[kv % 40] + GATES[q] + NEAR[(q - kv).abs()],
        "score",
    ).graph
    every = frozenset(b for b in graph.buffers if b.dtype is F32)
    assert summed_in_kernel(graph, every) == every
    names = {b.name for b in summed_in_kernel(graph, every, deterministic=True)}
    assert names == {"SLOPE", "TABLE"}


GATES, NEAR = torch.rand(300), torch.rand(400)
