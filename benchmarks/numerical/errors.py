"""Errors of outputs and gradients against attention in fp64, for single calls.

Inputs are bf16 and normally distributed, as is the gradient that comes in, so the exact results are
functions of the very numbers that every way gets.  An error is the root mean square of the
differences over that of the exact numbers; the largest difference over the largest number is kept
as well.
"""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

import torch
from hopper.cases import Case
from hopper.providers import PROVIDERS, Prepared, Problem, first_of
from hopper.variants import Shape
from numerical.ways import CHOICES, DEVICES, Kernels, by_kernels, dense

VARIANTS: Final = ("full", "causal", "alibi", "softcap-30", "window-1024", "documents")
LENGTHS: Final = (512, 2048, 8192)
TENSORS: Final = ("out", "dq", "dk", "dv")
DENSE: Final = "bf16 dense"
PEER: Final = "flash-attn-4"
WAYS: Final = (DENSE, *CHOICES, PEER)


@dataclass(frozen=True)
class ErrorJob:
    """A variant whose errors are measured.

    Attributes:
        variant: a key of `hopper.variants.VARIANTS`.
        lengths: queries and keys of each call.
        device: a key of `numerical.ways.BACKENDS`.
        heads: of queries; key heads are half as many.
        dim: of a head.
    """

    variant: str
    lengths: tuple[int, ...] = LENGTHS
    device: str = "cuda"
    heads: int = 2
    dim: int = 128

    @property
    def name(self) -> str:
        """What it is called in reports."""
        return f"errors of {self.variant}"

    def run(self, deadline: float) -> Iterator[dict[str, Any]]:
        """Yield a row for each length and way; errors are not so slow that they need a deadline."""
        for length in self.lengths:
            shape = Shape(1, self.heads, self.heads // 2, length, self.dim, self.dim)
            yield from _rows(self, shape)
            if self.device == "cuda":
                torch.cuda.empty_cache()  # for the other processes


def _rows(job: ErrorJob, shape: Shape) -> Iterator[dict[str, Any]]:
    device = torch.device(DEVICES[job.device])
    problem = Problem.of(Case(job.variant, "numerics", job.variant, shape), device)
    draw = torch.Generator(device).manual_seed(1)
    do = torch.randn(problem.q.shape, device=device, dtype=torch.bfloat16, generator=draw)
    exact = _results(_dense(problem, torch.float64), do)
    for way, prepare in _ways(job).items():
        try:
            prepared = prepare(problem.apart())
            results = None if prepared is None else _results(prepared, do)
        except Exception:
            if way != PEER:
                raise
            traceback.print_exc()  # of whatever kind: peers are not ours, nor always installed
            continue
        if results is None:
            continue
        pairs = zip(TENSORS, results, exact, strict=True)
        errors = {name: _error(found, right) for name, found, right in pairs}
        yield {"variant": job.variant, "shape": asdict(shape), "way": way, "errors": errors}


def _ways(job: ErrorJob) -> dict[str, Callable[[Problem], Prepared | None]]:
    """Return what is measured, by name, each a function of the problem."""
    found: dict[str, Callable[[Problem], Prepared | None]] = {
        DENSE: functools.partial(_dense, dtype=torch.bfloat16)
    }
    for name, choice in CHOICES.items():
        found[name] = functools.partial(_ours, choice=choice, device=job.device)
    if job.device == "cuda":
        found[PEER] = PROVIDERS[PEER]
    return found


def _dense(problem: Problem, dtype: torch.dtype) -> Prepared:
    tensors, mods = _stored(problem, dtype), problem.mods
    return Prepared(lambda: dense(tensors, mods.score, mods.mask, dtype), inputs=tensors)


def _ours(problem: Problem, choice: Kernels, device: str) -> Prepared:
    tensors, mods = _stored(problem, torch.bfloat16), problem.mods
    return Prepared(
        lambda: by_kernels(tensors, mods.score, mods.mask, choice, device), inputs=tensors
    )


def _stored(problem: Problem, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    return tuple(t.detach().to(dtype) for t in (problem.q, problem.k, problem.v))


def _results(prepared: Prepared, do: torch.Tensor) -> list[torch.Tensor]:
    """Return output and gradients, ``(B, H, S, D)``."""
    inputs = [t.requires_grad_() for t in prepared.inputs]
    out = prepared.view(first_of(prepared.call()))
    gradients = torch.autograd.grad(out, inputs, do.to(out.dtype))
    return [out.detach(), *map(prepared.view, gradients)]


def _error(found: torch.Tensor, exact: torch.Tensor) -> dict[str, float]:
    off = found.double() - exact
    return {
        "rms": float(off.square().mean().sqrt() / exact.square().mean().sqrt()),
        "most": float(off.abs().max() / exact.abs().max()),
    }
