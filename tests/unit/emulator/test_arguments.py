"""Arguments of launches: which Python value a declared type takes, and its bytes."""

from __future__ import annotations

import struct
from typing import Any

import numpy
import pytest
import torch

from flexfa4.emulator.arguments import bound
from flexfa4.emulator.failures.options import KernelArgumentError
from flexfa4.emulator.host.cuda_tensor import CudaTensor
from flexfa4.emulator.host.signatures import Slot


def slot(declared: str) -> Slot:
    """Return the place of a parameter that is declared with a type, ``u32`` or ``b8[12]``."""
    type_, _, count = declared.rstrip("]").partition("[")
    size = int(type_[1:]) // 8
    return Slot("x", size * int(count or 1), size, type_)


def data(value: Any, declared: str) -> bytes:
    return bound(value, slot(declared), 0, "kernel").data


def refusal(value: Any, declared: str) -> str:
    with pytest.raises(KernelArgumentError) as caught:
        data(value, declared)
    return str(caught.value)


@pytest.mark.parametrize("bits", [8, 16, 32, 64])
@pytest.mark.parametrize("kind", ["u", "s", "b"])
def test_integers_are_taken_up_to_the_ends_of_their_type(kind: str, bits: int) -> None:
    declared, least = f"{kind}{bits}", -(1 << (bits - 1))
    stop = 1 << (bits - 1 if kind == "s" else bits)
    for value in (0, 1, least, stop - 1):
        expected = (value % (1 << bits)).to_bytes(bits // 8, "little")
        assert data(value, declared) == expected
    for value in (least - 1, stop):
        assert f"an int from -2**{bits - 1} up to 2**" in refusal(value, declared)


@pytest.mark.parametrize(("declared", "code"), [("f16", "<e"), ("f32", "<f"), ("f64", "<d")])
def test_floats_are_taken_by_parameters_of_floats_and_of_bits(declared: str, code: str) -> None:
    for value in (0.1, -0.0, float("inf"), 6e4):
        assert data(value, declared) == struct.pack(code, value)
        assert data(value, declared.replace("f", "b")) == struct.pack(code, value)


@pytest.mark.parametrize(
    ("value", "declared", "instead"),
    [
        (2, "f32", "2.0"),
        (True, "f64", "1.0"),
        (2.5, "u32", "2"),
        (3.0, "s64", "3"),
        (float("nan"), "u32", "an int"),
        (numpy.int32(-4), "f32", "-4.0"),
        (2**40, "u32", "a number within the range"),
        ([1.0, 2.0], "u64", "torch.tensor(x)"),
        (numpy.zeros(3), "u64", "torch.from_numpy"),
        (torch.zeros(3), "u32", "x.item()"),
        (torch.zeros(3), "f64", "x.item()"),
        (None, "u64", "a value of its type"),
        (1, "b8[12]", "its bytes: struct.pack"),
        (1.0, "b8[8]", "1"),
        (1.0, "b8[128]", "its bytes: struct.pack"),
        (1, "u32[2]", "its bytes: struct.pack"),
        (bytes(8), "b8[12]", "its bytes: struct.pack"),
    ],
)
def test_what_a_type_does_not_take_is_refused_with_what_to_write(
    value: Any, declared: str, instead: str
) -> None:
    message = refusal(value, declared)
    assert f"the parameter x is .{declared}\n" in message
    assert instead in message.partition("instead: ")[2]


def test_a_float_beyond_its_type_is_refused() -> None:
    assert "a float within the range of .f32, or 4 bytes" in refusal(1e300, "f32")
    assert data(1e300, "f64") == struct.pack("<d", 1e300)


@pytest.mark.parametrize("declared", ["u64", "s64", "b64", "b8[8]"])
def test_tensors_are_their_addresses_where_a_parameter_can_be_a_pointer(declared: str) -> None:
    tensor = torch.zeros(4, 4)[1:, 2:].requires_grad_()
    for value in (tensor, CudaTensor(tensor)):
        argument = bound(value, slot(declared), 0, "kernel")
        assert argument.data == tensor.data_ptr().to_bytes(8, "little")
        assert argument.tensor is not None and argument.tensor.data_ptr() == tensor.data_ptr()
        assert not argument.tensor.requires_grad


@pytest.mark.parametrize(
    ("value", "declared", "same"),
    [
        (numpy.float32(0.1), "f32", struct.pack("<f", 0.1)),
        (numpy.float64(0.1), "f64", struct.pack("<d", 0.1)),
        (numpy.uint8(200), "u32", b"\xc8\0\0\0"),
        (numpy.int64(-1), "b64", b"\xff" * 8),
        (torch.tensor(0.5), "f32", struct.pack("<f", 0.5)),
        (torch.tensor(0.5, dtype=torch.bfloat16), "b32", struct.pack("<f", 0.5)),
        (torch.tensor(-2), "s32", b"\xfe\xff\xff\xff"),
        (torch.tensor(True), "u8", b"\1"),
        (bytearray(b"abcd"), "f32", b"abcd"),
        (bytes(128), "b8[128]", bytes(128)),
    ],
)
def test_scalars_of_numpy_and_torch_and_bytes_are_values_too(
    value: Any, declared: str, same: bytes
) -> None:
    argument = bound(value, slot(declared), 0, "kernel")
    assert argument.data == same and argument.tensor is None


def test_a_scalar_of_torch_is_held_to_the_type_of_its_elements() -> None:
    assert "the float 2.0" in refusal(torch.tensor(2.0), "u32")
    assert "the int 2" in refusal(torch.tensor(2), "f32")
