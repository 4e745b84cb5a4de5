"""Values of a graph at rows and columns of a tile, each computed once where it varies least.

A thread holds some rows and columns of a tile of scores.  While a kernel is traced, a `Frame`
answers what the value of a node is at a row and a column, and keeps the answer by what the value
varies with: nothing, the row, the column, or both.  So everything is hoisted by one mechanism, and
a frame inside another one sees what that has computed::

    work  = Frame(...)                     once for a tile of queries
    rows  = work.with_rows(rows)           before the loop over tiles of keys
    tile  = rows.at_tile(origin)           inside the loop, once for a tile

A value is kept in the frame in which it was first asked for, since code computed inside a loop
cannot be used outside it: `prepare` asks in time.

What is linear in kv is evaluated at the thread's first column, the *origin*, once for each row of a
tile; at another column it is that value and a distance, which is a number in the instruction:
integers exactly, floats by one fused multiply-add.  So ``kv - q`` takes one instruction for each
score, a comparison of two integers one as well, and no value is larger than the mod's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cutlass._mlir.dialects import arith

from flexfa4.frontend.analysis.intervals import Interval
from flexfa4.frontend.ir import BOOL, I32, Buffer, Graph, Node, input_
from flexfa4.frontend.ops import OPS
from flexfa4.kernels.emit import builders as make
from flexfa4.kernels.emit import loads, pairs
from flexfa4.kernels.emit.access import Access, access
from flexfa4.kernels.emit.builders import Machine, Value, constant
from flexfa4.kernels.emit.captures import CapturePlan, captures_signature, loads_of, strides
from flexfa4.kernels.emit.places import LINES, ORIGIN, Columns, Place, Row
from flexfa4.kernels.emit.structure import Shortcut, Structure
from flexfa4.kernels.emit.table import EMISSIONS, Emission, Site
from flexfa4.kernels.emit.widths import Ranges
from flexfa4.primitives import packed

_SCORE = input_("score")


@dataclass(frozen=True)
class Leaves:
    """Values of CuTe-DSL that a kernel gives to a graph.

    Attributes:
        b, h: batch and query head of the tile; None where they are rows' (packed heads).
        q_len, kv_len, num_heads, num_kv_heads: sizes of the call.
        captures: values of `captures_signature`'s parameters, in order.
    """

    b: Any
    h: Any
    q_len: Any
    kv_len: Any
    num_heads: Any = 1
    num_kv_heads: Any = 1
    captures: Sequence[Any] = ()


@dataclass(frozen=True)
class Fixed:
    """What all frames of one graph share.

    Attributes:
        graph: the graph whose captures are bound.
        plan: what is known of them.
        leaves: values from the kernel.
        columns: of a thread.
        row_inputs: the inputs that differ from row to row beside their position.
        exact: no rounding but torch's: neither fused nor approximate, for masks.
        fast: approximate functions may be used, see `table`.
        pairs: scores are asked for at two neighbouring columns at once (`pairs`).
    """

    graph: Graph
    plan: CapturePlan
    leaves: Leaves
    columns: Columns
    row_inputs: frozenset[str] = frozenset()
    exact: bool = False
    fast: bool = True
    pairs: bool = False


class TraceTime:
    """An object that exists while a kernel is traced: it may be used in loops that run later.

    CuTe-DSL makes variables of a loop of what the objects in it hold; this one declares nothing.
    """

    def __extract_mlir_values__(self) -> list[Any]:
        return []

    def __new_from_mlir_values__(self, values: list[Any]) -> Any:
        return self


class Frame(TraceTime):
    """A place in a kernel from which values are asked for; see the module's docstring."""

    def __init__(self, fixed: Fixed) -> None:
        self.fixed = fixed
        self.columns = fixed.columns
        known = zip(loads_of(fixed.graph), fixed.plan.loads, strict=True)
        along = fixed.plan.along
        self._along, self._line = input_(along), input_(LINES[along])
        self._accesses = {load: access(load, plan, along) for load, plan in known}
        ranges = Ranges(fixed.graph, fixed.plan)
        rows = fixed.row_inputs | {LINES[along]}
        self._structure = Structure(ranges, self._accesses, rows, fixed.exact, along)
        # what is computed for a row or a tile costs nothing, so it may as well be precise
        often = Site(ranges, not fixed.exact, fixed.fast and not fixed.exact)
        self._sites = {True: often, False: replace(often, fast=False)}
        self._tensors, self._scalars = _captures(fixed)
        self._rows: tuple[Row, ...] = ()
        self._origin: Value | None = None
        self._last: Value | None = None  # the offset of the last column that exists
        self._outer: Frame | None = None
        self._kept: dict[tuple[Any, Place], Any] = {}

    def inside(self) -> Frame:
        """Return a frame that knows what this one does; what it computes itself is its own."""
        made = object.__new__(Frame)
        made.__dict__.update(self.__dict__)
        made._outer, made._kept = self, {}
        return made

    def with_rows(self, rows: Sequence[Row]) -> Frame:
        """Return a frame with rows: before the loop over tiles of keys.

        Positions past the end count as the last one, so that what is read for them exists.
        """
        made = self.inside()
        kind = self.machine(self._line)
        last = arith.subi(self._length(self._line, kind), constant(kind, 1))
        positions = [arith.minsi(make.unwrap(row.position, kind), last) for row in rows]
        made._rows = tuple(replace(row, position=p) for row, p in zip(rows, positions, strict=True))
        return made

    def at_tile(self, origin: Any, tail: bool = False) -> Frame:
        """Return a frame at a tile of keys.

        Args:
            origin: the position of the thread's first column.
            tail: columns past the end are possible; what is read for them is the last one's.
        """
        made = self.inside()
        kind = self.machine(self._along)
        made._origin = make.unwrap(origin, kind)
        if tail:
            length = self._length(self._along, kind)
            made._last = arith.subi(arith.subi(length, constant(kind, 1)), made._origin)
        return made

    def _length(self, position: Node, kind: Machine) -> Value:
        """Return how many queries, or keys, there are."""
        return make.unwrap(getattr(self.fixed.leaves, f"{position.attr}_len"), kind)

    def axes(self, node: Node) -> frozenset[str]:
        """Return which of ``row`` and ``column`` a value varies with."""
        return self._structure.axes(node)

    def interval(self, node: Node) -> Interval:
        """Return bounds of a node in all calls of the plan."""
        return self._sites[False].interval(node)

    def machine(self, node: Node) -> Machine:
        """Return the type that a node is computed in."""
        return self._sites[False].machine(node)

    def steady(self, made: Access) -> bool:
        """Return whether a load's address moves from the origin by what its indices do."""
        return made.steps is not None and self._last is None

    @property
    def shares_rows(self) -> bool:
        """Whether rows share what is the same along a diagonal."""
        return len(self._rows) > 1 and all(row.offset is not None for row in self._rows)

    # ---- asking for values -----------------------------------------------------------------------

    def evaluate(self, node: Node, row: int | None, column: int | None) -> Any:
        """Return the value of a node: one of MLIR, or a list of them for a vector.

        Args:
            node: below the graph's root, or made of such nodes.
            row: index into the rows; None where the node does not vary with them.
            column: index into the columns, likewise.
        """
        return self.value(node, self._place(row, column))

    def place_of_element(self, load: Node, row: int, column: int) -> Value:
        """Return how far the element that a load reads lies from the tensor's first one.

        Returns:
            i64: bytes, if the elements took four each.
        """
        tensor, made = self._tensors[load.attr], self._accesses[load]
        place = self.first(load, Place(row, self._offset(column)))

        def compute() -> Value:
            address = loads.address(self, made, tensor, place)
            return make.scaled(arith.subi(address, tensor.pointer), tensor.plan.storage)

        return self.shared(("place", load), place, compute)

    def put_score(self, row: int, column: int, value: Value) -> None:
        """Give the score at a row and column, f32."""
        self.keep(_SCORE, self._place(row, column), value)

    def take_scores(self, other: Frame) -> None:
        """Give all scores that another frame of the same tile was given."""
        given = other._kept.items()
        self._kept.update({place: value for place, value in given if place[0] is _SCORE})

    def evaluate_pair(self, node: Node, row: int, column: int) -> Any:
        """Return the values of a node at a column and the next one; see `pairs`."""
        return pairs.evaluate(self, node, [self._place(row, column + i) for i in (0, 1)])

    def put_pair(self, row: int, column: int, value: Value) -> None:
        """Give the scores at a row, a column and the next one, as a pair."""
        pairs.keep(self, _SCORE, [self._place(row, column + i) for i in (0, 1)], value)

    def distance(self, column: int) -> Value:
        """Return how far a column is from the origin, f32."""
        return constant("f32", self._offset(column))

    def value(self, node: Node, place: Place) -> Any:
        """Return the value of a node at a place; see `evaluate`."""
        place = self.first(node, place)
        found = self.find(node, place)
        if found is not None:
            return found
        for part in self._structure.order(node, place.offset == ORIGIN, not place.inside):
            own = self.first(part, place)
            if self.find(part, own) is not None:
                continue
            if part is not node and not place.inside and self._structure.diagonal(part):
                self.value(part, own)
            else:
                self._compute(part, own, place)
        return self.find(node, place)

    def keep(self, what: Any, place: Place, value: Any) -> None:
        """Keep a value of this frame."""
        self._kept[what, place] = value

    def shared(self, what: Any, place: Place, compute: Callable[[], Value]) -> Value:
        """Return a value that is no node's, computed where it is asked for first."""
        found = self.find(what, place)
        if found is None:
            found = self._kept[what, place] = compute()
        return found

    def prepare(self, *nodes: Node) -> None:
        """Compute what these nodes need that does not vary with the column, for every row."""
        for node in nodes:
            for part in self._structure.fixed_parts(node):
                for row in range(len(self._rows)) if "row" in self.axes(part) else [None]:
                    self.value(part, Place(row, None))

    def issue_loads(self, *nodes: Node) -> None:
        """Issue the reads that vary with the column alone, ahead of their use."""
        for node in nodes:
            for part in self._structure.order(node, False, True):
                wide = part.length is not None  # these would fill the registers
                if part.op == "load" and self.axes(part) == {"column"} and not wide:
                    for offset in self.columns.offsets[: self.columns.ahead]:
                        self.value(part, Place(None, offset))

    def parts(self, node: Node) -> list[Node]:
        """Return what is evaluated for a node, operands before users."""
        return self._structure.order(node, False, self.shares_rows)

    def modifies(self, node: Node) -> bool:
        """Return whether a value is free as an operand of instructions on single numbers."""
        return self._structure.modifies(node)

    def on_pairs(self, node: Node) -> bool:
        """Return whether a node is computed by instructions on pairs."""
        site = self._sites[True]
        if not site.fused or not self._structure.packs(node):
            return False
        if self._structure.shortcut(node) is not None:
            return True
        emission = EMISSIONS[node.op]
        return emission.fast is None or _form(site, node, emission) is emission.fast

    def _offset(self, column: int) -> int:
        return self.columns.offsets[column]

    def _place(self, row: int | None, column: int | None) -> Place:
        return Place(row, None if column is None else self._offset(column))

    def find(self, what: Any, place: Place) -> Any:
        """Return what is kept, here or further out; None if nothing is."""
        frame: Frame | None = self
        while frame is not None:
            found = frame._kept.get((what, place))
            if found is not None:
                return found
            frame = frame._outer
        return None

    def first(self, node: Any, place: Place) -> Place:
        """Return the first of the places at which a value is the same: where it is kept."""
        axes = self.axes(node)
        row = place.row if "row" in axes else None
        if place.offset is None or "column" not in axes:
            return Place(row, None)
        shared = bool(row) and self.shares_rows and self._structure.diagonal(node)
        if place.inside:
            return Place(row, place.offset, shared or self._last is not None)
        if shared and row is not None:
            start = 0 if place.offset == ORIGIN else place.offset
            return Place(0, start - (self._rows[row].offset or 0))
        return Place(row, place.offset)

    # ---- linear in kv ----------------------------------------------------------------------------

    def _distance(self, place: Place, kind: Machine) -> int | Value:
        """Return how far a column is from the origin: a number, or a value if it may not exist."""
        offset = place.offset
        assert offset is not None
        if self._last is None or not place.inside:
            return offset
        own, last = make.machine(self._last), self._last
        column = Place(None, offset)
        inside = self.shared("distance", column, lambda: arith.minsi(last, constant(own, offset)))
        if kind == "f32":
            return self.shared("float", column, lambda: make.to_float(inside))
        return make.resized(inside, kind)

    def _stepped(self, node: Node, found: Shortcut, place: Place) -> Value:
        """Return the value of a linear node at a column."""
        base = self.value(found.of, place._replace(offset=ORIGIN))
        kind = make.machine(base)
        distance = self._distance(place, kind)
        if node.dtype is BOOL:
            return self._compared(node.op, base, int(found.slope.attr), distance)
        if isinstance(distance, int) and not distance:
            return base
        if found.slope.op == "const":
            step: float = found.slope.attr
            if isinstance(distance, int):
                moved = constant(kind, step * distance)
            elif step == 1:
                moved = distance
            else:
                multiply = arith.mulf if kind == "f32" else arith.muli
                moved = multiply(distance, constant(kind, step))
            return make.add(base, moved) if kind == "f32" else arith.addi(base, moved)
        times = self.value(found.slope, place._replace(offset=None))
        by = constant(kind, distance) if isinstance(distance, int) else distance
        if kind == "f32":
            return make.fma(times, by, base)
        return arith.addi(base, arith.muli(make.resized(times, kind), by))

    def stepped_pair(self, node: Node, place: Place) -> Value | None:
        """Return a linear node at a column and the next one, as a pair; None for other nodes."""
        found = self._structure.shortcut(node)
        if found is None or place.offset is None:
            return None
        origin, step = place._replace(offset=ORIGIN), float(found.slope.attr)

        def first() -> Value:
            base = self.value(found.of, origin)
            return packed.pair(base, arith.addf(base, constant("f32", step)))

        pair = self.shared(("first pair", node), origin, first)
        return packed.add(pair, packed.both(step * place.offset)) if place.offset else pair

    def _compared(self, name: str, base: Value, step: int, distance: int | Value) -> Value:
        """Return whether ``base + step * distance`` is less than 0, ..."""
        kind = make.machine(base)
        if isinstance(distance, int):
            return make.compare(name, base, constant(kind, -step * distance))
        moved = arith.addi(base, arith.muli(distance, constant(kind, step)))
        return make.compare(name, moved, constant(kind, 0))

    # ---- computing -------------------------------------------------------------------------------

    def _compute(self, node: Node, own: Place, place: Place) -> None:
        """Compute a node at its own place; its operands are known at `place`."""
        if node.op == "load":
            loads.read(self, self._accesses[node], self._tensors[node.attr], own)
            return
        shortcut = None if own.offset in (None, ORIGIN) else self._structure.shortcut(node)
        if shortcut is not None:
            self.keep(node, own, self._stepped(node, shortcut, own))
        elif node.op in OPS:
            often = "column" in self.axes(node) and place.offset != ORIGIN
            values = [self.find(a, self.first(a, place)) for a in node.args]
            self.keep(node, own, self.applied(node, values, often))
        else:
            self.keep(node, own, self._leaf(node, own.row))

    def applied(self, node: Node, values: list[Any], often: bool) -> Any:
        """Return the value of a node from those of its operands.

        Args:
            node: an op.
            values: of its operands, or their pairs.
            often: it is computed for each column.
        """
        emission = EMISSIONS[node.op]
        site = self._sites[often]
        if emission.combine:
            return self._reduced(site, node, emission, values[0])
        form = _form(site, node, emission)
        kind = self._working(site, node, emission)
        if node.length is None:
            return self._one(site, node, form, kind, values)
        spread = [v if isinstance(v, list) else [v] * node.length for v in values]
        return [self._one(site, node, form, kind, list(lane)) for lane in zip(*spread, strict=True)]

    def _working(self, site: Site, node: Node, emission: Emission) -> Machine | None:
        """Return the type that the integer operands are brought to; None for the one they have."""
        integers = [site.machine(a) for a in node.args if a.dtype is I32]
        if not integers or emission.width == "own":
            return None
        if node.dtype is I32:
            if emission.width == "result":
                return site.machine(node)
            if emission.width != "divided" or site.ranges.wraps(node):
                integers.append(site.machine(node))
        return "i64" if "i64" in integers else "i32"

    def _one(
        self,
        site: Site,
        node: Node,
        form: Callable[..., Value],
        kind: Machine | None,
        values: list[Value],
    ) -> Value:
        if kind is not None:
            values = [
                make.resized(v, kind) if a.dtype is I32 else v
                for v, a in zip(values, node.args, strict=True)
            ]
        made = form(site, node, *values)
        return make.resized(made, site.machine(node)) if node.dtype is I32 else made

    def _reduced(self, site: Site, node: Node, emission: Emission, values: list[Value]) -> Value:
        kind = site.machine(node)
        if not values:
            return constant(kind, emission.start)
        join = EMISSIONS[emission.combine].form(node)
        assert join is not None
        if node.dtype is I32:
            values = [make.resized(v, kind) for v in values]
        total = values[0]
        for value in values[1:]:
            total = join(site, node, total, value)
        return total

    def _leaf(self, node: Node, row: int | None) -> Any:
        kind = self.machine(node)
        match node.op:
            case "const":
                return constant(kind, node.attr)
            case "iota":
                return [constant("i32", i) for i in range(node.attr)]
            case "scalar":
                return make.unwrap(self._scalars[node.attr], kind)
            case "size":
                buffer, axis = node.attr
                return make.resized(self._tensors[buffer].sizes[axis], kind)
            case "symbol":
                return make.unwrap(getattr(self.fixed.leaves, node.attr), kind)
        assert node.op == "input" and node.attr != "score", f"{node.op} is no leaf of a kernel"
        if node is self._along:
            assert self._origin is not None, "a value that varies with the column, outside a tile"
            return make.resized(self._origin, kind)
        value = getattr(self.fixed.leaves, node.attr, None) if row is None else None
        if row is not None:
            value = getattr(self._rows[row], "position" if node is self._line else node.attr)
        return make.unwrap(value, kind)


