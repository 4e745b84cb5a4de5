"""The place of a backward kernel at which a score mod takes part: what the kernel calls, and when.

::

    site = GradientSite(program, fixed, scale)      (a) once for a head; `fixed.plan` is along q
    rows = site.with_rows(rows)                         the keys of the block
    part = rows.at_tile(origin, masked=...)         (b) for each tile of queries
    x = part.exponent(row, column, product, lse)    (c) for each score: p = exp2(x)
    w = part.weight(row, column, p)                     to be kept in the place of p
    ds = part.gradient(row, column, w, dp, delta)       of the scaled product

Meanings are in `gradient`.  A hidden score has a `p` of 0, whatever `exponent` gave; its gradients
are 0 then, in a tile that is `masked`.  Sums for captured tensors are handed to a `Sink`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from cutlass import Float32
from cutlass._mlir.dialects import arith

from flexfa4.frontend.ir import Node
from flexfa4.kernels.emit import builders as make
from flexfa4.kernels.emit.builders import Value, constant
from flexfa4.kernels.emit.evaluator import Fixed, Frame, TraceTime
from flexfa4.kernels.emit.gradient import GradientProgram, Share
from flexfa4.kernels.emit.places import ORIGIN, Place, Row
from flexfa4.kernels.emit.program import LOG2E, Term
from flexfa4.primitives import packed
from flexfa4.primitives.packed import Pair


class Sink(Protocol):
    """Who adds up the gradients of captured elements."""

    def add(self, share: int, row: int, column: int, value: Float32) -> None:
        """Take what a score contributes to a share of the program, by its place there."""

    def add_to_element(self, share: int, place: Value, value: Float32) -> None:
        """Take what it contributes to an element of a share that is not summed up before.

        Args:
            share: as before.
            place: see `flexfa4.kernels.emit.evaluator.Frame.place_of_element`.
            value: the contribution.
        """


class GradientSite(TraceTime):
    """A score mod and its derivatives in a kernel.

    Args:
        program: the mod.
        fixed: captures and geometry, along q; its graph is the program's.
        scale: the softmax scale: Float32, or a number that the code is compiled for.
        sink: who gets the gradients of captured elements; needed where the program has shares.
    """

    def __init__(
        self, program: GradientProgram, fixed: Fixed, scale: Any, sink: Sink | None = None
    ) -> None:
        assert fixed.plan.along == "q", "columns are queries"
        assert sink is not None or not program.shares, "nobody takes the gradients of captures"
        self.program = program
        self._scale = make.unwrap(scale, "f32")
        self._sink = sink
        self._masked = False
        self._frame = Frame(fixed)
        self._frame.prepare(*program.nodes())

    def with_rows(self, rows: Sequence[Row]) -> GradientSite:
        """Return the site with keys: computes what does not depend on the tile of queries."""
        made = self._at(self._frame.with_rows(rows))
        made._frame.prepare(*self.program.nodes())
        return made

    def at_tile(self, origin: Any, *, masked: bool = False) -> GradientSite:
        """Return the site at a tile of queries: issues the loads that serve a whole column.

        Args:
            origin: position of the thread's first column.
            masked: the tile may hide scores, and reach past the last query.
        """
        made = self._at(self._frame.at_tile(origin, masked))
        made._masked = masked
        made._frame.issue_loads(*self.program.nodes())
        return made

    def take_scores(self, other: GradientSite) -> None:
        """Give the scores, where derivatives read them, of which another site made exponents."""
        self._frame.take_scores(other._frame)

    def exponent(self, row: int, column: int, product: Any, lse: Any) -> Float32:
        """Return the exponent of a probability, in base 2.

        Args:
            row: index into the rows of the thread.
            column: index into its columns.
            product: Float32, the scalar product of the query and the key, not scaled.
            lse: Float32, of the query, in base 2; infinity for a query that sees nothing.
        """
        program = self.program
        total = self._base(row, column, lse)
        if not program.ignores_score:
            value = make.unwrap(product, "f32")
            numbers: list[Any] = [LOG2E]
            if program.reads_score:
                inner = self._product("inner", row, column, program.inner, self._scale)
                self._frame.put_score(row, column, arith.mulf(value, inner))
            if program.core is None:
                numbers.append(self._scale)
            else:
                value = self._frame.evaluate(program.core, row, column)
            factor = self._product("outer", row, column, program.outer, *numbers)
            total = make.fma(value, factor, total)
        for term in program.terms:
            assert term.part is not None
            part = self._frame.evaluate(term.part, row, column)
            total = make.fma(part, self._coefficient(term, row, column), total)
        return Float32(total)

    def weight(self, row: int, column: int, probability: Any) -> Float32:
        """Return what is kept of a probability for `gradient`."""
        derivative = self.program.derivative
        if derivative is None or self.program.keeps_probabilities:
            return Float32(probability)
        return Float32(self._times(make.unwrap(probability, "f32"), derivative, row, column))

    def gradient(self, row: int, column: int, weight: Any, dp: Any, delta: Any) -> Float32:
        """Return the gradient of a scaled product, and hand on those of captured elements.

        Args:
            row: as before.
            column: as before.
            weight: what `weight` gave.
            dp: Float32, the scalar product of the gradient of the output and the value.
            delta: Float32, of the query.
        """
        program = self.program
        value, change = make.unwrap(weight, "f32"), make.unwrap(dp, "f32")
        if not program.shares:
            if program.ignores_score:
                return Float32(constant("f32", 0))
            return Float32(arith.mulf(value, self._difference(row, column, change, delta)))
        modified = arith.mulf(value, arith.subf(change, make.unwrap(delta, "f32")))
        for place, share in enumerate(program.shares):
            self._hand_on(place, share, row, column, modified)
        if program.ignores_score:
            return Float32(constant("f32", 0))
        if program.derivative is not None:
            modified = self._times(modified, program.derivative, row, column)
        if program.factor is not None:
            factor = self._product("factor", row, column, program.factor)
            modified = arith.mulf(modified, factor)
        return Float32(modified)

    # ---- pairs -----------------------------------------------------------------------------------

    @property
    def exponents_in_pairs(self) -> bool:
        """Whether exponents are one multiply-add of a product each, as `exponent_pair` has it."""
        program = self.program
        special = program.core is not None or program.reads_score or program.ignores_score
        return not special and not program.terms

    def exponent_pair(self, row: int, column: int, products: Pair, lse: Sequence[Any]) -> Pair:
        """Return `exponent` of a column and the next one.

        Args:
            row: as there.
            column: the first one.
            products: of both.
            lse: of both, Float32.
        """
        numbers = (LOG2E, self._scale)
        factors, totals = [], []
        for i, own in enumerate(lse):
            factors.append(self._product("outer", row, column + i, self.program.outer, *numbers))
            totals.append(self._base(row, column + i, own))
        return packed.fma(products, packed.pair(*factors), packed.pair(*totals))

    @property
    def gradients_in_pairs(self) -> bool:
        """Whether gradients are a difference times the weight each, as `gradient_pair` has it."""
        return not self.program.shares and not self.program.ignores_score

    def gradient_pair(
        self, row: int, column: int, weights: Pair, changes: Pair, delta: Sequence[Any]
    ) -> Pair:
        """Return `gradient` of a column and the next one; see there and `exponent_pair`."""
        node = self.program.factor
        own = [make.unwrap(number, "f32") for number in delta]
        if node is None:
            difference = packed.sub(changes, packed.pair(*own))
        else:
            factors = [self._product("factor", row, column + i, node) for i in range(len(own))]
            moved = [arith.mulf(arith.negf(a), f) for a, f in zip(own, factors, strict=True)]
            difference = packed.fma(changes, packed.pair(*factors), packed.pair(*moved))
        return packed.mul(weights, difference)

    # ---- parts -----------------------------------------------------------------------------------

    def _at(self, frame: Frame) -> GradientSite:
        made = object.__new__(GradientSite)
        made.__dict__.update(self.__dict__)
        made._frame = frame
        return made

    def _shared(
        self,
        what: Any,
        row: int,
        column: int,
        nodes: Sequence[Node],
        compute: Callable[[], Value],
    ) -> Value:
        """Return a value that varies as some nodes do together, computed once where it is so."""
        axes = frozenset[str]().union(*(self._frame.axes(node) for node in nodes))
        offset = self._frame.columns.offsets[column] if "column" in axes else None
        return self._frame.shared(what, Place(row if "row" in axes else None, offset), compute)

    def _product(
        self, what: str, row: int, column: int, node: Node | None, *numbers: Value | float
    ) -> Value:
        """Return a node, None counting as 1, times some numbers."""

        def compute() -> Value:
            values = [] if node is None else [self._frame.evaluate(node, row, column)]
            values += [constant("f32", n) if isinstance(n, float) else n for n in numbers]
            total = values[0]
            for value in values[1:]:
                total = arith.mulf(total, value)
            return total

        nodes = [] if node is None else [node]
        return self._shared(("product", what), row, column, nodes, compute)

    def _coefficient(self, term: Term, row: int, column: int) -> Value:
        coefficient = term.coefficient
        if coefficient is None:
            return constant("f32", LOG2E)

        def compute() -> Value:
            value = self._frame.evaluate(coefficient, row, column)
            return arith.mulf(value, constant("f32", LOG2E))

        return self._shared(("coefficient", term), row, column, [coefficient], compute)

    def _base(self, row: int, column: int, lse: Any) -> Value:
        """Return all of an exponent that is the same along a row or a column, lse included."""
        own = self._of_column(column, lse)
        return own if not self._has_rows else arith.subf(self._of_row(row), own)

    @property
    def _has_rows(self) -> bool:
        return bool(self.program.of_rows or self.program.linear)

    def _of_row(self, row: int) -> Value:
        """Return what is added to a row in this tile, in base 2."""
        program = self.program

        def compute() -> Value:
            parts = [self._frame.evaluate(node, row, None) for node in program.of_rows]
            parts += [self._frame.value(p.whole, Place(row, ORIGIN)) for p in program.linear]
            return arith.mulf(_sum(parts), constant("f32", LOG2E))

        place = Place(row, ORIGIN if program.linear else None)
        return self._frame.shared("of row", place, compute)

    def _of_column(self, column: int, lse: Any) -> Value:
        """Return the lse without what is added to a column: its negative, if rows have nothing."""
        program = self.program
        offset = self._frame.columns.offsets[column]

        def compute() -> Value:
            value = make.unwrap(lse, "f32")
            parts = [self._frame.evaluate(node, None, column) for node in program.of_columns]
            distance = constant("f32", offset)
            slopes = [self._frame.evaluate(p.coefficient, None, None) for p in program.linear]
            parts += [arith.mulf(slope, distance) for slope in slopes if offset]
            if not parts:
                return value if self._has_rows else arith.negf(value)
            total, log2e = _sum(parts), constant("f32", LOG2E)
            if self._has_rows:
                return make.fma(total, constant("f32", -LOG2E), value)
            return make.fma(total, log2e, arith.negf(value))

        return self._frame.shared("of column", Place(None, offset), compute)

    def _difference(self, row: int, column: int, change: Value, delta: Any) -> Value:
        """Return ``(dp - delta) * factor``."""
        node = self.program.factor
        own = make.unwrap(delta, "f32")
        if node is None:
            return arith.subf(change, own)
        factor = self._product("factor", row, column, node)
        place = Place(None, self._frame.columns.offsets[column])
        moved = self._frame.shared("delta", place, lambda: arith.mulf(arith.negf(own), factor))
        return make.fma(change, factor, moved)

    def _times(self, value: Value, node: Node, row: int, column: int) -> Value:
        """Return a product with a derivative, 0 where a masked tile hides the score."""
        product = arith.mulf(value, self._frame.evaluate(node, row, column))
        if not self._masked or node.op == "const":
            return product
        zero = constant("f32", 0)
        return make.select(make.compare("ne", value, zero), product, zero)

    def _hand_on(self, place: int, share: Share, row: int, column: int, modified: Value) -> None:
        value = modified
        if not (share.derivative.op == "const" and share.derivative.attr == 1):
            value = self._times(modified, share.derivative, row, column)
        assert self._sink is not None
        if share.over == "element":
            element = self._frame.place_of_element(share.load, row, column)
            self._sink.add_to_element(place, element, Float32(value))
        else:
            self._sink.add(place, row, column, Float32(value))


def _sum(parts: Sequence[Value]) -> Value:
    total = parts[0]
    for part in parts[1:]:
        total = arith.addf(total, part)
    return total
