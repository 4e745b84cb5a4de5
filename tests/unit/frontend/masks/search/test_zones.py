"""Zone maps: bounds hold for any box, are exact where cells are aligned, and tables stay small."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flexfa4.frontend.analysis.intervals import Interval
from flexfa4.frontend.evaluate import Values
from flexfa4.frontend.ir import BOOL, F32, I32, Buffer, DType, Node, const, iota, load
from flexfa4.frontend.masks import limits
from flexfa4.frontend.masks.search.sparse_table import SparseTable
from flexfa4.frontend.masks.search.zones import Zones
from flexfa4.frontend.ops import apply
from tests.leaves import KV, B, Q

TYPES = {
    torch.bool: BOOL,
    **dict.fromkeys(
        (torch.uint8, torch.int8, torch.int16, torch.uint16, torch.int32, torch.int64), I32
    ),
    **dict.fromkeys((torch.float16, torch.bfloat16, torch.float32, torch.float64), F32),
}
INDICES = (apply("add", Q, const(1)), apply("sub", KV, const(3)), apply("mul", Q, KV))


def drawn(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Return random values, NaN and infinities among the floats."""
    g = torch.Generator().manual_seed(seed)
    if not dtype.is_floating_point:
        low = 0 if dtype in (torch.bool, torch.uint8, torch.uint16) else -100
        return torch.randint(low, 2 if dtype is torch.bool else 100, shape, generator=g).to(dtype)
    t = torch.randn(shape, generator=g)
    odd = torch.randint(0, 30, shape, generator=g)
    for i, value in enumerate((math.nan, math.inf, -math.inf)):
        t[odd == i] = value
    return t.to(dtype)


def loaded(tensor: torch.Tensor, indices: tuple[Node, ...], dtype: DType) -> tuple[Node, Values]:
    buffer = Buffer("t", dtype, (None,) * tensor.dim())
    return load(buffer, indices), Values({buffer: tensor})


def check(found: Interval, box: int, part: torch.Tensor) -> None:
    """Check the bounds of one box against all that it reads."""
    lo, hi, nan = (
        end[box].item() if isinstance(end, torch.Tensor) else end
        for end in (found.lo, found.hi, found.nan)
    )
    assert lo <= hi
    assert nan or not part.isnan().any()
    real = part[~part.isnan()]
    assert not real.numel() or (lo <= real.min() and real.max() <= hi)


@given(st.data())
def test_bounds_hold_all_that_a_box_reads(data: st.DataObject) -> None:
    dims = data.draw(st.integers(1, 3))
    shape = tuple(data.draw(st.integers(1, (90, 40, 20)[dims - 1])) for _ in range(dims))
    dtype = data.draw(st.sampled_from(list(TYPES)))
    tensor = drawn(shape, dtype, data.draw(st.integers(0, 99)))
    node, values = loaded(tensor, INDICES[:dims], TYPES[dtype])
    size = data.draw(st.sampled_from((1, 16, 128)))
    zones = Zones(values, (size, size))
    for _ in range(2):  # the tables of the first time serve the second
        ranges, bounds = [], []
        for n in shape:
            pairs = [sorted(data.draw(st.integers(-n, n - 1)) for _ in "ab") for _ in range(4)]
            if data.draw(st.booleans()):
                pairs = [[lo, lo] for lo, _ in pairs]
            if data.draw(st.integers(0, 3)) == 0:
                pairs = [pairs[0]] * 4
                bounds.append(Interval(*pairs[0]))
            else:
                bounds.append(Interval(*torch.tensor(pairs).T))
            ranges.append(pairs)
        found = zones.load(node, bounds)
        assert found is not None
        for box in range(4):
            part = tensor.to(torch.float64)
            for d, pairs in enumerate(ranges):
                lo, hi = pairs[box]
                part = part.index_select(d, torch.arange(lo, hi + 1) % shape[d])
            check(found, box, part)


@given(st.integers(0, 99), st.sampled_from((16, 32, 64, 96, 128, 256)), st.integers(0, 5))
def test_bounds_are_exact_for_blocks_and_for_boxes_of_a_tree_of_them(
    seed: int, block: int, level: int
) -> None:
    tensor = drawn((3000,), torch.int16, seed)
    node, values = loaded(tensor, (Q,), I32)
    start = torch.arange(0, 3000, block << level)
    stop = (start + (block << level)).clamp(max=3000)
    found = Zones(values, (block, block)).load(node, [Interval(start, stop - 1)])
    assert found is not None
    parts = [tensor[a:b] for a, b in zip(start, stop, strict=True)]
    assert found.lo.tolist() == [int(p.min()) for p in parts]
    assert found.hi.tolist() == [int(p.max()) for p in parts]


def test_a_table_of_blocks_is_bounded_entry_by_entry() -> None:
    tensor = drawn((40, 30), torch.bool, 0)
    node, values = loaded(
        tensor, (apply("floordiv", Q, const(128)), apply("floordiv", KV, const(128))), BOOL
    )
    rows, columns = (
        i.flatten() for i in torch.meshgrid(torch.arange(40), torch.arange(30), indexing="ij")
    )
    found = Zones(values).load(node, [Interval(rows, rows + 0), Interval(columns, columns)])
    assert found is not None
    assert torch.equal(found.lo, tensor.flatten())
    assert torch.equal(found.hi, tensor.flatten())


