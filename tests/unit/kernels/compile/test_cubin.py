"""Machine code read: ELF files written here, from the ELF specification and what cuobjdump prints.

Cubins of a compiler are read in tests/compile/test_kernel_compiler.py.
"""

from __future__ import annotations

import struct

import pytest

from flexfa4.kernels.compile.cubin import KernelInfo, read_cubin
from flexfa4.kernels.compile.errors import DamagedCubinError

PROGBITS, SYMTAB, STRTAB, NOBITS = 1, 2, 3, 8
NV_INFO = 0x70000000


def attribute(number: int, value: bytes) -> bytes:
    return struct.pack("<BBH", 4, number, len(value)) + value


def parameter(ordinal: int, offset: int, nbytes: int) -> bytes:
    return attribute(0x17, struct.pack("<IHHI", 0, ordinal, offset, nbytes << 18 | 0x1F000))


def strings(names: list[str]) -> tuple[bytes, dict[str, int]]:
    data, offsets = b"\0", {"": 0}
    for name in names:
        offsets[name] = len(data)
        data += name.encode() + b"\0"
    return data, offsets


def elf(sections: dict[str, tuple[int, bytes]], symbols: list[str]) -> bytes:
    """Return an ELF file with these sections: type and content by name."""
    table, at = strings(symbols)
    rows = b"".join(struct.pack("<IBBHQQ", at[s], 0, 0, 0, 0, 0) for s in ["", *symbols])
    everything = {"": (0, b""), ".strtab": (STRTAB, table), ".symtab": (SYMTAB, rows), **sections}
    names, where = strings([*everything, ".shstrtab"])
    everything[".shstrtab"] = (STRTAB, names)
    body, headers = b"", b""
    for name, (kind, content) in everything.items():
        size = len(content)
        place = 64 + len(body)
        headers += struct.pack("<2I4Q2I2Q", where[name], kind, 0, 0, place, size, 0, 0, 1, 0)
        body += b"" if kind == NOBITS else content
    head = (
        b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HHIQQQ", 2, 190, 1, 0, 0, 64 + len(body))
    )
    head += struct.pack("<IHHHHHH", 0x5A, 64, 0, 0, 64, len(everything), len(everything) - 1)
    return head + body + headers


def two_kernels() -> bytes:
    counts = attribute(0x2F, struct.pack("<II", 1, 168)) + attribute(
        0x11, struct.pack("<II", 1, 16)
    )
    counts += attribute(0x2F, struct.pack("<II", 2, 32))
    first = attribute(0x37, bytes(4)) + parameter(1, 128, 8) + parameter(0, 0, 128)
    first += struct.pack("<BBH", 3, 0x1B, 255) + attribute(0x10, struct.pack("<3I", 384, 1, 1))
    return elf(
        {
            ".text.first": (PROGBITS, bytes(64)),
            ".nv.info": (NV_INFO, counts),
            ".nv.info.first": (NV_INFO, first),
            ".nv.info.second": (NV_INFO, b""),
            ".nv.info.function": (NV_INFO, b""),
            ".nv.shared.first": (NOBITS, bytes(1024)),
        },
        ["first", "second"],
    )


def test_every_kernel_of_a_cubin_is_found() -> None:
    assert read_cubin(two_kernels()) == {
        "first": KernelInfo("first", 168, 16, ((0, 128), (128, 8)), (384, 1, 1)),
        "second": KernelInfo("second", 32, 0, (), None),
    }


@pytest.mark.parametrize("data", [b"", b"PTX", b"\x7fELF\x01\x01" + bytes(64)])
def test_other_files_are_refused(data: bytes) -> None:
    with pytest.raises(DamagedCubinError, match="begin with"):
        read_cubin(data)


@pytest.mark.parametrize("kept", [20, 64, 0.5, 0.95])
def test_a_cubin_that_is_cut_off_is_refused(kept: float) -> None:
    data = two_kernels()
    with pytest.raises(DamagedCubinError, match="cannot be read"):
        read_cubin(data[: int(kept if kept > 1 else kept * len(data))])
