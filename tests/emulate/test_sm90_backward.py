"""The Hopper backward kernels through `flexfa4.attention`, in the emulator.

Gradients of the case table are held against the dense reference by the tests of the forward pass,
which differentiate what they compute; here are the calls that a backward pass may get wrong and a
forward pass not.  The emulator is strict: races, reads out of bounds and of memory that nobody
wrote fail a test whatever the numbers are.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

pytest.importorskip("cutlass")

import flexfa4
from flexfa4.emulator.options import SCHEDULES
from flexfa4.frontend.layout import empty_gradient
from flexfa4.kernels.sm90.backward import tuning
from flexfa4.kernels.sm90.backward.tilings import BACKWARD
from flexfa4.testing import excess
from tests import gradient_calls
from tests.emulated_executor import emulated_gpu
from tests.forward_trials import Row, attend_with
from tests.gradient_calls import Call, ahead, causal, drawn, near, window

LAUNCHES = 4  # of a call with its gradients: forward, and before, main and after of backward;
# without the last one where the main kernel finishes dQ


def gradients(call: Call) -> list[torch.Tensor]:
    """Return dq, dk and dv as the kernels compute them."""
    return gradient_calls.gradients(call, "sm90")


# ---- every tiling --------------------------------------------------------------------------------


def repeats(head_dims: tuple[int, int]) -> bool:
    """Return whether head dims have the tiling of others before them."""
    before = itertools.takewhile(lambda other: other != head_dims, BACKWARD)
    return any(BACKWARD[other] == BACKWARD[head_dims] for other in before)


@pytest.mark.parametrize(
    ("head_dims", "mask"),
    [
        pytest.param(dims, mask, id=f"{name}-{dims}", marks=[pytest.mark.full] * left_out)
        for name, mask in (("full", None), ("causal", causal))
        for dims in BACKWARD
        for left_out in [mask is None and repeats(dims)]
    ],
)
def test_gradients_are_right_for_all_head_dimensions(
    head_dims: tuple[int, int], mask: Callable[..., Any] | None
) -> None:
    dim, value_dim = head_dims
    call = drawn(1, 4, 150, dim, kv_len=170, kv_heads=2, value_dim=value_dim, mask=mask)
    with emulated_gpu() as executor:
        found = gradients(call)
    finishes = BACKWARD[head_dims].finishes and mask is not None
    assert len(executor.runs) == LAUNCHES - finishes
    assert near(found, call)


# What tilings differ in, for dims that are quickly emulated; what no head dims use is here alone.
WAYS: dict[str, dict[str, Any]] = {
    "dV early": {"early": True, "queries": 64},
    "dS through shared memory": {"in_registers": False, "queries": 64},
    "dP in parts": {"in_registers": False, "queries": 64, "dp_parts": 2},
    "late dV and dP in parts": {
        "in_registers": False, "queries": 64, "dp_parts": 2, "early": False,
    },
    "one stage": {"q_stages": 1, "do_stages": 1, "ds_stages": 1},
    "rings of different length": {"do_stages": 1},
    "dQ from registers": {"staged": False},
    "dQ a tile later": {"queries": 64, "early": True, "staged": True, "lagged": True},
    "dQ finished": {
        "queries": 64, "kv_stages": 1, "early": True, "staged": True, "lagged": True,
        "finishes": True,
    },
    "dS and dQ through shared memory": {
        "in_registers": False, "queries": 64, "dp_parts": 2, "staged": True,
        "do_stages": 1, "ds_stages": 1,
    },
    "64 keys for all": {
        "by_keys": False, "in_registers": False, "keys": 64, "queries": 64,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", WAYS)
def test_every_way_to_cut_the_work_is_right(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tiling = replace(BACKWARD[64, 64], **WAYS[name])
    monkeypatch.setattr(tuning, "BACKWARD", {(64, 64): tiling})
    call = drawn(1, 2, 200, 64, kv_heads=1, mask=window)
    with emulated_gpu():
        assert near(gradients(call), call)


def test_tiles_from_lists_and_masks_of_captured_tensors_are_right() -> None:
    """What is causal, but for a prefix, and known to no analysis: tiles are listed for each key."""
    shown = torch.ones(200, 260).tril(20).bool()
    shown[:, :70] = True
    call = drawn(1, 4, 200, 64, kv_len=260, kv_heads=2, mask=lambda b, h, q, kv: shown[q, kv])
    with emulated_gpu():
        assert near(gradients(call), call)


# ---- what a launch shares out --------------------------------------------------------------------


def test_every_schedule_gives_the_same_bits_for_keys_and_values() -> None:
    call, results = drawn(2, 4, 200, 64, kv_heads=2, mask=causal), []
    for schedule in SCHEDULES:
        with emulated_gpu(schedule=schedule, seed=3):
            results.append(gradients(call))
    for dq, dk, dv in results:
        assert torch.equal(dk, results[0][1]) and torch.equal(dv, results[0][2])
        assert near([dq, dk, dv], call)


@pytest.mark.parametrize("multiprocessors", [1, 2, 40])
def test_blocks_take_one_or_several_tiles_of_keys(multiprocessors: int) -> None:
    call = drawn(1, 2, 130, 64, kv_len=300, kv_heads=1, mask=causal)
    with emulated_gpu(multiprocessors=multiprocessors):
        assert near(gradients(call), call)


def test_batches_that_share_keys_add_up_their_gradients() -> None:
    call = drawn(3, 4, 70, 64, kv_len=140, kv_heads=2, kv_batch=1, mask=causal)
    with emulated_gpu():
        found = gradients(call)
    assert found[1].shape[0] == 1 and near(found, call)


def test_new_lengths_and_batches_compile_nothing() -> None:
    with emulated_gpu():
        gradients(drawn(1, 2, 100, 64))
        before = flexfa4.stats()
        for shape in ((2, 2, 130, 64), (1, 3, 60, 64)):
            call = drawn(*shape, kv_len=shape[2] + 50)
            assert near(gradients(call), call)
    assert (flexfa4.stats() - before).compiles == 0


# ---- rows and keys that see nothing, and scores that overflow ------------------------------------


def test_keys_that_nobody_sees_and_rows_that_see_nothing_get_zeros() -> None:
    def middle(b: Any, h: Any, q: Any, kv: Any) -> Any:
        return (q >= 100) & (kv < 60)

    call = drawn(1, 2, 200, 64, kv_len=300, mask=middle)
    with emulated_gpu():
        dq, dk, dv = gradients(call)
    assert not dq[:, :, :100].any() and dq[:, :, 100:].any()
    assert not dk[:, :, 60:].any() and not dv[:, :, 60:].any()
    assert near([dq, dk, dv], call)


@pytest.mark.parametrize("q_len", [1, 64, 65])
@pytest.mark.parametrize("mask", [None, ahead], ids=["full", "causal"])
def test_rows_with_a_very_negative_lse_have_finite_gradients(q_len: int, mask: Any) -> None:
    """Of scores of about -120 padding, with its scores of 0, must not be taken for a part."""
    call = drawn(1, 2, q_len, 64, kv_len=q_len + 64, mask=mask)
    call.q[..., 0], call.k[..., 0] = 32.0, -30.0
    with emulated_gpu():
        assert near(gradients(call), call)


@pytest.mark.parametrize("length", [129, 257])
def test_huge_scores_on_hidden_lanes_do_not_reach_gradients(length: int) -> None:
    """The score grows from key to key: hidden ones, and those beyond the end, have the largest."""
    call = drawn(1, 2, length, 64, mask=ahead, mod=lambda s, b, h, q, kv: s + 2.0 * (kv - q))
    with emulated_gpu():
        assert near(gradients(call), call)


# ---- other tensors -------------------------------------------------------------------------------


def test_gradients_are_right_in_half_precision() -> None:
    call = drawn(1, 2, 130, 64, dtype=torch.float16, mask=window)
    with emulated_gpu():
        assert near(gradients(call), call)


@pytest.mark.parametrize("scale", [0.0, -0.3, 1e-20])
def test_any_scale_is_served(scale: float) -> None:
    call = drawn(1, 1, 130, 64, mask=causal, chosen={"scale": scale})
    with emulated_gpu():
        assert near(gradients(call), call)


LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "heads between positions": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "keys last in memory": lambda x: x.transpose(2, 3).contiguous().transpose(2, 3),
    "rows of an odd length": lambda x: torch.cat((x, x[..., :1]), 3)[..., :-1],
    "one row for all": lambda x: x[:, :, :1].expand_as(x),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_any_strides_are_served(name: str) -> None:
    plain = drawn(1, 2, 70, 64, mask=causal)
    changed = [LAYOUTS[name](x) for x in plain[:4]]
    with emulated_gpu():
        found = gradients(plain.of(changed))
        same = gradients(plain.of([x.contiguous() for x in changed]))
    assert torch.equal(found[1], same[1]) and torch.equal(found[2], same[2])
    for gradient, x in zip(found, changed, strict=False):
        assert gradient.stride() == empty_gradient(x).stride()


def test_a_sample_of_trials_with_sinks_and_lse_agrees() -> None:
    """The loss of a trial depends on the lse as well, and the sink is learned."""
    row = Row("rows_without_keys", (128, 128), "a group of 3", torch.float16, True)

    def attend(inputs: Any, mods: Any) -> Any:
        with emulated_gpu():
            return attend_with("sm90")(inputs, mods)

    assert not excess(row.trial(), attend)
