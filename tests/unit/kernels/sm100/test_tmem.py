"""Tensor memory of the forward kernel: what is in use at the same time lies apart."""

from __future__ import annotations

import itertools

import pytest

from flexfa4.kernels.sm100.forward.tmem import COLUMNS, plan_tensor_memory


@pytest.mark.parametrize("keys", [32, 64, 96, 128])
@pytest.mark.parametrize("head_dim_v", range(16, 257, 16))
def test_only_probabilities_and_their_own_scores_share_columns(keys: int, head_dim_v: int) -> None:
    memory = plan_tensor_memory(keys, head_dim_v)
    for (one, a), (other, b) in itertools.combinations(memory.regions.items(), 2):
        apart = a[1] <= b[0] or b[1] <= a[0]
        half = one[-1] == other[-1]
        assert apart != (half and {one[:-2], other[:-2]} == {"scores", "probabilities"})
    assert max(end for _, end in memory.regions.values()) == memory.columns <= memory.allocated


def test_what_is_allocated_is_a_power_of_two() -> None:
    for keys, head_dim_v in itertools.product((32, 128), range(16, 129, 16)):
        allocated = plan_tensor_memory(keys, head_dim_v).allocated
        assert allocated >= 32 and allocated & (allocated - 1) == 0


@pytest.mark.parametrize(("head_dim_v", "columns"), [(64, 384), (128, 512), (144, 544), (256, 768)])
def test_outputs_wider_than_128_do_not_fit(head_dim_v: int, columns: int) -> None:
    memory = plan_tensor_memory(128, head_dim_v)
    assert memory.columns == columns
    assert memory.fits == (head_dim_v <= 128) == (columns <= COLUMNS)
