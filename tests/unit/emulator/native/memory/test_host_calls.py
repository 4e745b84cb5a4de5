"""printf and assertions of kernels, against Python's formatting."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from flexfa4.emulator.failures.memory import (
    FormatError,
    KernelAssertionError,
    OutOfBoundsError,
    UninitialisedReadError,
)
from tests.ptx_programs import run_program

DECLARE = """
.extern .func (.param .b32 status) vprintf (.param .b64 format, .param .b64 arguments);
.extern .func __assertfail (.param .b64 a, .param .b64 b, .param .b32 c, .param .b64 d,
                            .param .b64 e);
"""
CALL = """cvta.global.u64 f, text; cvta.local.u64 g, stack;
{ .param .b32 result; .param .b64 first; .param .b64 second;
st.param.b64 [first], f; st.param.b64 [second], g;
call.uni (result), vprintf, (first, second);
ld.param.b32 d, [result]; }"""


def text(name: str, content: str) -> str:
    data = [*content.encode(), 0]
    numbers = ", ".join(map(str, data))
    return f".global .align 1 .b8 {name}[{len(data)}] = {{{numbers}}};"


def printed(format_: str, *stores: str, more: str = "", active: int = 1) -> tuple[Any, Any]:
    results, run = run_program(
        " ".join(stores) + CALL,
        {"i:u32": list(range(32))},
        "d:u32",
        declare=DECLARE + text("text", format_) + more,
        registers=".local .align 8 .b8 stack[64]; .reg .b64 f, g;",
        active=active,
    )
    return run.printed, results["d"]


def double(value: float) -> str:
    return f"0d{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"


def test_each_lane_prints_its_own_values() -> None:
    lines, status = printed(
        "lane %d of %u\n", "st.local.v2.b32 [stack], {i, 32};", active=0x80000005
    )
    assert lines == ("lane 0 of 32\n", "lane 2 of 32\n", "lane 31 of 32\n")
    assert [status[i] for i in (0, 2, 31)] == [2, 2, 2]


@pytest.mark.parametrize(
    ("format_", "store", "expected"),
    [("%d|", "st.local.b32 [stack], -5;", "-5|"),
     ("%5d|%-5d|%05d", "st.local.v2.b32 [stack], {1, 2}; st.local.b32 [stack+8], 3;",
      "    1|2    |00003"),
     ("%x %X %#o", "st.local.v2.b32 [stack], {255, 255}; st.local.b32 [stack+8], 8;",
      "ff FF 010"),
     ("%lld %llu", "st.local.b64 [stack], -1; st.local.b64 [stack+8], -1;",
      f"-1 {2**64 - 1}"),
     ("%d %ld", "st.local.b32 [stack], 7; st.local.b64 [stack+8], 0x100000000;",
      f"7 {2**32}"),
     ("%hd %hhu", "st.local.v2.b32 [stack], {0x18000, 0x1FF};", "-32768 255"),
     ("%f %.3e %g", f"st.local.b64 [stack], {double(1.5)}; st.local.b64 [stack+8], "
      f"{double(-12345.678)}; st.local.b64 [stack+16], {double(1e20)};",
      f"{1.5:f} {-12345.678:.3e} {1e20:g}"),
     ("%*.*f", f"st.local.v2.b32 [stack], {{8, 2}}; st.local.b64 [stack+8], {double(3.14159)};",
      "    3.14"),
     ("%c%c 100%%", "st.local.v2.b32 [stack], {65, 66};", "AB 100%"),
     ("no argument", "", "no argument")],
)  # fmt: skip
def test_conversions_follow_c(format_: str, store: str, expected: str) -> None:
    assert printed(format_, store)[0] == (expected,)


def test_strings_are_read_from_the_kernels_memory() -> None:
    lines, _ = printed(
        "<%s> <%6.2s>",
        "cvta.global.u64 f, word; st.local.b64 [stack], f; st.local.b64 [stack+8], f;",
        more=text("word", "abc"),
    )
    assert lines == ("<abc> <    ab>",)


def test_the_result_counts_conversions() -> None:
    assert printed("%d %d %%", "st.local.v2.b32 [stack], {1, 2};")[1][0] == 2
    assert printed("")[1][0] == 0


def test_arguments_are_read_as_strictly_as_by_loads() -> None:
    with pytest.raises(UninitialisedReadError):
        printed("%d")
    stores = [f"st.local.b64 [stack+{8 * i}], 1;" for i in range(8)]
    with pytest.raises(OutOfBoundsError):
        printed("%lld" * 9, *stores)


@pytest.mark.parametrize("format_", ["%n", "%k", "%", "%hf"])
def test_other_conversions_are_refused(format_: str) -> None:
    with pytest.raises(FormatError) as caught:
        printed(format_, "st.local.b64 [stack], 0;")
    assert caught.value.fields["format"] == format_


def test_an_assertion_that_fails_ends_the_launch() -> None:
    code = """cvta.global.u64 f, condition; cvta.global.u64 g, file; cvta.global.u64 h, function;
    { .param .b64 a; .param .b64 b; .param .b32 c; .param .b64 d; .param .b64 e;
    st.param.b64 [a], f; st.param.b64 [b], g; st.param.b32 [c], 42; st.param.b64 [d], h;
    st.param.b64 [e], 1; call.uni __assertfail, (a, b, c, d, e); }"""
    with pytest.raises(KernelAssertionError, match=r"assertion `x > 0` failed in work, k.cu:42"):
        run_program(
            code,
            declare=DECLARE + text("condition", "x > 0") + text("file", "k.cu")
            + text("function", "work"),
            registers=".reg .b64 f, g, h;",
        )  # fmt: skip
