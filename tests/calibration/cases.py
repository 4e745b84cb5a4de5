"""What a GPU and the emulator both compute: exact instructions, approximations, products, programs.

Each case runs through the bench of the unit tests (`tests.ptx_programs`), so on whatever its `load`
is at the time.  Inputs are drawn from seeds that are names.

What this module deliberately does not do: know the results; they are recorded.
"""

from __future__ import annotations

import itertools
import random
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from flexfa4.emulator.ptx.forms import Access, Form
from flexfa4.emulator.ptx.table import READER
from tests import float_rules as rules
from tests.calibration.sweep import INSTRUCTIONS, dtype_of, exact, flushed
from tests.copy_programs import load_box, numbers
from tests.fragments import DTYPES
from tests.matrix_programs import NONE, SW32, SW64, SW128, Factors, factors, multiply, wgmma
from tests.ptx_programs import run_instruction
from tests.ptx_rules import evaluate, operand_rows
from tests.tensor_core_programs import Layout
from tests.tensor_maps import Boxed

TARGET = "sm_90a"
FORMS_OF_A_NAME = 60  # opcodes of one instruction that are tried; of more a sample
ROWS_OF_A_CHECKSUM = 128
APPROXIMATED = 4096  # inputs of an approximation
_EXACT = frozenset({
    "abs", "add", "and", "bfe", "bfi", "bfind", "bmsk", "brev", "clz", "cnot", "copysign", "cvt",
    "div", "dp4a", "fma", "mad", "mad24", "max", "min", "mov", "mul", "mul24", "neg", "not", "or",
    "popc", "prmt", "rcp", "rem", "sad", "selp", "set", "setp", "shf", "shl", "shr", "slct", "sqrt",
    "sub", "szext", "testp", "xor",
})  # fmt: skip
_APPROXIMATE = ("approx", "full")

# ---- exact instructions -------------------------------------------------------------------------


def exact_opcodes() -> list[str]:
    """Return opcodes of instructions from registers to registers whose results are exact."""
    found: dict[str, list[str]] = {}
    for form in READER.forms:
        name = form.name.split(".")[0]
        if TARGET not in form.targets or name not in _EXACT:
            continue
        for text in _opcodes(form):
            if not set(text.split(".")) & set(_APPROXIMATE) and _is_plain(text, form):
                found.setdefault(name, []).append(text)
    chosen: list[str] = []
    for name, texts in sorted(found.items()):
        some = sorted(set(texts))
        chosen += sorted(random.Random(name).sample(some, min(len(some), FORMS_OF_A_NAME)))
    return chosen


def _opcodes(form: Form) -> Iterator[str]:
    options = []
    for group, required in form.modifiers:
        words = [tuple(w) for w in itertools.product(*(READER.values(slot) for slot in group))]
        options.append(words if required else [*words, ()])
    for choice in itertools.product(*options):
        yield ".".join([form.name, *(word for group in choice for word in group)])


def _is_plain(text: str, form: Form) -> bool:
    """Whether all operands are registers of 16 bits and more, or predicates."""
    operations = READER.operations(text)
    if not operations or operations[0].form is not form:
        return False
    roles = operations[0].roles
    return any(role.access is Access.WRITE for role in roles) and all(
        role.access in (Access.READ, Access.WRITE)
        and role.type is not None
        and not role.count
        and not role.split
        and not role.optional
        and role.type.bits in (1, 16, 32, 64)
        for role in roles
    )


def exact_checksums(opcode: str) -> list[str]:
    """Return checksums of what an instruction makes of special and random operands."""
    results = evaluate(opcode, operand_rows(opcode))
    return [
        f"{zlib.crc32(repr(results[at : at + ROWS_OF_A_CHECKSUM]).encode()):08x}"
        for at in range(0, len(results), ROWS_OF_A_CHECKSUM)
    ]


# ---- approximations -----------------------------------------------------------------------------

PERIODIC = ("sin", "cos")
DIVISIONS = ("div.approx.f32", "div.approx.ftz.f32", "div.full.f32", "div.full.ftz.f32")
APPROXIMATIONS = (*INSTRUCTIONS, *DIVISIONS)


def approximated_rows(opcode: str) -> list[tuple[int, ...]]:
    """Return the inputs, as bits: special and random ones, of sin and cos up to 100 pi."""
    if opcode.split(".")[0] in PERIODIC:
        draw = random.Random(opcode)
        reach = [draw.choice((6.28, 314.0)) for _ in range(APPROXIMATED)]
        return [struct.unpack("<I", struct.pack("<f", draw.uniform(-r, r))) for r in reach]
    of = {"f32": rules.F32, "f16": rules.F16, "bf16": rules.BF16}[opcode.split(".")[-1]]
    draws = rules.operands(of, opcode)
    columns = 2 if opcode in DIVISIONS else 1
    return [tuple(itertools.islice(draws, columns)) for _ in range(APPROXIMATED)]


