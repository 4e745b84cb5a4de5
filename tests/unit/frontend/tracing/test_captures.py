"""Captured values are read anew on each call; only what was specialised is ever traced anew."""

from __future__ import annotations

import enum
import functools
import gc
import math
import types
import weakref
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from flexfa4.counters import stats
from flexfa4.errors import CaptureError, UnsupportedFunctionError, Where
from flexfa4.frontend.tracing.trace import guards, resolve

Make = Callable[[Any], Callable[..., Any]]
WINDOW = 0
module = types.ModuleType("settings")
Pair = namedtuple("Pair", "first second")


def traces(action: Callable[[], Any]) -> int:
    before = stats()
    action()
    return (stats() - before).traces


# ---- paths: every way in which a mod can reach a value -------------------------------------------


def by_closure(value: Any) -> Callable[..., Any]:
    return lambda s, b, h, q, kv: s + use(value, q)


def use(value: Any, q: Any) -> Any:
    return value[q] if isinstance(value, torch.Tensor) else value * q


def by_global(value: Any) -> Callable[..., Any]:
    global WINDOW
    WINDOW = value
    return reads_global


def reads_global(s, b, h, q, kv):
    return s + use(WINDOW, q)


def by_default(value: Any) -> Callable[..., Any]:
    return lambda s, b, h, q, kv, value=value: s + use(value, q)


def by_keyword_default(value: Any) -> Callable[..., Any]:
    def mod(s, b, h, q, kv, *, value=value):
        return s + use(value, q)

    return mod


def by_partial_argument(value: Any) -> Callable[..., Any]:
    return functools.partial(takes_value_first, value)


def by_partial_keyword(value: Any) -> Callable[..., Any]:
    return functools.partial(takes_keyword, value=value)


def takes_value_first(value, s, b, h, q, kv):
    return s + use(value, q)


def takes_keyword(s, b, h, q, kv, *, value):
    return s + use(value, q)


@dataclass(frozen=True, eq=False)
class Holder:
    value: Any
    extra: list[Any] = field(default_factory=list)

    @property
    def same(self) -> Any:
        return self.value

    def method(self, s, b, h, q, kv):
        return s + use(self.value, q)

    def through_method(self, s, b, h, q, kv):
        return self.method(s, b, h, q, kv)

    def through_property(self, s, b, h, q, kv):
        return s + use(self.same, q)

    def __call__(self, s, b, h, q, kv):
        return s + use(self.value, q)


class Slotted:
    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def mod(self, s, b, h, q, kv):
        return s + use(self.value, q)


class Child(Slotted):
    __slots__ = ()

    def mod(self, s, b, h, q, kv):
        return super().mod(s, b, h, q, kv)


class Network(torch.nn.Module):
    def __init__(self, value: Any) -> None:
        super().__init__()
        if isinstance(value, torch.Tensor):
            self.register_buffer("value", value)
        else:
            self.value = value

    def forward(self, s, b, h, q, kv):
        return s + use(self.value, q)


def by_module(value: Any) -> Callable[..., Any]:
    module.value = value  # type: ignore[attr-defined]
    return lambda s, b, h, q, kv: s + use(module.value, q)


def by_function_attribute(value: Any) -> Callable[..., Any]:
    def helper(q):
        return use(helper.value, q)  # type: ignore[attr-defined]

    helper.value = value  # type: ignore[attr-defined]
    return lambda s, b, h, q, kv: s + helper(q)


def by_cached_function(value: Any) -> Callable[..., Any]:
    return functools.lru_cache(lambda s, b, h, q, kv: s + use(value, q))


def by_nested_container(value: Any) -> Callable[..., Any]:
    config: dict[str, Any] = OrderedDict(pair=Pair([value], "text"), unused=3)
    return lambda s, b, h, q, kv: s + use(config["pair"].first[0], q)


def by_helper_of_helper(value: Any) -> Callable[..., Any]:
    def inner(q):
        return use(value, q)

    def outer(q):
        return inner(q)

    return lambda s, b, h, q, kv: s + outer(q)


