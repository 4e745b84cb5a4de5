"""Captures as parameters: what a plan keeps of them, their order, and their values in a call."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import pytest
import torch

import flexfa4
from flexfa4.frontend.binding import BoundGraph
from flexfa4.frontend.sizes import Sizes
from flexfa4.frontend.tracing.trace import resolve
from flexfa4.kernels.emit.captures import (
    POSITIONS,
    CapturePlan,
    Parameter,
    capture_plan,
    capture_values,
    captures_signature,
)
from flexfa4.kernels.emit.errors import KernelLimitError

SIZES = Sizes(2, 4, 2, 32, 64)


def bound_to(mod: Any) -> BoundGraph:
    return resolve(mod, "score")


def planned(mod: Any, sizes: Sizes = SIZES) -> tuple[BoundGraph, CapturePlan]:
    bound = bound_to(mod)
    return bound, capture_plan(bound, sizes)


def test_what_a_launch_needs_loads_neither_cute_dsl_nor_a_compiler() -> None:
    code = (
        "import sys, flexfa4.kernels.emit.captures, flexfa4.kernels.emit.program\n"
        "import flexfa4.kernels.emit.structure\n"
        "print(*[name for name in ('cutlass', 'triton') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not done.stdout.strip()


def test_numbers_come_first_then_pointers_and_the_strides_that_are_not_one() -> None:
    table = torch.rand(4, 64)
    bound, plan = planned(flexfa4.parse("score * w + t[h, kv] + n", w=0.5, n=3, t=table))
    assert captures_signature(bound.graph, plan) == (
        Parameter("w", "f32"),
        Parameter("n", "i32"),
        Parameter("t.pointer", "pointer"),
        Parameter("t.stride0", "i32"),
    )
    assert capture_values(bound, plan, 16) == [0.5, 3, table.data_ptr(), 64]


def test_new_values_are_the_same_plan() -> None:
    plans = {
        planned(flexfa4.parse("score * w + t[h, kv]", w=w, t=torch.rand(4, length)))[1]
        for w, length in ((0.5, 64), (-3.0, 64), (0.5, 128))
    }
    assert len(plans) == 1


def test_sizes_are_parameters_where_an_index_has_to_be_looked_at() -> None:
    table, ids = torch.rand(9, 4), torch.zeros(64, dtype=torch.int64)
    bound, plan = planned(lambda score, b, h, q, kv: score + table[ids[kv], h] + table[-1, h])
    names = [parameter.name for parameter in captures_signature(bound.graph, plan)]
    of_table = [name for name in names if "size" in name]
    assert of_table == ["table.size0", "table.size1"]
    assert capture_values(bound, plan, 0)[names.index("table.size0")] == 9


def test_what_is_proved_about_indices_is_part_of_the_plan() -> None:
    row = torch.rand(64)
    (inside,) = planned(lambda score, b, h, q, kv: score + row[kv])[1].loads
    assert inside.in_range and inside.from_start == (True,)
    (backwards,) = planned(lambda score, b, h, q, kv: score + row[-1 - kv])[1].loads
    assert backwards.in_range and backwards.from_start == (False,)
    (beyond,) = planned(lambda score, b, h, q, kv: score + row[q + kv])[1].loads
    assert not beyond.in_range


@pytest.mark.parametrize(
    ("table", "unit", "aligned"),
    [
        (torch.rand(4, 64), True, 4),
        (torch.rand(4, 66)[:, :64], True, 2),
        (torch.rand(4, 65)[:, :64], True, 1),
        (torch.rand(4, 65)[:, 1:], True, 1),
        (torch.rand(64, 4).T, False, 1),
        (torch.rand(4, 64, dtype=torch.bfloat16), True, 8),
        (torch.rand(1, 65)[:, :64].expand(4, 64), True, 4),
    ],
)
def test_layouts_are_known_as_far_as_wide_loads_need_them(
    table: torch.Tensor, unit: bool, aligned: int
) -> None:
    _, plan = planned(lambda score, b, h, q, kv: score + table[h, kv])
    (known,) = plan.buffers
    assert (known.unit_stride, known.aligned, known.narrow) == (unit, aligned, True)


def test_great_numbers_and_lengths_are_of_64_bits() -> None:
    mod = flexfa4.parse("score + f32(kv > n)", n=1 << 40)
    assert planned(mod)[1].scalars == ("i64",)
    assert planned(mod)[1].positions == POSITIONS[0]
    assert planned(mod, SIZES._replace(kv_len=1 << 25))[1].positions == POSITIONS[1]
    assert planned(mod, SIZES._replace(kv_len=1 << 40))[1].positions == POSITIONS[2]


def test_a_tensor_of_two_gigabytes_has_offsets_of_64_bits() -> None:
    table = torch.rand(1, 1).expand(1 << 15, 1 << 15)
    wide = torch.empty_strided((4, 1 << 15), (1 << 28, 1), device="meta")
    _, plan = planned(lambda score, b, h, q, kv: score + table[h, kv] + wide[h, kv])
    assert [known.narrow for known in plan.buffers] == [True, False]


def test_a_tensor_without_elements_stands_for_something_readable() -> None:
    nothing = torch.empty(0, 4)
    bound, plan = planned(lambda score, b, h, q, kv: score + nothing[kv, h])
    values = capture_values(bound, plan, 4096)
    names = [parameter.name for parameter in captures_signature(bound.graph, plan)]
    assert values[names.index("nothing.pointer")] == 4096
    assert [values[names.index(f"nothing.stride{axis}")] for axis in (0, 1)] == [0, 0]


def test_a_dtype_that_kernels_do_not_read_is_refused() -> None:
    table = torch.zeros(64, dtype=torch.float8_e4m3fn)
    bound = bound_to(flexfa4.parse("score + t[kv]", t=torch.rand(64)))
    other = BoundGraph(bound.graph, (table,))
    with pytest.raises(KernelLimitError, match="float8_e4m3fn") as error:
        capture_plan(other, SIZES)
    assert "t.float()" in str(error.value) and "bfloat16" in str(error.value)


def test_numbers_beyond_fp32_are_packed_as_infinite() -> None:
    bound, plan = planned(flexfa4.parse("score + w", w=-1e300))
    assert capture_values(bound, plan, 0) == [-math.inf]
