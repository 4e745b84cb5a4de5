"""From a mod to its graph: tracing, the cache of traces, and `Mod`.

`resolve` is called on every attention call.  A hit reads the captured values and checks that the
trace holds (`sources.Program`); it never calls the user's function.  A miss calls it once, with
traced arguments, and keeps what that taught.

The sizes ``q_len``, ``kv_len``, ``num_heads`` and ``num_kv_heads`` are traced values that may be
used in expressions anywhere.

Traces are kept by the code object of the function that runs, so every closure made by one ``def``
shares them: at most `TRACES_PER_CODE` for each code object and kind, the newest first, the oldest
dropped.  They go away with the code object.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import threading
import weakref
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import FunctionType
from typing import Any, Final

import torch
from torch._C._dynamo.eval_frame import set_eval_frame
from torch.utils._python_dispatch import _disable_current_modes

from flexfa4.counters import count
from flexfa4.errors import (
    ArgumentError,
    ArityError,
    CaptureError,
    NotAFunctionError,
    ResultError,
    UnsupportedFunctionError,
    describe,
)
from flexfa4.frontend import ir
from flexfa4.frontend.binding import BoundGraph
from flexfa4.frontend.eager import result_on
from flexfa4.frontend.ir import Graph, Node
from flexfa4.frontend.places import Places
from flexfa4.frontend.text import snapshots
from flexfa4.frontend.tracing import contract, hosts, locate
from flexfa4.frontend.tracing.captures import Session
from flexfa4.frontend.tracing.combining import Combinable, KnownMod, written
from flexfa4.frontend.tracing.contract import Kind
from flexfa4.frontend.tracing.escapes import Net
from flexfa4.frontend.tracing.proxies import (
    Operators,
    Traced,
    as_node,
    inputs,
    kv_len,
    num_heads,
    num_kv_heads,
    op,
    q_len,
)
from flexfa4.frontend.tracing.sources import Attr, Item, Program, Root, Source
from flexfa4.frontend.tracing.torch_functions import Interception

__all__ = [
    "Mod",
    "guards",
    "kv_len",
    "num_heads",
    "num_kv_heads",
    "parse",
    "q_len",
    "resolve",
    "trace",
    "unpickled",
]

TRACES_PER_CODE: Final = 64


# ---- the cache -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Entry:
    """One trace.

    Attributes:
        program: reads the captured values and checks that the trace holds.
        graph: the simplified graph.
        tensors: registers of the graph's buffers.
        scalars: registers of the graph's scalars.
        places: where the user's source reads captured tensors.
    """

    program: Program
    graph: Graph
    tensors: list[int]
    scalars: list[int]
    places: Places

    def bind(self, mod: Any) -> BoundGraph | None:
        """Return the graph with the mod's present values, None where the trace does not hold."""
        r = self.program.run(mod)
        if r is None:
            return None
        if not self.tensors and not self.scalars:
            return self._without_captures
        value = r.__getitem__
        tensors, scalars = tuple(map(value, self.tensors)), tuple(map(value, self.scalars))
        return BoundGraph(self.graph, tensors, scalars, self.places)

    @functools.cached_property
    def _without_captures(self) -> BoundGraph:
        return BoundGraph(self.graph, places=self.places)


@dataclass
class _Traces:
    """The traces of one code object."""

    key: Callable[[], Any]
    entries: tuple[_Entry, ...] = ()


_CACHES: Final[dict[str, dict[int, _Traces]]] = {"score": {}, "mask": {}}
_LOCK: Final = threading.RLock()


def resolve(mod: Any, kind: Kind) -> BoundGraph:
    """Return the graph of a mod with the values that it captures now.

    Args:
        mod: a Python callable, a text, or a `Mod`.
        kind: ``"score"`` or ``"mask"``.

    Raises:
        TraceError: the mod uses something that has no meaning for one score.
        TextError: a text cannot be read.
    """
    key = mod.__code__ if type(mod) is FunctionType else _key(mod)
    if key is None:
        return _resolve_other(mod, kind)
    found = _lookup(mod, kind, key)
    if found is not None:
        return found
    with _LOCK:
        # another thread may have traced it while this one waited
        return _lookup(mod, kind, key) or _trace_and_keep(mod, kind, key)


