"""Which registers share a place."""

from __future__ import annotations

import random

import pytest

from flexfa4.emulator.decode.flow import registers_of
from flexfa4.emulator.decode.liveness import Allocation, allocate
from flexfa4.emulator.ptx import Function, parse
from flexfa4.emulator.ptx.forms import Access
from flexfa4.emulator.ptx.program import Target
from tests.kernel_texts import SOFTMAX, read_kernel
from tests.ptx_programs import run_instruction


def places(code: str) -> dict[str, int]:
    """Return the place of each register of a kernel with this code, by name."""
    function = read_kernel(code)
    return {register.name: slot for register, slot in allocate(function).slots.items()}


def test_registers_whose_values_are_not_needed_together_share_a_place() -> None:
    found = places("mov.u32 %r1, 1; add.u32 %r2, %r1, 1; add.u32 %r3, %r2, 1; ret;")
    assert found["%r3"] == found["%r1"] != found["%r2"]


def test_a_result_never_gets_the_place_of_an_operand() -> None:
    found = places("add.u32 %r2, %r1, 1; ret;")
    assert found["%r1"] != found["%r2"]


def test_results_of_one_instruction_differ_even_if_nobody_reads_them() -> None:
    found = places("setp.lt.and.u32 %p1|%p2, %r1, %r2, %p3; ld.global.v2.b32 {%r3, %r4}, [%d1];")
    assert len({found["%p1"], found["%p2"], found["%p3"]}) == 3
    assert found["%r3"] != found["%r4"]


def test_a_value_keeps_its_place_around_a_loop() -> None:
    found = places(
        """
        mov.u32 %r1, 7;
        mov.u32 %r2, 0;
    LOOP:
        add.u32 %r3, %r1, %r2;
        add.u32 %r2, %r3, 1;
        setp.lt.u32 %p1, %r2, 100;
        @%p1 bra LOOP;
        mov.u32 %r4, 5;
        st.global.u32 [%d1], %r4;
        """
    )
    assert len({found["%r1"], found["%r2"], found["%r3"]}) == 3
    assert found["%r4"] in (found["%r1"], found["%r2"], found["%r3"])


def test_a_guarded_write_does_not_end_the_value_before_it() -> None:
    found = places(
        """
        mov.u32 %r1, 7;
        mov.u32 %r2, 8;
        st.global.u32 [%d1], %r2;
        @%p1 mov.u32 %r1, 9;
        st.global.u32 [%d1], %r1;
        """
    )
    assert found["%r1"] != found["%r2"]


def test_a_register_that_only_guarded_instructions_write_is_live_from_the_start() -> None:
    found = places(
        "mov.u32 %r1, 1; st.global.u32 [%d1], %r1; @%p1 mov.u32 %r2, 2;"
        " @%p1 st.global.u32 [%d1], %r2;"
    )
    assert found["%r1"] != found["%r2"]


def test_values_pass_over_both_sides_of_a_branch() -> None:
    found = places(
        """
        mov.u32 %r1, 1;
        @%p1 bra ELSE;
        mov.u32 %r2, 2;
        bra.uni END;
    ELSE:
        mov.u32 %r3, 3;
        mov.u32 %r2, %r3;
    END:
        add.u32 %r4, %r1, %r2;
        st.global.u32 [%d1], %r4;
        """
    )
    assert found["%r1"] not in (found["%r2"], found["%r3"])


def test_targets_of_an_indexed_branch_are_followed() -> None:
    found = places(
        """
        mov.u32 %r1, 1;
        mov.u32 %r2, 2;
        brx.idx %r2, list;
    list: .branchtargets A, B;
    A:
        mov.u32 %r3, 3;
        st.global.u32 [%d1], %r3;
        ret;
    B:
        st.global.u32 [%d1], %r1;
        """
    )
    assert found["%r1"] != found["%r2"]


def test_registers_of_an_asynchronous_product_are_theirs_alone() -> None:
    accumulators = ", ".join(f"%r{i}" for i in range(4))
    wgmma = (
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16"
        f" {{{accumulators}}}, %d1, %d2, 1, 1, 1, 0, 0;"
    )
    function = read_kernel(f"{wgmma}\nmov.u32 %r9, 1; st.global.u32 [%d3], %r9;", "sm_90a")
    slots = {register.name: slot for register, slot in allocate(function).slots.items()}
    assert slots["%r9"] not in {slots[f"%r{i}"] for i in range(4)}


def test_a_function_without_code_needs_no_places() -> None:
    assert allocate(read_kernel("")) == Allocation({}, {})


def check(function: Function, allocation: Allocation) -> None:
    """Follow random ways through a function: every read finds the value of its register."""
    generator = random.Random(0)
    for _ in range(20):
        held: dict[tuple[int, int], str] = {}
        index = steps = 0
        while index < len(function.instructions) and steps < 5000:
            steps += 1
            instruction = function.instructions[index]
            index = follow(instruction, index, allocation, held, generator)


def follow(instruction, index, allocation, held, generator):
    """Do an instruction's reads and writes; return the index of the next one."""

    def place(register):
        return register.type.bits, allocation.slots[register]

    guard = instruction.guard
    pairs = list(zip(instruction.operation.roles, instruction.operands, strict=True))
    reads = [guard.register] if guard else []
    reads += [r for role, o in pairs if role.access is not Access.WRITE for r in registers_of(o)]
    for register in reads:
        assert held.get(place(register), register.name) == register.name, instruction.line
        held[place(register)] = register.name
    if guard and generator.random() < 0.5:
        return index + 1
    for role, operand in pairs:
        if role.access in (Access.WRITE, Access.UPDATE):
            for register in registers_of(operand):
                held[place(register)] = register.name
    for operand in instruction.operands:
        if isinstance(operand, Target):
            return operand.index
    return 10**9 if instruction.operation.name in ("ret", "exit") else index + 1


def test_every_way_through_a_compiled_kernel_finds_its_values() -> None:
    function = parse(SOFTMAX.read_text()).kernel()
    allocation = allocate(function)
    check(function, allocation)
    assert allocation.banks[32] < function.banks[32] / 3


def test_the_check_finds_a_place_that_is_shared_wrongly() -> None:
    function = parse(SOFTMAX.read_text()).kernel()
    good = allocate(function)
    with pytest.raises(AssertionError):
        check(function, Allocation(dict.fromkeys(good.slots, 0), good.banks))


def test_lanes_on_different_ways_keep_their_values() -> None:
    result = run_instruction(
        """
        {
        .reg .pred low;
        .reg .b32 x, y;
        setp.lt.u32 low, a, 16;
        @low bra LOW;
        mul.lo.u32 x, a, 3;
        add.u32 d, x, 1;
        bra.uni END;
    LOW:
        mul.lo.u32 y, a, 5;
        add.u32 d, y, 2;
    END:
        }
        """,
        inputs={"a:u32": list(range(32))},
        outputs="d:u32",
    )
    assert result["d"] == [5 * i + 2 if i < 16 else 3 * i + 1 for i in range(32)]
