"""Mutation tests of the Blackwell backward kernel: all that makes order is needed, or known.

As for the forward kernel (`test_sm100_mutations`).  Two tiles of keys add to each tile of dQ, so
that sums are the same in whichever order they are made; queries are in tiles with and without mask.
"""

from __future__ import annotations

import functools
from typing import Any, Final

import pytest
import torch

pytest.importorskip("cutlass")

import flexfa4
from flexfa4.kernels.sm100.backward import architecture
from flexfa4.kernels.sm100.backward.storage import Tiling
from tests.forward_trials import poisoned_memory
from tests.kernel_mutants import RecordedLaunch, recorded, survivors
from tests.mutations import mutants

MAIN: Final = 2  # the launch of the main kernel, behind the forward pass and the preprocess kernel
DIM: Final = 64

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
ONE_AGENT: Final = (
    "elect.sync behind it brings the lanes together; and the lanes of a warp count as one"
)
LOADED_AT_ONCE: Final = "the emulator loads tensor memory when the instruction is issued"

HARMLESS: Final = {"bar.warp.sync": ONE_AGENT, "tcgen05.wait::ld.sync.aligned": LOADED_AT_ONCE}
"""Opcodes whose mutants may all survive."""

_FENCE: Final = "fence.mbarrier_init.release.cluster 1"
_WAIT: Final = "mbarrier.try_wait.parity.shared.b64"

KERNELS: Final[dict[str, tuple[Tiling, dict[str, str]]]] = {
    "two blocks": (
        Tiling(blocks=2, q_stages=1),
        {
            _FENCE: BLOCK_BARRIER,
            f"{_WAIT} 2": WITH_K,
            **{f"{_WAIT} {number}": BEHIND_DK for number in (4, 9)},
            f"{_WAIT} 8": BEHIND_SCORES,
            f"{_WAIT} 15": BEHIND_K,
        },
    ),
    "one block": (
        Tiling(),
        {
            _FENCE: BLOCK_BARRIER,
            f"{_WAIT} 2": WITH_K,
            **{f"{_WAIT} {number}": BEHIND_DK for number in (4, 7)},
            f"{_WAIT} 12": BEHIND_K,
        },
    ),
}
"""Which mutants survive, and the path that remains."""


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


@pytest.mark.parametrize("name", KERNELS)
def test_what_survives_is_what_is_redundant_by_a_known_path(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiling, known = KERNELS[name]
    monkeypatch.setattr(architecture, "tiling_for", lambda *_: tiling)
    launches = launches_of(tiling)
    tried = list(mutants(launches[0].kernel.ptx))
    assert len(tried) > 80
    found = {n for n in survivors(tried, launches) if n.rpartition(" ")[0] not in HARMLESS}
    assert found == set(known)
