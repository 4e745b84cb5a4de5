"""The intermediate representation: a hash-consed DAG of scalar expressions.

The whole IR on one screen::

    graph  ::= kind ("score" | "mask"), root node, buffers, scalars
    node   ::= const(value)                      f32, i32 or bool
             | input(name)                       score: f32;  b, h, q, kv: i32
             | symbol(name)                      q_len, kv_len, num_heads, num_kv_heads: i32
             | scalar(Scalar)                    a captured Python number, read on each call
             | load(Buffer; index, ...)          one element of a captured tensor
             | size(Buffer, axis)                i32, a captured tensor's size
             | iota(n)                           the vector 0, 1, ..., n-1
             | search(Buffer, axis, side; index, ..., value)
                                                 i32, where a value begins or ends along an axis of
                                                 a captured tensor; made by analysis, not by tracing
             | op(node, ...)                     a row of the table in `ops`
    dtype  ::= f32 | i32 | bool                  f32 is *the score type*: fp64 for fp64 inputs;
                                                 i32 is an integer, 64 bits wide unless proved to
                                                 fit
    length ::= None (a scalar) | n               a vector along a static axis

Nodes are immutable and interned: two equal expressions are the same object, so equality is
identity, and a dict keyed by nodes needs no structural hash.

This module only stores; it does not check dtypes (`ops.apply` does), simplify (`rules`) or print
(`text`).
"""

from __future__ import annotations

import enum
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal
from weakref import WeakValueDictionary


class DType(enum.Enum):
    """The three types of a value."""

    F32 = "f32"
    I32 = "i32"
    BOOL = "bool"

    def __repr__(self) -> str:
        return self.value


F32: Final = DType.F32
I32: Final = DType.I32
BOOL: Final = DType.BOOL

INPUTS: Final = {"score": F32, "b": I32, "h": I32, "q": I32, "kv": I32}
SYMBOLS: Final = ("q_len", "kv_len", "num_heads", "num_kv_heads")


@dataclass(frozen=True)
class Buffer:
    """A captured tensor: what the graph knows about it.

    Attributes:
        name: unique in its graph.
        dtype: F32 for every floating dtype, I32 for every integer dtype, BOOL.
        shape: one entry for each dimension: None where the size may change from call to call, a
            number where a vector runs along it (then checked on every call).
    """

    name: str
    dtype: DType
    shape: tuple[int | None, ...]


@dataclass(frozen=True)
class Scalar:
    """A captured Python number: its name, unique in its graph, and whether it is f32 or i32."""

    name: str
    dtype: DType


Side = Literal["first", "end", "below", "through"]
"""What a search finds along an axis:

``first``, ``end``: where the run of elements equal to the value begins, and one past where it ends
(both 0 where there is none); no other run may have the value.
``below``, ``through``: how many elements are less, or not greater; the elements must ascend.
"""


@dataclass(frozen=True)
class Search:
    """Where a search looks, and for what: the attribute of a search."""

    buffer: Buffer
    axis: int
    side: Side


class Node:
    """One value of the graph; make it with the functions below or with `ops.apply`.

    Attributes:
        op: ``const``, ``input``, ``symbol``, ``scalar``, ``load``, ``size``, ``iota``, ``search``
            or the name of a row of ``ops.OPS``.
        args: operands (the indices, for a load; the indices of the other axes and the value, for a
            search).
        attr: the constant, name, Scalar, Buffer, (Buffer, axis), length or `Search` that a leaf
            carries.
        dtype: type of the value.
        length: None for a scalar, else the length of the vector.
        depends: which of the five inputs the value varies with.
    """

    __slots__ = ("__weakref__", "args", "attr", "depends", "dtype", "length", "op")

    op: str
    args: tuple[Node, ...]
    attr: Any
    dtype: DType
    length: int | None
    depends: frozenset[str]

    def __repr__(self) -> str:
        inside = ", ".join(
            [repr(self.attr)] * (self.attr is not None) + [repr(a) for a in self.args]
        )
        return f"{self.op}({inside})"

    def __reduce__(self) -> Any:
        return (intern, (self.op, self.args, self.attr, self.dtype, self.length))

    def __copy__(self) -> Node:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Node:
        return self


_INTERNED: WeakValueDictionary[tuple[Any, ...], Node] = WeakValueDictionary()
_INTERN_LOCK = threading.Lock()
_NOTHING: Final[frozenset[str]] = frozenset()


def intern(
    op: str, args: tuple[Node, ...], attr: Any, dtype: DType, length: int | None = None
) -> Node:
    """Return the one node with these parts."""
    # -0.0 and 0.0, and NaN, must stay apart although Python compares them otherwise
    key_attr = struct.pack("<d", attr) if isinstance(attr, float) else attr
    key = (op, args, key_attr, type(attr), dtype, length)
    with _INTERN_LOCK:
        found = _INTERNED.get(key)
        if found is not None:
            return found
        node = Node.__new__(Node)
        node.op, node.args, node.attr, node.dtype, node.length = op, args, attr, dtype, length
        if op == "input":
            node.depends = frozenset((attr,))
        else:
            node.depends = _NOTHING.union(*(a.depends for a in args))
        _INTERNED[key] = node
        return node


