"""What a score mod does at one column of a tile, or at two neighbouring ones: the steps of `sites`.

A value of the row is one float for both; what varies with the column is a float or a pair.
"""

from __future__ import annotations

from typing import Any, Protocol

from cutlass._mlir.dialects import arith

from flexfa4.frontend.ir import Node
from flexfa4.kernels.emit import builders as make
from flexfa4.kernels.emit.builders import Value
from flexfa4.kernels.emit.evaluator import Frame
from flexfa4.kernels.emit.places import EVERYWHERE
from flexfa4.primitives import packed


class Lanes(Protocol):
    """A place of a tile.

    Attributes:
        row: index into the rows of the thread.
    """

    row: int

    def put_score(self, value: Value) -> None:
        """Give the scaled score."""

    def evaluate(self, node: Node) -> Any:
        """Return what a node is."""

    def spread(self, of_row: Value) -> Value:
        """Return a value of the row as one of the place."""

    def plus_product(self, total: Value | None, factor: Value, part: Node) -> Value:
        """Return ``factor * part + total``, with a factor of the row."""

    def plus_distance(self, total: Value | None, factor: Value) -> Value:
        """Return ``factor * distance + total``: of the first column from the tile's origin."""


class OneColumn:
    """One column."""

    def __init__(self, frame: Frame, row: int, column: int) -> None:
        self._frame, self.row, self._column = frame, row, column

    def put_score(self, value: Value) -> None:
        """See `Lanes`."""
        self._frame.put_score(self.row, self._column, value)

    def evaluate(self, node: Node) -> Any:
        """See `Lanes`."""
        return self._frame.evaluate(node, self.row, self._column)

    def spread(self, of_row: Value) -> Value:
        """See `Lanes`."""
        return of_row

    def plus_product(self, total: Value | None, factor: Value, part: Node) -> Value:
        """See `Lanes`."""
        return _product(factor, self.evaluate(part), total)

    def plus_distance(self, total: Value | None, factor: Value) -> Value:
        """See `Lanes`."""
        return _product(factor, self._frame.distance(self._column), total)


class TwoColumns:
    """A column and the next one."""

    def __init__(self, frame: Frame, row: int, column: int) -> None:
        self._frame, self.row, self._column = frame, row, column

    def put_score(self, value: Value) -> None:
        """See `Lanes`."""
        self._frame.put_pair(self.row, self._column, value)

    def evaluate(self, node: Node) -> Any:
        """See `Lanes`."""
        return self._frame.evaluate_pair(node, self.row, self._column)

    def spread(self, of_row: Value) -> Value:
        """See `Lanes`."""
        # once for a tile: kept with the number, so that no other one has its identity
        of_tile = ("both", id(of_row))
        return self._frame.shared(of_tile, EVERYWHERE, lambda: (of_row, packed.both(of_row)))[1]

    def plus_product(self, total: Value | None, factor: Value, part: Node) -> Value:
        """See `Lanes`."""
        if not self._frame.modifies(part):
            return _product(packed.both(factor), self.evaluate(part), total)
        parts, sums = (
            (None, None) if pair is None else packed.values(pair)
            for pair in (self.evaluate(part), total)
        )
        return packed.pair(*[_product(factor, p, s) for p, s in zip(parts, sums, strict=True)])

    def plus_distance(self, total: Value | None, factor: Value) -> Value:
        """See `Lanes`."""
        distance = packed.both(self._frame.distance(self._column))
        return _product(packed.both(factor), distance, total)


def _product(factor: Value, value: Value, addend: Value | None) -> Value:
    return arith.mulf(factor, value) if addend is None else make.fma(factor, value, addend)
