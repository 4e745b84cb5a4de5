"""The tensor memory of a block of the Blackwell forward kernel, as a computed plan.

Tensor memory has 128 lanes, one for each row of a half, by 512 columns of 32 bits.  Each half has
scores and an output of its own.  Probabilities take the place of the scores that they were made of:
two to a column, so half of the columns.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Final

COLUMNS: Final = 512
"""Columns of a multiprocessor (PTX ISA, "Tensor Memory Addressing")."""

HALVES: Final = 2
"""Tiles of 128 queries that a block works on side by side."""

_LEAST: Final = 32  # columns that may be allocated, and a power of two


@dataclass(frozen=True)
class TensorMemory:
    """Which columns hold what, from the first one that is allocated.

    Attributes:
        keys: columns of a tile of scores, fp32.
        head_dim_v: columns of an output, fp32.
        scores, probabilities, out: first columns, of each half.
        columns: that are used.
    """

    keys: int
    head_dim_v: int
    scores: tuple[int, int]
    probabilities: tuple[int, int]
    out: tuple[int, int]
    columns: int

    @property
    def allocated(self) -> int:
        """Columns that are allocated: a power of two."""
        return max(_LEAST, 1 << (self.columns - 1).bit_length())

    @property
    def fits(self) -> bool:
        """Whether a multiprocessor has as much."""
        return self.columns <= COLUMNS

    @property
    def regions(self) -> dict[str, tuple[int, int]]:
        """What lies where, as first columns and those behind the last, by name."""
        widths = {
            "scores": (self.scores, self.keys),
            "probabilities": (self.probabilities, self.keys // 2),
            "out": (self.out, self.head_dim_v),
        }
        return {
            f"{name} {half}": (starts[half], starts[half] + width)
            for name, (starts, width) in widths.items()
            for half in range(HALVES)
        }


def plan_tensor_memory(keys: int, head_dim_v: int) -> TensorMemory:
    """Return the plan for tiles of `keys` keys; what does not fit is planned all the same."""
    *starts, columns = itertools.accumulate((keys, keys, head_dim_v, head_dim_v), initial=0)
    scores, out = (starts[0], starts[1]), (starts[2], starts[3])
    return TensorMemory(keys, head_dim_v, scores, scores, out, columns)
