"""The study of numerics with Hopper's kernels, at sizes that the emulator runs."""

from __future__ import annotations

import time

import pytest
import torch

pytest.importorskip("cutlass")

from numerical import errors
from numerical.errors import DENSE, ErrorJob
from numerical.training import REFERENCE, TINY, TrainingJob
from numerical.ways import CHOICES, KERNELS


def test_kernels_train_as_the_reference_does() -> None:
    runs = {}
    for way in (REFERENCE, KERNELS):
        (row,) = TrainingJob(way, 0, TINY, "emulator").run(time.time() + 600)
        runs[way] = [*row["losses"], row["held_out"]]
    for mine, right in zip(runs[KERNELS], runs[REFERENCE], strict=True):
        assert abs(mine - right) < torch.finfo(torch.bfloat16).eps * right


def test_errors_of_kernels_are_measured_beside_those_of_dense_bf16(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(errors, "CHOICES", {KERNELS: CHOICES[KERNELS]})
    rows = list(ErrorJob("alibi", (96,), "emulator", dim=64).run(time.time() + 600))
    found = {row["way"]: row["errors"] for row in rows}
    assert set(found) == {DENSE, KERNELS}
    for tensor in errors.TENSORS:
        eps = torch.finfo(torch.bfloat16).eps
        assert eps / 10 < found[KERNELS][tensor]["rms"] < found[DENSE][tensor]["rms"] < 2 * eps
