"""Functions of floats that are composed of ops: activations and more of torch's element-wise names.

Each is written so that neither its value nor its derivative meets ``inf - inf`` or ``0 * inf``
where torch's does not: the branch of a `where` that is not taken gets a harmless operand.  Adds to
the table of `torch_table`.
"""

from __future__ import annotations

import math
from typing import Any, Final

from flexfa4.frontend import composed
from flexfa4.frontend.tracing.proxies import Traced, as_node, build
from flexfa4.frontend.tracing.torch_table import FUNCTIONS, apply, register, unsupported, where

__all__ = ["FUNCTIONS"]


def _add(a: Any, b: Any) -> Traced:
    return apply("add", a, b)


def _sub(a: Any, b: Any) -> Traced:
    return apply("sub", a, b)


def _mul(a: Any, b: Any) -> Traced:
    return apply("mul", a, b)


def _div(a: Any, b: Any) -> Traced:
    return apply("div", a, b)


# ---- arithmetic --------------------------------------------------------------------------------


@register("square")
def _square(input: Any) -> Traced:
    return Traced(build(composed.square, as_node(input)))


@register("reciprocal")
def _reciprocal(input: Any) -> Traced:
    return _div(1.0, input)


@register("lerp")
def _lerp(input: Any, end: Any, weight: Any) -> Traced:
    return _add(input, _mul(weight, _sub(end, input)))


@register("addcmul")
def _addcmul(input: Any, tensor1: Any, tensor2: Any, *, value: Any = 1) -> Traced:
    return _add(input, _mul(_mul(tensor1, tensor2), value))


@register("addcdiv")
def _addcdiv(input: Any, tensor1: Any, tensor2: Any, *, value: Any = 1) -> Traced:
    return _add(input, _mul(_div(tensor1, tensor2), value))


@register("hypot")
def _hypot(input: Any, other: Any) -> Traced:
    return apply("sqrt", _add(_square(input), _square(other)))


@register("frac")
def _frac(input: Any) -> Traced:
    return _sub(input, apply("trunc", input))


@register("deg2rad")
def _deg2rad(input: Any) -> Traced:
    return _mul(input, math.pi / 180)


@register("rad2deg")
def _rad2deg(input: Any) -> Traced:
    return _mul(input, 180 / math.pi)


# ---- exponentials, logarithms, trigonometry ------------------------------------------------------


@register("log10")
def _log10(input: Any) -> Traced:
    return _mul(apply("log", input), 1 / math.log(10))


@register("erfc")
def _erfc(input: Any) -> Traced:
    return _sub(1.0, apply("erf", input))


@register("expit")
def _expit(input: Any) -> Traced:
    return apply("sigmoid", input)


@register("logit")
def _logit(input: Any) -> Traced:
    return apply("log", _div(input, _sub(1.0, input)))


@register("tan")
def _tan(input: Any) -> Traced:
    return _div(apply("sin", input), apply("cos", input))


@register("sinh")
def _sinh(input: Any) -> Traced:  # by expm1, which is exact near 0
    return _mul(_sub(apply("expm1", input), apply("expm1", apply("neg", input))), 0.5)


@register("cosh")
def _cosh(input: Any) -> Traced:
    return _mul(_add(apply("exp", input), apply("exp", apply("neg", input))), 0.5)


def _log_of_sum(a: Any, b: Any, exp: str, log: str) -> Traced:
    """max(a, b) + log(1 + exp(-|a - b|)); equal operands first, for they may be infinite."""
    distance = where(apply("eq", a, b), 0.0, apply("neg", apply("abs", _sub(a, b))))
    return _add(apply("max", a, b), apply(log, _add(1.0, apply(exp, distance))))


@register("logaddexp")
def _logaddexp(input: Any, other: Any) -> Traced:
    return _log_of_sum(input, other, "exp", "log")


