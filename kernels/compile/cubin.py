"""What machine code says of itself: registers, stack and parameters of a kernel.

A cubin is an ELF file.  Sections ``.nv.info`` and ``.nv.info.<kernel>`` are lists of attributes,
each a byte for its format, a byte for its number and a value; the numbers used here are those that
``cuobjdump -elf`` prints as ``EIATTR_...``.  Reading them takes no CUDA toolkit, which users do not
have, and no GPU.

This module does not disassemble, and does not know how many bytes are spilled: no attribute says
so, but a stack frame of 0 bytes means none.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from flexfa4.kernels.compile.errors import DamagedCubinError

_MAGIC: Final = b"\x7fELF\x02\x01"  # 64 bits, little-endian
_HEADER: Final = struct.Struct("<40xQ10x3H")  # e_shoff; e_shentsize, e_shnum, e_shstrndx
_SECTION: Final = struct.Struct("<2I4Q2I2Q")
_SYMBOL: Final = struct.Struct("<IBBHQQ")

_SIZED: Final = 4  # the format of attributes that have a length; others have two bytes of value
_PARAMETER: Final = 0x17  # EIATTR_KPARAM_INFO: index, ordinal, offset, size
_THREADS: Final = 0x10  # EIATTR_REQNTID
_FRAME: Final = 0x11  # EIATTR_FRAME_SIZE: symbol, bytes
_REGISTERS: Final = 0x2F  # EIATTR_REGCOUNT: symbol, registers
_INFO: Final = ".nv.info"


@dataclass(frozen=True)
class KernelInfo:
    """What is known of one kernel of a cubin.

    Attributes:
        name: of the kernel.
        registers: of each thread when the kernel starts.
        stack_frame: bytes of local memory of each thread: spills, and arrays that are indexed.
        parameters: (offset, bytes) of each, in order.
        block: threads along x, y, z that a launch has to have; None where it may have others.
    """

    name: str
    registers: int
    stack_frame: int
    parameters: tuple[tuple[int, int], ...]
    block: tuple[int, int, int] | None


def read_cubin(data: bytes) -> dict[str, KernelInfo]:
    """Return the kernels of a cubin by name.

    Raises:
        DamagedCubinError: for anything else than a cubin.
    """
    try:
        return _read(data)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise DamagedCubinError(problem=f"{len(data)} bytes, {error}") from error


def _read(data: bytes) -> dict[str, KernelInfo]:
    if not data.startswith(_MAGIC):
        raise DamagedCubinError(problem=f"{len(data)} bytes that begin with {data[:6].hex()!r}")
    sections = _sections(data)
    symbols = _symbols(sections)
    registers: dict[str, int] = {}
    frames: dict[str, int] = {}
    for number, value in _attributes(sections.get(_INFO, b"")):
        if number in (_REGISTERS, _FRAME):
            symbol, amount = struct.unpack("<II", value)
            (registers if number == _REGISTERS else frames)[symbols[symbol]] = amount
    found = {}
    for section, content in sections.items():
        name = section.removeprefix(_INFO + ".")
        if section == name or name not in registers:  # another section; a function, no kernel
            continue
        parameters, block = {}, None
        for number, value in _attributes(content):
            if number == _PARAMETER:
                _, ordinal, offset, packed = struct.unpack("<IHHI", value)
                parameters[ordinal] = (offset, packed >> 18)
            elif number == _THREADS:
                x, y, z = struct.unpack("<3I", value)
                block = (x, y, z)
        ordered = tuple(parameters[index] for index in sorted(parameters))
        found[name] = KernelInfo(name, registers[name], frames.get(name, 0), ordered, block)
    return found


def _sections(data: bytes) -> dict[str, bytes]:
    """Return the contents of all sections by name."""
    start, nbytes, count, names = _HEADER.unpack_from(data)
    headers = [_SECTION.unpack_from(data, start + index * nbytes) for index in range(count)]
    strings = headers[names][4]
    nobits = 8  # takes no place in the file
    return {
        _string(data, strings + header[0]): b""
        if header[1] == nobits
        else data[header[4] : header[4] + header[5]]
        for header in headers
    }


def _symbols(sections: dict[str, bytes]) -> list[str]:
    strings = sections.get(".strtab", b"")
    return [_string(strings, row[0]) for row in _SYMBOL.iter_unpack(sections.get(".symtab", b""))]


def _string(data: bytes, start: int) -> str:
    return data[start : data.index(b"\0", start)].decode()


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the number and the value of each attribute."""
    position = 0
    while position < len(data):
        form, number, short = struct.unpack_from("<BBH", data, position)
        length = short if form == _SIZED else 0
        value = data[position + 4 : position + 4 + length] if length else data[position + 2 :][:2]
        yield number, value
        position += 4 + length
