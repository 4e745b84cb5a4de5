"""What operands mean: bits, registers, addresses; and what is refused."""

from __future__ import annotations

import struct

import pytest

from flexfa4.emulator.ptx.errors import (
    ArchitectureError,
    ImmediateError,
    ModifierError,
    OperandCountError,
    OperandError,
    OperandTypeError,
    PtxError,
    UndeclaredError,
    UnknownOpcodeError,
    VectorLengthError,
)
from flexfa4.emulator.ptx.program import (
    Address,
    Immediate,
    Negated,
    Register,
    Sink,
    Special,
    TensorAddress,
    Variable,
    VariableAddress,
    Vector,
)
from tests.kernel_texts import read_instruction, read_kernel, read_operand


def bits_of(value: float, code: str) -> int:
    return int.from_bytes(struct.pack(code, value), "little")


@pytest.mark.parametrize(
    ("text", "name", "bits"),
    [
        ("mov.b32 %r1, -1;", "a", 0xFFFFFFFF),
        ("mov.b64 %d1, -2;", "a", 0xFFFFFFFFFFFFFFFE),
        ("mov.b16 %h1, 0x8000;", "a", 0x8000),
        ("add.s32 %r1, %r2, -2147483648;", "b", 0x80000000),
        ("mov.u32 %r1, 4294967295;", "a", 0xFFFFFFFF),
        ("add.f32 %f1, %f2, 0f3F800000;", "b", 0x3F800000),
        ("add.f32 %f1, %f2, -0f3F800000;", "b", 0xBF800000),
        ("add.f32 %f1, %f2, 1.5;", "b", bits_of(1.5, "<f")),
        ("add.f32 %f1, %f2, 0.1;", "b", bits_of(0.1, "<f")),
        ("add.f64 %g1, %g2, 0d3FF0000000000000;", "b", bits_of(1, "<d")),
        ("mov.b32 %r1, 0fFF800000;", "a", 0xFF800000),
        ("mov.pred %p1, -1;", "a", 1),
        ("mov.pred %p1, 0;", "a", 0),
        ("shl.b64 %d1, %d2, 32;", "b", 32),
        ("prmt.b32 %r1, %r2, 0, 0x7771U;", "c", 0x7771),
        ("wgmma.wait_group.sync.aligned 3;", "n", 3),
    ],
)
def test_a_number_is_the_bits_of_its_operands_type(text: str, name: str, bits: int) -> None:
    target = "sm_90a" if text.startswith("wgmma") else "sm_100a"
    assert read_operand(text, name, target) == Immediate(bits)


def test_registers_are_places_in_the_bank_of_their_size() -> None:
    function = read_kernel("add.f32 %f1, %r7, %f1;\ncvt.u64.u32 %d1, %r7;")
    first, second = function.instructions
    assert first.operands == (
        Register("%f1", function.registers[0].type, 0),
        Register("%r7", function.registers[1].type, 1),
        function.registers[0],
    )
    assert second.operand("a") is first.operand("a")
    assert function.banks == {32: 2, 64: 1}


def test_a_load_may_fill_a_wider_register() -> None:
    vector = read_operand("ld.param.v2.b8 {%h1, %h2}, [map];", "d")
    assert isinstance(vector, Vector) and len(vector.elements) == 2


@pytest.mark.parametrize(
    ("text", "name", "count"),
    [
        ("ld.shared.v4.b32 {%r1, %r2, %r3, %r4}, [%r5];", "d", 4),
        ("st.global.v2.b64 [%d1], {%d2, 0};", "b", 2),
        ("mov.b64 %d1, {%r1, %r2};", "a", 2),
        ("mov.b64 {%h1, %h2, %h3, %h4}, %d1;", "d", 4),
        ("mov.b32 %r1, {%b1, %b2, %b3, %b4};", "a", 4),
        ("mov.b128 %q1, {%d1, %d2};", "a", 2),
        ("tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r1}, [%r2];", "d", 1),
        ("tcgen05.ld.sync.aligned.32x32b.x1.b32 %r1, [%r2];", "d", 1),
    ],
)
def test_vectors_have_their_elements(text: str, name: str, count: int) -> None:
    vector = read_operand(text, name)
    assert isinstance(vector, Vector) and len(vector.elements) == count


