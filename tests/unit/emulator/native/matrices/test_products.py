"""The sums of products: rounding, overflow, and NaN."""

from __future__ import annotations

import struct

import pytest
import torch

from tests.tensor_core_programs import (
    ALL,
    B_AT,
    Layout,
    Program,
    float_cells,
    instruction_descriptor,
    integers,
    mma,
    product,
    put,
    window,
)

K_MAJOR = (Layout.compact(6, False, 128, 1), Layout.compact(6, False, 32, 1))


@pytest.mark.parametrize("saturate", [False, True])
def test_integers_wrap_unless_they_saturate(saturate: bool) -> None:
    image = window()
    put(image[0], 0, K_MAJOR[0], torch.ones(128, 32, dtype=torch.int8))
    put(image[0], B_AT, K_MAJOR[1], torch.ones(32, 32, dtype=torch.int8))
    idesc = instruction_descriptor(128, 32, a=1, b=1, d=2, other=saturate << 3)
    body = product(mma("i8"), idesc, (K_MAJOR[0], 0), (K_MAJOR[1], B_AT))
    d = torch.full((1, 128, 32), 2**31 - 16, dtype=torch.int32)
    out, _ = Program(body, stored=ALL).run(image, d)
    assert set(out.flatten().tolist()) == {2**31 - 1 if saturate else -(2**31) + 16}


def test_d_of_f16_has_a_cell_for_each_number() -> None:
    layouts = (Layout.compact(2, False, 128, 2), Layout.compact(2, False, 32, 2))
    a, b = integers(128, 16, low=0, high=999), integers(32, 16, low=0, high=999, seed=1)
    a, b = (a / 1024).half(), (b / 1024).half()
    image = window()
    put(image[0], 0, layouts[0], a)
    put(image[0], B_AT, layouts[1], b)
    idesc = instruction_descriptor(128, 32, d=0)
    body = product(mma("f16"), idesc, (layouts[0], 0), (layouts[1], B_AT))
    d = (integers(128, 32, low=0, high=999, seed=2) / 1024).half()
    cells = d.view(torch.int16).int()[None]
    out, _ = Program(body, stored=ALL).run(image, cells)
    sums = (d.double() + a.double() @ b.double().T).flatten().tolist()
    # struct rounds once, where torch goes by way of f32
    expected = [struct.unpack("<H", struct.pack("<e", x))[0] for x in sums]
    assert out.flatten().tolist() == expected


def test_f32_sums_are_rounded_once_and_nan_is_canonical() -> None:
    layouts = (Layout.compact(2, False, 128, 2), Layout.compact(2, False, 32, 2))
    a, b = torch.zeros(128, 16).half(), torch.ones(32, 16).half()
    a[0, :3] = torch.tensor([1.0, 2.0**-14, -1.0])  # two of them cancel, whatever the third adds
    a[1, 0] = float("inf")
    a[2, :2] = torch.tensor([float("inf"), float("-inf")])
    a[3, 0] = 1.0
    image = window()
    put(image[0], 0, layouts[0], a)
    put(image[0], B_AT, layouts[1], b)
    body = product(mma("f16"), instruction_descriptor(128, 32), (layouts[0], 0), (layouts[1], B_AT))
    d = torch.zeros(1, 128, 32)
    d[0, 3] = 2.0**24 + 2  # the next number is 2 more: half-way goes to the even one
    out, _ = Program(body, stored=ALL).run(image, d.view(torch.int32))
    result = float_cells(out)[0, :, 0]
    assert result[0] == 2.0**-14
    assert result[1] == float("inf")
    assert int(out[0, 2, 0]) == 0x7FFFFFFF
    assert result[3] == 2.0**24 + 4
