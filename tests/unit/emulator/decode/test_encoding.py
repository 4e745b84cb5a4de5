"""The bytes that Python and the core agree on."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import flexfa4.emulator.native
from flexfa4.emulator.decode.encoding import (
    MAGIC,
    VERSION,
    Filled,
    Is,
    OperationRecord,
    ProgramRecord,
    Sizes,
    encode_operation,
)
from flexfa4.emulator.errors import Place
from flexfa4.emulator.failures.program import UnreadableProgramError, UnsupportedOperationError
from flexfa4.emulator.native.library import Program, bind
from flexfa4.emulator.ptx.table import READER
from flexfa4.emulator.ptx.types import Kind

NATIVE = Path(flexfa4.emulator.native.__file__).parent


def enumeration(text: str, name: str) -> list[str]:
    """Return the names of an enumeration of the core, in their order."""
    body = re.search(rf"enum class {name} : uint8_t {{(.*?)}};", text, re.DOTALL)
    assert body
    return re.findall(r"\b([A-Z]\w*)\b(?=\s*(?:,|$))", re.sub(r"//.*", "", body[1]))


def words(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).upper()


def test_enumerations_have_the_order_that_the_core_has() -> None:
    header = (NATIVE / "program" / "program.hpp").read_text()
    operand, initial = header.split("struct Initial", 1)
    assert [words(name) for name in enumeration(operand, "Is")] == [i.name for i in Is]
    assert [words(name) for name in enumeration(initial, "Is")] == [f.name for f in Filled]
    kinds = enumeration((NATIVE / "program" / "operation.hpp").read_text(), "Kind")
    assert [words(name) for name in kinds] == [kind.name for kind in Kind]


def test_the_core_reads_the_version_that_python_writes() -> None:
    loader = (NATIVE / "program" / "load.cpp").read_text()
    magic = re.search(r"MAGIC = 0x([0-9A-F']+);", loader)
    version = re.search(r"VERSION = (\d+);", loader)
    assert magic and version
    assert (int(magic[1].replace("'", ""), 16), int(version[1])) == (MAGIC, VERSION)


EMPTY = ProgramRecord("kernel", "sm_100a", Sizes(64, 0, 0, 0, 0), b"", b"").encode()


@pytest.mark.parametrize("size", [0, 3, 20, len(EMPTY) - 1])
def test_bytes_cut_short_are_refused(size: int) -> None:
    with pytest.raises(UnreadableProgramError):
        Program(EMPTY[:size], Place)


def test_bytes_left_over_and_other_versions_are_refused() -> None:
    Program(EMPTY, Place)
    with pytest.raises(UnreadableProgramError, match="left over"):
        Program(EMPTY + b"\0", Place)
    with pytest.raises(UnreadableProgramError, match="another version"):
        Program(EMPTY[:4] + b"\xff" + EMPTY[5:], Place)


def test_the_core_says_of_an_operation_alone_whether_it_has_code_under_its_name() -> None:
    (operation,) = READER.operations("bra.uni")
    bind(encode_operation(OperationRecord(operation, operation.name, operation.roles)))
    unknown = encode_operation(OperationRecord(operation, "bra.nowhere", operation.roles))
    with pytest.raises(UnsupportedOperationError, match=r"`bra\.uni` is not executed"):
        bind(unknown)
