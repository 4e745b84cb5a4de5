"""The tensor memory of a block of the Blackwell backward kernel, as a computed plan.

Tensor memory has 128 lanes, a key each, by 512 columns of 32 bits.  Probabilities take the place of
the scores that they were made of, and gradients of scores that of gradients of probabilities: two
to a column.  dQ has queries for lanes.  Where there is room for it, or half of the columns of
scores are enough, it is the last product of a tile, behind dP of the next one, and runs while that
one's gradients are computed.  Otherwise it takes the place of the gradients, before the next dP.
Where not even S and dP have room beside each other, each tile is done before the next one begins.

A tile of queries holds what it needs for some of the *steps* of the product warp, one after the
other; from a tile to the next one all of it repeats.  `TensorMemory.conflicts` says what would be
in use twice at once.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from flexfa4.kernels.sm100.forward.tmem import COLUMNS

GROUPS: Final = 2
"""Warpgroups that compute, with half of a tile's queries each."""

DQ_LAST: Final = ("dv", "next scores", "dk", "next changes", "dq")
DQ_BEFORE_CHANGES: Final = ("dv", "next scores", "dk", "dq", "next changes")
ONE_BY_ONE: Final = ("dv", "dk", "dq", "next scores", "next changes")
"""Orders of the products of a tile; those of the next tile among them."""

_PERIOD: Final = len(DQ_LAST)
_LEAST: Final = 32  # columns that may be allocated, and a power of two


@dataclass(frozen=True)
class Region:
    """Columns that hold something for a while.

    Attributes:
        first: column.
        columns: how many.
        born, dies: from which step on, and before which it is free again; counted from the first
            one of the tile that it belongs to, and negative before.  None: always.
        follows: name of a region that has been read before this one is written, which therefore
            may take its place.
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
            return range(_PERIOD)
        return range(self.born, self.dies)

    def meets(self, other: Region) -> bool:
        """Return whether both hold something in one column at one time, of any two tiles."""
        if not self.overlaps(other):
            return False
        return bool({step % _PERIOD for step in self.steps} & {s % _PERIOD for s in other.steps})

    def overlaps(self, other: Region) -> bool:
        """Return whether both have a column in common."""
        return self.first < other.stop and other.first < self.stop


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
        steps: the order of products.
        scores_until: the step before which scores have been read.
        dq_until: the step before which dQ has been read, of its own tile or of one behind it.
    """

    scores: tuple[Region, ...]
    changes: tuple[Region, ...]
    probabilities: tuple[Region, ...]
    gradients: tuple[Region, ...]
    dv: Region
    dk: Region
    dq: Region
    columns: int
    steps: tuple[str, ...]
    scores_until: str
    dq_until: str

    @property
    def allocated(self) -> int:
        """Columns that are allocated: a power of two."""
        return max(_LEAST, 1 << (self.columns - 1).bit_length())

    @property
    def fits(self) -> bool:
        """Whether a multiprocessor has as much, and nothing is in use twice at once."""
        return self.columns <= COLUMNS and not self.conflicts()

    @property
    def wait_for_dq(self) -> frozenset[str]:
        """The steps that have to wait until the last dQ before them has been read.

        Where the first one that takes its place is of the next tile but one, dQ itself waits as
        well: behind the last tile but one there is no such step.
        """
        behind = self.steps.index(self.dq_until) > self.steps.index("dq")
        return frozenset({self.dq_until} if behind else {self.dq_until, "dq"})

    @property
    def dq_is_last(self) -> bool:
        """Whether dQ is made while gradients of the next tile are computed."""
        return self.steps == DQ_LAST

    @property
    def one_by_one(self) -> bool:
        """Whether all products of a tile are done before those of the next one begin."""
        return self.steps == ONE_BY_ONE

    @property
    def hands_over(self) -> bool:
        """Whether the second warpgroup writes to where the first one has read."""
        return self.probabilities[1].follows == "scores 0"

    @property
    def regions(self) -> dict[str, Region]:
        """What lies where, by name."""
        several = {
            "scores": self.scores, "changes": self.changes,
            "probabilities": self.probabilities, "gradients": self.gradients,
        }  # fmt: skip
        found = {"dv": self.dv, "dk": self.dk, "dq": self.dq}
        for name, of in several.items():
            found |= _named(name, of)
        return found

    def conflicts(self) -> list[tuple[str, str]]:
        """Return the names of regions that hold something in one place at one time.

        A region that is still in use when the next tile's begins is in conflict with itself.
        """
        regions = self.regions
        found = [(name, name) for name, r in regions.items() if len(r.steps) > _PERIOD]
        for (a, one), (b, other) in itertools.combinations(regions.items(), 2):
            if one.meets(other) and a != other.follows and b != one.follows:
                found.append((a, b))
        return found


