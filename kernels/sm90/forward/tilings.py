"""The tilings of Hopper's forward kernel, for the head dims that were measured on an H200.

`benchmarks/h200_tilings.py` writes them; `docs/notes/h200.md` says what they were measured by.
"""

from __future__ import annotations

from typing import Final

from flexfa4.kernels.sm90.forward.plan import Tiling

FORWARD: Final = {
    (64, 64): Tiling(warpgroups=3, keys=96),
    (64, 128): Tiling(warpgroups=2, keys=128),
    (96, 96): Tiling(warpgroups=3, keys=96),
    (128, 128): Tiling(warpgroups=2, keys=128, early=0.25),
    (192, 128): Tiling(warpgroups=3, keys=64),
    (256, 256): Tiling(warpgroups=2, keys=64),
}
"""By head dims of q and k, and of v."""

UNMASKED: Final = {
    (64, 128): Tiling(warpgroups=3, keys=80),
    (128, 128): Tiling(warpgroups=3, keys=80),
    (64, 64): Tiling(warpgroups=3, keys=128),
    (96, 96): Tiling(warpgroups=3, keys=112),
    (256, 256): Tiling(warpgroups=2, keys=80),
}
"""Those of calls without a mask, where they are others."""
