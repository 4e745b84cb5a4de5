"""The blocks of a range of queries, from those of all queries.

Where the range begins between two blocks, its rows of blocks are those of the whole.  Where it cuts
through blocks, a row of blocks lies in one or two rows of the whole: what is empty or full in both
stays so, and only the rest is evaluated.  So a step of decoding, which is one row, costs no
analysis of all keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

from flexfa4.counters import count
from flexfa4.frontend.masks.grid import PARTIAL, block_count
from flexfa4.frontend.masks.runs import BlockRuns
from flexfa4.frontend.masks.search.tiles import Tiles, decide
from flexfa4.frontend.masks.structure import MaskBlocks

# Blocks of a range that are looked at one by one, a byte each; of more, the range is analysed anew.
_MOST_BLOCKS: Final = 1 << 24


def with_rows_of(
    part: MaskBlocks, whole: MaskBlocks, classes: Sequence[int], first: int
) -> MaskBlocks:
    """Return the structure of a range of queries, with its runs where `whole` tells them.

    Args:
        part: the structure of the range, nothing of which has been found.
        whole: the structure of all queries, of the same block size.
        classes: for each class of `part` the one of `whole` that it is.
        first: the query of `whole` at which `part` begins.
    """
    size, last = whole.block_size[0], first + part.size.q_len
    lines = range(first // size, block_count(last, size))
    if first % size == 0 and (last % size == 0 or last == whole.size.q_len):
        return part.with_runs(whole.runs.of_classes(classes).cut(lines))
    if len(classes) * len(lines) * part.grid.columns > _MOST_BLOCKS:
        return part
    kinds = whole.runs.of_classes(classes).cut(lines).to_kinds()
    begin = torch.arange(first, last, size, device=kinds.device)
    end = (begin + size).clamp(max=last)
    upper, lower = (kinds[:, at // size - lines.start] for at in (begin, end - 1))
    kinds = torch.where(upper == lower, upper, PARTIAL)
    count("block_lists")
    class_, row, column = (kinds == PARTIAL).nonzero().unbind(1)
    b, h = part.classes.members_on(kinds.device)
    tiles = Tiles(b[class_], h[class_], row, column)
    kinds[class_, row, column] = decide(part.graph, part.values, tiles, part.grid)
    return part.with_runs(BlockRuns.from_kinds(kinds))
