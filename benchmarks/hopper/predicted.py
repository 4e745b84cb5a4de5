"""Times that the performance model predicts for the cases of the table, beside measured ones.

Ratios are what is compared: of a case to another one of the same run, which it differs from in its
mask or mod or shape (`base_of`).  Needs no GPU: plans are made for tensors without memory.
"""

from __future__ import annotations

import functools
import itertools
import math
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from hopper.cases import Case, cases
from hopper.providers import OURS
from hopper.variants import VARIANTS, Shape

import flexfa4
from flexfa4.frontend.masks.structure import MaskBlocks
from flexfa4.frontend.tracing.trace import resolve
from flexfa4.kernels.architectures import architecture
from flexfa4.kernels.forward.function import planned
from flexfa4.kernels.forward.model import Fitted, Visited, items_of
from flexfa4.kernels.refusal import Refusal
from flexfa4.kernels.request import Inputs, Request
from flexfa4.kernels.sm90 import model
from flexfa4.kernels.sm90.forward.plan import ForwardPlan

_CPU: Final = torch.device("cpu")
_SMALL: Final = Shape(1, 1, 1, 1, 16, 16)


@dataclass(frozen=True)
class Launch:
    """What serves a case.

    Attributes:
        plan: of the kernel.
        items: what its items visit, in the order of work.
    """

    plan: ForwardPlan
    items: tuple[Visited, ...]

    def milliseconds(self, fitted: Fitted = model.FITTED) -> float:
        """Return the time that the model predicts."""
        return model.seconds(self.plan, self.items, fitted) * 1e3


@dataclass(frozen=True)
class Comparison:
    """A case beside another one.

    Attributes:
        case, base: names.
        predicted, measured: time of the case over that of the base.
        bound: what bounds a full tile of the case.
    """

    case: str
    base: str
    predicted: float
    measured: float
    bound: str

    @property
    def error(self) -> float:
        """How far the prediction is off, relative to what was measured."""
        return self.predicted / self.measured - 1


@functools.cache
def launch_of(name: str) -> Launch:
    """Return what serves a case."""
    case = cases()[name]
    shape = case.shape
    one = torch.empty(1, dtype=torch.bfloat16)
    sizes = (
        (shape.heads, shape.dim), (shape.kv_heads, shape.dim), (shape.kv_heads, shape.value_dim),
    )  # fmt: skip
    q, k, v = (one.expand(shape.batch, h, shape.length, d) for h, d in sizes)
    inputs = Inputs(q, k, v, None)
    score, blocks = _mods(case)
    request = Request(score, blocks, shape.dim**-0.5, frozenset(), False)
    call = planned(architecture("sm90"), request, inputs, False, "sm_90a")
    assert call is not None and not isinstance(call, Refusal)
    assert isinstance(call.plan, ForwardPlan)
    return Launch(call.plan, tuple(items_of(call, blocks, inputs.sizes)))


def _mods(case: Case) -> tuple[Any, MaskBlocks | None]:
    mods = VARIANTS[case.variant].make(case.shape, _CPU)
    score = None if mods.score is None else resolve(mods.score, "score")
    if mods.mask is None:
        return score, None
    length = case.shape.length
    mask = flexfa4.create_block_mask(
        mods.mask, batch=case.shape.batch if mods.mask_by_batch else 1, q_len=length, kv_len=length
    )
    return score, mask.blocks_on(_CPU)


def base_of(name: str, others: Iterable[str]) -> str | None:
    """Return which of some cases a case is compared with; None where there is none before it.

    A plain one that comes earlier in the table: of the same shape if there is one, or else of the
    same head dims; without a mask if the case has none, or else causal.
    """
    every, available = cases(), set(others)
    case = every[name]
    masked = case.variant == "causal" or _is_masked(case.variant)

    def likeness(other: Case) -> tuple[bool, bool, bool]:
        shape, own = other.shape, case.shape
        dims = (shape.dim, shape.value_dim) == (own.dim, own.value_dim)
        return shape == own, dims, other.variant == ("causal" if masked else "full")

    before = itertools.takewhile(lambda other: other.name != name, every.values())
    plain = [c for c in before if c.name in available and c.variant in ("full", "causal")]
    return max(plain, key=likeness).name if plain else None


@functools.cache
def _is_masked(variant: str) -> bool:
    return VARIANTS[variant].make(_SMALL, _CPU).mask is not None


def measured_ms(results: dict[str, Any]) -> dict[str, tuple[int, float]]:
    """Return the run and our median time of each case of the table."""
    return {
        row["case"]: (row["run"], statistics.median(row["providers"][OURS]["ms"]))
        for row in results["rows"]
        if row["group"] == "table" and "ms" in row.get("providers", {}).get(OURS, {})
    }


def comparisons(results: dict[str, Any], fitted: Fitted = model.FITTED) -> Iterator[Comparison]:
    """Yield the comparison of each case with another one of its run, but for the first of each."""
    times = measured_ms(results)
    for name, (run, ms) in times.items():
        base = base_of(name, [other for other, (its, _) in times.items() if its == run])
        if base is None:
            continue
        mine, other = launch_of(name), launch_of(base)
        bound = model.tile_time(mine.plan, masked=False, fitted=fitted).bound
        predicted = mine.milliseconds(fitted) / other.milliseconds(fitted)
        yield Comparison(name, base, predicted, ms / times[base][1], bound)


# ---- constants -----------------------------------------------------------------------------------

_STEPS: Final = (1.05, 1.02, 1.005)


def fitted(measured: dict[str, tuple[int, float]]) -> Fitted:
    """Return the constants with which the model is least off.

    That is the sum of squares of logarithms of predicted over measured times, by steps along each
    constant that become smaller.

    Args:
        measured: see `measured_ms`.
    """
    times = {name: ms for name, (_, ms) in measured.items()}
    best = model.FITTED
    least = _misfit(times, best)
    for step in _STEPS:
        moved = True
        while moved:
            moved = False
            for name in ("overlap", "item", "load", "gigahertz"):
                for factor in (step, 1 / step):
                    tried = replace(best, **{name: max(1.0, getattr(best, name) * factor)})
                    misfit = _misfit(times, tried)
                    if misfit < least:
                        best, least, moved = tried, misfit, True
    return best


def _misfit(times: dict[str, float], constants: Fitted) -> float:
    return sum(
        math.log(launch_of(name).milliseconds(constants) / ms) ** 2 for name, ms in times.items()
    )
