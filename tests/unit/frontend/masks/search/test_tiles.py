"""Tiles: kinds equal brute force, and as few lanes are evaluated as it takes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flexfa4.frontend.evaluate import Values
from flexfa4.frontend.ir import BOOL, I32, Buffer, Graph, Node, Scalar, const, load, make_graph
from flexfa4.frontend.ir import scalar as captured
from flexfa4.frontend.masks.grid import EMPTY, FULL, PARTIAL, BlockGrid, MaskSize
from flexfa4.frontend.masks.search import tiles as module
from flexfa4.frontend.masks.search.tiles import Tiles, decide, decide_all, follows_diagonal
from flexfa4.frontend.ops import apply
from tests.brute_force import kinds_of_graph
from tests.leaves import KV, B, H, Q

W = Scalar("w", I32)
TABLE, IDS = Buffer("table", BOOL, (None, None)), Buffer("ids", I32, (None,))
LONGEST = 120
_seeded = torch.Generator().manual_seed(0)
_patches = (torch.rand(8, 8, generator=_seeded) < 0.6).repeat_interleave(15, 0)
VALUES = Values(
    tensors={
        TABLE: _patches.repeat_interleave(15, 1),
        IDS: torch.randint(0, 4, (LONGEST,), generator=_seeded).sort().values,
    },
    scalars={W: 40},
)
AWAY = apply("sub", Q, KV)
CAUSAL = apply("ge", Q, KV)


def every(step: int) -> Node:
    """Return the mask of each `step`-th diagonal."""
    return apply("eq", apply("mod", AWAY, const(step)), const(0))


MASKS = {
    "nothing": const(False),
    "everything": const(True),
    "causal": CAUSAL,
    "window": apply("and", CAUSAL, apply("lt", AWAY, captured(W))),
    "dilated": every(3),
    "diagonal": apply("eq", Q, KV),
    "documents": apply("eq", load(IDS, (Q,)), load(IDS, (KV,))),
    "patches": load(TABLE, (Q, KV)),
    "of keys": apply("lt", load(IDS, (KV,)), const(2)),
    "of queries": apply("lt", Q, captured(W)),
    "of heads": apply("eq", H, const(1)),
    "by head": apply("lt", AWAY, apply("mul", H, const(20))),
    "by batch": apply("xor", apply("eq", B, const(0)), apply("lt", KV, captured(W))),
}


def graph(root: Node) -> Graph:
    return make_graph("mask", root)


def all_tiles(grid: BlockGrid) -> Tiles:
    shape = (grid.size.b, grid.size.h, grid.rows, grid.columns)
    return Tiles(*(i.flatten() for i in torch.meshgrid(*map(torch.arange, shape), indexing="ij")))


@pytest.fixture(params=[True, False], ids=["small chunks", "as it is"])
def limits(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run once with limits that small masks reach."""
    if request.param:
        monkeypatch.setattr(module, "_FEW_LANES", 0)
        monkeypatch.setattr(module, "_CHUNK_LANES", 1000)
        monkeypatch.setattr(module, "_PIECE", 24)


GRIDS = [
    BlockGrid(MaskSize(2, 3, q_len, kv_len), block_size)
    for q_len, kv_len, block_size in (
        (96, 64, (32, 32)), (100, 75, (16, 48)), (1, 90, (16, 16)), (97, 9, (64, 128)),
        (113, 120, (48, 16)),
    )
]  # fmt: skip


@pytest.mark.usefixtures("limits")
@pytest.mark.parametrize("name", MASKS)
def test_kinds_equal_brute_force(name: str) -> None:
    for grid in GRIDS:
        kinds = decide(graph(MASKS[name]), VALUES, all_tiles(grid), grid)
        assert kinds.dtype is torch.int8
        assert torch.equal(kinds, kinds_of_graph(MASKS[name], VALUES, grid).flatten()), grid


@given(st.data())
def test_any_tiles_in_any_order_are_decided(data: st.DataObject) -> None:
    root = MASKS[data.draw(st.sampled_from(sorted(MASKS)))]
    grid = data.draw(st.sampled_from(GRIDS))
    everywhere = all_tiles(grid)
    places = st.lists(st.integers(0, len(everywhere) - 1), max_size=12)
    some = torch.tensor(data.draw(places), dtype=torch.int64)
    kinds = decide(graph(root), VALUES, everywhere[some], grid)
    assert torch.equal(kinds, kinds_of_graph(root, VALUES, grid).flatten()[some])