def guards(mod: Any, kind: Kind) -> tuple[str, ...]:
    """Return on which captured values the present trace of a mod is specialised, as text."""
    key = _key(mod)
    if key is not None:
        resolve(mod, kind)
        for entry in _CACHES[kind][id(key)].entries:
            if entry.program.run(mod) is not None:
                return tuple(entry.program.guards)
    return mod.guards if isinstance(mod, Mod) else ()


def _key(mod: Any) -> Any:
    """Return the object whose identity finds the traces of a callable, None for other mods."""
    is_other = type(mod) is str or isinstance(mod, Mod) or not callable(mod)
    return None if is_other else contract.code_of(mod)


def _lookup(mod: Any, kind: Kind, key: Any) -> BoundGraph | None:
    traces = _CACHES[kind].get(id(key))
    if traces is not None and traces.key() is key:
        for entry in traces.entries:
            bound = entry.bind(mod)
            if bound is not None:
                return bound
    return None


def _trace_and_keep(mod: Any, kind: Kind, key: Any) -> BoundGraph:
    entry = _trace(mod, kind)
    bound = entry.bind(mod)
    if bound is None:
        raise CaptureError(
            where=contract.definition(mod),
            name=f"`{entry.program.first_failure(mod)}`",
            kind="different each time it is read, so no call could use an earlier trace",
            rewrite="read it once outside the mod and capture the result",
        )
    cache, number = _CACHES[kind], id(key)
    traces = cache.get(number)
    if traces is None or traces.key() is not key:
        forget = functools.partial(_forget, cache, number)
        cache[number] = traces = _Traces(weakref.ref(key, forget))
    traces.entries = (entry, *traces.entries)[:TRACES_PER_CODE]
    return bound


def _forget(cache: dict[int, _Traces], number: int, ref: Any) -> None:
    traces = cache.get(number)
    if traces is not None and traces.key is ref:
        del cache[number]


def _resolve_other(mod: Any, kind: Kind) -> BoundGraph:
    """Resolve what is no plain callable."""
    if isinstance(mod, str):
        mod = _text_mod(mod)
    if not isinstance(mod, Mod):
        raise NotAFunctionError(value=describe(mod), rewrite=contract.SIGNATURES[kind])
    if mod.kind != kind:
        raise ResultError(**contract.other_kind(mod.kind, kind))
    return mod.bind()


@functools.lru_cache(maxsize=256)
def _text_mod(text: str) -> Mod:
    return parse(text)


# ---- tracing -------------------------------------------------------------------------------------


def _without_modes() -> contextlib.AbstractContextManager[Any]:
    has_modes = torch._C._len_torch_dispatch_stack() > 0
    return _disable_current_modes() if has_modes else contextlib.nullcontext()


class _WithoutDynamo:
    """Keeps Dynamo from compiling functions that run while a mod is traced.

    It would where a function that ``torch.compile`` did not compile as a whole calls attention.
    """

    def __enter__(self) -> None:
        self._callback = set_eval_frame(None)

    def __exit__(self, *exception: object) -> None:
        set_eval_frame(self._callback)


# How often a mod is called before it is taken for one that makes random numbers: other threads make
# some as well, from the same state.
_TRIES: Final = 8


def _trace(mod: Any, kind: Kind) -> _Entry:
    """Call the user's function and return what that taught."""
    for _ in range(_TRIES if threading.active_count() > 1 else 1):
        entry = _called_once(mod, kind)
        if entry is not None:
            return entry
    raise UnsupportedFunctionError(
        where=contract.definition(mod),
        name="making random numbers",
        names="numbers that are the same for every call",
        rewrite="random numbers made outside the mod, in a captured tensor",
    )


