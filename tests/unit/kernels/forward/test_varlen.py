"""What is launched for packed sequences whose lengths nobody reads, and what is left to others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import flexfa4
from flexfa4.kernels.forward import varlen
from flexfa4.kernels.launch.target import Target, standing_in
from flexfa4.kernels.varlen.table import ENTRY, HEADER
from flexfa4.primitives.fast_division import MOST
from tests.compiled_kernels import compiled_kernel

HEADS, DIM, MULTIPROCESSORS = 4, 64, 6
LENGTHS = [300, 0, 20, 500]


class Recorder:
    """An executor that computes nothing."""

    def __init__(self) -> None:
        self.launches: list[dict[str, Any]] = []
        self.plans: list[Any] = []

    def load(self, kernel: Any) -> None:
        pass

    def launch(
        self, kernel: Any, grid: Any, values: Any, *, stream: int = 0, memory: Any = ()
    ) -> None:
        names = (parameter.name for parameter in kernel.signature)
        given = dict(zip(names, values, strict=True))
        self.launches.append({**given, "grid": grid, "memory": memory})

    def kernel_for(self, *given: Any) -> Any:
        """Stand for a compiler of either kernel."""
        plan = next(x for x in given if hasattr(x, "signature"))
        self.plans.append(plan)
        return compiled_kernel(signature=plan.signature)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    """A GPU of compute capability 9.0 whose kernels compute nothing."""
    executor = Recorder()
    varlen._FORMS.clear()
    monkeypatch.setattr(varlen, "kernel_for", executor.kernel_for)
    monkeypatch.setattr(varlen, "table_kernel_for", executor.kernel_for)
    with standing_in(Target(executor, (9, 0), MULTIPROCESSORS)):
        yield executor
    varlen._FORMS.clear()


def drawn(lengths: list[int] = LENGTHS, dtype: torch.dtype = torch.bfloat16) -> Any:
    """Return tokens of some sequences, and where each of them ends."""
    ends = torch.tensor([0, *lengths]).cumsum(0).int()
    return torch.zeros(sum(lengths), HEADS, DIM, dtype=dtype), ends


def call(x: Any, ends: Any, key: Any = None, **given: Any) -> Any:
    key = x if key is None else key
    return flexfa4.attention_varlen(x, key, key, ends, backend="sm90", **given)


def test_a_call_makes_a_table_and_works_on_it(gpu: Recorder) -> None:
    x, ends = drawn()
    out, lse = call(x, ends, block_mask="q >= kv", return_lse=True)
    assert out.shape == x.shape and lse.shape == x.shape[:2]
    table, attention = gpu.launches
    assert table["q_ends"] == table["kv_ends"] == ends.data_ptr()
    assert table["table"] == attention["table"]
    assert table["grid"] == (1, 1, 1)
    assert (table["sequences"], table["q_total"], table["kv_total"]) == (4, 820, 820)
    assert attention["grid"] == (MULTIPROCESSORS, 1, 1)
    assert attention["q_len"] == attention["kv_len"] == 820


def test_the_table_has_room_for_the_most_entries(gpu: Recorder) -> None:
    x, ends = drawn()
    call(x, ends)
    table, attention = gpu.launches
    (made,) = {t.numel() for t in table["memory"] if t.data_ptr() == table["table"]}
    assert made >= HEADER + ENTRY * table["most"]
    rows = gpu.plans[0].walk.shape.queries
    assert table["least"] == -(-820 // rows) and table["most"] == 820 // rows + 4
    assert any(t is not None and t.data_ptr() == table["table"] for t in attention["memory"])


def test_no_more_blocks_are_launched_than_there_are_items_for(gpu: Recorder) -> None:
    x, ends = drawn([3, 4])
    call(x, ends)
    assert gpu.launches[1]["grid"] == (HEADS, 1, 1)


def test_tensor_maps_end_where_their_boxes_do_and_begin_a_box_before_the_tensor(
    gpu: Recorder,
) -> None:
    x, ends = drawn()
    call(x, ends)
    for spec, axis in zip(gpu.plans[0].maps, (2, 1, 1, 2), strict=True):
        address, sizes, strides = gpu.launches[1][spec.name]
        token = HEADS * DIM * 2
        assert sizes[axis] == spec.box[axis] and sizes[-1] == 821
        assert strides[axis - 1] == strides[-1] == token
        if spec.name != "out":
            assert address == x.data_ptr() - spec.box[axis] * token


def test_other_lengths_of_a_form_prepare_nothing_and_read_nothing(gpu: Recorder) -> None:
    x, ends = drawn()
    call(x, ends, block_mask="q >= kv")
    made = len(gpu.plans)
    other = torch.full_like(ends, 7)  # no lengths, and nobody looks
    call(x, other, block_mask="q >= kv")
    assert len(gpu.plans) == made and len(gpu.launches) == 4


def test_what_a_mask_captures_is_given_on_each_call(gpu: Recorder) -> None:
    x, ends = drawn()
    for _ in range(2):
        seen, shift = torch.arange(4), 3
        call(x, ends, block_mask=lambda b, h, q, kv: kv < seen[b] + shift)  # noqa: B023
        for launch in gpu.launches[-2:]:
            assert launch["limit.seen.pointer"] == seen.data_ptr()
            assert launch["limit.shift"] == 3
    assert len(gpu.plans) == 2


def test_both_kinds_of_lengths_and_any_layout_have_a_kernel(gpu: Recorder) -> None:
    x, ends = drawn()
    call(x, ends.long())
    assert gpu.plans[1].wide == (True, True)
    call(x, ends.repeat_interleave(2)[::2])
    assert gpu.launches[2]["q_ends"] != ends.data_ptr()
    call(torch.nn.functional.pad(x, (0, 3))[..., :-3], ends)
    assert gpu.launches[5]["q"][1] == gpu.launches[1]["q"][1]


def left_to_others(x: Any, ends: Any, **given: Any) -> bool:
    """Return whether a call has no table, whatever becomes of it."""
    with pytest.MonkeyPatch.context() as patch:
        found: list[Any] = []
        attend = varlen.attend

        def noted(*given: Any) -> Any:
            found.append(attend(*given))
            raise NotImplementedError

        patch.setattr(varlen, "attend", noted)
        with pytest.raises(NotImplementedError):
            call(x, ends, **given)
    return found == [None]


def test_what_is_not_served_is_left_to_calls_that_read_the_lengths(gpu: Recorder) -> None:
    x, ends = drawn()
    none = torch.zeros(0, HEADS, DIM, dtype=torch.bfloat16)
    two = "(q >= kv) & ((q - kv < 20) | (kv < 4))"
    assert left_to_others(x, ends, block_mask=two)
    assert left_to_others(*drawn(dtype=torch.float32))
    assert left_to_others(x, ends, key=none)
    assert left_to_others(x, ends, options=flexfa4.Options(tile=(100, 7)))
    assert left_to_others(torch.zeros(820, HEADS, 24, dtype=torch.bfloat16), ends)
    assert not gpu.launches


def test_positions_fit_32_bits(gpu: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    assert varlen._LONGEST + 512 < MOST
    monkeypatch.setattr(varlen, "_LONGEST", 819)
    assert left_to_others(*drawn())
