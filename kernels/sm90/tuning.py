"""Which tiling a call of the Hopper kernels gets.

What was measured on an H200 is a table (`forward.tilings`), which `benchmarks/h200_tilings.py`
writes; other head dims get the tiling that the performance model (`model`) finds fastest among
those that fit shared memory and registers.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from flexfa4.frontend.ir import Node, topological
from flexfa4.kernels.blocks.walk import WalkPlan
from flexfa4.kernels.refusal import Refusal
from flexfa4.kernels.request import ANY_TILE, Tile
from flexfa4.kernels.sm90.forward.plan import WARPGROUP_ROWS, ForwardPlan, Tiling
from flexfa4.kernels.sm90.forward.storage import SHARED_MEMORY, plan_storage
from flexfa4.kernels.sm90.forward.tilings import FORWARD, UNMASKED
from flexfa4.primitives.tile_walk import TileShape

HEAD_DIM_STEP: Final = 16
"""Head dims are multiples of the depth of a WGMMA, whose 32 bytes are the narrowest swizzle."""

MOST_HEAD_DIM: Final = 256
"""Columns of the widest WGMMA: the output is one accumulator."""

_ALIKE: Final = 1.01
_WARPGROUPS: Final = (1, 2, 3)
_KEYS: Final = range(16, 128 + 1, 16)  # of tilings that are chosen: more keys waste masked scores
_STAGES: Final = 2
_FEWEST_KEYS: Final = 48  # that make room for mods: with fewer, tiles cost more than what they do

_ACCUMULATORS: Final = {1: 200, 2: 188, 3: 128}
"""Registers of a consumer thread that may hold scores, probabilities and output, by warpgroups.
The rest is taken by addresses, rows' state, and mods: with more, ptxas spills some of them."""

_NOTHING: Final = dict.fromkeys(_WARPGROUPS, 1 << 10)
"""Likewise of plans without mods that need any: as many as the tables say."""

_COMPUTING: Final = {1: 200, 2: 188, 3: 128}
"""Likewise of plans whose score mod is more than a factor and terms that are added."""

_MASKED: Final = {1: 200, 2: 176, 3: 96}
"""Likewise of plans whose mask is evaluated for each score."""

_ADDING: Final = {1: 200, 2: 176, 3: 104}
"""Likewise of plans whose score mod adds what is not linear in positions."""

_READING: Final = {1: 200, 2: 172, 3: 0}
"""Likewise of plans whose score mod reads for each key, or is evaluated in parts."""

_WIDE: Final = 128
_KEYS_OF_WIDE: Final = 80
"""Keys that two warpgroups get for these where heads of q and k are wider than `_WIDE`."""


def tiling_for(head_dims: tuple[int, int], tile: Tile) -> Tiling | Refusal:
    """Return the tiling of a call, or why there is none.

    Args:
        head_dims: of q and v, that there are kernels for.
        tile: what the user chose.
    """
    usual = usual_tiling(head_dims)
    if tile == ANY_TILE:
        return usual
    return _chosen(head_dims, usual, tile)


def usual_tiling(head_dims: tuple[int, int]) -> Tiling:
    """Return the tiling that is taken where none is chosen."""
    measured = FORWARD.get(head_dims)
    return fastest(head_dims) if measured is None else measured


@functools.lru_cache(maxsize=256)
def fastest(head_dims: tuple[int, int]) -> Tiling:
    """Return the tiling that the model finds fastest, for long rows without mod and mask.

    Of those that it cannot tell apart, the one with the largest tile: it has the fewest barriers.
    """
    from flexfa4.kernels.sm90.model import cycles_per_score  # which few calls need

    found = {t: cycles_per_score(_plan(head_dims, t)) for t in feasible(head_dims)}
    least = min(found.values())
    alike = [tiling for tiling, cycles in found.items() if cycles <= _ALIKE * least]
    return max(alike, key=lambda tiling: tiling.rows * tiling.keys)


def feasible(head_dims: tuple[int, int]) -> Iterator[Tiling]:
    """Yield the tilings that fit shared memory and registers: some, for dims that are served."""
    for warpgroups in _WARPGROUPS:
        for keys in _KEYS:
            tiling = Tiling(warpgroups, keys, _STAGES)
            if _has_room(head_dims, tiling, _ACCUMULATORS):
                yield tiling


