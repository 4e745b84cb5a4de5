"""The search for tilings with Hopper's kernels, at sizes that the emulator runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from multiprocessing.pool import ThreadPool
from typing import Any

import pytest
import torch

pytest.importorskip("cutlass")

import h200_tilings
from hopper.tiling_calls import Ground, Made, Trial
from hopper.tilings import Search, Tiling, tiling_of
from hopper.timing import Rounds
from hopper.variants import Shape

from flexfa4.kernels.sm90.backward.storage import Tiling as BackwardTiling
from flexfa4.kernels.sm90.forward.plan import Tiling as ForwardTiling
from tests.emulated_executor import emulated_gpu

CPU = torch.device("cpu")
SHAPE = Shape(1, 1, 1, 130, 64, 64)


class Clock:
    """Calls nothing."""

    def milliseconds(self, call: Callable[[], Any], times: int) -> float:
        return 1.0


def measured(
    search: Search, first: list[Tiling], monkeypatch: pytest.MonkeyPatch, seconds: float = 600.0
) -> list[dict[str, Any]]:
    """Return the rows of a search with some candidates."""
    monkeypatch.setattr(Search, "first", lambda self: first)
    monkeypatch.setattr(Search, "second", lambda self, times: [])
    bench = h200_tilings.Bench(CPU, Clock(), time.monotonic() + seconds, Rounds(2, 1.0), SHAPE)
    with emulated_gpu(), ThreadPool(1) as pool:
        return list(h200_tilings.measured([search], bench, pool))


FORWARD = [ForwardTiling(1, 128), ForwardTiling(1, 64)]
BACKWARD = [BackwardTiling(64, 128), BackwardTiling(64, 128, early=False)]


@pytest.mark.parametrize(("way", "first"), [("forward", FORWARD), ("backward", BACKWARD)])
def test_every_candidate_is_its_own_kernel_and_is_right(
    way: str, first: list[Tiling], monkeypatch: pytest.MonkeyPatch
) -> None:
    launched: list[str] = []
    tried = h200_tilings.tried

    def told(ground: Ground, trial: Trial, digest: str) -> Any:
        launched.append(digest)
        return tried(ground, trial, digest)

    monkeypatch.setattr(h200_tilings, "tried", told)
    monkeypatch.setattr(Search, "variants", ("causal",))
    (row,) = measured(Search(way, (64, 64)), first, monkeypatch)
    (entries,) = row["stages"]
    assert [tiling_of(way, entry["tiling"]) for entry in entries] == first
    for entry in entries:
        assert "failed" not in entry and set(entry["spills"].values()) == {0}
        assert entry["ms"] == {"causal": [1.0, 1.0]}
    assert len(set(launched)) == len(launched) == len(first)


def test_wrong_results_the_kernel_of_another_and_what_cannot_be_compiled_are_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second, same, spilling = (ForwardTiling(1, 128 - 16 * i) for i in range(4))

    def fake(trial: Trial) -> Made:
        if trial.tiling == second and trial.variant == "causal":
            raise ValueError("no\nkernel")
        known = trial.tiling if trial.tiling != same else first
        return Made(str(known), 168, 24 * (trial.tiling == spilling))

    def tried(ground: Ground, trial: Trial, digest: str) -> Any:
        wrong = "off by 1" if trial.tiling == first and trial.variant == "causal" else None
        return digest, wrong

    monkeypatch.setattr(h200_tilings, "made", fake)
    monkeypatch.setattr(h200_tilings, "tried", tried)
    (row,) = measured(Search("forward", (64, 64)), [first, second, same, spilling], monkeypatch)
    assert [(entry["failed"], set(entry["ms"])) for entry in row["stages"][0]] == [
        ("causal: off by 1", {"full"}),
        ("causal: ValueError: no kernel", {"full"}),
        ("full: the kernel is that of another candidate", set()),
        ("full: spills 24 bytes", set()),
    ]
    assert not h200_tilings.timed(Search("forward", (64, 64)), row["stages"][0])


@pytest.mark.parametrize(("way", "first"), [("forward", FORWARD), ("backward", BACKWARD)])
def test_a_number_that_is_off_is_wrong(way: str, first: list[Tiling]) -> None:
    search = Search(way, (64, 64))
    with emulated_gpu():
        ground = Ground.of(search, "causal", SHAPE, CPU)
        result = ground.call(Trial(search, first[-1], "causal", SHAPE))()
    assert ground.wrong(result) is None
    result[0].view(-1)[5] += 1
    assert "off by" in str(ground.wrong(result))


def test_nothing_is_measured_when_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not measured(Search("forward", (64, 64)), FORWARD[:1], monkeypatch, seconds=-1.0)
