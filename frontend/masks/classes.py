"""Classes: batches and heads that share one mask, so that its structure is found once for them.

``b`` and ``h`` enter a mask through what is computed from them alone (``h // 4``, ``lens[b]``) and
through the slices of captured tensors that they pick (``ids[b, q]``).  Where all of these are equal
for two pairs of batch and head, and slices are compared by content, the masks are equal.

Nothing is evaluated for queries and keys: the work is that of reading the captured tensors.  Masks
that are equal for another reason (``(q + b) % 2`` for even b) stay in classes of their own.

There is little to know for each batch and head, so it is put together on the CPU: a device is asked
for what captured tensors hold, and only slices are compared on it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import torch

from flexfa4.frontend.evaluate import Program, Values
from flexfa4.frontend.ir import Buffer, Graph, Node, topological
from flexfa4.frontend.lanes import Lanes
from flexfa4.frontend.masks.grid import MaskSize

# Elements of slices that are compared at once: words of 8 bytes take 8 MB.
_CHUNK: Final = 1 << 20
_GOLDEN: Final = 0x9E3779B97F4A7C15 - (1 << 64)  # an odd number without pattern in its bits
_WORDS: Final = (torch.int64, torch.int32, torch.int16, torch.uint8)
_HOST: Final = torch.device("cpu")
_WHICH: Final = frozenset({"b", "h"})


@dataclass(frozen=True, eq=False)
class Classes:
    """Classes of batches and heads with equal masks, numbered in order of first appearance.

    Attributes:
        of: int64 ``(b, h)`` on the CPU: the class of each.
        members: the first batch and head of each class, which stand for it.
    """

    of: torch.Tensor
    members: tuple[tuple[int, int], ...]

    def __len__(self) -> int:
        return len(self.members)

    def of_on(self, device: torch.device) -> torch.Tensor:
        """Return `of` on a device."""
        classes, pairs = len(self.members), self.of.numel()
        if classes < 2:  # made there, without a transfer to wait for
            return torch.zeros(self.of.shape, dtype=torch.int64, device=device)
        if classes == pairs:  # which are numbered as they appear
            return torch.arange(pairs, device=device).view(self.of.shape)
        return self.of.to(device)

    def members_on(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the batch and the head of each of `members`, int64 ``(classes,)``."""
        pairs = torch.tensor(self.members, dtype=torch.int64).view(-1, 2).to(device)
        return pairs[:, 0], pairs[:, 1]


def classes_of(graph: Graph, values: Values, size: MaskSize) -> Classes:
    """Return the classes of a mask.

    Args:
        graph: the mask.
        values: its captures and symbols; loads are in range.
        size: its index space.
    """
    pairs = size.b * size.h
    if pairs == 1 or not (pairs and graph.root.depends & _WHICH):
        of = torch.zeros(size.b, size.h, dtype=torch.int64, device="cpu")
        return Classes(of, ((0, 0),) if pairs else ())
    numbers = torch.zeros(pairs, dtype=torch.int64, device=_HOST)
    for column in _told_apart_by(graph.root, values, size):
        distinct, own = torch.unique(column, return_inverse=True)
        numbers = torch.unique(numbers * len(distinct) + own, return_inverse=True)[1]
    return _in_order(numbers, size)


def _in_order(numbers: torch.Tensor, size: MaskSize) -> Classes:
    """Return classes renumbered by first appearance, from any numbers ``(pairs,)`` 0 ... n-1."""
    members, order = _first_places(numbers, int(numbers.max()) + 1).sort()
    renumbered = torch.empty_like(order)
    renumbered[order] = torch.arange(len(order), device=_HOST)
    return Classes(
        renumbered[numbers].view(size.b, size.h),
        tuple([divmod(member, size.h) for member in members.tolist()]),
    )


def _first_places(numbers: torch.Tensor, count: int) -> torch.Tensor:
    """Return where each of the numbers 0 ... `count` - 1 is first, int64 ``(count,)``; all are."""
    places = torch.arange(len(numbers), device=numbers.device)
    first = places.new_zeros(count)
    return first.scatter_reduce_(0, numbers, places, "amin", include_self=False)


