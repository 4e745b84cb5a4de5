"""Where in the user's source a graph reads its captured tensors, for messages.

Kept beside the graph and not in it: two reads on different lines are the same node.  Noted when a
load is made, and looked up only when an error about it is to be raised, since the passes may have
rewritten its indices.  Does not find places itself (`tracing.locate`, `text.syntax`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeAlias

from flexfa4.errors import OutOfRangeError, Where
from flexfa4.frontend.ir import Node

if TYPE_CHECKING:
    from flexfa4.frontend.binding import BoundGraph

Place: TypeAlias = Callable[[], Where | None]
"""Gives a place in the user's source, None where the source is gone."""


class Places:
    """The places of a graph's loads.

    Args:
        loads: the loads as they were made, before the passes, and their places.
    """

    def __init__(self, loads: Mapping[Node, Place] = MappingProxyType({})) -> None:
        self._loads = loads

    def where(self, load: Node) -> Where | None:
        """Return where a load of the finished graph is written, None if that is not known."""
        from flexfa4.frontend.pipeline import PASSES

        for made, place in self._loads.items():
            node = made
            for step in PASSES:
                node = step.run(node)
            if load in (made, node):
                return place()
        of_buffer = [p for made, p in self._loads.items() if made.attr.name == load.attr.name]
        return of_buffer[0]() if len(of_buffer) == 1 else None


NOWHERE: Final = Places()


def located(error: OutOfRangeError, bound: BoundGraph | None) -> OutOfRangeError:
    """Return an error about a load with the place where the mod reads it, if that is known.

    Args:
        error: what was raised.
        bound: the mod that ran, None for none.
    """
    where = None
    if bound is not None and error.where is None and error.load is not None:
        where = bound.places.where(error.load)
    return error if where is None else type(error)(where=where, **error.fields)
