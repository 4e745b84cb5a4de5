"""A graph's meaning on torch tensors, for a rectangle of (b, h, q, kv) or many tiles at a time.

A `Program` is compiled once from one or more roots that share their sub-expressions; `run`
evaluates them over `Lanes`, or over `ScatteredLanes`.  Every value keeps the rank that it needs:
what depends on ``h`` alone is a ``(1, heads, 1, 1)`` tensor however large the rectangle is, so
hoisting comes from broadcasting.  Full-size temporaries are overwritten in place as soon as they
are dead.

This is the semantics of record: the CPU backend runs it tile by tile, mask analysis decides tiles
with it, and the tests hold every other backend against it.  It does not trace, simplify or
differentiate, and it allocates no more than the rectangle it is given asks for.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

import torch

from flexfa4.errors import OutOfRangeError
from flexfa4.frontend.binding import BoundGraph
from flexfa4.frontend.contraction import sum_of_products
from flexfa4.frontend.gather import gather
from flexfa4.frontend.ir import (
    BOOL,
    F32,
    I32,
    Buffer,
    DType,
    Node,
    Scalar,
    Search,
    own_place,
    topological,
)
from flexfa4.frontend.lanes import AXES, AnyLanes, Lanes, arange, common_shape
from flexfa4.frontend.ops import OPS
from flexfa4.frontend.pool import Pool
from flexfa4.frontend.sizes import Sizes
from flexfa4.frontend.value_runs import ValueRuns

Value = Any  # torch.Tensor or a Python number
VECTOR_AXIS: Final = 4
_CASTS: Final = frozenset({"to_f32", "to_i32", "to_bool"})
_LARGEST: Final = torch.finfo(torch.float32).max


@dataclass(frozen=True)
class Values:
    """What one call gives to a graph's leaves.

    Attributes:
        tensors: captured tensors.
        scalars: captured numbers.
        symbols: q_len, kv_len, num_heads, num_kv_heads.
        dtype: what f32 means: torch.float32 or torch.float64.
        device: where the index tensors live.
        unproved: loads whose indices may be out of range; they are checked on visible lanes.
        value_runs: the runs of equal values along the axes that searches look along.
    """

    tensors: Mapping[Buffer, torch.Tensor] = field(default_factory=dict)
    scalars: Mapping[Scalar, int | float] = field(default_factory=dict)
    symbols: Mapping[str, int] = field(default_factory=dict)
    dtype: torch.dtype = torch.float32
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    unproved: frozenset[Node] = frozenset()
    value_runs: Mapping[tuple[Buffer, int], ValueRuns] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        bound: BoundGraph,
        sizes: Sizes,
        *,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
        unproved: frozenset[Node] = frozenset(),
    ) -> Values:
        """Return the values of a graph's captures and of the sizes of a call."""
        return cls(
            tensors=dict(zip(bound.graph.buffers, bound.tensors, strict=True)),
            scalars=dict(zip(bound.graph.scalars, bound.scalars, strict=True)),
            symbols=sizes.symbols(),
            dtype=dtype,
            device=device,
            unproved=unproved,
        )


@dataclass(frozen=True)
class _Step:
    """One instruction: compute `node` from registers into register `target`."""

    node: Node
    args: tuple[Node, ...]
    operands: tuple[int, ...]  # registers of `args`
    target: int
    dead: tuple[int, ...]  # registers read here for the last time
    compute: Callable[..., Any] | None  # meaning of the op; None for leaves and loads
    takes_out: bool  # `compute` has an argument `out`


