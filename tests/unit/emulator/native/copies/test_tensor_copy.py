"""Copies between tensors and shared memory: loads, stores, what they are given."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flexfa4.emulator import EmulationError
from flexfa4.emulator.failures.copies import (
    CoordinateError,
    CopyAlignmentError,
    ExitedSourceError,
    TensorMapPlaceError,
    TensorRankError,
)
from flexfa4.emulator.failures.memory import (
    BarrierBytesError,
    GlobalBoundsError,
    InFlightError,
    OutOfBoundsError,
    UninitialisedReadError,
)
from flexfa4.emulator.failures.sync import NoMbarrierError
from tests.copy_programs import (
    DECLARE,
    GROUP,
    LOAD,
    REGISTERS,
    ROOM,
    SCHEDULES,
    START,
    alone,
    as_loaded,
    load2,
    load_box,
    numbers,
    pattern,
    store2,
    store_box,
)
from tests.ptx_programs import run_instruction
from tests.tensor_maps import TF32, Boxed, aligned_bytes, aligned_tensor

SHAPES = [
    ((64,), (16,), (8,)),
    ((32, 64), (16, 8), (8, 3)),
    ((6, 12, 32), (16, 4, 3), (16, 5, 2)),
    ((3, 4, 5, 24), (8, 3, 2, 2), (8, 1, 2, 1)),
    ((2, 3, 3, 4, 16), (8, 2, 2, 2, 2), (0, 1, 1, 1, 0)),
]


@pytest.mark.parametrize("shape,box,first", SHAPES)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_box_lies_dense_row_after_row(
    shape: tuple[int, ...], box: tuple[int, ...], first: tuple[int, ...], schedule: str
) -> None:
    boxed = Boxed(numbers(shape, torch.int16).view(torch.uint16), box)
    assert load_box(boxed, first, schedule=schedule) == as_loaded(boxed, first)


def test_strides_are_those_of_the_map() -> None:
    data = numbers((4, 6, 8, 16), torch.int32)[1:, ::2, :5, :12]
    boxed = Boxed(data, (8, 4, 3, 2))
    assert load_box(boxed, (4, 2, 1, 1)) == as_loaded(boxed, (4, 2, 1, 1))


def test_tf32_is_rounded_to_nearest_even() -> None:
    bits = {  # as an H200 loads them
        0x3F800001: 0x3F800000, 0x3F801000: 0x3F800000, 0x3F803000: 0x3F804000,
        0x3F801001: 0x3F802000, 0xBF801800: 0xBF802000, 0x00000001: 0x00000000,
        0x80012345: 0x80012000, 0x007FFFFF: 0x00800000, 0xFF7FFFFF: 0xFF800000,
        0x7F800000: 0x7F800000, 0x7FC12345: 0x7FFFE000, 0xFF812345: 0x7FFFE000,
    }  # fmt: skip
    data = aligned_tensor(torch.tensor([*bits, 0, 0, 0, 0]).to(torch.uint32).view(1, 16))
    room = load_box(Boxed(data, (16, 1), code=TF32), (0, 0))
    found = torch.frombuffer(bytearray(room[:48]), dtype=torch.uint32).tolist()
    assert found == list(bits.values())


def test_the_destination_is_poison_until_the_copy_is_complete() -> None:
    code = (
        START + "mbarrier.init.shared.b64 [b], 1;"
        "mbarrier.arrive.expect_tx.shared.b64 _, [b], 32;"
        + LOAD.format(rank=1, at=0, coordinates="0")
        + "ld.shared.b32 k, [a];"
    )
    boxed = Boxed(numbers((64,), torch.float16), (16,))
    setting: dict[str, Any] = {
        "declare": DECLARE, "registers": REGISTERS, "active": 1,
        "memory": {"map": aligned_bytes(boxed.encode()), "data": boxed.tensor},
    }  # fmt: skip
    with pytest.raises(InFlightError):
        run_instruction(code, options={"schedule": "late"}, **setting)
    run_instruction(code, options={"schedule": "eager"}, **setting)


MISTAKES: list[tuple[str, type[EmulationError], str]] = [
    (load2(at=64, first="0, 0"), CopyAlignmentError, "0x840"),
    (load2(at=0, first="4, 0"), CoordinateError, "coordinate 4 of axis 0"),
    (load2(at=0, first="-3, 0"), CoordinateError, "here of 8 elements"),
    (load2(at=ROOM, first="0, 0"), OutOfBoundsError, ""),
    (LOAD.format(rank=3, at=0, coordinates="0, 0, 0"), TensorRankError, "3 coordinates .* rank 2"),
    (load2(at=0, first="0, 0").replace("[b]", "[b+8]"), NoMbarrierError, ""),
    (load2(at=0, first="0, 0").replace("[a+0]", "[b+0]"), BarrierBytesError, ""),
    (load2(at=0, first="0, 0").replace("map", "map+32"), TensorMapPlaceError, "multiples of 64"),
    (
        "cvta.shared.u64 x, room;" + load2(at=0, first="0, 0").replace("map", "x"),
        TensorMapPlaceError,
        "shared",
    ),
]


@pytest.mark.parametrize("code,error,report", MISTAKES)
def test_a_load_that_cannot_be_is_refused(
    code: str, error: type[EmulationError], report: str
) -> None:
    with pytest.raises(error, match=report or None):
        alone(code)


def test_rows_outside_of_allocations_are_refused() -> None:
    elsewhere = numbers((9, 16), torch.float16)
    with pytest.raises(GlobalBoundsError, match="reads 32 bytes"):
        alone(load2(at=0, first="0, 0"), memory={"data": elsewhere})


@pytest.mark.parametrize("shape,box,first", SHAPES)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_box_is_stored_from_where_it_would_be_loaded(
    shape: tuple[int, ...], box: tuple[int, ...], first: tuple[int, ...], schedule: str
) -> None:
    boxed = Boxed(numbers(shape, torch.bfloat16), box)
    room, stored = pattern(boxed, first)
    store_box(boxed, first, room, schedule=schedule)
    assert torch.equal(boxed.tensor, stored)


def test_what_is_outside_of_the_tensor_need_not_be_written() -> None:
    boxed = Boxed(numbers((32, 64), torch.float16), (16, 8))
    room, stored = pattern(boxed, (0, 30))
    store_box(boxed, (0, 30), room[: 2 * 32 + 64])
    assert torch.equal(boxed.tensor, stored)
    with pytest.raises(UninitialisedReadError):
        store_box(boxed, (0, 8), room[: 2 * 32 + 64])


@pytest.mark.parametrize(
    "code,error",
    [
        (store2(at=64, first="0, 0"), CopyAlignmentError),
        (store2(at=0, first="4, 0"), CoordinateError),
        (store2(at=0, first="-8, 0"), CoordinateError),
        (store2(at=0, first="0, -1"), CoordinateError),
        (store2(at=ROOM, first="0, 0"), OutOfBoundsError),
        (store2(at=0, first="0, 0") + GROUP, UninitialisedReadError),
    ],
)
def test_a_store_that_cannot_be_is_refused(code: str, error: type[EmulationError]) -> None:
    with pytest.raises(error):
        alone(code)


def test_a_store_that_reads_after_the_end_of_its_block_is_refused() -> None:
    code = store2(at=0, first="0, 0")
    # nobody can wait for what is not committed
    alone(code, options={"schedule": "late", "check": ()})
    with pytest.raises(ExitedSourceError, match="have exited"):
        alone(code + "cp.async.bulk.commit_group;", options={"schedule": "late"})


def test_a_store_to_a_tensor_that_is_not_allocated_is_refused() -> None:
    elsewhere = numbers((9, 16), torch.float16)
    with pytest.raises(GlobalBoundsError, match="writes 32 bytes"):
        alone(store2(at=0, first="0, 0"), memory={"data": elsewhere})


def test_a_prefetch_changes_nothing_wherever_it_points() -> None:
    code = "cp.async.bulk.prefetch.tensor.2d.L2.global.tile [map, {0, 100}];"
    alone(code, memory={"data": numbers((9, 16), torch.float16)})
