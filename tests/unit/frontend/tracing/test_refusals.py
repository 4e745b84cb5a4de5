"""What a mod cannot do is refused with the place, and with advice that is right."""

from __future__ import annotations

import functools
import linecache
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from flexfa4.errors import (
    ArgumentError,
    CaptureError,
    FlexFA4Error,
    NotAFunctionError,
    OperandError,
    UnsupportedFunctionError,
)
from flexfa4.frontend.tracing.trace import guards, parse, resolve, trace

FILE = "user_mods.py"


class Identity(torch.autograd.Function):
    """A function with a backward of its own."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x


NAMES = {
    "torch": torch,
    "np": np,
    "identity": Identity,
    "table": torch.arange(8),
    "learned": torch.ones(4, requires_grad=True),
    "big": 2**70,
    "zero": 0,
    "below": -2,
}

MASKS = {
    "bias_for_mask": 'return torch.where(q_idx >= kv_idx, 0.0, float("-inf"))',
    "bias_in_variable": 'bias = torch.where(q_idx == 0, float("-inf"), 0.0)\n    return bias',
    "bias_of_method": 'return (q_idx * 0.0).masked_fill(q_idx < kv_idx, float("-inf"))',
    "float_for_mask": "return (q_idx - kv_idx) * 1.0",
    "integer_for_mask": "return q_idx & 1",
    "isin": "return torch.isin(kv_idx, table)",
}
SCORES = {
    "no_grad": "with torch.no_grad():\n        t = torch.tanh(score)\n    return t",
    "inference_mode": "with torch.inference_mode():\n        return score * 2",
    "detach": "return score - score.detach()",
    "grad_is_enabled": "return score if torch.is_grad_enabled() else score * 2",
    "seed": "return score + torch.initial_seed()",
    "custom_backward": "return identity.apply(score)",
    "numpy_function": "return np.tanh(score)",
    "numpy_absolute": "return score - np.abs(q_idx - kv_idx)",
    "numpy_where": "return np.where(q_idx > kv_idx, score, 0)",
    "numpy_of_learned": "return score * np.sum(learned)",
    "format": 'text = f"{q_idx:>5}"\n    return score',
    "recursion": "return score_mod(score, b, h, q_idx, kv_idx)",
    "big_integer": "return score + (q_idx - big)",
    "big_literal": "return score + (q_idx - 10**400)",
    "division_by_zero": "return score + q_idx // 0",
    "division_by_captured_zero": "return score + q_idx // zero",
    "negative_power": "return score + q_idx**below",
    "softmax": "return torch.softmax(score, -1)",
    "sort": "return torch.sort(score)[0]",
    "gather": "return torch.gather(score, 0, q_idx)",
}  # fmt: skip
PARAMETERS = {"mask": "b, h, q_idx, kv_idx", "score": "score, b, h, q_idx, kv_idx"}
PROGRAMS = [("mask", *case) for case in MASKS.items()] + [("score", *c) for c in SCORES.items()]


def defined(kind: str, body: str) -> Callable[..., Any]:
    """Return the mod of a program, whose lines messages can quote."""
    program = f"def {kind}_mod({PARAMETERS[kind]}):\n    {body}\n"
    lines = program.splitlines(keepends=True)
    linecache.cache[FILE] = (len(program), None, lines, FILE)
    names = dict(NAMES)
    exec(compile(program, FILE, "exec"), names)
    return names[f"{kind}_mod"]  # type: ignore[return-value]


@pytest.mark.parametrize(("kind", "name", "body"), PROGRAMS, ids=[p[1] for p in PROGRAMS])
def test_messages(kind: Any, name: str, body: str, golden: Callable[[str, str], None]) -> None:
    with pytest.raises(FlexFA4Error) as caught:
        resolve(defined(kind, body), kind)
    lines = str(caught.value).splitlines()
    # Python before 3.11 does not say where in the line
    shown = [line for line in lines if line.strip(" ^")]
    golden(name, "\n".join([f"{type(caught.value).__name__}: {shown[0]}", *shown[1:]]))


def test_the_advice_for_a_bias_is_the_mask_that_was_meant() -> None:
    with pytest.raises(FlexFA4Error) as caught:
        resolve(defined("mask", MASKS["bias_for_mask"]), "mask")
    repaired = defined("mask", caught.value.fields["rewrite"])
    assert str(resolve(repaired, "mask").graph) == "q >= kv"


def test_a_mask_may_be_made_without_gradients() -> None:
    body = "with torch.no_grad():\n        return q_idx >= kv_idx"
    assert str(resolve(defined("mask", body), "mask").graph) == "q >= kv"


def test_numpy_on_captured_values_is_computed_on_each_call() -> None:
    make = lambda a, t: lambda s, b, h, q, kv: s * np.sqrt(a) + np.sum(t)  # noqa: E731
    first = resolve(make(4.0, np.ones(3)), "score")
    second = resolve(make(9.0, np.ones(4)), "score")
    assert first.graph is second.graph
    assert (first.scalars, second.scalars) == ((2.0, 3.0), (3.0, 4.0))


def test_a_number_of_numpy_is_an_operand() -> None:
    factor = np.float64(2.0)
    assert "score" in str(resolve(lambda s, b, h, q, kv: np.float32(2) * s - factor, "score").graph)


def test_a_divisor_that_becomes_zero_is_refused() -> None:
    make = lambda w: lambda b, h, q, kv: q // w == kv // w  # noqa: E731
    assert resolve(make(2), "mask").graph is resolve(make(3), "mask").graph
    with pytest.raises(OperandError, match="`w`, which is 0"):
        resolve(make(0), "mask")


def test_an_integer_that_grows_beyond_64_bits_is_refused() -> None:
    make = lambda w: lambda b, h, q, kv: q - kv < w  # noqa: E731
    resolve(make(2**62), "mask")
    with pytest.raises(CaptureError, match="beyond 64 bits"):
        resolve(make(2**63), "mask")


@pytest.mark.parametrize(
    "text",
    ["score * 2**-1", "score * 2**w", "score + 10**400", "score + (1 << 10**11)", "score + q // 0",
     "score + kv % (w + 1)"],
)  # fmt: skip
def test_a_text_without_a_result_in_64_bits_is_refused(text: str) -> None:
    with pytest.raises(OperandError) as caught:
        parse(text, **({"w": -1} if "w" in text else {}))
    assert caught.value.where is not None


@pytest.mark.parametrize("text", [5, None, b"q >= kv"])
def test_a_text_is_a_str(text: Any) -> None:
    with pytest.raises(ArgumentError, match="text is"):
        parse(text)


def test_a_kind_is_score_or_mask() -> None:
    with pytest.raises(ArgumentError, match="'foo'"):
        trace(lambda b, h, q, kv: q >= kv, kind="foo")  # type: ignore[arg-type]


@pytest.mark.parametrize("function", [torch.add, int])
def test_a_compiled_function_with_other_parameters_is_no_mod(function: Any) -> None:
    with pytest.raises(NotAFunctionError, match=function.__name__):
        resolve(function, "score")


def test_divmod_and_round_are_followed() -> None:
    graph = resolve(lambda s, b, h, q, kv: round(s) + sum(divmod(q, 3)), "score").graph
    assert str(graph) == "round(score) + (q // 3 + q % 3)"


class Static:
    @staticmethod
    def __call__(b: Any, h: Any, q: Any, kv: Any) -> Any:
        return q >= kv


class OfClass:
    window = 3

    @classmethod
    def __call__(cls, b: Any, h: Any, q: Any, kv: Any) -> Any:
        return q - kv < cls.window


def test_a_call_may_be_a_static_or_a_class_method() -> None:
    assert str(resolve(Static(), "mask").graph) == "q >= kv"
    assert str(trace(Static()).graph) == "q >= kv"
    bound = resolve(OfClass(), "mask")
    assert bound.scalars == (3,)
    OfClass.window = 4
    assert resolve(OfClass(), "mask").scalars == (4,)


def test_a_function_that_chooses_by_type_is_refused() -> None:
    @functools.singledispatch
    def score_mod(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        return score * 2

    with pytest.raises(CaptureError, match="singledispatch"):
        resolve(score_mod, "score")
    function = score_mod.dispatch(torch.Tensor)
    assert str(resolve(function, "score").graph) == "score * 2.0"


def test_a_traced_value_prints_as_text() -> None:
    def printing(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        assert f"{score * 2 + (q - kv)}" == str(score * 2 + (q - kv)) == "score * 2.0 + (q - kv)"
        return score

    assert str(resolve(printing, "score").graph) == "score"


def test_a_guard_names_an_attribute_of_the_mod_plainly() -> None:
    class Mask:
        heads: Any = None

        def __call__(self, b: Any, h: Any, q: Any, kv: Any) -> Any:
            return q >= kv if self.heads is None else q > kv

    assert guards(Mask(), "mask") == ("heads is None",)


def test_a_global_that_appears_later_is_seen() -> None:
    mod = defined("score", "try:\n        w = width\n    except NameError:\n        w = 1.0\n"
                           "    return score * w")  # fmt: skip
    assert resolve(mod, "score").scalars == ()
    mod.__globals__["width"] = 3.0
    assert resolve(mod, "score").scalars == (3.0,)


def test_a_builtin_that_a_global_hides_later_is_seen() -> None:
    mod = defined("score", "return score * abs(-2.0)")
    before = str(resolve(mod, "score").graph)
    mod.__globals__["abs"] = lambda x: x
    assert str(resolve(mod, "score").graph) != before


def test_special_advice_reaches_layers_and_methods() -> None:
    layer = torch.nn.Linear(1, 1)
    with pytest.raises(UnsupportedFunctionError, match="layer applied outside"):
        resolve(lambda s, b, h, q, kv: layer(s), "score")
    with pytest.raises(UnsupportedFunctionError, match="attention takes the softmax"):
        resolve(lambda s, b, h, q, kv: s.softmax(-1), "score")
