"""Which tiling a call of the Blackwell kernels gets: a row of the table, or what the search finds.

The table (`tilings`) is the search's result for head dims that are usual; what a user chooses of a
tile stays as it is.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from flexfa4.kernels.emit.cost import loads_in_a_row
from flexfa4.kernels.emit.errors import KernelLimitError
from flexfa4.kernels.forward.support import refused_head_dims as refused_multiples
from flexfa4.kernels.refusal import Refusal
from flexfa4.kernels.request import ANY_TILE, Tile
from flexfa4.kernels.sm100.forward.plan import TILE_ROWS, ForwardPlan, Registers, Tiling
from flexfa4.kernels.sm100.forward.storage import (
    SHARED_MEMORY,
    parts_of,
    plan_storage,
    stages_that_fit,
)
from flexfa4.kernels.sm100.forward.tmem import COLUMNS, plan_tensor_memory
from flexfa4.kernels.sm100.model import tile_of
from flexfa4.kernels.sm100.search import (
    ALIKE,
    BLOCKS,
    KEYS,
    STEPS,
    Choice,
    best,
    class_of,
    feasible,
    registers_of,
    stages_of,
    with_pairs,
)
from flexfa4.kernels.sm100.tilings import TABLE
from flexfa4.primitives.exponentials import NONE_EMULATED, EmulatedFraction

HEAD_DIM_STEP: Final = 16
"""Head dims are multiples of the depth of a product, whose 32 bytes are the narrowest swizzle."""

_ROWS: Final = {(row.name, row.head_dims, row.variant): row for row in TABLE}


def refused_head_dims(head_dims: tuple[int, int]) -> Refusal | None:
    """Return why head dims of q and v are not served; None where they are."""
    memory = plan_tensor_memory(KEYS[-1], head_dims[1])
    shown = f"head dimensions {head_dims[0]} of query and key, {head_dims[1]} of value"
    if not memory.fits:
        taken = f"two outputs and two tiles of scores would take {memory.columns} columns"
        return Refusal(f"{shown}: {taken}", f"{COLUMNS} columns of tensor memory", _ELSEWHERE)
    refused = refused_multiples(head_dims, HEAD_DIM_STEP)
    if refused is not None or next(feasible(head_dims), None) is not None:
        return refused
    nbytes = plan_storage(KEYS[-1], head_dims, sum(parts_of(KEYS[-1], head_dims))).bytes
    taken = f"queries, and a tile of keys and values, would take {nbytes} bytes"
    return Refusal(f"{shown}: {taken}", f"{SHARED_MEMORY} bytes of shared memory", _ELSEWHERE)


_ELSEWHERE: Final = 'backend="flex" (torch\'s FlexAttention), or "cpu", which runs on any device'


@functools.lru_cache(maxsize=256)
def tiling_for(head_dims: tuple[int, int], tile: Tile) -> Tiling | Refusal:
    """Return the tiling of a call before its mods are known, or why there is none.

    Args:
        head_dims: of q and v, that there are kernels for.
        tile: what the user chose.
    """
    usual = next(feasible(head_dims))
    if tile == ANY_TILE:
        return usual
    rows = usual.rows if tile.rows is None else tile.rows
    keys = usual.keys if tile.keys is None else tile.keys
    shown = f"a tile of {rows} queries by {keys} keys"
    rewrite = _rewrite(usual.keys)
    of_blocks = [n for n in BLOCKS if next(feasible(head_dims, blocks=n), None) is not None]
    heights = {TILE_ROWS * n: n for n in of_blocks}
    if rows not in heights or keys not in KEYS:
        allowed = f"{_either(heights)} queries; {', '.join(map(str, sorted(KEYS)))} keys"
        return Refusal(shown, allowed, rewrite)
    blocks = heights[rows]
    memory = plan_tensor_memory(keys, head_dims[1])
    if not memory.fits:
        found = f"{shown}, which takes {memory.columns} columns of tensor memory"
        return Refusal(found, f"{COLUMNS} columns", rewrite)
    storage = plan_storage(keys, head_dims, 0, blocks=blocks)
    least, most = storage.k_parts + storage.v_parts, stages_that_fit(keys, head_dims, blocks)
    stages = stages_of(keys, head_dims, blocks) if tile.stages is None else tile.stages
    if stages is None or not least <= stages <= most:
        found = f"{shown} with {stages or most} parts of keys and values loaded ahead"
        return Refusal(found, f"{least} to {most} for these head dimensions", rewrite)
    return Tiling(keys, stages, registers_of(keys), blocks=blocks)


def _rewrite(keys: int) -> str:
    return f"options=flexfa4.Options(tile=({TILE_ROWS}, {keys}))"


def _either(numbers: Iterable[int]) -> str:
    return " or ".join(map(str, numbers))


def tiling_of(plan: ForwardPlan, tile: Tile, name: str) -> Tiling:
    """Return the tiling of a call whose mods are known.

    Args:
        plan: of the call, with what `tiling_for` gave.
        tile: what the user chose.
        name: what is compiled for.

    Raises:
        KernelLimitError: the user chose tiles of two blocks for what these do not share.
    """
    if plan.tiling.blocks > 1 and not shares_tiles(plan):
        raise KernelLimitError(
            found=f"tiles of {plan.tiling.rows} queries, of two blocks, in a call that has a block"
            " mask or packed sequences",
            allowed="such tiles where every query sees every key",
            rewrite=_rewrite(plan.tiling.keys),
        )
    usual = usual_tiling(plan, name)
    if tile == ANY_TILE:
        return usual
    return replace(plan.tiling, emulated=usual.emulated, turns=usual.turns)


def usual_tiling(plan: ForwardPlan, name: str) -> Tiling:
    """Return the tiling that is taken where the user chooses nothing of a tile.

    That of the table's row, but for what the score mod needs of registers.
    """
    tiling = _with_room(plan, choice_for(plan, name).tiling, name)
    if any(term.part is None for term in plan.score.terms) and tiling.emulated.numerator:
        most = NONE_EMULATED if _keeps_visibility(plan) else _FOR_DISTANCES[1]
        least = min(tiling.emulated, most, key=lambda share: share.value)
        return replace(tiling, registers=_FOR_DISTANCES[0], emulated=least)
    return tiling


_FOR_DISTANCES: Final = Registers(192, 72, 56), EmulatedFraction(1, STEPS)
"""The softmax keeps the term of a mod that is linear in kv for 16 columns, a register each; what is
emulated holds registers, too, and with an eighth of the exponentials ptxas spills some.  Where it
keeps what a mask has read as well, it spills with any that are emulated."""


def _keeps_visibility(plan: ForwardPlan) -> bool:
    """Return whether the softmax keeps what a mask has read: bits of a tile, or a row's limits."""
    interval = plan.walk.interval
    return plan.mask is not None or (interval is not None and bool(interval.graph.buffers))


