"""Mutation tests of the Blackwell backward kernel: all that makes order is needed, or known.

As for the forward kernel (`test_sm100_mutations`), and with mbarriers that an arrival less
completes.  Two tiles of keys add to each tile of dQ, so that sums are the same in whichever order
they are made; queries are in tiles with and without mask.
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
from flexfa4.kernels.sm100.backward import architecture
from flexfa4.kernels.sm100.backward.storage import Tiling
from tests.forward_trials import poisoned_memory
from tests.kernel_mutants import RecordedLaunch, recorded, survivors
from tests.mutations import Mutant, fewer, later, mutants, weaker

MAIN: Final = 2  # the launch of the main kernel, behind the forward pass and the preprocess kernel
DIM: Final = 64

EDITS: Final[dict[str, Callable[[str], Iterator[Mutant]]]] = {
    "without": mutants,
    "weaker": functools.partial(mutants, edit=weaker),
    "fewer": fewer,
    "later": later,
}
MUTANTS: Final = {"without": 80, "weaker": 30, "fewer": 7, "later": 80}
"""As many there are at least."""

BLOCK_BARRIER: Final = (
    "all who use the mbarriers wait for the barrier of the block, or of the pair, behind it"
)
WITH_K: Final = "V is given back behind the same products as K"
BEHIND_DK: Final = (
    "the load warp has waited for a place that is given back behind dK, and so behind gradients of"
    " the tile that had the statistics"
)
BEHIND_SCORES: Final = (
    "the load warp has waited for the place of Q of dK of the tile before, which comes behind the"
    " scores that had the place of Q"
)
BEHIND_K: Final = "K of the item took the place of dK of the last one, which had been read"
NOT_FETCHED: Final = "two blocks fetch no numbers of items"
ONE_AGENT: Final = (
    "elect.sync behind it brings the lanes together; and the lanes of a warp count as one"
)
LOADED_AT_ONCE: Final = "the emulator loads tensor memory when the instruction is issued"

HARMLESS: Final = {"bar.warp.sync": ONE_AGENT, "tcgen05.wait::ld.sync.aligned": LOADED_AT_ONCE}
"""Opcodes whose mutants may all survive."""

_FENCE: Final = "fence.mbarrier_init.release.cluster 1"
_WAIT: Final = "mbarrier.try_wait.parity.shared.b64"
_INIT: Final = "mbarrier.init.shared.b64"


@dataclass(frozen=True)
class Kernel:
    """A kernel, and which of its mutants survive.

    Attributes:
        tiling: of the work; with fewer columns of tensor memory products are in the order of larger
            head dims.
        survivors: the path that remains, by edit and mutant.
    """

    tiling: Tiling
    survivors: dict[str, dict[str, str]] = field(repr=False)


_OF_TWO: Final = {
    _FENCE: BLOCK_BARRIER,
    f"{_WAIT} 2": WITH_K,
    **{f"{_WAIT} {number}": BEHIND_DK for number in (4, 9)},
    f"{_WAIT} 8": BEHIND_SCORES,
    f"{_WAIT} 15": BEHIND_K,
}
KERNELS: Final = {
    "dQ among scores": Kernel(
        Tiling(blocks=2, q_stages=1, columns=400),
        {
            "without": _OF_TWO,
            "weaker": {},
            "fewer": {
                **{f"{_INIT} {number}": BEHIND_DK for number in (10, 12)},
                f"{_INIT} 26": BEHIND_K,
                **{f"{_INIT} {number}": NOT_FETCHED for number in (29, 31)},
            },
        },
    ),
    "one by one": Kernel(
        Tiling(blocks=2, q_stages=1, columns=320),
        {
            "weaker": {},
            "fewer": {
                **{f"{_INIT} {number}": BEHIND_DK for number in (10, 12)},
                f"{_INIT} 22": BEHIND_K,
                **{f"{_INIT} {number}": NOT_FETCHED for number in (25, 27)},
            },
        },
    ),
    "one block": Kernel(
        Tiling(),
        {
            "without": {
                _FENCE: BLOCK_BARRIER,
                f"{_WAIT} 2": WITH_K,
                **{f"{_WAIT} {number}": BEHIND_DK for number in (4, 7)},
                f"{_WAIT} 12": BEHIND_K,
            },
        },
    ),
}
"""By name; those of larger head dims have few columns of tensor memory."""
QUICK: Final = (("dQ among scores", "without"), ("one block", "without"))


def launches_of(tiling: Tiling) -> list[RecordedLaunch]:
    """Return a launch of blocks with many tiles of queries, and one of blocks with many items."""

    def call(heads: int, q_len: int, kv_len: int) -> Any:
        draw = torch.Generator().manual_seed(1)
        q, do = torch.randn(2, 1, heads, q_len, DIM, generator=draw).bfloat16()
        k, v = torch.randn(2, 1, heads, kv_len, DIM, generator=draw).bfloat16()
        leaves = [x.requires_grad_() for x in (q, k, v)]
        with poisoned_memory():
            out = flexfa4.attention(*leaves, block_mask="q + 40 >= kv", backend="sm100")
            torch.autograd.grad(out, leaves, do)

    long = functools.partial(call, 2, 600, 2 * tiling.keys - 20)
    short = functools.partial(call, 5, 40, 20)
    chosen: dict[str, Any] = {"which": MAIN, "capability": (10, 0)}
    return [
        recorded(long, multiprocessors=2 * tiling.blocks, **chosen),
        recorded(short, multiprocessors=tiling.blocks, **chosen),
    ]


@functools.cache
def launches_by_name(name: str) -> list[RecordedLaunch]:
    """Return the launches of a kernel, kept: all edits are of the same ones."""
    tiling = KERNELS[name].tiling
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(architecture, "tiling_for", lambda *_: tiling)
        return launches_of(tiling)


CASES = [
    pytest.param(name, edit, marks=() if (name, edit) in QUICK else pytest.mark.full)
    for name, kernel in KERNELS.items()
    for edit in kernel.survivors
]


@pytest.mark.parametrize(("name", "edit"), CASES)
def test_what_survives_is_what_is_redundant_by_a_known_path(name: str, edit: str) -> None:
    launches = launches_by_name(name)
    tried = list(EDITS[edit](launches[0].kernel.ptx))
    assert len(tried) > MUTANTS[edit]
    found = {n for n in survivors(tried, launches) if n.rpartition(" ")[0] not in HARMLESS}
    assert found == set(KERNELS[name].survivors[edit])
