"""Grammars of random Python sources, for tests of random mods and masks."""

from __future__ import annotations

import functools
from collections.abc import Callable

from hypothesis import strategies as st

Text = st.SearchStrategy[str]


def grammar(rule: Callable[[int], Text]) -> Callable[[int], Text]:
    """Make each depth of a rule once, as a strategy that prints as one line."""
    made = functools.cache(rule)

    @st.composite
    def source(draw: st.DrawFn, depth: int) -> str:
        return draw(made(depth))

    return source