def test_negative_indices_count_from_the_end() -> None:
    node, values = loaded(torch.arange(20, 30), (apply("sub", Q, const(9)),), I32)
    index = Interval(torch.tensor([-9, -3, -2, 4]), torch.tensor([-7, -1, 1, 5]))
    found = Zones(values, (8, 8)).load(node, [index])
    assert found is not None
    assert found.lo.tolist() == [21, 27, 20, 24]
    assert found.hi.tolist() == [23, 29, 29, 25]
    assert Zones(values).load(node, [Interval(-3, -2)]) == Interval(27, 28)


def test_a_part_of_a_range_outside_the_tensor_is_left_out() -> None:
    node, values = loaded(torch.arange(10), (Q,), I32)
    found = Zones(values).load(node, [Interval(torch.tensor([2, 8]), torch.tensor([30, 99]))])
    assert found is not None
    assert found.hi.tolist() == [9, 9]
    assert Zones(values).load(node, [Interval(4, 1 << 62)]) == Interval(4, 9)


def test_ends_are_in_order_where_there_is_nothing_but_nan() -> None:
    node, values = loaded(torch.tensor([1.0, math.nan, math.nan, 2.0]), (Q,), F32)
    found = Zones(values, (1, 1)).load(node, [Interval(torch.tensor([0, 1]), torch.tensor([0, 2]))])
    assert found is not None
    assert found.lo.tolist() == [1.0, -math.inf]
    assert found.hi.tolist() == [1.0, math.inf]
    assert found.nan.tolist() == [False, True]


def test_a_vector_is_bounded_over_its_whole_axis() -> None:
    tensor = drawn((50, 7), torch.int32, 3)
    node, values = loaded(tensor, (Q, iota(7)), I32)
    q = torch.tensor([0, 9, 20])
    found = Zones(values, (1, 1)).load(node, [Interval(q, q), Interval(0, 6)])
    assert found is not None
    assert found.hi.tolist() == tensor[q].amax(1).tolist()


def test_one_box_for_all_gives_numbers() -> None:
    tensor = drawn((5, 60), torch.float32, 1)
    tensor[3, 7] = math.nan
    node, values = loaded(tensor, (B, KV), F32)
    part = tensor[3, 5:30]
    real = part[~part.isnan()]
    found = Zones(values).load(node, [Interval(3, 3), Interval(5, 29)])
    assert found == Interval(float(real.min()), float(real.max()), True)


def test_nothing_is_known_of_an_empty_tensor() -> None:
    node, values = loaded(torch.empty(0, dtype=torch.int64), (Q,), I32)
    assert Zones(values).load(node, [Interval(0, 5)]) is None


def test_loads_of_one_tensor_share_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    node, values = loaded(torch.arange(500), (Q,), I32)
    made: list[int] = []
    monkeypatch.setattr(SparseTable, "of", _counted(made, SparseTable.of))
    zones, ends = Zones(values), Interval(torch.tensor([0, 128]), torch.tensor([127, 255]))
    for index in (Q, KV, Q):
        zones.load(load(node.attr, (index,)), [ends])
    assert len(made) == 1


def _counted(made: list[int], function: object) -> object:
    def counted(*args: object) -> object:
        made.append(1)
        return function(*args)  # type: ignore[operator]

    return counted


def test_tables_are_much_smaller_than_long_tensors() -> None:
    sizes = []
    for shape, dtype in (((1 << 20,), torch.int64), ((2048, 2048), torch.bool)):
        node, values = loaded(torch.zeros(shape, dtype=dtype), (Q, KV)[: len(shape)], TYPES[dtype])
        zones = Zones(values)
        ends = Interval(torch.tensor([0, 128]), torch.tensor([127, 255]))
        zones.load(node, [ends] * len(shape))
        (table,) = zones._tables.values()
        assert isinstance(table, SparseTable)
        sizes.append(
            (table.extremes.low.nbytes + table.extremes.high.nbytes) / values_bytes(values)
        )
    assert max(sizes) < 0.7


def values_bytes(values: Values) -> int:
    return sum(t.nbytes for t in values.tensors.values())


def test_cells_grow_until_a_table_is_affordable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MOST_TABLE_BYTES", 2000)
    monkeypatch.setattr(limits, "MOST_TABLE_TIMES", 0)
    tensor = drawn((6, 50, 40), torch.int64, 5)
    node, values = loaded(tensor, (B, Q, KV), I32)
    zones = Zones(values, (16, 16))
    corners = list(itertools.product(range(6), (0, 16, 32), (0, 16)))
    b, q, kv = torch.tensor(corners).T
    found = zones.load(node, [Interval(b, b), Interval(q, q + 15), Interval(kv, kv + 15)])
    (table,) = zones._tables.values()
    assert isinstance(table, SparseTable)
    assert table.extremes.low.nbytes <= 1000
    assert found is not None
    for box, (i, j, k) in enumerate(corners):
        check(found, box, tensor[i, j : j + 16, k : k + 16].double())
