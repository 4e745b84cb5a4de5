"""Which blocks of a mask are empty, partial or full.

The mask is evaluated strip by strip (one row of blocks at a time), so memory stays at one strip
whatever the lengths.  Blocks at the ragged end are decided by their real lanes only.

Does not decide how blocks are iterated (`primitives.block_runs`) nor who may use the result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

import torch

from flexfa4.frontend.evaluate import Lanes, Program, Values
from flexfa4.frontend.ir import Graph

T = TypeVar("T")

EMPTY: Final = 0
PARTIAL: Final = 1
FULL: Final = 2

# Lanes evaluated at once: 1M keeps a strip's temporaries (8-byte indices) within 32 MB.
_STRIP_LANES: Final = 1 << 20


@dataclass(frozen=True)
class MaskSize:
    """The index space of a mask: batch and head count (1 where they do not matter), lengths."""

    b: int
    h: int
    q_len: int
    kv_len: int

    def lanes(self) -> Lanes:
        """Return the whole index space as one rectangle."""
        return Lanes((0, self.b), (0, self.h), (0, self.q_len), (0, self.kv_len))


@dataclass(frozen=True, eq=False)
class Blocks:
    """A mask with the kinds of its blocks: what a kernel needs to iterate it.

    Attributes:
        graph: the mask.
        values: the captures and symbols that it was classified with.
        size: its index space.
        block_size: queries and keys in a block.
        kinds: int8 ``(b, h, query blocks, key blocks)`` on the CPU.
        caches: see `cache`.
    """

    graph: Graph
    values: Values
    size: MaskSize
    block_size: tuple[int, int]
    kinds: torch.Tensor
    caches: dict[Callable[[], Any], Any] = field(default_factory=dict)

    def cache(self, kind: Callable[[], T]) -> T:
        """Return what a backend keeps for this mask: one `kind()`, made on first use."""
        found = self.caches.get(kind)
        if found is None:
            found = self.caches[kind] = kind()
        kept: T = found
        return kept


def block_count(length: int, block: int) -> int:
    """Return how many blocks cover `length`."""
    return -(-length // block)


# Torch's symbolic sizes take 0 and 1 for special: a table with fewer rows or columns would compile
# anew where a length crosses one block.
MIN_TABLE: Final = 2


def kinds_table(kinds: torch.Tensor) -> torch.Tensor:
    """Return the kinds of blocks as a graph of torch's holds them: at least two of each axis."""
    rows, columns = (max(0, MIN_TABLE - n) for n in kinds.shape[2:])
    return torch.nn.functional.pad(kinds, (0, columns, 0, rows)) if rows or columns else kinds


def kinds_of_table(
    table: torch.Tensor, size: MaskSize, block_size: tuple[int, int]
) -> torch.Tensor:
    """Return the kinds of blocks of a `kinds_table`."""
    nq, nk = map(block_count, (size.q_len, size.kv_len), block_size)
    kinds = table[:, :, :nq, :nk]
    return kinds if kinds.shape == table.shape else kinds.contiguous()


def classify(
    graph: Graph, values: Values, size: MaskSize, block_size: tuple[int, int]
) -> torch.Tensor:
    """Return the kind of every block.

    Args:
        graph: the mask.
        values: its captures and symbols.
        size: its index space.
        block_size: rows and columns of a block.

    Returns:
        int8 tensor ``(b, h, query blocks, key blocks)`` of EMPTY, PARTIAL or FULL, on the CPU.
    """
    block_q, block_kv = block_size
    nq, nk = block_count(size.q_len, block_q), block_count(size.kv_len, block_kv)
    kinds = torch.zeros(size.b, size.h, nq, nk, dtype=torch.int8, device="cpu")
    program = Program((graph.root,))
    whole = size.lanes()
    heads = max(1, _STRIP_LANES // max(1, block_q * size.kv_len))
    for b in range(size.b):
        for h in range(0, size.h, heads):
            h_end = min(size.h, h + heads)
            for i in range(nq):
                rows = (i * block_q, min(size.q_len, (i + 1) * block_q))
                strip = replace(whole, b=(b, b + 1), h=(h, h_end), q=rows)
                kinds[b, h:h_end, i] = _strip_kinds(program, values, strip, block_kv)
    return kinds


def _strip_kinds(program: Program, values: Values, strip: Lanes, block_kv: int) -> torch.Tensor:
    """Return the kinds ``(heads, key blocks)`` of one row of blocks."""
    (mask,) = program.run(values, strip)
    if not isinstance(mask, torch.Tensor):
        mask = torch.tensor(mask, device=values.device)
    _, h, _, kv = strip.shape
    nk = block_count(kv, block_kv)
    mask = mask.view((1,) * (4 - mask.dim()) + mask.shape)[0]
    # Rows are reduced as one matrix of bytes: torch's bool reductions over a middle axis are slow.
    low = mask.view(torch.uint8).amin(1).expand(h, kv)
    high = mask.view(torch.uint8).amax(1).expand(h, kv)
    missing = nk * block_kv - kv
    low = torch.nn.functional.pad(low, (0, missing), value=1).view(h, nk, block_kv).amin(2)
    high = torch.nn.functional.pad(high, (0, missing), value=0).view(h, nk, block_kv).amax(2)
    return (low + high).to(torch.int8)


def mask_tile(program: Program, values: Values, lanes: Lanes) -> torch.Tensor:
    """Return the mask of a rectangle as a bool tensor that broadcasts to ``lanes.shape``."""
    (mask,) = program.run(values, lanes)
    if not isinstance(mask, torch.Tensor):
        mask = torch.tensor(mask, device=values.device)
    return mask
