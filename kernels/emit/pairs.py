"""Values of a graph at two neighbouring columns of a row, as pairs (`flexfa4.primitives.packed`).

Of what varies with the column, the nodes whose op has instructions on pairs are computed once for
both columns, and their lanes kept as the values of the single columns; all others are computed
for each column, as everywhere, and joined where a pair is asked for.  Joining and taking apart cost
nothing: it is a matter of which registers are used.

An instruction on pairs has one number in it for both columns.  So what is linear in kv is computed
for the tile's first pair, and for another one by a step that is the same for both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from flexfa4.frontend.ir import Node
from flexfa4.kernels.emit.places import Place
from flexfa4.primitives import packed

if TYPE_CHECKING:
    from flexfa4.kernels.emit.evaluator import Frame


def evaluate(frame: Frame, node: Node, places: Sequence[Place]) -> Any:
    """Return the values of a node at two places as a pair, or a list of pairs for a vector.

    Args:
        frame: where they are asked for.
        node: F32.
        places: of one row, and two columns that follow each other.
    """
    if "column" in frame.axes(node):
        for part in frame.parts(node):
            if frame.on_pairs(part) and _found(frame, part, places) is None:
                made = frame.stepped_pair(part, places[0])
                if made is None:
                    operands = [_operand(frame, a, places) for a in part.args]
                    made = frame.applied(part, operands, often=True)
                keep(frame, part, places, made)
    return _operand(frame, node, places)


def keep(frame: Frame, node: Node, places: Sequence[Place], value: Any) -> None:
    """Keep the values of a node at two places, as a pair and for each of them."""
    frame.keep(_key(node), frame.first(node, places[0]), value)
    vector = isinstance(value, list)
    lanes = [packed.values(pair) for pair in (value if vector else [value])]
    for i, place in enumerate(places):
        own = [lane[i] for lane in lanes]
        frame.keep(node, frame.first(node, place), own if vector else own[0])


def _key(node: Node) -> tuple[str, Node]:
    return "pair", node


def _found(frame: Frame, node: Node, places: Sequence[Place]) -> Any:
    return frame.find(_key(node), frame.first(node, places[0]))


def _operand(frame: Frame, node: Node, places: Sequence[Place]) -> Any:
    """Return values as a pair, from those of the columns if it is not there."""
    found = _found(frame, node, places)
    if found is not None:
        return found
    first, second = (frame.value(node, place) for place in places)
    if isinstance(first, list):
        return [packed.pair(a, b) for a, b in zip(first, second, strict=True)]
    return packed.pair(first, second)
