"""Resolving a mod: kinds of mods, the cache, arity and results, `Mod`."""

from __future__ import annotations

import functools
import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from flexfa4.counters import stats
from flexfa4.errors import (
    ArityError,
    CaptureError,
    FlexFA4Error,
    NotAFunctionError,
    ResultError,
    Where,
)
from flexfa4.frontend.tracing import trace as module
from flexfa4.frontend.tracing.trace import Mod, guards, kv_len, parse, q_len, resolve, trace

TABLE = torch.arange(8.0)


def counted(action: Callable[[], Any]) -> tuple[int, int]:
    """Return how many traces and parses an action caused."""
    before = stats()
    action()
    since = stats() - before
    return since.traces, since.parses


# ---- kinds of mods -------------------------------------------------------------------------------


class Window:
    def __init__(self, width: int) -> None:
        self.width = width

    def __call__(self, b, h, q, kv):
        return q - kv < self.width

    def mask(self, b, h, q, kv):
        return q - kv < self.width

    @classmethod
    def of_class(cls, b, h, q, kv):
        return q - kv < 3

    @staticmethod
    def static(b, h, q, kv):
        return q - kv < 3


def any_arguments(*args):
    return args[2] - args[3] < 3


def with_defaults(b, h, q, kv, width=3, *, factor=1):
    return factor * (q - kv) < width


KINDS: dict[str, Any] = {
    "lambda": lambda b, h, q, kv: q - kv < 3,
    "*args": any_arguments,
    "extra defaults": with_defaults,
    "partial of a partial": functools.partial(functools.partial(with_defaults, factor=1), width=3),
    "partial of a method": functools.partial(Window(3).mask),
    "callable object": Window(3),
    "bound method": Window(3).mask,
    "class method": Window.of_class,
    "static method": Window.static,
    "text": "q - kv < 3",
    "Mod of a function": trace(lambda b, h, q, kv: q - kv < 3),
    "Mod of a text": parse("q - kv < w", w=3),
}


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_mod_is_taken_and_kept(name: str) -> None:
    mod = KINDS[name]
    bound = resolve(mod, "mask")
    text = str(bound.graph).splitlines()[-1]
    for scalar, value in zip(bound.graph.scalars, bound.scalars, strict=True):
        text = text.replace(scalar.name, str(value))
    assert text in ("q - kv < 3", "1 * (q - kv) < 3")
    assert counted(lambda: resolve(mod, "mask")) == (0, 0)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own compiler
def test_a_function_under_torch_compile_is_taken_as_it_is() -> None:
    make = lambda w: torch.compile(lambda b, h, q, kv: q - kv < w)  # noqa: E731
    assert resolve(make(3), "mask").scalars == (3,)
    assert counted(lambda: resolve(make(4), "mask")) == (0, 0)


def test_a_function_is_called_once_however_often_it_is_resolved() -> None:
    mod = lambda b, h, q, kv: q * 7 - kv > 1  # noqa: E731
    assert counted(lambda: [resolve(mod, "mask") for _ in range(5)]) == (1, 0)


def test_one_function_may_serve_as_both_kinds() -> None:
    def mod(*args):
        return args[0] if len(args) == 5 else args[2] > args[3]

    assert resolve(mod, "score").graph.kind == "score"
    assert resolve(mod, "mask").graph.kind == "mask"


def test_constant_results_are_graphs() -> None:
    assert str(resolve(lambda b, h, q, kv: True, "mask").graph) == "True"
    assert str(resolve(lambda s, b, h, q, kv: 0.0, "score").graph) == "0.0"
    assert str(resolve(lambda s, b, h, q, kv: q - kv, "score").graph) == "f32(q - kv)"
    assert str(resolve(lambda s, b, h, q, kv: torch.tensor([2.0]), "score").graph) == "2.0"


# ---- the cache -----------------------------------------------------------------------------------


def test_at_most_a_fixed_number_of_traces_is_kept_for_one_code_object() -> None:
    make = lambda n: lambda b, h, q, kv: q > len(range(n)) * kv  # noqa: E731
    for n in range(module.TRACES_PER_CODE + 5):
        resolve(make(n), "mask")
    code = make(0).__code__
    assert len(module._CACHES["mask"][id(code)].entries) == module.TRACES_PER_CODE
    assert counted(lambda: resolve(make(n), "mask")) == (0, 0)  # the newest is there
    assert counted(lambda: resolve(make(0), "mask")) == (1, 0)  # the oldest is not


