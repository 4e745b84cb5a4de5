"""tcgen05.commit: barriers learn that the tensor core is done, and not before."""

from __future__ import annotations

import pytest
import torch

from flexfa4.emulator.errors import EmulationError
from flexfa4.emulator.failures.matrices import MulticastMaskError
from tests.tensor_core_programs import Layout, Program, instruction_descriptor, product, put

LAYOUTS = (Layout.compact(2, False, 128, 2), Layout.compact(2, False, 32, 2))


def ones() -> torch.Tensor:
    image = torch.zeros(1, 65536, dtype=torch.uint8)
    put(image[0], 0, LAYOUTS[0], torch.ones(128, 16).half())
    put(image[0], 32768, LAYOUTS[1], torch.ones(32, 16).half())
    return image


def mma(accumulate: bool) -> str:
    return product(
        "tcgen05.mma.cta_group::1.kind::f16",
        instruction_descriptor(128, 32),
        (LAYOUTS[0], 0),
        (LAYOUTS[1], 32768),
        accumulate,
    )


@pytest.mark.parametrize("schedule", ["eager", "late", "random", "priority"])
def test_products_are_summed_in_the_order_of_issue(schedule: str) -> None:
    body = mma(False) + mma(True) * 3
    for seed in range(3):
        out, _ = Program(body).run(ones(), schedule=schedule, seed=seed)
        assert set(out.view(torch.float32).flatten().tolist()) == {64.0}


def test_a_product_has_not_happened_before_the_barrier_says_so() -> None:
    """The wait is edited away: a load sees the old values, and the race detector says so."""
    before = torch.full((1, 128, 32), 5.0).view(torch.int32)
    program = Program(mma(False), stored=tuple(range(32)), waits=False)
    out, _ = program.run(ones(), before, schedule="late", check=("uninitialised",))
    assert set(out.view(torch.float32).flatten().tolist()) == {5.0}
    with pytest.raises(EmulationError) as caught:
        program.run(ones(), before, schedule="eager")
    assert type(caught.value).__name__ == "RaceError"


def test_a_commit_reaches_blocks_of_the_cluster_only() -> None:
    body = """
    mov.b16 %h1, 4;
    tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64
        [barrier], %h1;
"""
    with pytest.raises(MulticastMaskError, match="mask 0x4 for a cluster of 1 blocks"):
        Program(body, stored=tuple(range(32))).run(ones())


def test_a_commit_needs_a_barrier() -> None:
    body = """
    tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [window];
"""
    with pytest.raises(EmulationError) as caught:
        Program(body, stored=tuple(range(32))).run(ones())
    assert type(caught.value).__name__ == "NoMbarrierError"