def _called_once(mod: Any, kind: Kind) -> _Entry | None:
    """Return what a call of the function taught; None if random numbers were made meanwhile."""
    from flexfa4.frontend.pipeline import optimise

    arguments = inputs(kind)
    contract.check_arity(mod, kind, len(arguments))
    count("traces")
    session = Session()
    function = session.wrap(mod, Root())
    before, hosts.ACTIVE.session = hosts.ACTIVE.session, session
    try:
        # a trace outlives the modes that it happens in, such as those of fake tensors
        with _WithoutDynamo(), _without_modes(), Interception(), Net(kind):
            random_state = torch.get_rng_state()
            result = contract.called(mod, kind, function, arguments)
            is_random = not torch.equal(torch.get_rng_state(), random_state)
        root = contract.result_node(mod, kind, result)
        if is_random:
            return None
        session.check_unchanged(lambda: contract.definition(mod))
        graph = optimise(session.graph(kind, root))
        tensors, scalars = session.registers(graph)
    finally:
        hosts.ACTIVE.session = before
    return _Entry(session.program, graph, tensors, scalars, session.places())


# ---- Mod -----------------------------------------------------------------------------------------


class Mod(Combinable, KnownMod):
    """A traced or parsed mod; what `trace` and `parse` return.

    Usable wherever a function is, and called as one: inside another mod, and on tensors of scores
    and indices.  Masks combine with ``&``, ``|`` and ``~``, score mods by `flexfa4.compose`.

    Any Mod can be pickled, one made from a lambda too: pickle keeps its graph as text and the
    present values of its captures, not the function, and what is read back follows them no longer
    (`text.snapshots`).  ``copy.deepcopy`` copies as Python does, which shares functions and what
    they capture; tensors bound to a text and objects are copied.

    Attributes:
        kind: ``"score"`` or ``"mask"``.
    """

    kind: Kind

    @abstractmethod
    def bind(self) -> BoundGraph:
        """Return the graph with the captured values as they are now."""

    @property
    @abstractmethod
    def guards(self) -> tuple[str, ...]:
        """The captured values on which the graph is specialised, as text."""

    @abstractmethod
    def __call__(self, *args: Any) -> Any:
        """Return the result on score (for a score mod), b, h, q_idx, kv_idx.

        These are values of another mod, or tensors whose shapes broadcast.
        """

    @property
    def graph(self) -> Graph:
        """The simplified graph."""
        return self.bind().graph

    def __copy__(self) -> Mod:
        return self

    def __reduce__(self) -> Any:
        return (unpickled, (snapshots.state_of(self.bind()),))

    def __str__(self) -> str:
        return str(self.graph)


class FunctionMod(Mod):
    """A Mod made from a Python callable."""

    def __init__(self, function: Callable[..., Any], kind: Kind) -> None:
        self.function, self.kind = function, kind

    def bind(self) -> BoundGraph:
        return resolve(self.function, self.kind)

    @property
    def guards(self) -> tuple[str, ...]:
        return guards(self.function, self.kind)

    def __call__(self, *args: Any) -> Any:
        return self.function(*args)

    def __deepcopy__(self, memo: dict[int, Any]) -> Mod:
        return FunctionMod(copy.deepcopy(self.function, memo), self.kind)

    def __repr__(self) -> str:
        return f"trace({written(self.function)})"

    def captured(self, session: Session, source: Source, parents: Any) -> Callable[..., Any]:
        session.require_type(source, self)
        wrapped: Callable[..., Any] = session.wrap(self.function, Attr(source, "function"), parents)
        return wrapped