def test_traces_go_away_with_their_code() -> None:
    def resolve_once() -> int:
        namespace: dict[str, Any] = {"__name__": "user"}
        exec("def mod(b, h, q, kv):\n    return q > kv", namespace)
        resolve(namespace["mod"], "mask")
        return id(namespace["mod"].__code__)

    number = resolve_once()
    gc.collect()
    assert number not in module._CACHES["mask"]


def test_threads_that_resolve_together_trace_once() -> None:
    start = threading.Barrier(4)
    mod = lambda b, h, q, kv: q * 11 > kv  # noqa: E731
    results: list[Any] = []

    def work() -> None:
        start.wait()
        results.append(resolve(mod, "mask").graph)

    threads = [threading.Thread(target=work) for _ in range(4)]

    def run() -> None:
        for t in threads:
            t.start()
        for t in threads:
            t.join()

    assert counted(run) == (1, 0)
    assert len(results) == 4 and len(set(results)) == 1


def test_a_failed_trace_leaves_nothing_behind() -> None:
    switch = [True]

    def mod(b, h, q, kv):
        return None if switch[0] else q > kv

    with pytest.raises(ResultError):
        resolve(mod, "mask")
    switch[0] = False
    assert str(resolve(mod, "mask").graph) == "q > kv"
    torch.ones(2) + 1  # torch's functions are torch's again


def test_random_numbers_inside_a_function_of_torch_are_found() -> None:
    noise = torch.nn.functional.gumbel_softmax
    with pytest.raises(FlexFA4Error, match="random numbers made outside"):
        resolve(lambda s, b, h, q, kv: s + noise(torch.ones(8))[q], "score")