PATHS: dict[str, Make] = {
    "closure": by_closure,
    "global": by_global,
    "default": by_default,
    "keyword default": by_keyword_default,
    "partial argument": by_partial_argument,
    "partial keyword": by_partial_keyword,
    "attribute of a callable object": Holder,
    "bound method": lambda value: Holder(value).method,
    "method that calls a method": lambda value: Holder(value).through_method,
    "property": lambda value: Holder(value).through_property,
    "attribute of a closed-over object": lambda value: by_closure_object(Holder(value)),
    "slots": lambda value: Slotted(value).mod,
    "super": lambda value: Child(value).mod,
    "torch module": Network,
    "attribute of a module": by_module,
    "attribute of a function": by_function_attribute,
    "function under lru_cache": by_cached_function,
    "containers in containers": by_nested_container,
    "helper of a helper": by_helper_of_helper,
}


def by_closure_object(holder: Holder) -> Callable[..., Any]:
    return lambda s, b, h, q, kv: s + use(holder.value, q)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("values", [(3, 5, -7), (0.5, 2.0, -1.25)], ids=["int", "float"])
def test_a_changed_number_is_read_and_never_traced_anew(path: str, values: tuple[Any, ...]) -> None:
    first, *others = values
    make = PATHS[path]
    assert resolve(make(first), "score").scalars == (first,)
    for value in others:
        mod = make(value)
        assert traces(lambda mod=mod: resolve(mod, "score")) == 0
        bound = resolve(mod, "score")
        assert bound.scalars == (value,)
        assert bound.graph.root.op == "add"


@pytest.mark.parametrize("path", PATHS)
def test_a_changed_tensor_is_read_and_never_traced_anew_whatever_its_size(path: str) -> None:
    make = PATHS[path]
    resolve(make(torch.arange(4.0)), "score")
    other = torch.arange(9.0)
    mod = make(other)
    assert traces(lambda: resolve(mod, "score")) == 0
    (read,) = resolve(mod, "score").tensors
    assert read is other


@pytest.mark.parametrize("path", PATHS)
def test_a_value_of_another_kind_is_traced_anew_once(path: str) -> None:
    make = PATHS[path]
    resolve(make(3), "score")
    resolve(make(torch.arange(4.0)), "score")
    assert traces(lambda: resolve(make(torch.arange(4)), "score")) == 1  # f32 -> i32
    assert traces(lambda: resolve(make(torch.arange(5)), "score")) == 0
    assert traces(lambda: resolve(make(4), "score")) == 0  # the first trace is still there
    assert resolve(make(2.5), "score").graph.scalars[0].dtype.value == "f32"


def test_an_attribute_assigned_between_calls_is_read() -> None:
    holder = Slotted(3)
    mod = holder.mod
    resolve(mod, "score")
    holder.value = 8
    assert traces(lambda: resolve(mod, "score")) == 0
    assert resolve(mod, "score").scalars == (8,)


# ---- what is specialised -------------------------------------------------------------------------


def branching(width: Any) -> Callable[..., Any]:
    def mod(b, h, q, kv):
        return q - kv < width if width > 0 else q >= kv

    return mod


def test_a_comparison_is_specialised_on_its_outcome_and_not_on_the_value() -> None:
    resolve(branching(5), "mask")
    assert guards(branching(5), "mask") == ("(width > 0) == True",)
    assert traces(lambda: resolve(branching(6), "mask")) == 0
    assert resolve(branching(6), "mask").scalars == (6,)
    assert traces(lambda: resolve(branching(-1), "mask")) == 1
    assert traces(lambda: (resolve(branching(-2), "mask"), resolve(branching(7), "mask"))) == 0