def _told_apart_by(root: Node, values: Values, size: MaskSize) -> Iterator[torch.Tensor]:
    """Yield integers ``(pairs,)``; two pairs that are equal in all of them have equal masks.

    They are on the CPU.
    """
    alone, sliced = _entries(root)
    indices = [i for load in sliced for i in load.args if _picks(i)]
    value = _values_of(tuple(dict.fromkeys((*alone, *indices))), values, size)
    for node in alone:
        yield from _as_words(value[node]).unbind(1)
    for slicing in dict.fromkeys(_Slicing.of(load, values, size) for load in sliced):
        yield slicing.numbers(values.tensors[slicing.buffer], value)


def _values_of(roots: tuple[Node, ...], values: Values, size: MaskSize) -> dict[Node, torch.Tensor]:
    """Return expressions of b and h alone, ``(pairs, 1 or length)`` on the CPU."""
    lanes = Lanes((0, size.b), (0, size.h), (0, 1), (0, 1))
    reading = [r for r in roots if any(node.op == "load" for node in topological(r))]
    others = [r for r in roots if r not in reading]
    found: dict[Node, torch.Tensor] = {}
    for some, device in ((reading, values.device), (others, _HOST)):
        if some:
            evaluated = Program(some).run(replace(values, device=device), lanes)
            for node, value in zip(some, evaluated, strict=True):
                found[node] = _of_pairs(value, node, size).to(_HOST)
    return found


def _picks(index: Node) -> bool:
    """Whether an index is one number for a batch and head."""
    return index.depends <= _WHICH and index.length is None


def _entries(root: Node) -> tuple[list[Node], list[Node]]:
    """Find what brings b and h into a mask.

    Returns:
        The largest expressions of b and h alone; and loads that pick a slice by b or h and read it
        at queries or keys, whose indices of b and h alone are not among the former.
    """
    alone: dict[Node, None] = {}
    sliced: list[Node] = []
    entered = {root}
    for node in reversed(list(topological(root))):  # users before operands
        if node not in entered or not node.depends & _WHICH:
            continue
        if node.depends <= _WHICH:
            alone[node] = None
            continue
        slices = node.op == "load" and any(i.depends and _picks(i) for i in node.args)
        if slices:
            sliced.append(node)
        entered.update(a for a in node.args if not (slices and _picks(a)))
    return list(alone), sliced


def _of_pairs(value: object, node: Node, size: MaskSize) -> torch.Tensor:
    """Return values of an expression of b and h alone as ``(pairs, 1 or length)``."""
    tensor = torch.as_tensor(value)
    if node.length is None:
        tensor = tensor.unsqueeze(-1)
    shape = (size.b, size.h, 1, 1, node.length or 1)
    return tensor.expand(shape).reshape(size.b * size.h, shape[-1])


def _as_words(rows: torch.Tensor) -> torch.Tensor:
    """Return the bits of rows ``(n, k)`` as integers ``(n, m)``, as few and wide as they can be.

    Unlike numbers, bits are equal where NaN and NaN are, and not where 0.0 and -0.0 are.
    """
    bits = rows.contiguous().view(-1).view(torch.uint8)
    length = rows.shape[1] * rows.element_size()
    widest = next(w for w in _WORDS if length % w.itemsize == 0)
    aligned = bits.storage_offset() % widest.itemsize == 0
    return (bits if aligned else bits.clone()).view(widest).view(len(rows), -1)


# ---- slices of captured tensors, by content ------------------------------------------------------


@dataclass(frozen=True)
class _Slicing:
    """How loads cut a captured tensor into slices; loads that do it alike are looked at once.

    Attributes:
        buffer: the tensor.
        extents: how much is read of each dimension.
        picks: the dimensions that b and h pick from, with the index of each.
    """

    buffer: Buffer
    extents: tuple[int, ...]
    picks: tuple[tuple[int, Node], ...]

    @classmethod
    def of(cls, load: Node, values: Values, size: MaskSize) -> _Slicing:
        """Return how a load does it; beyond the index space nothing is read."""
        extents = list(values.tensors[load.attr].shape)
        for d, arg in enumerate(load.args):
            if arg.op == "input" and arg.attr in ("q", "kv"):
                extents[d] = min(extents[d], getattr(size, f"{arg.attr}_len"))
        picks = [(d, index) for d, index in enumerate(load.args) if _picks(index)]
        return cls(load.attr, tuple(extents), tuple(picks))

    def numbers(self, tensor: torch.Tensor, value: dict[Node, torch.Tensor]) -> torch.Tensor:
        """Return a number ``(pairs,)`` for the slice of each pair, the same for equal content.

        Args:
            tensor: the tensor.
            value: the indices, see `_values_of`.
        """
        for d, extent in enumerate(self.extents):
            tensor = tensor.narrow(d, 0, extent)
        picked = [d for d, _ in self.picks]
        leading = tuple([self.extents[d] for d in picked])
        slices = tensor.permute(*picked, *(d for d in range(tensor.dim()) if d not in picked))
        flat = torch.zeros(len(value[self.picks[0][1]]), dtype=torch.int64, device=_HOST)
        for extent, (_, node) in zip(leading, self.picks, strict=True):
            index = value[node][:, 0]
            flat = flat * extent + torch.where(index < 0, index + extent, index)
        which, own = torch.unique(flat, return_inverse=True)
        return _Slices(slices, leading, which).numbers()[own]


