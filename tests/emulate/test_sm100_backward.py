"""The Blackwell backward kernels through `flexfa4.attention`, in the emulator.

Gradients of the case table are held against the dense reference by the tests of the forward pass,
which differentiate what they compute; here are the calls that a backward pass may get wrong and a
forward pass not.  The emulator is strict: races, reads out of bounds and of memory that nobody
wrote fail a test whatever the numbers are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

pytest.importorskip("cutlass")

import flexfa4
from flexfa4.emulator.options import SCHEDULES
from flexfa4.emulator.results import Run
from flexfa4.kernels.sm100.backward import architecture
from flexfa4.kernels.sm100.backward.model import cycles_of
from flexfa4.kernels.sm100.backward.storage import Tiling, tensor_memory_of
from flexfa4.primitives.exponentials import EmulatedFraction
from flexfa4.testing import excess
from tests import gradient_calls
from tests.emulated_executor import emulated_gpu
from tests.forward_trials import Row, attend_with
from tests.gradient_calls import Call, ahead, causal, drawn, near, window

LAUNCHES = 4  # of a call with its gradients: forward, and before, main and after of backward
MAIN = 2  # which of them is the main backward kernel
BLACKWELL: dict[str, Any] = {"capability": (10, 0)}


def gradients(call: Call, **options: Any) -> tuple[list[torch.Tensor], list[Run]]:
    """Return dq, dk and dv as the kernels compute them, and what the launches did."""
    with emulated_gpu(**BLACKWELL, **options) as executor:
        return gradient_calls.gradients(call, "sm100"), list(executor.runs)


ALONE, TOGETHER = Tiling(), Tiling(blocks=2, q_stages=1)

# With fewer columns of tensor memory, small heads are computed in the orders of larger ones.
ORDERS = {
    "dQ in the place of gradients": (replace(ALONE, columns=400), 80),
    "dQ among scores": (replace(TOGETHER, columns=400), 64),
    "one by one": (replace(TOGETHER, columns=320), 64),
}
"""With the head dim of q and k."""


@pytest.fixture(params=[ALONE, TOGETHER], ids=["one block", "two blocks"])
def tiling(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Tiling:
    """Have all calls of a test cut as blocks that compute alone do, or two together."""
    monkeypatch.setattr(architecture, "tiling_for", lambda *_: request.param)
    monkeypatch.setattr(architecture, "fitting", lambda tiling, *_: tiling)
    found: Tiling = request.param
    return found


def softcap(s: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
    return 20 * torch.tanh(s / 20)


# ---- head dims and masks -------------------------------------------------------------------------

MORE_DIMS = [(16, 16), (80, 48), (64, 128), (128, 64), (96, 96), (112, 112), (160, 160)]
USUAL_DIMS = [(64, 64), (128, 128), (192, 128)]
HEAD_DIMS = [*USUAL_DIMS, *(pytest.param(d, marks=pytest.mark.full) for d in MORE_DIMS)]


@pytest.mark.parametrize("head_dims", HEAD_DIMS, ids=str)
@pytest.mark.parametrize("mask", [None, causal], ids=["full", "causal"])
def test_gradients_are_right_for_all_head_dimensions(
    head_dims: tuple[int, int], mask: Callable[..., Any] | None
) -> None:
    dim, value_dim = head_dims
    call = drawn(1, 4, 150, dim, kv_len=170, kv_heads=2, value_dim=value_dim, mask=mask)
    found, runs = gradients(call)
    assert len(runs) == LAUNCHES
    assert near(found, call)


def test_head_dims_that_do_not_fit_are_served_by_torch() -> None:
    call = drawn(1, 2, 70, 144, value_dim=112, mask=causal)
    found, runs = gradients(call)
    assert len(runs) == 1 and near(found, call)


@pytest.mark.parametrize("schedule", ["random", pytest.param("priority", marks=pytest.mark.full)])
@pytest.mark.parametrize("name", ORDERS)
@pytest.mark.parametrize("mod", [None, softcap], ids=["plain", "derivative"])
def test_every_order_of_products_is_right(
    name: str, mod: Any, schedule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiling, dim = ORDERS[name]
    monkeypatch.setattr(architecture, "tiling_for", lambda *_: tiling)
    call = drawn(1, 2, 390, dim, kv_len=300, kv_heads=1, value_dim=64, mask=causal, mod=mod)
    assert near(gradients(call, schedule=schedule, multiprocessors=2)[0], call)


def test_orders_of_products_are_those_of_larger_heads() -> None:
    def order(tiling: Tiling, dims: tuple[int, int]) -> Any:
        memory = tensor_memory_of(tiling, dims)
        return memory.steps, memory.wait_for_dq, memory.scores_until, memory.hands_over

    small = [order(tiling, (dim, 64)) for tiling, dim in ORDERS.values()]
    large = ((ALONE, (128, 128)), (TOGETHER, (128, 128)), (TOGETHER, (192, 128)))
    assert small == [order(*of) for of in large]
    assert len({*small, order(ALONE, (64, 64))}) == len(small) + 1


@pytest.mark.usefixtures("tiling")
def test_tiles_from_lists_and_masks_of_captured_tensors_are_right() -> None:
    """What is causal, but for a prefix, and known to no analysis: tiles are listed for each key."""
    shown = torch.ones(200, 260).tril(20).bool()
    shown[:, :70] = True
    mask = lambda b, h, q, kv: shown[q, kv]  # noqa: E731
    call = drawn(1, 4, 200, 64, kv_len=260, kv_heads=2, mask=mask)
    assert near(gradients(call)[0], call)


@pytest.mark.parametrize("dim", [64, pytest.param(128, marks=pytest.mark.full)])
@pytest.mark.usefixtures("tiling")
def test_the_derivative_of_a_mod_is_part_of_gradients(dim: int) -> None:
    call = drawn(1, 2, 200, dim, mask=causal, mod=softcap)
    assert near(gradients(call)[0], call)


# ---- what a launch shares out --------------------------------------------------------------------


@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.usefixtures("tiling")
def test_every_schedule_gives_the_same_bits_for_keys_and_values(dim: int) -> None:
    call, results = drawn(2, 4, 200, dim, kv_len=300, kv_heads=2, mask=causal), []
    for schedule in SCHEDULES:
        results.append(gradients(call, schedule=schedule, seed=3)[0])
    for dq, dk, dv in results:
        assert torch.equal(dk, results[0][1]) and torch.equal(dv, results[0][2])
        assert near([dq, dk, dv], call)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("multiprocessors", [2, 4, 40])
@pytest.mark.usefixtures("tiling")
def test_blocks_take_items_with_tiles_and_without(multiprocessors: int, schedule: str) -> None:
    """The last of five tiles of keys, an odd number of them, are seen by no query."""
    call = drawn(1, 2, 130, 64, kv_len=600, kv_heads=1, mask=causal)
    assert near(gradients(call, multiprocessors=multiprocessors, schedule=schedule)[0], call)


@pytest.mark.usefixtures("tiling")
def test_batches_that_share_keys_add_up_their_gradients() -> None:
    call = drawn(3, 4, 70, 64, kv_len=140, kv_heads=2, kv_batch=1, mask=causal)
    found, _ = gradients(call)
    assert found[1].shape[0] == 1 and near(found, call)


def test_new_lengths_and_batches_compile_nothing() -> None:
    gradients(drawn(1, 2, 100, 64))
    before = flexfa4.stats()
    for shape in ((2, 2, 130, 64), (1, 3, 60, 64)):
        call = drawn(*shape, kv_len=shape[2] + 50)
        assert near(gradients(call)[0], call)
    assert (flexfa4.stats() - before).compiles == 0


WAYS: dict[str, dict[str, Any]] = {
    "one stage": {"do_stages": 1, "kv_stages": 1, "dq_stages": 1},
    "dQ in narrow parts": {"dq_columns": 16},
    "two blocks and more stages": {"blocks": 2, "q_stages": 2},
    "two blocks and dQ in narrow parts": {"blocks": 2, "dq_columns": 16},
    "a quarter of the exponentials emulated": {"emulated": EmulatedFraction(1, 4)},
}


@pytest.mark.parametrize("name", WAYS)
def test_every_way_to_cut_the_work_is_right(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = replace(Tiling(do_stages=2, kv_stages=2), **WAYS[name])
    monkeypatch.setattr(architecture, "tiling_for", lambda *_: made)
    call = drawn(1, 2, 201 + len(name), 64, kv_heads=1, mask=window)  # of another form each
    assert near(gradients(call)[0], call)


# ---- what the launch moves and computes ----------------------------------------------------------


def products(run: Run) -> int:
    """Return for how many elements of 16 along the depth products were issued."""
    return sum(n for name, n in run.executed.items() if name.startswith("tcgen05.mma"))


@pytest.mark.parametrize(
    ("mask", "tiles"), [(None, 4), ("q >= kv", 3), ("(q < 128) & (kv < 128)", 1), ("q < 0", 0)]
)
def test_tiles_that_nobody_sees_are_left_out(
    mask: str | None, tiles: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(architecture, "tiling_for", lambda *_: ALONE)
    found, runs = gradients(drawn(1, 1, 256, 64, mask=mask))
    of_a_tile = (64 + 64 + 128 + 128 + 128) // 16  # depths of S, dP, dV, dK and dQ
    assert products(runs[MAIN]) == tiles * of_a_tile
    assert tiles or not any(x.any() for x in found)


@pytest.mark.parametrize(("mask", "tiles"), [(None, 4), ("q + 128 >= kv", 3)])
def test_two_blocks_leave_tiles_of_256_keys_out(
    mask: str | None, tiles: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 512 keys the last 256 are not seen by the first of two tiles of queries."""
    monkeypatch.setattr(architecture, "tiling_for", lambda *_: TOGETHER)
    call = drawn(1, 1, 256, 64, kv_len=512, mask=mask)
    _, runs = gradients(call)
    of_a_tile = (64 + 64 + 128 + 128 + 256) // 16  # the depth of dQ are the keys of both
    assert products(runs[MAIN]) == tiles * of_a_tile