SPECIALISED: dict[str, tuple[Callable[[Any], Callable[..., Any]], Any, Any, str]] = {
    "range": (lambda n: lambda b, h, q, kv: sum(q + i for i in range(n)) > kv, 3, 4, "n == 3"),
    "list index": (lambda n: lambda b, h, q, kv: q > [5, 6, 7, 8][n], 1, 2, "n == 1"),
    "dict key": (lambda n: lambda b, h, q, kv: q > {1: 5, 2: 6}[n], 1, 2, "n == 1"),
    "text": (lambda n: lambda b, h, q, kv: q > len(f"{n}"), 7, 42, "n == 7"),
    "int()": (lambda x: lambda b, h, q, kv: q > int(x), 2.5, 3.5, "x == 2.5"),
    "truth": (lambda n: lambda b, h, q, kv: q > kv if n else q < kv, 0, 3, "bool(n) == False"),
    "bool": (lambda f: lambda b, h, q, kv: q > kv if f else q < kv, True, False, "f == True"),
    "None": (lambda n: lambda b, h, q, kv: q > kv if n is None else q < kv, None, "x", "n is None"),
    "str": (lambda n: lambda b, h, q, kv: q > kv if n == "a" else q < kv, "a", "b", "n == 'a'"),
    "dtype": (lambda t: lambda b, h, q, kv: q > (1 if t.dtype is torch.float16 else 2),
              torch.ones(1, dtype=torch.float16), torch.ones(1, dtype=torch.bfloat16),
              "t.dtype == torch.float16"),
    "len of a tensor": (lambda t: lambda b, h, q, kv: q > len(t), torch.ones(2), torch.ones(3),
                        "len(t) == 2"),
}  # fmt: skip


@pytest.mark.parametrize("name", SPECIALISED)
def test_a_value_that_python_itself_needs_is_specialised(name: str) -> None:
    make, first, second, guard = SPECIALISED[name]
    graph = resolve(make(first), "mask").graph
    assert guard in guards(make(first), "mask")
    assert traces(lambda: resolve(make(second), "mask")) == 1
    assert resolve(make(second), "mask").graph != graph
    assert traces(lambda: (resolve(make(first), "mask"), resolve(make(second), "mask"))) == 0


def test_an_attribute_that_appears_later_is_seen() -> None:
    class Optional:
        def __call__(self, b, h, q, kv):
            return q - kv < self.width if hasattr(self, "width") else q >= kv

    plain, wide = Optional(), Optional()
    wide.width = 4  # type: ignore[attr-defined]
    assert resolve(plain, "mask").scalars == ()
    assert resolve(wide, "mask").scalars == (4,)
    assert traces(lambda: (resolve(plain, "mask"), resolve(wide, "mask"))) == 0


def test_an_enum_member_is_specialised_by_identity() -> None:
    class Mode(enum.Enum):
        CAUSAL = 1
        FULL = 2

    def make(mode: Mode) -> Callable[..., Any]:
        return lambda b, h, q, kv: q >= kv if mode is Mode.CAUSAL else q == q

    assert resolve(make(Mode.CAUSAL), "mask").graph != resolve(make(Mode.FULL), "mask").graph
    assert traces(lambda: resolve(make(Mode.CAUSAL), "mask")) == 0


def test_two_closures_of_one_function_are_told_apart_by_their_helpers_code() -> None:
    def combine(*mods: Any) -> Callable[..., Any]:
        return lambda b, h, q, kv: functools.reduce(
            lambda x, y: x & y, [m(b, h, q, kv) for m in mods]
        )

    def window(w: int) -> Callable[..., Any]:
        return lambda b, h, q, kv: q - kv < w

    causal = lambda b, h, q, kv: q >= kv  # noqa: E731
    first = resolve(combine(window(3), causal), "mask")
    assert traces(lambda: resolve(combine(causal, window(3)), "mask")) == 1
    assert traces(lambda: resolve(combine(window(5), causal), "mask")) == 0
    assert first.scalars == (3,)
    same = window(4)
    twice = resolve(combine(same, same), "mask")
    assert twice.scalars and set(twice.scalars) == {4}
    assert set(resolve(combine(window(1), window(2)), "mask").scalars) == {1, 2}


def test_a_function_that_refers_to_itself_is_followed() -> None:
    def make(depth: int, step: int) -> Callable[..., Any]:
        def shifted(q, n):
            return q if n == 0 else shifted(q + step, n - 1)

        return lambda b, h, q, kv: shifted(q, depth) > kv

    assert resolve(make(2, 5), "mask").scalars == (5,)
    assert traces(lambda: resolve(make(2, 6), "mask")) == 0


def test_one_global_read_by_several_functions_is_one_captured_value() -> None:
    by_global(3)
    mod = lambda s, b, h, q, kv: reads_global(s, b, h, q, kv) + WINDOW  # noqa: E731
    assert resolve(mod, "score").scalars == (3,)


