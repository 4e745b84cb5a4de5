"""A graph together with the values that one call gives to its captures.

Deliberately dumb: reading the values is the business of `captures` (functions) and `text` (text).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from flexfa4.frontend.ir import Graph
from flexfa4.frontend.places import NOWHERE, Places


@dataclass(slots=True)  # made on each call: `frozen` would take three times as long
class BoundGraph:
    """A graph and the captured values it runs with; nobody changes one.

    Attributes:
        graph: the simplified graph.
        tensors: one tensor for each of ``graph.buffers``, in that order, with its autograd history.
        scalars: one Python number for each of ``graph.scalars``, in that order.
        places: where the user's source reads the tensors, for messages.
    """

    graph: Graph
    tensors: tuple[torch.Tensor, ...] = ()
    scalars: tuple[int | float, ...] = ()
    places: Places = field(default=NOWHERE, compare=False, repr=False)
