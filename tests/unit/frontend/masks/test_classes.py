"""Classes: equal masks share one where that can be seen, different masks never do."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from flexfa4.frontend.binding import BoundGraph
from flexfa4.frontend.evaluate import Program, Values
from flexfa4.frontend.masks import classes as module
from flexfa4.frontend.masks.classes import Classes, classes_of
from flexfa4.frontend.masks.grid import MaskSize
from flexfa4.frontend.sizes import Sizes
from flexfa4.frontend.tracing.trace import resolve


@dataclass(frozen=True)
class Traced:
    """A mask function with the classes that are found for it."""

    function: Callable[..., Any]
    size: MaskSize = field(default_factory=lambda: MaskSize(4, 6, 9, 8))

    @property
    def bound(self) -> BoundGraph:
        return resolve(self.function, "mask")

    @property
    def values(self) -> Values:
        sizes = Sizes(self.size.b, self.size.h, self.size.h, self.size.q_len, self.size.kv_len)
        return Values.of(self.bound, sizes, device=torch.device("cpu"))

    def classes(self) -> Classes:
        return classes_of(self.bound.graph, self.values, self.size)

    def dense(self) -> torch.Tensor:
        """Return the mask of each batch and head, ``(b, h, lanes)``."""
        (mask,) = Program((self.bound.graph.root,)).run(self.values, self.size.lanes())
        shape = self.size.lanes().shape
        return torch.as_tensor(mask).expand(shape).flatten(2)


LENS = torch.tensor([3, 5, 3, 8])
WINDOWS = torch.tensor([1.5, math.nan, 1.5, math.nan, -0.0, 0.0])
IDS = torch.tensor([0, 1, 0, 2])[:, None] + torch.arange(9) // 3
_tables = torch.rand(2, 3, 9, 8, generator=torch.Generator().manual_seed(0)) < 0.5
TABLE = _tables[[0, 0, 1, 0]][:, [0, 1, 1, 2, 1, 0]]
CODES = torch.tensor([[1, 2], [3, 4], [1, 2], [1, 5], [3, 4], [1, 2]])
PADDED = torch.nn.functional.pad(IDS[[0, 0, 0, 1]], (0, 3))
PADDED[2, 11] = 7  # beyond the lengths

# masks, and the class of each batch or head
BY_BATCH = {
    "lengths": (lambda b, h, q, kv: kv < LENS[b], [0, 1, 0, 2]),
    "wrapped": (lambda b, h, q, kv: kv < LENS[-b - 1], [0, 1, 2, 1]),
    "documents": (lambda b, h, q, kv: IDS[b, q] == IDS[b, kv], [0, 1, 0, 2]),
    "documents by name": (lambda b, h, q, kv: IDS[b, q] > 1, [0, 1, 0, 2]),
    "wrapped documents": (lambda b, h, q, kv: IDS[-b - 1, q] == 1, [0, 1, 2, 1]),
    "offset": (lambda b, h, q, kv: q + b // 2 >= kv, [0, 0, 1, 1]),
    "condition": (lambda b, h, q, kv: (b == 2) | (q >= kv), [0, 0, 1, 0]),
    "padding": (lambda b, h, q, kv: PADDED[b, q] == kv, [0, 0, 0, 1]),
    "shifted slice": (lambda b, h, q, kv: IDS[b // 2 * 2, (q + b % 2) % 9] == 1, [0, 1, 0, 1]),
}
BY_HEAD = {
    "groups": (lambda b, h, q, kv: (h // 2 == 1) & (q >= kv), [0, 0, 1, 1, 0, 0]),
    "floats": (lambda b, h, q, kv: q - kv < WINDOWS[h], [0, 1, 0, 1, 2, 3]),
    "slices": (lambda b, h, q, kv: TABLE[0, h, q, kv], [0, 1, 1, 2, 1, 0]),
    "turned slices": (lambda b, h, q, kv: TABLE[0, h, kv, q % 8], [0, 1, 1, 2, 1, 0]),
    "vectors": (lambda b, h, q, kv: (CODES[h] * CODES[q % 6]).sum() > kv, [0, 1, 0, 2, 1, 0]),
}


@pytest.mark.parametrize("name", BY_BATCH)
def test_batches_that_share_a_mask_are_one_class(name: str) -> None:
    function, classes = BY_BATCH[name]
    found = Traced(function, MaskSize(4, 1, 9, 8)).classes()
    assert found.of.flatten().tolist() == classes
    assert found.members == tuple((classes.index(c), 0) for c in range(len(found)))


@pytest.mark.parametrize("name", BY_HEAD)
def test_heads_that_share_a_mask_are_one_class(name: str) -> None:
    function, classes = BY_HEAD[name]
    found = Traced(function, MaskSize(1, 6, 9, 8)).classes()
    assert found.of.flatten().tolist() == classes
    assert found.members == tuple((0, classes.index(c)) for c in range(len(found)))


MASKS = [function for function, _ in (*BY_BATCH.values(), *BY_HEAD.values())]


@given(st.lists(st.sampled_from(MASKS), min_size=2, max_size=3), st.sampled_from("&|^"))
def test_equal_classes_have_equal_masks(parts: list[Callable[..., Any]], how: str) -> None:
    def mask(b: Any, h: Any, q: Any, kv: Any) -> Any:
        seen = parts[0](b, h, q, kv)
        for part in parts[1:]:
            other = part(b, h, q, kv)
            seen = seen & other if how == "&" else seen | other if how == "|" else seen ^ other
        return seen

    traced = Traced(mask)
    found, dense = traced.classes(), traced.dense()
    assert found.of.shape == (4, 6) and found.of.dtype is torch.int64
    firsts = []
    for c, (b, h) in enumerate(found.members):
        same = found.of == c
        assert torch.equal(dense[same], dense[b, h].expand(int(same.sum()), -1))
        firsts.append(same.flatten().tolist().index(True))
        assert firsts[-1] == b * 6 + h
    assert firsts == sorted(firsts)
    batches, heads = found.members_on(dense.device)
    assert tuple(zip(batches.tolist(), heads.tolist(), strict=True)) == found.members


def test_batch_and_head_together_make_the_classes_of_both() -> None:
    found = Traced(lambda b, h, q, kv: TABLE[b, h, q, kv]).classes()
    rows, columns = [0, 0, 1, 0], [0, 1, 1, 2, 1, 0]
    assert found.of.tolist() == [[3 * r + c for c in columns] for r in rows]


def test_a_mask_without_batch_and_head_is_one_class_whatever_the_lengths() -> None:
    found = Traced(lambda b, h, q, kv: q >= kv, MaskSize(1, 1, 1 << 40, 1 << 40)).classes()
    assert found.of.tolist() == [[0]] and found.members == ((0, 0),)


def test_without_queries_all_slices_are_equal() -> None:
    found = Traced(BY_BATCH["documents by name"][0], MaskSize(4, 1, 0, 8)).classes()
    assert found.of.flatten().tolist() == [0, 0, 0, 0]


def test_no_batches_have_no_class() -> None:
    found = Traced(lambda b, h, q, kv: kv < LENS[b], MaskSize(0, 1, 9, 8)).classes()
    assert found.of.shape == (0, 1) and found.members == () and len(found) == 0
    assert [t.dtype for t in found.members_on(torch.device("cpu"))] == [torch.int64] * 2
    assert found.of_on(torch.device("meta")).shape == (0, 1)


def test_classes_on_a_device_are_those_on_the_cpu() -> None:
    device = torch.device("cpu")
    for rows in (1, 2, 3):
        found = Traced(BY_BATCH["documents by name"][0], MaskSize(rows, 1, 8, 8)).classes()
        on_device = found.of_on(device)
        assert len(found) == min(rows, 2)  # one, as many as there are, and fewer
        assert torch.equal(on_device, found.of) and on_device.dtype is torch.int64


class Resting(TorchDispatchMode):
    """Records which operations of a device are called; where it is, "meta" stands for it."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(
            isinstance(a, torch.Tensor) and a.is_meta for a in (*args, *(kwargs or {}).values())
        ):
            self.names.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def test_a_device_is_not_asked_about_what_captures_no_tensors() -> None:
    traced = Traced(lambda b, h, q, kv: q + b // 2 + h % 2 >= kv)
    values = replace(traced.values, device=torch.device("meta"))
    with Resting() as resting:
        found = classes_of(traced.bound.graph, values, traced.size)
    assert torch.equal(found.of, traced.classes().of) and not resting.names


def test_slices_that_several_loads_read_are_looked_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked: list[torch.Size] = []
    checksums = module._Slices._checksums

    def noted(self: Any) -> torch.Tensor:
        looked.append(self.tensor.shape)
        return checksums(self)

    monkeypatch.setattr(module._Slices, "_checksums", noted)
    same = Traced(lambda b, h, q, kv: IDS[b, q] == IDS[b, kv], MaskSize(4, 1, 9, 9))
    assert same.classes().of.flatten().tolist() == [0, 1, 0, 2] and looked == [(4, 9)]
    looked.clear()
    other = Traced(BY_BATCH["documents"][0], MaskSize(4, 1, 9, 8))
    assert other.classes().of.flatten().tolist() == [0, 1, 0, 2]
    assert sorted(looked) == [(4, 8), (4, 9)]  # of which keys beyond the last are not read


def test_slices_in_any_order_are_compared_with_the_first_like_them() -> None:
    rows = torch.tensor([3, 4, 5, 3, 3, 5])[:, None].repeat(1, 9)
    found = Traced(lambda b, h, q, kv: rows[h, q] > kv, MaskSize(1, 6, 9, 8)).classes()
    assert found.of.flatten().tolist() == [0, 1, 2, 0, 0, 2]
    turned = Traced(lambda b, h, q, kv: rows[5 - h, q] > kv, MaskSize(1, 6, 9, 8)).classes()
    assert turned.of.flatten().tolist() == [0, 1, 1, 0, 2, 1]


def differ_at_first(dtype: torch.dtype) -> torch.Tensor:
    """Return four rows of nine elements, of which the second and the last are equal."""
    rows = torch.zeros(3, 9)
    rows[[0, 2], [0, 1]] = 1
    return rows[[0, 1, 2, 1]].to(dtype)


@pytest.mark.parametrize("chunk", [1, 5, 16, 1 << 20])
@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.uint8, torch.int64, torch.float16, torch.int32]
)
def test_slices_are_compared_piece_by_piece(
    chunk: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_CHUNK", chunk)
    table = differ_at_first(dtype)
    found = Traced(lambda b, h, q, kv: table[b, q] != 0, MaskSize(4, 1, 9, 8)).classes()
    assert found.of.flatten().tolist() == [0, 1, 2, 1]


def test_equal_checksums_of_different_slices_do_not_make_them_equal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module._Slices, "_checksums", lambda self: torch.zeros_like(self.which))
    monkeypatch.setattr(module, "_CHUNK", 5)
    table = differ_at_first(torch.int64)
    found = Traced(lambda b, h, q, kv: table[b, q] != 0, MaskSize(4, 1, 9, 8)).classes()
    assert found.of.flatten().tolist() == [0, 1, 2, 3]
