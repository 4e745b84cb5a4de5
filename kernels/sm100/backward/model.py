"""How many cycles a tile of queries keeps each unit of a multiprocessor busy: a roofline.

Counted for one block, with its 128 keys, whether it computes alone or together with another one
(FlashAttention-4, arXiv 2603.05451, tables of the backward pass).  What a tile takes is at least
the most of them.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from flexfa4.kernels.sm100.backward.storage import KEYS, Tiling, plan_storage

_FLOPS: Final = 8192  # of bf16 or fp16, in a cycle
_SHARED_BYTES: Final = 128  # in a cycle
_EXPONENTIALS: Final = 16  # in a cycle
_FLOAT: Final = 4  # bytes
_ROUNDED: Final = 2  # bytes


class SharedMemory(NamedTuple):
    """Cycles of shared memory.

    Attributes:
        operands: that products read.
        gradients: dS, written once: half of it, of two blocks, by the other one.
        sums: dQ, written and read on its way to global memory.
    """

    operands: int
    gradients: int
    sums: int


class Cycles(NamedTuple):
    """Cycles of a tile, by unit."""

    products: int
    shared_memory: SharedMemory
    exponentials: int

    @property
    def least(self) -> int:
        """What a tile takes at least."""
        return max(self.products, sum(self.shared_memory), self.exponentials)


def cycles_of(tiling: Tiling, head_dims: tuple[int, int]) -> Cycles:
    """Return the cycles of a tile of queries."""
    head_dim, head_dim_v = head_dims
    storage, scores = plan_storage(tiling, head_dims), KEYS * tiling.queries
    operands = (
        storage.k, storage.q, storage.v, storage.do,
        storage.do_of_dv, storage.q_of_dk, storage.ds, storage.k_of_dq,
    )  # fmt: skip
    sums = tiling.queries // tiling.blocks * head_dim * _FLOAT
    return Cycles(
        2 * scores * (3 * head_dim + 2 * head_dim_v) // _FLOPS,
        SharedMemory(
            sum(tile.bytes for tile in operands) // _SHARED_BYTES,
            scores * _ROUNDED // _SHARED_BYTES,
            2 * sums // _SHARED_BYTES,
        ),
        scores // _EXPONENTIALS,
    )