@dataclass(frozen=True, eq=False)
class _Slices:
    """Slices of a tensor along its first dimensions.

    Attributes:
        tensor: the tensor.
        leading: sizes of the dimensions that slices are picked from.
        which: int64 ``(n,)``, on the CPU: the slices, by their place among all.
    """

    tensor: torch.Tensor
    leading: tuple[int, ...]
    which: torch.Tensor

    def numbers(self) -> torch.Tensor:
        """Return int64 ``(n,)``, equal for slices of equal content and else different.

        Slices that have the same checksum are compared with one of them; should one turn out to
        differ, which nobody will see, it stays by itself.
        """
        place = torch.arange(len(self.which), device=_HOST)
        if len(place) < 2:
            return place
        distinct, own = torch.unique(self._checksums(), return_inverse=True)
        first = _first_places(own, len(distinct))[own]
        repeated = (first != place).nonzero().squeeze(1)
        if not len(repeated):
            return place
        same = self._equal(repeated, first[repeated])
        return place.scatter(0, repeated[same], first[repeated[same]])

    def _checksums(self) -> torch.Tensor:
        """Return int64 ``(n,)``, equal for equal slices and hardly ever for others."""
        sums = torch.zeros(len(self.which), dtype=torch.int64, device=self.tensor.device)
        for slices, start, words in self._words(self.which):
            place = torch.arange(start, start + words.shape[1], device=words.device)
            weights = (place * 2 + 1) * _GOLDEN
            weights ^= weights >> 32  # else sums of equal steps would meet
            sums[slices] += (words * weights).sum(1)  # weights are int64, so are the products
        return sums.to(_HOST)

    def _equal(self, some: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
        """Return bool ``(m,)``: whether pairs of slices have the same content."""
        equal = torch.ones(len(some), dtype=torch.bool, device=self.tensor.device)
        pairs = zip(self._words(self.which[some]), self._words(self.which[others]), strict=True)
        for (slices, _, words), (_, _, other) in pairs:
            equal[slices] &= (words == other).all(1)
        return equal.to(_HOST)

    def _words(self, which: torch.Tensor) -> Iterator[tuple[slice, int, torch.Tensor]]:
        """Yield the content piece by piece: which slices, from which element, and the bits.

        The bits are those of `_as_words`.
        """
        rest = self.tensor.shape[len(self.leading) :]
        at_once = max(1, _CHUNK // max(1, rest.numel()))
        for begin in range(0, len(which), at_once):
            slices = slice(begin, begin + at_once)
            part = which[slices]
            flat = self._content(part).reshape(len(part), rest.numel())
            for start in range(0, flat.shape[1], _CHUNK):
                yield slices, start, _as_words(flat[:, start : start + _CHUNK])

    def _content(self, which: torch.Tensor) -> torch.Tensor:
        """Return some slices: as they lie if they follow each other, otherwise gathered."""
        first, behind = int(which[0]), int(which[0]) + len(which)
        if len(self.leading) == 1 and which.equal(torch.arange(first, behind, device=_HOST)):
            return self.tensor[first:behind]
        index: list[torch.Tensor] = []
        for extent in reversed(self.leading):  # `torch.unravel_index` would import sympy
            which, place = which // extent, which % extent
            index.insert(0, place)
        if len(place) == 1:
            return self.tensor[tuple(map(int, index))]
        return self.tensor[tuple([place.to(self.tensor.device) for place in index])]
