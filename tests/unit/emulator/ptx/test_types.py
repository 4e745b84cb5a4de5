"""Scalar types, and which registers may stand for which operands."""

from __future__ import annotations

import pytest

from flexfa4.emulator.ptx.types import MEMORY_TYPES, REGISTER_TYPES, TYPES, bits_type, fits


@pytest.mark.parametrize(
    ("register", "operand", "wider", "expected"),
    [
        ("b32", "f32", False, True),
        ("b32", "f16x2", False, True),
        ("b64", "f32x2", False, True),
        ("u32", "s32", False, True),
        ("f32", "b32", False, True),
        ("f32", "u32", False, False),
        ("u32", "f32", False, False),
        ("b16", "b32", False, False),
        ("b64", "b32", False, False),
        ("b32", "b8", True, True),
        ("u64", "u8", True, True),
        ("f64", "f32", True, True),
        ("f64", "u32", True, False),
        ("b16", "b32", True, False),
        ("pred", "pred", False, True),
        ("b32", "pred", True, False),
        ("pred", "b32", True, False),
        ("b16", "bf16", False, True),
        ("f16", "bf16", False, False),
    ],
)
def test_a_register_fits_by_its_size_and_kind(
    register: str, operand: str, wider: bool, expected: bool
) -> None:
    assert fits(TYPES[register], TYPES[operand], wider) is expected


def test_formats_that_only_instructions_know_are_no_declared_types() -> None:
    assert not {"bf16", "e4m3x2", "f32x2", "tf32"} & (REGISTER_TYPES | MEMORY_TYPES)
    assert "pred" in REGISTER_TYPES and "pred" not in MEMORY_TYPES


def test_sizes_are_those_of_the_names() -> None:
    assert (TYPES["b128"].bits, TYPES["b128"].size) == (128, 16)
    assert bits_type(64) is TYPES["b64"]
    assert bits_type(24) is None
