"""Tensor maps whose boxes end where a sequence does, although others lie behind it.

Tensor copies leave out what lies outside of the tensor, and know nothing of the sequences that lie
one behind the other in it.  So the axis of positions is described twice, with one stride::

    position      as many as a box has
    end           0 to all positions

and the address is moved back by a box.  A box whose first ``there`` positions belong to the
sequence is copied from position ``box - there`` of the one axis, and ``begin + there`` of the
other: together they are `begin` places behind the tensor's first element, and of the box just
`there` positions lie inside of the first axis.  What is not there is read as zeros, and not
written.  No address before the tensor is touched, since both coordinates are at least a box
together.

Written once for hosts and kernels (`arithmetic`).
"""

from __future__ import annotations

from typing import Final

from flexfa4.primitives.arithmetic import Arithmetic, Value

_UNIT: Final = 16  # bytes: of what a stride is a multiple


def coordinates(
    begin: Value, length: Value, first: Value, box: int, arithmetic: Arithmetic
) -> tuple[Value, Value]:
    """Return where a box is copied from or to: along positions, and along ends.

    Args:
        begin: where the sequence begins.
        length: its length.
        first: the first position of the box, in the sequence; it may lie behind its end.
        box: positions of the box.
        arithmetic: what computes.
    """
    there = arithmetic.clamped(length - first, 0, box)
    return box - there, begin + first + there


def sizes_and_strides(
    sizes: tuple[int, ...], strides: tuple[int, ...], axis: int, box: int
) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Return a tensor whose last axis, of one element, has become that of ends.

    Args:
        sizes: elements along each axis, the contiguous one first.
        strides: bytes, of axes 1 and up.
        axis: of positions.
        box: positions of a box.

    Returns:
        Sizes, strides, and by how many bytes the address is moved back.
    """
    assert sizes[-1] == 1
    step = strides[axis - 1] if sizes[axis] > 1 else _UNIT  # of one element it could be anything
    ends = sizes[axis] + 1
    made = (*sizes[:axis], box, *sizes[axis + 1 : -1], ends)
    return made, (*strides[: axis - 1], step, *strides[axis:-1], step), box * step
