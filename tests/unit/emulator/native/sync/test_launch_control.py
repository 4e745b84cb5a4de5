"""Cluster launch control: blocks that take over the work of clusters which have not begun."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flexfa4.emulator import EmulationError, load
from flexfa4.emulator.failures.copies import CopyAlignmentError
from flexfa4.emulator.failures.memory import InFlightError, OutOfBoundsError
from flexfa4.emulator.failures.sync import NoMbarrierError, NotSharedAddressError
from tests.ptx_programs import run_instruction

BYTES = "mbarrier::complete_tx::bytes"
# Every cluster counts the clusters that it works for: its own, and those that it takes over.  The
# first thread of its first block asks; all blocks get the response.
PROGRAM = """
.version 8.8
.target sm_100a
.address_size 64
.shared .align 16 .b8 response[16];
.shared .align 8 .b64 bar;
.visible .entry k(.param .u64 counts) {
.reg .b32 a, b, x, y, z, w, r, n, parity, t;
.reg .b64 out, at;
.reg .b128 handle;
.reg .pred p, first, leader, done;
mov.u32 a, response; mov.u32 b, bar; mov.u32 parity, 0;
mov.u32 t, %tid.x; setp.eq.u32 first, t, 0; mov.u32 r, %cluster_ctarank;
setp.eq.and.u32 leader, r, 0, first;
@first mbarrier.init.shared.b64 [b], 1;
ld.param.u64 out, [counts];
mov.u32 x, %ctaid.x; mov.u32 y, %ctaid.y; mov.u32 z, %ctaid.z;
// x, y, z of the cluster's first block
mov.u32 n, %cluster_ctaid.x; sub.u32 x, x, n;
barrier.cluster.arrive; barrier.cluster.wait;
WORK:
@!first bra ASK;
mov.u32 n, %cluster_ctaid.x; add.u32 n, n, x;
mad.lo.u32 n, y, {GX}, n; mad.lo.u32 n, z, {GXY}, n;
mul.wide.u32 at, n, 4; add.u64 at, at, out;
red.global.add.u32 [at], 1;
ASK:
@first mbarrier.arrive.expect_tx.shared.b64 _, [b], 16;
barrier.cluster.arrive; barrier.cluster.wait;
@leader clusterlaunchcontrol.try_cancel.async.shared::cta.BYTES{CAST}.b128 [a], [b];
WAIT: mbarrier.try_wait.parity.shared.b64 done, [b], parity; @!done bra WAIT;
xor.b32 parity, parity, 1;
ld.shared.b128 handle, [a];
clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 p, handle;
{READ}
fence.proxy.async.shared::cta;
barrier.cluster.arrive; barrier.cluster.wait;
@p bra WORK;
ret;
}
""".replace("BYTES", BYTES)
AXES = "".join(
    f"@p clusterlaunchcontrol.query_cancel.get_first_ctaid::{axis}.b32.b128 {axis}, handle;"
    for axis in "xyz"
)
VECTOR = "@p clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {x, y, z, w}, handle;"
VECTOR_SINK = VECTOR.replace("w}", "_}")


@pytest.mark.parametrize("schedule", ["eager", "late", "random", "priority"])
@pytest.mark.parametrize("read", [AXES, VECTOR, VECTOR_SINK])
@pytest.mark.parametrize("grid,cluster,sms", [((12, 1, 1), 1, 2), ((4, 3, 2), 2, 4)])
def test_every_cluster_is_worked_for_once(
    grid: tuple[int, int, int], cluster: int, sms: int, read: str, schedule: str
) -> None:
    text = (
        PROGRAM.replace("{GX}", str(grid[0]))
        .replace("{GXY}", str(grid[0] * grid[1]))
        .replace("{READ}", read)
        .replace("{CAST}", ".multicast::cluster::all" if cluster > 1 else "")
    )
    counts = torch.zeros(grid[0] * grid[1] * grid[2], dtype=torch.int32)
    run = load(text).run(
        grid=grid,
        block=32,
        cluster=cluster,
        args=[counts],
        sms=sms,
        schedule=schedule,
        check=("races", "uninitialised"),
    )
    assert counts.tolist() == [1] * len(counts)
    asked = sum(n for text, n in run.executed.items() if "try_cancel" in text)
    assert asked == len(counts)  # in each block once for each cluster that it worked for


SETTING: dict[str, Any] = {
    "declare": ".shared .align 16 .b8 room[32]; .shared .align 8 .b64 bar[2];",
    "registers": ".reg .b32 a, b; .reg .b64 x; .reg .b128 r; .reg .pred done;",
    "active": 1,
}
START = "mov.u32 a, room; mov.u32 b, bar; mbarrier.init.shared.b64 [b], 1;"
EXPECT = "mbarrier.arrive.expect_tx.shared.b64 _, [b], 16;"
WAIT = "WAIT: mbarrier.try_wait.parity.shared.b64 done, [b], 0; @!done bra WAIT;"


def cancel(address: str = "a", barrier: str = "b", space: str = ".shared::cta") -> str:
    return f"clusterlaunchcontrol.try_cancel.async{space}.{BYTES}.b128 [{address}], [{barrier}];"


def test_a_grid_without_clusters_to_come_says_no() -> None:
    code = (
        START
        + EXPECT
        + cancel()
        + WAIT
        + ("ld.shared.b128 r, [a]; clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 p, r;")
    )
    assert run_instruction(code, {}, "p:pred", **SETTING)["p"][0] is False


def test_generic_addresses_name_shared_memory() -> None:
    code = "cvta.shared.u64 x, room;" + START + EXPECT
    generic = "add.u64 x, x, 0; cvta.shared.u64 y, bar;" + cancel("x", "y", "")
    setting = SETTING | {"registers": SETTING["registers"] + ".reg .b64 y;"}
    code += generic + WAIT + "ld.shared.b128 r, [a];"
    run_instruction(code, **setting)


MISTAKES: list[tuple[str, type[EmulationError]]] = [
    (cancel("a+8"), CopyAlignmentError),
    (cancel("a+4096"), OutOfBoundsError),
    (cancel("a", "b+8"), NoMbarrierError),
    ("mov.b64 x, 4096;" + cancel("x", "x", ""), NotSharedAddressError),
    (cancel() + "ld.shared.b128 r, [a];", InFlightError),
]


@pytest.mark.parametrize("code,error", MISTAKES)
def test_what_cannot_be_asked_is_refused(code: str, error: type[EmulationError]) -> None:
    with pytest.raises(error):
        run_instruction(START + EXPECT + code, options={"schedule": "late"}, **SETTING)
