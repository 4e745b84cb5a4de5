"""What a form of calls is prepared for, once, and what a repeated call does."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import flexfa4
from flexfa4.kernels.forward import function
from flexfa4.kernels.launch.target import Target, standing_in
from flexfa4.kernels.sm90.forward.plan import ForwardPlan
from tests.compiled_kernels import compiled_kernel


class Recorder:
    """An executor that computes nothing."""

    def __init__(self) -> None:
        self.launches: list[dict[str, Any]] = []
        self.plans: list[ForwardPlan] = []
        self.cluster = (1, 1, 1)

    def load(self, kernel: Any) -> None:
        pass

    def launch(
        self, kernel: Any, grid: Any, values: Any, *, stream: int = 0, memory: Any = ()
    ) -> None:
        names = (parameter.name for parameter in kernel.signature)
        self.launches.append({**dict(zip(names, values, strict=True)), "grid": grid})


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    """A GPU of compute capability 9.0 whose kernels compute nothing."""
    executor = Recorder()
    function._WITHOUT_MASK.clear()

    def kernel_for(_: Any, plan: ForwardPlan, name: str) -> Any:
        executor.plans.append(plan)
        return compiled_kernel(signature=plan.signature, cluster=executor.cluster)

    monkeypatch.setattr(function, "kernel_for", kernel_for)
    with standing_in(Target(executor, (9, 0), 4)):
        yield executor


def drawn(batch: int = 2, heads: int = 4, length: int = 300) -> Any:
    return torch.zeros(batch, heads, length, 64, dtype=torch.bfloat16)


def call(q: Any, **mods: Any) -> Any:
    return flexfa4.attention(q, q, q, backend="sm90", **mods)


def test_a_repeated_call_is_prepared_once(gpu: Recorder) -> None:
    bias, mask = torch.zeros(300), flexfa4.create_block_mask("q >= kv", q_len=300, kv_len=300)

    def mod(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        return score + bias[kv]

    for _ in range(3):
        bias = torch.zeros(300)
        call(drawn(), score_mod=mod, block_mask=mask)
        call(drawn())
    assert len(gpu.plans) == 2
    assert len(gpu.launches) == 6


def test_another_form_is_prepared_anew(gpu: Recorder) -> None:
    base = drawn()
    call(base)
    forms: list[tuple[Any, dict[str, Any]]] = [
        (drawn(batch=3), {}),
        (base.transpose(1, 2).contiguous().transpose(1, 2), {}),
        (base.half(), {}),
        (base, {"return_lse": True}),
        (base, {"scale": -1.0}),  # no scale that the maximum can wait for
        (base, {"sink": torch.zeros(4)}),
        (base, {"options": flexfa4.Options(tile=(128, 64))}),
        (base, {"options": flexfa4.Options(tau=0)}),
        (base, {"options": flexfa4.Options(emulated_exponentials=0.25)}),
        (base, {"score_mod": "score * 2"}),
    ]
    for count, (q, chosen) in enumerate(forms, start=2):
        call(q, **chosen)
        assert len(gpu.plans) == count, chosen


def test_calls_of_one_form_are_launched_where_they_belong(gpu: Recorder) -> None:
    other = Recorder()
    with standing_in(Target(other, (9, 0), 4)):
        call(drawn(), block_mask="q >= kv")
    for _ in range(2):
        call(drawn(), block_mask="q >= kv")
        with standing_in(Target(other, (9, 0), 4)):
            call(drawn(), block_mask="q >= kv")
    assert (len(gpu.launches), len(other.launches)) == (2, 3)


def test_tensors_that_are_moved_are_filled_in_anew(gpu: Recorder) -> None:
    q, slopes = drawn(), torch.rand(4)

    def mod(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        return score + slopes[h] * (kv - q)

    for slopes in (slopes, torch.rand(4), slopes):  # noqa: B020
        for tensor in (q, drawn()):
            call(tensor, score_mod=mod)
            launch = gpu.launches[-1]
            assert launch["q"][0] == launch["k"][0] == tensor.data_ptr()
            assert slopes.data_ptr() in launch.values()
    assert len(gpu.plans) == 1


def test_numbers_and_scales_that_change_are_only_filled_in(gpu: Recorder) -> None:
    cap, slope, mask = 20.0, 0.5, flexfa4.create_block_mask("q >= kv", q_len=300, kv_len=300)

    def mod(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        return cap * torch.tanh(score / cap) + slope * (kv - q)

    for step in range(5):
        cap, slope = 20.0 + step, 0.5 - step
        call(drawn(), score_mod=mod, block_mask=mask, scale=0.1 + step)
    assert len(gpu.plans) == 1
    told = [(n["score.cap"], n["score.slope"], n["scale"]) for n in gpu.launches]
    assert told == [(20.0 + step, 0.5 - step, 0.1 + step) for step in range(5)]
    cap = -20.0  # no factor that the maximum can wait for
    call(drawn(), score_mod=mod, block_mask=mask)
    assert len(set(gpu.plans)) == len(gpu.plans) == 2


@pytest.mark.parametrize("at_once", ["window", "length"])
def test_windows_and_lengths_that_change_have_one_plan(gpu: Recorder, at_once: str) -> None:
    for step in range(8):
        window, length = (40 + 9 * step, 300) if at_once == "window" else (100, 250 + 9 * step)
        call(drawn(length=length), block_mask=flexfa4.parse("q >= kv and q - kv < w", w=window))
        assert gpu.launches[-1]["limit.w"] == window
    assert len(set(gpu.plans)) == 1 and len(gpu.plans) == 8


def test_block_masks_that_are_equal_are_prepared_once(gpu: Recorder) -> None:
    for _ in range(5):
        mask = flexfa4.create_block_mask("q >= kv and q - kv < 70", q_len=300, kv_len=300)
        call(drawn(), block_mask=mask)
    assert len(gpu.plans) == 1 and len(gpu.launches) == 5


def test_the_threshold_of_rescaling_is_the_users(gpu: Recorder) -> None:
    for tau in (None, 0, 3.5):
        call(drawn(), options=flexfa4.Options(tau=tau))
    assert [plan.tau for plan in gpu.plans] == [8.0, 0.0, 3.5]


def test_the_share_of_emulated_exponentials_is_the_users(gpu: Recorder) -> None:
    for share in (None, 0, 0.25, 0.26, 1):
        call(drawn(), options=flexfa4.Options(emulated_exponentials=share))
    assert [plan.tiling.emulated.value for plan in gpu.plans] == [0, 0, 0.25, 0.25, 1]
    assert len(set(gpu.plans)) == 3
    chosen = flexfa4.Options(tile=(128, 64), emulated_exponentials=0.5)
    call(drawn(), options=chosen)
    assert gpu.plans[-1].tiling.keys == 64 and gpu.plans[-1].tiling.emulated.value == 0.5


def test_a_launch_has_a_block_for_each_multiprocessor_or_item(gpu: Recorder) -> None:
    call(drawn())
    call(drawn(batch=1, heads=1, length=300))
    assert [launch["grid"] for launch in gpu.launches] == [(4, 1, 1), (2, 1, 1)]


def test_blocks_of_a_cluster_have_an_item_together(gpu: Recorder) -> None:
    gpu.cluster = (2, 1, 1)
    call(drawn())
    call(drawn(batch=1, heads=1, length=100))
    assert [launch["grid"] for launch in gpu.launches] == [(4, 1, 1), (2, 1, 1)]


def test_lse_is_computed_where_it_is_wanted_or_gradients_are(gpu: Recorder) -> None:
    call(drawn())
    call(drawn(), return_lse=True)
    with torch.no_grad():
        call(drawn().requires_grad_())
    call(drawn().requires_grad_())
    assert [plan.lse for plan in gpu.plans] == [False, True]
    assert ["lse" in launch for launch in gpu.launches] == [False, True, False, True]


def test_what_is_kept_goes_with_the_mask(gpu: Recorder) -> None:
    mask = flexfa4.create_block_mask("(q + kv) % 7 < 3", q_len=300, kv_len=300)
    call(drawn(), block_mask=mask)
    forms = mask.blocks_on(torch.device("cpu")).cache(function._Forms)
    assert len(forms) == 1 and not function._WITHOUT_MASK
    kept = weakref.ref(forms)
    del mask, forms
    gc.collect()
    assert kept() is None


def test_forms_of_calls_are_not_kept_without_end(gpu: Recorder) -> None:
    for length in range(1, function._Forms._MOST + 10):
        call(drawn(1, 1, length))
    assert len(function._WITHOUT_MASK) < function._Forms._MOST