class Program:
    """Roots compiled to a straight list of instructions.

    Args:
        roots: nodes to evaluate, over one shared set of leaves.
        owns_score: the tensor given as ``score`` may be overwritten.
        lowerings: functions with an argument ``out`` to use instead of the ops table's.
        products: sums of products of two vectors may be summed in the order of a matrix product,
            which forms no product of vectors. The last bits then depend on the rectangle: not for
            masks, which are evaluated over rectangles of several shapes and must agree.
    """

    def __init__(
        self,
        roots: Sequence[Node],
        *,
        owns_score: bool = False,
        lowerings: Mapping[str, Callable[..., Any]] = MappingProxyType({}),
        products: bool = False,
    ) -> None:
        order = _needed(roots, products)
        register = {node: i for i, node in enumerate(order)}
        last_use: dict[Node, int] = {}
        for i, node in enumerate(order):
            for arg in operands(node, products):
                last_use[arg] = i
        final = set(roots)
        self._steps = []
        for i, node in enumerate(order):
            args = operands(node, products)
            dead = (a for a in dict.fromkeys(args) if last_use[a] == i and a not in final)
            row = OPS.get(node.op)
            compute = lowerings.get(node.op, row.eager) if row is not None else None
            if node.op == "sum" and args != node.args:
                compute = _dot
            self._steps.append(
                _Step(
                    node,
                    args,
                    tuple(register[a] for a in args),
                    i,
                    tuple(register[a] for a in dead),
                    compute,
                    node.op in lowerings or isinstance(compute, types.BuiltinFunctionType),
                )
            )
        self._results = tuple(register[r] for r in roots)
        self._owns_score = owns_score

    def run(
        self,
        values: Values,
        lanes: AnyLanes,
        score: torch.Tensor | None = None,
        visible: torch.Tensor | None = None,
        pool: Pool | None = None,
    ) -> tuple[Value, ...]:
        """Evaluate over a rectangle or scattered tiles.

        Args:
            values: the call's captures and sizes.
            lanes: the rectangle or the tiles.
            score: the scores, of shape ``lanes.shape``; needed if the graph reads them.
            visible: bool, broadcastable to ``lanes.shape``: lanes whose loads must be in range;
                None means all.
            pool: memory for large temporaries, of the score's dtype. What is returned may lie in
                it, until the pool is told to reclaim it.

        Returns:
            For each root a tensor that broadcasts to ``lanes.shape``, or a Python number.

        Raises:
            OutOfRangeError: an unproved load leaves its buffer on a visible lane.
        """
        registers: list[Value] = [None] * len(self._steps)
        owned = [False] * len(self._steps)
        for step in self._steps:
            node = step.node
            given = [registers[i] for i in step.operands]
            if step.compute is None:
                if node.op == "load":
                    result = _load(node, given, values, lanes, visible)
                elif node.op == "search":
                    result = _search(step, given, values)
                else:
                    result = _leaf(node, values, lanes, score)
                    if result is score:
                        owned[step.target] = self._owns_score
            else:
                if node.length is not None or OPS[node.op].reduces:
                    given = _align_vectors(step.args, given)
                reusable = [registers[i] for i in step.dead if owned[i]]
                result = _apply(step, step.compute, given, reusable, values.dtype, pool)
                owned[step.target] = not any(result is g for g in given) or any(
                    result is r for r in reusable
                )
            registers[step.target] = result
            for i in step.dead:
                if pool is not None and owned[i] and owned[step.target]:
                    _give_back(pool, registers[i], result)
                registers[i] = None
        return tuple(registers[i] for i in self._results)


def mask_tile(program: Program, values: Values, lanes: AnyLanes) -> torch.Tensor:
    """Return the mask of some lanes as a bool tensor that broadcasts to ``lanes.shape``."""
    (mask,) = program.run(values, lanes)
    if not isinstance(mask, torch.Tensor):
        mask = torch.tensor(mask, device=values.device)
    return mask


def _give_back(pool: Pool, value: Value, result: Value) -> None:
    """Return the memory of a value that is dead and did not become the result."""
    if isinstance(value, torch.Tensor) and value is not result:
        pool.give_back(value)


def operands(node: Node, products: bool) -> tuple[Node, ...]:
    """Return what the evaluation of a node reads.

    Args:
        node: the node.
        products: a sum of products of two vectors reads these two (see `Program`).

    Returns:
        Its operands; for a search, the place in place of the element there (`ir.own_place`).
    """
    if node.op == "search":
        place = own_place(node)
        return node.args if place is None else (*node.args[:-1], place)
    if products and node.op == "sum" and node.dtype is F32:
        (vector,) = node.args
        if vector.op == "mul" and all(a.length is not None for a in vector.args):
            return vector.args
    return node.args


