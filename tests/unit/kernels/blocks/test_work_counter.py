"""Counters of work: one for each stream, and one of its own for a launch that is captured."""

from __future__ import annotations

import pytest
import torch

from flexfa4.kernels.blocks.work_counter import work_counter

CPU = torch.device("cpu")


def test_launches_of_a_stream_share_a_counter_that_begins_at_zero() -> None:
    counter = work_counter(CPU, 101)
    assert counter.tolist() == [0] and counter.dtype is torch.int32
    assert work_counter(CPU, 101) is counter
    assert work_counter(CPU, 102) is not counter
    assert work_counter(torch.device("meta"), 101) is not counter


def test_a_captured_launch_has_a_counter_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = work_counter(torch.device("meta"), 103)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    zeros = torch.zeros
    monkeypatch.setattr(torch, "zeros", lambda *a, device, **k: zeros(*a, device="meta", **k))
    made = [work_counter(torch.device("cuda"), 103) for _ in range(2)]
    assert made[0] is not made[1] and all(m is not kept for m in made)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    assert work_counter(torch.device("cuda", 0), 103) is work_counter(torch.device("cuda", 0), 103)
