"""Tables of masks whose captured values change, for `test_changes` and `test_objects`.

A case makes a mask and a change of one value that the mask reads; the fixtures `follows` and
`refuses` say what must come of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Mask = Callable[..., Any]
Case = Callable[[], tuple[Mask, Callable[[], object]]]


def case(table: dict[str, Case]) -> Callable[[Case], Case]:
    """Return a decorator that adds a case to a table under its name in words."""

    def add(make: Case) -> Case:
        table[make.__name__.replace("_", " ")] = make
        return make

    return add


def reads(compute: Callable[[], Any], change: Callable[[], object]) -> Any:
    """Return a window as wide as what `compute` returns, and the change."""
    return lambda b, h, q, kv: q - kv < compute(), change
