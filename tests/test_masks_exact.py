"""The structure of masks equals brute force: every variant, and random masks.

Brute force is the mask's Python function called on index tensors, and nothing of the analysis.  All
that a block mask tells is compared with it: kinds, lists both ways, counts, order, density, closed
forms.  Then so are the masks that are made from it: other block sizes, parts, copies, and torch's
block masks.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import itertools
import pickle
from collections.abc import Callable
from typing import Any, Final
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import flexfa4
from flexfa4 import BlockMask, flex
from flexfa4.block_mask import BlockLists
from flexfa4.frontend.masks import sweep
from flexfa4.frontend.masks.grid import EMPTY, FULL, PARTIAL
from flexfa4.frontend.masks.runs import BlockRuns
from flexfa4.frontend.masks.search import boxes, parts, refine, tiles
from flexfa4.frontend.masks.solving.solve import NotClosed
from flexfa4.frontend.masks.solving.solved import Solved, ends_of
from flexfa4.frontend.masks.structure import Lines, MaskBlocks
from flexfa4.testing import CASES, Case, Draw, Mods, Sizes
from flexfa4.variants import causal
from tests.brute_force import equal_runs, kinds_of
from tests.random_masks import IDIOMS, RandomMask, Space, random_masks

Pair = tuple[int, int]
BLOCK_SIZES: Final = ((16, 16), (128, 128), (16, 48), (256, 32), (64, 96), (48, 256), (32, 80))
EXAMPLES: Final = max(500, settings().max_examples)  # of the profile that is loaded


# ---- what a block mask tells, against brute force ------------------------------------------------


def check(made: BlockMask, dense: torch.Tensor) -> None:
    """Compare all that a block mask tells with the mask itself, bool `made.shape`."""
    kinds = kinds_of(dense, made.block_size)
    some = kinds != EMPTY
    assert made.shape == dense.shape
    assert torch.equal(made.to_dense(), dense)
    for _ in range(2):  # first without lists, which a closed form spares, then with them
        assert made.density == (float(some.double().mean()) if some.numel() else 0.0)
        for by, axis in LINES.items():
            counts = made.counts(by)
            assert torch.equal(counts, some.sum(axis))
            for priority, sign in (("lpt", -1), ("spt", 1)):
                order = made.order(priority, by)  # type: ignore[arg-type]
                assert torch.equal(order.long(), (sign * counts).argsort(dim=2, stable=True))
        assert torch.equal(made.block_kinds(), kinds)
        check_lists(made.lists("rows"), kinds)
        check_lists(made.lists("columns"), kinds.transpose(2, 3))
    blocks = made.blocks_on(made.device)
    check_closed_form(blocks, blocks.by_rows, dense)
    check_closed_form(blocks, blocks.by_columns, dense.transpose(2, 3))


LINES: Final[dict[Lines, int]] = {"rows": 3, "columns": 2}


def check_lists(lists: BlockLists, kinds: torch.Tensor) -> None:
    """Compare lists with the kinds of blocks ``(batch, heads, lines, width)``."""
    for listed, kind in ((lists.partial, PARTIAL), (lists.full, FULL)):
        counts = listed.offsets.diff(dim=1)
        line = torch.arange(counts.numel()).repeat_interleave(counts.flatten())
        place = line * kinds.shape[3] + listed.indices
        assert bool((place.diff() > 0).all())  # ascending, none twice
        table = torch.zeros(len(counts), *kinds.shape[2:], dtype=torch.bool)
        table.view(-1)[place] = True
        assert torch.equal(table[lists.classes], kinds == kind)


def check_closed_form(blocks: MaskBlocks, form: Solved | NotClosed, dense: torch.Tensor) -> None:
    """Compare the intervals of a closed form with a mask ``(batch, heads, positions, length)``."""
    if isinstance(form, NotClosed):
        return
    positions, length = torch.arange(dense.shape[2]), torch.arange(dense.shape[3])
    for b, h in itertools.product(range(blocks.size.b), range(blocks.size.h)):
        start, stop = ends_of(form, b, h, positions)
        within = (length >= start[..., None]) & (length < stop[..., None])
        assert torch.equal(within.any(0), dense[b, h])


# Sizes up to which work is done at once, so low that small masks are split, cut and joined too.
LOW: Final[dict[Any, dict[str, int]]] = {
    boxes: {"_CHUNK": 50},
    parts: {"_FEW_LANES": 0, "_LEAST": 4, "_SLICE": 1000},
    refine: {"_FIRST": 4, "_SLICE": 200, "_FEW_LANES": 0},
    sweep: {"_INTERVALS_AT_ONCE": 300},
    tiles: {"_CHUNK_LANES": 20_000, "_FEW_LANES": 0, "_PIECE": 40},
}


def check_in_small_steps(made: BlockMask, dense: torch.Tensor) -> None:
    """Find the blocks of a mask anew, with little at once: split, and from closed forms."""
    kinds = kinds_of(dense, made.block_size)
    old = made.blocks_on(made.device)
    new = MaskBlocks(old.graph, old.values, old.size, old.block_size)
    with contextlib.ExitStack() as stack:
        for module, names in LOW.items():
            for name, low in names.items():
                stack.enter_context(mock.patch.object(module, name, low))
        split = refine.refine(new.graph, new.values, new.classes, new.grid)
        assert torch.equal(new.for_each(split.to_kinds()).expand_as(kinds), kinds)
        if new.is_closed:
            assert equal_runs(new.runs, split)
        assert equal_runs(new.columns, split.transposed())


# ---- what is made from a block mask --------------------------------------------------------------

Masked = tuple[BlockMask, torch.Tensor]


def part(size: int, pick: int) -> slice:
    """Return a range of a length by a number, whichever."""
    start, stop = sorted((pick % (size + 1), pick // 7 % (size + 1)))
    return slice(start, stop)


def regrouped(made: BlockMask, dense: torch.Tensor, pick: int) -> Masked:
    return made.with_block_size(BLOCK_SIZES[pick % len(BLOCK_SIZES)]), dense


def doubled(made: BlockMask, dense: torch.Tensor, pick: int) -> Masked:
    q, kv = made.block_size
    return made.with_block_size((q * (1 + pick % 2), kv * (1 + pick // 2 % 3))), dense


def one_batch_and_head(made: BlockMask, dense: torch.Tensor, pick: int) -> Masked:
    b, h = pick % dense.shape[0], pick // 7 % dense.shape[1]
    return made[b - dense.shape[0], h], dense[b : b + 1, h : h + 1]


def some_of_each(made: BlockMask, dense: torch.Tensor, pick: int) -> Masked:
    batches, queries = part(dense.shape[0] - 1, pick), part(dense.shape[2], pick // 3)
    batches = slice(batches.start, batches.stop + 1)
    heads = slice(pick % dense.shape[1], None)
    return made[batches, heads, queries], dense[batches, heads, queries]


def pickled(made: BlockMask, dense: torch.Tensor, pick: int) -> Masked:
    return pickle.loads(pickle.dumps(made)), dense


def copied(made: BlockMask, dense: torch.Tensor, pick: int) -> Masked:
    return copy.deepcopy(made), dense


STEPS: Final = (regrouped, doubled, one_batch_and_head, some_of_each, pickled, copied)
Step = Callable[[BlockMask, torch.Tensor, int], Masked]


# ---- random masks --------------------------------------------------------------------------------

# Mostly small: a mask of 700 x 900 takes as long as twenty of them.
LENGTHS: Final = (
    *[(q, kv) for q in (1, 16, 33, 130) for kv in (1, 48, 100, 257)],
    (0, 20), (20, 0), (300, 64), (64, 300), (200, 200), (257, 129), (400, 350), (700, 900),
)  # fmt: skip
spaces = st.builds(
    lambda batch, heads, lengths: Space(batch, heads, *lengths),
    st.sampled_from((1, 2, 3)),
    st.sampled_from((1, 2, 3)),
    st.sampled_from(LENGTHS),
)
steps = st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 10**6)), min_size=1, max_size=3)


def made_of(mask: Any, space: Space, block_size: Pair) -> BlockMask:
    return flexfa4.create_block_mask(
        mask,
        batch=space.batch,
        heads=space.heads,
        q_len=space.q_len,
        kv_len=space.kv_len,
        block_size=block_size,
    )


@settings(max_examples=EXAMPLES)
@given(random_masks, spaces, st.sampled_from(BLOCK_SIZES), steps)
def test_random_masks_have_exactly_the_structure_that_brute_force_finds(
    mask: RandomMask, space: Space, block_size: Pair, then: list[tuple[Step, int]]
) -> None:
    function = mask.function(space)
    made, dense = made_of(function, space, block_size), space.dense(function)
    check(made, dense)
    check_in_small_steps(made, dense)
    for step, pick in then:
        made, dense = step(made, dense, pick)
        check(made, dense)


@pytest.mark.parametrize("source", IDIOMS)
def test_each_condition_alone_has_exactly_the_structure_that_brute_force_finds(source: str) -> None:
    for space, block_size in (
        (Space(2, 2, 257, 257), (16, 48)),
        (Space(2, 3, 200, 145), (16, 16)),
        (Space(1, 1, 897, 700), (16, 16)),
    ):
        function = RandomMask(source, seed=1).function(space)
        made, dense = made_of(function, space, block_size), space.dense(function)
        check(made, dense)
        check_in_small_steps(made, dense)


# ---- torch's block masks -------------------------------------------------------------------------


def check_torch_lists(block_mask: Any, kinds: torch.Tensor) -> None:
    """Compare the lists of a block mask in FlexAttention's form with kinds, both ways."""
    for prefix, axis, table in (("kv", 3, kinds), ("q", 2, kinds.transpose(2, 3))):
        for full, kind in (("", PARTIAL), ("full_", FULL)):
            counts = getattr(block_mask, f"{full}{prefix}_num_blocks")
            indices = getattr(block_mask, f"{full}{prefix}_indices").long()
            assert torch.equal(counts.long(), (kinds == kind).sum(axis))
            listed = torch.arange(indices.shape[3]) < counts[..., None]
            times = torch.zeros(table.shape, dtype=torch.int64)
            times.scatter_add_(3, indices.where(listed, 0), listed.long())
            assert torch.equal(times, (table == kind).long())


