"""Reductions of tensors by boxes: what is combined, and types that are refused."""

from __future__ import annotations

import pytest
import torch

from flexfa4.emulator.failures.copies import ReductionTypeError
from tests.copy_programs import STORE, alone, numbers, pattern, store_box
from tests.tensor_maps import CODES, FLUSHED_F32, Boxed, aligned_tensor

REDUCTIONS = {
    "add": lambda a, b: a + b,
    "min": torch.minimum,
    "max": torch.maximum,
    "and": torch.bitwise_and,
    "or": torch.bitwise_or,
    "xor": torch.bitwise_xor,
}


@pytest.mark.parametrize(
    "name,dtype",
    [
        *(("add", d) for d in (torch.int32, torch.float32, torch.float16, torch.bfloat16)),
        *((n, d) for n in ("min", "max") for d in (torch.int32, torch.int64, torch.float16)),
        *((n, d) for n in ("and", "or", "xor") for d in (torch.int32, torch.int64)),
    ],
)
def test_a_box_is_combined_with_the_tensor(name: str, dtype: torch.dtype) -> None:
    # bits of 64 are unsigned: an H200 refuses the others, too
    code = CODES[torch.uint64] if name in ("and", "or", "xor") and dtype.itemsize == 8 else None
    data = aligned_tensor((numbers((8, 32), torch.int32) - 130).to(dtype))
    boxed = Boxed(data, (16, 4), code=code)
    first = (16, 6)
    before = boxed.tensor.clone()
    room, given = pattern(boxed, first)
    store_box(boxed, first, room, red="." + name, schedule="random")
    expected = before.clone()
    inside = (slice(6, 8), slice(16, 32))
    expected[inside] = REDUCTIONS[name](before[inside], given[inside])
    assert torch.equal(boxed.tensor, expected)


def test_numbers_are_counted_up_and_down_to_a_bound() -> None:
    start = torch.tensor([[0, 5, 6, 7, 3, 0, 9, 1]], dtype=torch.int32)
    bound = torch.tensor([0, 5, 5, 9, 0, 4, 9, 4], dtype=torch.int32)
    room = bytes(bound.view(torch.uint8).tolist()) + bytes(96)
    for name, expected in (
        ("inc", [0, 0, 0, 8, 0, 1, 0, 2]),
        ("dec", [0, 4, 5, 6, 0, 4, 8, 0]),
    ):
        boxed = Boxed(aligned_tensor(start).view(torch.uint32), (8, 1))
        store_box(boxed, (0, 0), room, red="." + name)
        assert boxed.tensor.view(torch.int32).tolist() == [expected]


def test_sums_flush_subnormal_numbers_where_the_map_says_so() -> None:
    tiny = torch.tensor([[1e-44, -1e-44, 1.0, 2e-38]])
    room = bytes(tiny.view(torch.uint8).flatten().tolist()) + bytes(112)
    kept, flushed = (aligned_tensor(tiny) for _ in range(2))
    store_box(Boxed(kept, (4, 1)), (0, 0), room, red=".add")
    assert torch.equal(kept, tiny + tiny)
    store_box(Boxed(flushed, (4, 1), code=FLUSHED_F32), (0, 0), room, red=".add")
    assert flushed.tolist() == [[0.0, 0.0, 2.0, (tiny + tiny)[0, 3].item()]]
    assert str(flushed[0, 1].item()) == "-0.0"


@pytest.mark.parametrize(
    "name,dtype",
    [
        ("min", torch.float32), ("add", torch.float64), ("add", torch.int64), ("inc", torch.int32),
        ("xor", torch.int64),
        ("and", torch.float32), ("add", torch.uint16), ("max", torch.uint8),
    ],
)  # fmt: skip
def test_other_reductions_are_refused(name: str, dtype: torch.dtype) -> None:
    code = STORE.format(
        name="cp.reduce.async.bulk.tensor", rank=2, red="." + name, coordinates="0, 0", at=0
    )
    with pytest.raises(ReductionTypeError, match=rf"\.{name} of elements of type"):
        alone(code, Boxed(aligned_tensor(torch.zeros(4, 16).to(dtype)), (16, 1)))
