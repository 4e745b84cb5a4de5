"""Running a few instructions of PTX on given lanes: the bench of the tests of the execution core.

    run_instruction("add.u32 d, a, b;", inputs={"a:u32": [1, 2, 3], "b:u32": 5}, outputs="d:u32")
    # {"d": [6, 7, 8]}

A kernel is written around the text.  Registers are named as the text names them, with the type by
which a test gives and gets their values; they are declared with the bits of that type.  Each thread
loads its values from a buffer, executes the text and stores its results.

types            values
b16 .. b128, u.. numbers without sign
s16 s32 s64      numbers with sign
f16 bf16 f32 f64 floats
pred             True and False
f16x2 and such   the bits

A list shorter than the block repeats, so that all lanes take part and loops over full warps are
tested; results come back for as many threads as the longest list has values.  A value that is no
list is every thread's.

With FLEXFA4_PARTIAL_CORE=1 in the environment, sources of the core that do not compile are left
out, so that the rest can be tested while one of them is being written.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from flexfa4.emulator import Run, load
from flexfa4.emulator.ptx.types import TYPES

STRIDE = 16  # bytes of a value in the buffers
WARP = 32

# floats that struct and torch convert
_FLOATS = {"f32": ("<f", "<I"), "f64": ("<d", "<Q"), "f16": ("<e", "<H")}


@dataclass(frozen=True)
class Setting:
    """What surrounds the instructions.

    Attributes:
        target: architecture.
        threads: of a block.
        grid: blocks along x.
        cluster: blocks of a cluster along x.
        declare: text before the kernel: shared variables, functions.
        registers: further registers, ``.reg .b32 t<4>;``, and variables of the kernel.
        active: lanes of each warp that execute the instructions; the others jump over them.
        memory: tensors by the names of the 64-bit registers that get their addresses.
        shared_memory: bytes of dynamic shared memory.
        options: of `Kernel.run`: schedule, seed, check, workers, sms.
    """

    target: str = "sm_100a"
    threads: int = WARP
    grid: int = 1
    cluster: int = 1
    declare: str = ""
    registers: str = ""
    active: int = 0xFFFF_FFFF
    memory: Mapping[str, torch.Tensor] = field(default_factory=dict)
    shared_memory: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)


def run_instruction(
    code: str,
    inputs: Mapping[str, Any] | None = None,
    outputs: str = "",
    **setting: Any,
) -> dict[str, list[Any]]:
    """Run instructions in every thread; return the results by register, a list over threads.

    Args:
        code: one instruction or several, with labels and braces as in a kernel's body.
        inputs: value or list of values by ``"register:type"``.
        outputs: registers and types, ``"d:u32 p:pred"``; one that is no input starts as 0.
        setting: fields of `Setting`.
    """
    return run_program(code, inputs, outputs, **setting)[0]


def run_program(
    code: str,
    inputs: Mapping[str, Any] | None = None,
    outputs: str = "",
    **setting: Any,
) -> tuple[dict[str, list[Any]], Run]:
    """Run instructions like `run_instruction`; return what the launch did, too."""
    around = Setting(**setting)
    given = {name: (type_, values) for (name, type_), values in _named(inputs or {}).items()}
    wanted = dict(_split(item) for item in outputs.split())
    total = around.threads * around.grid
    shown = max((len(v) for _, v in given.values() if isinstance(v, Sequence)), default=total)
    data = bytearray(total * max(len(given), 1) * STRIDE)
    for column, (type_, values) in enumerate(given.values()):
        listed = list(values) if isinstance(values, Sequence) else [values]
        words = [to_bits(value, type_).to_bytes(STRIDE, "little") for value in listed[:total]]
        for thread in range(total):
            at = (thread * len(given) + column) * STRIDE
            data[at : at + STRIDE] = words[thread % len(words)]
    source = torch.frombuffer(data, dtype=torch.uint8).clone()  # aligned as tensors are
    result = torch.zeros(total * max(len(wanted), 1) * STRIDE, dtype=torch.uint8)
    text = _kernel(code, {n: t for n, (t, _) in given.items()}, wanted, around)
    run = load(text).run(
        grid=around.grid,
        block=around.threads,
        cluster=around.cluster,
        shared_memory=around.shared_memory,
        args=[source, result, *around.memory.values()],
        **{"check": ("uninitialised",), **around.options},
    )
    stored = ctypes.string_at(result.data_ptr(), result.numel())
    read: dict[str, list[Any]] = {}
    for column, (name, type_) in enumerate(wanted.items()):
        starts = [(t * len(wanted) + column) * STRIDE for t in range(min(shown, total))]
        found = [int.from_bytes(stored[at : at + STRIDE], "little") for at in starts]
        read[name] = [from_bits(bits, type_) for bits in found]
    return read, run


def to_bits(value: Any, type_: str) -> int:
    """Return the bits of a value of a type."""
    if type_ == "pred":
        return int(bool(value))
    if type_ in _FLOATS and isinstance(value, float):
        code, bits = _FLOATS[type_]
        return int(struct.unpack(bits, struct.pack(code, value))[0])
    if type_ == "bf16" and isinstance(value, float):
        rounded = torch.tensor(value, dtype=torch.bfloat16).view(torch.int16)
        return int(rounded.item()) & 0xFFFF
    bits_of_type = TYPES[type_].bits
    assert -(1 << (bits_of_type - 1)) <= value < 1 << bits_of_type, f"{value} as {type_}"
    return int(value) & ((1 << bits_of_type) - 1)


def from_bits(bits: int, type_: str) -> Any:
    """Return the value that bits of a type stand for."""
    if type_ == "pred":
        return bool(bits)
    size = TYPES[type_].bits
    bits &= (1 << size) - 1
    if type_ in _FLOATS:
        code, word = _FLOATS[type_]
        return struct.unpack(code, struct.pack(word, bits))[0]
    if type_ == "bf16":
        return struct.unpack("<f", struct.pack("<I", bits << 16))[0]
    if type_.startswith("s") and bits >> (size - 1):
        return bits - (1 << size)
    return bits


# ---- the kernel around the text -----------------------------------------------------------------


def _split(item: str) -> tuple[str, str]:
    name, _, type_ = item.partition(":")
    assert type_ == "pred" or type_ in TYPES, f"{item!r}: no type"
    return name, type_


def _named(inputs: Mapping[str, Any]) -> dict[tuple[str, str], Any]:
    return {_split(item): values for item, values in inputs.items()}


def _declared(type_: str) -> str:
    return "pred" if type_ == "pred" else f"b{max(TYPES[type_].bits, 16)}"


def _load(name: str, type_: str, offset: int) -> str:
    if type_ != "pred":
        return f"ld.global.{_declared(type_)} {name}, [bench_in+{offset}];"
    return f"ld.global.b32 bench_t, [bench_in+{offset}]; setp.ne.u32 {name}, bench_t, 0;"


def _store(name: str, type_: str, offset: int) -> str:
    if type_ != "pred":
        return f"st.global.{_declared(type_)} [bench_out+{offset}], {name};"
    return f"selp.u32 bench_t, 1, 0, {name}; st.global.b32 [bench_out+{offset}], bench_t;"


def _zero(name: str, type_: str) -> str:
    if type_ == "pred":
        return f"setp.ne.u32 {name}, 0, 0;"
    if type_ == "b128":
        return f"mov.b128 {name}, {{bench_zero, bench_zero}};"
    return f"mov.{_declared(type_)} {name}, 0;"


def _jump_over(active: int) -> str:
    """Let the lanes that are not active jump over the instructions."""
    if active == 0xFFFF_FFFF:
        return ""
    return (
        f"mov.u32 bench_t, %laneid; shr.b32 bench_t, {active:#x}, bench_t;"
        " and.b32 bench_t, bench_t, 1; setp.eq.u32 bench_p, bench_t, 0; @bench_p bra BENCH_END;"
    )


def _kernel(
    code: str, inputs: Mapping[str, str], outputs: Mapping[str, str], around: Setting
) -> str:
    registers = {name: _declared(type_) for name, type_ in {**inputs, **outputs}.items()}
    parameters = ["bench_source", "bench_result", *(f"bench_m_{name}" for name in around.memory)]
    offset = "mul.wide.u32 bench_{0}, bench_t, {1}; add.u64 bench_{0}, bench_{0}, bench_{2};"
    lines = [
        f".version 8.8\n.target {around.target}\n.address_size 64\n{around.declare}",
        f".visible .entry bench({', '.join(f'.param .u64 {name}' for name in parameters)})",
        "{",
        ".reg .b64 bench_in, bench_out, bench_base, bench_zero;",
        ".reg .b32 bench_t, bench_n;",
        ".reg .pred bench_p;",
        *(f".reg .{type_} {name};" for name, type_ in registers.items()),
        *(f".reg .b64 {name};" for name in around.memory),
        around.registers,
        "mov.b64 bench_zero, 0;",
        "mov.u32 bench_t, %ctaid.x; mov.u32 bench_n, %ntid.x;",
        "mul.lo.u32 bench_t, bench_t, bench_n; mov.u32 bench_n, %tid.x;",
        "add.u32 bench_t, bench_t, bench_n;",
        "ld.param.u64 bench_base, [bench_source];",
        offset.format("in", len(inputs) * STRIDE, "base"),
        "ld.param.u64 bench_base, [bench_result];",
        offset.format("out", len(outputs) * STRIDE, "base"),
        *(f"ld.param.u64 {name}, [bench_m_{name}];" for name in around.memory),
        *(_load(name, type_, i * STRIDE) for i, (name, type_) in enumerate(inputs.items())),
        *(_zero(name, type_) for name, type_ in outputs.items() if name not in inputs),
        _jump_over(around.active),
        code,
        "BENCH_END:",
        *(_store(name, type_, i * STRIDE) for i, (name, type_) in enumerate(outputs.items())),
        "ret;",
        "}",
    ]
    return "\n".join(lines)
