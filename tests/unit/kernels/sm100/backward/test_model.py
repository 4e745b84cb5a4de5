"""The roofline of the Blackwell backward kernel."""

from __future__ import annotations

import pytest

from flexfa4.kernels.sm100.backward.model import Cycles, SharedMemory, cycles_of
from flexfa4.kernels.sm100.backward.storage import Tiling

# FlashAttention-4 (arXiv 2603.05451), the table of the backward pass for a head dim of 128.  Of two
# blocks the paper has 384 cycles more, of copies of dS from shared memory to the other block: here
# half of dS is written there at once.
TABLE = {
    1: Cycles(2560, SharedMemory(2048, 256, 1024), 1024),
    2: Cycles(2560, SharedMemory(1536, 256, 512), 1024),
}


@pytest.mark.parametrize("blocks", TABLE)
def test_cycles_are_those_of_the_paper(blocks: int) -> None:
    assert cycles_of(Tiling(blocks=blocks), (128, 128)) == TABLE[blocks]


def test_shared_memory_bounds_one_block_and_products_two() -> None:
    alone, together = (cycles_of(Tiling(blocks=blocks), (128, 128)) for blocks in (1, 2))
    assert alone.least == sum(alone.shared_memory) == 3328
    assert together.least == together.products == 2560
