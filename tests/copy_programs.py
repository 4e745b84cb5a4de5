"""Programs that copy boxes of tensors, around one instruction or several.

`load_box` and `store_box` move one box between a tensor and a room in shared memory, by one thread;
`alone` runs any instructions there; `Sent` copies within a cluster.  What the room has to be comes
from `tests.tensor_maps`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from flexfa4.emulator import Run
from tests.ptx_programs import run_instruction, run_program
from tests.tensor_maps import Boxed, aligned_bytes, aligned_tensor

SCHEDULES = ["eager", "late", "random", "priority"]
ROOM = 16384
DECLARE = f".shared .align 128 .b64 bar[4]; .shared .align 1024 .b8 room[{ROOM}];"
REGISTERS = (
    ".reg .b32 t, a, b, k, c<5>; .reg .b64 x, y; .reg .b16 mask; .reg .pred first, done, more;"
)
START = "mov.u32 t, %tid.x; setp.eq.u32 first, t, 0; mov.u32 a, room; mov.u32 b, bar;"
# fill the room with what a test gives in buffer `in`, or bring it out to buffer `out`
FILL = (
    "shl.b32 k, t, 2; IN: mul.wide.u32 x, k, 1; add.u64 x, x, in; ld.global.b32 c0, [x];"
    "add.u32 c1, a, k; st.shared.b32 [c1], c0; add.u32 k, k, 128; setp.lt.u32 more, k, {room};"
    "@more bra IN; fence.proxy.async.shared::cta; bar.sync 0;"
)
DUMP = (
    "shl.b32 k, t, 2; OUT: mul.wide.u32 x, k, 1; add.u64 x, x, out; add.u32 c1, a, k;"
    "ld.shared.b32 c0, [c1]; st.global.b32 [x], c0; add.u32 k, k, 128;"
    "setp.lt.u32 more, k, {room}; @more bra OUT;"
)
LOAD = (
    "cp.async.bulk.tensor.{rank}d.shared::cta.global.tile.mbarrier::complete_tx::bytes"
    " [a+{at}], [map, {{{coordinates}}}], [b];"
)
STORE = "{name}.{rank}d.global.shared::cta{red}.tile.bulk_group [map, {{{coordinates}}}], [a+{at}];"
GROUP = "cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;"
WAIT = "WAIT: mbarrier.try_wait.parity.shared.b64 done, [b], 0; @!done bra WAIT;"
UNTOUCHED, POISONED = 0xEE, 0xFF


def numbers(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    values = torch.arange(int(torch.tensor(shape).prod())).reshape(tuple(shape)) + 1
    return aligned_tensor(values.to(dtype))


def load_box(boxed: Boxed, first: Sequence[int], at: int = 0, **options: Any) -> bytes:
    """Load one box to an offset of the room, which is full of UNTOUCHED; return the room."""
    nbytes = sum(len(row) for row in boxed.rows(first)) * boxed.tensor.element_size()
    copy = LOAD.format(rank=len(first), at=at, coordinates=boxed.coordinates(first))
    code = (
        START
        + FILL.format(room=ROOM)
        + "@!first bra JOIN; mbarrier.init.shared.b64 [b], 1;"
        + f"mbarrier.arrive.expect_tx.shared.b64 _, [b], {nbytes};"
        + copy
        + "JOIN: bar.sync 0;"
        + WAIT
        + DUMP.format(room=ROOM)
    )
    out = torch.zeros(ROOM, dtype=torch.uint8)
    memory = {
        "map": aligned_bytes(boxed.encode()),
        "in": torch.full((ROOM,), UNTOUCHED, dtype=torch.uint8),
        "out": out,
        "data": boxed.tensor,
    }
    options = {"check": ("races", "uninitialised")} | options
    run_instruction(code, declare=DECLARE, registers=REGISTERS, memory=memory, options=options)
    return bytes(out.tolist())


def as_loaded(boxed: Boxed, first: Sequence[int], at: int = 0, fill: bytes | None = None) -> bytes:
    """What the room has to be after that."""
    room = bytearray([UNTOUCHED] * ROOM)
    size = boxed.tensor.element_size()
    for number, row in enumerate(boxed.rows(first)):
        for index, place in zip(row, boxed.places(number, at), strict=True):
            outside = fill or bytes(size)
            room[place : place + size] = outside if index is None else element(boxed, index)
        for place in boxed.padding(number, at):
            room[place] = POISONED
    return bytes(room)


def element(boxed: Boxed, index: tuple[int, ...]) -> bytes:
    return bytes(boxed.tensor[index].reshape(1).view(torch.uint8).tolist())


def store_box(
    boxed: Boxed, first: Sequence[int], room: bytes, red: str = "", at: int = 0, **options: Any
) -> None:
    """Store a room, or reduce by it, into the tensor."""
    code = (
        START + FILL.format(room=len(room)) + "@!first bra JOIN;"
        + STORE.format(
            name="cp.reduce.async.bulk.tensor" if red else "cp.async.bulk.tensor",
            rank=len(first), red=red, coordinates=boxed.coordinates(first), at=at,
        )
        + GROUP + "JOIN: bar.sync 0;"
    )  # fmt: skip
    memory = {
        "map": aligned_bytes(boxed.encode()),
        "in": aligned_bytes(room),
        "data": boxed.tensor,
    }
    options = {"check": ("races", "uninitialised")} | options
    run_instruction(code, declare=DECLARE, registers=REGISTERS, memory=memory, options=options)


def pattern(boxed: Boxed, first: Sequence[int], at: int = 0) -> tuple[bytes, torch.Tensor]:
    """A room for a box with different numbers; and the tensor as it is once that is stored."""
    room = bytearray(ROOM)
    stored = boxed.tensor.clone()
    dtype = boxed.tensor.dtype
    value = 0
    for number, row in enumerate(boxed.rows(first)):
        for index, place in zip(row, boxed.places(number, at), strict=True):
            value += 1
            number_ = torch.tensor([-value]).to(dtype)
            room[place : place + dtype.itemsize] = bytes(number_.view(torch.uint8).tolist())
            if index is not None:
                stored[index] = number_[0]
    return bytes(room), stored


def alone(code: str, boxed: Boxed | None = None, **setting: Any) -> None:
    """Run instructions in one thread, with a map and an mbarrier."""
    boxed = boxed or Boxed(numbers((16, 64), torch.float16), (16, 8))
    memory = {"map": aligned_bytes(boxed.encode()), "data": boxed.tensor}
    run_instruction(
        START + "mbarrier.init.shared.b64 [b], 1;" + code,
        declare=DECLARE,
        registers=REGISTERS,
        active=1,
        memory=memory | setting.pop("memory", {}),
        **setting,
    )


def load2(at: int, first: str) -> str:
    return LOAD.format(rank=2, at=at, coordinates=first)


def store2(at: int, first: str) -> str:
    return STORE.format(name="cp.async.bulk.tensor", rank=2, red="", coordinates=first, at=at)


# ---- clusters -----------------------------------------------------------------------------------

CLUSTER = (
    START + "@first mbarrier.init.shared.b64 [b], 1; setp.ne.u32 more, n, 0;"
    "barrier.cluster.arrive; barrier.cluster.wait;"
    "@!more bra READY; @first mbarrier.arrive.expect_tx.shared.b64 _, [b], n; READY:"
    "barrier.cluster.arrive; barrier.cluster.wait;"
    "mov.u32 k, %cluster_ctarank; setp.eq.and.u32 first, k, {sender}, first; @!first bra SENT;"
    "mov.b16 mask, {mask}; mapa.shared::cluster.u32 c3, a, {to};"
    "mapa.shared::cluster.u32 c4, b, {bar};"
    "{copy} SENT: @!more bra JOIN;" + WAIT + "JOIN:"
    "barrier.cluster.arrive; barrier.cluster.wait;"
    "shl.b32 k, t, 2; add.u32 k, k, a; ld.shared.b32 d, [k];"
    "barrier.cluster.arrive; barrier.cluster.wait;"
)
POISON = 0xFFFFFFFF
ROW = list(range(65, 97))
NOTHING = [POISON] * 32


def cast(group: str, multicast: bool = True) -> str:
    """A copy to the blocks of a mask, or to one block."""
    return (
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        f"{'.multicast::cluster' if multicast else ''}{group}"
        f" [c3], [map, {{0, 2}}], [c4]{', mask' if multicast else ''};"
    )


def single(group: str) -> str:
    return cast(group, multicast=False)


@dataclass(frozen=True)
class Sent:
    """A copy of one row of 32 words in a cluster.

    Attributes:
        copy: the instruction.
        expected: bytes for which each block waits.
        mask: of the multicast.
        sender, to, bar: ranks of the issuing block, of the destination's and the mbarrier's.
    """

    copy: str
    expected: Sequence[int]
    mask: int = 0
    sender: int = 0
    to: int = 0
    bar: int = 0

    def run(self, **options: Any) -> tuple[list[list[int]], Run]:
        """Return the row's words in each block, and what the launch did."""
        boxed = Boxed(numbers((8, 32), torch.int32), (32, 1))
        size = len(self.expected)
        found, run = run_program(
            CLUSTER.format(**vars(self)),
            {"n:u32": [n for n in self.expected for _ in range(32)]},
            "d:u32",
            declare=DECLARE,
            registers=REGISTERS,
            grid=size,
            cluster=size,
            memory={"map": aligned_bytes(boxed.encode()), "data": boxed.tensor},
            options={"check": ()} | options,
        )
        return [found["d"][32 * rank :][:32] for rank in range(size)], run
