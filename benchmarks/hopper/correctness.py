"""Whether an output may be timed: slices of it against attention computed in fp64 row by row.

A slice is a few consecutive queries of one batch and head.  The mods are called on index tensors,
so nothing is shared with any provider.  The budget of a slice is that of `flexfa4.testing.agrees`:
twice the error that plain torch makes in bf16, and rounding.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import torch
from hopper.providers import Problem

from flexfa4.testing import agrees

ROWS: Final = 32
"""Queries of a slice."""


@dataclass(frozen=True)
class Slice:
    """Some queries of a batch entry and head."""

    batch: int
    head: int
    rows: range


@dataclass(frozen=True, eq=False)
class Expected:
    """What the output should be in a slice.

    Attributes:
        where: the slice.
        exact: fp64 ``(rows, Dv)``.
        eager: the same by plain torch in bf16.
    """

    where: Slice
    exact: torch.Tensor
    eager: torch.Tensor

    def of(self, out: torch.Tensor) -> torch.Tensor:
        """Return the slice of an output ``(B, H, S, Dv)``."""
        rows = self.where.rows
        return out[self.where.batch, self.where.head, rows.start : rows.stop]


def slices(problem: Problem) -> Iterator[Slice]:
    """Yield the first, middle and last queries of the first and of the last batch and head."""
    shape = problem.case.shape
    rows = min(ROWS, shape.length)
    for batch, head in sorted({(0, 0), (shape.batch - 1, shape.heads - 1)}):
        for start in sorted({0, (shape.length - rows) // 2, shape.length - rows}):
            yield Slice(batch, head, range(start, start + rows))


def expected(problem: Problem) -> list[Expected]:
    """Return what the output should be in all slices."""
    return [
        Expected(
            where,
            attended(problem, where, torch.float64),
            attended(problem, where, problem.q.dtype),
        )
        for where in slices(problem)
    ]


def attended(problem: Problem, where: Slice, dtype: torch.dtype) -> torch.Tensor:
    """Return a slice of the output by plain torch in some dtype, ``(rows, Dv)``."""
    mods, shape, device = problem.mods, problem.case.shape, problem.q.device
    kv_head = where.head // (shape.heads // shape.kv_heads)
    rows = torch.arange(where.rows.start, where.rows.stop, device=device)
    q = problem.q[where.batch, where.head, rows].to(dtype)
    k, v = (t[where.batch, kv_head].to(dtype) for t in (problem.k, problem.v))
    index = (
        torch.tensor(where.batch, device=device),
        torch.tensor(where.head, device=device),
        rows[:, None],
        torch.arange(shape.length, device=device),
    )
    score = (q @ k.T) * shape.dim**-0.5
    if mods.score is not None:
        score = mods.score(score, *index).to(dtype)
    if mods.mask is not None:
        score = torch.where(mods.mask(*index), score, -math.inf)
    return score.softmax(-1) @ v


@dataclass(frozen=True)
class Verdict:
    """Whether an output is right, and its largest error in any slice."""

    right: bool
    error: float


def verdict(out: torch.Tensor, all_expected: list[Expected]) -> Verdict:
    """Return whether an output ``(B, H, S, Dv)`` is right in all slices."""
    found = [(each.of(out), each) for each in all_expected]
    right = all(agrees(mine, each.exact, each.eager, terms=1) for mine, each in found)
    errors = [float((mine.double() - each.exact).abs().max()) for mine, each in found]
    return Verdict(right, max(errors))
