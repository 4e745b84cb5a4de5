"""The tensor memory of a block of the Blackwell backward kernel, as a computed plan.

Tensor memory has 128 lanes, a key each, by 512 columns of 32 bits.  Probabilities take the place of
the scores that they were made of, and gradients of scores that of gradients of probabilities: two
to a column, each warpgroup within its own columns.  dQ has queries for lanes.  Where there is no
room for it, it takes the place of the gradients, and the next tile's wait until it has been read.

A tile of queries holds what it needs for some of the *steps* of the product warp (`STEPS`), one
after the other; from a tile to the next one all of it repeats.  `TensorMemory.conflicts` says what
would be in use twice at once.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Final

from flexfa4.kernels.sm100.forward.tmem import COLUMNS

GROUPS: Final = 2
"""Warpgroups that compute, with half of a tile's queries each."""

STEPS: Final = ("dv", "next scores", "dk", "dq", "next changes")
"""The products of a tile, in the order of issue; those of the next tile among them."""

_LEAST: Final = 32  # columns that may be allocated, and a power of two


@dataclass(frozen=True)
class Region:
    """Columns that hold something for a while.

    Attributes:
        first: column.
        columns: how many.
        born, dies: from which step on, and before which it is free again; counted from the first
            one of the tile that it belongs to, and negative before.  None: always.
        follows: name of a region that the same threads have read before they write this one, which
            therefore may take its place.
    """

    first: int
    columns: int
    born: int | None = None
    dies: int | None = None
    follows: str | None = None

    @property
    def stop(self) -> int:
        """The column behind the last."""
        return self.first + self.columns

    @property
    def steps(self) -> range:
        """The steps for which it is in use."""
        if self.born is None or self.dies is None:
            return range(len(STEPS))
        return range(self.born, self.dies)

    def meets(self, other: Region) -> bool:
        """Return whether both hold something in one column at one time, of any two tiles."""
        if self.stop <= other.first or other.stop <= self.first:
            return False
        period = len(STEPS)
        return bool({step % period for step in self.steps} & {s % period for s in other.steps})


@dataclass(frozen=True)
class TensorMemory:
    """Which columns hold what, from the first one that is allocated.

    Attributes:
        scores, changes: S and dP, keys by queries, fp32: a region for each warpgroup.
        probabilities, gradients: P and dS, likewise.
        dv, dk: sums, keys by head dim.
        dq: queries by head dim; of two blocks that compute together, a block's half of the queries
            by half of the head dim in the lower lanes, and by the other half in the upper ones.
        columns: that are used.
    """

    scores: tuple[Region, ...]
    changes: tuple[Region, ...]
    probabilities: tuple[Region, ...]
    gradients: tuple[Region, ...]
    dv: Region
    dk: Region
    dq: Region
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
    def dq_has_room(self) -> bool:
        """Whether dQ has columns of its own, so that it may be read while the next dP is made."""
        return not any(self.dq.first < region.stop for region in self.changes)

    @property
    def regions(self) -> dict[str, Region]:
        """What lies where, by name."""
        several = {
            "scores": self.scores, "changes": self.changes,
            "probabilities": self.probabilities, "gradients": self.gradients,
        }  # fmt: skip
        found = {"dv": self.dv, "dk": self.dk, "dq": self.dq}
        for name, of in several.items():
            found |= {f"{name} {group}": region for group, region in enumerate(of)}
        return found

    def conflicts(self) -> list[tuple[str, str]]:
        """Return the names of regions that hold something in one place at one time.

        A region that is still in use when the next tile's begins is in conflict with itself.
        """
        regions = self.regions
        found = [(name, name) for name, r in regions.items() if len(r.steps) > len(STEPS)]
        for (a, one), (b, other) in itertools.combinations(regions.items(), 2):
            if one.meets(other) and a != other.follows and b != one.follows:
                found.append((a, b))
        return found


def plan_tensor_memory(queries: int, head_dims: tuple[int, int], blocks: int = 1) -> TensorMemory:
    """Return the plan for tiles of so many queries; what does not fit is planned all the same.

    Args:
        queries: of a tile.
        head_dims: of q and k, and of v.
        blocks: that compute together: of two, each has half of the queries of dQ, in half of the
            columns.
    """
    at = {name: step for step, name in enumerate(STEPS)}
    period = len(STEPS)
    head_dim, head_dim_v = head_dims
    *starts, end = itertools.accumulate((queries, queries, head_dim_v, head_dim), initial=0)
    own = end + head_dim // blocks <= COLUMNS
    dies = at["dq"] + period if own else at["next changes"]
    dq = Region(end if own else starts[1], head_dim // blocks, at["dq"], dies)
    scores, probabilities = _halves("scores", starts[0], queries, at["next scores"], at["dv"])
    changes, gradients = _halves("changes", starts[1], queries, at["next changes"], at["dk"])
    return TensorMemory(
        scores,
        changes,
        probabilities,
        gradients,
        Region(starts[2], head_dim_v),
        Region(starts[3], head_dim),
        dq,
        max(end, dq.stop),
    )


def _halves(
    name: str, first: int, queries: int, made: int, used: int
) -> tuple[tuple[Region, ...], tuple[Region, ...]]:
    """Return what products leave for each warpgroup, and what these make of it in its place.

    Args:
        name: of the former.
        first: column.
        queries: of a tile.
        made: the step of the next tile's products.
        used: the step of the product that takes what was made of them.
    """
    width, born = queries // GROUPS, made - len(STEPS)
    starts = [first + group * width for group in range(GROUPS)]
    products = tuple(Region(start, width, born, used) for start in starts)
    rounded = tuple(
        Region(start, width // 2, born, used + 1, follows=f"{name} {group}")
        for group, start in enumerate(starts)
    )
    return products, rounded
