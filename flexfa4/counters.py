"""Public counters of the work that a repeated call must not do again.

``flexfa4.stats()`` returns a snapshot; tests and users compare two snapshots to see that changing a
slope, a window, a tensor's content or the batch size neither traces nor plans anything anew.  A
leaf: every layer may import it.  It does not time anything.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final, Literal


@dataclass(frozen=True)
class Stats:
    """Counts since the process started.

    Attributes:
        traces: user functions called to record their graph.
        parses: texts read into a graph.
        plans: plans made (graphs and facts turned into a way to run).
        block_lists: lists of blocks found by evaluating masks, which closed forms do without.
        closed_forms: masks solved for an index (see `flexfa4.frontend.masks.solving.solve`).
        compiles: GPU kernels compiled, for they were neither in memory nor in files.
        calls: calls of ``flexfa4.attention``.
    """

    traces: int = 0
    parses: int = 0
    plans: int = 0
    block_lists: int = 0
    closed_forms: int = 0
    compiles: int = 0
    calls: int = 0

    def __sub__(self, before: Stats) -> Stats:
        """Return what was counted since `before`."""
        return Stats(
            **{f.name: getattr(self, f.name) - getattr(before, f.name) for f in fields(self)}
        )


_counts: Final[dict[str, int]] = {f.name: 0 for f in fields(Stats)}


Counter = Literal["traces", "parses", "plans", "block_lists", "closed_forms", "compiles", "calls"]


def count(name: Counter) -> None:
    """Add one to a counter."""
    _counts[name] += 1


def stats() -> Stats:
    """Return the counts so far (public as ``flexfa4.stats``)."""
    return Stats(**_counts)
