"""Forward: which tiles are visited, how much mask work is done, and results for any layout."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import flexfa4
from flexfa4.frontend.lanes import Lanes
from flexfa4.kernels.cpu import schedule, scores
from flexfa4.testing import (
    Inputs,
    Mods,
    Sizes,
    agrees,
    attend,
    dense_reference,
    make_inputs,
)
from flexfa4.variants import Alibi, SlidingWindow, Softcap, causal


@pytest.fixture
def masked(monkeypatch: pytest.MonkeyPatch) -> list[Lanes]:
    """Collect the rectangles for which the mask is evaluated."""
    evaluated: list[Lanes] = []
    mask_tile = scores.mask_tile  # type: ignore[attr-defined]  # what the module calls

    def recorded(program: Any, values: Any, lanes: Lanes) -> torch.Tensor:
        evaluated.append(lanes)
        return mask_tile(program, values, lanes)

    monkeypatch.setattr(scores, "mask_tile", recorded)
    return evaluated


@pytest.fixture
def visited(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Collect the shapes of the rectangles whose scores are computed."""
    shapes: list[tuple[int, ...]] = []
    raw_scores = scores.raw_scores

    def recorded(*args: Any) -> torch.Tensor:
        result = raw_scores(*args)
        shapes.append(tuple(result.shape))
        return result

    monkeypatch.setattr(scores, "raw_scores", recorded)
    return shapes


def count(shapes: list[tuple[int, ...]]) -> int:
    return sum(torch.Size(shape).numel() for shape in shapes)


def test_tiles_above_the_diagonal_are_not_computed(visited: list[tuple[int, ...]]) -> None:
    inputs = make_inputs(Sizes(1, 2, 2, 2048, 2048, 8, 8))
    attend(inputs, Mods())
    assert count(visited) == 2 * 2048**2
    visited.clear()
    attend(inputs, Mods(None, causal))
    assert count(visited) <= 2 * 2048**2 * 0.6


def test_the_work_of_a_window_grows_with_the_length_not_with_its_square(
    visited: list[tuple[int, ...]],
) -> None:
    for length in (1024, 4096):
        visited.clear()
        attend(make_inputs(Sizes(1, 1, 1, length, length, 8, 8)), Mods(None, SlidingWindow(128)))
        assert count(visited) <= length * 4 * 128


def test_nothing_is_computed_where_nothing_is_visible(visited: list[tuple[int, ...]]) -> None:
    mods = Mods(None, lambda b, h, q_idx, kv_idx: q_idx < 0)
    out, lse = attend(make_inputs(Sizes()), mods)
    assert not visited and not out.any() and (lse == -torch.inf).all()


def test_full_blocks_do_no_mask_work(masked: list[Lanes]) -> None:
    inputs = make_inputs(Sizes(1, 4, 4, 1024, 1024, 8, 8))
    full = flexfa4.create_block_mask(lambda b, h, q, kv: q >= 0, q_len=1024, kv_len=1024)
    attend(inputs, Mods(None, full))
    assert not masked
    attend(inputs, Mods(None, flexfa4.create_block_mask(causal, q_len=1024, kv_len=1024)))
    lanes = sum(torch.Size(x.shape).numel() for x in masked)
    assert 0 < lanes <= 1024 * 256  # only along the diagonal, once for all heads


def test_a_mask_that_reads_no_head_is_evaluated_once_for_all_heads(masked: list[Lanes]) -> None:
    block_mask = flexfa4.create_block_mask(causal, q_len=200, kv_len=200)
    inputs = make_inputs(Sizes(3, 8, 2, 200, 200))
    attend(inputs, Mods(None, block_mask))
    assert masked and len(set(masked)) == len(masked)
    assert all((x.b, x.h) == ((0, 1), (0, 1)) for x in masked)
    masked.clear()
    attend(inputs, Mods(None, block_mask))  # it is kept with the block mask
    assert not masked


