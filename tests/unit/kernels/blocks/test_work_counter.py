"""Counters of work: one for each stream, and one of its own for a launch that is captured."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flexfa4.kernels.blocks.work_counter import stream_and_counter, work_counter

CPU = torch.device("cpu")


def test_launches_of_a_stream_share_a_counter_that_begins_at_zero() -> None:
    counter = work_counter(CPU, 101)
    assert counter.tolist() == [0] and counter.dtype is torch.int32
    assert work_counter(CPU, 101) is counter
    assert work_counter(CPU, 102) is not counter
    assert work_counter(torch.device("meta"), 101) is not counter


class OnGpu:
    """As much of a tensor on a GPU as is looked at."""

    is_cuda = True
    device = torch.device("cuda", 0)


def test_off_gpus_there_is_one_stream() -> None:
    assert stream_and_counter(torch.zeros(1)) == (0, work_counter(CPU, 0))


def test_a_captured_launch_has_a_counter_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor: Any = OnGpu()
    zeros = torch.zeros
    monkeypatch.setattr(torch, "zeros", lambda *a, device, **k: zeros(*a, device="meta", **k))
    streams = {0: 103}
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", streams.get, raising=False)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    stream, kept = stream_and_counter(tensor)
    assert stream == 103 and stream_and_counter(tensor)[1] is kept
    streams[0] = 104
    assert stream_and_counter(tensor)[1] is not kept
    streams[0] = 103
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    made = [stream_and_counter(tensor) for _ in range(2)]
    assert all(stream == 103 and counter is not kept for stream, counter in made)
    assert made[0][1] is not made[1][1]