@settings(max_examples=EXAMPLES // 10)
@given(random_masks, spaces, st.sampled_from((16, 128, 50, (32, 100))))
def test_random_masks_become_torchs_block_masks_and_come_back(
    mask: RandomMask, space: Space, block_size: Any
) -> None:
    function = mask.function(space)
    dense = space.dense(function)
    sizes = (space.batch, space.heads, space.q_len, space.kv_len)
    made = flex.create_block_mask(function, *sizes, device="cpu", BLOCK_SIZE=block_size)
    kinds = kinds_of(dense, made.BLOCK_SIZE, ragged_full=False)
    assert torch.equal(made.block_kinds(), kinds)
    theirs = made.to_torch()
    check_torch_lists(theirs, kinds)
    back = flex.BlockMask.from_torch(theirs)
    assert torch.equal(back.block_kinds(), kinds)
    assert torch.equal(back.token_mask(), dense)


# ---- variants ------------------------------------------------------------------------------------


def mask_of(case: Case, space: Space) -> Mods:
    """Return the mods of a case for an index space."""
    sizes = Sizes(space.batch, space.heads, 1, space.q_len, space.kv_len)
    return case.make(sizes, Draw(torch.Generator().manual_seed(0)))


MASK_CASES: Final = [c for c in CASES if mask_of(c, Space(1, 1, 64, 64)).mask is not None]
SPACES: Final = (
    Space(2, 2, 700, 900),
    Space(2, 3, 333, 250),
    Space(3, 2, 90, 400),
    Space(2, 2, 512, 512),
)
ALL: Final = list(itertools.product(MASK_CASES, SPACES, BLOCK_SIZES))
# Every case at its largest with one block size, and at another space with the next one.
SAMPLE: Final = [
    (case, space, BLOCK_SIZES[(i + j) % len(BLOCK_SIZES)])
    for i, case in enumerate(MASK_CASES)
    for j, space in enumerate((SPACES[0], SPACES[1 + i % (len(SPACES) - 1)]))
]


def combination_id(value: object) -> str:
    return value.name if isinstance(value, Case) else str(value).replace(" ", "")


def check_case(case: Case, space: Space, block_size: Pair) -> None:
    mods = mask_of(case, space)
    made = made_of(mods.mask, space, block_size)
    dense = space.dense(mods.mask if mods.eager_mask is None else mods.eager_mask)
    check(made, dense)
    check_in_small_steps(made, dense)


@pytest.mark.parametrize(("case", "space", "block_size"), SAMPLE, ids=combination_id)
def test_a_variant_has_exactly_the_structure_that_brute_force_finds(
    case: Case, space: Space, block_size: Pair
) -> None:
    check_case(case, space, block_size)


@pytest.mark.full
@pytest.mark.parametrize(("case", "space", "block_size"), ALL, ids=combination_id)
def test_a_variant_is_exact_with_all_block_sizes(
    case: Case, space: Space, block_size: Pair
) -> None:
    check_case(case, space, block_size)


@pytest.mark.parametrize("case", MASK_CASES, ids=combination_id)
def test_what_is_made_of_the_block_mask_of_a_variant_is_exact(case: Case) -> None:
    space = Space(3, 2, 90, 400)
    mods = mask_of(case, space)
    made = made_of(mods.mask, space, (32, 64))
    dense = space.dense(mods.mask if mods.eager_mask is None else mods.eager_mask)
    for pick, step in enumerate(STEPS):
        check(*step(made, dense, 1234 + 57 * pick))
    for step in (some_of_each, one_batch_and_head, regrouped, some_of_each, copied, doubled):
        made, dense = step(made, dense, 1681)  # heads from 1 on, queries 14 to 79, then fewer
        check(made, dense)


# ---- the check itself ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [EMPTY, PARTIAL, FULL])
def test_a_block_of_a_wrong_kind_is_found(kind: int) -> None:
    space = Space(2, 2, 100, 130)
    made = made_of(causal, space, (16, 32))
    dense = space.dense(causal)
    check(made, dense)
    kinds = made.block_kinds()[:1, :1]
    (place,) = (kinds == kind).nonzero()[3:4]
    kinds[tuple(place)] = (kind + 1) % 3
    blocks = made.blocks_on(made.device)
    wrong = dataclasses.replace(blocks, known_runs=BlockRuns.from_kinds(kinds[0]), caches={})
    with mock.patch.object(made, "_blocks", wrong), pytest.raises(AssertionError):
        check(made, dense)
