"""Checks of masks whose captured values change: `follows` and `refuses`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from flexfa4.errors import CaptureError
from flexfa4.frontend.evaluate import Program, Values
from flexfa4.frontend.lanes import Lanes
from flexfa4.frontend.tracing.trace import resolve

Mask = Callable[..., Any]
SIZE = 8


def dense(mask: Mask) -> torch.Tensor:
    """Call a mask on index tensors."""
    q, kv = torch.arange(SIZE).view(-1, 1), torch.arange(SIZE)
    zero = torch.tensor(0)
    return torch.as_tensor(mask(zero, zero, q, kv)).broadcast_to(SIZE, SIZE)


def traced(mask: Mask) -> torch.Tensor:
    """Evaluate a mask's graph with the values that it captures now."""
    bound = resolve(mask, "mask")
    values = Values(
        tensors=dict(zip(bound.graph.buffers, bound.tensors, strict=True)),
        scalars=dict(zip(bound.graph.scalars, bound.scalars, strict=True)),
    )
    lanes = Lanes((0, 1), (0, 1), (0, SIZE), (0, SIZE))
    (result,) = Program([bound.graph.root]).run(values, lanes, None)
    return torch.as_tensor(result).broadcast_to(1, 1, SIZE, SIZE)[0, 0]


@pytest.fixture
def follows() -> Callable[[Mask, Callable[[], object]], None]:
    """Check that a mask's graph agrees with the mask, before a change and after it."""

    def check(mask: Mask, change: Callable[[], object]) -> None:
        before = dense(mask)
        assert torch.equal(traced(mask), before)
        change()
        after = dense(mask)
        assert torch.equal(traced(mask), after)
        assert not torch.equal(before, after), "the case changes nothing"

    return check


@pytest.fixture
def refuses() -> Callable[[Mask], None]:
    """Check that a mask is refused, with the place."""

    def check(mask: Mask) -> None:
        with pytest.raises(CaptureError) as caught:
            resolve(mask, "mask")
        assert caught.value.where is not None

    return check
