"""Functions computed otherwise than torch does: as accurate as they say, in every range."""

from __future__ import annotations

import math

import pytest
import torch

from flexfa4.frontend.evaluate import Program, Values
from flexfa4.frontend.ir import Node, const, input_
from flexfa4.frontend.lanes import Lanes
from flexfa4.frontend.ops import OPS, apply
from flexfa4.kernels.cpu.lowering import CORES, LOWERINGS, lowered, maximum, tanh

SCORE = input_("score")
OTHER_OPERANDS: dict[str, tuple[float, ...]] = {"tanh": (), "max": (0.5,)}
SIZE = 1 << 19  # more than one piece


def ulps(found: torch.Tensor, exact: torch.Tensor) -> float:
    """Return the largest distance in units of the last place of fp32."""
    rounded = exact.float().abs()
    unit = torch.nextafter(rounded, torch.tensor(math.inf)) - rounded
    return float(((found.double() - exact).abs() / unit.double()).max())


@pytest.mark.parametrize("scale", [1e-20, 1e-4, 0.03, 0.5, 3.0, 30.0])
def test_tanh_is_within_three_ulp(scale: float) -> None:
    x = torch.randn(SIZE, generator=torch.Generator().manual_seed(0)) * scale
    assert ulps(tanh(x), x.double().tanh()) <= 3.0


def test_tanh_keeps_infinities_nan_and_zero() -> None:
    x = torch.zeros(SIZE)
    x[:6] = torch.tensor([math.inf, -math.inf, math.nan, -0.0, 89.0, -200.0])
    found = tanh(x)
    assert found[[0, 1, 4, 5]].tolist() == [1.0, -1.0, 1.0, -1.0]
    assert found[2].isnan() and math.copysign(1.0, float(found[3])) == -1.0 and not found[6:].any()


@pytest.mark.parametrize("size", [16, SIZE])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_lowered_functions_write_where_they_are_told(size: int, dtype: torch.dtype) -> None:
    for name, function in LOWERINGS.items():
        others = OTHER_OPERANDS[name]
        x = torch.linspace(-2, 2, size, dtype=dtype)
        exact = OPS[name].eager(x.double(), *others)
        out = torch.empty_like(x)
        assert function(x, *others, out=out).data_ptr() == out.data_ptr()
        torch.testing.assert_close(out.double(), exact, rtol=4e-7, atol=0)
        assert function(x, *others, out=x) is x and torch.equal(x, out)


def test_the_larger_of_two_tensors_is_found_as_that_of_a_tensor_and_a_number() -> None:
    x = torch.tensor([-1.0, 0.0, 2.0, math.nan, math.inf, -math.inf])
    for other in (0.5, -math.inf):
        torch.testing.assert_close(
            maximum(x, other), maximum(x, torch.tensor(other)), equal_nan=True
        )
    assert maximum(x, 0.5)[3].isnan()


@pytest.mark.parametrize("comparison", ["le", "lt"])
def test_a_choice_of_the_larger_is_an_extreme_with_the_same_values(comparison: str) -> None:
    x, zero = apply("mul", input_("score"), const(2.0)), const(0.0)
    root = apply("where", apply(comparison, x, zero), zero, x)
    assert lowered(apply("exp2", root)) is apply("exp2", apply("max", x, zero))
    score = torch.tensor([-1.0, 0.0, 2.0, math.nan, math.inf, -math.inf]).view(1, 1, 1, 6)
    lanes = Lanes((0, 1), (0, 1), (0, 1), (0, 6))
    (found,), (right,) = (
        Program([n], lowerings=LOWERINGS).run(Values(), lanes, score) for n in (lowered(root), root)
    )
    torch.testing.assert_close(found, right, equal_nan=True)


@pytest.mark.parametrize(
    "root",
    [
        apply("where", apply("gt", SCORE, const(1.0)), SCORE, const(1.0)),  # NaN gives one
        apply("where", apply("le", SCORE, const(1.0)), const(0.0), SCORE),
        apply("where", apply("le", SCORE, const(math.nan)), const(math.nan), SCORE),
        apply("where", apply("ge", SCORE, const(0.0)), const(0.0), SCORE),
    ],
)
def test_other_choices_stay(root: Node) -> None:
    assert lowered(root) is root


def test_a_strided_operand_is_left_to_torch() -> None:
    x = torch.randn(SIZE, 2)[:, 0]
    assert torch.equal(tanh(x), torch.tanh(x))


@pytest.mark.parametrize("factor", [50.0, -2.5, 1e-14, 1e20])
@pytest.mark.parametrize("scale", [1e-15, 1e-4, 0.03, 0.25, 0.5, 1.0])
def test_a_core_takes_its_factors_along_within_four_ulp(scale: float, factor: float) -> None:
    uniform = torch.rand(SIZE, generator=torch.Generator().manual_seed(0)) * 2.0 - 1.0
    for node, cores in CORES.items():
        for core in cores:
            x = uniform * (scale * core.reach)
            exact = getattr(torch, node.op)(x.double()) * factor
            found = x * core.prescale
            core.run(found, factor)
            assert ulps(found, exact) <= 4.0


def test_cores_of_more_reach_come_later() -> None:
    for cores in CORES.values():
        reaches = [core.reach for core in cores]
        assert reaches == sorted(set(reaches))


@pytest.mark.parametrize("factor", [0.0, 1e-16, math.inf, math.nan, torch.tensor(2.0), 3])
def test_a_core_refuses_factors_without_a_reciprocal(factor: object) -> None:
    assert not any(core.takes(factor) for cores in CORES.values() for core in cores)
