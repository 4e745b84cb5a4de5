"""`MaskBlocks`: what kernels and block masks ask about the blocks of a mask.

`analyse` decides how the answers are found: from the mask's closed form, where it has one, and then
nothing is computed before it is asked for and nothing is as large as the lengths; otherwise from
boxes split down to tiles (`refine`), at once.  Either way the answers are the same and exact.

Holds values of captures as they were given; that nobody changes them is the caller's business.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, TypeVar

import torch

from flexfa4.counters import count
from flexfa4.frontend.evaluate import Program, Values, mask_tile
from flexfa4.frontend.ir import Buffer, Graph
from flexfa4.frontend.masks.classes import Classes, classes_of
from flexfa4.frontend.masks.grid import BlockGrid, MaskSize
from flexfa4.frontend.masks.limits import check_dense, check_lines, check_pairs
from flexfa4.frontend.masks.loads import check_loads
from flexfa4.frontend.masks.runs import BlockRuns, Priority, order
from flexfa4.frontend.masks.solving.solve import NotClosed, closed_form
from flexfa4.frontend.masks.solving.solved import Solved, solved
from flexfa4.frontend.masks.sweep import counts_of_form, runs_of_form
from flexfa4.frontend.value_runs import ValueRuns

T = TypeVar("T")

# Lanes of a dense mask evaluated at once: temporaries take 8 bytes a lane and more.
_STRIP_LANES: Final = 1 << 20

Lines = Literal["rows", "columns"]
"""Lines of blocks: a row is one block of queries, a column one block of keys."""


@dataclass(frozen=True, eq=False)
class MaskBlocks:
    """A mask, the values it is evaluated with, and the structure of its blocks.

    Attributes:
        graph: the mask.
        values: captures and symbols; every load is known to be in range.
        size: its index space.
        block_size: queries and keys in a block.
        known_runs: the runs of the rows, where they are known already; None: found when asked for.
        caches: see `cache`.
    """

    graph: Graph
    values: Values
    size: MaskSize
    block_size: tuple[int, int]
    known_runs: BlockRuns | None = None
    caches: dict[Any, Any] = field(default_factory=dict, repr=False)

    def cache(self, kind: Callable[[], T]) -> T:
        """Return what a backend keeps for this mask: one `kind()`, made on first use."""
        found = self.caches.get(kind)
        if found is None:
            found = self.caches[kind] = kind()
        kept: T = found
        return kept

    @property
    def grid(self) -> BlockGrid:
        """The blocks over the index space."""
        return BlockGrid(self.size, self.block_size)

    @functools.cached_property
    def classes(self) -> Classes:
        """The batches and heads that share one mask."""
        check_pairs(self.size.b, self.size.h)
        return classes_of(self.graph, self.values, self.size)

    @functools.cached_property
    def follows_diagonal(self) -> bool:
        """Whether the mask keeps its value when query and key both move on by one."""
        from flexfa4.frontend.masks.search.tiles import follows_diagonal

        return follows_diagonal(self.graph.root, self.values, self.size)

    # ---- closed forms ----------------------------------------------------------------------------

    @functools.cached_property
    def by_rows(self) -> Solved | NotClosed:
        """The keys that each query sees, in closed form."""
        return self._solved("kv")

    @functools.cached_property
    def by_columns(self) -> Solved | NotClosed:
        """The queries that see each key, in closed form."""
        return self._solved("q")

    @property
    def is_closed(self) -> bool:
        """Whether the rows are known in closed form."""
        return isinstance(self.by_rows, Solved)

    def _solved(self, index: Literal["kv", "q"]) -> Solved | NotClosed:
        form = closed_form(self.graph, index)
        if isinstance(form, NotClosed):
            return form
        return solved(form, replace(self.values, value_runs=self.value_runs), self.size)

    @property
    def value_runs(self) -> dict[tuple[Buffer, int], ValueRuns]:
        """What closed forms have found out about captured tensors."""
        found = dict(self.values.value_runs)
        for name in ("by_rows", "by_columns"):
            form = self.__dict__.get(name)
            if isinstance(form, Solved):
                found.update(form.values.value_runs)
        return found

    # ---- runs of blocks --------------------------------------------------------------------------

    @functools.cached_property
    def runs(self) -> BlockRuns:
        """The non-empty blocks of each row of blocks: what a forward pass iterates."""
        if self.known_runs is not None:
            return self.known_runs
        self._check_lines()
        if isinstance(self.by_rows, Solved):
            return runs_of_form(self.by_rows, self.classes, self.grid)
        from flexfa4.frontend.masks.search.refine import refine  # most masks are closed

        count("block_lists")
        return refine(self.graph, self.values, self.classes, self.grid)

    @functools.cached_property
    def columns(self) -> BlockRuns:
        """The non-empty blocks of each column of blocks: what a backward pass iterates."""
        if not self.has_runs and isinstance(self.by_columns, Solved):
            self._check_lines()
            return runs_of_form(self.by_columns, self.classes, self.grid)
        return self.runs.transposed()

    def _check_lines(self) -> None:
        grid, classes = self.grid, len(self.classes)
        check_lines(classes, max(grid.rows, grid.columns))

    @property
    def has_runs(self) -> bool:
        """Whether `runs` costs nothing."""
        return self.known_runs is not None or "runs" in self.__dict__

    def lines(self, by: Lines) -> BlockRuns:
        """Return `runs` or `columns`."""
        return self.runs if by == "rows" else self.columns

    def counts(self, by: Lines) -> torch.Tensor:
        """Return how many blocks of each line are not empty, int64 ``(classes, lines)``.

        Makes no runs where the mask has a closed form.
        """
        form = self.by_rows if by == "rows" else self.by_columns
        if not self.has_runs and isinstance(form, Solved):
            self._check_lines()
            return counts_of_form(form, self.classes, self.grid)
        return self.lines(by).counts()

    def order(self, priority: Priority, by: Lines) -> torch.Tensor:
        """Return the lines of each class in the order in which to work on them.

        Args:
            priority: "lpt", longest processing time first, or "spt", shortest first.
            by: rows or columns.

        Returns:
            int32 ``(classes, lines)``; lines of equal work stay in order.
        """
        return order(self.counts(by), priority)

    # ---- dense views -----------------------------------------------------------------------------

    def for_each(self, of_classes: torch.Tensor) -> torch.Tensor:
        """Return what holds for ``(classes, ...)`` for each batch and head, ``(b, h, ...)``."""
        of = self.classes.of.to(of_classes.device)
        if of.numel() == 1:  # nothing to copy
            return of_classes.unsqueeze(0)
        return of_classes[of]

    def kinds(self) -> torch.Tensor:
        """Return the kind of every block, int8 ``(b, h, rows, columns)``."""
        size, grid = self.size, self.grid
        check_dense("blocks", (size.b, size.h, grid.rows, grid.columns), "block_mask.lists()")
        return self.for_each(self.runs.to_kinds())

    def dense(self) -> torch.Tensor:
        """Return the mask itself, bool ``(b, h, q_len, kv_len)``; evaluated strip by strip."""
        program = Program((self.graph.root,))
        size, whole = self.size, self.size.lanes()
        check_dense("scores", whole.shape, "block_mask.block_kinds()")
        dense = torch.empty(whole.shape, dtype=torch.bool, device=self.values.device)
        rows = max(1, _STRIP_LANES // max(1, size.b * size.h * size.kv_len))
        for start in range(0, size.q_len, rows):
            strip = replace(whole, q=(start, min(size.q_len, start + rows)))
            dense[:, :, start : start + rows] = mask_tile(program, self.values, strip)
        return dense

    @property
    def density(self) -> float:
        """Share of the blocks that are not empty, 0 to 1 (0 where there are no blocks)."""
        grid = self.grid
        blocks = self.size.b * self.size.h * grid.rows * grid.columns
        return float(self.for_each(self.counts("rows").sum(1)).sum()) / blocks if blocks else 0.0

    @property
    def nbytes(self) -> int:
        """Bytes of memory of the structure that has been made so far, captures not counted."""
        made = [self.__dict__.get("runs", self.known_runs), self.__dict__.get("columns")]
        return sum(runs.nbytes for runs in made if runs is not None)

    # ---- the same mask otherwise -----------------------------------------------------------------

    def with_block_size(self, block_size: tuple[int, int]) -> MaskBlocks:
        """Return the structure for other blocks.

        Blocks that are made of whole blocks follow from these; others are derived anew.
        """
        if block_size == self.block_size:
            return self
        times = tuple(new // old for new, old in zip(block_size, self.block_size, strict=True))
        whole = all(
            t * old == new for t, old, new in zip(times, self.block_size, block_size, strict=True)
        )
        runs = self.runs.coarsened(*times) if whole and self.has_runs else None
        return self._with(block_size, runs).found()

    def with_runs(self, runs: BlockRuns) -> MaskBlocks:
        """Return the structure with the runs of its rows, which are known from elsewhere."""
        return self._with(self.block_size, runs)

    def _with(self, block_size: tuple[int, int], runs: BlockRuns | None) -> MaskBlocks:
        other = MaskBlocks(self.graph, self.values, self.size, block_size, runs)
        for shared in ("classes", "by_rows", "by_columns"):  # which know nothing of blocks
            if shared in self.__dict__:
                other.__dict__[shared] = self.__dict__[shared]
        return other

    def on(self, device: torch.device) -> MaskBlocks:
        """Return the structure with the mask evaluated on a device; what is found stays as it is.

        A mask that captures no tensors can be evaluated anywhere; one that does returns itself.
        """
        if self.values.device == device or self.values.tensors:
            return self
        moved = self.cache(_Moved)
        if device not in moved:
            runs = self.runs if self.has_runs else None
            values = replace(self.values, device=device)
            other = replace(self, values=values, known_runs=runs, caches={})
            other.__dict__["classes"] = self.classes
            moved[device] = other
        return moved[device]

    def found(self) -> MaskBlocks:
        """Find the runs now unless they are in closed form; return itself."""
        if self.known_runs is None and not self.is_closed:
            self.runs  # noqa: B018  # a cached property
        return self


class _Moved(dict[torch.device, MaskBlocks]):
    """A mask without captured tensors, to be evaluated on other devices."""


def analyse(
    graph: Graph, values: Values, size: MaskSize, block_size: tuple[int, int]
) -> MaskBlocks:
    """Return the structure of a mask's blocks.

    Args:
        graph: the mask.
        values: captures and symbols; loads in `values.unproved` are not known to be in range.
        size: its index space.
        block_size: queries and keys in a block.

    Raises:
        OutOfRangeError: a load is out of range somewhere in the index space.
    """
    values = check_loads(graph, values, size)
    return MaskBlocks(graph, values, size, block_size).found()