def test_two_blocks_move_half_of_what_one_does(tiling: Tiling) -> None:
    """Bytes of a tile, for each block: as the model says, and the paper's table before it."""
    short, long = (
        gradients(drawn(1, 1, length, 128, kv_len=256))[1][MAIN] for length in (256, 512)
    )
    blocks, tiles = 2, 2  # that work, and tiles of queries more
    of = {
        name: (getattr(long.traffic, name) - getattr(short.traffic, name)) // (blocks * tiles)
        for name in ("bulk_reduced", "cluster_written", "tensor_loaded")
    }
    together = tiling.blocks
    cycles = cycles_of(tiling, (128, 128))
    assert 2 * of["bulk_reduced"] // 128 == cycles.shared_memory.sums == 1024 // together
    assert of["cluster_written"] == (128 * 64 * 2 if together > 1 else 0)
    assert of["tensor_loaded"] == 2 * 128 * 128 * 2  # Q and dO, or halves of them twice
    assert all(f"cta_group::{together}" in name for name in long.matrices)


# ---- rows and keys that see nothing, and scores that overflow ------------------------------------


def test_keys_that_nobody_sees_and_rows_that_see_nothing_get_zeros() -> None:
    def middle(b: Any, h: Any, q: Any, kv: Any) -> Any:
        return (q >= 100) & (kv < 60)

    call = drawn(1, 2, 200, 64, kv_len=300, mask=middle)
    (dq, dk, dv), _ = gradients(call)
    assert not dq[:, :, :100].any() and dq[:, :, 100:].any()
    assert not dk[:, :, 60:].any() and not dv[:, :, 60:].any()
    assert near([dq, dk, dv], call)


