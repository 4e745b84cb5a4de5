"""The places of a kernel at which mods take part: what a skeleton calls, and when.

::

    score = ScoreSite(program, fixed, scale)        (a) once for a tile of queries
    rows = score.with_rows(rows)                        before the loop over tiles of keys
    part = rows.at_tile(origin)                     (b) in the loop, before the products are needed
    y = part.value(row, column, product)            (c) for each score
    part.factor(row), part.shift(row)                   x = factor * y + shift + constant, in base 2
    y = part.pair(row, column, products)            (c) or for two neighbouring columns at once;
    part.factor(row), part.shifts(row)                  both may have shifts of their own
    rows.unit(row), rows.constant(row)              (d) behind the loop

    mask = MaskSite(program, fixed)                 likewise; partial tiles only
    rows = mask.with_rows(rows)
    part = rows.at_tile(origin)
    visible = part.visible(row, column)

Meanings of `factor`, `shift`, `constant` and `y` are in `program`.  Masking comes after `value`:
what a masked lane held, NaN included, must not be seen.

An instruction on pairs has one number in it for both columns.  So a term that is linear in kv is
counted to the first column of a pair, one fused multiply-add for two scores; its step from there to
the second column is in the shift of second columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cutlass import Boolean, Float32
from cutlass._mlir.dialects import arith

from flexfa4.frontend.ir import Node
from flexfa4.kernels.emit import builders as make
from flexfa4.kernels.emit.builders import Value, constant
from flexfa4.kernels.emit.evaluator import Fixed, Frame, TraceTime
from flexfa4.kernels.emit.lanes import Lanes, OneColumn, TwoColumns
from flexfa4.kernels.emit.places import ORIGIN, Place, Row
from flexfa4.kernels.emit.program import LOG2E, MaskProgram, ScoreProgram, Term
from flexfa4.primitives import packed


class ScoreSite(TraceTime):
    """A score mod in a kernel.

    Args:
        program: the mod.
        fixed: captures and geometry; its graph is the program's.
        scale: the softmax scale: Float32, or a number that the code is compiled for.
    """

    def __init__(self, program: ScoreProgram, fixed: Fixed, scale: Any) -> None:
        self.program = program
        self._scale = make.unwrap(scale, "f32")
        self._frame = Frame(fixed)
        self._frame.prepare(*program.nodes())

    def with_rows(self, rows: Sequence[Row]) -> ScoreSite:
        """Return the site with rows: computes what does not depend on the tile of keys."""
        made = self._at(self._frame.with_rows(rows))
        made._frame.prepare(*self.program.nodes())
        linear = self._linear
        for row in range(len(rows)):
            made._raw_factor(row)
            for term in self.program.terms:
                if term.coefficient is not None:
                    made._coefficient(term, row)
            if linear is not None and made._frame.fixed.pairs:
                made._step(linear, row)
        return made

    def at_tile(self, origin: Any, *, tail: bool = False) -> ScoreSite:
        """Return the site at a tile of keys: computes the shifts, and issues loads by column.

        Args:
            origin: position of the thread's first column.
            tail: the tile may reach past the last key.
        """
        made = self._at(self._frame.at_tile(origin, tail))
        made._frame.issue_loads(*self.program.nodes())
        return made

    def inside(self) -> ScoreSite:
        """Return the site in a branch or loop: what is computed there is not known outside."""
        return self._at(self._frame.inside())

    def factor(self, row: int) -> Float32:
        """Return the factor of a row in base 2: positive."""
        return Float32(self._raw_factor(row))

    def unit(self, row: int) -> Float32 | None:
        """Return the factor where there is no shift, so that maxima may be kept as scores."""
        return None if self.program.shifts else self.factor(row)

    def constant(self, row: int) -> Float32 | None:
        """Return the constant of a row in base 2, None for 0."""
        constant = self.program.constant
        return None if constant is None else Float32(self._of_row(constant, row)) * LOG2E

    def shift(self, row: int) -> Float32 | None:
        """Return the shift of a row in this tile in base 2, None for 0."""
        program = self.program
        if not program.shifts:
            return None

        def compute() -> Value:
            origins = [term.origin for term in program.terms if term.origin is not None]
            parts = [self._frame.value(origin, Place(row, ORIGIN)) for origin in origins]
            total = parts[0]
            for part in parts[1:]:
                total = arith.addf(total, part)
            return arith.mulf(total, constant("f32", LOG2E))

        return Float32(self._frame.shared("shift", Place(row, ORIGIN), compute))

    def shifts(self, row: int) -> tuple[Float32 | None, ...]:
        """Return the shifts of a row in this tile for `pair`: of both columns, or of each."""
        first, linear = self.shift(row), self._linear
        if linear is None or first is None:
            return (first,)
        return first, first + Float32(self._step(linear, row))

    def value(self, row: int, column: int, product: Any) -> Float32:
        """Return `y` at a row and a column.

        Args:
            row: index into the rows of the thread.
            column: index into its columns.
            product: Float32, the scalar product of the query and the key, not scaled.
        """
        at = OneColumn(self._frame, row, column)
        return Float32(self._computed(at, make.unwrap(product, "f32")))

    def pair(self, row: int, column: int, products: packed.Pair) -> packed.Pair:
        """Return `y` at a row, a column and the next one.

        Args:
            row: index into the rows of the thread.
            column: index into its columns, which follow each other.
            products: the scalar products, not scaled.
        """
        assert self._frame.fixed.pairs
        return self._computed(TwoColumns(self._frame, row, column), products)

    def _computed(self, at: Lanes, products: Value) -> Value:
        program = self.program
        terms = list(program.terms)
        total: Value | None = None
        if not program.ignores_score:
            total = products
            if program.core is not None:
                at.put_score(arith.mulf(products, at.spread(self._inner(at.row))))
                total = at.evaluate(program.core)
            if not program.defers:
                total = self._scaled(total, at, terms)
        for term in terms:
            total = self._plus(total, term, at)
        return at.spread(constant("f32", 0)) if total is None else total

    # ---- parts -----------------------------------------------------------------------------------

    def _at(self, frame: Frame) -> ScoreSite:
        made = object.__new__(ScoreSite)
        made.program, made._scale, made._frame = self.program, self._scale, frame
        return made

    def _of_row(self, node: Node, row: int) -> Value:
        return self._frame.evaluate(node, row, None)

    def _product(self, what: str, row: int, *factors: Node | float | None) -> Value:
        """Return the softmax scale, numbers and values of a row multiplied, None counting as 1."""

        def compute() -> Value:
            values = [self._scale] if what.endswith("scale") else []
            for factor in factors:
                if isinstance(factor, Node):
                    values.append(self._of_row(factor, row))
                elif factor is not None:
                    values.append(constant("f32", factor))
            total = values[0] if values else constant("f32", 1)
            for value in values[1:]:
                total = arith.mulf(total, value)
            return total

        varies = any(isinstance(f, Node) and "row" in self._frame.axes(f) for f in factors)
        return self._frame.shared(what, Place(row if varies else None, None), compute)

    def _inner(self, row: int) -> Value:
        return self._product("inner * scale", row, self.program.inner)

    def _outer(self, row: int) -> Value:
        what = "outer * scale" if self.program.core is None else "outer"
        return self._product(what, row, self.program.outer)

    def _raw_factor(self, row: int) -> Value:
        program = self.program
        if not program.defers:
            return constant("f32", LOG2E)
        what = "factor, with scale" if program.core is None else "factor"
        return self._product(what, row, program.outer, LOG2E)

    def _coefficient(self, term: Term, row: int) -> Value:
        """Return a term's coefficient, divided by the factor where that is applied later."""
        assert term.coefficient is not None
        coefficient = self._of_row(term.coefficient, row)
        plain = self.program.core is not None and self.program.outer is None
        if not self.program.defers or plain:
            return coefficient
        axes = self._frame.axes(term.coefficient)
        if self.program.outer is not None:
            axes |= self._frame.axes(self.program.outer)
        return self._frame.shared(
            ("coefficient", term.coefficient), Place(row if "row" in axes else None, None),
            lambda: arith.divf(coefficient, self._outer(row)),
        )  # fmt: skip

    @property
    def _linear(self) -> Term | None:
        """The term that is linear in kv; there is one at most."""
        return next((term for term in self.program.terms if term.part is None), None)

    def _step(self, linear: Term, row: int) -> Value:
        """Return by how much a linear term grows from a column to the next one, in base 2."""
        assert linear.coefficient is not None
        coefficient = self._of_row(linear.coefficient, row)
        return self._frame.shared(
            "step", Place(row, None), lambda: arith.mulf(coefficient, constant("f32", LOG2E))
        )  # fmt: skip

    def _scaled(self, value: Value, at: Lanes, terms: list[Term]) -> Value:
        """Return ``outer * value`` and the first term without a coefficient, taken off the list."""
        program = self.program
        plain = next((term for term in terms if term.coefficient is None), None)
        one = program.outer is None and program.core is not None
        if plain is None:
            return value if one else arith.mulf(value, at.spread(self._outer(at.row)))
        terms.remove(plain)
        assert plain.part is not None
        part = at.evaluate(plain.part)
        if one:
            return make.add(value, part)
        return make.fma(value, at.spread(self._outer(at.row)), part)

    def _plus(self, total: Value | None, term: Term, at: Lanes) -> Value:
        if term.coefficient is None:
            assert term.part is not None
            part = at.evaluate(term.part)
            return part if total is None else make.add(total, part)
        coefficient = self._coefficient(term, at.row)
        if term.part is None:
            return at.plus_distance(total, coefficient)
        return at.plus_product(total, coefficient, term.part)


