"""The types of the factors: their numbers, and how they lie in pieces and cells."""

from __future__ import annotations

import itertools

import pytest
import torch

from tests.tensor_core_programs import (
    ALL,
    B_AT,
    Layout,
    Program,
    check_sum,
    float_cells,
    instruction_descriptor,
    integers,
    mma,
    product,
    put,
    window,
)

INTEGER_TYPES = list(itertools.product((torch.uint8, torch.int8), repeat=2))
K_MAJOR = (Layout.compact(6, False, 128, 1), Layout.compact(6, False, 32, 1))


def test_bf16_and_tf32_are_exact() -> None:
    layouts = (Layout.compact(2, False, 128, 2), Layout.compact(2, False, 32, 2))
    a, b = integers(128, 16, low=-99, high=99), integers(32, 16, low=-99, high=99, seed=1)
    idesc = instruction_descriptor(128, 32, a=1, b=1)
    check_sum(a.bfloat16(), b.bfloat16(), layouts, idesc, "f16")
    layouts = (Layout.compact(4, False, 128, 4), Layout.compact(6, False, 32, 4))
    idesc = instruction_descriptor(128, 32, a=2, b=2)
    check_sum(a[:, :8].float(), b[:, :8].float(), layouts, idesc, "tf32")


def test_tf32_ignores_the_low_13_bits() -> None:
    layouts = (Layout.compact(2, False, 128, 4), Layout.compact(2, False, 32, 4))
    a = torch.full((128, 8), 1 + 2**-10 + 2**-11)
    b = torch.ones(32, 8)
    image = window()
    put(image[0], 0, layouts[0], a)
    put(image[0], B_AT, layouts[1], b)
    idesc = instruction_descriptor(128, 32, a=2, b=2)
    body = product(mma("tf32"), idesc, (layouts[0], 0), (layouts[1], B_AT), False)
    out, _ = Program(body).run(image)
    assert torch.equal(float_cells(out), torch.full((1, 128, 32), 8 * (1 + 2**-10)))


def small_float(bits: torch.Tensor, exponent: int, mantissa: int, bias: int) -> torch.Tensor:
    """Numbers of a format without infinities."""
    field = bits >> mantissa & (1 << exponent) - 1
    fraction = (bits & (1 << mantissa) - 1).double()
    normal = (1 + fraction / 2**mantissa) * 2.0 ** (field - bias)
    subnormal = fraction / 2**mantissa * 2.0 ** (1 - bias)
    sign = 1 - 2 * (bits >> exponent + mantissa & 1)
    return sign * torch.where(field > 0, normal, subnormal)


def packed(bits: torch.Tensor, size: int, container: int = 16) -> torch.Tensor:
    """Pack 16 numbers of `size` bits into the first bytes of `container` bytes."""
    rows, depth = bits.shape
    out = torch.zeros(rows, depth // 16, container, dtype=torch.uint8)
    for row, chunk in itertools.product(range(rows), range(depth // 16)):
        number = 0
        for i in range(16):
            number |= int(bits[row, 16 * chunk + i]) << size * i
        data = number.to_bytes(2 * size, "little")
        out[row, chunk, : 2 * size] = torch.tensor(list(data), dtype=torch.uint8)
    return out.reshape(rows, -1)


FORMATS = {"e2m3": (3, 6, (2, 3, 1)), "e3m2": (4, 6, (3, 2, 3)), "e2m1": (5, 4, (2, 1, 1))}


@pytest.mark.parametrize("name", FORMATS)
def test_numbers_below_8_bits_fill_the_first_bytes_of_16(name: str) -> None:
    code, size, form = FORMATS[name]
    a_bits = integers(128, 32, low=0, high=1 << size)
    b = integers(32, 32, seed=1).to(torch.float8_e4m3fn)
    image = window()
    put(image[0], 0, K_MAJOR[0], packed(a_bits, size))
    put(image[0], B_AT, K_MAJOR[1], b)
    idesc = instruction_descriptor(128, 32, a=code, b=0)
    body = product(mma("f8f6f4"), idesc, (K_MAJOR[0], 0), (K_MAJOR[1], B_AT), False)
    out, _ = Program(body).run(image)
    expected = small_float(a_bits, *form) @ b.double().T
    assert torch.equal(float_cells(out)[0].double(), expected)


@pytest.mark.parametrize("a_type,b_type", INTEGER_TYPES)
def test_integers_are_exact(a_type: torch.dtype, b_type: torch.dtype) -> None:
    a, b = integers(128, 32, low=0, high=256), integers(32, 32, low=0, high=256, seed=1)
    a, b = a.to(torch.uint8).view(a_type), b.to(torch.uint8).view(b_type)
    image = window()
    put(image[0], 0, K_MAJOR[0], a)
    put(image[0], B_AT, K_MAJOR[1], b)
    codes = {torch.uint8: 0, torch.int8: 1}
    idesc = instruction_descriptor(128, 32, a=codes[a_type], b=codes[b_type], d=2)
    body = product(mma("i8"), idesc, (K_MAJOR[0], 0), (K_MAJOR[1], B_AT))
    d = integers(1, 128, 32, low=-(2**20), high=2**20).int()
    out, _ = Program(body, stored=ALL).run(image, d)
    assert torch.equal(out[0], d[0] + (a.long() @ b.long().T).int())


@pytest.mark.parametrize("name", FORMATS)
def test_numbers_below_8_bits_have_a_byte_each_in_tensor_memory(name: str) -> None:
    code, size, form = FORMATS[name]
    a_bits = integers(128, 32, low=0, high=1 << size)
    b = integers(32, 32, seed=1).to(torch.float8_e4m3fn)
    image = window()
    put(image[0], B_AT, K_MAJOR[1], b)
    cells = torch.zeros(1, 128, 64, dtype=torch.int32)
    in_bytes = (a_bits << (2 if name == "e2m1" else 0)).to(torch.uint8)
    cells[0, :, 40:48] = in_bytes.view(torch.int32)
    idesc = instruction_descriptor(128, 32, a=code, b=0)
    body = product(mma("f8f6f4"), idesc, 40, (K_MAJOR[1], B_AT), False)
    out, _ = Program(body, columns=64, stored=tuple(range(40, 48))).run(image, cells)
    expected = small_float(a_bits, *form) @ b.double().T
    assert torch.equal(float_cells(out)[0, :, :32].double(), expected)
