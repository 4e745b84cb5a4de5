"""Mutation tests of the Hopper backward kernel: all that puts things in order is needed, or known.

As for the forward kernel (`test_sm90_mutations`).  Two tiles of keys add to each tile of dQ, so
that sums are the same in whichever order they are made.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest
import torch

pytest.importorskip("cutlass")

import flexfa4
from flexfa4.kernels.sm90.backward import tuning
from flexfa4.kernels.sm90.backward.storage import Tiling
from tests.forward_trials import poisoned_memory
from tests.kernel_mutants import RecordedLaunch, recorded, survivors
from tests.mutations import Mutant, later, mutants, weaker

MAIN: Final = 2  # the launch of the main kernel, behind the forward pass and the preprocess kernel
DIM: Final = 64
TILING: Final = Tiling(64, 128, early=False)
EDITS: Final[dict[str, Callable[[str], Iterator[Mutant]]]] = {
    "without": mutants,
    "weaker": functools.partial(mutants, edit=weaker),
    "later": later,
}

BLOCK_BARRIER: Final = (
    "all who use the mbarriers are of this block, and come by the bar.sync behind it"
)
ONE_AGENT: Final = (
    "elect.sync or another barrier behind it brings the lanes together; and the lanes of a warp"
    " count as one"
)
BEHIND_K: Final = "the storing warp gives the places of K and V back behind one and the same wait"
BEHIND_Q: Final = (
    "each warp gives the place of a tile's Q back behind that of its dO, and the producer has"
    " waited for that of Q"
)
ONE_FENCE: Final = "no register of the product is computed between another fence in front and it"
DO_IS_LATER: Final = (
    "until a tile's Q is given back, behind all of its products, the producer does not load the dO"
    " that would take the place of this one"
)
SAME_ACCESS: Final = (
    "what is accessed between is not what is waited for: numbers of queries, which were loaded with"
    " Q, or registers of another product"
)
STILL_COMMITTED: Final = "it stays in front of the next wait for groups, or behind no other product"
OWN_ROWS: Final = (
    "what a warpgroup writes first is dV, in the place of rows of V that it alone has read"
)

FENCES: Final = {f"wgmma.fence.sync.aligned {i}": ONE_FENCE for i in (2, 4, 5, 6, 7, 9, 10)}
ROLES: Final = {
    "bar.warp.sync 1": ONE_AGENT,
    "bar.warp.sync 2": ONE_AGENT,
    "bar.warp.sync 3": ONE_AGENT,
    "fence.mbarrier_init.release.cluster 1": BLOCK_BARRIER,
    "mbarrier.try_wait.parity.shared.b64 2": BEHIND_K,
    "mbarrier.try_wait.parity.shared.b64 4": BEHIND_Q,
    "mbarrier.try_wait.parity.shared.b64 6": BEHIND_Q,
}
DO_WAITS: Final = {f"wgmma.wait_group.sync.aligned {i}": DO_IS_LATER for i in (3, 8)}
DO_COMMITS: Final = {f"wgmma.commit_group.sync.aligned {i}": DO_IS_LATER for i in (3, 8)}

SURVIVORS: Final[dict[str, dict[str, str]]] = {
    "without": {**ROLES, **FENCES, **DO_WAITS, **DO_COMMITS},
    "weaker": DO_WAITS,
    "later": {
        **ROLES,
        **FENCES,
        **DO_WAITS,
        **DO_COMMITS,
        **{f"wgmma.commit_group.sync.aligned {i}": STILL_COMMITTED for i in (4, 9)},
        **{f"wgmma.wait_group.sync.aligned {i}": SAME_ACCESS for i in (1, 2, 6, 7)},
        "bar.sync 4": OWN_ROWS,
    },
}
"""Which mutants survive, and the path that remains."""


@pytest.fixture(scope="module")
def launches() -> Iterator[list[RecordedLaunch]]:
    """Give launches of blocks with many tiles of queries, and of blocks with many items of one."""

    def call(heads: int, q_len: int, kv_len: int) -> Any:
        draw = torch.Generator().manual_seed(1)
        q, do = torch.randn(2, 1, heads, q_len, DIM, generator=draw).bfloat16()
        k, v = torch.randn(2, 1, heads, kv_len, DIM, generator=draw).bfloat16()
        leaves = [x.requires_grad_() for x in (q, k, v)]
        with poisoned_memory():
            out = flexfa4.attention(*leaves, block_mask="q + 40 >= kv", backend="sm90")
            torch.autograd.grad(out, leaves, do)

    long = functools.partial(call, 2, 300, 2 * TILING.keys - 20)
    short = functools.partial(call, 5, 40, 20)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tuning, "BACKWARD", {(DIM, DIM): TILING})
        yield [
            recorded(long, multiprocessors=2, which=MAIN),
            recorded(short, multiprocessors=1, which=MAIN),
        ]


@pytest.mark.parametrize(
    "edit", [pytest.param(e, marks=pytest.mark.full) if e == "later" else e for e in EDITS]
)
def test_what_survives_is_what_is_redundant_by_a_known_path(
    launches: list[RecordedLaunch], edit: str
) -> None:
    tried = list(EDITS[edit](launches[0].kernel.ptx))
    assert len(tried) > 20
    assert survivors(tried, launches) == set(SURVIVORS[edit])
