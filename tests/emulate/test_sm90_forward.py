"""The Hopper forward kernel through `flexfa4.attention`, in the emulator.

Held against the dense reference are out, lse and all gradients, which the CPU backend computes from
them.  The emulator is strict: races, reads out of bounds and of memory that nobody wrote fail a
test whatever the numbers are.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

pytest.importorskip("cutlass")

import flexfa4
from flexfa4.emulator.options import SCHEDULES
from flexfa4.kernels.architectures import architecture
from flexfa4.kernels.emit.errors import KernelLimitError
from flexfa4.kernels.forward.call import plan_call
from flexfa4.kernels.forward.function import Launched, launched
from flexfa4.kernels.launch.target import Target
from flexfa4.kernels.request import Inputs, Request
from flexfa4.kernels.sm90.forward.plan import Tiling
from flexfa4.testing import Inputs as Given
from flexfa4.testing import Mods, excess
from tests.emulated_executor import EmulatedExecutor, emulated_gpu
from tests.forward_calls import drawn, near
from tests.forward_trials import (
    ALL,
    SAMPLE,
    VARIANTS,
    Row,
    attend_with,
    pairs_missing,
    poisoned_memory,
)

CAUSAL = "q >= kv"


def attend(inputs: Given, mods: Mods) -> tuple[torch.Tensor, torch.Tensor]:
    with emulated_gpu():
        return attend_with("sm90")(inputs, mods)


@pytest.mark.parametrize("row", SAMPLE, ids=str)
def test_a_variant_agrees_with_the_dense_reference(row: Row) -> None:
    assert not excess(row.trial(), attend)


# Head dims that were not measured, with the tilings that the model chooses: narrow
# swizzles, several slabs, and the ends of what is served.
UNMEASURED = [
    Row("causal", (80, 48), "packed", torch.bfloat16, False),
    Row("alibi", (16, 32), "a group of 3", torch.float16, True),
]
MORE_UNMEASURED = [
    Row("sliding_window", dims, "shared keys", torch.bfloat16, True)
    for dims in (
        (16, 16),
        (48, 112),
        (112, 144),
        (256, 16),
        (16, 256),
        (240, 208),
        (224, 64),
        (144, 256),
    )
]


@pytest.mark.parametrize("row", UNMEASURED, ids=str)
def test_head_dimensions_that_were_not_measured_are_right_too(row: Row) -> None:
    assert not excess(row.trial(), attend)


@pytest.mark.full
@pytest.mark.parametrize("row", MORE_UNMEASURED, ids=str)
def test_all_kinds_of_head_dimensions_are_right(row: Row) -> None:
    assert not excess(row.trial(), attend)


@pytest.mark.full
@pytest.mark.parametrize("row", ALL, ids=str)
def test_every_variant_agrees_for_all_head_dimensions_or_is_refused(row: Row) -> None:
    try:
        assert not excess(row.trial(), attend)
    except KernelLimitError as error:
        assert 'backend="cpu"' in str(error)


def test_the_sample_has_every_variant_and_every_pair_of_choices() -> None:
    assert {row.variant for row in SAMPLE} == set(VARIANTS)
    assert not pairs_missing(SAMPLE)


# ---- one kernel, many calls ----------------------------------------------------------------------


def causal(b: Any, h: Any, q: Any, kv: Any) -> Any:
    return q >= kv


@pytest.mark.parametrize("name", ["documents", "alibi of packed heads"])
def test_every_schedule_gives_the_same_bits(name: str) -> None:
    inputs = drawn(2, 4, 200, 64, kv_heads=2)
    ids = torch.tensor([0] * 70 + [1] * 90 + [2] * 40)
    slopes = torch.rand(4)
    variants: dict[str, dict[str, Any]] = {
        "documents": {"block_mask": lambda b, h, q, kv: (ids[q] == ids[kv]) & (q >= kv)},
        "alibi of packed heads": {
            "block_mask": causal, "score_mod": lambda s, b, h, q, kv: s + slopes[h] * (kv - q),
        },
    }  # fmt: skip
    results = []
    for schedule in SCHEDULES:
        with emulated_gpu(schedule=schedule, seed=3), poisoned_memory():
            results.append(
                flexfa4.attention(*inputs[:3], backend="sm90", return_lse=True, **variants[name])
            )
    for out, lse in results[1:]:
        assert torch.equal(out, results[0][0]) and torch.equal(lse, results[0][1])


def test_new_values_lengths_batches_and_strides_compile_nothing() -> None:
    window = 40

    def local(b: Any, h: Any, q: Any, kv: Any) -> Any:
        return (q >= kv) & (q - kv < window)

    with emulated_gpu():
        flexfa4.attention(*drawn(1, 2, 100, 64)[:3], block_mask=local, backend="sm90")
        before = flexfa4.stats()
        for shape in ((1, 2, 100, 64), (3, 4, 150, 64), (2, 3, 20, 64)):
            window += 30
            inputs = drawn(*shape)
            q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in inputs[:3])
            with poisoned_memory():
                out = flexfa4.attention(q, k, v, block_mask=local, scale=0.2, backend="sm90")
            assert near(out, inputs, mask=local, scale=0.2)
            assert out.stride() == q.stride()
    done = flexfa4.stats() - before
    assert (done.compiles, done.plans, done.traces) == (0, 0, 0)


def test_without_lse_the_output_is_the_same() -> None:
    inputs = drawn(1, 2, 130, 64)
    with emulated_gpu(), poisoned_memory():
        alone = flexfa4.attention(*inputs[:3], backend="sm90")
        out, _ = flexfa4.attention(*inputs[:3], backend="sm90", return_lse=True)
    assert torch.equal(alone, out)


# What tensor copies cannot take is copied first: alike for the result.
LAYOUTS: dict[str, Any] = {
    "keys last in memory": lambda x: x.transpose(2, 3).contiguous().transpose(2, 3),
    "rows of an odd length": lambda x: torch.cat((x, x[..., :1]), 3)[..., :-1],
    "an odd address": lambda x: torch.cat((x[..., :1], x, x[..., :7]), 3)[..., 1:-7],
    "one head for all": lambda x: x[:, :1].expand_as(x),
    "every second row": lambda x: x.repeat_interleave(2, 2)[:, :, ::2],
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_any_strides_are_served(name: str) -> None:
    inputs = drawn(1, 2, 70, 64)
    q, k, v = map(LAYOUTS[name], inputs[:3])
    with emulated_gpu(), poisoned_memory():
        out = flexfa4.attention(q, k, v, backend="sm90")
        plain = flexfa4.attention(*(x.contiguous() for x in (q, k, v)), backend="sm90")
    assert torch.equal(out, plain)


def test_no_queries_no_keys_and_no_batch_launch_nothing() -> None:
    inputs, sink = drawn(2, 2, 70, 64), torch.tensor([1.0, -2.0])
    q, k, v = inputs[:3]
    with emulated_gpu() as executor, poisoned_memory():
        chosen: dict[str, Any] = {"backend": "sm90", "return_lse": True}
        out, lse = flexfa4.attention(q, k[:, :, :0], v[:, :, :0], **chosen)
        assert not out.any() and (lse == -torch.inf).all()
        out, lse = flexfa4.attention(q, k[:, :, :0], v[:, :, :0], sink=sink, **chosen)
        assert not out.any() and torch.equal(lse, sink[:, None].expand(2, 2, 70))
        out, lse = flexfa4.attention(q[:, :, :0], k, v, **chosen)
        assert out.shape == (2, 2, 0, 64) and lse.shape == (2, 2, 0)
        out, lse = flexfa4.attention(q[:0], k[:0], v[:0], **chosen)
        assert out.shape == (0, 2, 70, 64)
    assert not executor.runs


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_a_sink_of_any_dtype_and_stride_is_served(dtype: torch.dtype) -> None:
    inputs = drawn(1, 4, 70, 64)
    sink = torch.randn(8).to(dtype)[::2]
    with emulated_gpu(), poisoned_memory():
        out = flexfa4.attention(*inputs[:3], sink=sink, backend="sm90")
    assert near(out, inputs._replace(sink=sink))


@pytest.mark.parametrize("scale", [0.0, -0.3, 1e30, -1e-30])
def test_any_scale_is_served(scale: float) -> None:
    inputs = drawn(1, 1, 150, 64)
    with emulated_gpu(), poisoned_memory():
        out = flexfa4.attention(*inputs[:3], block_mask=CAUSAL, scale=scale, backend="sm90")
    assert near(out, inputs, mask=causal, scale=scale)


def test_numbers_beyond_fp32_are_infinite_in_a_kernel() -> None:
    inputs, far = drawn(1, 1, 70, 64), 1e300
    with emulated_gpu(), poisoned_memory():
        out = flexfa4.attention(
            *inputs[:3], score_mod=lambda s, b, h, q, kv: s.clamp(-far, far), backend="sm90"
        )
    assert near(out, inputs)


# ---- choices of the plan that are not a call's ---------------------------------------------------


def run_with(inputs: Inputs, **changes: Any) -> tuple[torch.Tensor, Launched, EmulatedExecutor]:
    """Return the output of another plan, what launched it, and what it did."""
    request = Request(None, None, 1.0, frozenset(), False)
    call = plan_call(architecture("sm90"), inputs, request, Tiling(2, 64), lse=False)
    call = replace(call, plan=replace(call.plan, **changes))
    executor = EmulatedExecutor()
    ready = launched(call, request, inputs, Target(executor, (9, 0), 2))
    with poisoned_memory():
        out, _ = ready.forward(request, inputs)
    return out, ready, executor


def test_a_block_for_each_item_gives_the_same_bits_as_blocks_that_fetch() -> None:
    q = torch.randn(1, 2, 300, 64).bfloat16()
    inputs = Inputs(q, q, q, None)
    (first, few, _), (second, many, _) = (run_with(inputs, fetched=f) for f in (True, False))
    assert (few.blocks, many.blocks) == (2, 6)
    assert torch.equal(first, second)


# ---- rescaling -----------------------------------------------------------------------------------


def with_threshold(inputs: Inputs, tau: float) -> tuple[torch.Tensor, int]:
    """Return the output with a threshold of rescaling, and how many products a warp computed."""
    out, _, executor = run_with(inputs, tau=tau)
    return out, executor.runs[-1].executed["mul.f32"]


def climbing(step: float) -> Inputs:
    """Return inputs whose scores climb by a step from each tile of 64 keys to the one before."""
    q = torch.zeros(1, 1, 128, 64, dtype=torch.bfloat16)
    k, v = torch.zeros_like(q).repeat(1, 1, 4, 1), torch.randn(1, 1, 512, 64).bfloat16()
    q[..., 0] = 1.0
    k[..., 0] = -step * torch.arange(8).repeat_interleave(64)
    return Inputs(q, k, v, None)


def test_outputs_are_rescaled_where_the_maximum_grows_by_more_than_the_threshold() -> None:
    gentle, steep = climbing(1.0), climbing(20.0)
    counts = {}
    for name, inputs in (("gentle", gentle), ("steep", steep)):
        for tau in (0.0, 8.0):
            out, counts[name, tau] = with_threshold(inputs, tau)
            assert near(out, inputs, scale=1.0)
    # 7 tiles of 8 raise the maximum: by 1.44 in base 2, which adds up to 8 once, or by 28.9
    assert counts["gentle", 8.0] < counts["gentle", 0.0]
    assert counts["steep", 8.0] == counts["steep", 0.0] == counts["gentle", 0.0]


def test_scores_that_only_fall_are_never_rescaled() -> None:
    falling = climbing(-20.0)
    (first, few), (second, none) = (with_threshold(falling, tau) for tau in (0.0, 8.0))
    assert torch.equal(first, second) and few == none


# ---- inside torch --------------------------------------------------------------------------------


def test_the_registered_op_takes_the_backend_with_it() -> None:
    inputs = drawn(1, 2, 70, 64)

    def call(q: torch.Tensor) -> torch.Tensor:
        return flexfa4.attention(
            q,
            *inputs[1:3],
            block_mask=causal,
            backend="sm90",
            options=flexfa4.Options(stages=1, tau=0),
        )

    with emulated_gpu() as executor, poisoned_memory():
        eager = call(inputs.q)
        compiled = torch.compile(call, fullgraph=True, backend="eager")(inputs.q)
        mapped = torch.func.vmap(call)(torch.stack((inputs.q, inputs.q * 2)))
        (grad,) = torch.func.vjp(call, inputs.q)[1](torch.ones_like(eager))
        leaf = inputs.q.clone().requires_grad_()
        call(leaf).sum().backward()
    assert len(executor.runs) == 5 + 2 * 3  # the backward has three kernels
    assert torch.equal(mapped[0], eager) and torch.equal(compiled, eager)
    assert leaf.grad is not None and torch.equal(grad, leaf.grad)
