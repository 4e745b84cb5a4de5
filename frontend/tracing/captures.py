"""One trace of a mod: what it captures, declares and requires.

A `Session` turns each value that the mod reads into what it sees instead (`wrappers`), declares the
scalars and buffers that the graph reads, and collects in a `sources.Program` how to read them again
and under which conditions the trace holds.  A mod is a pure function: changing something captured
is an error, and so is reading a value in a way that could not be repeated (`escapes`).
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable
from typing import Any

import torch

from flexfa4.errors import CaptureError, ChangedCaptureError
from flexfa4.frontend import integers, ir
from flexfa4.frontend.ir import F32, I32, Buffer, Graph, Node, Scalar
from flexfa4.frontend.places import Place, Places
from flexfa4.frontend.tracing import locate, recording, wrappers
from flexfa4.frontend.tracing.hosts import HostScalar
from flexfa4.frontend.tracing.proxies import dtype_class
from flexfa4.frontend.tracing.sources import Program, Source, describe, identifier


class Session:
    """One trace: what it read, declared and required.

    Attributes:
        program: how to read the captured values and check that the trace holds.
        globals_read: for each module by the id of its globals, the function through which they are
            read and what was read.
        stand_ins: the stand-in of each object and class, by its id, and from where it was read.
    """

    def __init__(self) -> None:
        self.program = Program()
        self._names: set[str] = set()
        self._scalars: dict[Source, Scalar] = {}
        self._buffers: dict[Source, Buffer] = {}
        self._static: dict[str, dict[int, int]] = {}
        self._made: dict[int, torch.Tensor] = {}
        self._loads: dict[Node, Place] = {}
        self.globals_read: dict[int, tuple[Source, dict[str, Any]]] = {}
        self.stand_ins: dict[int, tuple[Source, Any]] = {}
        self._snapshots: list[tuple[Source, Callable[[], bool]]] = []

    # ---- leaves of the graph --------------------------------------------------------------------

    def scalar(self, source: Source, value: int | float, name: str = "") -> Node:
        """Return the node of a captured number; its name is made of the source by default."""
        if source not in self._scalars:
            dtype = F32 if isinstance(value, (float, torch.SymFloat)) else I32
            if dtype is I32 and type(value) is int:
                self._require_64_bits(source, value)
            self._scalars[source] = Scalar(self._unique(name or identifier(source)), dtype)
        return ir.scalar(self._scalars[source])

    def _require_64_bits(self, source: Source, value: int) -> None:
        if not integers.fits(value):
            raise CaptureError(
                where=locate.here(),
                name=f"`{describe(source)}`",
                kind="an int beyond 64 bits",
                rewrite=f"a float: float({describe(source)})",
            )
        self.program.check(source, integers.fits, "64 bits")

    def buffer(self, source: Source, tensor: torch.Tensor, name: str = "") -> Buffer:
        """Return the declaration of a captured tensor; its name is made of the source by default.

        Raises:
            CaptureError: the tensor is complex, nested, sparse or quantized.
        """
        if source not in self._buffers:
            if tensor.is_complex() or tensor.is_quantized or not _is_strided(tensor):
                kind = "a complex" if tensor.is_complex() else "a nested, sparse or quantized"
                raise CaptureError(
                    where=locate.here(),
                    name=f"`{describe(source)}`",
                    kind=f"{kind} tensor",
                    rewrite="a dense tensor of real numbers, integers or bools",
                )
            self.require_tensor(source, tensor)
            shape = (None,) * tensor.dim()
            unique = self._unique(name or identifier(source))
            self._buffers[source] = Buffer(unique, dtype_class(tensor.dtype), shape)
        return self._buffers[source]

    def static_size(self, source: Source, tensor: torch.Tensor, axis: int) -> int:
        """Return the size along an axis and require it on each call."""
        name = self.buffer(source, tensor).name  # which refuses tensors without sizes
        size = int(tensor.shape[axis])
        self._static.setdefault(name, {})[axis] = size
        guard = f"{describe(source)}.shape[{axis}] == {size}"
        self.program.check(source, lambda t: bool(t.shape[axis] == size), ("size", axis), guard)
        return size

    def _unique(self, stem: str) -> str:
        name = stem
        count = 1
        while name in self._names:
            count += 1
            name = f"{stem}_{count}"
        self._names.add(name)
        return name

    def noted(self, load: Node, place: Place) -> Node:
        """Return a load after noting where the user's source makes it first."""
        self._loads.setdefault(load, place)
        return load

    def graph(self, kind: Any, root: Node) -> Graph:
        """Return the graph of a result, with the static sizes that the whole trace came to know."""
        return ir.make_graph(kind, self._with_static_sizes(root))

    def places(self) -> Places:
        """Return where the user's source reads captured tensors."""
        return Places({self._with_static_sizes(load): p for load, p in self._loads.items()})

    def _with_static_sizes(self, root: Node) -> Node:

        def declared(buffer: Buffer) -> Buffer:
            static = self._static.get(buffer.name, {})
            shape = tuple(static.get(axis) for axis in range(len(buffer.shape)))
            return Buffer(buffer.name, buffer.dtype, shape)

        def replace(node: Node, args: tuple[Node, ...]) -> Node:
            if node.op == "load":
                return ir.load(declared(node.attr), args)
            return ir.with_args(node, args)

        return ir.substitute(root, replace)

    def registers(self, graph: Graph) -> tuple[list[int], list[int]]:
        """Return where a run of the program leaves the graph's tensors and scalars."""
        tensors = {decl.name: source for source, decl in self._buffers.items()}
        scalars = {decl.name: source for source, decl in self._scalars.items()}
        return (
            [self.program.register(tensors[b.name]) for b in graph.buffers],
            [self.program.register(scalars[s.name]) for s in graph.scalars],
        )

    # ---- conditions under which the trace holds ----------------------------------------------

    def require_type(self, source: Source, value: Any) -> None:
        """Require a value of exactly this type on each call."""
        kind = type(value)
        # a class is held weakly: a cached trace must not keep a mod's own classes alive
        ref = weakref.ref(kind) if kind.__flags__ & (1 << 9) else lambda: kind  # heap types only
        self.program.check(source, lambda v: type(v) is ref(), ("type", id(kind)))

    def require_tensor(self, source: Source, tensor: torch.Tensor) -> None:
        """Require a strided tensor of this class of dtypes and number of axes on each call."""
        rank, dtype = tensor.dim(), dtype_class(tensor.dtype)

        def test(value: Any) -> bool:
            return (
                isinstance(value, torch.Tensor)
                and value.dim() == rank
                and dtype_class(value.dtype) is dtype
                and _is_strided(value)
            )

        self.program.check(source, test, "tensor")

    def require_true(self, source: Source) -> None:
        """Require on each call what holds by the structure of the code, such as ``f is f``."""
        self.program.check(source, lambda v: v is True, ("value", True))

    def specialise(self, source: Source, value: Any) -> None:
        """Require this value on each call."""
        guard = f"{describe(source)} {'is' if value is None else '=='} {value!r}"
        if type(value) is set:
            value = value.copy()
        kind = type(value)
        if value is None or kind is bool:
            self.program.check(source, lambda v: v is value, ("value", value), guard)
        elif value != value:  # NaN
            self.program.check(source, lambda v: type(v) is kind and v != v, "nan", guard)
        else:
            self.program.check(
                source, lambda v: type(v) is kind and v == value, ("value", repr(value)), guard
            )

    def require_same(self, source: Source, value: Any) -> None:
        """Require this very object on each call."""
        try:
            ref: Callable[[], Any] = weakref.ref(value)
        except TypeError:
            ref = lambda: value  # noqa: E731 - the object cannot be held weakly
        code = (types.ModuleType, types.FunctionType, types.BuiltinFunctionType, type)
        guard = f"{describe(source)} is the same {type(value).__name__}"
        guard = "" if isinstance(value, code) else guard  # what people never mean to vary
        self.program.check(source, lambda v: v is ref(), ("same", id(value)), guard)

    # ---- tensors made inside the mod ---------------------------------------------------------

    def made(self, value: Any) -> Any:
        """Note tensors that torch made while the mod ran; they are constants of the trace."""
        for tensor in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(tensor, torch.Tensor):
                self._made[id(tensor)] = tensor
        return value

    def made_inside(self, tensor: torch.Tensor) -> bool:
        """Return whether the mod made this tensor out of constants."""
        return self._made.get(id(tensor)) is tensor and not tensor.requires_grad

    # ---- wrapping -----------------------------------------------------------------------------

    def computed(self, value: Any, source: Source) -> Any:
        """Wrap the result of a computation on captured values; a bool is not specialised yet."""
        return HostScalar(self, source, value) if type(value) is bool else self.wrap(value, source)

    def wrap(self, value: Any, source: Source, parents: recording.Parents = ()) -> Any:
        """Return what the mod sees instead of a captured value.

        Args:
            value: the value as it is now.
            source: how to read it again.
            parents: the functions being rebuilt around it, which may be what it refers back to.
        """
        return wrappers.wrap(self, value, source, parents)

    def watch(self, source: Source, unchanged: Callable[[], bool]) -> None:
        """Remember to check after the trace that something captured was not changed."""
        self._snapshots.append((source, unchanged))

    def check_unchanged(self, where: Callable[[], Any]) -> None:
        """Refuse a mod that changed what it captured.

        Args:
            where: finds the mod's definition, for the message: its file is read for that.

        Raises:
            CaptureError: a variable, container or global was assigned to.
        """
        for source, unchanged in self._snapshots:
            if not unchanged():
                raise ChangedCaptureError(
                    where=where(),
                    name=f"`{describe(source)}`",
                    change="changed",
                    rewrite="change it outside the mod",
                )


def _is_strided(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_nested
