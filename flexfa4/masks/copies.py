"""The state of a block mask that pickle and deepcopy keep, and what it is read back to.

A state is plain data: the mask as text with the values of its captures (`frontend.text.snapshots`),
the sizes, and the runs of its blocks, unless these follow from a closed form.  So it takes memory
for what varies, not for each block, and ``torch.load(weights_only=True)`` can read it.  What comes
from elsewhere may be damaged: everything is checked before it is used.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

import torch

from flexfa4.errors import ArgumentError, DamagedPickleError, describe
from flexfa4.frontend.binding import BoundGraph
from flexfa4.frontend.masks.grid import FULL, PARTIAL
from flexfa4.frontend.masks.loads import check_loads
from flexfa4.frontend.masks.runs import BlockRuns
from flexfa4.frontend.masks.structure import MaskBlocks
from flexfa4.frontend.text import snapshots
from flexfa4.frontend.tracing.trace import Mod, resolve, unpickled
from flexfa4.masks.spec import GivenSizes, Spec, capture_device, checked_device

# Raised when the meaning of a key changes; a state of another number is refused.
FORMAT: Final = 2
_DTYPES: Final = {
    "offsets": torch.int64,
    "start": torch.int32,
    "stop": torch.int32,
    "kind": torch.int8,
}


@dataclass(frozen=True)
class Restored:
    """What a state says: a mask, its graph with values, what it was made for, and its blocks."""

    mask: Mod
    bound: BoundGraph
    spec: Spec
    blocks: MaskBlocks


def state_of(bound: BoundGraph, spec: Spec, blocks: MaskBlocks) -> dict[str, Any]:
    """Return the state of a block mask.

    Args:
        bound: the mask, with tensors that nobody changes.
        spec: what the block mask was made for.
        blocks: its blocks.
    """
    runs = None if blocks.is_closed else blocks.runs
    return {
        "format": FORMAT,
        "mask": snapshots.state_of(bound),
        "sizes": asdict(spec.sizes),
        "block_size": spec.block_size,
        "device": str(blocks.values.device),
        "runs": runs and {"width": runs.width, **_own_tensors(runs)},
    }


def _own_tensors(runs: BlockRuns) -> dict[str, torch.Tensor]:
    """Return the tensors of runs; pickle writes all of the memory that one is a part of."""
    tensors = {name: getattr(runs, name) for name in _DTYPES}
    return {
        name: t if t.untyped_storage().nbytes() == t.nbytes else t.clone()
        for name, t in tensors.items()
    }


def restored(state: Any) -> Restored:
    """Return what `state_of` gave the state of.

    Raises:
        PickleFormatError: another release wrote it in another format.
        DamagedPickleError: its parts do not go together.
    """
    with snapshots.reading("BlockMask", state, FORMAT):
        mask = unpickled(state["mask"])
        bound = resolve(mask, "mask")
        spec = Spec.checked(GivenSizes(**state["sizes"]), state["block_size"])
        spec.check_known(bound.graph)
        values = spec.values(bound, _device(state["device"], bound))
        size = spec.space(bound.graph)
        values = check_loads(bound.graph, values, size)
        blocks = MaskBlocks(bound.graph, values, size, spec.block_size)
        if state["runs"] is not None:
            blocks = blocks.with_runs(_checked_runs(state["runs"], blocks))
        return Restored(mask, bound, spec, blocks.found())


def _device(named: Any, bound: BoundGraph) -> torch.device:
    if not isinstance(named, str):
        raise DamagedPickleError(what="BlockMask", problem=f"its device is {describe(named)}")
    try:
        return capture_device(bound, None if bound.tensors else checked_device(named))
    except ArgumentError:  # made on a device that this machine lacks; it serves any
        return torch.device("cpu")


def _checked_runs(state: Any, blocks: MaskBlocks) -> BlockRuns:
    """Return the runs of a state.

    Raises:
        DamagedPickleError: they are not runs of blocks of this mask's grid.
    """
    grid, classes = blocks.grid, len(blocks.classes)
    tensors = {name: state[name].to(blocks.values.device) for name in _DTYPES}
    runs = BlockRuns(classes, grid.rows, grid.columns, **tensors)
    wrong = [name for name, dtype in _DTYPES.items() if tensors[name].dtype is not dtype]
    if wrong or state["width"] != runs.width or not _fit(runs):
        raise DamagedPickleError(
            what="BlockMask",
            problem=f"its runs are none of {grid.rows} x {grid.columns} blocks",
        )
    return runs


def _fit(runs: BlockRuns) -> bool:
    """Return whether tensors are runs as `BlockRuns` describes them."""
    offsets, start, stop, kind = runs.offsets, runs.start, runs.stop, runs.kind
    count = len(start)
    if len({start.shape, stop.shape, kind.shape}) > 1 or start.dim() != 1:
        return False
    if offsets.shape != (runs.classes * runs.lines + 1,) or int(offsets[-1]) != count:
        return False
    if int(offsets[0]) or bool((offsets.diff() < 0).any()):
        return False
    inside = (start >= 0) & (start < stop) & (stop <= runs.width)
    known = (kind == PARTIAL) | (kind == FULL)
    line = runs.line_of_run
    apart = (start[1:] > stop[:-1]) | ((start[1:] == stop[:-1]) & (kind[1:] != kind[:-1]))
    ascending = (line[1:] != line[:-1]) | apart
    return bool(inside.all() & known.all() & ascending.all())
