"""Captured tensors without elements, of which a kernel could read no other element instead.

Kernels clamp indices that leave a captured tensor, and so do not look.  Where a tensor has nothing
to clamp to, every read is the error that the CPU backend raises for it; it is raised here, once for
a form of calls, by computing one score as that backend does.

What this module deliberately does not do: look at indices into tensors that have elements.
"""

from __future__ import annotations

import torch

from flexfa4.frontend.binding import BoundGraph
from flexfa4.frontend.evaluate import Program, Values
from flexfa4.frontend.ir import topological
from flexfa4.frontend.lanes import Lanes
from flexfa4.frontend.masks.structure import MaskBlocks
from flexfa4.frontend.sizes import Sizes


def check_that_captures_have_elements(
    score: BoundGraph | None, blocks: MaskBlocks | None, sizes: Sizes
) -> None:
    """Refuse calls whose scores would be read from a captured tensor without elements.

    Args:
        score: the score mod; None for none.
        blocks: the mask; None for none.
        sizes: of the call, none of them 0.

    Raises:
        OutOfRangeError: such a tensor is read for a visible score.
    """
    if score is None or all(tensor.numel() for tensor in score.tensors):
        return
    if blocks is not None and not blocks.density:
        return
    tensors = tuple(tensor.detach().cpu() for tensor in score.tensors)
    empty = {b for b, t in zip(score.graph.buffers, tensors, strict=True) if not t.numel()}
    loads = (node for node in topological(score.graph.root) if node.op == "load")
    values = Values.of(
        BoundGraph(score.graph, tensors, score.scalars),
        sizes,
        device=torch.device("cpu"),
        unproved=frozenset(load for load in loads if load.attr in empty),
    )
    first = Lanes((0, 1), (0, 1), (0, 1), (0, 1))
    Program((score.graph.root,)).run(values, first, torch.zeros(first.shape))
