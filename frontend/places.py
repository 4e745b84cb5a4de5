"""Where in the user's source a graph reads its captured tensors, for messages.

Kept beside the graph and not in it: two reads on different lines are the same node.  Noted when a
load is made, and looked up only when an error about it is to be raised, since the passes may have
rewritten its indices.  Does not find places itself (`tracing.locate`, `text.syntax`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, TypeAlias

from flexfa4.errors import Where
from flexfa4.frontend.ir import Node

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


TEXT_FILE: Final = "<text>"  # the file of places in a text mod
NOWHERE: Final = Places()


class SharedPlaces(Places):
    """The places of all mods that have one text, as far as they agree."""

    def __init__(self) -> None:
        self._all: list[Places] = []

    def add(self, places: Places) -> None:
        """Note the places of one more mod."""
        if places is not self and places not in self._all and len(self._all) < _MODS_OF_A_TEXT:
            self._all.append(places)

    def where(self, load: Node) -> Where | None:
        """Return where all of these mods make a load, None where they differ."""
        found = {places.where(load) for places in self._all} - {None}
        return found.pop() if len(found) == 1 else None


_MODS_OF_A_TEXT: Final = 8  # more of them agree on nothing, most likely


@functools.lru_cache(maxsize=1024)
def of_text(text: str) -> SharedPlaces:
    """Return the places of the mods with this text, of which a registered op knows no more.

    To be added to; empty where an exported program was made in another process.
    """
    return SharedPlaces()
