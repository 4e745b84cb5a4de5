"""Reads of captured tensors: addresses that are computed where they vary least, and wide loads.

An offset is summed in parts: of the indices that are the same for the tile, for the row, and the
others.  Where the indices are linear in kv, the address of a column is that of the thread's first
column and a distance, a number in the instruction itself if the elements follow each other; then
neighbouring columns are read at once where the address is known to be aligned.

No lane reads beyond its tensor, visible or not: positions are cut off at the lengths before they
get here (`evaluator`), and an index that is not proved to be in range is clamped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cutlass._mlir.dialects import arith

from flexfa4.frontend.ir import Node
from flexfa4.kernels.emit import builders as make
from flexfa4.kernels.emit.access import Access
from flexfa4.kernels.emit.builders import Machine, Value, constant
from flexfa4.kernels.emit.captures import BufferPlan
from flexfa4.kernels.emit.places import EVERYWHERE, ORIGIN, Place

if TYPE_CHECKING:
    from flexfa4.kernels.emit.evaluator import Frame

_WIDEST: Final = 16  # bytes


@dataclass(frozen=True)
class Tensor:
    """A captured tensor as a kernel sees it: values of its parameters.

    Attributes:
        plan: what is known about it.
        pointer: i64, the address of its first element.
        sizes, strides: by axis, as far as they are parameters; i32 or i64, as `plan` says.
    """

    plan: BufferPlan
    pointer: Value
    sizes: dict[int, Value]
    strides: dict[int, Value]

    @property
    def whole(self) -> Machine:
        """The type of offsets, in elements."""
        return "i32" if self.plan.narrow else "i64"


def read(frame: Frame, made: Access, tensor: Tensor, place: Place) -> None:
    """Read what a load gives at a place, and what is read along with it; keep it in the frame."""
    _Reading(frame, made, tensor).read(place)


def address(frame: Frame, made: Access, tensor: Tensor, place: Place) -> Value:
    """Return the address that a load of one element reads at a place, i64."""
    return _Reading(frame, made, tensor).address(place)


@dataclass(frozen=True)
class _Reading:
    """One load in one frame.

    Attributes:
        frame: where indices are evaluated, and what is read is kept.
        made: the load.
        tensor: what it reads.
    """

    frame: Frame
    made: Access
    tensor: Tensor

    @property
    def load(self) -> Node:
        """The node."""
        return self.made.load

    @property
    def size(self) -> int:
        """The bytes of an element."""
        return make.nbytes(self.tensor.plan.storage)

    @property
    def at_places_of_others(self) -> bool:
        """Whether rows share what is read, at places that need not exist."""
        return self.made.diagonal and self.frame.shares_rows

    def read(self, place: Place) -> None:
        """Read at a place."""
        if self.load.length is not None:
            self.frame.keep(self.load, place, self._vector(place))
            return
        places = [place] if self._is_first(place) else self._together(place)
        address = self.address(places[0])
        elements = make.elements(address, self.tensor.plan.storage, len(places))
        for one, element in zip(places, elements, strict=True):
            self.frame.keep(self.load, one, self._converted(element))

    def _is_first(self, place: Place) -> bool:
        """Whether a place has an address of its own, and not that of another column, moved."""
        return place.offset in (None, ORIGIN) or not self.frame.steady(self.made)

    def address(self, place: Place) -> Value:
        """Return the address of the element that is read at a place."""
        return self._address(place, None) if self._is_first(place) else self._stepped(place)

    def _converted(self, element: Value) -> Value:
        return make.loaded(element, self.tensor.plan.storage, self.frame.machine(self.load))

    def _together(self, place: Place) -> list[Place]:
        """Return the places that are read by one load: a power of two of adjacent, aligned ones."""
        count, distance = 1, self.made.distance
        if self.tensor.plan.unit_stride and distance is not None:
            count = min(_WIDEST // self.size, self.tensor.plan.aligned, self.frame.columns.multiple)
        while count > 1 and place.offset is not None and distance is not None:
            group = self.frame.columns.aligned_group(place.offset, count, distance)
            if group is not None:
                return [place._replace(offset=offset) for offset in group]
            count //= 2
        return [place]

    # ---- addresses -------------------------------------------------------------------------------

    def _stepped(self, place: Place) -> Value:
        """Return the address at a column, from that at the thread's first column."""
        assert self.made.steps is not None and place.offset is not None
        origin = place._replace(offset=ORIGIN)
        base = self.frame.shared(
            ("address", self.load), origin, lambda: self._address(origin, None)
        )
        if not place.offset:
            return base
        steps = self.made.steps
        strides = {axis: self._stride(axis) for axis in steps}
        if all(isinstance(stride, int) for stride in strides.values()):
            step = sum(steps[axis] * stride for axis, stride in strides.items())
            return arith.addi(base, constant("i64", step * place.offset))

        def moving() -> Value:
            total = constant("i64", 0)
            for axis, stride in strides.items():
                by = make.unwrap(stride, self.tensor.whole)
                by = arith.muli(by, constant(self.tensor.whole, steps[axis]))
                total = arith.addi(total, make.resized(by, "i64"))
            return total

        by = self.frame.shared(("step", self.load), EVERYWHERE, moving)
        return arith.addi(base, arith.muli(by, constant("i64", place.offset)))

    def _address(self, place: Place, element: int | None) -> Value:
        """Return an address: moved by the indices that all columns share, then by the others.

        Args:
            place: where.
            element: of a vector load, which.
        """
        indices = dict(enumerate(self.load.args))
        fixed = [
            axis
            for axis, index in indices.items()
            if index.length is None and "column" not in self.frame.axes(index)
        ]
        rows = any("row" in self.frame.axes(indices[axis]) for axis in fixed)
        own = Place(place.row if rows else None, None)
        base = self.frame.shared(
            ("base", self.load), own, lambda: self._moved(self.tensor.pointer, fixed, own, None)
        )
        others = [axis for axis in indices if axis not in fixed]
        return self._moved(base, others, place, element)

    def _moved(
        self, address: Value, axes: Sequence[int], place: Place, element: int | None
    ) -> Value:
        """Return an address moved by some indices."""
        inside = place._replace(inside=place.inside or not self.at_places_of_others)
        for axis in axes:
            node = self.load.args[axis]
            index = self.frame.value(node, inside)
            if node.length is not None:
                assert element is not None
                index = index[element]
            index = self._index(axis, index)
            wide = self._wide_stride(axis) if "column" in self.frame.axes(node) else None
            address = make.moved(address, index, self._stride(axis), wide)
        return address

    def _wide_stride(self, axis: int) -> Value:
        """Return the stride of an axis in bytes as i64: once for all columns."""
        stride = self._stride(axis)

        def compute() -> Value:
            return constant("i64", stride) if isinstance(stride, int) else make.extended(stride)

        return self.frame.shared(("wide stride", self.load.attr, axis), EVERYWHERE, compute)

    def _stride(self, axis: int) -> int | Value:
        """Return the stride of an axis in bytes: a number, or a value of the type of offsets."""
        if axis not in self.tensor.strides:
            return self.size
        stride, what = self.tensor.strides[axis], ("stride", self.load.attr, axis)
        return self.frame.shared(
            what, EVERYWHERE, lambda: arith.muli(stride, constant(self.tensor.whole, self.size))
        )

    def _index(self, axis: int, index: Value) -> Value:
        """Return an index counted from the start, within the tensor, in the type of its offsets.

        As unsigned numbers, negative indices are the greatest: of ``i`` and ``i + size`` the lesser
        one counts from the start, and the lesser of that and the last index exists.
        """
        # valid indices fit the type of offsets; others only have to be clamped
        kind, known, node = self.tensor.whole, self.made.known, self.load.args[axis]
        index = make.resized(index, kind)
        if not known.from_start[axis] and self.frame.interval(node).lo < 0:
            index = arith.minui(index, arith.addi(index, self.tensor.sizes[axis]))
        if not known.in_range or (self.at_places_of_others and self.made.along in node.depends):
            last = self.frame.shared(
                ("last", self.load.attr, axis), EVERYWHERE,
                lambda: arith.subi(self.tensor.sizes[axis], constant(kind, 1)),
            )  # fmt: skip
            index = arith.minui(index, last)
        return index

    # ---- vectors ---------------------------------------------------------------------------------

    def _vector(self, place: Place) -> list[Value]:
        """Read a vector: by wide loads where it lies along the last axis, aligned."""
        plan, length = self.tensor.plan, self.load.length
        assert length is not None
        vectors = [index for index in self.load.args if index.length is not None]
        whole = plan.unit_stride and len(vectors) == 1 and self.load.args[-1].op == "iota"
        count = min(_WIDEST // self.size, plan.aligned) if whole else 1
        while length % count:
            count //= 2
        values: list[Value] = []
        for element in range(0, length, count):
            values += make.elements(self._address(place, element), plan.storage, count)
        return [self._converted(value) for value in values]