class TextMod(Mod):
    """A Mod made from a text or read by pickle; its values are those that it was made with."""

    def __init__(self, bound: BoundGraph, text: str, kind: Kind) -> None:
        self.bound, self.text, self.kind = bound, text, kind

    @classmethod
    def of(cls, bound: BoundGraph) -> TextMod:
        """Return the mod of a graph and its values."""
        return cls(bound, str(bound.graph), bound.graph.kind)

    def __repr__(self) -> str:
        graph = self.bound.graph
        names = [*(b.name for b in graph.buffers), *(s.name for s in graph.scalars)]
        values = (*self.bound.tensors, *self.bound.scalars)
        given = [f"{n}={describe(v)}" for n, v in zip(names, values, strict=True)]
        text = "; ".join(self.text.split("\n")[len(names) :])
        return f"parse({', '.join([repr(text), *given])})"

    def bind(self) -> BoundGraph:
        return self.bound

    @property
    def guards(self) -> tuple[str, ...]:
        return ()

    def __call__(self, *args: Any) -> Any:
        if torch.compiler.is_dynamo_compiling():
            from flexfa4.frontend.tracing import tape

            if (running := tape.running()) is not None:
                return running.inline(self.text, self.bound.tensors, self.bound.scalars, args)
        if hosts.ACTIVE.session is None and not any(isinstance(a, Operators) for a in args):
            return result_on(self.bound, named_arguments(self.kind, args), locate.here)
        if self.bound.tensors or self.bound.scalars:
            raise CaptureError(
                where=locate.here(),
                name="a text mod with bindings",
                kind="made inside another mod",
                rewrite="make it outside and capture it",
            )
        return inline_graph(self.bound.graph, args, {})

    def captured(self, session: Session, source: Source, parents: Any) -> Callable[..., Any]:
        graph = self.bound.graph
        session.program.check(
            source, lambda v: type(v) is TextMod and v.bound.graph == graph, "graph"
        )
        values = Attr(source, "bound")

        def inlined(*args: Any) -> Any:
            leaves: dict[Any, Any] = {}
            for i, (buffer, tensor) in enumerate(
                zip(graph.buffers, self.bound.tensors, strict=True)
            ):
                path = Item(Attr(values, "tensors"), i)
                leaves[buffer] = session.buffer(path, tensor, buffer.name)
                for axis, size in enumerate(buffer.shape):
                    if size is not None:
                        session.static_size(path, tensor, axis)
            for i, (scalar, value) in enumerate(
                zip(graph.scalars, self.bound.scalars, strict=True)
            ):
                leaves[scalar] = session.scalar(
                    Item(Attr(values, "scalars"), i), value, scalar.name
                )

            def note(load: Node, made: Node) -> None:
                session.noted(made, functools.partial(self.bound.places.where, load))

            return inline_graph(graph, args, leaves, note)

        return inlined


def unpickled(state: Any) -> Mod:
    """Return the Mod that pickle kept the state of.

    Raises:
        PickleFormatError: another release wrote it in another format.
        DamagedPickleError: its parts do not go together.
    """
    return TextMod.of(snapshots.restored(state))


def named_arguments(kind: Kind, args: tuple[Any, ...]) -> dict[str, Any]:
    """Return the arguments of a text mod by name.

    Raises:
        ArityError: there are more or fewer than mods of this kind take.
    """
    names = [name for name in ir.INPUTS if name != "score" or kind == "score"]
    if len(args) != len(names):
        raise ArityError(
            where=locate.here(),
            name="a text mod",
            count=len(names),
            rewrite=f"mod({', '.join(names)})",
        )
    return dict(zip(names, args, strict=True))