# ---- computing with captured values --------------------------------------------------------------

ON_THE_HOST: dict[str, Callable[[Any, Any], Any]] = {
    "scaled table": lambda t, w: (t * w)[0],
    "torch function": lambda t, w: torch.exp(t)[0],
    "method": lambda t, w: t.cumsum(0)[1],
    "item": lambda t, w: t[1].item() * 2,
    "item by captured index": lambda t, w: t[w],
    "size": lambda t, w: t.shape[0] * 2 + t.size(0) + t.numel(),
    "views": lambda t, w: t.view(2, 2).T[None].squeeze(0)[1, 0],
    "cast": lambda t, w: t.to(torch.int64)[1] + t.half().float()[0],
    "several results": lambda t, w: t.max(dim=0).values + t.sort()[0][1] + t.unbind()[2],
    "tensor of captured numbers": lambda t, w: torch.tensor([w, w * 2.0]).sum(),
    "integers": lambda t, w: w // 2 + w % 3 + w**2 - (-w) + abs(-w) + round(w / 3),
    "math module": lambda t, w: math.sqrt(w + 2) + math.floor(w / 2) + math.log2(w + 1),
    "divmod": lambda t, w: divmod(w + 5, 3)[0] * divmod(7, w)[1],
    "comparison": lambda t, w: (w > 2) * 3,
}


@pytest.mark.parametrize("name", ON_THE_HOST)
def test_a_computation_on_captured_values_is_done_again_on_each_call(name: str) -> None:
    compute = ON_THE_HOST[name]

    def make(t: Any, w: Any) -> Callable[..., Any]:
        return lambda s, b, h, q, kv: s + compute(t, w)

    tensors = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([5.0, 9.0, 6.0, 7.0])
    resolve(make(tensors[0], 1), "score")
    mod = make(tensors[1], 3)
    assert traces(lambda: resolve(mod, "score")) == 0
    bound = resolve(mod, "score")
    got = value_of(bound)
    assert got == pytest.approx(float(compute(tensors[1], 3)))


def value_of(bound: Any) -> float:
    """Evaluate a score graph that depends on no input but the score, at score 0."""
    from flexfa4.frontend.evaluate import Program, Values
    from flexfa4.frontend.lanes import Lanes

    values = Values(
        tensors=dict(zip(bound.graph.buffers, bound.tensors, strict=True)),
        scalars=dict(zip(bound.graph.scalars, bound.scalars, strict=True)),
    )
    (result,) = Program([bound.graph.root]).run(
        values, Lanes((0, 1), (0, 1), (0, 1), (0, 1)), torch.zeros(1, 1, 1, 1)
    )
    return float(result)


def test_gradients_flow_through_computations_on_captured_tensors() -> None:
    bias = torch.nn.Parameter(torch.randn(3, 4))
    mod = lambda s, b, h, q, kv: s + (bias * 2)[h, q]  # noqa: E731
    for _ in range(2):
        (tensor,) = resolve(mod, "score").tensors
        bias.grad = None
        tensor.sum().backward()
        assert torch.equal(bias.grad, torch.full((3, 4), 2.0))  # type: ignore[arg-type]


def test_numpy_values_are_numbers_and_tensors() -> None:
    np = pytest.importorskip("numpy")

    def make(table: Any, n: Any, x: Any) -> Callable[..., Any]:
        return lambda s, b, h, q, kv: s + table[q] * x + n

    table = np.arange(4.0)
    bound = resolve(make(table, np.int64(3), np.float32(0.5)), "score")
    assert bound.scalars == (0.5, 3)
    table[0] = 9.0
    assert bound.tensors[0][0] == 9.0  # the array's own memory
    assert traces(lambda: resolve(make(np.ones(7), np.int64(5), np.float32(2)), "score")) == 0


def test_tensors_made_inside_are_constants_of_the_trace() -> None:
    mod = lambda b, h, q, kv: torch.arange(8)[q % 8] > kv + torch.tensor(3)  # noqa: E731
    bound = resolve(mod, "mask")
    assert torch.equal(bound.tensors[0], torch.arange(8))
    assert [b.shape for b in bound.graph.buffers] == [(None,)]  # one element is a number


