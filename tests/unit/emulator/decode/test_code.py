"""Instructions and operands as the core gets them: told by running them."""

from __future__ import annotations

import pytest
import torch

from flexfa4.emulator import load
from flexfa4.emulator.decode import decode
from flexfa4.emulator.failures.program import (
    AddressInInitialValueError,
    CounterOperandError,
    IndirectCallError,
    UnsupportedOperationError,
)
from flexfa4.emulator.ptx import parse
from tests.kernel_texts import kernel_text
from tests.ptx_programs import run_instruction

HEAD = ".version 8.8\n.target sm_100a\n.address_size 64\n"


def test_numbers_have_the_size_of_their_operand() -> None:
    result = run_instruction(
        "add.u16 h, 0xFFFF, 2; add.u32 r, 0xFFFFFFFF, 2; add.u64 d, -1, -1; add.f64 g, 0.5, 0.25;",
        outputs="h:u16 r:u32 d:u64 g:f64",
        threads=2,
    )
    assert result == {"h": [1, 1], "r": [1, 1], "d": [2**64 - 2] * 2, "g": [0.75, 0.75]}


def test_numbers_stand_for_predicates() -> None:
    result = run_instruction(
        "selp.u32 d, 5, 6, p; and.pred q, p, 1; or.pred q, q, 0;",
        inputs={"p:pred": [True, False]},
        outputs="d:u32 q:pred",
    )
    assert result == {"d": [5, 6], "q": [True, False]}


def test_special_registers_have_a_value_in_each_lane() -> None:
    result = run_instruction(
        "mov.u32 a, %tid.x; mov.u32 b, %ctaid.x; mov.u32 c, %ntid.x; cvt.u16.u32 h, %laneid;",
        outputs="a:u32 b:u32 c:u32 h:u16",
        threads=40,
        grid=2,
    )
    assert result["a"] == [*range(40), *range(40)]
    assert result["b"] == [0] * 40 + [1] * 40
    assert result["c"] == [40] * 80
    assert result["h"] == [i % 32 for i in range(40)] * 2


def test_clocks_move_on_each_time_they_are_read() -> None:
    result = run_instruction(
        "mov.u64 a, %clock64; mov.u64 b, %clock64; mov.u32 c, %clock_hi; mov.u64 d, %globaltimer;",
        outputs="a:u64 b:u64 c:u32 d:u64",
        threads=1,
    )
    assert result["a"][0] < result["b"][0] < result["d"][0]
    assert result["c"] == [0]


def test_a_clock_in_another_instruction_than_mov_is_an_error() -> None:
    with pytest.raises(CounterOperandError, match=r"cvt\.u16\.u32` reads %clock\n.*PTX line"):
        decode(parse(kernel_text("cvt.u16.u32 %h1, %clock;")))


def test_addresses_of_variables_lead_to_them_from_every_kind_of_operand() -> None:
    result = run_instruction(
        """
        st.shared.u32 [cell], 1;
        mov.u32 t, cell;
        ld.shared.u32 a, [t];
        st.shared.u32 [cell+4], 2;
        ld.shared.u32 b, [t+4];
        mov.u64 far, cell;
        cvta.shared.u64 far, far;
        ld.u32 c, [far+4];
        ld.u32 d, [cell];
        st.global.u32 [counter], 7;
        mov.u64 far, counter;
        ld.global.u32 e, [far];
        ld.const.u32 f, [table+4];
        st.local.u32 [depot+4], 9;
        mov.u32 t, depot;
        ld.local.u32 g, [t+4];
        """,
        outputs="a:u32 b:u32 c:u32 d:u32 e:u32 f:u32 g:u32",
        threads=1,
        declare=".shared .b32 before; .shared .align 8 .b32 cell[2];"
        " .global .b32 counter; .const .b32 table[2] = {3, 4};",
        registers=".reg .b32 t; .reg .b64 far; .local .b32 depot[2];",
    )
    assert {name: values[0] for name, values in result.items()} == dict(
        a=1, b=2, c=2, d=1, e=7, f=4, g=9
    )


def test_variables_of_the_module_begin_with_their_values() -> None:
    result = run_instruction(
        "ld.global.u32 a, [numbers+8]; ld.global.u32 b, [rest];",
        outputs="a:u32 b:u32",
        threads=1,
        declare=".global .b32 numbers[3] = {5, 6, 7}; .global .b32 rest;",
    )
    assert result == {"a": [7], "b": [0]}


CALL = """
.func (.param .b32 result) scaled(.param .b32 value, .param .b32 factor)
{
    .reg .b32 a, b;
    .reg .pred p;
    ld.param.b32 a, [value];
    ld.param.b32 b, [factor];
    mul.lo.u32 a, a, b;
    st.param.b32 [result], a;
    setp.gt.u32 p, a, 20;
    @p ret;
    add.u32 a, a, 1000;
    st.param.b32 [result], a;
}
"""


def test_calls_pass_values_for_each_lane_and_return_from_the_end_of_a_function_too() -> None:
    result = run_instruction(
        """
        {
        .param .b32 x; .param .b32 y; .param .b32 z;
        st.param.b32 [x], a;
        st.param.b32 [y], 3;
        call (z), scaled, (x, y);
        ld.param.b32 d, [z];
        st.param.b32 [x], d;
        call (z), scaled, (x, y);
        ld.param.b32 e, [z];
        }
        """,
        inputs={"a:u32": [1, 5, 9, 30]},
        outputs="d:u32 e:u32",
        declare=CALL,
    )
    assert result == {"d": [1003, 1015, 27, 90], "e": [3009, 3045, 81, 270]}


def test_a_kernel_may_run_off_its_end() -> None:
    text = HEAD + (
        ".entry k(.param .u64 p) { .reg .b64 a; ld.param.u64 a, [p]; st.global.u32 [a], 4; }"
    )
    out = torch.zeros(1, dtype=torch.int32)
    load(text).run(grid=1, block=1, args=[out])
    assert out.item() == 4


def test_results_that_go_nowhere_change_nothing() -> None:
    result = run_instruction(
        "ld.global.v2.b32 {_, d}, [buffer]; setp.eq.u32 _|p, d, 2;",
        outputs="d:u32 p:pred",
        memory={"buffer": torch.tensor([1, 2], dtype=torch.int32)},
        threads=1,
    )
    assert result == {"d": [2], "p": [False]}


def test_the_address_of_a_function_is_an_error_with_its_line() -> None:
    text = HEAD + ".func f() { ret; }\n.entry k() { .reg .b64 a;\nmov.u64 a, f; ret; }"
    with pytest.raises(IndirectCallError, match="PTX line 6"):
        decode(parse(text))


def test_an_address_as_initial_value_is_an_error() -> None:
    text = HEAD + ".global .b32 a; .global .b64 b = a; .entry k() { ret; }"
    with pytest.raises(AddressInInitialValueError, match="initial value of b has the address of a"):
        decode(parse(text))


def test_what_the_core_does_not_execute_is_an_error_with_its_first_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from flexfa4.emulator.decode import code

    monkeypatch.setattr(code, "COUNTER_MOVE", "mov.nothing")
    with pytest.raises(UnsupportedOperationError, match=r"`mov\.u64` is not executed(.|\n)*%clock"):
        load(kernel_text("mov.u64 %d1, 0;\nmov.u64 %d1, %clock64;"))
