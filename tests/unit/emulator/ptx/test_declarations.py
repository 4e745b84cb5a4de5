"""Variables: their places, their sizes and their initial bytes."""

from __future__ import annotations

import struct

import pytest

from flexfa4.emulator.ptx import Module, parse
from flexfa4.emulator.ptx.errors import (
    DirectiveError,
    ImmediateError,
    InitialValuesError,
    SyntaxMistakeError,
)
from tests.kernel_texts import kernel_text


def read(declarations: str) -> Module:
    return parse(kernel_text("ret;", before=declarations))


def test_variables_lie_in_order_each_aligned() -> None:
    module = read(
        ".shared .b8 a[3]; .shared .align 8 .b64 b; .global .b16 c; .shared .align 4 .b8 d[5];"
    )
    places = {v.name: (v.space, v.offset, v.size) for v in module.variables.values()}
    assert places == {
        "a": ("shared", 0, 3),
        "b": ("shared", 8, 8),
        "c": ("global", 0, 2),
        "d": ("shared", 16, 5),
    }
    assert module.sizes == {"shared": 21, "global": 2}


def test_arrays_without_size_begin_behind_all_shared_variables() -> None:
    module = read(
        ".extern .shared .align 64 .b8 x[]; .extern .shared .b32 y[]; .shared .b8 a[100];"
    )
    assert [(module.variables[n].offset, module.variables[n].size) for n in "xy"] == [(0, None)] * 2
    assert module.dynamic_shared == 128


def test_without_alignment_a_variable_is_aligned_as_its_type() -> None:
    module = read(".global .b8 a; .global .f64 b;")
    assert (module.variables["b"].align, module.variables["b"].offset) == (8, 8)


@pytest.mark.parametrize(
    ("declaration", "data"),
    [
        (".global .b8 x[4] = {37, 0x66, 10};", b"%f\n\0"),
        (".global .b8 x[] = {1, 2};", b"\1\2"),
        (".global .s16 x[2] = {-1, 2};", b"\xff\xff\2\0"),
        (".const .u64 x = 5;", b"\5" + b"\0" * 7),
        (".const .f32 x[2] = {0fBF800000, 0.5};", struct.pack("<ff", -1, 0.5)),
        (".const .f64 x[1] = {0d3FF0000000000000};", struct.pack("<d", 1)),
        (".const .f32 x = -1.5;", struct.pack("<f", -1.5)),
        (".global .b8 x[2][2] = {{1, 2}, {3, 4}};", b"\1\2\3\4"),
        (".const .f32 x = -0.0;", struct.pack("<f", -0.0)),
    ],
)
def test_initial_values_are_bytes(declaration: str, data: bytes) -> None:
    (variable,) = read(declaration).variables.values()
    assert variable.initial.ljust(variable.size or 0, b"\0") == data


def test_initial_values_may_be_addresses() -> None:
    module = read(".global .b32 a; .global .b8 b[8]; .global .u64 p[3] = {a, generic(b)+4, 7};")
    pointers = module.variables["p"]
    assert pointers.addresses == ((0, "a", 0, False), (8, "b", 4, True))
    assert pointers.initial == bytes(16) + (7).to_bytes(8, "little")


@pytest.mark.parametrize(
    ("declaration", "error", "message"),
    [
        (".global .b8 x[2] = {256};", ImmediateError, "`256` does not fit an element of type .b8"),
        (".global .u32 x = -3000000000;", ImmediateError, "-3000000000"),
        (".global .b32 x = 1.5;", ImmediateError, "with a point"),
        (".global .b8 x[];", SyntaxMistakeError, "initial values"),
        (".global x;", SyntaxMistakeError, "a type such as .b8"),
        (".global .b32;", SyntaxMistakeError, "the name of the variable"),
        (".global .v4 .b32 x;", DirectiveError, r"`.v4`"),
        (".global .align 3 .b8 x;", SyntaxMistakeError, "a power of 2"),
        (".global .align 0 .b8 x;", SyntaxMistakeError, "a power of 2"),
        (".const .f32 x = 1.0e300;", ImmediateError, "`1.0e300`"),
        (".global .b8 x[1.5];", SyntaxMistakeError, "an integer"),
        (".global .b8 x[2] = {1 2};", SyntaxMistakeError, "`2` cannot stand here"),
    ],
)
def test_a_wrong_declaration_is_an_error(
    declaration: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        read(declaration)


def test_more_initial_values_than_elements_are_an_error() -> None:
    with pytest.raises(InitialValuesError, match="`x` has 3 initial values"):
        read(".global .b8 x[2] = {1, 2, 3};")