def _floats(bits: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    words = torch.tensor(bits).to(torch.uint32 if dtype == torch.float32 else torch.uint16)
    return words.view(dtype)


def approximated(opcode: str) -> torch.Tensor:
    """Return the results, [APPROXIMATED] of the instruction's type."""
    return _floats(evaluate(opcode, approximated_rows(opcode)), dtype_of(opcode))


def operands_of(opcode: str) -> list[torch.Tensor]:
    """Return the inputs as floats, a tensor for each operand."""
    columns = zip(*approximated_rows(opcode), strict=True)
    return [_floats(column, dtype_of(opcode)) for column in columns]


def rounded(opcode: str) -> torch.Tensor:
    """Return the exact results rounded to the type."""
    value = exact(opcode, *operands_of(opcode)).to(dtype_of(opcode))
    return flushed(opcode, value)


# ---- products -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Computed:
    """A product of floats: D, its exact value, and the sums that errors are relative to."""

    found: torch.Tensor
    exact: torch.Tensor
    scale: torch.Tensor


Product = Callable[[], Computed]


def _random(type_: str, rows: int, depth: int, seed: str) -> torch.Tensor:
    generator = torch.Generator().manual_seed(zlib.crc32(seed.encode()))
    values = torch.randn(rows, depth, generator=generator)
    if type_ == "tf32":
        return (values.view(torch.int32) & ~0x1FFF).view(torch.float32)
    return values.to(DTYPES[type_])


def _computed(
    found: torch.Tensor, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, times: int = 1
) -> Computed:
    a, b, c = a.double(), b.double(), c.double()
    return Computed(found, times * (a @ b.T) + c, times * (a.abs() @ b.abs().T) + c.abs())


def _by_warp(opcode: str) -> Computed:
    parts = opcode.split(".")
    k = int(parts[3].split("k")[1])
    d, a_type, b_type = parts[-4:-1]
    a, b = _random(a_type, 16, k, opcode), _random(b_type, 8, k, opcode + "b")
    c = _random(d, 16, 8, opcode + "c")
    return _computed(multiply(opcode, a, b, c), a, b, c)


def _by_warpgroup(opcode: str, times: int) -> Computed:
    d, a_type, b_type = opcode.split(".")[-3:]
    k = 32 // DTYPES[a_type].itemsize
    a, b = _random(a_type, 64, k, opcode), _random(b_type, 8, k, opcode + "b")
    old = _random(d, 64, 8, opcode + "c")
    size = DTYPES[a_type].itemsize
    a_layout, b_layout = (Layout.compact(SW32, False, rows, size) for rows in (64, 8))
    product = Factors(opcode, a, b, a_layout, b_layout, old=old)
    found, _ = product.run("{fence}" + "{product}" * times + "{done}")
    return _computed(found, a, b, old, times)


FLOATS = (
    ("f32", "f16", "f16"), ("f16", "f16", "f16"), ("f32", "bf16", "bf16"), ("f32", "tf32", "tf32"),
    ("f32", "e4m3", "e5m2"), ("f16", "e4m3", "e4m3"),
)  # fmt: skip
WARP_SHAPES = {"f16": 16, "bf16": 16, "tf32": 8, "e4m3": 32}


def products() -> dict[str, Product]:
    """Return products of random floats; those of a warpgroup once, and added up eight times."""
    found: dict[str, Product] = {}
    for d, a, b in FLOATS:
        opcode = f"mma.sync.aligned.m16n8k{WARP_SHAPES[a]}.row.col.{d}.{a}.{b}.{d}"
        found[opcode] = lambda opcode=opcode: _by_warp(opcode)
        for times in (1, 8):
            group = wgmma(8, d, a, b)
            name = f"{group} x{times}"
            found[name] = lambda group=group, times=times: _by_warpgroup(group, times)
    return found


# ---- programs -----------------------------------------------------------------------------------


def _checksum(data: bytes) -> str:
    return f"{zlib.crc32(data):08x}"


def _layout(a: tuple[int, bool] | None, b: tuple[int, bool]) -> str:
    found, _ = factors(wgmma(64, "f32", "f16", "f16"), a, b).run(check=())
    return _checksum(bytes(found.view(torch.uint8).flatten().tolist()))


def _integers(d: str, a: str, b: str) -> str:
    found, _ = factors(wgmma(24, d, a, b)).run()
    return _checksum(bytes(found.contiguous().view(torch.uint8).flatten().tolist()))


def _box(swizzle: int, dtype: torch.dtype, first: Sequence[int]) -> str:
    width = (swizzle or 64) // dtype.itemsize
    boxed = Boxed(numbers((20, 2 * width), dtype), (width, 16), swizzle=swizzle)
    return _checksum(load_box(boxed, first))


def _lanes(code: str, outputs: str, **setting: Any) -> str:
    draw = random.Random(code)
    inputs = {f"{x}:b32": [draw.getrandbits(32) for _ in range(32)] for x in "abc"}
    found = run_instruction(code, inputs, outputs, target=TARGET, **setting)
    return _checksum(repr(found).encode())


_SHUFFLES = [
    f"and.b32 {{c}}, c, 31; shfl.sync.{mode}.b32 d|p, a, {lane}, {clamp}, -1;".format(c="c")
    for mode, clamp in (("up", 0), ("down", 31), ("bfly", 0x0F1F), ("idx", 0x181F), ("up", 0x1800))
    for lane in ("c", "3")
]
_COLLECTIVES = [
    *(f"redux.sync.{op}.{t} d, a, -1;" for op in ("add", "min", "max") for t in ("s32", "u32")),
    *(f"redux.sync.{op}.b32 d, a, 0xffffffff;" for op in ("and", "or", "xor")),
    "and.b32 a, a, 7; match.any.sync.b32 d, a, -1;",
    "and.b32 a, a, 1; match.all.sync.b32 d|p, a, -1;",
    "setp.lt.s32 p, a, 0; vote.sync.ballot.b32 d, p, -1;",
    "setp.lt.s32 p, a, 0; vote.sync.any.pred p, p, -1; mov.b32 d, 0;",
]
_ATOMICS = [
    *(f"add.{t}" for t in ("u32", "u64", "f32", "f64", "noftz.f16x2", "noftz.bf16x2")),
    *(f"{op}.{t}" for op in ("min", "max") for t in ("s32", "u32", "s64", "u64")),
    *(f"{op}.{t}" for op in ("and", "or", "xor", "exch") for t in ("b32", "b64")),
    "inc.u32", "dec.u32",
]  # fmt: skip
_SPECIAL_WORDS = (
    0, 1, 0x80000000, 0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC12345, 0x7F812345, 0x007FFFFF,
    0x807FFFFF, 0x00800000, 0x7F7FFFFF, 0x3C007C00, 0xFC007E01, 0x7D010001, 0x83FF03FF, 0x7FFFFFFF,
)  # fmt: skip


def _atomic(space: str, form: str) -> str:
    """Combine special numbers, each in a place of its own; results and memory."""
    bits = 64 if form.endswith("64") else 32
    words = list(itertools.product(_SPECIAL_WORDS, repeat=2))[: 8 * 32]
    wide = {f"{x}:b64" for x in "ab"}
    values = {
        name: [(w[i] << 32 | w[1 - i]) if bits == 64 else w[i] for w in words]
        for i, name in enumerate(sorted(wide))
    }
    move = "" if bits == 64 else "cvt.u32.u64 s, a; cvt.u32.u64 v, b;"
    old, new = ("a", "b") if bits == 64 else ("s", "v")
    found = run_instruction(
        "mov.u32 t, %tid.x; shl.b32 t, t, 3; mov.u32 at, room; add.u32 at, at, t;"
        "cvt.u64.u32 g, t; add.u64 g, g, memory;"
        f"{move} st.{space}.b{bits} [{'at' if space == 'shared' else 'g'}], {old};"
        f"atom.{space}.{form} {'r' if bits == 64 else 'w'},"
        f" [{'at' if space == 'shared' else 'g'}], {new};"
        f"ld.{space}.b{bits} {'d' if bits == 64 else 'v'},"
        f" [{'at' if space == 'shared' else 'g'}];"
        + ("" if bits == 64 else "cvt.u64.u32 d, v; cvt.u64.u32 r, w;"),
        values,
        "d:b64 r:b64",
        target=TARGET,
        threads=256,
        declare=".shared .align 8 .b8 room[2048];",
        registers=".reg .b32 t, at, s, v, w; .reg .b64 g;",
        memory={"memory": torch.zeros(2048, dtype=torch.uint8)},
    )
    return _checksum(repr(found).encode())


def programs() -> dict[str, Callable[[], str]]:
    """Return programs whose results are exact: each gives a checksum of them."""
    found: dict[str, Callable[[], str]] = {}
    layouts = [(swizzle, mn) for swizzle in (NONE, SW32, SW64, SW128) for mn in (False, True)]
    for a, b in [*((x, x) for x in layouts), (None, layouts[0]), (None, layouts[7])]:
        found[f"wgmma layouts {a} {b}"] = lambda a=a, b=b: _layout(a, b)
    for d, a_type, b_type in (*FLOATS, ("s32", "s8", "u8"), ("s32", "u8", "s8")):
        types = (d, a_type, b_type)
        found[f"wgmma {'.'.join(types)}"] = lambda types=types: _integers(*types)
    for swizzle, dtype in itertools.product((0, 32, 64, 128), (torch.int32, torch.uint8)):
        for first in ((0, 0), (16, 8), (-16, -3)):
            name = f"box {swizzle} {str(dtype).removeprefix('torch.')} {first}"
            found[name] = lambda s=swizzle, t=dtype, f=first: _box(s, t, f)
    for code in (*_SHUFFLES, *_COLLECTIVES):
        found[code] = lambda code=code: _lanes(code, "d:u32 p:pred")
    for space, form in itertools.product(("global", "shared"), _ATOMICS):
        if not (space == "shared" and form == "add.noftz.bf16x2"):
            found[f"atom.{space}.{form}"] = lambda s=space, f=form: _atomic(s, f)
    return found
