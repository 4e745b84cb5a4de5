"""Polynomials that approximate 2^f on [0, 1) best, found by Remez's exchange; for tests.

The coefficients that kernels use are compared with those of this search, and not taken from
anywhere.  A polynomial is ``1 + c1 f + .. + cn f^n``: its first coefficient is exactly 1, so that
powers at integers are exact, that of masked scores, which is 0, among them.  What is minimised is
the largest relative error.

Coefficients are rounded to fp32 one after the other, from c1 on, and those behind a rounded one
are found anew, so that they make up for what rounding did.
"""

from __future__ import annotations

import itertools
import math

import torch

_POINTS = 20_001  # of the grid on which errors are looked for
_EXCHANGES = 30


def fitted_exp2(degree: int) -> tuple[float, ...]:
    """Return the coefficients of the best polynomial of a degree, fp32 numbers, the first is 1."""
    known = [1.0]
    while len(known) <= degree:
        best = _rest(known, degree)
        known.append(torch.tensor(best[0], dtype=torch.float32).item())
    return tuple(known)


def _rest(known: list[float], degree: int) -> list[float]:
    """Return the coefficients behind the known ones: those of least relative error."""
    unknown = degree + 1 - len(known)
    grid = torch.linspace(0, 1, _POINTS, dtype=torch.float64)[1:]
    extremes = 0.5 - 0.5 * torch.cos(
        math.pi * (torch.arange(unknown + 1, dtype=torch.float64) + 1) / (unknown + 1)
    )
    for _ in range(_EXCHANGES):
        found = _levelled(known, extremes, unknown)
        error = _relative_error([*known, *found], grid)
        extremes = _extremes(grid, error, unknown + 1)
    return found


def _levelled(known: list[float], points: torch.Tensor, unknown: int) -> list[float]:
    """Return coefficients whose errors at the points are of one size, with signs in turn."""
    powers = torch.stack([points ** (len(known) + i) for i in range(unknown)], dim=1)
    signs = torch.tensor([(-1.0) ** i for i in range(len(points))], dtype=torch.float64)
    exact = torch.exp2(points)
    matrix = torch.cat([powers, (signs * exact)[:, None]], dim=1)
    right = exact - polynomial(known, points)
    return torch.linalg.solve(matrix, right)[:-1].tolist()


def polynomial(coefficients: list[float], at: torch.Tensor) -> torch.Tensor:
    """Return the values of a polynomial, fp64; the first coefficient is the constant."""
    total = torch.zeros_like(at)
    for coefficient in reversed(coefficients):
        total = total * at + coefficient
    return total


def _relative_error(coefficients: list[float], at: torch.Tensor) -> torch.Tensor:
    return polynomial(coefficients, at) / torch.exp2(at) - 1


def _extremes(grid: torch.Tensor, error: torch.Tensor, count: int) -> torch.Tensor:
    """Return `count` points, one of the largest error between any two changes of its sign."""
    signs = torch.sign(error)
    starts = [0, *(torch.nonzero(signs[1:] != signs[:-1])[:, 0] + 1).tolist(), len(grid)]
    peaks = [
        start + int(error[start:end].abs().argmax()) for start, end in itertools.pairwise(starts)
    ]
    while len(peaks) > count:  # the least one goes, at an end, so that signs still alternate
        peaks.pop(0 if error[peaks[0]].abs() < error[peaks[-1]].abs() else -1)
    assert len(peaks) == count, f"{len(peaks)} extremes of {count}"
    return grid[peaks]
