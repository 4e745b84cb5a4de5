"""Files of kernels: what is written is read back, and anything else is refused."""

from __future__ import annotations

import dataclasses
import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexfa4.kernels.cache.entry import EntryError, read_entry, write_entry
from flexfa4.kernels.compile.compiled_kernel import CompiledKernel
from tests.compiled_kernels import compiled_kernel

KERNEL = compiled_kernel(programmatic=True)
ENTRY = write_entry(KERNEL)


def fields(kernel: CompiledKernel) -> dict[str, object]:
    return {f.name: getattr(kernel, f.name) for f in dataclasses.fields(kernel)}


def test_a_kernel_is_read_as_it_was_written() -> None:
    assert fields(read_entry(ENTRY)) == fields(KERNEL)


def test_the_header_is_json_that_other_tools_can_read() -> None:
    first, header, _ = ENTRY.split(b"\n", 2)
    assert first == b"flexfa4 kernel 1"
    assert json.loads(header)["resources"]["registers"] == 168


def test_text_takes_a_fraction_of_its_length() -> None:
    assert len(ENTRY) < len(KERNEL.cubin) + len(KERNEL.ptx) / 2


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"flexfa4 kernel 2\n" + ENTRY.split(b"\n", 1)[1],
        ENTRY[:-1],
        ENTRY + b"\0",
        ENTRY[:200],
        ENTRY.replace(b'"name"', b'"nome"'),
        ENTRY.replace(b'"Int32"', b'"Int33"'),
        ENTRY.replace(b'"lengths"', b'"widths"'),
        b"flexfa4 kernel 1\n{}\n",
        b"flexfa4 kernel 1\n[]\n",
        b"flexfa4 kernel 1\n",
    ],
    ids=lambda data: f"{len(data)} bytes",
)
def test_what_is_not_an_entry_is_refused(data: bytes) -> None:
    with pytest.raises(EntryError):
        read_entry(data)


@given(st.integers(ENTRY.index(b"\n", 20) + 1, len(ENTRY) - 1), st.integers(1, 255))
def test_no_altered_byte_of_a_kernel_passes(position: int, change: int) -> None:
    altered = bytearray(ENTRY)
    altered[position] ^= change
    with pytest.raises(EntryError, match="checksum"):
        read_entry(bytes(altered))


def test_a_large_kernel_is_read_in_milliseconds() -> None:
    lines = (f"fma.rn.f32 %f{i}, %f{i * 7 % 4096}, %f{i * 31 % 4096}, %f{i};" for i in range(8000))
    entry = write_entry(compiled_kernel(ptx="\n".join(lines), cubin=bytes(200_000)))
    times = []
    for _ in range(5):
        start = time.thread_time()
        read_entry(entry)
        times.append(time.thread_time() - start)
    assert min(times) < 0.02  # 2 ms on an idle core
