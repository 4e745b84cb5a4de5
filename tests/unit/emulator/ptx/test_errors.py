"""Messages of the chapter: what each says, whole."""

from __future__ import annotations

import pickle

import pytest

from flexfa4.emulator.ptx import errors, parse
from flexfa4.emulator.ptx.errors import PtxError
from tests.kernel_texts import kernel_text, read_kernel


def message(code: str) -> str:
    with pytest.raises(PtxError) as caught:
        read_kernel(code)
    return str(caught.value)


def test_every_class_says_what_was_found_what_is_allowed_and_what_to_do() -> None:
    classes = [c for c in vars(errors).values() if isinstance(c, type) and c is not PtxError]
    chapter = [c for c in classes if issubclass(c, PtxError)]
    assert len(chapter) > 20
    assert not [c.__name__ for c in chapter if not (c.found and c.allowed and c.instead)]


def test_an_unknown_modifier_quotes_the_line_and_points_at_it() -> None:
    assert message("add.s32 %r1, %r2, 1;\n  bar.syncs 0;").splitlines() == [
        "`bar` does not take `.syncs`",
        "  where:   PTX line 23",
        "      bar.syncs 0;",
        "         ^^^^^^",
        "  allowed: .arrive, .cta, .red, .sync, .warp; nearest: .sync",
        "  instead: correct it, or add it to a row of `bar` in the table; nothing is ignored",
    ]


def test_a_register_of_the_wrong_size_is_named_with_its_declaration() -> None:
    assert message("ld.global.b32 %r1, [%r2];").splitlines() == [
        "operand a of `ld.global.b32` is the register `%r2`, declared .b32",
        "  where:   PTX line 22",
        "      ld.global.b32 %r1, [%r2];",
        "                          ^^^",
        "  allowed: integers of 64 bits for addresses in global memory",
        "  instead: declare the register with the size and type of the instruction",
    ]


def test_a_long_line_is_shown_around_the_mistake() -> None:
    registers = ", ".join(f"%r{i}" for i in range(127))
    lines = message(f"tcgen05.ld.sync.aligned.32x32b.x128.b32 {{{registers}, %h1}}, [%r1];")
    quoted, carets = lines.splitlines()[2:4]
    assert len(quoted) < 120
    start = carets.index("^")
    assert quoted[start : start + 3] == "%h1"


def test_an_error_survives_pickling() -> None:
    with pytest.raises(PtxError) as caught:
        parse(kernel_text("frob;"))
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (type(copy), str(copy)) == (type(caught.value), str(caught.value))