def fitting(plan: ForwardPlan) -> Tiling:
    """Return the tiling of a plan: of its head dims, and of what it computes.

    What mods hold was found by compiling; fewer keys, and then fewer warpgroups, make room.  What
    is faster without a mask is taken only where there is room for it as it is.
    """
    limits, tiling = _limits(plan), plan.tiling
    if plan.walk.source == "dense" and plan.mask is None and not plan.varlen:
        unmasked = replace(UNMASKED.get(plan.head_dims, tiling), stages=tiling.stages)
        if _has_room(plan.head_dims, unmasked, limits):
            return unmasked
    while not _has_room(plan.head_dims, tiling, limits):
        if tiling.keys > _FEWEST_KEYS and limits[tiling.warpgroups]:
            tiling = replace(tiling, keys=tiling.keys - 16)
        elif tiling.warpgroups > 1:
            wide = plan.head_dims[0] > _WIDE and limits is _READING
            keys = _KEYS_OF_WIDE if wide else _KEYS[-1]
            tiling = Tiling(tiling.warpgroups - 1, keys, tiling.stages)
        else:
            break
    return tiling


def _limits(plan: ForwardPlan) -> dict[int, int]:
    """Return how many registers may hold scores, probabilities and output, by warpgroups."""
    score = plan.score
    adds = any(term.part is not None for term in score.terms)
    if any(map(_reads_for_each_key, score.nodes())) or (adds and _is_in_parts(plan)):
        return _READING
    if plan.mask is not None:
        return _MASKED
    if adds:
        return _ADDING
    return _NOTHING if score.core is None else _COMPUTING


def _has_room(head_dims: tuple[int, int], tiling: Tiling, limits: dict[int, int]) -> bool:
    """Whether a tiling fits registers, of which `limits` are for each thread, and shared memory."""
    nbytes = plan_storage(tiling.rows, tiling.keys, head_dims, tiling.stages).bytes
    return _registers(head_dims, tiling) <= limits[tiling.warpgroups] and nbytes <= SHARED_MEMORY


def _registers(head_dims: tuple[int, int], tiling: Tiling) -> int:
    """Return the registers of scores in fp32, probabilities of the tile before, and output."""
    return tiling.keys // 2 + tiling.keys // 4 + head_dims[1] // 2


def _is_in_parts(plan: ForwardPlan) -> bool:
    from flexfa4.kernels.sm90.forward.parts import parts_of  # which few calls need

    return parts_of(plan).scores < plan.tiling.keys // 4


@functools.lru_cache(maxsize=1024)
def _reads_for_each_key(root: Node) -> bool:
    """Whether a captured tensor is read at places that differ from key to key."""
    return any(node.op == "load" and "kv" in node.depends for node in topological(root))


def _plan(head_dims: tuple[int, int], tiling: Tiling) -> ForwardPlan:
    shape = TileShape(tiling.rows, tiling.keys)
    walk = WalkPlan("dense", shape)
    return ForwardPlan(element="bf16", head_dims=head_dims, tiling=tiling, walk=walk)


@functools.lru_cache(maxsize=64)
def _chosen(head_dims: tuple[int, int], usual: Tiling, tile: Tile) -> Tiling | Refusal:
    rows = usual.rows if tile.rows is None else tile.rows
    keys = usual.keys if tile.keys is None else tile.keys
    stages = usual.stages if tile.stages is None else tile.stages
    shown = f"a tile of {rows} queries by {keys} keys in {stages} stages"
    allowed = [WARPGROUP_ROWS * n for n in _WARPGROUPS]
    if rows not in allowed or keys % 16 or not 16 <= keys <= 256 or stages < 1:
        return Refusal(
            shown,
            f"{', '.join(map(str, allowed))} queries; a multiple of 16 up to 256 keys",
            f"options=flexfa4.Options(tile=({usual.rows}, {usual.keys}))",
        )
    nbytes = plan_storage(rows, keys, head_dims, stages).bytes
    if nbytes > SHARED_MEMORY:
        return Refusal(
            f"{shown}, which takes {nbytes} bytes of shared memory for head dimensions"
            f" {head_dims[0]} and {head_dims[1]}",
            f"{SHARED_MEMORY} bytes",
            _smaller(head_dims, usual, Tiling(rows // WARPGROUP_ROWS, keys, stages), tile),
        )
    return Tiling(rows // WARPGROUP_ROWS, keys, stages, usual.early)


def _smaller(head_dims: tuple[int, int], usual: Tiling, large: Tiling, tile: Tile) -> str:
    """Return the option that is next to a user's choice and fits memory and registers."""
    if tile.keys is None:
        fewer = [replace(large, stages=n) for n in range(large.stages - 1, 0, -1)]
    else:
        fewer = [replace(large, keys=n) for n in range(large.keys - 16, 0, -16)]
    found = next((t for t in fewer if _has_room(head_dims, t, _ACCUMULATORS)), usual)
    return f"options=flexfa4.Options(tile=({found.rows}, {found.keys}), stages={found.stages})"