class MaskSite(TraceTime):
    """A mask in a kernel, evaluated for each score of a tile.

    Args:
        program: the mask.
        fixed: captures and geometry, ``exact``; its graph is the program's.
    """

    def __init__(self, program: MaskProgram, fixed: Fixed) -> None:
        assert fixed.exact, "a mask is decided exactly"
        self.program = program
        self._frame = Frame(fixed)
        self._frame.prepare(program.root)

    def with_rows(self, rows: Sequence[Row]) -> MaskSite:
        """Return the site with rows: computes what does not depend on the tile of keys."""
        made = self._at(self._frame.with_rows(rows))
        made._frame.prepare(self.program.root)
        return made

    def at_tile(self, origin: Any, *, tail: bool = False) -> MaskSite:
        """Return the site at a tile of keys, and issue loads by column; see `ScoreSite.at_tile`.

        Columns past the last key are as visible as the last one: their limit is the kernel's.
        """
        made = self._at(self._frame.at_tile(origin, tail))
        made._frame.issue_loads(self.program.root)
        return made

    def inside(self) -> MaskSite:
        """Return the site in a branch or loop; see `ScoreSite.inside`."""
        return self._at(self._frame.inside())

    def visible(self, row: int, column: int, also: Boolean | None = None) -> Boolean:
        """Return whether the mask shows a score.

        Args:
            row: index into the rows of the thread.
            column: index into its columns.
            also: what else has to hold; joined by one instruction.
        """
        shown = self._frame.evaluate(self.program.root, row, column)
        return Boolean(shown if also is None else make.joined("and")(shown, also.ir_value()))

    def _at(self, frame: Frame) -> MaskSite:
        made = object.__new__(MaskSite)
        made.program, made._frame = self.program, frame
        return made
