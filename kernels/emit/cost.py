"""How many instructions a mod takes for each score, by the pipe that executes them.

Counts what a thread would run for a tile, in the order in which `evaluator` computes it: the same
values are shared between rows and columns, the same loads are wide, and what is linear in kv is one
instruction.  What is computed once for a tile of queries counts nothing.  Instructions of each op
are those of the frontend's ops table; what the assembler does beyond joining a product and a sum is
not known here, so counts are within an instruction or two of what runs.

For performance models; needs no CuTe-DSL.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, fields
from typing import Final

from flexfa4.frontend.ir import BOOL, F32, I32, Graph, Node, input_
from flexfa4.frontend.ops import OPS
from flexfa4.kernels.emit.access import Access, access
from flexfa4.kernels.emit.captures import BufferPlan, CapturePlan, loads_of
from flexfa4.kernels.emit.places import ORIGIN, Columns, Place
from flexfa4.kernels.emit.program import MaskProgram, ScoreProgram, Term
from flexfa4.kernels.emit.structure import Structure
from flexfa4.kernels.emit.widths import Ranges


@dataclass(frozen=True)
class Instructions:
    """Instructions for each score, on average.

    Attributes:
        fma: fp32 additions and multiplications.
        alu: integers, comparisons, selections, extremes, conversions.
        mufu: exponentials and other functions of the hardware.
        load: reads of global memory.
        paired: of `fma`, those that are issued two at a time.
    """

    fma: float = 0.0
    alu: float = 0.0
    mufu: float = 0.0
    load: float = 0.0
    paired: float = 0.0

    @property
    def all(self) -> float:
        """All of them: what is issued."""
        return self.fma - self.paired / 2 + self.alu + self.mufu + self.load

    def __add__(self, other: Instructions) -> Instructions:
        return Instructions(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def times(self, factor: float) -> Instructions:
        """Return so many times as many."""
        return Instructions(*(getattr(self, f.name) * factor for f in fields(self)))


def emulation(degree: int) -> Instructions:
    """Return what an emulated exponential takes in place of one of the hardware.

    The range reduction is three additions, the polynomial `degree` products; the clamp and the
    exponent are integers.
    """
    return Instructions(fma=3 + degree, alu=2, mufu=-1)


@dataclass(frozen=True)
class Fragment:
    """The scores of a tile that a thread holds.

    Attributes:
        columns: see `Columns`.
        row_offsets: of each row, how many queries it is behind the first one; None where that is
            not known, as with packed heads.
        row_inputs: the inputs that differ from row to row.
        pairs: scores are computed for two neighbouring columns at once (`pairs`).
    """

    columns: Columns
    row_offsets: tuple[int | None, ...]
    row_inputs: frozenset[str] = frozenset({"q"})
    pairs: bool = False

    @property
    def scores(self) -> int:
        """How many there are."""
        return len(self.columns.offsets) * len(self.row_offsets)


@functools.lru_cache(maxsize=256)
def cost_of_score(
    program: ScoreProgram, known: CapturePlan, fragment: Fragment, fast: bool = True
) -> Instructions:
    """Return what a score mod takes before the maximum.

    Args:
        program: the mod.
        known: what is known of its captures.
        fragment: of a thread.
        fast: approximate functions may be used.
    """
    if program.graph is None or program.max_of_products:
        return Instructions()
    counter = _Counter(program.graph, known, fragment, fast=fast)
    for row in range(len(fragment.row_offsets)):
        for column in fragment.columns.offsets:
            counter.score(program, row, column)
    return counter.per_score


@functools.lru_cache(maxsize=256)
def cost_of_mask(program: MaskProgram, known: CapturePlan, fragment: Fragment) -> Instructions:
    """Return what a mask takes that is evaluated for each score, the selection included."""
    counter = _Counter(program.graph, known, fragment, fast=False)
    for row in range(len(fragment.row_offsets)):
        for column in fragment.columns.offsets:
            counter.value(program.root, Place(row, column))
            counter.count("alu")
    return counter.per_score


def loads_in_a_row(program: ScoreProgram) -> int:
    """Return how many reads of a score wait for one another: the longest chain."""
    return max(map(_chain, program.nodes()), default=0)


@functools.lru_cache(maxsize=1024)
def _chain(node: Node) -> int:
    here = node.op == "load" and "kv" in node.depends
    return max(map(_chain, node.args), default=0) + here


_SCORE: Final = input_("score")
_PRECISE: Final = 8
"""Instructions of a precise function for each that the fast form takes, roughly."""


class _Counter:
    """Counts the instructions of one graph over a fragment, each value once where it is shared."""

    def __init__(self, graph: Graph, known: CapturePlan, fragment: Fragment, *, fast: bool) -> None:
        self._fragment, self._fast = fragment, fast
        self._buffers: dict[object, BufferPlan] = dict(
            zip(graph.buffers, known.buffers, strict=True)
        )
        loads = zip(loads_of(graph), known.loads, strict=True)
        self._accesses: dict[Node, Access] = {
            load: access(load, plan, known.along) for load, plan in loads
        }
        self._ranges = Ranges(graph, known)
        self._structure = Structure(
            self._ranges, self._accesses, fragment.row_inputs, graph.kind == "mask", known.along
        )
        offsets = fragment.row_offsets
        self._shares_rows = len(offsets) > 1 and None not in offsets
        self._kept: set[tuple[object, Place]] = set()
        self._counts = {f.name: 0.0 for f in fields(Instructions)}

    @property
    def per_score(self) -> Instructions:
        """What was counted, for each score."""
        return Instructions(**self._counts).times(1 / self._fragment.scores)

    def count(self, pipe: str, instructions: float = 1.0) -> None:
        """Count instructions of a pipe."""
        self._counts[pipe] += instructions

    def score(self, program: ScoreProgram, row: int, column: int) -> None:
        """Count what a score takes; see `ScoreSite.value`."""
        terms = list(program.terms)
        started = not program.ignores_score
        if program.core is not None:
            self._count_floats(1.0, pairs=True)  # the scale
            self._kept.add((_SCORE, Place(row, column)))
            self.value(program.core, Place(row, column))
        if started and not program.defers:
            plain = next((term for term in terms if term.coefficient is None), None)
            if plain is not None:
                terms.remove(plain)
                self._part(plain, row, column)
            if plain is not None or program.outer is not None or program.core is None:
                self._count_floats(1.0, pairs=True)
        for term in terms:
            self._part(term, row, column)
            if started or term.coefficient is not None:
                alone = term.part is not None and self._structure.modifies(term.part)
                self._count_floats(1.0, pairs=not alone)
            started = True

    def _count_floats(self, instructions: float, *, pairs: bool) -> None:
        """Count additions and products, which are on pairs where the fragment's scores are."""
        self.count("fma", instructions)
        if pairs and self._fragment.pairs:
            self.count("paired", instructions)

    def _part(self, term: Term, row: int, column: int) -> None:
        if term.part is not None:
            self.value(term.part, Place(row, column))
        elif term.origin is not None:
            self.value(term.origin, Place(row, ORIGIN))

    # ---- values, see `evaluator.Frame` -----------------------------------------------------------

    def value(self, node: Node, place: Place) -> None:
        """Count what a value takes that is not there yet."""
        place = self._first(node, place)
        if (node, place) in self._kept or "column" not in self._structure.axes(node):
            return
        for part in self._structure.order(node, place.offset == ORIGIN, not place.inside):
            own = self._first(part, place)
            if (part, own) in self._kept or "column" not in self._structure.axes(part):
                continue
            if part is not node and not place.inside and self._structure.diagonal(part):
                self.value(part, own)
            else:
                self._kept.add((part, own))
                self._compute(part, own)

    def _first(self, node: Node, place: Place) -> Place:
        axes = self._structure.axes(node)
        row = place.row if "row" in axes else None
        if place.offset is None or "column" not in axes:
            return Place(row, None)
        shared = bool(row) and self._shares_rows and self._structure.diagonal(node)
        if shared and row is not None and not place.inside:
            start = 0 if place.offset == ORIGIN else place.offset
            return Place(0, start - (self._fragment.row_offsets[row] or 0))
        return Place(row, place.offset, place.inside and shared)

    def _compute(self, node: Node, own: Place) -> None:
        if node.op == "load":
            self._load(node, own)
        elif own.offset != ORIGIN and self._structure.shortcut(node) is not None:
            self._stepped(node, own)
        elif node.op in OPS:
            self._applied(node)

    def _stepped(self, node: Node, own: Place) -> None:
        shortcut = self._structure.shortcut(node)
        assert shortcut is not None
        self.value(shortcut.of, own._replace(offset=ORIGIN))
        if node.dtype is BOOL or own.offset:
            if node.dtype is F32:
                self._count_floats(1.0, pairs=self._structure.packs(node))
            else:
                self.count("alu", self._words(node))

    def _applied(self, node: Node) -> None:
        op = OPS[node.op]
        pipe, cost = op.pipe, float(op.cost)
        lanes = node.args[0].length if op.reduces else node.length
        integer = node.args[-1].dtype is I32
        if node.op == "div" and self._fast:  # a reciprocal, unless it is known
            known = node.args[1].op == "const"
            pipe, cost = "fma", 1.0 if known else 4.0
            self.count("mufu", 0 if known else lanes or 1)
        elif pipe == "mufu" and not self._fast:
            cost *= _PRECISE
        elif node.op in ("add", "sub") and node.dtype is F32:
            cost -= any(a.op == "mul" for a in node.args)  # fused with a product
        elif integer:
            pipe, cost = "alu", cost * self._words(node)
        floats = _PRODUCTS.get(node.op, 0) + (cost if pipe == "fma" else 0.0)
        self._count_floats(floats * (lanes or 1), pairs=self._structure.packs(node))
        if pipe != "fma":
            self.count(pipe, cost * (lanes or 1))

    def _words(self, node: Node) -> int:
        """Return how many registers the integers of a node take."""
        integers = [n for n in (node, *node.args) if n.dtype is I32]
        return max((self._ranges.width(n) // 32 for n in integers), default=1)

    # ---- loads -----------------------------------------------------------------------------------

    def _load(self, node: Node, own: Place) -> None:
        made, plan = self._accesses[node], self._buffers[node.attr]
        if made.steps is not None and own.offset != ORIGIN:
            group = self._group(made, plan, own.offset)
            self._kept.update((node, own._replace(offset=offset)) for offset in group)
            self.count("load")
            return
        shared = made.diagonal and self._shares_rows
        for axis, index in enumerate(node.args):
            if "column" not in self._structure.axes(index):
                continue
            self.value(index, own._replace(inside=not shared))
            if not made.known.from_start[axis]:
                self.count("alu", 2)
            if not made.known.in_range or shared:
                self.count("alu")
            self.count("alu", 2)  # an address of 64 bits
        self.count("load", node.length or 1)

    def _group(self, made: Access, plan: BufferPlan, offset: int | None) -> list[int]:
        """Return the columns that one load reads; see `loads`."""
        assert offset is not None
        count = 1
        if plan.unit_stride and made.distance is not None:
            count = min(16 // _BYTES.get(plan.storage, 4), plan.aligned)
            count = min(count, self._fragment.columns.multiple)
        while count > 1:
            assert made.distance is not None
            group = self._fragment.columns.aligned_group(offset, count, made.distance)
            if group is not None:
                return group
            count //= 2
        return [offset]


_PRODUCTS: Final = {"exp": 1, "log": 1, "log1p": 2, "sigmoid": 2, "sin": 1, "cos": 1}
"""Products and sums beside the hardware's function, which is in base 2 or of a turn."""

_BYTES: Final = {
    "float64": 8, "int64": 8, "float16": 2, "bfloat16": 2, "int16": 2,
    "int8": 1, "uint8": 1, "bool": 1,
}  # fmt: skip