def test_random_numbers_of_another_thread_are_not_taken_for_the_mods(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # before and after the first call of the mod, and of the second
    states = map(torch.tensor, (0, 1, 1, 1))
    monkeypatch.setattr(torch, "get_rng_state", functools.partial(next, states))
    done = threading.Event()
    other = threading.Thread(target=done.wait)
    other.start()
    try:
        assert str(resolve(lambda b, h, q, kv: q > kv, "mask").graph) == "q > kv"
    finally:
        done.set()
        other.join()
    assert not list(states)


# ---- arity and results ---------------------------------------------------------------------------


def three(b, h, q):
    return q > 0


ARITY: list[tuple[str, Any, Any, Any]] = [
    ("too few", three, "mask", 3),
    ("a mask as a score mod", lambda b, h, q, kv: q > kv, "score", 4),
    ("a score mod as a mask", lambda s, b, h, q, kv: s, "mask", 5),
    ("keyword without default", lambda b, h, q, kv, *, w: q > w, "mask", 5),
    ("a partial that gives too much", functools.partial(three, 1), "mask", 2),
]


@pytest.mark.parametrize(
    ("mod", "kind", "count"), [a[1:] for a in ARITY], ids=[a[0] for a in ARITY]
)
def test_a_wrong_number_of_parameters_is_refused(mod: Any, kind: Any, count: Any) -> None:
    with pytest.raises(ArityError) as caught:
        resolve(mod, kind)
    assert caught.value.fields["count"] == count
    assert f"def {kind}_mod(" in str(caught.value)


def test_the_arity_error_points_at_the_definition() -> None:
    with pytest.raises(ArityError) as caught:
        resolve(three, "mask")
    where = caught.value.where
    assert isinstance(where, Where)
    assert (where.file, where.line) == (__file__, three.__code__.co_firstlineno)
    assert where.source == "def three(b, h, q):"


RESULTS: list[tuple[str, Any, Any, str]] = [
    ("missing return", lambda b, h, q, kv: None, "mask", "a `return` with the result"),
    ("int mask", lambda b, h, q, kv: q - kv, "mask", "return result != 0"),
    ("float mask", lambda b, h, q, kv: q / 2, "mask", "a float"),
    ("python int mask", lambda b, h, q, kv: 1, "mask", "an integer"),
    ("bool score", lambda s, b, h, q, kv: s > 0, "score", "torch.where(condition, score"),
    ("tuple", lambda s, b, h, q, kv: (s, s), "score", "return one value"),
    ("vector", lambda s, b, h, q, kv: TABLE, "score", "a vector of 8 elements"),
    ("string", lambda s, b, h, q, kv: "s", "score", "a str"),
]


@pytest.mark.parametrize(
    ("mod", "kind", "text"), [r[1:] for r in RESULTS], ids=[r[0] for r in RESULTS]
)
def test_a_wrong_result_is_refused(mod: Any, kind: Any, text: str) -> None:
    with pytest.raises(ResultError) as caught:
        resolve(mod, kind)
    assert text in str(caught.value)
    assert isinstance(caught.value.where, Where)


def test_a_text_of_the_other_kind_is_refused() -> None:
    with pytest.raises(ResultError, match="score mod"):
        resolve("score * 2", "mask")
    with pytest.raises(ResultError, match="mask mod"):
        resolve("q > kv", "score")


# ---- Mod -----------------------------------------------------------------------------------------


def test_trace_finds_the_kind_by_the_parameters() -> None:
    assert trace(lambda s, b, h, q, kv: s).kind == "score"
    assert trace(Window(3).mask).kind == "mask"
    assert trace(with_defaults).kind == "mask"
    assert trace(any_arguments, kind="mask").kind == "mask"
    with pytest.raises(ArityError, match=r'kind="score"'):
        trace(any_arguments)
    with pytest.raises(ArityError, match="takes 3 parameters"):
        trace(three)


def test_what_is_no_function_is_refused_as_such() -> None:
    for use in (trace, lambda mod: resolve(mod, "score")):
        with pytest.raises(NotAFunctionError, match="was given as 3\n"):
            use(3)


def test_a_mod_reads_its_captures_on_each_use() -> None:
    window = Window(3)
    mod = trace(window)
    window.width = 9
    assert mod.bind().scalars == (9,)
    assert str(mod).splitlines() == ["width: i32", "q - kv < width"]
    assert mod.graph == resolve(window, "mask").graph
    assert mod.guards == guards(window, "mask") == ()


def test_trace_of_a_text_or_a_mod_gives_a_mod() -> None:
    mod = parse("score + 1")
    assert trace(mod) is mod
    assert str(trace("q > kv")) == "q > kv" and isinstance(trace("q > kv"), Mod)


def test_a_text_without_bindings_is_parsed_once() -> None:
    assert counted(lambda: [resolve("q - kv < 71", "mask") for _ in range(3)]) == (0, 1)


def test_mods_functions_and_texts_compose() -> None:
    window, causal = parse("q - kv < w", w=5), trace(lambda b, h, q, kv: q >= kv)
    biased = parse("score + table[kv]", table=TABLE)
    sink = parse("kv < 2")

    def mask(b, h, q, kv):
        return window(b, h, q, kv) & causal(b, h, q, kv) | sink(b, h, q, kv)

    bound = resolve(mask, "mask")
    assert str(bound.graph) == "w: i32\n(q - kv < w) & (q >= kv) | (kv < 2)"
    assert bound.scalars == (5,)
    shifted = resolve(lambda s, b, h, q, kv: biased(s * 2, b, h, q, kv + 1), "score")
    assert str(shifted.graph) == "table: f32[_]\nscore * 2.0 + table[kv + 1]"
    assert shifted.tensors == (TABLE,)


def test_a_captured_mod_with_other_values_is_not_traced_anew() -> None:
    make = lambda mod: lambda b, h, q, kv: mod(b, h, q, kv) | (kv == 0)  # noqa: E731
    assert resolve(make(parse("q - kv < w", w=5)), "mask").scalars == (5,)
    other = make(parse("q - kv < w", w=6))
    assert counted(lambda: resolve(other, "mask")) == (0, 0)
    assert resolve(other, "mask").scalars == (6,)
    assert counted(lambda: resolve(make(parse("kv - q < w", w=6)), "mask"))[0] == 1


def test_a_text_with_bindings_made_inside_a_mod_is_refused() -> None:
    def mod(b, h, q, kv):
        return parse("q - kv < w", w=5)(b, h, q, kv)

    with pytest.raises(CaptureError, match="make it outside and capture it"):
        resolve(mod, "mask")
    assert str(resolve(lambda b, h, q, kv: parse("q > kv")(b, h, q, kv), "mask").graph) == "q > kv"


def test_a_text_mod_called_with_other_arguments_is_refused() -> None:
    window = parse("q - kv < w", w=5)
    with pytest.raises(ArityError, match="takes 4 parameters"):
        resolve(lambda b, h, q, kv: window(q, kv), "mask")


def test_sizes_are_symbols() -> None:
    mod = lambda b, h, q, kv: q + kv_len - q_len >= kv  # noqa: E731
    assert str(resolve(mod, "mask").graph) == "q + kv_len - q_len >= kv"