def inline_graph(
    graph: Graph,
    args: tuple[Any, ...],
    leaves: dict[Any, Any],
    note: Callable[[Node, Node], object] = lambda load, made: None,
) -> Traced:
    """Return the result of a graph on traced arguments.

    Args:
        graph: the graph.
        args: traced arguments of its kind of mod.
        leaves: what stands for each captured tensor and number.
        note: called with each load of the graph and the one that stands for it.
    """
    given = {name: as_node(arg) for name, arg in named_arguments(graph.kind, args).items()}

    def replace(node: Node, operands: tuple[Node, ...]) -> Node:
        if node.op == "input":
            return op("to_" + node.dtype.value, given[node.attr])
        if node.op == "scalar":
            stand_in: Node = leaves[node.attr]
            return stand_in
        if node.op == "load":
            made = ir.load(leaves[node.attr], operands)
            note(node, made)
            return made
        if node.op == "size":
            return ir.size(leaves[node.attr[0]], node.attr[1])
        return ir.with_args(node, operands)

    return Traced(ir.substitute(graph.root, replace))


def trace(fn: Any, kind: Kind | None = None) -> Mod:
    """Trace a mod.

    What a mod may contain is in docs/mods.md of the project.

    Args:
        fn: a Python callable; a text or a `Mod` is returned as a Mod, too.
        kind: ``"score"`` or ``"mask"``; by default the number of parameters without defaults
            decides, 5 for a score mod and 4 for a mask.

    Raises:
        ArgumentError: `kind` is neither "score" nor "mask".
        ArityError: the parameters decide for neither.
        TraceError: the mod uses something that has no meaning for one score.
    """
    if torch.compiler.is_dynamo_compiling():
        from flexfa4.frontend.tracing import tape

        return tape.trace_outside(fn, kind)
    contract.check_kind(kind)
    mod = fn if isinstance(fn, Mod) else _text_mod(fn) if isinstance(fn, str) else None
    if mod is None:
        mod = FunctionMod(fn, kind or contract.kind_of(fn))
    resolve(mod, kind or mod.kind)
    return mod


def parse(text: str, /, **bindings: Any) -> Mod:
    """Read a mod from text, such as ``parse("q >= kv and q - kv <= w", w=1024)``.

    A text is an expression of ``score``, ``b``, ``h``, ``q``, ``kv``, the sizes ``q_len``,
    ``kv_len``, ``num_heads``, ``num_kv_heads`` and the bound names: a score mod if it is a number,
    a mask if it is a bool.  It has Python's operators and their precedence; ``and``, ``or``,
    ``not`` and ``a if c else b``; ``exp(x)``, ``where(c, a, b)``, ``clamp(x, lo, hi)`` and the like
    by their bare names; ``table[h, :]`` for an element or a vector of a bound tensor.  Before it,
    in lines of their own, may stand values with names (``d = q - kv``) and the types of bindings
    (``w: i32``, ``table: f32[_, 64]``).  An expression over several lines stands in parentheses.
    docs/mods.md of the project has it all, with the list of functions.

    Args:
        text: the text.
        bindings: the captured values by name: tensors, ints, floats, bools; a list of numbers, or
            of lists of them, is copied into a tensor.

    Raises:
        ArgumentError: `text` is no str.
        TextError: the text cannot be read, or the bindings do not fit it.
        OperandError: dtypes do not go together, or integers have no result, such as ``q // 0``.
    """
    if torch.compiler.is_dynamo_compiling():
        from flexfa4.frontend.tracing import tape

        if bindings:
            return tape.parse_outside(text, **bindings)
        return TextMod(tape.parsed(text), tape.parsed_text(text), tape.parsed_kind(text))
    from flexfa4.frontend.pipeline import optimise
    from flexfa4.frontend.text.bindings import of_lists
    from flexfa4.frontend.text.printing import bind_values, check_integers, parse_graph

    if not isinstance(text, str):
        raise ArgumentError(
            name="text",
            found_value=describe(text),
            expected="a str, such as 'q >= kv'",
            rewrite="flexfa4.trace(function) for a function, bytes.decode() for bytes",
        )
    bindings = of_lists(bindings)
    parsed = parse_graph(text, bindings)
    check_integers(parsed.graph, bindings)
    bound = bind_values(optimise(parsed.graph), bindings)
    return TextMod.of(replace(bound, places=Places(parsed.loads)))