@dataclass(frozen=True)
class _Layout:
    """How the regions of a tile lie; scores have the first columns.

    Attributes:
        steps: the order of products.
        changes: the first column of dP.
        dq: the first column of dQ.
        probabilities: the first column of P, of each warpgroup.
        scores_until, dq_until: see `TensorMemory`.
    """

    steps: tuple[str, ...]
    changes: int
    dq: int
    probabilities: tuple[int, int]
    scores_until: str = "dv"
    dq_until: str = "dq"


def plan_tensor_memory(
    queries: int, head_dims: tuple[int, int], blocks: int = 1, most: int = COLUMNS
) -> TensorMemory:
    """Return the plan for tiles of so many queries; what does not fit is planned all the same.

    Args:
        queries: of a tile.
        head_dims: of q and k, and of v.
        blocks: that compute together: of two, each has half of the queries of dQ, in half of the
            columns.
        most: columns that may be used.
    """
    layout = _layout(queries, head_dims, blocks, most)
    at = {name: step for step, name in enumerate(layout.steps)}
    half, ahead = queries // GROUPS, {name: step - _PERIOD for name, step in at.items()}
    scores, changes = (range(x, x + queries, half) for x in (0, layout.changes))
    read = ahead[layout.scores_until] if layout.scores_until != "dv" else at["dv"]
    scored = _regions(scores, half, (ahead["next scores"], read))
    dv = Region(layout.changes + queries, head_dims[1])
    dk = Region(dv.stop, head_dims[0])
    taken = at[layout.dq_until]
    taken += _PERIOD if taken <= at["dq"] else 0
    dq = Region(layout.dq, head_dims[0] // blocks, at["dq"], taken)
    changed = _regions(changes, half, (ahead["next changes"], at["dk"]))
    return TensorMemory(
        scored,
        changed,
        _regions(
            layout.probabilities,
            half // 2,
            (ahead["next scores"], at["dv"] + 1),
            _named("scores", scored),
        ),
        _regions(
            changes,
            half // 2,
            (ahead["next changes"], at["dk"] + 1),
            _named("changes", changed),
        ),
        dv,
        dk,
        dq,
        max(dk.stop, dq.stop),
        layout.steps,
        layout.scores_until,
        layout.dq_until,
    )


def _layout(queries: int, head_dims: tuple[int, int], blocks: int, most: int) -> _Layout:
    """Return how regions lie; arguments are those of `plan_tensor_memory`."""
    dq = head_dims[0] // blocks
    half, end = queries // GROUPS, 2 * queries + sum(head_dims)
    own = (0, half)
    if end + dq <= most:
        return _Layout(DQ_LAST, queries, end, own)
    if end <= most and dq <= half:  # between the probabilities of both warpgroups
        apart = (0, queries - half // 2)
        return _Layout(DQ_LAST, queries, half // 2, apart, "dq", "next scores")
    if end <= most or blocks == 1:
        return _Layout(DQ_BEFORE_CHANGES, queries, queries, own, dq_until="next changes")
    last, lower = half + queries - dq, (0, half // 2)
    return _Layout(ONE_BY_ONE, half, last, lower, "next changes", "next scores")


def _regions(
    starts: Iterable[int],
    columns: int,
    life: tuple[int, int],
    read: dict[str, Region] | None = None,
) -> tuple[Region, ...]:
    """Return a region for each warpgroup.

    Args:
        starts: the first columns.
        columns: of each.
        life: steps from which on it is in use, and before which it is free again.
        read: what has been read before these are written, by name.
    """
    made = [Region(start, columns, *life) for start in starts]
    names = [[n for n, other in (read or {}).items() if r.overlaps(other)] for r in made]
    return tuple(replace(r, follows=n[0] if n else None) for r, n in zip(made, names, strict=True))


def _named(name: str, regions: tuple[Region, ...]) -> dict[str, Region]:
    """Return the regions of both warpgroups by name."""
    return {f"{name} {group}": region for group, region in enumerate(regions)}
