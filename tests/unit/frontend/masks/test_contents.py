"""Bounds of a captured tensor are its least and greatest element, looked at once."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from flexfa4.frontend.analysis.intervals import Interval
from flexfa4.frontend.evaluate import Values, widened
from flexfa4.frontend.ir import BOOL, F32, I32, Buffer, DType
from flexfa4.frontend.masks import contents as module
from flexfa4.frontend.masks.contents import Contents

HELD: list[tuple[DType, torch.Tensor, Interval | None]] = [
    (I32, torch.tensor([3, -7, 5]), Interval(-7, 5)),
    (I32, torch.tensor([2, 200], dtype=torch.uint8), Interval(2, 200)),
    (BOOL, torch.tensor([[True], [True]]), Interval(True, True)),
    (F32, torch.tensor([0.5, -math.inf]), Interval(-math.inf, 0.5)),
    (F32, torch.tensor([1.0, math.nan]), Interval(-math.inf, math.inf, nan=True)),
    (I32, torch.empty(0, 4, dtype=torch.int64), None),
]


@pytest.mark.parametrize(("dtype", "tensor", "expected"), HELD)
def test_bounds_are_the_least_and_greatest_element(
    dtype: DType, tensor: torch.Tensor, expected: Interval | None
) -> None:
    buffer = Buffer("t", dtype, (None,) * tensor.dim())
    assert Contents(Values({buffer: tensor})).bounds(buffer) == expected


def test_a_tensor_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[Any] = []

    def counted(tensor: torch.Tensor, *dtypes: Any) -> torch.Tensor:
        looked.append(tensor)
        return widened(tensor, *dtypes)

    monkeypatch.setattr(module, "widened", counted)
    buffer = Buffer("t", I32, (None,))
    held = Contents(Values({buffer: torch.tensor([4, 6])}))
    assert held.bounds(buffer) == held.bounds(buffer) == Interval(4, 6)
    assert len(looked) == 1