def _needed(roots: Sequence[Node], products: bool) -> list[Node]:
    """Return what is evaluated for the roots, operands before users."""
    order = list(topological(*roots))
    needed = set(roots)
    for node in reversed(order):
        if node in needed:
            needed.update(operands(node, products))
    return [node for node in order if node in needed]


def _dot(a: torch.Tensor, b: torch.Tensor, pool: Pool | None = None) -> torch.Tensor:
    """Return the products of two vectors at each lane."""
    return sum_of_products(a, b, (VECTOR_AXIS,), VECTOR_AXIS + 1, pool).squeeze(VECTOR_AXIS)


def _leaf(node: Node, values: Values, lanes: AnyLanes, score: torch.Tensor | None) -> Value:
    match node.op:
        case "input":
            return score if node.attr == "score" else lanes.index(node.attr, values.device)
        case "const":
            return _number(node.attr, values.dtype)
        case "scalar":
            return _number(values.scalars[node.attr], values.dtype)
        case "symbol":
            return values.symbols[node.attr]
        case "size":
            buffer, axis = node.attr
            return values.tensors[buffer].shape[axis]
        case "iota":
            return arange(0, node.attr, values.device)
    raise AssertionError(f"no such leaf: {node.op}")


def _number(value: Any, dtype: torch.dtype) -> Any:
    """Return a number as it is, but infinite beyond fp32, which torch would not take."""
    if type(value) is float and dtype is torch.float32 and abs(value) > _LARGEST:
        return math.copysign(math.inf, value)
    return value


def _apply(
    step: _Step,
    compute: Callable[..., Any],
    operands: list[Value],
    reusable: list[Value],
    dtype: torch.dtype,
    pool: Pool | None,
) -> Value:
    """Run one op, in place where a dead operand has the result's shape and dtype."""
    node = step.node
    if node.op in _CASTS:
        return compute(operands[0], dtype)
    # A torch function wants a tensor first, and numbers may follow; the table's own functions
    # (choices and extremes) get tensors only, so that two numbers have the score's dtype too.
    for i in range(1 if step.takes_out else len(operands)):
        if not isinstance(operands[i], torch.Tensor):
            kind = {F32: dtype, I32: torch.int64, BOOL: torch.bool}[step.args[i].dtype]
            operands[i] = torch.scalar_tensor(operands[i], dtype=kind, device="cpu")
    if step.takes_out:
        for t in reusable:
            if (
                isinstance(t, torch.Tensor)
                and t.dim() > 1
                and node.dtype is F32
                and t.dtype is dtype
                and all(_covers(t, o) for o in operands if isinstance(o, torch.Tensor))
            ):
                return compute(*operands, out=t)
        if pool is not None and node.dtype is F32:
            shapes = [o.shape for o in operands if isinstance(o, torch.Tensor)]
            return compute(*operands, out=pool.lend(common_shape(*shapes)))
    if compute is _dot:
        a, b = operands
        return _dot(a, b, pool)
    return compute(*operands)


def _covers(whole: torch.Tensor, part: torch.Tensor) -> bool:
    """Whether `part` broadcasts to the shape of `whole`."""
    if part.shape == whole.shape:
        return True
    if part.dim() > whole.dim():
        return False
    return all(
        p in (1, w) for p, w in zip(reversed(part.shape), reversed(whole.shape), strict=False)
    )


def _align_vectors(args: tuple[Node, ...], operands: list[Value]) -> list[Value]:
    """Give scalar operands of a vector op a trailing axis of one."""
    return [
        o.unsqueeze(-1) if a.length is None and isinstance(o, torch.Tensor) and o.dim() else o
        for a, o in zip(args, operands, strict=True)
    ]


# ---- loads ---------------------------------------------------------------------------------------