def const(value: float | int | bool, dtype: DType | None = None) -> Node:
    """Return a constant; `dtype` converts the value, by default its Python type decides."""
    if dtype is None:
        dtype = BOOL if isinstance(value, bool) else I32 if isinstance(value, int) else F32
    convert: dict[DType, Callable[[Any], Any]] = {F32: float, I32: int, BOOL: bool}
    value = convert[dtype](value)
    if value != value:
        value = float("nan")  # one NaN: payload and sign carry no meaning
    return intern("const", (), value, dtype)


def input_(name: str) -> Node:
    """Return one of the inputs score, b, h, q, kv."""
    return intern("input", (), name, INPUTS[name])


def symbol(name: str) -> Node:
    """Return one of the sizes q_len, kv_len, num_heads, num_kv_heads."""
    assert name in SYMBOLS
    return intern("symbol", (), name, I32)


def scalar(decl: Scalar) -> Node:
    """Return the value of a captured number."""
    return intern("scalar", (), decl, decl.dtype)


def iota(n: int) -> Node:
    """Return the vector 0, 1, ..., n-1."""
    return intern("iota", (), n, I32, n)


def size(buffer: Buffer, axis: int) -> Node:
    """Return the size of a captured tensor along an axis."""
    return intern("size", (), (buffer, axis), I32)


def load(buffer: Buffer, indices: tuple[Node, ...]) -> Node:
    """Return one element of a captured tensor; a vector if one of the indices is one.

    Indices are as in torch: -n ... n-1, negative ones count from the end.
    """
    assert len(indices) == len(buffer.shape) and all(i.dtype is I32 for i in indices)
    lengths = {i.length for i in indices} - {None}
    assert len(lengths) <= 1, "the caller checks that vector indices agree"
    return intern("load", indices, buffer, buffer.dtype, lengths.pop() if lengths else None)


def search(where: Search, indices: tuple[Node, ...], value: Node) -> Node:
    """Return the place of a value along an axis of a captured tensor.

    Args:
        where: the tensor, the axis and the side.
        indices: of the tensor's other axes, in order.
        value: of the tensor's dtype.
    """
    assert len(indices) == len(where.buffer.shape) - 1 and value.dtype is where.buffer.dtype
    assert all(a.dtype is I32 for a in indices)
    assert all(a.length is None for a in (*indices, value))
    return intern("search", (*indices, value), where, I32)


def own_place(node: Node) -> Node | None:
    """Return the place whose own element a search looks for; None where it looks for another.

    Such a search finds the run that the place lies in, whatever the element is.
    """
    where, (*others, value) = node.attr, node.args
    if value.op != "load" or value.attr != where.buffer:
        return None
    place: Node = value.args[where.axis]
    others.insert(where.axis, place)
    return place if value.args == tuple(others) else None


@dataclass(frozen=True)
class Graph:
    """A traced mod: its result and what it reads.

    Attributes:
        kind: ``"score"`` (root is f32) or ``"mask"`` (root is bool).
        root: the result, a scalar node.
        buffers: captured tensors, in the order in which the root first reads them.
        scalars: captured numbers, likewise.
    """

    kind: Literal["score", "mask"]
    root: Node
    buffers: tuple[Buffer, ...]
    scalars: tuple[Scalar, ...]

    def __hash__(self) -> int:
        return hash(self.root)  # which says nearly all; plans are looked up by graph on each call

    def __str__(self) -> str:
        from flexfa4.frontend.text.printing import to_text

        return to_text(self)


def make_graph(kind: Literal["score", "mask"], root: Node) -> Graph:
    """Collect what `root` reads into a Graph."""
    buffers: dict[Buffer, None] = {}
    scalars: dict[Scalar, None] = {}
    for node in topological(root):
        if node.op == "load":
            buffers[node.attr] = None
        elif node.op == "size":
            buffers[node.attr[0]] = None
        elif node.op == "search":
            buffers[node.attr.buffer] = None
        elif node.op == "scalar":
            scalars[node.attr] = None
    return Graph(kind, root, tuple(buffers), tuple(scalars))


def unused_name(name: str, graph: Graph) -> str:
    """Return a name that no capture of a graph has: `name`, or with underscores behind it."""
    taken = {buffer.name for buffer in graph.buffers} | {number.name for number in graph.scalars}
    while name in taken:
        name += "_"
    return name


def topological(*roots: Node) -> Iterator[Node]:
    """Yield every node below the roots once, operands before users (iterative: graphs are deep)."""
    seen: set[Node] = set()
    stack: list[tuple[Node, bool]] = [(root, False) for root in reversed(roots)]
    while stack:
        node, expanded = stack.pop()
        if expanded:
            yield node
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack.extend((arg, False) for arg in reversed(node.args) if arg not in seen)


def with_args(node: Node, args: tuple[Node, ...]) -> Node:
    """Return `node` with other operands of the same dtypes and lengths."""
    if args == node.args:
        return node
    return intern(node.op, args, node.attr, node.dtype, node.length)


def substitute(root: Node, replace: Callable[[Node, tuple[Node, ...]], Node]) -> Node:
    """Rebuild `root` bottom-up: `replace(node, new operands)` gives what stands for each node."""
    done: dict[Node, Node] = {}
    for node in topological(root):
        done[node] = replace(node, tuple(done[a] for a in node.args))
    return done[root]
