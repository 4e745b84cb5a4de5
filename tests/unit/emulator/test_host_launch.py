"""Records of launches: parameters, tensor maps among them, and what no device would start."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from flexfa4.emulator.host.architectures import architecture
from flexfa4.emulator.host.errors import LaunchShapeError, WrongTargetError
from flexfa4.emulator.host.launch import Launch, Parameter, Shape
from flexfa4.emulator.host.signatures import Signature, Slot

DEVICE = architecture("sm_100a")
KERNEL = Signature("kernel", "sm_100a", (Slot("count", 4, 4),), static_shared_memory=1000)
SHAPE = Shape((4, 2, 1), (128, 1, 1), (2, 2, 1), 4096)


def launched(**changes: Any) -> Launch:
    return Launch("", KERNEL, replace(SHAPE, **changes), ())


def test_parameters_are_read_as_numbers_in_the_order_of_memory() -> None:
    assert Parameter(Slot("count", 4, 4), bytes([1, 2, 0, 0xFF])).integer() == 0xFF000201


def test_the_record_answers_for_its_shape() -> None:
    launch = launched()
    launch.check(DEVICE)
    assert (launch.entry, launch.grid, launch.block) == ("kernel", (4, 2, 1), (128, 1, 1))
    assert (launch.cluster, launch.shared_memory) == ((2, 2, 1), 4096)


def test_tensor_maps_are_aligned_parameters_of_128_bytes_that_decode() -> None:
    words = (0x1000, 0x10_0004_0392, 0, 0, 0x3F_0000_003F, 0, 0x0F << 56, 0x1F)
    data = b"".join(word.to_bytes(8, "little") for word in words) + bytes(64)
    parameters = (
        Parameter(Slot("map", 128, 64), data),
        Parameter(Slot("unaligned", 128, 8), data),
        Parameter(Slot("struct", 128, 64), bytes(128)),
        Parameter(Slot("count", 4, 4), bytes(4)),
    )
    maps = Launch("", KERNEL, SHAPE, parameters).tensor_maps
    assert {name: view.sizes for name, view in maps.items()} == {"map": (64, 64)}


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"grid": (0, 2, 1)}, "grid (0, 2, 1)"),
        ({"grid": (4, 65536, 1)}, "grid (4, 65536, 1)"),
        ({"block": (1025, 1, 1)}, "block (1025, 1, 1)"),
        ({"block": (1, 1, 65)}, "block (1, 1, 65)"),
        ({"block": (64, 4, 8)}, "2048 threads"),
        ({"cluster": (0, 1, 1)}, "cluster (0, 1, 1)"),
        ({"cluster": (4, 4, 2)}, "cluster (4, 4, 2)"),
        ({"grid": (65536, 65534, 2)}, "8589672448 blocks in the grid"),
        ({"grid": (3, 2, 1)}, "grid (3, 2, 1) and cluster (2, 2, 1)"),
        ({"shared_memory": 227 * 1024 - 999}, f"{227 * 1024 + 1} bytes of shared memory"),
    ],
)
def test_sizes_beyond_the_limits_are_refused(changes: dict[str, Any], found: str) -> None:
    with pytest.raises(LaunchShapeError) as raised:
        launched(**changes).check(DEVICE)
    assert found in str(raised.value)


@pytest.mark.parametrize(
    ("changes", "instead"),
    [
        ({"grid": (3, 3, 1)}, "grid=(4, 4, 1), with blocks that find nothing to do"),
        ({"shared_memory": 2**20}, f"shared_memory={227 * 1024 - 1000} or less"),
        ({"cluster": (4, 8, 1)}, "cluster=16 or less"),
    ],
)
def test_what_to_write_instead_is_computed(changes: dict[str, Any], instead: str) -> None:
    with pytest.raises(LaunchShapeError) as raised:
        launched(**changes).check(DEVICE)
    assert str(raised.value).endswith(f"instead: {instead}")


def test_the_limits_themselves_are_allowed() -> None:
    launched(shared_memory=227 * 1024 - 1000, block=(1024, 1, 1)).check(DEVICE)
    launched(grid=(2**31 - 1, 2, 1), cluster=(1, 1, 1)).check(DEVICE)
    launched(grid=(16, 1, 1), cluster=(16, 1, 1)).check(DEVICE)


@pytest.mark.parametrize("target", ["sm_100", "sm_90a", ""])
def test_ptx_runs_on_its_own_architecture_only(target: str) -> None:
    launch = Launch("", replace(KERNEL, target=target), SHAPE, ())
    with pytest.raises(WrongTargetError, match="the device is sm_100a"):
        launch.check(DEVICE)
