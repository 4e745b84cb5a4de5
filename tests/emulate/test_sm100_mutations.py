"""Mutation tests of the Blackwell forward: all that puts things in order is needed, or known.

A mutant lacks a wait, an arrival, a fence or a commit, or waits for too little, or has one behind
the next access, or one of its mbarriers completes with an arrival less.  The emulator reports it,
or its results differ; what survives is listed with the happens-before path that remains.  Two
launches of each kernel: blocks with many tiles of keys, where some items have none, and blocks with
many items of one tile.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pytest
import torch

pytest.importorskip("cutlass")

import flexfa4
from flexfa4.kernels.sm100.architecture import Blackwell
from tests.forward_trials import poisoned_memory
from tests.kernel_mutants import RecordedLaunch, recorded, survivors
from tests.mutations import Mutant, fewer, later, mutants, weaker

EDITS: Final[dict[str, Callable[[str], Iterator[Mutant]]]] = {
    "without": mutants,
    "weaker": functools.partial(mutants, edit=weaker),
    "later": later,
    "fewer": fewer,
}
MUTANTS: Final = {"without": 30, "weaker": 30, "later": 30, "fewer": 11}
"""More than so many are made of each kernel."""

KEYS: Final = 32  # of a tile

BLOCK_BARRIER: Final = (
    "all who use the mbarriers wait for the barrier of the block, or of the pair, behind it"
)
ONE_COMMIT: Final = (
    "Q of the second half is given back behind the same products as that of the first"
)
ONE_TILE: Final = (
    "what was in the stage is given back behind the same products as what was in the one before"
)
FIRST_TILE: Final = (
    "the tile is the first of an item, whose Q was given back behind all that used the stages"
)
ALWAYS_TILES: Final = "every item has tiles, whose products have waited for Q"
ONE_AGENT: Final = (
    "elect.sync behind it brings the lanes together; and the lanes of a warp count as one"
)
LOADED_AT_ONCE: Final = "the emulator loads tensor memory when the instruction is issued"
NOT_FETCHED: Final = "pairs of blocks take every n-th item: nobody passes numbers on"
READS_FIRST: Final = "the next access reads tensor memory, not what the last output left from"

HARMLESS: Final = {"bar.warp.sync": ONE_AGENT, "tcgen05.wait::ld.sync.aligned": LOADED_AT_ONCE}
"""Opcodes whose mutants may all survive."""

_FENCE: Final = "fence.mbarrier_init.release.cluster 1"
_WAIT: Final = "mbarrier.try_wait.parity.shared.b64"
_INIT: Final = "mbarrier.init.shared.b64"


@dataclass(frozen=True)
class Kernel:
    """A kernel, and which of its mutants survive.

    Attributes:
        head_dims: of q and k, and of v.
        stages: of the ring: few, so that it is waited for.
        blocks: that compute together.
        mask: of the call.
        survivors: the path that remains, by edit and mutant.
    """

    head_dims: tuple[int, int]
    stages: int
    blocks: int
    mask: str | None
    survivors: dict[str, dict[str, str]] = field(repr=False)


KERNELS: Final = {
    "one block": Kernel(
        (64, 64),
        3,
        1,
        "(q + 40 >= kv) & (q < 256)",
        {
            "weaker": {},
            "fewer": {},
            "without": {_FENCE: BLOCK_BARRIER, f"{_WAIT} 2": ONE_COMMIT},
            "later": {
                _FENCE: BLOCK_BARRIER,
                f"{_WAIT} 2": ONE_COMMIT,
                "bar.sync 2": READS_FIRST,
                "bar.sync 4": READS_FIRST,
            },
        },
    ),
    "an output in the place of Q, parts of tiles": Kernel(
        (192, 128),
        6,
        1,
        "(q + 40 >= kv) & (q < 256)",
        {
            "weaker": {},
            "fewer": {},
            "without": {
                _FENCE: BLOCK_BARRIER,
                f"{_WAIT} 2": ONE_COMMIT,
                **{f"{_WAIT} {number}": ONE_TILE for number in (3, 5, 6, 8, 10, 11)},
            },
        },
    ),
    "a pair of blocks": Kernel(
        (64, 64),
        3,
        2,
        None,
        {
            "weaker": {},
            "fewer": {f"{_INIT} {number}": NOT_FETCHED for number in (26, 28)},
            "without": {
                _FENCE: BLOCK_BARRIER,
                f"{_WAIT} 2": ONE_COMMIT,
                f"{_WAIT} 3": FIRST_TILE,
                f"{_WAIT} 4": FIRST_TILE,
                f"{_WAIT} 16": ALWAYS_TILES,
                f"{_WAIT} 17": ALWAYS_TILES,
            },
            "later": {
                _FENCE: BLOCK_BARRIER,
                f"{_WAIT} 2": ONE_COMMIT,
                f"{_WAIT} 4": FIRST_TILE,
                "bar.sync 1": READS_FIRST,
                "bar.sync 3": READS_FIRST,
            },
        },
    ),
}


def launches(kernel: Kernel) -> list[RecordedLaunch]:
    """Return the launches of a kernel."""
    head_dim, head_dim_v = kernel.head_dims

    def call(heads: int, q_len: int, kv_len: int) -> Any:
        drawn = functools.partial(torch.randn, generator=torch.Generator().manual_seed(1))
        q, k = drawn(1, heads, q_len, head_dim), drawn(1, heads, kv_len, head_dim)
        v = drawn(1, heads, kv_len, head_dim_v)
        with poisoned_memory():
            flexfa4.attention(
                q.bfloat16(),
                k.bfloat16(),
                v.bfloat16(),
                block_mask=kernel.mask,
                return_lse=True,
                backend="sm100",
                options=flexfa4.Options(tile=(256, KEYS), tau=1.0),
            )

    def tiling_of(self: Any, plan: Any, *_: Any) -> Any:
        return replace(plan.tiling, stages=kernel.stages, blocks=kernel.blocks)

    long = functools.partial(call, 3, 300, 130)
    short = functools.partial(call, 5, 40, 20)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Blackwell, "tiling_of", tiling_of)
        return [
            recorded(long, 2 * kernel.blocks, (10, 0)),
            recorded(short, kernel.blocks, (10, 0)),
        ]


_LAUNCHES = functools.cache(lambda name: launches(KERNELS[name]))


def unknown(names: set[str]) -> set[str]:
    """Return the names of mutants that are not of `HARMLESS` opcodes."""
    return {name for name in names if re.sub(r" \d+$", "", name) not in HARMLESS}


CASES = [
    pytest.param(
        name, edit, marks=() if (name, edit) == ("one block", "weaker") else pytest.mark.full
    )
    for name, kernel in KERNELS.items()
    for edit in kernel.survivors
]


@pytest.mark.parametrize(("name", "edit"), CASES)
def test_what_survives_is_what_is_redundant_by_a_known_path(name: str, edit: str) -> None:
    made = _LAUNCHES(name)
    tried = list(EDITS[edit](made[0].kernel.ptx))
    assert len(tried) > MUTANTS[edit]
    assert unknown(survivors(tried, made)) == set(KERNELS[name].survivors[edit])