DISTANCES = torch.linspace(-1.0, 1.0, 100)
SINK = torch.tensor([0.5, -1.0, 2.0, 0.0])
BANDS: dict[str, Any] = {
    "none": None,
    "bounded": Softcap(20.0),
    "alibi": Alibi(4),
    "core and table": lambda s, b, h, q, kv: (
        torch.relu(s) / (h + 1) + DISTANCES[(q - kv).clamp(0, 99)]
    ),
    "index of the visible only": lambda s, b, h, q, kv: s + DISTANCES[q - kv],
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("score", BANDS)
def test_bands_have_the_results_and_gradients_of_other_tiles(
    score: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = make_inputs(Sizes(2, 4, 2, 330, 330, 16, 8), dtype=dtype)
    tensors = [x.requires_grad_() for x in (inputs.q, inputs.k, inputs.v, SINK.clone())]
    results, copies = [], []
    for worth in (0.0, torch.inf):
        monkeypatch.setattr(schedule, "_WORTH_BANDS", worth)
        mask = flexfa4.create_block_mask(SlidingWindow(100), q_len=330, kv_len=330, block_size=32)
        kept = mask.blocks_on(torch.device("cpu")).cache(schedule._Schedules)
        kept.clear()  # equal masks share it
        out, lse = flexfa4.attention(
            *tensors[:3],
            score_mod=BANDS[score],
            block_mask=mask,
            sink=tensors[3],
            return_lse=True,
        )
        grads = torch.autograd.grad(out.float().sum() + lse.sum(), tensors)
        results.append([out, lse, *grads])
        copies.append(max(t.copies for p in kept if p.bands for c in kept[p] for t in c.tiles))
    assert copies[0] > 1 == copies[1]
    for found, right in zip(*results, strict=True):
        torch.testing.assert_close(found, right)


LAYOUTS = {
    "transposed": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "odd offset": lambda x: torch.nn.functional.pad(x, (1, 2))[..., 1:-2],
    "every second": lambda x: x.repeat_interleave(2, -1)[..., ::2],
    "reversed axes": lambda x: x.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_strides_do_not_change_the_result(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = make_inputs(Sizes(2, 6, 2, 130, 150, 8, 5))
    q, k, v = (LAYOUTS[layout](x) for x in (inputs.q, inputs.k, inputs.v))
    assert not all(x.is_contiguous() for x in (q, k, v))
    monkeypatch.setattr(schedule, "_WORTH_BANDS", 0.0)
    for mask in (causal, SlidingWindow(20)):
        right, _ = attend(inputs, Mods(None, mask))
        out, _ = attend(Inputs(q, k, v), Mods(None, mask))
        torch.testing.assert_close(out, right)


def test_tensors_expanded_over_batch_and_heads_agree_with_their_copies() -> None:
    inputs = make_inputs(Sizes(1, 1, 1, 100, 120, 8, 8))
    wide = [x.expand(3, 4, -1, -1) for x in (inputs.q, inputs.k, inputs.v)]
    copies, mods = Inputs(*(x.contiguous() for x in wide)), Mods(None, causal)
    (found, _), (right, _) = attend(Inputs(*wide), mods), dense_reference(copies, mods)
    rounded, _ = dense_reference(copies, mods, dtype=torch.float32)
    assert agrees(found, right, rounded, terms=120)


def test_query_key_and_value_may_be_parts_of_one_packed_tensor() -> None:
    packed = torch.randn(2, 90, 3, 4, 8)  # batch, length, which, heads, features
    q, k, v = packed.permute(2, 0, 3, 1, 4)
    found, _ = attend(Inputs(q, k, v), Mods(None, causal))
    right, _ = attend(Inputs(q.contiguous(), k.contiguous(), v.contiguous()), Mods(None, causal))
    torch.testing.assert_close(found, right)


@pytest.mark.parametrize("scale", [0.0, -0.7, 3.0])
def test_any_finite_scale_may_be_given(scale: float) -> None:
    inputs = make_inputs(Sizes())
    out, lse = flexfa4.attention(
        inputs.q, inputs.k, inputs.v, scale=scale, block_mask=causal, return_lse=True
    )
    right, rounded = (
        dense_reference(inputs, Mods(None, causal), scale=scale, dtype=dtype)
        for dtype in (torch.float64, torch.float32)
    )
    for found, exact, eager in zip((out, lse), right, rounded, strict=True):
        assert agrees(found, exact, eager, terms=inputs.k.shape[2])
