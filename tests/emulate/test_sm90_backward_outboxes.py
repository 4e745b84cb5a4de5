"""Parts of dQ that leave the Hopper backward kernel by outboxes, in the emulator.

Both consumers have them: one computes dQ with the tile that it belongs to, the other a tile later,
where the first tile of a walk has none before it, and the last one none behind it.  There dQ may be
finished behind the outbox: who adds the last part to a tile writes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

pytest.importorskip("cutlass")

from flexfa4.emulator.options import SCHEDULES
from flexfa4.kernels.sm90.backward import architecture, tuning
from flexfa4.kernels.sm90.backward.storage import Tiling
from flexfa4.testing import Case, Draw, Mods, Sizes, Trial, excess
from tests import gradient_calls
from tests.emulated_executor import emulated_gpu
from tests.forward_trials import attend_with, poisoned_memory
from tests.gradient_calls import Call, causal, drawn, near, window

DIM = 64
QUERIES, KEYS = 64, 128  # of a tile
TILINGS = {
    "with its tile": Tiling(QUERIES, KEYS, early=False, staged=True),
    "a tile later": Tiling(QUERIES, KEYS, kv_stages=1, staged=True, lagged=True),
    "finished": Tiling(QUERIES, KEYS, kv_stages=1, staged=True, lagged=True, finishes=True),
    "a tile later, two stages of keys": Tiling(QUERIES, KEYS, staged=True, lagged=True),
    "with its tile, dS in shared memory": Tiling(
        QUERIES,
        KEYS,
        do_stages=1,
        kv_stages=1,
        ds_stages=1,
        in_registers=False,
        dp_parts=2,
        staged=True,
    ),
}
QUICK = ("with its tile", "finished")


@pytest.fixture(
    autouse=True,
    params=[pytest.param(name, marks=[pytest.mark.full] * (name not in QUICK)) for name in TILINGS],
)
def _tiling(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(tuning, "BACKWARD", {(DIM, DIM): TILINGS[request.param]})
    monkeypatch.setattr(architecture, "fitting", lambda tiling, walk: tiling)
    yield


def gradients(call: Call, **options: Any) -> list[torch.Tensor]:
    """Return dq, dk and dv as the kernels compute them."""
    with emulated_gpu(**options):
        return gradient_calls.gradients(call, "sm90")


# ---- walks of every length -----------------------------------------------------------------------


@pytest.mark.parametrize("tiles", [1, 2, 3, 4], ids=lambda tiles: f"{tiles} tiles")
@pytest.mark.parametrize("mask", [None, causal], ids=["full", "causal"])
def test_walks_of_every_length_are_right(tiles: int, mask: Callable[..., Any] | None) -> None:
    call = drawn(1, 2, QUERIES * tiles - 9, DIM, kv_len=KEYS + 30, mask=mask)
    assert near(gradients(call), call)


@pytest.mark.parametrize("heads", [1, 3])
def test_blocks_that_take_several_tiles_of_keys_go_on_from_one_to_the_next(heads: int) -> None:
    """Walks of different lengths follow each other, and there are more of them than blocks."""
    call = drawn(2, heads, 150, DIM, kv_len=2 * KEYS + 70, mask=window)
    assert near(gradients(call, multiprocessors=1), call)


def test_query_heads_of_one_head_of_keys_follow_each_other() -> None:
    call = drawn(1, 6, 130, DIM, kv_len=200, kv_heads=2, mask=causal)
    assert near(gradients(call, multiprocessors=3), call)


# ---- tiles of keys that nobody sees --------------------------------------------------------------


def nothing_behind(b: Any, h: Any, q: Any, kv: Any) -> Any:
    return (q >= 100) & (kv < 60)


def nothing_between(b: Any, h: Any, q: Any, kv: Any) -> Any:
    return (kv < 90) | (kv >= 2 * KEYS + 10) & (q < 70)


@pytest.mark.parametrize("mask", [nothing_behind, nothing_between])
@pytest.mark.parametrize("multiprocessors", [1, 8])
def test_a_tile_of_keys_that_nobody_sees_gets_zeros(
    mask: Callable[..., Any], multiprocessors: int
) -> None:
    call = drawn(1, 2, 200, DIM, kv_len=3 * KEYS, mask=mask)
    dq, dk, dv = gradients(call, multiprocessors=multiprocessors)
    assert not dk[:, :, KEYS : 2 * KEYS].any() and not dv[:, :, KEYS : 2 * KEYS].any()
    assert near([dq, dk, dv], call)


def test_lists_without_a_tile_are_walks_of_none() -> None:
    """What no analysis knows: tiles are listed for each tile of keys, none for the middle one."""
    shown = torch.rand(200, 3 * KEYS, generator=torch.Generator().manual_seed(0)) < 0.5
    shown[:, KEYS : 2 * KEYS] = False
    shown[:QUERIES] = False
    call = drawn(1, 4, 200, DIM, kv_len=3 * KEYS, kv_heads=2, mask=lambda b, h, q, k: shown[q, k])
    dq, dk, dv = gradients(call, multiprocessors=2)
    assert not dq[:, :, :QUERIES].any()
    assert not dk[:, :, KEYS : 2 * KEYS].any() and not dv[:, :, KEYS : 2 * KEYS].any()
    assert near([dq, dk, dv], call)


# ---- what else a block does beside ---------------------------------------------------------------


def test_every_schedule_gives_the_same_bits_for_keys_and_values() -> None:
    call = drawn(1, 4, 150, DIM, kv_len=2 * KEYS + 20, kv_heads=2, mask=causal)
    results = [gradients(call, schedule=schedule, seed=3) for schedule in SCHEDULES]
    for dq, dk, dv in results:
        assert torch.equal(dk, results[0][1]) and torch.equal(dv, results[0][2])
        assert near([dq, dk, dv], call)


def test_a_sum_of_two_parts_has_the_same_bits_in_every_schedule() -> None:
    call = drawn(1, 2, 150, DIM, kv_len=2 * KEYS, mask=causal)
    results = [gradients(call, schedule=schedule, seed=1)[0] for schedule in SCHEDULES]
    assert all(torch.equal(dq, results[0]) for dq in results)


def test_sums_for_captured_tensors_are_made_tile_by_tile() -> None:
    def make(s: Sizes, d: Draw) -> Mods:
        by_key, by_query, table = d.learned(s.heads, s.kv_len), d.learned(s.q_len), d.learned(40)

        def mod(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
            return score + by_key[h, kv] + by_query[q] + table[(q - kv).clamp(-20, 19) + 20]

        return Mods(mod, learned=(by_key, by_query, table))

    trial = Trial(Case("three sums", make), Sizes(1, 2, 1, 150, 170, DIM, DIM), torch.bfloat16)
    with emulated_gpu(), poisoned_memory():
        assert excess(trial, attend_with("sm90")) == []
