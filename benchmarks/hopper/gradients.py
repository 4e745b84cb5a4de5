"""Whether gradients may be timed: parts of them against attention in fp64.

Of the first and the last head: dq of some queries of a batch entry, dk and dv of some keys, summed
over all of their queries and heads, and what a mod learns, where its last axis or its first one is
that of heads.  Queries are taken some at a time, by plain torch and its autograd.  The budget is
that of `flexfa4.testing.agrees`: twice the error that plain torch makes in bf16, and rounding.  In
what is learned nearly all of a sum may cancel, so its error is measured against the same sum
without signs, as `flexfa4.testing.compare` does; it may be twice the largest share that plain torch
errs by in the other parts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from hopper.providers import Prepared, Problem

from flexfa4.testing import agrees

PART: Final = 32
"""Queries or keys of a part."""
_AT_ONCE: Final = 1 << 23  # scores

Gradients = tuple[torch.Tensor, ...]
"""Of q, k and v, ``(B, H, S, D)``, and of what is learned."""


@dataclass(frozen=True, eq=False)
class ExpectedPart:
    """What a part of a gradient should be.

    Attributes:
        name: which gradient.
        place: which of `Gradients`, and where in it.
        exact: by fp64.
        eager: the same by plain torch in bf16; None where there is a budget.
        budget: how far a number may be off.
    """

    name: str
    place: tuple[int, tuple[Any, ...]]
    exact: torch.Tensor
    eager: torch.Tensor | None
    budget: float = 0.0

    @property
    def share(self) -> float:
        """How far plain torch is off, as a share of the largest number."""
        if self.eager is None:
            return 0.0
        return float((self.eager.double() - self.exact).abs().max() / self.exact.abs().max())

    def holds(self, found: torch.Tensor) -> bool:
        """Return whether a gradient is right in this part."""
        if self.eager is None:
            return float((found.double() - self.exact).abs().max()) <= self.budget
        return agrees(found, self.exact, self.eager, terms=1)


@dataclass(frozen=True)
class Verdict:
    """Whether gradients are right, their largest error, and which one has it."""

    right: bool
    error: float
    worst: str


def gradients_of(prepared: Prepared, result: Sequence[torch.Tensor]) -> Gradients:
    """Return what a provider computed as gradients in ``(B, H, S, D)``, and of what is learned."""
    return (*map(prepared.view, result[:3]), *result[3:])


def verdict(found: Gradients, expected: list[ExpectedPart]) -> Verdict:
    """Return whether gradients are right in all parts."""
    right, error, worst = True, -1.0, ""
    for part in expected:
        which, place = part.place
        mine = found[which][place]
        right &= part.holds(mine)
        off = float((mine.double() - part.exact).abs().max())
        if not off <= error and not math.isnan(error):  # the first NaN stays
            error, worst = off, part.name
    return Verdict(right, error, worst)


def expected_gradients(
    problem: Problem, do: torch.Tensor, learned: tuple[torch.Tensor, ...]
) -> list[ExpectedPart]:
    """Return what gradients should be, in all parts.

    Args:
        problem: the call.
        do: the gradient that comes in, ``(B, H, S, Dv)``.
        learned: what is learned.
    """
    shape, found = problem.case.shape, list[ExpectedPart]()
    group = shape.heads // shape.kv_heads
    for batch, kv_head in sorted({(0, 0), (shape.batch - 1, shape.kv_heads - 1)}):
        for part in _parts(shape.length):
            heads = range(kv_head * group, (kv_head + 1) * group)
            of_keys = [
                _Sums(problem, do, dtype).of_keys(batch, heads, part)
                for dtype in (torch.float64, problem.q.dtype)
            ]
            place: tuple[Any, ...] = (batch, kv_head, part)
            found += [
                ExpectedPart(f"d{name} of keys from {part.start}", (which, place), x, y)
                for which, name, x, y in zip((1, 2), "kv", *of_keys, strict=True)
            ]
            exact_q, eager_q = (
                _Sums(problem, do, dtype).of_queries(batch, heads[0], part)
                for dtype in (torch.float64, problem.q.dtype)
            )
            place = (batch, heads[0], part)
            name = f"dq of queries from {part.start}"
            found.append(ExpectedPart(name, (0, place), exact_q, eager_q))
    share = max(part.share for part in found)
    unsigned = _Sums(replace(problem, v=problem.v.detach().abs()), do.abs(), torch.float64)
    for which, tensor in enumerate(learned, start=3):
        for head in sorted({0, shape.heads - 1}):
            of_head = (head,) if tensor.shape[0] == shape.heads else (..., head)
            exact, size = (
                sums.of_learned(tensor, head)[of_head].double()
                for sums in (_Sums(problem, do, torch.float64), unsigned)
            )
            most = float(torch.maximum(exact.abs(), size.abs()).max())
            name = f"learned of head {head}"
            found.append(ExpectedPart(name, (which, of_head), exact, None, 2 * share * most))
    return found


def _parts(length: int) -> list[slice]:
    """Return the first, middle and last positions."""
    size = min(PART, length)
    return [slice(s, s + size) for s in sorted({0, (length - size) // 2, length - size})]


@dataclass(frozen=True, eq=False)
class _Sums:
    """Gradients by plain torch in a dtype."""

    problem: Problem
    do: torch.Tensor
    dtype: torch.dtype

    def of_queries(self, batch: int, head: int, part: slice) -> torch.Tensor:
        """Return dq of some queries."""
        q, k, v = self._of_head(batch, head)
        rows = torch.arange(part.start, part.stop, device=q.device)
        own = q[rows].requires_grad_()
        out = self._attended(batch, head, rows, (own, k, v))
        return torch.autograd.grad(out, own, self.do[batch, head, rows].to(self.dtype))[0]

    def of_keys(self, batch: int, heads: range, part: slice) -> list[torch.Tensor]:
        """Return dk and dv of some keys, summed over the query heads that share them."""
        totals: list[torch.Tensor] = []
        for head in heads:
            q, k, v = self._of_head(batch, head)
            own_k, own_v = (t[part].clone().requires_grad_() for t in (k, v))
            whole = [
                torch.cat((t[: part.start], own, t[part.stop :]))
                for t, own in ((k, own_k), (v, own_v))
            ]
            for rows in self._chunks(q.device):
                out = self._attended(batch, head, rows, (q[rows], *whole))
                do = self.do[batch, head, rows].to(self.dtype)
                parts = torch.autograd.grad(out, (own_k, own_v), do, retain_graph=True)
                new = [g.double() for g in parts]
                totals = [a + b for a, b in zip(totals, new, strict=True)] if totals else new
        return [total if self.dtype is torch.float64 else total.to(self.dtype) for total in totals]

    def of_learned(self, tensor: torch.Tensor, head: int) -> torch.Tensor:
        """Return the gradient of what is learned that comes from one head."""
        total = torch.zeros_like(tensor)
        for batch in range(self.problem.case.shape.batch):
            q, k, v = self._of_head(batch, head)
            for rows in self._chunks(q.device):
                out = self._attended(batch, head, rows, (q[rows], k, v))
                do = self.do[batch, head, rows].to(self.dtype)
                total += torch.autograd.grad(out, tensor, do)[0]
        return total

    def _of_head(self, batch: int, head: int) -> tuple[torch.Tensor, ...]:
        p, shape = self.problem, self.problem.case.shape
        kv_head = head // (shape.heads // shape.kv_heads)
        found = (p.q[batch, head], p.k[batch, kv_head], p.v[batch, kv_head])
        return tuple(t.detach().to(self.dtype) for t in found)

    def _chunks(self, device: torch.device) -> Iterator[torch.Tensor]:
        """Yield all queries, some at a time."""
        length = self.problem.case.shape.length
        return iter(torch.arange(length, device=device).split(max(1, _AT_ONCE // length)))

    def _attended(
        self, batch: int, head: int, rows: torch.Tensor, qkv: tuple[torch.Tensor, ...]
    ) -> torch.Tensor:
        """Return the output of some queries, ``(rows, Dv)``."""
        (q, k, v), mods = qkv, self.problem.mods
        index = (
            torch.tensor(batch, device=q.device),
            torch.tensor(head, device=q.device),
            rows[:, None],
            torch.arange(len(k), device=q.device),
        )
        score = (q @ k.T) * self.problem.case.shape.dim**-0.5
        if mods.score is not None:
            score = mods.score(score, *index).to(self.dtype)
        if mods.mask is not None:
            score = torch.where(mods.mask(*index), score, -math.inf)
        return score.softmax(-1) @ v
