"""What a launch of the forward kernel is given, by the names of its parameters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

import flexfa4
from flexfa4.frontend.tracing.trace import resolve
from flexfa4.kernels.architectures import architecture
from flexfa4.kernels.compile.signature import TensorMap
from flexfa4.kernels.forward.call import Outputs, PlannedCall, Template, plan_call, work_of
from flexfa4.kernels.request import Inputs, Request
from flexfa4.kernels.sm90.forward.plan import Tiling

B, H, HKV, LQ, LK, D, DV = 2, 8, 2, 150, 170, 192, 128
TILING = Tiling(2, 112)
REQUEST = Request(None, None, 0.5, frozenset(), return_lse=True)


def drawn() -> tuple[Inputs, Outputs]:
    """Return tensors split from rows of all heads, as projections give them."""
    q, k, v, out = (
        torch.zeros(B, n, heads * d, dtype=torch.bfloat16).view(B, n, heads, d).transpose(1, 2)
        for n, heads, d in ((LQ, H, D), (LK, HKV, D), (LK, HKV, DV), (LQ, H, DV))
    )
    lse, counter = torch.zeros(B, H, LQ), torch.zeros(1, dtype=torch.int32)
    return Inputs(q, k, v, torch.zeros(H)), Outputs(out, lse, counter)


def planned(inputs: Inputs, score_mod: Any = None, block_mask: Any = None) -> PlannedCall:
    blocks = None
    if block_mask is not None:
        made = flexfa4.create_block_mask(block_mask, batch=B, heads=H, q_len=LQ, kv_len=LK)
        blocks = made.blocks_on(torch.device("cpu"))
    score = None if score_mod is None else resolve(score_mod, "score")
    request = replace(REQUEST, score=score, blocks=blocks)
    return plan_call(architecture("sm90"), inputs, request, TILING, lse=True)


def with_score(score_mod: Any) -> Request:
    return replace(REQUEST, score=resolve(score_mod, "score"))


def named(call: PlannedCall, values: list[Any]) -> dict[str, Any]:
    return dict(zip((p.name for p in call.plan.signature), values, strict=True))


def test_every_parameter_has_its_value() -> None:
    inputs, outputs = drawn()
    call = planned(inputs, block_mask=lambda b, h, q, kv: q >= kv)
    found = named(call, Template(call, inputs, outputs.out).fill(inputs, outputs, REQUEST))
    given = {
        "q_len": LQ, "kv_len": LK, "heads": H, "kv_heads": HKV, "kv_batch_step": 1, "scale": 0.5,
        "lse": outputs.lse.data_ptr() if outputs.lse is not None else 0,
        "sink": inputs.sink.data_ptr() if inputs.sink is not None else 0,
        "counter": outputs.counter.data_ptr(),
        # 4 heads are packed, so a tile of 128 rows has 32 queries
        "items": 5 * HKV * B, "q_tiles": 5, "first_tile": 4, "step": -1,
    }  # fmt: skip
    assert {name: found[name] for name in given} == given
    row = 2 * H * D  # bytes
    assert found["q"] == (
        inputs.q.data_ptr(), (D, 4, LQ, HKV, B), (2 * D, row, 8 * D, LQ * row)
    )  # fmt: skip
    row = 2 * HKV * DV
    assert found["v"] == (
        inputs.v.data_ptr(), (64, LK, 2, HKV, B), (row, 128, 2 * DV, LK * row)
    )  # fmt: skip


def test_boxes_of_tensor_maps_have_as_many_axes_as_tensors() -> None:
    inputs, outputs = drawn()
    call = planned(inputs)
    values = Template(call, inputs, outputs.out).fill(inputs, outputs, REQUEST)
    for parameter, value in zip(call.plan.signature, values, strict=True):
        if isinstance(parameter, TensorMap):
            assert len(parameter.box) == len(value[1]) == len(value[2]) + 1


def test_a_template_serves_other_tensors_and_numbers() -> None:
    slope, table = 0.5, torch.zeros(H, LK)

    def mod(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        return score + slope * (kv - q) + table[h, kv]

    first, outputs = drawn()
    call = planned(first, mod)
    template = Template(call, first, outputs.out)
    slope, table = 1e300, torch.zeros(H, LK)
    inputs, outputs = drawn()
    found = named(call, template.fill(inputs, outputs, with_score(mod)))
    assert found["score.slope"] == float("inf")  # what fp32 makes of it
    assert found["score.table.pointer"] == table.data_ptr()
    for name, tensor in (("q", inputs.q), ("k", inputs.k), ("v", inputs.v), ("out", outputs.out)):
        assert found[name][0] == tensor.data_ptr()


def test_tensors_without_elements_have_an_address_that_may_be_read() -> None:
    nothing = torch.zeros(0)
    inputs, outputs = drawn()

    def mod(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        return score + nothing[kv]

    call = planned(inputs, mod)
    template = Template(call, inputs, outputs.out)
    other, outputs = drawn()
    found = named(call, template.fill(other, outputs, with_score(mod)))
    assert found["score.nothing.pointer"] == other.q.data_ptr()


def test_the_tensors_of_a_mask_stay_alive_with_the_template() -> None:
    inputs, outputs = drawn()
    ids = torch.randint(0, 3, (LK,))
    call = planned(inputs, block_mask=lambda b, h, q, kv: ids[q] == ids[kv])
    template = Template(call, inputs, outputs.out)
    found = named(call, template.fill(inputs, outputs, REQUEST))
    addresses = {tensor.data_ptr() for tensor in template.kept}
    assert {found["line_begins"], found["line_tiles"], found["mask.ids.pointer"]} <= addresses


def test_items_are_tiles_of_packed_heads() -> None:
    inputs, _ = drawn()
    work = work_of(planned(inputs).plan, inputs.sizes)
    assert work == (5, HKV, B)
    alone = planned(inputs, block_mask=lambda b, h, q, kv: q >= kv + h)
    assert alone.plan.group == 1 and work_of(alone.plan, inputs.sizes) == (2, H, B)