def test_a_result_may_be_dropped_where_the_table_says_so() -> None:
    assert read_operand("mbarrier.arrive.shared::cluster.b64 _, [%r1], %r2;", "_") == Sink()
    assert read_operand("mbarrier.arrive.shared.b64 _, [%r1];", "state") == Sink()
    elect = read_instruction("elect.sync _|%p1, -1;")
    assert elect.operand("d") == Sink() and isinstance(elect.operand("p"), Register)
    vector = read_operand("mov.b64 {_, %r1}, %d1;", "d")
    assert isinstance(vector, Vector) and vector.elements[0] == Sink()


def test_an_optional_operand_is_none() -> None:
    assert read_operand("bar.sync 0;", "b") is None
    assert read_operand("bar.sync 0, 128;", "b") == Immediate(128)
    assert read_operand("setp.eq.b32 %p1, %r1, 0;", "q") is None
    assert read_operand("mbarrier.arrive.shared.b64 %d1, [%r1];", "count") is None


def test_predicates_may_be_negated_where_the_table_says_so() -> None:
    operand = read_operand("setp.eq.and.b32 %p1|%p2, %r1, 0, !%p3;", "c")
    assert isinstance(operand, Negated) and operand.register.name == "%p3"


def test_special_registers_are_read_by_moves() -> None:
    operand = read_operand("mov.u32 %r1, %cluster_ctaid.y;", "a")
    assert isinstance(operand, Special) and operand.name == "cluster_ctaid.y"
    with pytest.raises(OperandError, match=r"the \.u32 register `tid\.x`"):
        read_instruction("add.u32 %r1, %tid.x, 1;")
    with pytest.raises(OperandError, match=r"the \.u64 register `clock64`"):
        read_instruction("mov.u32 %r1, %clock64;")


def test_the_address_of_a_variable_is_a_value() -> None:
    operand = read_operand("mov.b64 %d1, map+64;", "a")
    assert isinstance(operand, VariableAddress)
    assert (operand.variable.offset, operand.offset) == (64, 64)
    assert operand.variable.space == "param"
    with pytest.raises(OperandError, match="the address of `map`"):
        read_instruction("mov.b16 %h1, map;")


def test_an_address_has_a_register_or_a_variable_as_base() -> None:
    parameter = read_operand("ld.param.b64 %d1, [x];", "a")
    assert isinstance(parameter, Address) and isinstance(parameter.base, Variable)
    barrier = read_operand("mbarrier.inval.shared.b64 [barriers+8];", "a")
    assert isinstance(barrier, Address) and barrier.offset == 8
    assert read_operand("ld.local.b32 %r1, [64];", "a") == Address(None, 64)


def test_a_tensor_map_has_as_many_coordinates_as_dimensions() -> None:
    copy = "cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes"
    operand = read_operand(f"{copy} [%r1], [%d1, {{%r2, -8}}], [%r3];", "tensor")
    assert isinstance(operand, TensorAddress)
    assert operand.coordinates[1] == Immediate(0xFFFFFFF8)
    with pytest.raises(VectorLengthError, match=r"operand coordinates of .* has 3 elements"):
        read_instruction(f"{copy} [%r1], [%d1, {{%r2, 0, 0}}], [%r3];")


def test_the_row_is_chosen_by_the_operands() -> None:
    shared = read_instruction("tcgen05.mma.cta_group::1.kind::f16 [%r1], %d1, %d2, %r2, %p1;")
    tensor = read_instruction("tcgen05.mma.cta_group::1.kind::f16 [%r1], [%r3], %d2, %r2, 0;")
    lanes = read_instruction(
        "tcgen05.mma.cta_group::1.kind::f16 [%r1], %d1, %d2, %r2, {%r3, %r3, %r3, %r3}, %p1;"
    )
    assert [list(i.operation.positions)[1] for i in (shared, tensor)] == ["a_desc", "a"]
    assert "disabled_lanes" in lanes.operation.positions
    assert tensor.operand("accumulate") == Immediate(0)


