"""The counter from which the blocks of a launch fetch work items, see `primitives.dispatch`.

A launch leaves its counter at 0, so those that follow each other on a stream share one, and none
has to clear it.  Launches of different streams may overlap, and have a counter each.
"""

from __future__ import annotations

import threading

import torch

_COUNTERS: dict[tuple[torch.device, int], torch.Tensor] = {}
_LOCK = threading.Lock()


def work_counter(device: torch.device, stream: int) -> torch.Tensor:
    """Return the counter for a launch, int32 ``(1,)``, 0 when the launch begins.

    A CUDA graph may be replayed on any stream, beside launches of the one that it was captured on.
    So a launch that is captured has a counter of its own, which the graph clears.

    Args:
        device: of the launch.
        stream: its stream: the driver's handle.
    """
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        return torch.zeros(1, dtype=torch.int32, device=device)
    key = (device, stream)
    counter = _COUNTERS.get(key)
    if counter is None:
        with _LOCK:
            counter = _COUNTERS.get(key)
            if counter is None:
                counter = torch.zeros(1, dtype=torch.int32, device=device)
                _COUNTERS[key] = counter
    return counter
