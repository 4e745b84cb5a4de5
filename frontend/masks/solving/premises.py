"""What a closed form rests on: facts about the values of a call that the predicate does not tell.

Each is checked for the values of a call (`solved`) and said in words (`in_words`).  One more
goes without saying: that no integer of the mask or of the form leaves 64 bits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

from flexfa4.frontend.ir import Buffer, Node
from flexfa4.frontend.value_runs import Number


@dataclass(frozen=True)
class Bounded:
    """A node's values, over the index space, are from `lo` to `hi` (inclusive), and not NaN."""

    node: Node
    lo: float = -math.inf
    hi: float = math.inf


@dataclass(frozen=True)
class Ascending:
    """The elements of a captured tensor ascend along an axis; neighbours may be equal."""

    buffer: Buffer
    axis: int


@dataclass(frozen=True)
class Grouped:
    """Equal elements of a captured tensor stand together along an axis.

    Attributes:
        value: only elements of this value need to; None: those of each.
    """

    buffer: Buffer
    axis: int
    value: Number | None


Premise: TypeAlias = "Bounded | Ascending | Grouped"
