"""Labels: a mask of labels equals that of ids on every lane, and labels lie close together."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flexfa4.frontend.evaluate import Program, Values
from flexfa4.frontend.ir import F32, I32, Buffer, Node, const, load
from flexfa4.frontend.lanes import Lanes
from flexfa4.frontend.masks.search.labels import labelled
from flexfa4.frontend.ops import apply
from tests.leaves import KV, B, Q

IDS, OTHER = Buffer("ids", I32, (None,)), Buffer("other", I32, (None,))
BATCHED = Buffer("batched", I32, (None, None))
SAME = apply("eq", load(IDS, (Q,)), load(IDS, (KV,)))


def stretches(lengths: list[int], names: list[int]) -> torch.Tensor:
    """Return each name as often as its length says."""
    return torch.tensor(names).repeat_interleave(torch.tensor(lengths))


def added(before: Values, after: Values) -> list[torch.Tensor]:
    """Return the labels that one has more than the other."""
    return [t for buffer, t in after.tensors.items() if buffer not in before.tensors]


@given(st.data())
def test_a_mask_of_labels_is_the_mask_of_ids(data: st.DataObject) -> None:
    def ids() -> torch.Tensor:
        lengths = data.draw(st.lists(st.integers(1, 12), min_size=3, max_size=8))
        names = [data.draw(st.integers(-2, 3)) for _ in lengths]
        return stretches(lengths, names)

    one, two = ids(), ids()
    batched = torch.stack([one, one.flip(0)])
    values = Values({IDS: one, OTHER: two, BATCHED: batched})
    lanes = Lanes((0, 2), (0, 1), (0, len(one)), (0, len(one)))
    last = apply("sub", KV, const(len(one)))  # a negative index
    root = SAME
    for more in (
        apply("ne", load(BATCHED, (B, Q)), load(BATCHED, (B, last))),
        apply("eq", load(IDS, (Q,)), load(OTHER, (apply("min", KV, const(len(two) - 1)),))),
        apply("eq", load(IDS, (Q,)), const(1)),
        apply("lt", load(IDS, (KV,)), load(IDS, (Q,))),
    ):
        root = apply("xor", root, more)
    new, having = labelled(root, values)
    (right,), (found,) = (Program((r,)).run(v, lanes) for r, v in ((root, values), (new, having)))
    assert torch.equal(found, right)


def test_documents_in_any_order_are_numbered_as_they_appear() -> None:
    values = Values({IDS: stretches([5, 6, 4, 7], [70, 3, 90, -1])})
    new, having = labelled(SAME, values)
    (labels,) = added(values, having)
    assert labels.tolist() == stretches([5, 6, 4, 7], [0, 1, 2, 3]).tolist()
    assert new.op == "eq" and new is not SAME


def test_ids_of_each_batch_are_numbered_by_themselves() -> None:
    ids = torch.stack([stretches([6, 6, 6], order) for order in ([2, 0, 1], [1, 2, 0])])
    values = Values({BATCHED: ids})
    _, having = labelled(apply("eq", load(BATCHED, (B, Q)), load(BATCHED, (B, KV))), values)
    (labels,) = added(values, having)
    assert all(a <= b for line in labels.tolist() for a, b in pairwise(line))


def test_ids_that_come_back_are_numbered_by_first_and_by_last_appearance() -> None:
    values = Values({IDS: stretches([8] * 5, [-1, 7, -1, 4, -1])})
    new, having = labelled(SAME, values)
    first, last = (t[::8].tolist() for t in added(values, having))
    assert first == [0, 1, 0, 2, 0] and last == [2, 0, 2, 1, 2]
    assert new.op == "and"


@pytest.mark.parametrize("ids", [stretches([9, 9, 9], [-4, 2, 2]), torch.arange(50) * 37 % 50])
def test_sorted_ids_and_those_that_change_all_the_time_are_left(ids: torch.Tensor) -> None:
    values = Values({IDS: ids})
    assert labelled(SAME, values) == (SAME, values)


def test_other_comparisons_are_left() -> None:
    level, table = Buffer("level", F32, (None,)), Buffer("table", I32, (None, None))
    three = Buffer("three", I32, (None, None))
    ids = stretches([9, 9, 9], [3, 1, 2])
    values = Values(
        {IDS: ids, level: ids.float(), three: ids.expand(3, 27), table: ids[:, None].expand(27, 27)}
    )
    roots: list[Node] = [
        apply("lt", load(IDS, (Q,)), load(IDS, (KV,))),
        apply("eq", load(IDS, (Q,)), KV),
        apply("eq", load(level, (Q,)), load(level, (KV,))),  # NaN is not equal to itself
        apply("eq", load(table, (Q, KV)), load(table, (KV, Q))),
        apply("eq", load(table, (B, Q)), load(three, (B, KV))),
    ]
    for root in roots:
        assert labelled(root, values) == (root, values)
