"""Tables of members: equal to the search in lists on every lane, and read once."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flexfa4.frontend.evaluate import Program, Values
from flexfa4.frontend.ir import I32, Buffer, Node, const, iota, load, topological
from flexfa4.frontend.masks import limits
from flexfa4.frontend.masks.grid import MaskSize
from flexfa4.frontend.masks.search.membership import tabulated
from flexfa4.frontend.ops import apply
from tests.leaves import KV, B, Q

LISTS = Buffer("lists", I32, (None, None, 4))
FIRST = Buffer("first", I32, (4, None))
SIZE = MaskSize(2, 1, 40, 30)
GROUP = apply("floordiv", Q, const(10))
LISTED = load(LISTS, (B, GROUP, iota(4)))
TILE = apply("floordiv", KV, const(3))


def any_(condition: Node) -> Node:
    return apply("any", condition)


def tables(root: Node, values: Values) -> dict[Buffer, torch.Tensor]:
    """Return the tables that a mask gets."""
    _, having = tabulated(root, values, SIZE)
    return {b: t for b, t in having.tensors.items() if b not in values.tensors}


LOOKUPS = {
    "any equal": any_(apply("eq", LISTED, TILE)),
    "the other way around": any_(apply("eq", TILE, LISTED)),
    "all different": apply("all", apply("ne", LISTED, TILE)),
    "of any number": any_(apply("eq", LISTED, apply("mul", apply("sub", KV, Q), const(1 << 61)))),
    "another axis": any_(apply("eq", load(FIRST, (iota(4), Q)), KV)),
    "two": apply(
        "xor", any_(apply("eq", LISTED, TILE)), any_(apply("eq", load(FIRST, (iota(4), Q)), TILE))
    ),
}


@pytest.mark.parametrize("name", LOOKUPS)
@given(st.integers(0, 99), st.sampled_from(((-1, 10), (-40, 40), (1, 2), (-(1 << 62), 1 << 62))))
def test_a_mask_of_tables_is_the_mask_of_lists(
    name: str, seed: int, numbers: tuple[int, int]
) -> None:
    g = torch.Generator().manual_seed(seed)
    values = Values(
        {
            LISTS: torch.randint(*numbers, (2, 4, 4), generator=g),
            FIRST: torch.randint(*numbers, (4, 40), generator=g).to(torch.int64),
        }
    )
    root = LOOKUPS[name]
    new, having = tabulated(root, values, SIZE)
    (right,), (found,) = (
        Program((r,)).run(v, SIZE.lanes()) for r, v in ((root, values), (new, having))
    )
    shape = (2, 1, 40, 30)
    assert torch.equal(found.expand(shape), right.expand(shape))


def test_a_table_has_no_vectors_and_only_numbers_that_can_be_looked_for() -> None:
    values = Values({LISTS: torch.tensor([-1, 2, 1 << 50, 5]).expand(2, 4, 4)})
    new, _ = tabulated(LOOKUPS["any equal"], values, SIZE)
    assert all(node.length is None for node in topological(new))
    (table,) = tables(LOOKUPS["any equal"], values).values()
    assert table.shape == (2, 4, 10 + 2)  # tiles 0 ... 9, and one on either side
    assert table[0, 0].nonzero().squeeze(1).tolist() == [3, 6]


def test_other_reductions_are_left() -> None:
    values = Values({LISTS: torch.zeros(2, 4, 4, dtype=torch.int64)})
    less = any_(apply("lt", LISTED, TILE))
    both = any_(apply("eq", LISTED, iota(4)))
    part = any_(apply("eq", load(LISTS, (B, GROUP, apply("sub", iota(4), const(1)))), TILE))
    every = apply("all", apply("eq", LISTED, TILE))
    for root in (less, both, part, every):
        assert tabulated(root, values, SIZE) == (root, values)


def test_a_table_beyond_all_proportion_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    values = Values({LISTS: torch.arange(32).view(2, 4, 4)})
    assert tables(LOOKUPS["any equal"], values)
    monkeypatch.setattr(limits, "MOST_TABLE_BYTES", 50)
    monkeypatch.setattr(limits, "MOST_TABLE_TIMES", 0)
    assert not tables(LOOKUPS["any equal"], values)
