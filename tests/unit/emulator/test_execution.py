"""What a launch becomes before the core gets it."""

from __future__ import annotations

import pytest
import torch

from flexfa4.emulator import load
from flexfa4.emulator.execution import loaded, registers_of_thread
from flexfa4.emulator.ptx import parse

HEAD = ".version 8.8\n.target sm_90a\n.address_size 64\n"


def kernel(limits: str, body: str = "ret;") -> str:
    return f"{HEAD}.visible .entry k(.param .u64 out) {limits} {{ {body} }}"


@pytest.mark.parametrize(
    ("limits", "registers"),
    [
        ("", 0),
        (".maxnreg 96", 96),
        (".reqntid 384, 1, 1", 0),
        (".reqntid 192 .minnctapersm 2", 168),  # 65536 / 384 in steps of 8
        (".reqntid 384 .maxnreg 80", 80),
        (".maxntid 128, 3 .minnctapersm 2", 80),
        (".reqntid 64 .minnctapersm 2", 248),  # of 255, the most that a thread can have
        (".minnctapersm 2", 0),
    ],
)
def test_registers_of_a_thread_are_what_the_text_leaves_the_assembler(
    limits: str, registers: int
) -> None:
    assert registers_of_thread(parse(kernel(limits)).kernel()) == registers


def test_a_text_is_loaded_once() -> None:
    assert loaded(kernel("")) is loaded(kernel(""))
    assert loaded(kernel(""), "k") is loaded(kernel(""))  # named or not


def test_parameters_lie_as_the_kernel_declares_them() -> None:
    text = (
        HEAD
        + """
    .visible .entry k(
        .param .u8 first, .param .align 16 .b8 pair[16], .param .u16 half, .param .u64 out
    )
    {
        .reg .u64 o, x, y; .reg .u32 a, h;
        ld.param.u64 o, [out]; ld.param.u8 a, [first]; ld.param.u16 h, [half];
        ld.param.v2.u64 {x, y}, [pair];
        st.global.u32 [o], a; st.global.u32 [o+4], h; st.global.v2.u64 [o+16], {x, y};
    }
    """
    )
    out = torch.zeros(4, dtype=torch.int64)
    pair = (5).to_bytes(8, "little") + (6).to_bytes(8, "little")
    load(text).run(grid=1, block=1, args=[200, pair, -2, out])
    assert out.tolist() == [200 | 0xFFFE << 32, 0, 5, 6]
