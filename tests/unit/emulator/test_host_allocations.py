"""Which addresses belong to a kernel: registered ranges, overlapping ones too."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexfa4.emulator.host.allocations import Allocations
from flexfa4.emulator.host.errors import UnregisteredTensorError

RANGES = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 30)), max_size=8)


def registered(ranges: list[tuple[int, int]]) -> Allocations:
    allocations = Allocations()
    for start, nbytes in ranges:
        allocations.register(start, nbytes, f"{start}+{nbytes}", None)
    return allocations


@given(RANGES, st.integers(0, 99), st.integers(1, 20))
def test_bytes_are_found_where_one_range_holds_them_all(
    ranges: list[tuple[int, int]], address: int, nbytes: int
) -> None:
    found = registered(ranges).find(address, nbytes)
    held = [(s, n) for s, n in ranges if s <= address and address + nbytes <= s + n]
    assert (found is not None) == bool(held)
    assert found is None or (found.start, found.stop - found.start) in held


@given(RANGES, st.data())
def test_a_released_range_is_gone_and_the_others_stay(
    ranges: list[tuple[int, int]], data: st.DataObject
) -> None:
    allocations = registered(ranges)
    distinct = sorted(set(ranges))
    assert len(allocations) == len(distinct)
    if distinct:
        gone = data.draw(st.sampled_from(distinct))
        allocations.release(*gone)
        distinct.remove(gone)
        with pytest.raises(UnregisteredTensorError, match="bytes at"):
            allocations.release(*gone)
    assert sorted((a.start, a.stop - a.start) for a in allocations) == distinct
    for start, nbytes in distinct:
        assert allocations.find(start, nbytes)


def test_a_range_keeps_its_owner_alive_and_its_first_name() -> None:
    allocations, owner = Allocations(), object()
    first = allocations.register(16, 4, "first", owner)
    assert allocations.register(16, 4, "second", object()) is first
    assert (first.owner, first.name) == (owner, "first")


def test_the_nearest_range_helps_to_explain_a_wrong_address() -> None:
    allocations = registered([(100, 10), (200, 10)])
    names = {address: allocations.nearest(address) for address in (0, 105, 112, 190, 999)}
    assert {address: near.start for address, near in names.items() if near} == {
        0: 100,
        105: 100,
        112: 100,
        190: 200,
        999: 200,
    }
    assert Allocations().nearest(3) is None


def test_cleared_allocations_hold_nothing() -> None:
    allocations = registered([(100, 10)])
    allocations.clear()
    assert (len(allocations), allocations.find(100)) == (0, None)
