"""The forms in which people give mods, as types for type checkers and editors.

The parameters are positional, so a mod may name them as it likes, and their types are open: a mod
gets traced values while it is traced, and may be written for tensors.  Nothing is checked here.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias

from flexfa4.frontend.tracing.trace import Mod


class ScoreFunction(Protocol):
    """A score mod: the new score of a query and a key, from their scaled product."""

    def __call__(self, score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any, /) -> Any:
        """Return the new score, a number."""


class MaskFunction(Protocol):
    """A mask: whether a query attends to a key."""

    def __call__(self, b: Any, h: Any, q_idx: Any, kv_idx: Any, /) -> Any:
        """Return True where the query attends, a bool."""


ScoreLike: TypeAlias = ScoreFunction | Mod | str
"""A score mod as a function, as what `flexfa4.trace` and `parse` return, or as text."""

MaskLike: TypeAlias = MaskFunction | Mod | str
"""A mask in one of these forms."""
