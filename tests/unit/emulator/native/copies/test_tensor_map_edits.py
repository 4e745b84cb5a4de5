"""Edits of tensor maps: fields where the hardware has them, and their way to global memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flexfa4.emulator import EmulationError
from flexfa4.emulator.failures.copies import (
    TensorMapAxisError,
    TensorMapSizeError,
    TensorMapValueError,
)
from flexfa4.emulator.failures.machine import NotAlignedError, NotUniformError
from flexfa4.emulator.failures.memory import MisalignedAccessError
from flexfa4.emulator.failures.races import RaceError
from tests.copy_programs import DECLARE, LOAD, REGISTERS, START, WAIT, numbers
from tests.ptx_programs import run_instruction
from tests.tensor_maps import Boxed, aligned_bytes

SETTING: dict[str, Any] = {"declare": DECLARE, "registers": REGISTERS}
# copy the map to shared memory, and back
BRING = "".join(
    f"ld.global.v2.b64 {{x, y}}, [map+{at}]; st.shared.v2.b64 [a+{at}], {{x, y}};"
    for at in range(0, 128, 16)
)
BACK = "".join(
    f"ld.shared.v2.b64 {{x, y}}, [a+{at}]; st.global.v2.b64 [map+{at}], {{x, y}};"
    for at in range(0, 128, 16)
)


def base() -> Boxed:
    return Boxed(numbers((2, 4, 8, 32, 64), torch.float32), (8, 4, 1, 1, 1))


def edited(code: str, where: str) -> dict[int, tuple[int, int]]:
    """Words of a map that instructions change, from and to; the map is in `where`."""
    before = base().encode()
    room = aligned_bytes(before)
    if where == "shared::cta":
        code = BRING + code.format(map="a", space=".shared::cta") + BACK
    else:
        code = code.format(map="map", space=f".{where}" if where != "generic" else "")
    run_instruction(START + code, active=1, memory={"map": room}, **SETTING)
    after = bytes(room.tolist())
    words = (
        tuple(int.from_bytes(x[8 * i : 8 * i + 8], "little") for x in (before, after))
        for i in range(16)
    )
    return {i: pair for i, pair in enumerate(words) if pair[0] != pair[1]}


# Of this map, as an H200 changes it (word 0 is an address, and word 1 has a hint of its own here).
FIELDS = [
    ("rank", "b32", "3", {1: (0x00000010_000003C0, 0x00000010_000003B0)}),
    ("box_dim", "b32", "0, 5", {6: (0x07000000_00000001, 0x04000000_00000001)}),
    ("box_dim", "b32", "1, 5", {7: (0x3, 0x4)}),
    ("box_dim", "b32", "4, 5", {7: (0x3, 0x04000003)}),
    ("box_dim", "b32", "0, 256", {6: (0x07000000_00000001, 0xFF000000_00000001)}),
    ("global_dim", "b32", "0, 74565", {4: (0x0000001F_0000003F, 0x0000001F_00012344)}),
    ("global_dim", "b32", "1, 74565", {4: (0x0000001F_0000003F, 0x00012344_0000003F)}),
    ("global_dim", "b32", "4, 74565", {6: (0x07000000_00000001, 0x07000000_00012344)}),
    (
        "global_stride",
        "b64",
        "0, 0xBCDEF01230",
        {1: (0x00000010_000003C0, 0xCDEF0123_000003C0), 3: (0x4000, 0x0000000B_00004000)},
    ),
    (
        "global_stride",
        "b64",
        "1, 0xBCDEF01230",
        {2: (0x00001000_00000200, 0x00001000_CDEF0123), 3: (0x4000, 0x000000B0_00004000)},
    ),
    (
        "global_stride",
        "b64",
        "2, 0xBCDEF01230",
        {2: (0x00001000_00000200, 0xCDEF0123_00000200), 3: (0x4000, 0x00000B00_00004000)},
    ),
    ("global_stride", "b64", "3, 0xBCDEF01230", {3: (0x4000, 0x0000B000_CDEF0123)}),
    ("element_stride", "b32", "0, 5", {6: (0x07000000_00000001, 0x07000004_00000001)}),
    ("element_stride", "b32", "1, 5", {6: (0x07000000_00000001, 0x07000020_00000001)}),
    ("element_stride", "b32", "4, 5", {6: (0x07000000_00000001, 0x07004000_00000001)}),
    ("elemtype", "b32", "0", {1: (0x3C0, 0x040)}),
    ("elemtype", "b32", "3", {1: (0x3C0, 0x1C0)}),
    ("elemtype", "b32", "8", {1: (0x3C0, 0x440)}),
    ("elemtype", "b32", "10", {1: (0x3C0, 0x540)}),
    ("elemtype", "b32", "11", {1: (0x3C0, 0x103C0)}),
    ("elemtype", "b32", "12", {1: (0x3C0, 0x10440)}),
    # and as ptxas has it for later GPUs
    ("elemtype", "b32", "13", {1: (0x3C0, 0x5C0)}),
    ("elemtype", "b32", "14", {1: (0x3C0, 0x640)}),
    ("elemtype", "b32", "15", {1: (0x3C0, 0x6C0)}),
    ("swizzle_atomicity", "b32", "1", {1: (0x3C0, 0x803C0)}),
    ("swizzle_atomicity", "b32", "2", {1: (0x3C0, 0x1003C0)}),
    ("swizzle_atomicity", "b32", "3", {1: (0x3C0, 0x1803C0)}),
    ("interleave_layout", "b32", "1", {1: (0x3C0, 0xBC0)}),
    ("interleave_layout", "b32", "2", {1: (0x3C0, 0x13C0)}),
    ("swizzle_mode", "b32", "1", {1: (0x3C0, 0x23C0)}),
    ("swizzle_mode", "b32", "2", {1: (0x3C0, 0x43C0)}),
    ("swizzle_mode", "b32", "3", {1: (0x3C0, 0x63C0)}),
    ("fill_mode", "b32", "1", {1: (0x3C0, 0x83C0)}),
]
HINT = 2 << 17


@pytest.mark.parametrize("where", ["global", "generic", "shared::cta"])
@pytest.mark.parametrize("field,kind,values,words", FIELDS)
def test_a_field_is_replaced_where_the_hardware_has_it(
    field: str, kind: str, values: str, words: dict[int, tuple[int, int]], where: str
) -> None:
    code = f"tensormap.replace.tile.{field}{{space}}.b1024.{kind} [{{map}}], {values};"
    found = edited(code, where)
    low = words.get(1, (1 << 32, 0))[0] < 1 << 32  # only the lower half of word 1 is given
    if 1 in found and low:
        found[1] = (found[1][0] & 0xFFFFFFFF, found[1][1] & 0xFFFFFFFF)
    if 1 in found:
        found[1] = (found[1][0] & ~HINT, found[1][1] & ~HINT)
    assert found == words


def test_values_may_come_from_registers() -> None:
    code = (
        "mov.u32 k, 5; tensormap.replace.tile.global_dim{space}.b1024.b32 [{map}], 3, k;"
        "mov.b64 x, 0x123456780; tensormap.replace.tile.global_address{space}.b1024.b64 [{map}], x;"
    )
    found = edited(code, "global")
    assert found[5] == (0x00000003_00000007, 0x00000004_00000007)
    assert found[0][1] == 0x123456780


# Copy the map to shared memory, edit it there, bring it to global memory, and use it.
HAND_OVER = (
    START + "@!first bra EDITED;" + BRING
    + "tensormap.replace.tile.global_address.shared::cta.b1024.b64 [a], other;"
    "tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [a], 1, 2;"
    "EDITED: bar.warp.sync -1;"
    "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned"
    " [map], [a], 128;"
    "fence.proxy.tensormap::generic.acquire.gpu [map], 128;"
    "@!first bra JOIN; mbarrier.init.shared.b64 [b], 1;"
    "mbarrier.arrive.expect_tx.shared.b64 _, [b], 96;"
    + LOAD.format(rank=2, at=1024, coordinates="0, 0")
    + "JOIN: bar.sync 0;" + WAIT + "shl.b32 k, t, 2; add.u32 k, k, a; mov.u32 d, 0;"
    "setp.lt.u32 more, t, 24; @more ld.shared.b32 d, [k+1024];"
)  # fmt: skip


@pytest.mark.parametrize("schedule", ["eager", "late", "random", "priority"])
def test_a_map_edited_in_shared_memory_is_used_after_it_was_copied(schedule: str) -> None:
    tensor, other = numbers((4, 8), torch.int32), numbers((4, 8), torch.int32).add_(1000)
    memory = {"map": aligned_bytes(Boxed(tensor, (8, 3)).encode()), "data": tensor, "other": other}
    options = {"schedule": schedule, "check": ("races", "uninitialised")}
    found = run_instruction(HAND_OVER, {}, "d:u32", memory=memory, options=options, **SETTING)
    assert found["d"][:24] == [*other[:2].flatten().tolist(), *[0] * 8]


REPLACE = "tensormap.replace.tile.{}.global.b1024.{} [map], {};".format
CP = (
    "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned"
    " [{}], [a], {};"
).format
MISTAKES: list[tuple[str, type[EmulationError], str]] = [
    (REPLACE("box_dim", "b32", "5, 8"), TensorMapAxisError, "box_dim of axis 5"),
    (REPLACE("global_stride", "b64", "4, 16"), TensorMapAxisError, "global_stride of axis 4"),
    (REPLACE("box_dim", "b32", "0, 257"), TensorMapValueError, "box_dim 0x101"),
    (REPLACE("box_dim", "b32", "0, 0"), TensorMapValueError, "box_dim 0x0"),
    (REPLACE("global_dim", "b32", "0, 0"), TensorMapValueError, "global_dim 0x0"),
    (REPLACE("global_stride", "b64", "0, 24"), TensorMapValueError, "in steps of 16"),
    (REPLACE("rank", "b32", "5"), TensorMapValueError, "rank 0x5"),
    (REPLACE("elemtype", "b32", "16"), TensorMapValueError, "elemtype 0x10"),
    (REPLACE("swizzle_mode", "b32", "4"), TensorMapValueError, "swizzle_mode 0x4"),
    (REPLACE("swizzle_atomicity", "b32", "4"), TensorMapValueError, "swizzle_atomicity 0x4"),
    (REPLACE("fill_mode", "b32", "2"), TensorMapValueError, "fill_mode 0x2"),
    (REPLACE("rank", "b32", "1").replace("[map]", "[map+64]"), MisalignedAccessError, "128"),
    (CP("map", 64), TensorMapSizeError, "64 bytes"),
    ("mul.wide.u32 x, t, 128; add.u64 x, x, map;" + CP("x", 128), NotUniformError, "lane 1"),
    ("@first " + CP("map", 128), NotAlignedError, "0x1"),
]


@pytest.mark.parametrize("code,error,report", MISTAKES)
def test_what_cannot_be_replaced_is_refused(
    code: str, error: type[EmulationError], report: str
) -> None:
    memory = {"map": aligned_bytes(base().encode() + bytes(64))}
    with pytest.raises(error, match=report):
        run_instruction(START + code, memory=memory, **SETTING)


def test_a_map_that_another_warp_edits_must_be_waited_for() -> None:
    program = (
        START + "setp.ge.u32 more, t, 32; @more bra USES;"
        "@first tensormap.replace.tile.global_dim.global.b1024.b32 [map], 1, 2;"
        "@first fence.proxy.tensormap::generic.release.gpu; {meet} bra END;"
        "USES: {meet} setp.eq.u32 first, t, 32; @!first bra END;"
        "fence.proxy.tensormap::generic.acquire.gpu [map], 128;"
        "cp.async.bulk.prefetch.tensor.2d.L2.global [map, {{0, 0}}]; END:"
    )
    tensor = numbers((4, 8), torch.int32)
    for meet, fails in (("", True), ("bar.sync 0;", False)):
        memory = {"map": aligned_bytes(Boxed(tensor, (8, 3)).encode()), "data": tensor}
        setting = SETTING | {"threads": 64, "options": {"check": ("races",)}, "memory": memory}
        if fails:
            with pytest.raises(RaceError):
                run_instruction(program.format(meet=meet), **setting)
        else:
            run_instruction(program.format(meet=meet), **setting)
