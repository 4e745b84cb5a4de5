"""Mutation tests of the Hopper forward kernel: all that puts things in order is needed, or known.

A mutant lacks a wait, an arrival, a fence or a commit, or waits for too little, or has one behind
the next access.  The emulator reports it, or its results differ; what survives is listed with the
happens-before path that remains.  Two launches of each kernel: blocks with many tiles of keys, and
blocks with many items of one tile, where nothing but the rings' own barriers holds the producer up.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import pytest
import torch

pytest.importorskip("cutlass")

import flexfa4
from tests.forward_trials import poisoned_memory
from tests.kernel_mutants import RecordedLaunch, recorded, survivors
from tests.mutations import Mutant, later, mutants, weaker

EDITS: Final[dict[str, Callable[[str], Iterator[Mutant]]]] = {
    "without": mutants,
    "weaker": functools.partial(mutants, edit=weaker),
    "later": later,
}

ONE_TILE: Final = 20  # keys, fewer than any tile here
BLOCK_BARRIER: Final = (
    "all who use the mbarriers are of this block, and come by the bar.sync behind it"
)
NUMBER_IS_TAKEN: Final = (
    "the number is passed on behind the item's last load of V, into a stage that consumers"
    " give back behind taking the number two before"
)
ONE_FENCE: Final = "the fence of the scores' product in front, no register is computed between"
ONE_AGENT: Final = (
    "elect.sync behind it brings the lanes together; and the lanes of a warp count as one"
)
STILL_COMMITTED: Final = "it stays in front of the next wait for bulk groups"


@dataclass(frozen=True)
class Kernel:
    """A kernel, and which of its mutants survive.

    Attributes:
        head_dim: of q, k and v.
        tile: queries and keys of a tile; None for the usual ones.
        mask: of the block mask.
        lengths: queries and keys of the launch with many tiles.
        survivors: the path that remains, by edit and mutant.
    """

    head_dim: int
    tile: tuple[int, int] | None
    mask: str
    lengths: tuple[int, int]
    survivors: dict[str, dict[str, str]] = field(repr=False)


SMALL: Final = Kernel(
    64,
    (128, 32),
    "q + 40 >= kv",
    (200, 200),
    {
        "without": {
            "fence.mbarrier_init.release.cluster 1": BLOCK_BARRIER,
            "mbarrier.try_wait.parity.shared.b64 7": NUMBER_IS_TAKEN,
            "wgmma.fence.sync.aligned 3": ONE_FENCE,
            "wgmma.fence.sync.aligned 5": ONE_FENCE,
            "wgmma.fence.sync.aligned 7": ONE_FENCE,
            "bar.warp.sync 1": ONE_AGENT,
        },
        "weaker": {},
        "later": {
            "fence.mbarrier_init.release.cluster 1": BLOCK_BARRIER,
            "mbarrier.try_wait.parity.shared.b64 7": NUMBER_IS_TAKEN,
            "wgmma.fence.sync.aligned 3": ONE_FENCE,
            "wgmma.fence.sync.aligned 5": ONE_FENCE,
            "wgmma.fence.sync.aligned 7": ONE_FENCE,
            "bar.warp.sync 1": ONE_AGENT,
            "cp.async.bulk.commit_group 1": STILL_COMMITTED,
        },
    },
)


Q_WAITED: Final = "Epilogue.release_q waits for the same before it gives Q's place back"
OWN_ROWS: Final = (
    "the output takes the place of the warpgroup's own rows of Q, which all of its products have"
    " read behind wgmma.wait_group 0"
)
OUTPUT_WAITS: Final = {
    "cp.async.bulk.wait_group.read 1": Q_WAITED,
    "cp.async.bulk.wait_group.read 3": Q_WAITED,
}

LARGE: Final = Kernel(
    256,
    None,
    "(kv >= 320) | ((q + kv) % 3 != 0)",  # more tiles of both kinds than V has stages
    (40, 640),
    {
        "without": {
            "fence.mbarrier_init.release.cluster 1": BLOCK_BARRIER,
            "mbarrier.try_wait.parity.shared.b64 7": NUMBER_IS_TAKEN,
            "wgmma.fence.sync.aligned 3": ONE_FENCE,
            "wgmma.fence.sync.aligned 5": ONE_FENCE,
            "wgmma.fence.sync.aligned 7": ONE_FENCE,
            "bar.warp.sync 1": ONE_AGENT,
            "bar.sync 3": OWN_ROWS,
            **OUTPUT_WAITS,
        },
        "weaker": OUTPUT_WAITS,
    },
)


def launches(kernel: Kernel) -> list[RecordedLaunch]:
    """Return the launches of a kernel."""

    def call(heads: int, q_len: int, kv_len: int) -> Any:
        shape = (1, heads, max(q_len, kv_len), kernel.head_dim)
        q, k, v = torch.randn(3, *shape, generator=torch.Generator().manual_seed(1)).bfloat16()
        with poisoned_memory():
            flexfa4.attention(
                q[:, :, :q_len],
                k[:, :, :kv_len],
                v[:, :, :kv_len],
                block_mask=kernel.mask,
                return_lse=True,
                backend="sm90",
                options=None if kernel.tile is None else flexfa4.Options(tile=kernel.tile),
            )

    long = functools.partial(call, 3, *kernel.lengths)
    short = functools.partial(call, 7, 40, ONE_TILE)
    return [recorded(long, multiprocessors=2), recorded(short, multiprocessors=1)]


@pytest.fixture(scope="module")
def small() -> list[RecordedLaunch]:
    return launches(SMALL)


@pytest.mark.parametrize("edit", EDITS)
def test_what_survives_is_what_is_redundant_by_a_known_path(
    small: list[RecordedLaunch], edit: str
) -> None:
    tried = list(EDITS[edit](small[0].kernel.ptx))
    assert len(tried) > 20
    assert survivors(tried, small) == set(SMALL.survivors[edit])


@pytest.mark.full
@pytest.mark.parametrize("edit", LARGE.survivors)
def test_with_one_stage_of_q_where_the_output_goes_likewise(edit: str) -> None:
    both = launches(LARGE)
    assert survivors(EDITS[edit](both[0].kernel.ptx), both) == set(LARGE.survivors[edit])
