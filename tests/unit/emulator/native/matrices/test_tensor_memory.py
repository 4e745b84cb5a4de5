"""Tensor memory: which cells exist, and which may be used."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flexfa4.emulator.errors import EmulationError
from flexfa4.emulator.failures.matrices import (
    TensorBoundsError,
    UnallocatedColumnsError,
    UninitialisedTensorError,
)
from tests.tensor_core_programs import (
    ALL,
    B_AT,
    Layout,
    Program,
    instruction_descriptor,
    mma,
    product,
    window,
)

F16 = (Layout.compact(2, False, 128, 2), Layout.compact(2, False, 32, 2))


def f16_product(accumulate: bool, between: str = "", d: int = 0) -> str:
    return product(
        mma("f16"),
        instruction_descriptor(128, 32),
        (F16[0], 0),
        (F16[1], B_AT),
        accumulate,
        between=between,
        d=d,
    )


def failure(body: str, **program: Any) -> EmulationError:
    with pytest.raises(EmulationError) as caught:
        Program(body, **program).run(window())
    return caught.value


def test_columns_end_at_511() -> None:
    error = failure(f16_product(False, d=500), columns=512, loaded=1)
    assert isinstance(error, TensorBoundsError)
    assert "columns 500-531" in str(error)


def test_allocations_of_another_size_leave_the_rest_unallocated() -> None:
    error = failure(f16_product(False, d=48), columns=64, loaded=1)
    assert isinstance(error, UnallocatedColumnsError)
    assert "columns 48-79 of block (0, 0, 0)" in str(error)
    assert "columns 0-63 (cta_group::1, by warp 0)" in str(error)


def test_what_a_product_writes_is_written_and_disabled_lanes_are_not() -> None:
    text = "".join(f"    mov.b32 %r{20 + i}, {mask};\n" for i, mask in enumerate((0, 0, 4, 0)))
    masks = ", {%r20, %r21, %r22, %r23}"
    out, _ = Program(f16_product(False) + f16_product(True)).run(window())
    assert not out.any()
    error = failure(text + f16_product(False, masks) + f16_product(True))
    assert isinstance(error, UninitialisedTensorError)
    assert "lane 66, column 0" in str(error)


def test_disabled_lanes_need_no_old_value() -> None:
    text = "".join(f"    mov.b32 %r{20 + i}, -1;\n" for i in range(4))
    body = text + f16_product(True, ", {%r20, %r21, %r22, %r23}")
    before = torch.arange(128 * 32).reshape(1, 128, 32).int()
    out, _ = Program(body, stored=ALL).run(window(), before)
    assert torch.equal(out, before)
    error = failure(body)  # the load behind it reads what nobody wrote
    assert isinstance(error, UninitialisedTensorError)
    assert "tcgen05.ld" in str(error)