@register("logaddexp2")
def _logaddexp2(input: Any, other: Any) -> Traced:
    return _log_of_sum(input, other, "exp2", "log2")


# ---- activations ---------------------------------------------------------------------------------


@register("relu")
def _relu(input: Any, inplace: bool = False) -> Traced:
    return Traced(build(composed.relu, as_node(input)))


@register("leaky_relu")
def _leaky_relu(input: Any, negative_slope: Any = 0.01, inplace: bool = False) -> Traced:
    return where(apply("gt", input, 0), input, _mul(input, negative_slope))


@register("elu")
def _elu(input: Any, alpha: Any = 1.0, inplace: bool = False) -> Traced:
    is_positive = apply("gt", input, 0)
    negative = where(is_positive, 0.0, input)
    return where(is_positive, input, _mul(apply("expm1", negative), alpha))


@register("celu")
def _celu(input: Any, alpha: Any = 1.0, inplace: bool = False) -> Traced:
    is_positive = apply("gt", input, 0)
    negative = where(is_positive, 0.0, _div(input, alpha))
    return where(is_positive, input, _mul(apply("expm1", negative), alpha))


_SELU: Final = 1.6732632423543772, 1.0507009873554805  # alpha and scale, Klambauer et al. 2017


@register("selu")
def _selu(input: Any, inplace: bool = False) -> Traced:
    return _mul(_elu(input, _SELU[0]), _SELU[1])


@register("softplus")
def _softplus(input: Any, beta: Any = 1.0, threshold: Any = 20.0) -> Traced:
    scaled = _mul(input, beta)
    is_linear = apply("gt", scaled, threshold)
    curved = apply("log1p", apply("exp", where(is_linear, 0.0, scaled)))
    return where(is_linear, input, _div(curved, beta))


@register("silu")
def _silu(input: Any, inplace: bool = False) -> Traced:
    return _mul(input, apply("sigmoid", input))


@register("mish")
def _mish(input: Any, inplace: bool = False) -> Traced:
    return _mul(input, apply("tanh", _softplus(input)))


@register("gelu")
def _gelu(input: Any, approximate: str = "none") -> Traced:
    if approximate == "none":
        inside = apply("erf", _mul(input, math.sqrt(0.5)))
    elif approximate == "tanh":
        cubic = _add(input, _mul(_mul(_square(input), input), 0.044715))
        inside = apply("tanh", _mul(cubic, math.sqrt(2 / math.pi)))
    else:
        unsupported(f"gelu with approximate={approximate!r}", "approximate='none' or 'tanh'")
    return _mul(_mul(input, 0.5), _add(1.0, inside))


@register("logsigmoid", "log_sigmoid")
def _logsigmoid(input: Any) -> Traced:
    decay = apply("exp", apply("neg", apply("abs", input)))
    return _sub(apply("min", input, 0.0), apply("log1p", decay))


@register("hardtanh")
def _hardtanh(
    input: Any, min_val: Any = -1.0, max_val: Any = 1.0, inplace: bool = False
) -> Traced:  # unlike clamp's, its derivative is 0 on the bounds
    above = where(apply("ge", input, max_val), max_val, input)
    return where(apply("le", input, min_val), min_val, above)


@register("relu6")
def _relu6(input: Any, inplace: bool = False) -> Traced:
    return _hardtanh(input, 0.0, 6.0)


@register("hardsigmoid")
def _hardsigmoid(input: Any, inplace: bool = False) -> Traced:
    return _div(_relu6(_add(input, 3.0)), 6.0)


@register("softsign")
def _softsign(input: Any) -> Traced:
    return _div(input, _add(1.0, apply("abs", input)))


@register("tanhshrink")
def _tanhshrink(input: Any) -> Traced:
    return _sub(input, apply("tanh", input))


@register("threshold")
def _threshold(input: Any, threshold: Any, value: Any, inplace: bool = False) -> Traced:
    return where(apply("le", input, threshold), value, input)