@pytest.mark.parametrize("name", MASKS)
def test_a_small_grid_is_decided_at_once(name: str) -> None:
    for grid in GRIDS:
        right = kinds_of_graph(MASKS[name], VALUES, grid).flatten(0, 1)
        for members in ([(1, 2)], [(0, 0), (0, 2), (1, 1)]):
            kinds = decide_all(graph(MASKS[name]), VALUES, members, grid)
            assert torch.equal(kinds, right[[3 * b + h for b, h in members]]), grid


# ---- how much is evaluated -----------------------------------------------------------------------


@pytest.fixture
def evaluated(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Collect how many lanes each evaluation covers."""
    lanes: list[int] = []
    run = module._Part.values_seen

    def counted(part: module._Part, *args: object) -> torch.Tensor:
        lanes.append(part.lanes * len(args[2]))  # type: ignore[arg-type]
        return run(part, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "_FEW_LANES", 0)
    monkeypatch.setattr(module._Part, "values_seen", counted)
    yield lanes


SQUARE = BlockGrid(MaskSize(1, 1, 1024, 1024), (128, 128))
TILE = 128 * 128


@pytest.mark.parametrize("step", [2, 3, 4, 5, 7, 8, 16])
@pytest.mark.parametrize("block_size", [(128, 128), (64, 128), (128, 48)])
def test_a_few_lanes_show_that_a_periodic_mask_has_both_values(
    step: int, block_size: tuple[int, int], evaluated: list[int]
) -> None:
    # not invariant along the diagonal for what the analysis knows
    root = apply("eq", apply("mod", Q, const(step)), apply("mod", KV, const(step)))
    grid = BlockGrid(SQUARE.size, block_size)
    kinds = decide(graph(root), VALUES, all_tiles(grid), grid)
    assert kinds.eq(PARTIAL).all()
    assert sum(evaluated) <= (9 + 64) * len(kinds)


def test_tiles_along_a_diagonal_are_decided_once(evaluated: list[int]) -> None:
    far = MaskSize(1, 1, 128 * 50, 128 * 50)
    grid = BlockGrid(far, (128, 128))
    kinds = decide(graph(CAUSAL), VALUES, all_tiles(grid), grid).view(50, 50)
    assert torch.equal(kinds, 1 - (torch.arange(50) - torch.arange(50)[:, None]).sign())
    assert sum(evaluated) <= 99 * (TILE + 64 + 9)


@pytest.mark.usefixtures("evaluated")
def test_a_ragged_tile_is_not_taken_for_a_whole_one_of_its_diagonal() -> None:
    size = MaskSize(1, 1, 50, 50)
    root = apply("lt", AWAY, const(10))  # the last block is full, others on the diagonal are not
    grid = BlockGrid(size, (16, 16))
    kinds = decide(graph(root), VALUES, all_tiles(grid), grid).view(4, 4)
    assert kinds.diagonal().tolist() == [PARTIAL, PARTIAL, PARTIAL, FULL]


def test_what_a_mask_does_not_read_is_evaluated_once(evaluated: list[int]) -> None:
    kinds = decide(graph(apply("lt", KV, const(200))), VALUES, all_tiles(SQUARE), SQUARE)
    assert kinds.view(8, 8)[3].tolist() == [FULL, PARTIAL, *[EMPTY] * 6]
    assert sum(evaluated) <= 8 * (TILE + 64 + 9)


def test_no_tiles_are_no_work(evaluated: list[int]) -> None:
    none = all_tiles(SQUARE)[:0]
    assert decide(graph(CAUSAL), VALUES, none, SQUARE).shape == (0,)
    assert sum(evaluated) == 0


def test_positions_that_wrap_around_do_not_follow_the_diagonal() -> None:
    root = apply("lt", Q, apply("add", KV, captured(W)))
    size = MaskSize(1, 1, 300, 300)
    for width, holds in ((40, True), (-(2**40), True), (2**63 - 1, False), (2**63 - 100, False)):
        values = Values(scalars={W: width})
        assert follows_diagonal(root, values, size) is holds
        grid = BlockGrid(size, (64, 64))
        kinds = decide(graph(root), values, all_tiles(grid), grid)
        assert torch.equal(kinds, kinds_of_graph(root, values, grid).flatten())
    assert not follows_diagonal(load(IDS, (Q,)), VALUES, size)
