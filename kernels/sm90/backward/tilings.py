"""The tilings of Hopper's backward kernel, for the head dims that were measured on an H200.

`benchmarks/h200_tilings.py` writes them; `docs/notes/h200.md` says what they were measured by.
"""

from __future__ import annotations

from typing import Final

from flexfa4.kernels.sm90.backward.storage import Tiling

BACKWARD: Final = {
    (64, 64): Tiling(queries=128, keys=128, early=False, staged=True),
    (64, 128): Tiling(queries=64, keys=128, kv_stages=1, staged=True, lagged=True, finishes=True),
    (96, 96): Tiling(queries=64, keys=128, staged=True, lagged=True, finishes=True),
    (128, 128): Tiling(queries=64, keys=128, kv_stages=1, staged=True, lagged=True, finishes=True),
    (192, 128): Tiling(
        queries=64,
        keys=128,
        do_stages=1,
        kv_stages=1,
        ds_stages=1,
        in_registers=False,
        dp_parts=2,
        staged=True,
    ),
    (256, 256): Tiling(
        queries=64,
        keys=64,
        do_stages=1,
        kv_stages=1,
        by_keys=False,
        in_registers=False,
    ),
}
"""By head dims of q and k, and of v."""
