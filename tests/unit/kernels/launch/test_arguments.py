"""Values packed as the driver reads them."""

from __future__ import annotations

import ctypes
import struct
from typing import Any

import pytest

from flexfa4.kernels.compile.signature import Float32, Int32, Int64, Pointer, Signature, TensorMap
from flexfa4.kernels.launch.arguments import ArgumentBlock, ArgumentPacker, MapCache
from flexfa4.kernels.launch.errors import LaunchValueError, TensorLimitError
from flexfa4.kernels.launch.tensor_map import Tensor, Tiled
from tests.compiled_kernels import EVERY_KIND, compiled_kernel

X = Tensor(0x1000, (64, 300, 2), (128, 38400))
Y = Tensor(0x2000, (50,), ())
VALUES: tuple[Any, ...] = (X, -7, 0xFFFF_8000_0000_0010, Y, 1.5, -(2**40), 2**31 - 1)


class Encoder:
    """Encodes a map as its address, and counts."""

    def __init__(self) -> None:
        self.calls: list[Tiled] = []

    def __call__(self, tiled: Tiled) -> bytes:
        self.calls.append(tiled)
        return tiled.address.to_bytes(128, "little")


def read(block: ArgumentBlock, signature: Signature) -> list[bytes]:
    """Return the bytes of each parameter, by way of the pointers."""
    pointers = (ctypes.c_void_p * len(signature)).from_address(block.pointers)
    return [
        ctypes.string_at(p, parameter.nbytes)
        for p, parameter in zip(pointers, signature, strict=True)
    ]


def test_every_parameter_is_where_its_pointer_says() -> None:
    packer = ArgumentPacker(compiled_kernel(), Encoder())
    block = packer.block()
    packer.fill(block, VALUES)
    assert read(block, EVERY_KIND) == [
        (0x1000).to_bytes(128, "little"),
        struct.pack("<i", -7),
        struct.pack("<Q", 0xFFFF_8000_0000_0010),
        (0x2000).to_bytes(128, "little"),
        struct.pack("<f", 1.5),
        struct.pack("<q", -(2**40)),
        struct.pack("<i", 2**31 - 1),
    ]


def test_values_are_aligned_by_their_types() -> None:
    packer = ArgumentPacker(compiled_kernel(), Encoder())
    for parameter, offset in zip(EVERY_KIND, packer.offsets, strict=True):
        assert offset % parameter.alignment == 0


def test_a_signature_with_its_maps_first_is_packed_likewise() -> None:
    signature = tuple(sorted(EVERY_KIND, key=lambda p: not isinstance(p, TensorMap)))
    packer = ArgumentPacker(compiled_kernel(signature=signature), Encoder())
    block = packer.block()
    packer.fill(block, (X, Y, -7, 16, 1.5, -1, 3))
    assert read(block, signature)[2:] == [
        struct.pack("<" + f, v) for f, v in (("i", -7), ("Q", 16), ("f", 1.5), ("q", -1), ("i", 3))
    ]


def test_a_kernel_may_take_nothing() -> None:
    packer = ArgumentPacker(compiled_kernel(signature=()), Encoder())
    packer.fill(packer.block(), ())
    assert packer.offsets == ()


def test_the_second_call_replaces_every_value_of_the_first() -> None:
    packer = ArgumentPacker(compiled_kernel(), Encoder())
    block, fresh = packer.block(), packer.block()
    packer.fill(block, VALUES)
    other = (X._replace(address=0x9000), 1, 2, Y._replace(address=0x8000), 3.0, 4, 5)
    packer.fill(block, other)
    packer.fill(fresh, other)
    assert read(block, EVERY_KIND) == read(fresh, EVERY_KIND)


@pytest.mark.parametrize(
    ("index", "value", "message"),
    [
        (1, 2**31, "Int32 rows"),
        (1, 1.0, "Int32 rows"),
        (1, None, "Int32 rows"),
        (2, -1, "Pointer out"),
        (4, "1", "Float32 scale"),
        (4, 1e300, "Float32 scale"),
        (5, 2**63, "Int64 stride"),
        (0, 4096, "TensorMap x"),
        (3, None, "TensorMap y"),
        (0, (16, [64, 1, 1], (16, 16)), "TensorMap x"),
    ],
)
def test_a_value_that_does_not_fit_is_named(index: int, value: Any, message: str) -> None:
    packer = ArgumentPacker(compiled_kernel(), Encoder())
    values = [*VALUES[:index], value, *VALUES[index + 1 :]]
    with pytest.raises(LaunchValueError) as caught:
        packer.fill(packer.block(), values)
    assert f"kernel was launched with {value!r} of type" in str(caught.value)
    assert message in str(caught.value)


@pytest.mark.parametrize("values", [VALUES[:-1], (*VALUES, 1)])
def test_too_few_or_too_many_values_are_counted(values: tuple[Any, ...]) -> None:
    packer = ArgumentPacker(compiled_kernel(), Encoder())
    with pytest.raises(LaunchValueError, match=f"{len(values)} values for 7 parameters"):
        packer.fill(packer.block(), values)


def test_a_tensor_that_copies_cannot_take_is_refused_by_name() -> None:
    packer = ArgumentPacker(compiled_kernel(), Encoder())
    with pytest.raises(TensorLimitError, match="tensor y has the address 0x2008"):
        packer.fill(packer.block(), (*VALUES[:3], Y._replace(address=0x2008), *VALUES[4:]))


def test_a_map_is_encoded_once_for_a_tensor() -> None:
    encode = Encoder()
    packer = ArgumentPacker(compiled_kernel(), encode)
    for _ in range(3):
        packer.fill(packer.block(), VALUES)
    assert len(encode.calls) == 2
    packer.fill(packer.block(), (X._replace(strides=(128, 16)), *VALUES[1:]))
    assert len(encode.calls) == 3


def test_maps_that_are_used_stay_and_others_go() -> None:
    encode = Encoder()
    spec = EVERY_KIND[3]
    assert isinstance(spec, TensorMap)
    cache = MapCache(spec, encode, size=4)
    used = Y._replace(address=16)
    for number in range(2, 40):
        assert cache[used] == (16).to_bytes(128, "little")
        assert cache[Y._replace(address=16 * number)]
    assert sum(call.address == 16 for call in encode.calls) == 1
    before = len(encode.calls)
    assert cache[Y._replace(address=32)]
    assert len(encode.calls) == before + 1


@pytest.mark.parametrize("kind", [Pointer, Int32, Int64, Float32])
def test_formats_have_the_sizes_of_their_parameters(kind: type[Any]) -> None:
    assert struct.calcsize("<" + kind.format) == kind.nbytes
