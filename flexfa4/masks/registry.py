"""The masks whose blocks are known, by what they are made of: for ops, which get no block mask.

An op of torch's graph gets the text of a mask and its captured values.  Where these belong to a
block mask that is in use, its blocks are found here, so they are analysed once however many graphs
the block mask goes through.  An entry lives as long as its blocks do.  Finds no blocks itself.
"""

from __future__ import annotations

from typing import Any, Final
from weakref import WeakValueDictionary

from flexfa4.frontend.binding import BoundGraph
from flexfa4.frontend.masks.structure import MaskBlocks
from flexfa4.masks.snapshot import number_key
from flexfa4.masks.spec import Spec, reads

_KNOWN: Final[WeakValueDictionary[Any, MaskBlocks]] = WeakValueDictionary()


def _key(bound: BoundGraph, spec: Spec) -> Any:
    """Return what decides the blocks of a mask whose tensors nobody changes.

    Tensors are told by their memory, which is taken as long as the entry lives: on the way through
    a graph, other objects come to stand for it.
    """
    heads = spec.sizes.heads if "num_heads" in reads(bound.graph) else None
    tensors = [(t.data_ptr(), t.shape, t.stride(), t.dtype, t.device) for t in bound.tensors]
    numbers = map(number_key, bound.scalars)
    size = spec.space(bound.graph)
    return (bound.graph, tuple(numbers), tuple(tensors), size, heads, spec.block_size)


def register(bound: BoundGraph, spec: Spec, blocks: MaskBlocks) -> None:
    """Note the blocks of a mask.

    Args:
        bound: the mask, with the tensors of `blocks`.
        spec: what the blocks were made for.
        blocks: the blocks.
    """
    _KNOWN[_key(bound, spec)] = blocks


def known(bound: BoundGraph, spec: Spec) -> MaskBlocks | None:
    """Return the blocks of a mask if a block mask that is in use has them."""
    return _KNOWN.get(_key(bound, spec))
