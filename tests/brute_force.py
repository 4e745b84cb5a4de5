"""What the structure of a mask is compared with: its blocks by their definition, lane by lane.

Uses nothing of the analysis but its sizes, and the runs that are compared.
"""

from __future__ import annotations

import torch

from flexfa4.frontend.evaluate import Program, Values
from flexfa4.frontend.ir import Node
from flexfa4.frontend.masks.grid import EMPTY, FULL, PARTIAL, BlockGrid, MaskSize
from flexfa4.frontend.masks.runs import BlockRuns


def kinds_of(
    dense: torch.Tensor, block_size: tuple[int, int], *, ragged_full: bool = True
) -> torch.Tensor:
    """Return the kinds of the blocks of a mask ``(..., q, kv)``, by the lanes that exist.

    In torch's block masks (``ragged_full=False``) a block that the length cuts short is not full.
    """
    found = []
    for missing in (ragged_full, False):  # what lanes behind the end are taken for
        q, kv = (-n % size for n, size in zip(dense.shape[-2:], block_size, strict=True))
        padded = torch.nn.functional.pad(dense, (0, kv, 0, q), value=missing)
        rows, columns = (n // size for n, size in zip(padded.shape[-2:], block_size, strict=True))
        shape = (*dense.shape[:-2], rows, block_size[0], columns, block_size[1])
        found.append(padded.reshape(shape))
    every, some = found[0].all(-1).all(-2), found[1].any(-1).any(-2)
    return torch.where(every, FULL, torch.where(some, PARTIAL, EMPTY)).to(torch.int8)


def dense_of(root: Node, values: Values, size: MaskSize) -> torch.Tensor:
    """Return a mask that is evaluated everywhere, bool ``(b, h, q, kv)``."""
    (mask,) = Program((root,)).run(values, size.lanes())
    return torch.as_tensor(mask).expand(size.lanes().shape)


def kinds_of_graph(root: Node, values: Values, grid: BlockGrid) -> torch.Tensor:
    """Return the kinds of a mask's blocks, int8 ``(b, h, rows, columns)``."""
    return kinds_of(dense_of(root, values, grid.size), grid.block_size)


def equal_runs(a: BlockRuns, b: BlockRuns) -> bool:
    """Return whether two sets of runs, on one device, describe the same blocks."""
    if (a.classes, a.lines, a.width) != (b.classes, b.lines, b.width):
        return False
    pairs = ((a.offsets, b.offsets), (a.start, b.start), (a.stop, b.stop), (a.kind, b.kind))
    return all(torch.equal(x, y) for x, y in pairs)