def _form(site: Site, node: Node, emission: Emission) -> Callable[..., Value]:
    """Return the form by which a node is computed: the fast one where it may be used."""
    fast = emission.fast if site.fast else None
    if fast is not None and emission.fast_holds(*[site.interval(a) for a in node.args]):
        return fast
    form = emission.form(node)
    assert form is not None, f"{node.op} has no form for {node.args[-1].dtype}"
    return form


def _captures(fixed: Fixed) -> tuple[dict[Buffer, loads.Tensor], dict[Any, Any]]:
    """Sort the values of the captures by what they belong to."""
    graph, plan = fixed.graph, fixed.plan
    parameters = captures_signature(graph, plan)
    given = list(fixed.leaves.captures)
    assert len(given) == len(parameters), f"{len(given)} captures for {len(parameters)} parameters"
    by_name = {p.name: (p.kind, value) for p, value in zip(parameters, given, strict=True)}
    tensors = {}
    for buffer, known in zip(graph.buffers, plan.buffers, strict=True):

        def parts(what: str, axes: Sequence[int], name: str = buffer.name) -> dict[int, Value]:
            found = {d: by_name.get(f"{name}.{what}{d}") for d in axes}
            return {d: make.unwrap(v[1], v[0]) for d, v in found.items() if v is not None}

        rank = range(len(buffer.shape))
        tensors[buffer] = loads.Tensor(
            known,
            make.unwrap(by_name[f"{buffer.name}.pointer"][1], "i64"),
            parts("size", rank),
            parts("stride", strides(buffer, known)),
        )
    return tensors, {s: by_name[s.name][1] for s in graph.scalars}
