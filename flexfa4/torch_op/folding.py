"""The ops under ``torch.func.vmap``: a mapped axis becomes heads.

With ``V`` the size of the mapped axis, query ``(V, B, H, L, D)`` is folded to ``(B, V*H, L, D)``
and key and value likewise, so that one call of the op does all of them.  Head ``h`` of the folded
call is head ``h % H`` of element ``h // H`` of the axis.  Graphs are rewritten to say so::

    h                    h % H
    num_heads            H                 (a captured int; num_kv_heads likewise)
    table[i, j]          table[h // H, i, j]   where the captured tensor is mapped, too

Heads, not batches: with heads come their own sinks, grouped-query attention stays what it is, and
what a mod does with ``b`` is not touched.  Backward gives each element of the axis a gradient of
its own, also of what was not mapped, by mapping it then.

Knows the arguments of the ops, and rewrites no more than this.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch

from flexfa4.errors import MappedAxisError
from flexfa4.frontend import ir
from flexfa4.frontend.ir import I32, Buffer, Graph, Node, Scalar
from flexfa4.frontend.ops import apply
from flexfa4.frontend.places import of_text
from flexfa4.torch_op.arguments import LEADING, Arguments, graph_of, text_of


def _of_any_size(rule: Callable[..., Any]) -> Callable[..., Any]:
    """Return a rule that takes an axis of size 0, too: no heads are not allowed, one more is."""

    @functools.wraps(rule)
    def padded(info: Any, in_dims: Any, *arguments: Any, run: Callable[..., Any]) -> Any:
        if info.batch_size > 0:
            return rule(info, in_dims, *arguments, run=run)
        more = map(_with_one, arguments, in_dims)
        results, axes = rule(info._replace(batch_size=1), in_dims, *more, run=run)
        none = [x.narrow(axis, 0, 0) for x, axis in zip(results, axes, strict=True)]
        return type(results)(none), axes

    return padded


def _with_one(x: Any, dim: Any) -> Any:
    """Return a tensor with a zero appended along its mapped axis; or a list of them."""
    if isinstance(x, list) and isinstance(dim, (list, tuple)):
        return list(map(_with_one, x, dim))
    if dim is None or not isinstance(x, torch.Tensor):
        return x
    shape = list(x.shape)
    shape[dim] = 1
    return torch.cat([x, x.new_zeros(shape)], dim)


@_of_any_size
def attention(info: Any, in_dims: Any, *arguments: Any, run: Callable[..., Any]) -> Any:
    """Call `run`, which is ``flexfa4::attention`` or stands for it, once for a mapped axis."""
    axis = _Axis(info.batch_size)
    folded = axis.arguments(Arguments(*arguments), Arguments(*in_dims))
    out, lse = run(*folded)
    return (axis.unfold(out), axis.unfold(lse)), (1, 1)


@_of_any_size
def attention_backward(info: Any, in_dims: Any, *arguments: Any, run: Callable[..., Any]) -> Any:
    """Call `run`, ``flexfa4::attention_backward`` or its stand-in, once for a mapped axis."""
    axis = _Axis(info.batch_size)
    grad_out, grad_lse, out, lse, wanted, *rest = arguments
    dims = in_dims[:4]
    results = [
        axis.fold(x, dim) for x, dim in zip((grad_out, grad_lse, out, lse), dims, strict=True)
    ]
    folded = axis.arguments(Arguments(*rest), Arguments(*in_dims[5:]), wanted[LEADING:])
    found = run(*results, wanted, *folded)
    # by position: query, key, value, sink and captured tensors have their heads there
    head_axes = [1, 1, 1, 0, *[None] * (len(wanted) - LEADING)]
    axes = [head_axis for head_axis, w in zip(head_axes, wanted, strict=True) if w]
    pairs = zip(found, axes, strict=True)
    grads = [g if a is None else axis.unfold(g, a) for g, a in pairs]
    return grads, [0 if a is None else a for a in axes]


def block_kinds(info: Any, in_dims: Any, *arguments: Any) -> NoReturn:
    """Refuse to make a block mask for each element of a mapped axis.

    Raises:
        MappedAxisError: always.
    """
    raise MappedAxisError(
        what="tensors that a mask captures, where create_block_mask is called",
        rewrite="attention(query, key, value, block_mask=mask) with the mask function itself",
    )


@dataclass(frozen=True)
class _Axis:
    """The mapped axis: its size, and how tensors are folded."""

    size: int

    def fold(self, x: torch.Tensor | None, dim: int | None, head_axis: int = 1) -> Any:
        """Return a tensor whose heads are those of all elements of the axis."""
        if x is None:
            return None
        if dim is None:
            shape = (*x.shape[:head_axis], self.size, *x.shape[head_axis:])
            return x.unsqueeze(head_axis).expand(shape).flatten(head_axis, head_axis + 1)
        return x.movedim(dim, head_axis).flatten(head_axis, head_axis + 1)

    def unfold(self, x: torch.Tensor, head_axis: int = 1) -> torch.Tensor:
        """Return a tensor with the mapped axis before the heads."""
        shape = (*x.shape[:head_axis], self.size, -1, *x.shape[head_axis + 1 :])
        return x.reshape(shape)

    def arguments(self, a: Arguments, dims: Arguments, wanted: Sequence[bool] = ()) -> Arguments:
        """Return the arguments of the folded call.

        Args:
            a: the arguments.
            dims: the mapped axis of each, or None.
            wanted: for each of ``a.tensors`` whether it needs a gradient; it is then mapped.
        """
        if dims.kinds is not None or dims.floats is not None:
            raise MappedAxisError(
                what="the table of a block mask's kinds or over captured Python numbers",
                rewrite="attention(query, key, value, block_mask=mask) with the mask function,"
                " and numbers as tensors",
            )
        q = self.fold(a.query, dims.query)
        k, v = self.fold(a.key, dims.key), self.fold(a.value, dims.value)
        heads, kv_heads = q.shape[1] // self.size, k.shape[1] // self.size
        tensor_dims = dims.tensors or [None] * len(a.tensors)
        flags = wanted or [False] * len(a.tensors)
        tensors = [
            (self._first(x, d), True) if w or d is not None else (x, False)
            for x, d, w in zip(a.tensors, tensor_dims, flags, strict=True)
        ]
        kinds, made_for = a.kinds, list(a.made_for)
        if kinds is not None and kinds.shape[1] > 1:  # a mask that reads h
            kinds = kinds.repeat(1, self.size, 1, 1)
        if made_for and made_for[1] > 1:
            made_for[1] *= self.size
        parts = _Parts(list(a.ints), tensors)
        score = parts.rewrite(a.score, heads, kv_heads)
        mask = parts.rewrite(a.mask, heads, kv_heads)
        return a._replace(
            query=q,
            key=k,
            value=v,
            sink=self.fold(a.sink, dims.sink, 0),
            kinds=kinds,
            made_for=made_for,
            tensors=parts.found_tensors,
            ints=parts.found_ints,
            score=score,
            mask=mask,
        )

    def _first(self, x: torch.Tensor, dim: int | None) -> torch.Tensor:
        if dim is None:
            return x.unsqueeze(0).expand(self.size, *x.shape)
        return x.movedim(dim, 0)


@dataclass
class _Parts:
    """Captures of the score mod and of the mask, taken from the front while they are rewritten.

    Attributes:
        ints: captured ints.
        tensors: captured tensors, each with whether it is mapped.
        found_ints, found_tensors: those of the rewritten texts.
    """

    ints: list[int]
    tensors: list[tuple[torch.Tensor, bool]]
    found_ints: list[int] = field(default_factory=list)
    found_tensors: list[torch.Tensor] = field(default_factory=list)

    def rewrite(self, text: str, heads: int, kv_heads: int) -> str:
        """Return the text of the folded call, and note its captures."""
        if not text:
            return text
        graph = graph_of(text)
        tensors = {b.name: self.tensors.pop(0) for b in graph.buffers}
        ints = {s.name: self.ints.pop(0) for s in graph.scalars if s.dtype is I32}
        mapped = tuple(tensors[b.name][1] for b in graph.buffers)
        folded, names = _rewritten(graph, mapped)
        ints.update(zip(names, (heads, kv_heads), strict=True))
        self.found_tensors += [tensors[b.name][0] for b in folded.buffers]
        self.found_ints += [ints[s.name] for s in folded.scalars if s.dtype is I32]
        folded_text = text_of(folded)
        of_text(folded_text).add(of_text(text))
        return folded_text


@functools.lru_cache(maxsize=256)
def _rewritten(graph: Graph, mapped: tuple[bool, ...]) -> tuple[Graph, tuple[str, str]]:
    """Return the graph of the folded call, and the names of the two head counts in it.

    Floats are read in the same order as before: nothing is simplified.
    """
    names = ir.unused_name("heads", graph), ir.unused_name("kv_heads", graph)
    heads, kv_heads = (ir.scalar(Scalar(name, I32)) for name in names)
    head = ir.input_("h")
    element = apply("floordiv", head, heads)
    leading = dict(zip(graph.buffers, mapped, strict=True))
    replaced = {
        head: apply("mod", head, heads),
        ir.symbol("num_heads"): heads,
        ir.symbol("num_kv_heads"): kv_heads,
    }

    def with_axis(buffer: Buffer) -> Buffer:
        return Buffer(buffer.name, buffer.dtype, (None, *buffer.shape))

    def replace(node: Node, args: tuple[Node, ...]) -> Node:
        if node in replaced:
            return replaced[node]
        if node.op == "load" and leading[node.attr]:
            return ir.load(with_axis(node.attr), (element, *args))
        if node.op == "size" and leading[node.attr[0]]:
            return ir.size(with_axis(node.attr[0]), node.attr[1] + 1)
        return ir.with_args(node, args)

    return ir.make_graph(graph.kind, ir.substitute(graph.root, replace)), names
