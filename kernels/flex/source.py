"""A graph written as a Python function of torch's operations, which torch.compile traces.

Straight code, one line for each node: torch's compiler would otherwise have to follow a walk over
our nodes, and check on each call that they are as they were.  What a call gives (captured tensors
and numbers, sizes) are arguments, numbers as tensors without dimensions, since torch compiles anew
for each value of a Python number.

Integers are as wide as they have to be (`flexfa4.kernels.emit.widths`); indices that are not proved
to be in range are replaced by 0 where they are not: such scores are masked.
"""

from __future__ import annotations

import functools
import math
import types
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch

from flexfa4.frontend.ir import BOOL, F32, I32, Buffer, Graph, Node, size, topological
from flexfa4.frontend.ops import OPS
from flexfa4.kernels.emit.captures import CapturePlan, loads_of
from flexfa4.kernels.emit.errors import KernelLimitError
from flexfa4.kernels.emit.widths import Ranges

_PARAMETERS: Final = {"score": "score", "b": "b", "h": "h", "q": "q_idx", "kv": "kv_idx"}
_FUNCTIONS: Final = {"min": "minimum", "max": "maximum", "where": "where"}
_INDENT: Final = "        "
_WHOLE: Final = {32: "int32", 64: "int64"}


@dataclass(frozen=True)
class ModPlan:
    """What the code of a mod rests on.

    Attributes:
        graph: of numbers alone.
        captures: what is known of its captures.
        learned: captured tensors that get gradients.
    """

    graph: Graph
    captures: CapturePlan
    learned: frozenset[Buffer]


@dataclass(frozen=True)
class ModSource:
    """A mod as Python.

    Attributes:
        lines: of the body of a function; its parameters are FlexAttention's.
        tensors: the captured tensors that it reads as ``{kind}_t0``, ``{kind}_t1``, ...; those that
            get gradients once for each read, for torch takes only one of a tensor, and with an axis
            where they have none (see `for_one_read`).
        numbers: leaves of the graph, and their dtypes, that it reads as ``{kind}_n0``, ...
    """

    lines: tuple[str, ...]
    tensors: tuple[Buffer, ...]
    numbers: tuple[tuple[Node, torch.dtype], ...]

    @property
    def text(self) -> str:
        """The body of the function."""
        return "".join(f"{_INDENT}{line}\n" for line in self.lines)


@functools.lru_cache(maxsize=256)
def mod_source(plan: ModPlan) -> ModSource:
    """Return a mod as Python.

    Raises:
        KernelLimitError: it has an operation that torch does not compile into a kernel.
    """
    return _Writer(plan).written()


