"""The emulator computes what a GPU computed, to the last bit but where hardware approximates.

`tests/calibration/h200.json.gz` holds what a GPU made of the cases of `tests/calibration/cases.py`;
`python -m tests.calibration record` writes it.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import pytest
import torch

from tests.calibration import cases, records, sweep

RECORD: dict[str, Any] = records.read()
BY_NAME: dict[str, list[str]] = {}
for _opcode in RECORD["exact"]:
    BY_NAME.setdefault(_opcode.split(".")[0], []).append(_opcode)

# What no rule gives, and differs: see docs/emulator.md, "Numbers".
FREE = {"atom.shared.add.noftz.f16x2"}


@pytest.mark.parametrize("name", BY_NAME)
def test_exact_instructions_compute_the_same_bits(name: str) -> None:
    wrong = [op for op in BY_NAME[name] if cases.exact_checksums(op) != RECORD["exact"][op]]
    assert not wrong


@pytest.mark.parametrize("name", [name for name in RECORD["programs"] if name not in FREE])
def test_programs_compute_the_same_bits(name: str) -> None:
    assert programs()[name]() == RECORD["programs"][name]


def test_the_record_is_of_these_cases() -> None:
    assert set(programs()) == set(RECORD["programs"])
    assert set(cases.products()) == set(RECORD["products"])
    assert set(cases.APPROXIMATIONS) == set(RECORD["approximated"])
    assert set(sweep.INSTRUCTIONS) == set(RECORD["errors"])
    assert len(RECORD["exact"]) > 700


@functools.cache
def programs() -> dict[str, Any]:
    return cases.programs()


# ---- approximations -----------------------------------------------------------------------------

# PTX ISA: what an error may be, and of which kind, for each range of `sweep.ranges_of`.
# Of cos the H200 is a little farther off, over all numbers up to 2 pi, than the 2^-20.5 of sin.
BOUNDS: dict[str, tuple[tuple[str, float], ...]] = {
    "ex2.f32": (("relative", 2**-22),),
    "ex2.f16": (("relative", 2**-9.9),),
    "ex2.bf16": (("relative", 2**-7),),
    "lg2.f32": (("absolute", 2**-22), ("relative", 2**-22), ("relative", 2**-22)),
    "sin.f32": (("absolute", 2**-20.5), ("absolute", 2**-14.7)),
    "cos.f32": (("absolute", 2**-20.4), ("absolute", 2**-14.7)),
    "tanh.f32": (("relative", 2**-11),),
    "tanh.f16": (("absolute", 2**-10.987),),
    "tanh.bf16": (("absolute", 2**-7.999),),
    "rcp.f32": (("ulp", 1),),
    "sqrt.f32": (("relative", 2**-23),),
    "rsqrt.f32": (("relative", 2**-22.9),),
}
DIVISION_ULP = 2


def key(opcode: str) -> str:
    parts = opcode.split(".")
    return f"{parts[0]}.{parts[-1]}"


@pytest.mark.parametrize("opcode", sweep.INSTRUCTIONS)
def test_the_gpus_errors_are_within_their_bounds_for_every_input(opcode: str) -> None:
    for measured, (kind, bound) in zip(RECORD["errors"][opcode], BOUNDS[key(opcode)], strict=True):
        assert 0 < measured[kind] <= bound


def allowed(opcode: str, operands: list[torch.Tensor], value: torch.Tensor) -> torch.Tensor:
    """Return how far from the exact value the GPU may be, by the record."""
    dtype = sweep.dtype_of(opcode)
    exponent = torch.frexp(value.abs())[1] - 1
    unit = torch.exp2((exponent.clamp(min=sweep.LEAST_EXPONENT[dtype])).double())
    unit = unit * 2.0 ** -sweep.MANTISSA[dtype]
    if opcode in cases.DIVISIONS:
        return DIVISION_ULP * unit
    size, result = operands[0].double().abs(), torch.zeros_like(value)
    ranges = sweep.ranges_of(opcode)
    for (low, high), (kind, _), measured in zip(
        ranges, BOUNDS[key(opcode)], RECORD["errors"][opcode], strict=True
    ):
        inside = (size >= low) & (size <= high)
        bound = measured["absolute"] if kind == "absolute" else measured["ulp"] * unit
        result = torch.where(inside, bound, result)
    return result


@pytest.mark.parametrize("opcode", cases.APPROXIMATIONS)
def test_approximations_are_as_near_as_the_gpus(opcode: str) -> None:
    operands = cases.operands_of(opcode)
    value = sweep.exact(opcode, *operands)
    found = cases.approximated(opcode)
    gpu = records.floats(RECORD["approximated"][opcode], cases.rounded(opcode))
    finite = found.isfinite() & gpu.isfinite() & value.isfinite()
    # of what is no number, and of zeros and infinities, the two agree
    near = (found.double() - gpu.double()).abs()
    margin = allowed(opcode, operands, value)
    half = 2.0 ** -(sweep.MANTISSA[found.dtype] + 1) * value.abs() + 2.0**-150
    assert (near <= margin + half)[finite].all()
    assert (records.ordinals(found) == records.ordinals(gpu))[~finite].all()
    assert finite.sum() > len(found) // 4


# ---- products of floats -------------------------------------------------------------------------

# The greatest difference from the GPU, relative to the sum of the absolute values that are added;
# log2.  Those of wgmma are for eight products added up one after another.
PRODUCT_BOUNDS = {
    "mma f32.f16": -23, "mma f16.f16": -math.inf, "mma f32.bf16": -23, "mma f32.tf32": -23,
    "mma f32.e4m3": -math.inf, "mma f16.e4m3": -11,
    "wgmma f32.f16": -21, "wgmma f16.f16": -math.inf, "wgmma f32.bf16": -21,
    "wgmma f32.tf32": -21, "wgmma f32.e4m3": -10, "wgmma f16.e4m3": -9.5,
}  # fmt: skip


@pytest.mark.parametrize("name", RECORD["products"])
def test_products_of_floats_are_near_the_gpus(name: str) -> None:
    opcode = name.split()[0].split(".")
    kind = f"{opcode[0]} {'.'.join(opcode[-4:-2] if opcode[0] == 'mma' else opcode[-3:-1])}"
    product = cases.products()[name]()
    gpu = records.floats(RECORD["products"][name], product.exact.to(product.found.dtype))
    difference = (product.found.double() - gpu.double()).abs() / product.scale
    assert difference.max() <= 2.0 ** PRODUCT_BOUNDS[kind]
    assert gpu.isfinite().all()