def _load(
    node: Node, indices: list[Value], values: Values, lanes: AnyLanes, visible: torch.Tensor | None
) -> Value:
    """Read a captured tensor at every lane.

    Dimensions indexed by a bare input of a rectangle or a whole static axis are sliced, which costs
    nothing; the others are gathered.
    """
    buffer: Buffer = node.attr
    tensor = values.tensors[buffer]
    if node in values.unproved:
        if not tensor.numel():  # nothing to clamp to; `_checked` raises if a lane needs it
            _checked(node, indices, tensor, visible)
            return torch.zeros((), dtype=tensor.dtype, device=tensor.device)
        indices = _checked(node, indices, tensor, visible)
    plain: dict[int, int] = {}
    if isinstance(lanes, Lanes) and (node not in values.unproved or _inside(node, tensor, lanes)):
        line = _line(node)
        if line is not None:
            return widened(_along(node, line, indices, tensor, lanes), node.dtype, values.dtype)
        plain = plain_axes(node)
    rank = 4 if node.length is None else 5
    gathered = [d for d in range(tensor.dim()) if d not in plain]
    for d, axis in plain.items():
        if axis != VECTOR_AXIS:
            start, stop = getattr(lanes, node.args[d].attr)
            tensor = tensor.narrow(d, start, stop - start)
    if not gathered:
        result = tensor
        adv = 0
    else:
        tensor = tensor.permute(*gathered, *plain)
        index = [_index_tensor(node, d, indices[d], values.device) for d in gathered]
        from_end = _may_be_negative([node.args[d] for d in gathered])
        result = tensor[tuple(index)] if plain else gather(tensor, index, from_end=from_end)
        varies = any(isinstance(i, torch.Tensor) for i in index)
        adv = result.dim() - len(plain) if varies else 0
    result = _to_axes(result, adv, list(plain.values()), rank)
    return widened(result, node.dtype, values.dtype)


def _inside(load: Node, tensor: torch.Tensor, lanes: Lanes) -> bool:
    """Whether a tensor is long enough along all dimensions that are read lane by lane."""
    return all(
        arg.op != "input" or getattr(lanes, arg.attr)[1] <= tensor.shape[d]
        for d, arg in enumerate(load.args)
    )


def _line(load: Node) -> tuple[int, int] | None:
    """Find the one dimension of a load that is read anyhow, beside dimensions read lane by lane.

    ``t[b, h, q, clamp(kv - q)]`` --> (3, axis of kv)

    Returns:
        The dimension, and the only axis that its index varies along and the others do not; None
        where the load is not of this kind, or all others can be sliced anyway.
    """
    names = [arg.attr if arg.op == "input" else None for arg in load.args]
    if load.length is not None or names.count(None) != 1:
        return None
    d = names.index(None)
    others = names[:d] + names[d + 1 :]
    own = load.args[d].depends.difference(others)
    if len(set(others)) < len(others) or len(own) != 1 or own >= {"score"}:
        return None
    return None if own == load.args[d].depends else (d, AXES[next(iter(own))])


def _along(
    load: Node, line: tuple[int, int], indices: list[Value], tensor: torch.Tensor, lanes: Lanes
) -> torch.Tensor:
    """Read such a load, ten times as fast as by an index tensor for each dimension."""
    d, own = line
    dimension = {own: d}
    for other, arg in enumerate(load.args):
        if other != d:
            start, stop = getattr(lanes, arg.attr)
            tensor = tensor.narrow(other, start, stop - start)
            dimension[AXES[arg.attr]] = other
    axes = sorted(dimension)
    tensor = tensor.permute([dimension[axis] for axis in axes])
    size = tensor.shape[axes.index(own)]
    index = indices[d].reshape((1,) * (4 - indices[d].dim()) + indices[d].shape)
    index = torch.where(index < 0, index + size, index)  # negative ones count from the end
    shape = [lanes.shape[axis] for axis in axes]
    index = index.reshape([index.shape[axis] for axis in axes]).expand(shape)
    found = torch.gather(tensor, axes.index(own), index)
    return found.view([lanes.shape[axis] if axis in axes else 1 for axis in range(4)])


def _index_tensor(node: Node, d: int, index: Value, device: torch.device) -> Value:
    """Align an index for broadcasting: scalar indices of a vector load get a trailing axis."""
    if not isinstance(index, torch.Tensor):
        return int(index)
    if index.device != device:  # a 0-dim value that was computed on the host
        index = index.to(device)
    if node.length is not None and node.args[d].length is None and index.dim():
        return index.unsqueeze(-1)
    return index


