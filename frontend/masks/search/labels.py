"""Numbers for what a mask only compares for equality: equal where the captured numbers are.

``ids[q] == ids[kv]`` does not ask how large ids are.  Zone maps do: a block where document 7 ends
and document 90 begins may hold any id between.  So for bounds, ids are numbered by where they
appear along the sequence: neighbours get numbers that are close, and documents in any order have
ranges as tight as sorted ones.  Where an id appears again later, such as that of padding between
documents, a second numbering, by last appearance, is compared as well: either may tell two blocks
apart.

The rewritten mask equals the given one on every lane; it is made for `boxes` and never evaluated.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Final

import torch

from flexfa4.frontend.evaluate import Values
from flexfa4.frontend.ir import I32, Buffer, Node, load, substitute, topological, with_args
from flexfa4.frontend.ops import apply
from flexfa4.frontend.value_runs import value_runs

# Ids that last for fewer elements than this on average are left as they are: no numbers make ranges
# of them tight.
_LEAST_RUN: Final = 4


def labelled(root: Node, values: Values) -> tuple[Node, Values]:
    """Return a mask with ids that are compared for equality replaced by labels.

    Args:
        root: the mask.
        values: its captures and symbols; loads are in range.

    Returns:
        An equal mask, and values that hold the labels too.  Both are as given where no ids are
        compared, or labels would be no better.
    """
    compared: dict[Node, Node] = {}
    tensors: dict[Buffer, torch.Tensor] = {}
    for node in topological(root):
        pair = _Pair.of(node, values) if node.op in ("eq", "ne") else None
        found = [] if pair is None else pair.labels()
        if pair is None or not found:
            continue
        equal = [apply("eq", *pair.loads(labels, tensors)) for labels in found]
        both = equal[0] if len(equal) == 1 else apply("and", *equal)
        compared[node] = both if node.op == "eq" else apply("not", both)
    if not compared:
        return root, values
    new = substitute(root, lambda node, args: compared.get(node) or with_args(node, args))
    return new, replace(values, tensors={**values.tensors, **tensors})


@dataclass(frozen=True, eq=False)
class _Pair:
    """Two loads of integers that are compared, alike but for the index along one dimension.

    Attributes:
        nodes: the loads.
        tensors: what they read.
        along: the dimension.
    """

    nodes: tuple[Node, Node]
    tensors: tuple[torch.Tensor, torch.Tensor]
    along: int

    @classmethod
    def of(cls, node: Node, values: Values) -> _Pair | None:
        """Return the operands of a comparison; None where they are no such loads."""
        x, y = node.args
        if not (x.op == y.op == "load" and x.dtype is I32 and len(x.args) == len(y.args)):
            return None
        differ = [d for d, (i, j) in enumerate(zip(x.args, y.args, strict=True)) if i is not j]
        if len(differ) != 1:
            return None
        a, b = values.tensors[x.attr], values.tensors[y.attr]
        others = [[n for d, n in enumerate(t.shape) if d != differ[0]] for t in (a, b)]
        return cls((x, y), (a, b), differ[0]) if others[0] == others[1] else None

    def labels(self) -> list[tuple[torch.Tensor, ...]]:
        """Return one labelling or two, each as labels of each tensor; none if they are no use."""
        parts = self.tensors[: 1 if self.tensors[0] is self.tensors[1] else 2]
        lines = [t.detach().movedim(self.along, -1).to(torch.int64) for t in parts]
        if all(_ascends(line) for line in lines):
            return []
        whole = torch.cat(lines, -1)
        ends = [0, *itertools.accumulate(line.shape[-1] for line in lines)]
        return [
            tuple(
                labels.view(whole.shape)[..., start:stop].movedim(-1, self.along)
                for start, stop in itertools.pairwise(ends)
            )
            for labels in _numbered(whole.reshape(-1, whole.shape[-1]))
        ]

    def loads(
        self, labels: tuple[torch.Tensor, ...], tensors: dict[Buffer, torch.Tensor]
    ) -> list[Node]:
        """Return the two loads, of labels, which are added to `tensors`."""
        buffers = []
        for of_one in labels:
            buffers.append(Buffer(f"labels {len(tensors)}", I32, (None,) * of_one.dim()))
            tensors[buffers[-1]] = of_one
        return [load(buffers[i], self.nodes[i].args) for i in (0, -1)]


def _ascends(ids: torch.Tensor) -> bool:
    """Whether ids grow along every line."""
    return bool((ids[..., 1:] >= ids[..., :-1]).all())


def _numbered(ids: torch.Tensor) -> list[torch.Tensor]:
    """Return numbers of the ids of each line, by their first and by their last appearance.

    Args:
        ids: int64 ``(lines, n)``.

    Returns:
        int64 ``(lines * n,)`` for each numbering: one where every id appears in one stretch, for
        both are the same then; none where ids change too often.
    """
    runs = value_runs(ids, 1)
    count = len(runs.values)
    if count * _LEAST_RUN > ids.numel():
        return []
    _, value = torch.unique(runs.values, return_inverse=True)
    # the ids of each line count for themselves
    distinct, of = torch.unique(runs.rows * count + value, return_inverse=True)
    found = []
    for which in ("amin", "amax") if len(distinct) < count else ("amin",):
        place = torch.zeros_like(distinct)
        place = place.scatter_reduce(
            0, of, torch.arange(len(of), device=of.device), which, include_self=False
        )
        rank = torch.empty_like(place).scatter_(
            0, place.argsort(), torch.arange(len(place), device=of.device)
        )
        found.append(rank[of].repeat_interleave(runs.stops - runs.starts))
    return found
