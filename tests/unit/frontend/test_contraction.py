"""Sums of products equal those element by element, and make no tensor of all products."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from flexfa4.frontend import contraction
from flexfa4.frontend.contraction import sum_of_products

SIZES = (2, 3, 4, 5, 6)


def tensor(shape: tuple[int, ...], seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class Largest(TorchDispatchMode):
    """Records the number of elements of the largest tensor that is made."""

    numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if isinstance(found, torch.Tensor):
            self.numel = max(self.numel, found.numel())
        return found


@given(
    has=st.tuples(*[st.tuples(st.booleans(), st.booleans())] * 5),
    axes=st.sets(st.integers(0, 4)),
    few=st.booleans(),
)
def test_the_sum_is_that_of_all_products(
    has: tuple[tuple[bool, bool], ...], axes: set[int], few: bool
) -> None:
    a, b = (
        tensor(tuple(n if h[side] else 1 for n, h in zip(SIZES, has, strict=True)), side)
        for side in (0, 1)
    )
    with pytest.MonkeyPatch.context() as patch:
        if few:  # count every set of matrices as too many tiny ones
            patch.setattr(contraction, "_FEW_MATRICES", 0)
            patch.setattr(contraction, "_LARGE_MATRIX", 1 << 30)
        found = sum_of_products(a, b, axes, 5)
    right = (a * b).sum(sorted(axes), keepdim=True) if axes else a * b
    torch.testing.assert_close(found, right)


@pytest.mark.parametrize(
    ("a", "b", "axes"),
    [
        ((2, 3, 40, 1, 8), (2, 3, 1, 50, 8), {4}),  # queries and keys
        ((2, 3, 40, 1, 8), (2, 1, 1, 50, 8), {4}),  # keys of one head
        ((1, 3, 1, 1, 8), (1, 1, 40, 50, 8), {4}),  # a layer over pairs, and a row for each head
        ((2, 3, 40, 50, 1), (2, 3, 1, 50, 8), {3}),  # scores and keys
        ((2, 3, 40, 50, 1), (1, 1, 40, 50, 8), {0, 2, 3}),  # scores and the layer over pairs
    ],
)
def test_no_tensor_of_all_products_is_made(
    a: tuple[int, ...], b: tuple[int, ...], axes: set[int]
) -> None:
    x, y = tensor(a, 0), tensor(b, 1)
    right = (x * y).sum(sorted(axes), keepdim=True)
    with Largest() as made:
        found = sum_of_products(x, y, axes, 5)
    torch.testing.assert_close(found, right)
    assert found.is_contiguous()
    assert made.numel <= max(x.numel(), y.numel(), found.numel()) < (x * y).numel()


def test_missing_axes_are_put_in_front() -> None:
    a, b = tensor((6,), 0), tensor((5, 6), 1)
    found = sum_of_products(a, b, (4,), 5)
    torch.testing.assert_close(found, (a * b).sum(-1).view(1, 1, 1, 5, 1))


def test_what_is_not_finite_stays_where_it_is() -> None:
    a, b = tensor((4, 1, 6), 0), tensor((1, 5, 6), 1)
    a[1, 0, 2], b[0, 3, 4] = torch.inf, torch.nan
    found = sum_of_products(a, b, (2,), 3)[..., 0]
    assert [i for i, row in enumerate(found.isfinite()) if not row.any()] == [1]
    assert found[:, 3].isnan().all() and found[[0, 2, 3]][:, [0, 1, 2, 4]].isfinite().all()
