"""How long blocks wait for their turns, by simulation."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import flexfa4
from flexfa4.kernels.backward.architecture import BackwardKernels
from flexfa4.kernels.backward.waiting import Launches
from flexfa4.kernels.sm90.backward.architecture import HOPPER_BACKWARD
from flexfa4.kernels.sm100.backward.architecture import BLACKWELL_BACKWARD
from tests import simulated_turns

LENGTH = 8192
ARCHITECTURES = pytest.mark.parametrize(
    "kernels", [HOPPER_BACKWARD, BLACKWELL_BACKWARD], ids=["sm90", "sm100"]
)
DOCUMENT = torch.cat([torch.full((700 + 150 * i,), i) for i in range(8)])[:LENGTH]


def launches(
    kernels: BackwardKernels,
    mask: Any,
    multiprocessors: int | None = None,
    heads: tuple[int, int] = (8, 8),
) -> Launches:
    made = None
    if mask is not None:
        made = flexfa4.create_block_mask(mask, q_len=LENGTH, kv_len=LENGTH)
    return simulated_turns.launches(
        kernels, simulated_turns.tensors(2, heads, LENGTH), made, multiprocessors
    )


def documents(b: Any, h: Any, q: Any, kv: Any) -> Any:
    return (DOCUMENT[q] == DOCUMENT[kv]) & (q >= kv)


@ARCHITECTURES
@pytest.mark.parametrize(
    "mask", [None, "q >= kv", "(q >= kv) & (q - kv < 700)", documents],
    ids=["full", "causal", "window", "documents"],
)  # fmt: skip
def test_blocks_hardly_wait_in_the_orders_that_are_chosen(
    kernels: BackwardKernels, mask: Any
) -> None:
    workers = 16  # for 4 heads: few, so that the end does not count
    together = 2 if kernels is BLACKWELL_BACKWARD else 1
    found = launches(kernels, mask, workers * together, heads=(2, 2))
    assert found.stall < 0.1
    assert mask is None or found.naive_stall > found.stall + 0.05


@ARCHITECTURES
@pytest.mark.parametrize("heads", [(8, 8), (8, 2)], ids=str)
def test_one_worker_never_waits_for_itself(
    kernels: BackwardKernels, heads: tuple[int, int]
) -> None:
    """But for the latency of turns at a tile that it meets twice in a row, of which there is none.

    It makes all visits, whoever shares key heads.
    """
    blocks = 2 if kernels is BLACKWELL_BACKWARD else 1
    found = launches(kernels, "q >= kv", multiprocessors=blocks, heads=heads)
    assert found.free == launches(kernels, "q >= kv", multiprocessors=blocks).free
    assert found.stall == pytest.approx(0, abs=0.01)


def test_where_all_visits_are_masked_they_cost_more() -> None:
    window = launches(HOPPER_BACKWARD, "(q >= kv) & (q - kv < 700)")
    causal = launches(HOPPER_BACKWARD, "q >= kv")
    costs = HOPPER_BACKWARD.turn_costs
    assert costs.visit > 1 and costs.masked > 1
    plain = 1 / (1 + causal.stall) / costs.visit
    assert not causal.masked and causal.ratio == pytest.approx(plain)
    more = costs.visit * costs.masked
    assert window.masked and window.ratio == pytest.approx(1 / (1 + window.stall) / more)
