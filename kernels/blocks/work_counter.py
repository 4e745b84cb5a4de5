"""The counter from which the blocks of a launch fetch work items, see `primitives.dispatch`.

A launch leaves its counter at 0, so those that follow each other on a stream share one, and none
has to clear it.  Launches of different streams may overlap, and have a counter each.
"""

from __future__ import annotations

import threading

import torch

_COUNTERS: dict[tuple[torch.device, int], torch.Tensor] = {}
_LOCK = threading.Lock()


def stream_and_counter(tensor: torch.Tensor) -> tuple[int, torch.Tensor]:
    """Return where a launch takes its turn, and its counter.

    A CUDA graph may be replayed on any stream, beside launches of the one that it was captured on.
    So a launch that is captured has a counter of its own, which the graph clears.

    Args:
        tensor: on the device of the launch.

    Returns:
        The current stream, as the driver's handle, 0 off GPUs; and the counter, see `work_counter`.
    """
    device = tensor.device
    if not tensor.is_cuda:
        return 0, work_counter(device, 0)
    stream = torch._C._cuda_getCurrentRawStream(device.index)
    if torch.cuda.is_current_stream_capturing():
        return stream, torch.zeros(1, dtype=torch.int32, device=device)
    return stream, work_counter(device, stream)


def work_counter(device: torch.device, stream: int) -> torch.Tensor:
    """Return the counter of a stream, int32 ``(1,)``, 0 when a launch begins.

    Args:
        device: of the launch.
        stream: its stream: the driver's handle.
    """
    key = (device, stream)
    counter = _COUNTERS.get(key)
    if counter is None:
        with _LOCK:
            counter = _COUNTERS.get(key)
            if counter is None:
                counter = torch.zeros(1, dtype=torch.int32, device=device)
                _COUNTERS[key] = counter
    return counter