def is_whole_axis(load: Node, d: int) -> bool:
    """Whether a load reads all of dimension `d` as a vector."""
    return load.args[d].op == "iota" and load.attr.shape[d] == load.args[d].attr


def plain_axes(node: Node) -> dict[int, int]:
    """Map the dimensions of a load that can be sliced to the axis that they run along."""
    plain: dict[int, int] = {}
    for d, arg in enumerate(node.args):
        if arg.op == "input":
            axis = AXES[arg.attr]
        elif is_whole_axis(node, d):
            axis = VECTOR_AXIS
        else:
            continue
        if axis not in plain.values():
            plain[d] = axis
    others = [a for d, a in enumerate(node.args) if d not in plain]
    busy = {AXES[name] for a in others for name in a.depends if name in AXES}
    if any(a.length is not None for a in others):
        busy.add(VECTOR_AXIS)
    return {d: axis for d, axis in plain.items() if axis not in busy}


def _to_axes(result: torch.Tensor, adv: int, axes: list[int], rank: int) -> torch.Tensor:
    """Arrange (gathered axes..., sliced axes...) as a tensor that broadcasts over the lanes."""
    if not axes:
        return result
    for _ in range(rank - adv):  # right-align the gathered part to the full rank
        result = result.unsqueeze(0)
    order = list(range(rank))
    spare = []
    for position, axis in enumerate(axes):
        spare.append(order[axis])
        order[axis] = rank + position
    result = result.permute(*spare, *order)
    return result[(0,) * len(spare)]


def _search(step: _Step, given: list[Value], values: Values) -> Value:
    """Find the place of a value along an axis of a captured tensor, at every lane."""
    where: Search = step.node.attr
    runs = values.value_runs[where.buffer, where.axis]
    *indices, value = given
    if step.args != step.node.args:
        return runs.around(where.side, indices, value, from_end=_may_be_negative(step.args))
    value = torch.as_tensor(value, dtype=runs.values.dtype, device=runs.values.device)
    return runs.find(where.side, indices, value, from_end=_may_be_negative(step.args[:-1]))


def _may_be_negative(indices: Sequence[Node]) -> bool:
    """Whether indices may count from the end; positions do not."""
    return any(index.op != "input" for index in indices)


def widened(result: torch.Tensor, dtype: DType, float_dtype: torch.dtype) -> torch.Tensor:
    """Convert what a buffer stores to what the IR computes with."""
    if dtype is F32:
        return result if result.dtype is float_dtype else result.to(float_dtype)
    if dtype is I32:
        return result if result.dtype is torch.int64 else result.to(torch.int64)
    return result


def _checked(
    node: Node, indices: list[Value], tensor: torch.Tensor, visible: torch.Tensor | None
) -> list[Value]:
    """Clamp indices into the buffer; raise if one was outside on a visible lane.

    Off the CPU the device raises, without a wait, and says less.
    """
    clamped: list[Value] = []
    for d, index in enumerate(indices):
        size = tensor.shape[d]
        t = torch.as_tensor(index, device=tensor.device)
        outside = (t < -size) | (t >= size)
        seen = outside
        if visible is not None:
            mask = visible.unsqueeze(-1) if node.args[d].length is not None else visible
            seen = outside & mask
        if tensor.device.type != "cpu":  # reading the answer would wait for the device
            torch._assert_async(~seen.any(), f"{node.attr.name} was read out of its range")
        elif bool(seen.any()):
            raise _out_of_range(node, d, size, t, seen)
        low = -size if size else 0
        clamped.append(t.clamp(low, max(size - 1, 0)))
    return clamped


def _out_of_range(
    node: Node, d: int, size: int, index: torch.Tensor, seen: torch.Tensor
) -> OutOfRangeError:
    first = int(torch.broadcast_to(index, seen.shape)[seen][0])
    error = OutOfRangeError(
        tensor=f"captured tensor `{node.attr.name}`",
        size=size,
        dim=d,
        index=first,
        low=-size,
        high=size - 1,
        rewrite="make the tensor long enough, clamp the index, or mask these scores",
    )
    error.load = node
    return error
