"""Parts of a block mask: what an index picks, and the mask of what it picked.

A part has indices of its own, from 0; its mask adds where the part begins, and keeps the sizes of
the whole where it reads them::

    q                    q + first_query
    q_len                whole_q_len           (a captured number; num_heads likewise)

What is added is a captured number, so that the parts of a mask, say one for each step of decoding,
are one graph.  Finding the blocks of a part is the business of `block_mask`.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any, Final, NoReturn

from flexfa4.errors import ArgumentError, BlockMaskIndexError, describe
from flexfa4.frontend import ir
from flexfa4.frontend.binding import BoundGraph
from flexfa4.frontend.ir import I32, Graph, Node, Scalar
from flexfa4.frontend.masks.cuts import with_rows_of
from flexfa4.frontend.masks.structure import MaskBlocks
from flexfa4.frontend.ops import apply
from flexfa4.masks.spec import GivenSizes, Spec, integer, reads

_AXES: Final = ("batches", "heads", "queries")
# Input -> name of the captured number that is added to it; symbol of the IR -> what stands for it.
_FIRST: Final = {"b": "first_batch", "h": "first_head", "q": "first_query"}
_WHOLE: Final = {"num_heads": "whole_num_heads", "q_len": "whole_q_len"}
_EVERYTHING: Final = slice(None)


@dataclass(frozen=True)
class Part:
    """Half-open ranges of batches, heads and queries.

    Batch or head is None where the whole's count is None: the mask is the same for all.
    """

    batch: tuple[int, int] | None
    heads: tuple[int, int] | None
    queries: tuple[int, int]

    def found_in(self, whole: MaskBlocks, part: MaskBlocks) -> MaskBlocks:
        """Return the structure of the part, with what follows from that of the whole.

        Args:
            whole: the structure of the whole.
            part: of the part, nothing of which has been found.
        """
        b, h = (0 if taken is None else taken[0] for taken in (self.batch, self.heads))
        of = whole.classes.of  # of one batch or head where the mask does not read it
        b, h = (min(n, count - 1) for n, count in zip((b, h), of.shape, strict=True))
        classes = [int(of[b + i, h + j]) for i, j in part.classes.members]
        return with_rows_of(part, whole, classes, self.queries[0])

    def of(self, whole: Part) -> Part:
        """Return this part of a part as a part of what that is a part of."""

        def moved(ours: Any, theirs: Any) -> Any:
            return ours and tuple([n + theirs[0] for n in ours])

        return Part(
            moved(self.batch, whole.batch),
            moved(self.heads, whole.heads),
            moved(self.queries, whole.queries),
        )


def part_of(index: Any, sizes: GivenSizes) -> Part:
    """Return what an index picks.

    Args:
        index: up to three of int and slice, for batch, head and query.
        sizes: of the block mask.

    Raises:
        ArgumentError: it is no such index.
        BlockMaskIndexError: there is no such batch, head or query, or no head in the part.
    """
    given = index if isinstance(index, tuple) else (index,)
    if len(given) > len(_AXES):
        _refuse(f"{len(given)} indices")
    counts = (sizes.batch, sizes.heads, sizes.q_len)
    picks = (*given, *[_EVERYTHING] * (len(_AXES) - len(given)))
    batch, heads, queries = map(_picked, picks, range(len(_AXES)), counts)
    if heads is not None and heads[0] == heads[1]:
        shown = ":".join("" if end is None else str(end) for end in (picks[1].start, picks[1].stop))
        raise BlockMaskIndexError(
            name="heads", count=sizes.heads, index=shown, expected="slices of at least one head"
        )
    assert queries is not None
    return Part(batch, heads, queries)


def _picked(index: Any, axis: int, count: int | None) -> tuple[int, int] | None:
    """Return the range that an index picks along an axis."""
    if isinstance(index, slice):
        ends = [end if end is None else _index(end) for end in (index.start, index.stop)]
        if index.step not in (None, 1):
            _refuse(f"a slice with a step of {describe(index.step)}")
        if count is None:
            return None
        start, stop, _ = slice(*ends).indices(count)
        return (start, max(start, stop))
    number = _index(index)
    if count is None:
        return None
    if not -count <= number < count:
        allowed = f"indices from {-count} to {count - 1}" if count else "an empty slice"
        raise BlockMaskIndexError(name=_AXES[axis], count=count, index=number, expected=allowed)
    number %= count
    return (number, number + 1)


def _index(value: Any) -> int:
    """Return an integer of any library as Python's."""
    number = integer(value)
    if number is None:
        _refuse(describe(value))
    return number


def _refuse(found: str) -> NoReturn:
    raise ArgumentError(
        name="the index of a block mask",
        found_value=found,
        expected="up to three of int and slice without a step: batch, head, query",
        rewrite="block_mask[batch, head, first:last]",
    )


def bound_part(bound: BoundGraph, spec: Spec, part: Part) -> tuple[BoundGraph, Spec]:
    """Return the mask of a part, and what its block mask is made for.

    Args:
        bound: the mask of the whole, with tensors that nobody changes.
        spec: of the whole.
        part: its ranges.
    """
    sizes = spec.sizes
    ranges = {"b": part.batch, "h": part.heads, "q": part.queries}
    numbers = {_FIRST[name]: r[0] for name, r in ranges.items() if r is not None and r[0]}
    for symbol, count, taken in (
        ("num_heads", sizes.heads, part.heads),
        ("q_len", sizes.q_len, part.queries),
    ):
        if count is not None and taken != (0, count):
            numbers[_WHOLE[symbol]] = count
    picked = replace(
        sizes,
        batch=_length(part.batch),
        heads=_length(part.heads),
        q_len=part.queries[1] - part.queries[0],
    )
    graph, names = _moved(bound.graph, frozenset(numbers))
    scalars = dict(zip(bound.graph.scalars, bound.scalars, strict=True))
    tensors = dict(zip(bound.graph.buffers, bound.tensors, strict=True))
    scalars.update({Scalar(name, I32): numbers[number] for name, number in names})
    return (
        BoundGraph(
            graph,
            tuple([tensors[buffer] for buffer in graph.buffers]),
            tuple([scalars[scalar] for scalar in graph.scalars]),
            bound.places,
        ),
        Spec(picked, spec.block_size),
    )


def _length(picked: tuple[int, int] | None) -> int | None:
    return None if picked is None else picked[1] - picked[0]


@functools.lru_cache(maxsize=256)
def _moved(graph: Graph, numbers: frozenset[str]) -> tuple[Graph, tuple[tuple[str, str], ...]]:
    """Return the graph of a part.

    Args:
        graph: that of the whole.
        numbers: the captured numbers of the part, of those in `_FIRST` and `_WHOLE`.

    Returns:
        The graph, and pairs of the name that a number has in it and the number's own name.
    """
    read = reads(graph)
    replaced: dict[Node, Node] = {}
    names: list[tuple[str, str]] = []
    for table, leaf in ((_FIRST, ir.input_), (_WHOLE, ir.symbol)):
        for name, number in table.items():
            if name in read and number in numbers:
                unused = ir.unused_name(number, graph)
                names.append((unused, number))
                stand_in = ir.scalar(Scalar(unused, I32))
                added = table is _FIRST
                replaced[leaf(name)] = apply("add", leaf(name), stand_in) if added else stand_in

    def replace_(node: Node, args: tuple[Node, ...]) -> Node:
        return replaced[node] if node in replaced else ir.with_args(node, args)

    return ir.make_graph(graph.kind, ir.substitute(graph.root, replace_)), tuple(names)