_CROWDED: Final = ((48.0, 32), (12.0, 64), (3.0, 96))
"""Instructions of a score mod for each score from which on tiles have so few keys: ptxas begins
them for many columns at once, and with more keys it spills (found by compiling the case table).
What a tile takes beside its scores is then spread over fewer of them, but the more a mod computes,
the less it weighs."""

_FOR_CHAINS: Final = 32, Registers(152, 104, 104)
"""Keys of a tile whose mod reads by what it has read, and registers then.  Of one such mod with all
usual head dims, nothing spills with 144 to 160 registers for the softmax; with 136 all do, and with
168 or more some: it seems that ptxas begins as many reads as there are registers for."""


def _with_room(plan: ForwardPlan, tiling: Tiling, name: str) -> Tiling:
    """Return a tiling, or one of fewer keys that leaves the score mod enough registers.

    Mods that compute with integers mostly read tables by them, and do so one by one; only those
    that compute most need room.
    """
    mod = tile_of(replace(plan, tiling=tiling), name).mod
    crowded = _CROWDED[:1] if class_of(mod).name == "integers" else _CROWDED
    most = next((keys for least, keys in crowded if mod.score.all >= least), tiling.keys)
    if most >= tiling.keys:
        return tiling
    fitting = feasible(plan.head_dims, mod, tiling.blocks)
    roomy = next((found for found in fitting if found.keys <= most), tiling)
    keys, registers = _FOR_CHAINS
    if roomy.keys == keys and loads_in_a_row(plan.score) > 1:
        roomy = replace(roomy, registers=registers)
    return replace(roomy, emulated=tiling.emulated)


def shares_tiles(plan: ForwardPlan) -> bool:
    """Return whether every tile of keys is visited for all queries, so that two blocks may share
    them."""
    return plan.walk.source == "dense" and not plan.varlen


def row_for(plan: ForwardPlan, name: str) -> Choice:
    """Return the row of a plan: of the table, or found now."""
    variant = class_of(tile_of(plan, name).mod).name
    row = _ROWS.get((name, plan.head_dims, variant))
    return best(name, plan.head_dims, variant) if row is None else row


def choice_for(plan: ForwardPlan, name: str) -> Choice:
    """Return the row of a plan, with two blocks if the model finds these clearly faster."""
    row = row_for(plan, name)
    pairs = with_pairs(row) if shares_tiles(plan) else None
    return pairs[0] if pairs is not None and pairs[1] * ALIKE < 1 else row


def is_tabled(choice: Choice) -> bool:
    """Return whether a row is of the table."""
    return _ROWS.get((choice.name, choice.head_dims, choice.variant)) == choice