@pytest.mark.parametrize("q_len", [1, 129])
@pytest.mark.parametrize("mask", [None, ahead], ids=["full", "causal"])
def test_rows_with_a_very_negative_lse_have_finite_gradients(q_len: int, mask: Any) -> None:
    """Of scores of about -120 padding, with its scores of 0, must not be taken for a part."""
    call = drawn(1, 2, q_len, 64, kv_len=q_len + 64, mask=mask)
    call.q[..., 0], call.k[..., 0] = 32.0, -30.0
    assert near(gradients(call)[0], call)


def test_huge_scores_on_hidden_lanes_do_not_reach_gradients() -> None:
    """The score grows from key to key: hidden ones, and those beyond the end, have the largest."""
    call = drawn(1, 2, 129, 64, mask=ahead, mod=lambda s, b, h, q, kv: s + 2.0 * (kv - q))
    assert near(gradients(call)[0], call)


# ---- other tensors -------------------------------------------------------------------------------


def test_gradients_are_right_in_half_precision() -> None:
    call = drawn(1, 2, 130, 64, dtype=torch.float16, mask=window)
    assert near(gradients(call)[0], call)


@pytest.mark.parametrize("scale", [0.0, -0.3, 1e-20])
def test_any_scale_is_served(scale: float) -> None:
    call = drawn(1, 1, 130, 64, mask=causal, chosen={"scale": scale})
    assert near(gradients(call)[0], call)


def test_a_sample_of_trials_with_sinks_and_lse_agrees() -> None:
    """The loss of a trial depends on the lse as well, and the sink is learned."""
    row = Row("rows_without_keys", (128, 128), "a group of 3", torch.float16, True)

    def attend(inputs: Any, mods: Any) -> Any:
        with emulated_gpu(**BLACKWELL):
            return attend_with("sm100")(inputs, mods)

    assert not excess(row.trial(), attend)


def test_the_emulator_backend_computes_gradients_by_these_kernels() -> None:
    call = drawn(1, 1, 64, 64, mask=causal)
    assert near(gradient_calls.gradients(call, "emulator"), call)
