"""Lists that a mask looks for a number in, as tables of which numbers are in them.

``(selected[q // 64] == kv // 64).any()`` compares with every entry of a list, and a range of such
lists may hold any number between the least and the greatest.  A table ``member[q // 64, kv // 64]``
says the same, is read once, and its zone maps are exact.

The rewritten mask equals the given one on every lane, so it is bounded and evaluated in its place.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from flexfa4.frontend.analysis.bounds import bound
from flexfa4.frontend.evaluate import Values, is_whole_axis
from flexfa4.frontend.ir import BOOL, I32, Buffer, Node, const, load, substitute, with_args
from flexfa4.frontend.masks.grid import MaskSize
from flexfa4.frontend.masks.limits import table_fits
from flexfa4.frontend.ops import apply


def tabulated(root: Node, values: Values, size: MaskSize) -> tuple[Node, Values]:
    """Return a mask with tables in place of lists.

    Args:
        root: the mask.
        values: its captures and symbols; loads are in range.
        size: its index space.

    Returns:
        An equal mask, and values that hold the tables too; as given where no number is looked for.
    """
    tables: dict[Buffer, torch.Tensor] = {}

    def replaced(node: Node, args: tuple[Node, ...]) -> Node:
        node = with_args(node, args)
        lookup = _Lookup.of(node)
        member = None if lookup is None else lookup.member(values, size, tables)
        if member is None:
            return node
        return member if node.op == "any" else apply("not", member)

    new = substitute(root, replaced)
    if not tables:
        return root, values
    return new, replace(values, tensors={**values.tensors, **tables})


@dataclass(frozen=True, eq=False)
class _Lookup:
    """A number that is looked for in a list: any element is equal, or all are different.

    Attributes:
        lists: the load of all elements of a list.
        axis: the dimension along which they lie.
        number: what is compared with them.
    """

    lists: Node
    axis: int
    number: Node

    @classmethod
    def of(cls, node: Node) -> _Lookup | None:
        """Return what a reduction looks for; None if it is no lookup of an integer."""
        if not node.args or (node.op, node.args[0].op) not in (("any", "eq"), ("all", "ne")):
            return None
        for lists, number in (node.args[0].args, node.args[0].args[::-1]):
            if lists.op != "load" or lists.dtype is not I32 or number.length is not None:
                continue
            axes = [d for d, index in enumerate(lists.args) if index.length is not None]
            if len(axes) == 1 and is_whole_axis(lists, axes[0]):
                return cls(lists, axes[0], number)
        return None

    def member(
        self, values: Values, size: MaskSize, tables: dict[Buffer, torch.Tensor]
    ) -> Node | None:
        """Return the load of a table, which is added; None where the table would be too large."""
        tensor = values.tensors[self.lists.attr]
        if not tensor.numel():
            return None
        lists = tensor.detach().movedim(self.axis, -1).to(torch.int64)
        possible = bound(self.number, size.domain(values).leaf)
        least = max(int(lists.min()), int(possible.lo))
        most = max(least, min(int(lists.max()), int(possible.hi)))
        # one more column on either side stands for all other numbers, which are in no list
        columns = most - least + 3
        if not table_fits(lists[..., 0].numel() * columns, tensor.nbytes):
            return None
        if least - 1 < -(2**63) or most + 1 >= 2**63:
            return None
        table = torch.zeros(*lists.shape[:-1], columns, dtype=torch.bool, device=lists.device)
        table.scatter_(-1, lists.clamp(least - 1, most + 1) - (least - 1), True)
        table[..., [0, -1]] = False
        buffer = Buffer(f"members {len(tables)}", BOOL, (None,) * table.dim())
        tables[buffer] = table
        near = apply("min", apply("max", self.number, const(least - 1)), const(most + 1))
        indices = [index for d, index in enumerate(self.lists.args) if d != self.axis]
        return load(buffer, (*indices, apply("sub", near, const(least - 1))))