MISTAKES: list[tuple[str, type[PtxError], str]] = [
    ("frobnicate.b32 %r1;", UnknownOpcodeError, "`frobnicate` is not in the table"),
    ("addd.s32 %r1, %r2, %r3;", UnknownOpcodeError, "nearest: add"),
    ("add.rn.s32 %r1, %r2, %r3;", ModifierError, r"`add.rn` does not take `.s32`"),
    ("ld.global.fast.b32 %r1, [%d1];", ModifierError, r"`ld.global` does not take `.fast`"),
    ("add %r1, %r2, %r3;", ModifierError, "`add` is not complete"),
    ("tcgen05.wait %r1;", ModifierError, r"`tcgen05` does not take `.wait`"),
    ("wgmma.fence.sync.aligned;", ArchitectureError, "does not exist on sm_100a"),
    ("add.s32 %r1, %r2;", OperandCountError, "`add.s32` has 2 operands here"),
    ("ret %r1;", OperandCountError, "no operands"),
    ("add.s32 %r1, %r2, [%r3];", OperandError, r"operand b of `add.s32` is `\[%r3\]`"),
    ("ld.global.b32 %r1, %d1;", OperandError, "an address in global memory, in brackets"),
    ("add.s32 5, %r2, %r3;", OperandError, "is the number 5"),
    ("add.s32 _, %r2, %r3;", OperandError, "is the sink `_`"),
    ("selp.b32 %r1, %r2, %r3, !%p1;", OperandError, "the negated `%p1`"),
    ("cp.async.bulk.wait_group %r1;", OperandError, "a number of type .u32"),
    ("mbarrier.arrive.shared::cluster.b64 %d1, [%r1];", OperandError, "the sink"),
    ("add.s32 %r1, barriers, 4;", OperandError, "the address of `barriers`"),
    ("ld.global.b32 %r1, [barriers];", OperandError, "`barriers` in shared memory"),
    ("st.param.b64 [x], %d1;", OperandError, "`x` in param memory"),
    ("ld.global.b32 %r1, [%tid.x];", OperandError, r"\[%tid.x\]"),
    ("@%r1 ret;", OperandError, "operand guard of `@` is `%r1`, no predicate"),
    ("add.s32 %r1, %d1, 4;", OperandTypeError, "`%d1`, declared .b64"),
    ("add.f64 %g1, %g2, %r1;", OperandTypeError, "declared .b32"),
    ("add.s32 %r1, %f1, 4;", OperandTypeError, "registers that hold .s32"),
    ("mov.b64 %d1, {%h1, %h2};", OperandTypeError, "registers that hold .b32"),
    ("st.global.b32 [%d1], %h1;", OperandTypeError, "or are wider"),
    ("ld.global.b32 %r1, [%r2];", OperandTypeError, "64 bits for addresses in global memory"),
    ("tcgen05.shift.cta_group::1.down [%d1];", OperandTypeError, "integers of 32 bits"),
    ("ld.shared.b32 %r1, [64];", OperandError, "an address without register"),
    ("ld.global.v2.b8 {%b1, %h1}, [%d1];", OperandError, "registers of several sizes"),
    ("add.f32 %f1, %f2, 1;", ImmediateError, "`1` does not fit an operand of type .f32"),
    ("mul.f16x2 %r1, %r2, 0;", ImmediateError, "of type .f16x2"),
    ("ld.shared.v4.b32 {%r1, %r2}, [%r3];", VectorLengthError, "has 2 elements"),
    ("mov.b64 %d1, {%r1, %r2, %r3};", VectorLengthError, "2 or 4"),
    ("mov.b16 %h1, 65536;", ImmediateError, "`65536` does not fit 16 bits"),
    ("mov.b32 %r1, -2147483649;", ImmediateError, "32 bits"),
    ("mov.b64 %d1, 0f3F800000;", ImmediateError, "0d and 16 digits"),
    ("add.f32 %f1, %f2, 1.0e300;", ImmediateError, "of type .f32"),
    (f"mov.b32 %r1, {'9' * 5000};", ImmediateError, "of type .b32"),
    ("ld.global.b32 %r1, [%d1+2147483648];", ImmediateError, "the offset of an address"),
    ("add.s32 %r1, %r2, 1.5;", ImmediateError, "an operand of type .s32"),
    ("add.s32 %r1, %r2, %s1;", UndeclaredError, "`%s1` is not declared here"),
    ("mov.u32 %r1, %ctaidd.x;", UndeclaredError, "`%ctaidd.x`"),
    ("ld.shared.b32 %r1, [nothing];", UndeclaredError, "`nothing`"),
]


@pytest.mark.parametrize(("text", "error", "message"), MISTAKES, ids=[m[0][:40] for m in MISTAKES])
def test_a_mistake_is_told_with_the_line(text: str, error: type[PtxError], message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        read_kernel(f"ret;\n  {text}")
    assert caught.value.where is not None
    assert caught.value.where.text.strip() == text


def test_the_place_of_a_wrong_modifier_is_pointed_at() -> None:
    with pytest.raises(ModifierError) as caught:
        read_instruction("ld.global.fast.b32 %r1, [%d1];")
    where = caught.value.where
    assert where is not None
    assert where.text[where.column : where.column + where.width] == ".fast"