class _Writer:
    """Writes one mod."""

    def __init__(self, plan: ModPlan) -> None:
        self._plan = plan
        self._kind = plan.graph.kind
        self._ranges = Ranges(plan.graph, plan.captures)
        self._known = dict(zip(loads_of(plan.graph), plan.captures.loads, strict=True))
        self._lines: list[str] = []
        self._read: list[Buffer] = []
        self._names: dict[Node, str] = {}
        self._numbers: dict[Node, str] = {}
        self._shared: dict[Buffer, str] = {}

    def written(self) -> ModSource:
        """Write the mod."""
        root = self._plan.graph.root
        for node in topological(root):
            if node.op != "size":  # read where it is used
                self._names[node] = self._value(node)
        self._lines.append(f"return {self._result(root)}")
        numbers = tuple((n, _torch_dtype(self._dtype(n))) for n in self._numbers)
        return ModSource(tuple(self._lines), tuple(self._read), numbers)

    def _result(self, root: Node) -> str:
        """Return the result: torch wants it to depend on the score, or on the place of a mask."""
        found = self._of(root)
        if self._kind == "score" and "score" not in root.depends:
            return f"torch.where(torch.lt(q_idx, 0), score, {found})"  # no query is before 0
        if self._kind == "mask" and not {"q", "kv"} & root.depends:
            return f"torch.bitwise_or(torch.lt(q_idx, 0), {found})"
        return found

    def _dtype(self, node: Node) -> str:
        if node.dtype is I32:
            return _WHOLE[self._ranges.width(node)]
        return {F32: "float32", BOOL: "bool"}[node.dtype]

    def _of(self, node: Node) -> str:
        return self._number(node) if node.op == "size" else self._names[node]

    def _line(self, expression: str) -> str:
        """Write what computes a value; return its name."""
        name = f"x{len(self._lines)}"
        self._lines.append(f"{name} = {expression}")
        return name

    def _value(self, node: Node) -> str:
        dtype = self._dtype(node)
        match node.op:
            case "const":
                return self._line(_constant(node.attr, dtype))
            case "input" if node.dtype is I32:
                return self._line(f"{_PARAMETERS[node.attr]}.to(torch.{dtype})")
            case "input":
                return _PARAMETERS[node.attr]
            case "symbol" | "scalar":
                return self._number(node)
            case "load":
                return self._line(f"{self._load(node)}.to(torch.{dtype})")
            case "to_f32" | "to_i32" | "to_bool":
                return self._line(f"{self._of(node.args[0])}.to(torch.{dtype})")
        return self._line(self._operation(node, dtype))

    def _number(self, node: Node) -> str:
        return self._numbers.setdefault(node, f"{self._kind}_n{len(self._numbers)}")

    def _operation(self, node: Node, dtype: str) -> str:
        integers = [a for a in node.args if a.dtype is I32]
        if node.op == "pow" and integers:
            raise KernelLimitError(
                found="a power of integers",
                allowed="powers of floats, and products",
                rewrite="x * x for x**2, or x.float()**n",
            )
        widths = [self._ranges.width(n) for n in (*integers, node) if n.dtype is I32]
        wide = _WHOLE[max(widths, default=64)]
        operands = [
            f"{self._of(a)}.to(torch.{wide})"
            if a.dtype is I32 and self._dtype(a) != wide
            else self._of(a)
            for a in node.args
        ]
        made = f"torch.{_function(node.op)}({', '.join(operands)})"
        return f"{made}.to(torch.{dtype})" if node.dtype is I32 and dtype != wide else made

    # ---- captured tensors ------------------------------------------------------------------------

    def _load(self, node: Node) -> str:
        learned = node.attr in self._plan.learned
        tensor = self._tensor(node.attr)
        if not node.args:
            return f"{tensor}[torch.zeros_like(b)]" if learned else tensor
        places = [self._index(node, axis, learned) for axis in range(len(node.args))]
        return f"{tensor}[{', '.join(places)}]"

    def _tensor(self, buffer: Buffer) -> str:
        """Return the name of a captured tensor, of a new one for each read where it learns."""
        found = self._shared.get(buffer)
        if found is None:
            found = f"{self._kind}_t{len(self._read)}"
            self._read.append(buffer)
            if buffer not in self._plan.learned:
                self._shared[buffer] = found
        return found

    def _index(self, node: Node, axis: int, learned: bool) -> str:
        """Return an index that is in range, and for a gradient not negative and one for a score."""
        known, index = self._known[node], node.args[axis]
        found = self._of(index)
        length = size(node.attr, axis)
        if not known.in_range:
            inside = (
                f"torch.bitwise_and(torch.lt({found}, {self._number(length)}),"
                f" torch.ge({found}, torch.neg({self._number(length)})))"
            )
            found = self._line(f"torch.where({inside}, {found}, torch.zeros_like({found}))")
        if learned and not known.from_start[axis]:
            wrapped = f"torch.add({found}, {self._number(length)})"
            found = self._line(f"torch.where(torch.lt({found}, 0), {wrapped}, {found})")
        if learned and not index.depends:
            found = self._line(f"torch.add({found}, torch.zeros_like(b))")
        return found


def _function(op: str) -> str:
    """Return the name in torch of the meaning of an op."""
    eager = OPS[op].eager
    return _FUNCTIONS.get(op) or _builtin(eager)


def _builtin(eager: object) -> str:
    assert isinstance(eager, types.BuiltinFunctionType), "what is none is in _FUNCTIONS"
    return eager.__name__


def _torch_dtype(name: str) -> torch.dtype:
    found = getattr(torch, name)
    assert isinstance(found, torch.dtype)
    return found


def _constant(value: float | int | bool, dtype: str) -> str:
    text = repr(value) if not isinstance(value, float) or math.isfinite(value) else None
    return f"torch.full((), {text or _infinite(value)}, dtype=torch.{dtype}, device=b.device)"


def _infinite(value: float) -> str:
    return f'float("{value}")'


def arguments_of(source: ModSource, kind: str) -> Sequence[str]:
    """Return the names under which a mod reads what a call gives it: tensors, then numbers."""
    tensors = [f"{kind}_t{i}" for i in range(len(source.tensors))]
    return [*tensors, *(f"{kind}_n{i}" for i in range(len(source.numbers)))]


def for_one_read(tensor: torch.Tensor) -> torch.Tensor:
    """Return a captured tensor for one read with a gradient, which is added up in fp32.

    It is no view: what torch compiles has no gradients for views that mods read.
    """
    return (tensor if tensor.dim() else tensor.reshape(1)).to(torch.float32, copy=True)
