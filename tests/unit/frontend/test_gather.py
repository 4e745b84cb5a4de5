"""Gathering: what torch's own indexing gives, for any strides, types and shapes of indices."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flexfa4.frontend.gather import gather, taken

TYPES = (
    torch.bool, torch.uint8, torch.int32, torch.int64, torch.uint16, torch.uint64, torch.bfloat16,
    torch.float32, torch.float64, torch.float8_e4m3fn,
)  # fmt: skip
LAYOUTS = {
    "contiguous": lambda t: t,
    "permuted": lambda t: t.permute(*reversed(range(t.dim()))).contiguous().permute(
        *reversed(range(t.dim()))
    ),
    "expanded": lambda t: t[:1].expand_as(t),
    "every second": lambda t: t.repeat_interleave(2, -1)[..., ::2],
    "a part": lambda t: torch.cat((t, t, t))[t.shape[0] : 2 * t.shape[0]],
}  # fmt: skip


@st.composite
def reads(draw: st.DrawFn) -> tuple[torch.Tensor, list[torch.Tensor | int]]:
    """Draw a tensor and an index for each of its dimensions."""
    rank = draw(st.integers(1, 4))
    shape = [draw(st.integers(1, 5)) for _ in range(rank)]
    numbers = torch.arange(torch.Size(shape).numel()).view(shape)
    tensor = LAYOUTS[draw(st.sampled_from(sorted(LAYOUTS)))](numbers)
    indices: list[torch.Tensor | int] = []
    for size in shape:
        within = st.integers(-size, size - 1)
        if draw(st.booleans()):
            indices.append(draw(within))
            continue
        axes = [draw(st.sampled_from((1, n))) for n in (2, 3, 4)][draw(st.integers(0, 3)) :]
        count = torch.Size(axes).numel()
        values = draw(st.lists(within, min_size=count, max_size=count))
        indices.append(torch.tensor(values, dtype=torch.int64).view(axes))
    return tensor, indices


@given(reads(), st.sampled_from(TYPES))
def test_elements_are_those_of_indexing(
    read: tuple[torch.Tensor, list[torch.Tensor | int]], dtype: torch.dtype
) -> None:
    tensor, indices = read[0].to(dtype), read[1]
    found, right = gather(tensor, indices), tensor[tuple(indices)]
    assert found.dtype is dtype and found.shape == right.shape
    assert torch.equal(found.to(torch.float64), right.to(torch.float64))


def test_the_layouts_of_these_tests_keep_their_strides() -> None:
    numbers = torch.arange(6).view(2, 3)
    strides = {name: make(numbers).stride() for name, make in LAYOUTS.items()}
    assert strides["permuted"] == (1, 2) and strides["expanded"] == (0, 1)
    assert strides["every second"] == (6, 2) and strides["a part"] == (3, 1)


def test_numbers_alone_give_a_view() -> None:
    tensor = torch.zeros(3, 4)
    found = gather(tensor, (1, -1))
    assert found.shape == () and found.untyped_storage().data_ptr() == tensor.data_ptr()


@pytest.mark.parametrize("shape", [(0,), (3, 0)])
def test_no_indices_read_nothing_even_of_an_empty_tensor(shape: tuple[int, ...]) -> None:
    none = torch.zeros(0, dtype=torch.int64)
    for tensor in (torch.zeros(shape), torch.zeros(*shape, 2).transpose(0, -1)):
        assert gather(tensor, [none] * tensor.dim()).shape == (0,)


def test_an_index_beyond_the_memory_is_refused_and_not_read() -> None:
    with pytest.raises(IndexError):
        gather(torch.zeros(3), [torch.tensor([3])])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(5,), (3, 5), (2, 3, 5), (0, 5)])
def test_places_along_the_last_dimension_are_taken_in_their_order(
    shape: tuple[int, ...], layout: str
) -> None:
    whole = torch.arange(math.prod(shape)).view(shape)
    tensor = LAYOUTS[layout](whole) if len(shape) > 1 else whole
    for places in ([], [4], [3, 0, 0, 2, 4, 1]):
        at = torch.tensor(places, dtype=torch.int64)
        assert torch.equal(taken(tensor, at), tensor[..., at])
    assert taken(whole[..., :0], at[:0]).shape == (*shape[:-1], 0)
