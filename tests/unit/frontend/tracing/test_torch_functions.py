"""What torch's functions mean on traced values: torch's own values, derivatives and refusals."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from flexfa4.errors import (
    DataDependentShapeError,
    FlexFA4Error,
    OperandError,
    TracedNumberError,
    UnknownAttributeError,
    UnsupportedFunctionError,
    Where,
)
from flexfa4.frontend.binding import BoundGraph
from flexfa4.frontend.derivative import derivatives
from flexfa4.frontend.evaluate import Program, Values
from flexfa4.frontend.ir import Node
from flexfa4.frontend.lanes import Lanes
from flexfa4.frontend.tracing.torch_table import register
from flexfa4.frontend.tracing.trace import resolve

INF, NAN = math.inf, math.nan
# no value at a kink except where torch and we promise the same there
SAMPLES = torch.tensor(
    [-INF, -1e30, -25.0, -3.0, -1.0, -0.75, -1e-3, 0.0, 1e-3, 0.5, 1.0, 2.5, 3.0, 6.0, 25.0, 1e30,
     INF, NAN], dtype=torch.float64,
)  # fmt: skip


def run(bound: BoundGraph, root: Node, score: torch.Tensor, rows: int = 1) -> torch.Tensor:
    """Evaluate a node for a row of scores, at queries 0 ... rows-1."""
    values = Values(
        tensors=dict(zip(bound.graph.buffers, bound.tensors, strict=True)),
        scalars=dict(zip(bound.graph.scalars, bound.scalars, strict=True)),
        dtype=torch.float64,
    )
    grid = score.expand(1, 1, rows, -1)
    lanes = Lanes((0, 1), (0, 1), (0, rows), (0, score.numel()))
    (result,) = Program([root]).run(values, lanes, grid)
    return torch.as_tensor(result, dtype=torch.float64).expand_as(grid)[0, 0]


Function = Callable[[Any], Any]

FUNCTIONS: dict[str, Function] = {
    "method tanh": lambda s: s.tanh(),
    "torch.tanh": torch.tanh,
    "exp": torch.exp,
    "exp2": torch.exp2,
    "expm1": lambda s: s.expm1(),
    "abs": torch.abs,
    "builtin abs": abs,
    "square": torch.square,
    "reciprocal": torch.reciprocal,
    "sigmoid": torch.sigmoid,
    "special.expit": torch.special.expit,
    "erf": torch.erf,
    "erfc": torch.erfc,
    "sin": torch.sin,
    "tan": lambda s: torch.tan(s.clamp(-1.5, 1.5)),
    "sinh": lambda s: torch.sinh(s.clamp(-30, 30)),
    "cosh": lambda s: torch.cosh(s.clamp(-30, 30)),
    "log10": torch.log10,
    "log1p": torch.log1p,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "floor": torch.floor,
    "ceil": lambda s: s.ceil(),
    "trunc": torch.trunc,
    "fix": torch.fix,
    "frac": lambda s: torch.frac(s.clamp(-30, 30)),
    "round": torch.round,
    "round to 2 decimals": lambda s: torch.round(s.clamp(-30, 30), decimals=2),
    "clamp": lambda s: torch.clamp(s, -1.0, 3.0),
    "clamp with min above max": lambda s: s.clamp(min=2.0, max=-1.0),
    "clip": lambda s: s.clip(max=1.0),
    "clamp_min": lambda s: s.clamp_min(0.5),
    "clamp_max": lambda s: torch.clamp_max(s, 0.5),
    "relu": F.relu,
    "torch.relu": torch.relu,
    "relu6": F.relu6,
    "leaky_relu": lambda s: F.leaky_relu(s, 0.1),
    "elu": F.elu,
    "celu": lambda s: F.celu(s, 2.0),
    "selu": F.selu,
    "softplus": F.softplus,
    "softplus with beta": lambda s: F.softplus(s, beta=2.0, threshold=10.0),
    "silu": F.silu,
    "mish": lambda s: F.mish(s.clamp(-30, 30)),
    "gelu": F.gelu,
    "gelu tanh": lambda s: F.gelu(s.clamp(-30, 30), approximate="tanh"),
    "logsigmoid": F.logsigmoid,
    "hardtanh": F.hardtanh,
    "hardsigmoid": F.hardsigmoid,
    "softsign": F.softsign,
    "tanhshrink": F.tanhshrink,
    "threshold": lambda s: F.threshold(s, 0.5, -2.0),
    "logit": lambda s: torch.logit(torch.sigmoid(s.clamp(-9, 9))),
    "where": lambda s: torch.where(s > 0.5, s, -s),
    "method where": lambda s: s.where(s > 0.5, 0.25),
    "masked_fill": lambda s: s.masked_fill(s > 0.5, -2.0),
    "minimum": lambda s: torch.minimum(s, s * s),
    "max of two": lambda s: torch.max(s, s * s),
    "fmin": lambda s: torch.fmin(s, torch.tensor(0.5, dtype=torch.float64)),
    "fmax": lambda s: torch.fmax(s, torch.tensor(0.5, dtype=torch.float64)),
    "nan_to_num": lambda s: torch.nan_to_num(s, nan=1.0, posinf=2.0, neginf=3.0),
    "add with alpha": lambda s: torch.add(s, s, alpha=2),
    "sub with alpha": lambda s: s.sub(s * 2, alpha=3),
    "rsub": lambda s: torch.rsub(s, 2.0, alpha=3),
    "lerp": lambda s: torch.lerp(s, s * 2, 0.25),
    "addcmul": lambda s: torch.addcmul(s, s, s, value=0.5),
    "addcdiv": lambda s: torch.addcdiv(s, s, s.abs() + 1, value=0.5),
    "hypot": lambda s: torch.hypot(s, s + 4),
    "logaddexp": lambda s: torch.logaddexp(s, s * 0.5),
    "logaddexp2": lambda s: torch.logaddexp2(s, s),
    "fmod": lambda s: torch.fmod(s.clamp(-30, 30), 2.0),
    "remainder": lambda s: torch.remainder(s.clamp(-30, 30), 2.0),
    "floor division": lambda s: s // 2.0,
    "division rounded down": lambda s: torch.div(s, 2.0, rounding_mode="floor"),
    "division rounded to 0": lambda s: torch.div(s, 2.0, rounding_mode="trunc"),
    "power": lambda s: s.abs() ** 1.5,
    "deg2rad": torch.deg2rad,
    "isnan": lambda s: torch.where(torch.isnan(s), 1.0, s),
    "isinf": lambda s: torch.where(s.isinf(), 1.0, s),
    "isfinite": lambda s: torch.where(s.isfinite(), s, 1.0),
    "isposinf": lambda s: torch.where(torch.isposinf(s), 1.0, s),
    "isneginf": lambda s: torch.where(torch.isneginf(s), 1.0, s),
    "logical functions": lambda s: torch.where(
        torch.logical_and(s, torch.logical_not(s > 2)) ^ torch.logical_or(s > 5, s < -5), s, 0.0
    ),
    "zeros_like": lambda s: s + torch.zeros_like(s) + torch.ones_like(s),
    "full_like": lambda s: torch.where(s > 0, s, torch.full_like(s, -INF)),
    "new_full": lambda s: torch.where(
        s > 0, s, s.new_full((), 3.0) + s.new_zeros(()) + s.new_ones(1)
    ),
    "new_tensor": lambda s: torch.where(s > 0, s, s.new_tensor(-INF)),
    "a constant tensor": lambda s: torch.where(s > 0, s, torch.tensor(-2.0, dtype=torch.float64)),
    "casts": lambda s: (s > 0).float() + (s > 1).int() + (s > 2).long().to(s.dtype) + s.double(),
    "clone": lambda s: s.clone().contiguous(),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.filterwarnings("ignore:.*where.*:UserWarning")
def test_values_are_those_of_torch(name: str) -> None:
    function = FUNCTIONS[name]
    bound = resolve(lambda score, b, h, q, kv: function(score), "score")
    got = run(bound, bound.graph.root, SAMPLES)[0]
    torch.testing.assert_close(got, function(SAMPLES), rtol=1e-10, atol=1e-12, equal_nan=True)


# torch itself has no derivative of //
@pytest.mark.parametrize("name", [n for n in FUNCTIONS if n != "floor division"])
def test_derivatives_are_those_of_torch(name: str) -> None:
    function = FUNCTIONS[name]
    samples = SAMPLES[SAMPLES.abs() < 100].requires_grad_()
    (want,) = torch.autograd.grad(function(samples).sum(), samples, allow_unused=True)
    bound = resolve(lambda score, b, h, q, kv: function(score), "score")
    got = run(bound, derivatives(bound.graph).score, samples.detach())[0]
    torch.testing.assert_close(got, want, rtol=1e-7, atol=1e-12, equal_nan=True)


INTEGERS: dict[str, Callable[[Any, Any], Any]] = {
    "arithmetic": lambda q, kv: (q * 3 - kv) // 2 + (kv - q) % 4,
    "bits": lambda q, kv: ((q & kv) | (q ^ 3)) + (kv << 2) + (q >> 1) + ~q,
    "floor and remainder": lambda q, kv: (q - kv) // -3 * 10 + (q - kv) % -3,
    "rounding integers": lambda q, kv: torch.floor(q) + q.round() + torch.ceil(kv),
    "true division": lambda q, kv: (q - kv) / 4,
    "division towards 0": lambda q, kv: torch.div(q - kv, 3, rounding_mode="trunc"),
    "fmod": lambda q, kv: torch.fmod(q - kv, 3),
    "bool + bool": lambda q, kv: ((q > 2) + (kv > 3)).int(),
    "bool * bool": lambda q, kv: ((q > 2) * (kv > 3)).int(),
    "bool and int": lambda q, kv: (q >= kv) & (kv % 2 == 0),
    "int ** int": lambda q, kv: q**2 + 2**kv,
    "reflected": lambda q, kv: 10 - q + 20 // (kv + 1) + 7 % (q + 1) + (1 << q) + (5 & kv),
    "sign": lambda q, kv: torch.sign(q - kv),
    "comparison chain": lambda q, kv: ((q - kv) >= 0) & ((q - kv) < 3) | (kv == 0) & (q != 1),
}


@pytest.mark.parametrize("name", INTEGERS)
def test_integers_and_bools_follow_torch(name: str) -> None:
    function = INTEGERS[name]
    q, kv = torch.arange(7).view(-1, 1), torch.arange(9)
    bound = resolve(lambda score, b, h, q, kv: function(q, kv).float(), "score")
    got = run(bound, bound.graph.root, torch.zeros(9, dtype=torch.float64), rows=7)
    torch.testing.assert_close(got, function(q, kv).expand(7, 9).double())


@given(st.floats(-50, 50), st.floats(-3, 3), st.floats(-3, 3))
def test_clamp_agrees_with_torch_for_any_bounds(x: float, low: float, high: float) -> None:
    bound = resolve(lambda score, b, h, q, kv: torch.clamp(score, low, high), "score")
    sample = torch.tensor([x], dtype=torch.float64)
    assert torch.equal(run(bound, bound.graph.root, sample)[0], sample.clamp(low, high))


# ---- vectors -------------------------------------------------------------------------------------

LEFT = torch.randn(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
RIGHT = torch.randn(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

REDUCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "sum": lambda a, b: (a * b).sum(-1),
    "torch.sum": lambda a, b: torch.sum(a * b, dim=-1),
    "matmul": lambda a, b: a @ b,
    "dot": lambda a, b: torch.dot(a, b),
    "inner": lambda a, b: torch.inner(a, b),
    "mean": lambda a, b: (a + b).mean(),
    "amax": lambda a, b: (a - b).amax(-1),
    "min": lambda a, b: torch.min(a - b),
    "any": lambda a, b: (a > b).any(-1).double(),
    "all": lambda a, b: torch.all(a > b).double(),
    "sum of bools": lambda a, b: (a > b).sum(-1).double(),
    "slices": lambda a, b: (a[1:] * b[:-1]).sum() + (a[::2] * b[1::2]).sum(),
    "item of a vector": lambda a, b: a[1] * b[-1],
    "a number with an axis more": lambda a, b: (a[1].unsqueeze(-1) * b).sum(-1),
    "torch.unsqueeze": lambda a, b: (torch.unsqueeze(a.sum(), 0) + b).amax(-1),
}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions_of_vectors_follow_torch(name: str) -> None:
    function = REDUCTIONS[name]
    bound = resolve(lambda score, b, h, q, kv: function(LEFT[q], RIGHT[kv]), "score")
    got = run(bound, bound.graph.root, torch.zeros(6, dtype=torch.float64), rows=6)
    want = torch.stack([torch.stack([function(a, b) for b in RIGHT]) for a in LEFT])
    torch.testing.assert_close(got, want)


# ---- refusals ------------------------------------------------------------------------------------

REFUSED: list[tuple[Callable[..., Any], type[FlexFA4Error], str]] = [
    (lambda s, b, h, q, kv: torch.softmax(s, 0), UnsupportedFunctionError, "`softmax`"),
    (lambda s, b, h, q, kv: s.cumsum(0), UnsupportedFunctionError, "`cumsum`"),
    (lambda s, b, h, q, kv: s.add_(1), UnsupportedFunctionError, "x = x.add(...)"),
    (lambda s, b, h, q, kv: s.T, UnsupportedFunctionError, "`.T`"),
    (lambda s, b, h, q, kv: s + torch.rand(8)[q], UnsupportedFunctionError, "random"),
    (lambda s, b, h, q, kv: F.dropout(s), UnsupportedFunctionError, "random"),
    (lambda s, b, h, q, kv: s.detach(), UnsupportedFunctionError, "t.detach()[...]"),
    (lambda s, b, h, q, kv: torch.nonzero(s), DataDependentShapeError, "torch.where"),
    (lambda s, b, h, q, kv: torch.where(s > 0), DataDependentShapeError, "torch.where"),
    (lambda s, b, h, q, kv: torch.unique(q), DataDependentShapeError, "`unique`"),
    (lambda s, b, h, q, kv: torch.masked_select(s, s > 0), DataDependentShapeError, "depends"),
    (lambda s, b, h, q, kv: torch.add(s, 1, out=s), OperandError, "add(input, other, alpha)"),
    (lambda s, b, h, q, kv: s.sum(1), OperandError, "dim=1"),
    (lambda s, b, h, q, kv: (s > 0) - (s > 1), OperandError, "a & ~b"),
    (lambda s, b, h, q, kv: -(s > 0), OperandError, "~condition"),
    (lambda s, b, h, q, kv: q**-1, OperandError, "negative integer"),
    (lambda s, b, h, q, kv: s & 1, OperandError, "`&`"),
    (lambda s, b, h, q, kv: s + torch.where((q > kv) & q, 1, 0), OperandError, "bool, i32"),
    (lambda s, b, h, q, kv: s + torch.where(q | (q > kv), 1, 0), OperandError, "!= 0"),
    (lambda s, b, h, q, kv: s + ((q > kv) ^ True & 3), OperandError, "the same for both"),
    (lambda s, b, h, q, kv: s + torch.where((q > kv) & q - kv < 4, 1, 0), OperandError,
     "(q > kv) & (q - kv < 4)"),
    (lambda s, b, h, q, kv: s + "1", OperandError, "a str"),
    (lambda s, b, h, q, kv: "1" + s, OperandError, "applied to a str"),
    (lambda s, b, h, q, kv: s < [1], OperandError, "a list"),
    (lambda s, b, h, q, kv: torch.add(s, "1"), OperandError, "numbers and bools"),  # type: ignore[call-overload]
    (lambda s, b, h, q, kv: s.foo, UnknownAttributeError, "`foo`"),
    (lambda s, b, h, q, kv: s.sigmoyd(), UnknownAttributeError, ".sigmoid"),
    (lambda s, b, h, q, kv: torch.Tensor.abs(s), UnsupportedFunctionError, "x.abs(...)"),
    (lambda s, b, h, q, kv: LEFT[q].sum(-1, keepdim=True), OperandError, "keepdim=True"),
    (lambda s, b, h, q, kv: LEFT[q].amax(-1, keepdim=True), OperandError, "x.amax(-1)"),
    (lambda s, b, h, q, kv: LEFT[q].mean(-1, True), OperandError, "x.mean(-1)"),
    (lambda s, b, h, q, kv: (LEFT[q] > 0).any(-1, True), OperandError, "x.any(-1)"),
    (lambda s, b, h, q, kv: LEFT[q].unsqueeze(-1) + s, OperandError, "a vector of 4, with dim=-1"),
    (lambda s, b, h, q, kv: s.unsqueeze(1), OperandError, "a number, with dim=1"),
    (lambda s, b, h, q, kv: torch.where(s, 1.0, 2.0), OperandError, "!= 0"),
    (lambda s, b, h, q, kv: LEFT[q] + RIGHT[kv, :3], OperandError, "a vector of 4"),
    (lambda s, b, h, q, kv: len(s), OperandError, "one number"),
    (lambda s, b, h, q, kv: torch.log(s).item(), TracedNumberError, "`torch.log(s).item()`"),
    (lambda s, b, h, q, kv: math.log(s), TracedNumberError, "torch.log(s)"),
]  # fmt: skip


@pytest.mark.parametrize(("mod", "kind", "text"), REFUSED, ids=[r[2] for r in REFUSED])
def test_what_has_no_meaning_is_refused_with_the_line_and_advice(
    mod: Callable[..., Any], kind: type[FlexFA4Error], text: str
) -> None:
    with pytest.raises(kind) as caught:
        resolve(mod, "score")
    assert text in str(caught.value)
    assert isinstance(caught.value.where, Where) and caught.value.where.file == __file__


def test_an_unknown_attribute_can_be_asked_for() -> None:
    graph = resolve(
        lambda s, b, h, q, kv: s * getattr(s, "foo", 2) + hasattr(s, "exp"), "score"
    ).graph
    assert str(graph) == "score * 2.0 + 1.0"


def test_a_name_is_offered_only_where_it_is_nearly_the_one_written() -> None:
    with pytest.raises(UnsupportedFunctionError) as caught:
        resolve(lambda s, b, h, q, kv: torch.special.erfcx(s), "score")
    assert caught.value.fields["names"].startswith("erfc, element-wise functions")
    with pytest.raises(UnsupportedFunctionError) as caught:
        resolve(lambda s, b, h, q, kv: torch.lgamma(s), "score")
    assert caught.value.fields["names"].startswith("element-wise functions")


def test_a_name_of_torch_has_one_meaning() -> None:
    with pytest.raises(AssertionError, match="two meanings"):
        register("tanh")(lambda input: input)


def test_detaching_what_has_no_gradient_changes_nothing() -> None:
    plain = resolve(lambda s, b, h, q, kv: s + (q - kv), "score").graph
    assert resolve(lambda s, b, h, q, kv: s + (q - kv).detach(), "score").graph == plain


def test_a_narrower_float_does_not_round() -> None:
    bound = resolve(lambda s, b, h, q, kv: s.half().to(torch.bfloat16), "score")
    assert str(bound.graph) == "score"


@torch.library.custom_op("flexfa4_tests::exp", mutates_args=())
def tripled(x: torch.Tensor) -> torch.Tensor:
    """Return what no function of torch with this name returns."""
    return x * 3.0


def doubled(x: Any) -> Any:
    """Overridable, as functions of libraries that follow torch's protocol are."""
    if torch.overrides.has_torch_function((x,)):
        return torch.overrides.handle_torch_function(doubled, (x,), x)
    return x * 2.0


doubled.__name__ = "exp"


@pytest.mark.parametrize(
    "mod",
    [
        lambda s, b, h, q, kv: tripled(s),
        lambda s, b, h, q, kv: torch.ops.flexfa4_tests.exp(s),
        lambda s, b, h, q, kv: torch.ops.flexfa4_tests.exp.default(s),
        lambda s, b, h, q, kv: doubled(s),
    ],
    ids=["custom op", "packet", "overload", "overridable function"],
)
def test_a_function_that_shares_a_name_with_one_of_torchs_is_refused(
    mod: Callable[..., Any],
) -> None:
    with pytest.raises(UnsupportedFunctionError, match="is not torch's"):
        resolve(mod, "score")


def test_torchs_own_ops_are_known_by_every_name() -> None:
    graph = resolve(lambda s, b, h, q, kv: torch.exp(s), "score").graph
    assert resolve(lambda s, b, h, q, kv: torch.ops.aten.exp(s), "score").graph == graph
    assert resolve(lambda s, b, h, q, kv: torch.ops.aten.exp.default(s), "score").graph == graph