# ---- what is refused -----------------------------------------------------------------------------

TABLE = torch.arange(8.0)


def assigns_global(b, h, q, kv):
    global WINDOW
    WINDOW = 3
    return q > kv


def assigns_nonlocal() -> Callable[..., Any]:
    count = 0

    def mod(b, h, q, kv):
        nonlocal count
        count += 1
        return q > kv

    return mod


class AssignsAttribute:
    def __call__(self, b, h, q, kv):
        self.count = 1
        return q > kv


CALLS: list[int] = []
STATE: dict[str, int] = {"a": 1}


def changes_dict(b, h, q, kv):
    STATE["b"] = 2
    return q > kv


REFUSED: list[tuple[str, Callable[..., Any], type[Exception], str]] = [
    ("global", assigns_global, CaptureError, "changed inside"),
    ("nonlocal", assigns_nonlocal(), CaptureError, "`count`"),
    ("attribute", AssignsAttribute(), CaptureError, "assigned to inside the mod"),
    ("list", lambda b, h, q, kv: (CALLS.append(1), q > kv)[1], CaptureError, "`CALLS`"),
    ("dict", changes_dict, CaptureError, "`STATE`"),
    ("in-place method", lambda b, h, q, kv: TABLE.add_(1)[q] > 0, UnsupportedFunctionError,
     "changing the captured tensor TABLE by add_()"),
    ("parameter made inside", lambda b, h, q, kv: torch.nn.Parameter(torch.ones(3))[q] > 0,
     CaptureError, "neither reachable"),
    ("complex tensor", lambda b, h, q, kv: TABLE.to(torch.complex64)[q] == 1, CaptureError,
     "a complex tensor"),
    ("sparse tensor", lambda b, h, q, kv: (TABLE.to_sparse() * 2)[q] > 0, CaptureError, "sparse"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("mod", "kind", "text"), [r[1:] for r in REFUSED], ids=[r[0] for r in REFUSED]
)
def test_what_cannot_be_followed_or_is_changed_is_refused(
    mod: Callable[..., Any], kind: type[Exception], text: str
) -> None:
    before = TABLE.clone()
    with pytest.raises(kind) as caught:
        resolve(mod, "mask")
    assert text in str(caught.value)
    assert isinstance(caught.value.where, Where)  # type: ignore[attr-defined]
    assert torch.equal(TABLE, before) and CALLS == [] and STATE == {"a": 1} and WINDOW != -1


def test_a_value_that_differs_at_each_reading_is_refused() -> None:
    class Fresh:
        def __getattr__(self, name: str) -> type:
            return type(name, (), {})  # another class at each reading

        def __call__(self, b, h, q, kv):
            return q > kv if self.mode is int else q < kv

    with pytest.raises(CaptureError, match=r"mode` is different each time it is read"):
        resolve(Fresh(), "mask")


def test_the_users_own_exceptions_pass_unchanged() -> None:
    table = {"a": 1}
    with pytest.raises(KeyError, match="missing"):
        resolve(lambda b, h, q, kv: q > table["missing"], "mask")
    with pytest.raises(ZeroDivisionError):
        resolve(lambda b, h, q, kv: q > 1 / 0, "mask")


def test_a_failing_computation_at_a_later_call_raises_what_the_function_raises() -> None:
    make = lambda w: lambda b, h, q, kv: q > 6 // w  # noqa: E731
    assert resolve(make(2), "mask").scalars == (3,)
    with pytest.raises(ZeroDivisionError):
        resolve(make(0), "mask")


def test_traces_keep_neither_mods_nor_their_captures_nor_their_classes_alive() -> None:
    def use_once() -> list[weakref.ref[Any]]:
        class Local:
            def __init__(self) -> None:
                self.table = torch.ones(3)

            def __call__(self, s, b, h, q, kv):
                return s + self.table[q]

        holder, tensor = Local(), torch.ones(5)
        closure = lambda s, b, h, q, kv: s + tensor[q] * (tensor * 2)[q]  # noqa: E731
        resolve(holder, "score")
        resolve(closure, "score")
        return [weakref.ref(x) for x in (Local, holder, tensor, closure)]

    refs = use_once()
    gc.collect()
    assert [ref() for ref in refs] == [None] * 4
