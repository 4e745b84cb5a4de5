"""One file for one kernel: a header in JSON, then machine code and PTX.

The format can be read without CuTe-DSL and runs no code of the file::

    flexfa4 kernel 1\\n             what it is, and the format's number
    {...}\\n                       name, signature, sizes, and lengths and checksum of the rest
    machine code, PTX             as bytes; the PTX compressed by zlib

A file that is cut off or altered is refused, by its lengths and its checksum.  This module writes
bytes; where files are, and what happens to bad ones, is in `store`.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import asdict
from typing import Any, Final

from flexfa4.kernels.compile.compiled_kernel import CompiledKernel, Resources, Versions
from flexfa4.kernels.compile.signature import from_data, to_data

FORM: Final = "flexfa4 kernel 1"
_FIRST_LINE: Final = FORM.encode() + b"\n"
_LEVEL: Final = 6  # of compression: PTX becomes a fifth


class EntryError(Exception):
    """A file that is no entry; `store` compiles again, so no user sees it."""


def write_entry(kernel: CompiledKernel) -> bytes:
    """Return a kernel as the bytes of a file."""
    ptx = zlib.compress(kernel.ptx.encode(), _LEVEL)
    header = {
        "name": kernel.name,
        "arch": kernel.arch,
        "signature": to_data(kernel.signature),
        "block": kernel.block,
        "cluster": kernel.cluster,
        "resources": asdict(kernel.resources),
        "versions": asdict(kernel.versions),
        "programmatic": kernel.programmatic,
        "lengths": [len(kernel.cubin), len(ptx)],
        "checksum": zlib.crc32(ptx, zlib.crc32(kernel.cubin)),
    }
    return b"".join((_FIRST_LINE, json.dumps(header).encode(), b"\n", kernel.cubin, ptx))


def read_entry(data: bytes) -> CompiledKernel:
    """Return the kernel that `write_entry` made this of.

    Raises:
        EntryError: it did not, or not in this format.
    """
    if not data.startswith(_FIRST_LINE):
        raise EntryError(f"it begins with {data[: len(_FIRST_LINE)]!r}")
    try:
        start = len(_FIRST_LINE)
        end = data.index(b"\n", start)
        header = json.loads(data[start:end])
        cubin, ptx = _payload(data[end + 1 :], header)
        return _kernel(header, cubin, zlib.decompress(ptx).decode())
    except (ValueError, KeyError, TypeError, zlib.error) as error:
        raise EntryError(f"{type(error).__name__}: {error}") from error


def _payload(data: bytes, header: dict[str, Any]) -> tuple[bytes, bytes]:
    """Return machine code and compressed PTX, if they are whole."""
    first, second = header["lengths"]
    if len(data) != first + second:
        raise EntryError(f"{len(data)} bytes behind its header, and not {first + second}")
    cubin, ptx = data[:first], data[first:]
    if zlib.crc32(ptx, zlib.crc32(cubin)) != header["checksum"]:
        raise EntryError("its checksum differs")
    return cubin, ptx


def _kernel(header: dict[str, Any], cubin: bytes, ptx: str) -> CompiledKernel:
    resources = header["resources"]
    resources["register_budgets"] = tuple(resources["register_budgets"])
    return CompiledKernel(
        name=header["name"],
        arch=header["arch"],
        signature=from_data(header["signature"]),
        block=tuple(header["block"]),
        cluster=tuple(header["cluster"]),
        resources=Resources(**resources),
        versions=Versions(**header["versions"]),
        ptx=ptx,
        cubin=cubin,
        programmatic=header["programmatic"],
    )
