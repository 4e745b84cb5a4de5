"""The closed form of a mask for the values of a call: its premises checked, its ends evaluated.

What a form rests on is proved from sizes, captured numbers and, where it reads captured tensors,
their content: each is looked at once, as a whole.  For masks without tensors nothing here grows
with the lengths.

Does not solve masks (`solve`) nor lay blocks over the intervals (`sweep`).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import torch

from flexfa4.frontend.analysis.bounds import Leaf, bound, bounds
from flexfa4.frontend.analysis.intervals import ANY_I32, Interval
from flexfa4.frontend.evaluate import Program, Values, widened
from flexfa4.frontend.ir import BOOL, I32, Buffer, Node
from flexfa4.frontend.lanes import AnyLanes, Lanes, ScatteredLanes, arange, vector
from flexfa4.frontend.masks.contents import Contents
from flexfa4.frontend.masks.grid import MaskSize
from flexfa4.frontend.masks.solving.in_words import failed, out_of_range, overflow
from flexfa4.frontend.masks.solving.premises import Ascending, Bounded, Grouped, Premise
from flexfa4.frontend.masks.solving.solve import ClosedForm, NotClosed
from flexfa4.frontend.masks.solving.spans import Span
from flexfa4.frontend.ops import OPS
from flexfa4.frontend.value_runs import ValueRuns, value_runs

_SMALL: Final = 1 << 30


@dataclass(frozen=True, eq=False)
class Solved:
    """A closed form whose premises hold for some values.

    Attributes:
        form: the form.
        values: captures and symbols, with what its searches look in.
        size: the index space of the mask.
    """

    form: ClosedForm
    values: Values
    size: MaskSize

    @property
    def length(self) -> int:
        """The length of the index that the form is solved for."""
        return self.size.kv_len if self.form.index == "kv" else self.size.q_len

    @property
    def lines(self) -> int:
        """The length of the other index: how many unions of intervals there are."""
        return self.size.q_len if self.form.index == "kv" else self.size.kv_len


def solved(form: ClosedForm, values: Values, size: MaskSize) -> Solved | NotClosed:
    """Return a closed form for the values of a call, or why it does not hold for them.

    Args:
        form: the solution of a mask.
        values: captures and symbols; every load of the mask is in range.  The value runs that it
            has are not made again.
        size: the index space of the mask.
    """
    if not values.tensors and _are_small(values, size) and _holds_for_small(form):
        return Solved(form, values, size)
    known = _Known(values, size.domain(values).leaf)
    broken = _broken(form, known)
    if broken is not None:
        return broken
    return Solved(form, replace(values, value_runs=known.value_runs), size)


def _broken(form: ClosedForm, known: _Known) -> NotClosed | None:
    """Return what a form rests on and is not proved; None where all is."""
    for premise in form.premises:
        if not known.holds(premise):
            return NotClosed(failed(premise))
    mask = known.bounds_of(form.root)
    for root in (form.root, *(end for span in form.spans for end in (span.start, span.stop))):
        below = mask if root is form.root else known.bounds_of(root)
        for node, found in below.items():
            if _may_overflow(node, found):
                return NotClosed(overflow(node))
            # what the mask reads is known to be in range, but not what was put in its place
            if node not in mask and not known.in_range(node, below):
                return NotClosed(out_of_range(node))
    return None


def _are_small(values: Values, size: MaskSize) -> bool:
    """Whether sizes and captured integers are `_SMALL`, as nearly always."""
    numbers = [abs(n) for scalar, n in values.scalars.items() if scalar.dtype is I32]
    sizes = (*values.symbols.values(), size.b, size.h, size.q_len, size.kv_len)
    return max(*numbers, *sizes) <= _SMALL


@functools.lru_cache(maxsize=256)
def _holds_for_small(form: ClosedForm) -> bool:
    """Whether a form holds for all small sizes and integers: then no call has to prove it."""
    return _broken(form, _Known(Values(), _small_leaf)) is None


def _small_leaf(node: Node) -> Interval | None:
    """Return what is known about a leaf when sizes and captured integers are `_SMALL`."""
    if node.op in ("input", "symbol"):
        return Interval(0, _SMALL)
    return Interval(-_SMALL, _SMALL) if node.op == "scalar" and node.dtype is I32 else None


def _may_overflow(node: Node, found: Interval) -> bool:
    """Whether an integer that an op computes can be anything, which it is once it overflows."""
    return found == ANY_I32 and node.dtype is I32 and node.op in OPS


class _Known:
    """What is known about the values of a call, found out when it is asked for."""

    def __init__(self, values: Values, leaf: Leaf) -> None:
        self.values = values
        self.value_runs = dict(values.value_runs)
        self._leaf = leaf
        self._contents = Contents(values)

    def bounds_of(self, root: Node) -> dict[Node, Interval]:
        """Return the interval of every node below `root`.

        The content of captured tensors is looked at only if an integer may overflow without.
        """
        found = bounds(root, self._shallow)
        if any(_may_overflow(node, interval) for node, interval in found.items()):
            return bounds(root, self._deep)
        return found

    def in_range(self, node: Node, found: dict[Node, Interval]) -> bool:
        """Return whether all indices that a node reads a captured tensor at are in range, proved.

        Args:
            node: any node; what is no load and no search reads nothing.
            found: the bounds of the nodes below.
        """
        if node.op == "load":
            indices, sizes = node.args, tuple(self.values.tensors[node.attr].shape)
        elif node.op == "search":
            shape = self.values.tensors[node.attr.buffer].shape
            axis = node.attr.axis
            indices, sizes = node.args[:-1], (*shape[:axis], *shape[axis + 1 :])
        else:
            return True
        return all(
            found[index].within(-n, n - 1) or self._within(index, -n, n - 1)
            for index, n in zip(indices, sizes, strict=True)
        )

    def holds(self, premise: Premise) -> bool:
        """Return whether a premise holds."""
        match premise:
            case Bounded(node, lo, hi):
                return self._within(node, lo, hi)
            case Ascending(buffer, axis):
                return self._runs(buffer, axis).ascending
            case Grouped(buffer, axis, value):
                return self._runs(buffer, axis).grouped(value)

    def _within(self, node: Node, lo: float, hi: float) -> bool:
        """Return whether a node is proved to be from `lo` to `hi`, by content if it must be."""
        return any(bound(node, leaf).within(lo, hi) for leaf in (self._shallow, self._deep))

    def _shallow(self, node: Node) -> Interval | None:
        if node.op != "load":
            return self._leaf(node)
        dtype = self.values.tensors[node.attr].dtype
        if node.dtype is not I32 or dtype.itemsize == 8:
            return None
        info = torch.iinfo(dtype)
        return Interval(info.min, info.max)

    def _deep(self, node: Node) -> Interval | None:
        if node.op != "load" or node.dtype is BOOL:
            return self._shallow(node)
        return self._contents.bounds(node.attr)

    def _runs(self, buffer: Buffer, axis: int) -> ValueRuns:
        key = (buffer, axis)
        if key not in self.value_runs:
            tensor = widened(self.values.tensors[buffer], buffer.dtype, self.values.dtype)
            self.value_runs[key] = value_runs(tensor, axis)
        return self.value_runs[key]


# ---- evaluation ----------------------------------------------------------------------------------


def ends_of(solved: Solved, b: int, h: int, positions: torch.Tensor | range) -> torch.Tensor:
    """Return where the intervals of positions of the other index begin and end.

    Args:
        solved: the form, for the values of a call.
        b: batch.
        h: head.
        positions: queries, for a form of kv, or keys, for a form of q: int64 ``(n,)``, or a range
            with step 1, which is cheaper.

    Returns:
        int64 ``(2, spans, n)`` on the device of the values, the starts and the stops, within 0 to
        `Solved.length`: an interval is empty where they meet or cross.
    """
    return _ends(solved, _lanes(solved, b, h, positions), len(positions))


def ends_of_each(
    solved: Solved, members: Sequence[tuple[int, int]], positions: torch.Tensor | range
) -> torch.Tensor:
    """Return `ends_of` for several pairs of batch and head, one after the other.

    Args:
        solved: the form, for the values of a call.
        members: batch and head of each.
        positions: see `ends_of`.

    Returns:
        As `ends_of`, int64 ``(2, spans, members * positions)``.
    """
    device = solved.values.device
    b, h = (vector([pair[i] for pair in members], device) for i in range(2))
    if isinstance(positions, range):
        positions = arange(positions.start, positions.stop, device)
    along = positions.expand(len(members), -1)
    one = torch.zeros(len(members), 1, dtype=torch.int64, device=device)
    rows, columns = (along, one) if solved.form.index == "kv" else (one, along)
    lanes = ScatteredLanes(b, h, rows, columns)
    return _ends(solved, lanes, len(members) * len(positions))


def _ends(solved: Solved, lanes: AnyLanes, count: int) -> torch.Tensor:
    """Return the ends of all intervals at some lanes, see `ends_of`."""
    spans, device = solved.form.spans, solved.values.device
    if not (solved.length and count):
        return torch.zeros(2, len(spans), count, dtype=torch.int64, device=device)
    ends = torch.empty(2, len(spans), count, dtype=torch.int64, device=device)
    found = _program(spans).run(solved.values, lanes)
    for end, value in zip(ends.flatten(0, 1), found, strict=True):
        if isinstance(value, torch.Tensor):
            end.view(lanes.shape).copy_(value)
        else:
            end.fill_(value)
    return ends.clamp_(0, solved.length)


def _lanes(solved: Solved, b: int, h: int, positions: torch.Tensor | range) -> AnyLanes:
    """Return lanes of one batch and head: positions along one axis, and one lane of the other."""
    by_rows = solved.form.index == "kv"
    if isinstance(positions, range):
        assert positions.step == 1
        along = (positions.start, positions.stop)
        q, kv = (along, (0, 1)) if by_rows else ((0, 1), along)
        return Lanes((b, b + 1), (h, h + 1), q, kv)
    device = solved.values.device
    one = torch.zeros(1, 1, dtype=torch.int64, device=device)
    rows, columns = (positions[None], one) if by_rows else (one, positions[None])
    return ScatteredLanes(one[0] + b, one[0] + h, rows, columns)


@functools.lru_cache(maxsize=256)
def _program(spans: tuple[Span, ...]) -> Program:
    """Compile the starts of all spans, then their stops."""
    return Program([s.start for s in spans] + [s.stop for s in spans])
