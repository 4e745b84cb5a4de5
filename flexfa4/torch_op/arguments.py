"""A call as what a registered op can take, and back.

Graphs are text, which any tool of torch's can store and compare; what they capture is lists of
tensors and ints, and one tensor of floats (a list of floats would make ``torch.compile`` compile
anew for each value).  Texts are read once each.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import torch

from flexfa4.checks import checked_scale
from flexfa4.frontend.binding import BoundGraph
from flexfa4.frontend.ir import F32, I32, Graph
from flexfa4.frontend.places import of_text
from flexfa4.frontend.text.printing import parse_graph, to_text
from flexfa4.torch_op.context import untraced

SCHEMA: Final = (
    "Tensor query, Tensor key, Tensor value, Tensor? sink, Tensor? kinds, Tensor[] tensors,"
    " SymInt[] ints, Tensor? floats, str score, str mask, float? scale, SymInt[] block_size,"
    " SymInt[] made_for, SymInt? scores_at_once, str backend, SymInt[] tile, float? tau,"
    " float? emulated, bool deterministic"
)


class Arguments(NamedTuple):
    """The arguments of ``flexfa4::attention``.

    Attributes:
        query, key, value, sink: those of `flexfa4.attention`.
        kinds: the `tables` of a block mask that was made in the same graph; None where the op finds
            the blocks by the mask and its captures, once for each of these.
        tensors: what the score mod captures, then what the mask does, each in the order in which
            its text declares it.
        ints: captured ints, likewise.
        floats: captured floats, likewise: fp64, on the CPU; one more in front is the scale.  None
            where there are none.
        score, mask: texts, empty where there is no score mod or no mask.
        scale: None for ``1/sqrt(D)``, or where it is the first of `floats`.
        block_size: queries and keys of a block.
        made_for: batch, heads, q_len and kv_len that a block mask was made for, counts of 1 where
            it is the same for all; empty for a mask that is a function.
        scores_at_once: see `flexfa4.Options`.
        backend: see `flexfa4.attention`.
        tile: rows, keys and stages of `flexfa4.Options`, 0 where none is chosen; empty for none.
        tau: see `flexfa4.Options`.
        emulated: see `flexfa4.Options.emulated_exponentials`.
        deterministic: see `flexfa4.attention`.
    """

    query: Any
    key: Any
    value: Any
    sink: Any
    kinds: Any
    tensors: Any
    ints: Any
    floats: Any
    score: Any
    mask: Any
    scale: Any
    block_size: Any
    made_for: Any
    scores_at_once: Any
    backend: Any
    tile: Any
    tau: Any
    emulated: Any
    deterministic: Any

    def partition(self) -> tuple[Arguments, tuple[torch.Tensor | None, ...]]:
        """Return the arguments without their tensors, and these: autograd keeps them apart."""
        rest = self._replace(**dict.fromkeys(_TENSORS), tensors=None)
        return rest, (*[getattr(self, name) for name in _TENSORS], *self.tensors)

    def combine(self, tensors: Sequence[Any]) -> Arguments:
        """Return the arguments with tensors, or stand-ins for them, in the order of `partition`."""
        single, captured = tensors[: len(_TENSORS)], tensors[len(_TENSORS) :]
        return self._replace(**dict(zip(_TENSORS, single, strict=True)), tensors=list(captured))


_TENSORS: Final = ("query", "key", "value", "sink", "kinds", "floats")  # beside `tensors`
EMPTY: Final = Arguments(**dict.fromkeys(Arguments._fields))
LEADING: Final = 4  # query, key, value and sink come before the captured tensors


class Captured(NamedTuple):
    """A mod as text, with what it captures in the order in which the text declares it."""

    text: str = ""
    tensors: Sequence[torch.Tensor] = ()
    ints: Sequence[int] = ()
    floats: Sequence[float] = ()


NOTHING: Final = Captured()


@functools.lru_cache(maxsize=1024)
def text_of(graph: Graph) -> str:
    """Return the text of a graph."""
    return to_text(graph)


@functools.lru_cache(maxsize=1024)
def graph_of(text: str) -> Graph:
    """Return the graph of a text that `text_of` or a tape gave, which is simplified already."""
    return parse_graph(text).graph


def captured(bound: BoundGraph | None) -> Captured:
    """Return a bound graph as text with its captures."""
    if bound is None:
        return NOTHING
    ints, floats = split(bound.graph, bound.scalars)
    text = text_of(bound.graph)
    of_text(text).add(bound.places)
    return Captured(text, bound.tensors, ints, floats)


def split(graph: Graph, scalars: Iterable[Any]) -> tuple[list[int], list[float]]:
    """Return the ints and the floats of a graph's scalars."""
    pairs = list(zip(graph.scalars, scalars, strict=True))
    return [v for s, v in pairs if s.dtype is I32], [v for s, v in pairs if s.dtype is F32]


def float_tensor(floats: Sequence[float]) -> torch.Tensor | None:
    """Return floats as an op takes them.

    Dynamo's symbolic floats stay symbolic only as factors of tensors: everything else that takes
    one makes it a constant, and another value compiles anew.
    """
    if len(floats) == 0:
        return None
    if torch.compiler.is_dynamo_compiling():
        one = torch.ones((), dtype=torch.float64, device="cpu")
        return torch.stack([one * number for number in floats])
    return _constant(floats)


@untraced
def _constant(floats: Sequence[float]) -> torch.Tensor:
    return torch.tensor(floats, dtype=torch.float64, device="cpu")


# ---- back ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Call:
    """What the arguments of an op say.

    Attributes:
        score, mask: graphs with their captures, or None.
        scale: factor of the scores.
    """

    score: BoundGraph | None
    mask: BoundGraph | None
    scale: float


def decode(a: Arguments) -> Call:
    """Return what the arguments of an op say; they hold real tensors.

    Raises:
        ArgumentError: the scale is not finite.
    """
    reader = _Reader(list(a.tensors), list(a.ints), [] if a.floats is None else a.floats.tolist())
    texts = (a.score, a.mask)
    count = sum(s.dtype is F32 for text in texts if text for s in graph_of(text).scalars)
    scale = a.scale
    if len(reader.floats) > count:
        scale = reader.floats.pop(0)
    score, mask = (reader.bind(text) if text else None for text in texts)
    return Call(score, mask, checked_scale(scale, a.query.shape[3]))


@dataclass
class _Reader:
    """What is left of the captures of an op."""

    tensors: list[torch.Tensor]
    ints: list[int]
    floats: list[float]

    def bind(self, text: str) -> BoundGraph:
        """Return the graph of a text with the next captures."""
        graph = graph_of(text)
        tensors = tuple([self.tensors.pop(0) for _ in graph.buffers])
        scalars = [(self.ints if s.dtype is I32 else self.floats).pop(0) for s in graph.scalars]
        return BoundGraph(graph, tensors, tuple(scalars), of_text(text))


def bind(text: str, tensors: Any, ints: Any, floats: torch.Tensor | None) -> BoundGraph:
    """Return the graph of a text with its captures, given as an op takes them."""
    reader = _Reader(list(tensors), list(ints), [] if floats is None else floats.tolist())
    return reader.bind(text)
