"""Mutation tests of the Hopper backward kernel: all that puts things in order is needed, or known.

As for the forward kernel (`test_sm90_mutations`).  Two tiles of keys add to each tile of dQ, so
that sums are the same in whichever order they are made; three where they are made in turns.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
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
    " Q, whose part is in the outbox, or registers of another product"
)
STILL_COMMITTED: Final = "it stays in front of the next wait for groups, or behind no other product"
NUMBER_IS_TAKEN: Final = (
    "with one stage of keys, the producer has waited for K's place, which is given back behind the"
    " item that all have read this number's place for"
)
OWN_ROWS: Final = (
    "what a warpgroup writes first is dV, in the place of rows of V that it alone has read"
)


@dataclass(frozen=True)
class Consuming:
    """A consumer, and what of its kernel is not needed.

    Attributes:
        tiling: that has it.
        survivors: which mutants survive, and the path that remains, by edit.
        in_turns: sums have the same bits on every run.
    """

    tiling: Tiling
    survivors: dict[str, dict[str, str]] = field(repr=False)
    in_turns: bool = False


def numbered(opcode: str, numbers: Iterable[int], reason: str) -> dict[str, str]:
    """Return instructions that are not needed for one and the same reason."""
    return {f"{opcode} {number}": reason for number in numbers}


def roles(warp_barriers: int) -> dict[str, str]:
    """Return what is not needed of that which is around the products."""
    return {
        **numbered("bar.warp.sync", range(1, warp_barriers + 1), ONE_AGENT),
        "fence.mbarrier_init.release.cluster 1": BLOCK_BARRIER,
        "mbarrier.try_wait.parity.shared.b64 2": BEHIND_K,
        "mbarrier.try_wait.parity.shared.b64 4": BEHIND_Q,
        "mbarrier.try_wait.parity.shared.b64 6": BEHIND_Q,
    }


FENCE, COMMIT, WAIT = (
    f"wgmma.{what}.sync.aligned" for what in ("fence", "commit_group", "wait_group")
)
MBARRIER: Final = "mbarrier.try_wait.parity.shared.b64"

AT_ONCE: Final = numbered(FENCE, (2, 4, 5, 6, 7, 9, 10), ONE_FENCE)
DO_WAITS: Final = numbered(WAIT, (3, 8), DO_IS_LATER)
DO_COMMITS: Final = numbered(COMMIT, (3, 8), DO_IS_LATER)

ASYNCHRONOUS: Final = (
    "what others have added was written by asynchronous copies, too, and so is known to those that"
    " come behind"
)

AT_ONCE_TO_US: Final = (
    "a GPU needs it, for a part leaves shared memory before it arrives: the emulator does both at"
    " once, and to it additions that nothing puts in order are no race"
)


def lagged(warp_barriers: int) -> dict[str, str]:
    """Return what is not needed where the product for dQ comes a tile later."""
    return {
        **roles(warp_barriers),
        **numbered(FENCE, (2, 3, 4, 6, 7, 8, 9, 11), ONE_FENCE),
        f"{MBARRIER} 7": NUMBER_IS_TAKEN,
    }


LAGGED: Final = lagged(7)

FINISHED: Final = {
    **LAGGED,
    "bar.warp.sync 8": ONE_AGENT,
    "fence.proxy.async.global 1": ASYNCHRONOUS,
}

UNSEEN: Final = {"cp.async.bulk.wait_group 1": AT_ONCE_TO_US}

IN_TURNS: Final = {**lagged(6), **UNSEEN, "fence.proxy.async.global 1": ASYNCHRONOUS}

SHARED: Final = {
    **numbered("bar.warp.sync", range(1, 7), ONE_AGENT),
    **numbered(FENCE, range(2, 13), ONE_FENCE),
    "fence.mbarrier_init.release.cluster 1": BLOCK_BARRIER,
    f"{MBARRIER} 2": BEHIND_K,
    f"{MBARRIER} 7": NUMBER_IS_TAKEN,
}

CONSUMERS: Final = {
    "from registers": Consuming(
        Tiling(64, 128, early=False),
        {
            "without": {**roles(3), **AT_ONCE, **DO_WAITS, **DO_COMMITS},
            "weaker": DO_WAITS,
            "later": {
                **roles(3),
                **AT_ONCE,
                **DO_WAITS,
                **DO_COMMITS,
                **numbered(COMMIT, (4, 9), STILL_COMMITTED),
                **numbered(WAIT, (1, 2, 6, 7), SAME_ACCESS),
                "bar.sync 4": OWN_ROWS,
            },
        },
    ),
    "by outboxes": Consuming(
        Tiling(64, 128, early=False, staged=True),
        {
            "without": {**roles(6), **AT_ONCE, **DO_WAITS, **DO_COMMITS},
            "weaker": DO_WAITS,
            "later": {
                **roles(6),
                **AT_ONCE,
                **DO_WAITS,
                **DO_COMMITS,
                **numbered(COMMIT, (4, 9), STILL_COMMITTED),
                **numbered(WAIT, (1, 2, 4, 6, 7, 9), SAME_ACCESS),
                "bar.sync 4": OWN_ROWS,
            },
        },
    ),
    "by outboxes, dS in shared memory": Consuming(
        Tiling(
            64,
            128,
            do_stages=1,
            kv_stages=1,
            ds_stages=1,
            in_registers=False,
            dp_parts=2,
            staged=True,
        ),
        {
            "without": SHARED,
            "weaker": {},
            "later": {
                **SHARED,
                **numbered(WAIT, (1, 2, 3, 5, 7, 8, 9, 11), SAME_ACCESS),
                **numbered("bar.sync", (2, 4), SAME_ACCESS),
                "bar.sync 6": OWN_ROWS,
            },
        },
    ),
    "a tile later": Consuming(
        Tiling(64, 128, kv_stages=1, staged=True, lagged=True),
        {
            "without": LAGGED,
            "weaker": {},
            "later": {
                **LAGGED,
                **numbered(WAIT, (1, 2, 3, 5, 6, 7, 9), SAME_ACCESS),
                "bar.sync 3": OWN_ROWS,
            },
        },
    ),
    "finished": Consuming(
        Tiling(64, 128, kv_stages=1, staged=True, lagged=True, finishes=True),
        {"without": FINISHED, "weaker": {}},
    ),
    "a tile later, in turns": Consuming(
        Tiling(64, 128, kv_stages=1, staged=True, lagged=True),
        {"without": IN_TURNS, "weaker": UNSEEN},
        in_turns=True,
    ),
}

QUICK: Final = ("by outboxes", "finished")
"""That without outboxes is the first of them but for these."""


@functools.cache
def launches(name: str) -> list[RecordedLaunch]:
    """Return launches: blocks with many tiles of queries, and blocks with many items of one."""
    tiling, in_turns = CONSUMERS[name].tiling, CONSUMERS[name].in_turns
    # with turns, a mask by which not all visits are made alike, and sums whose order shows
    mask, tiles = ("kv < 300", 3) if in_turns else ("q + 40 >= kv", 2)

    def call(heads: int, q_len: int, kv_len: int) -> Any:
        draw = torch.Generator().manual_seed(1)
        q, do = torch.randn(2, 1, heads, q_len, DIM, generator=draw).bfloat16()
        k, v = torch.randn(2, 1, heads, kv_len, DIM, generator=draw).bfloat16()
        leaves = [x.requires_grad_() for x in (q, k, v)]
        with poisoned_memory():
            chosen: dict[str, Any] = {"block_mask": mask, "deterministic": in_turns}
            out = flexfa4.attention(*leaves, **chosen, backend="sm90")
            torch.autograd.grad(out, leaves, do)

    # more full tiles in a row than the rings have stages
    long = functools.partial(call, 2, 364, tiles * tiling.keys - 20)
    short = functools.partial(call, 5, 40, 20)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tuning, "BACKWARD", {(DIM, DIM): tiling})
        return [
            recorded(long, multiprocessors=2, which=MAIN),
            recorded(short, multiprocessors=1, which=MAIN),
        ]


@pytest.mark.parametrize(
    ("name", "edit"),
    [
        pytest.param(name, edit, marks=[pytest.mark.full] * (edit == "later" or name not in QUICK))
        for name, consuming in CONSUMERS.items()
        for edit in consuming.survivors
    ],
)
def test_what_survives_is_what_is_redundant_by_a_known_path(name: str, edit: str) -> None:
    recordings = launches(name)
    tried = list(EDITS[edit](recordings[0].kernel.ptx))
    assert len(tried) > 20
    assert survivors(tried, recordings) == set(CONSUMERS[name].survivors[edit])
