"""What an access must not do, and what the report of it says."""

from __future__ import annotations

import pytest
import torch

from flexfa4.emulator.failures.memory import (
    BarrierBytesError,
    ExitedBlockError,
    GlobalBoundsError,
    MisalignedAccessError,
    NoSuchBlockError,
    OtherBlockError,
    OutOfBoundsError,
    ReadOnlyMemoryError,
    StrongAccessError,
    UninitialisedReadError,
)
from flexfa4.emulator.failures.races import RaceError
from tests.ptx_programs import run_instruction

SHARED = ".shared .align 64 .b8 room[256];"
REGISTERS = ".local .align 16 .b8 stack[32]; .reg .b32 r, t; .reg .b64 g; .reg .pred q;"


def run(code: str, **setting: object) -> dict[str, list[int]]:
    settings: dict[str, object] = {"declare": SHARED, "registers": REGISTERS, **setting}
    return run_instruction(code, {"i:u32": list(range(32))}, "d:u32", **settings)


@pytest.mark.parametrize(
    ("code", "excess", "size"),
    [("mov.u32 r, room; ld.shared.u32 d, [r+6];", 2, 4),
     ("st.shared.v4.b32 [room+8], {i, i, i, i};", 8, 16),
     ("st.local.b64 [stack+4], 1;", 4, 8),
     ("ld.const.b32 d, [table+1];", 1, 4),
     ("cvta.shared.u64 g, room; st.b16 [g+1], 1;", 1, 2),
     ("atom.shared.add.u32 d, [room+2], i;", 2, 4)],
)  # fmt: skip
def test_addresses_are_multiples_of_the_access(code: str, excess: int, size: int) -> None:
    with pytest.raises(MisalignedAccessError) as caught:
        run(code, declare=f"{SHARED} .const .align 8 .b32 table[4] = {{1, 2}};")
    assert caught.value.fields["excess"] == str(excess)
    assert caught.value.fields["bytes"] == str(size)


def test_one_misaligned_lane_of_many_is_found() -> None:
    code = """mov.u32 r, room; shl.b32 t, i, 2; add.u32 r, r, t; setp.eq.u32 q, i, 19;
    @q add.u32 r, r, 1; st.shared.u32 [r], i;"""
    with pytest.raises(MisalignedAccessError) as caught:
        run(code)
    address = int(caught.value.fields["address"], 16)
    assert address % 4 == 1
    assert caught.value.where is not None
    assert "block (0, 0, 0), warp 0" in str(caught.value)


@pytest.mark.parametrize("offset", [-4, 256 + 1024, 252])
def test_global_accesses_stay_in_one_allocation(offset: int) -> None:
    data = torch.zeros(1 << 14, dtype=torch.int32)[8000:8064]
    code = f"ld.global.b32 d, [p{offset:+}];"
    if offset == 252:  # of 32 lanes the last one goes too far
        code = "mul.wide.u32 g, i, 8; add.u64 p, p, g; ld.global.v2.b32 {d, t}, [p+8];"
    with pytest.raises(GlobalBoundsError) as caught:
        run(code, memory={"p": data})
    fields = caught.value.fields
    assert fields["size"] == "256"
    assert fields["start"] == hex(data.data_ptr())
    where = {-4: "4 bytes before", 1280: "1280 bytes behind", 252: "256 bytes behind"}
    assert fields["away"] == where[offset]


def test_lanes_may_use_different_allocations() -> None:
    first, second = torch.arange(64, dtype=torch.int32), torch.arange(64, 128, dtype=torch.int32)
    got = run(
        """and.b32 t, i, 1; setp.eq.u32 q, t, 1; selp.b64 p, s, p, q; mul.wide.u32 g, i, 4;
        add.u64 p, p, g; ld.global.u32 d, [p];""",
        memory={"p": first, "s": second},
    )
    assert got["d"] == [i + 64 * (i & 1) for i in range(32)]


def test_lanes_may_use_different_spaces_by_generic_addresses() -> None:
    got = run(
        """st.local.u32 [stack], 1000; st.shared.u32 [room], 2000; cvta.shared.u64 g, room;
        setp.lt.u32 q, i, 8; @q mov.b64 p, g;
        cvta.local.u64 g, stack; setp.gt.u32 q, i, 24; @q mov.b64 p, g; ld.u32 d, [p];""",
        memory={"p": torch.full((1,), 3000, dtype=torch.int32)},
    )
    assert got["d"] == [2000] * 8 + [3000] * 17 + [1000] * 7


@pytest.mark.parametrize(
    ("code", "space"),
    [("ld.shared.u32 d, [room+256];", "shared"),
     ("mov.u32 r, 1020; st.shared.u32 [r], i;", "shared"),
     ("mov.u32 r, room; sub.u32 r, r, 4; st.shared.u32 [r], i;", "shared"),
     ("st.local.u32 [stack+32], i;", "local"),
     ("ld.const.u32 d, [table+16];", "const"),
     ("ld.param.u32 d, [bench_source+64];", "param"),
     ("cvta.local.u64 g, stack; ld.u32 d, [g+4096];", "local"),
     ("cvta.const.u64 g, table; ld.u32 d, [g+16];", "const")],
)  # fmt: skip
def test_other_spaces_have_their_size(code: str, space: str) -> None:
    with pytest.raises(OutOfBoundsError) as caught:
        run(code, declare=f"{SHARED} .const .align 4 .u32 table[4] = {{1}};")
    assert caught.value.fields["space"] == space


def test_unwritten_shared_memory_is_not_read() -> None:
    code = "st.shared.b16 [room+6], 7; ld.shared.v2.b32 {d, t}, [room];"
    with pytest.raises(UninitialisedReadError) as caught:
        run(code)
    assert caught.value.fields["unwritten"] == "6"
    assert int(caught.value.fields["first"], 16) == int(caught.value.fields["address"], 16)


def test_unwritten_memory_is_poison_where_reads_are_not_checked() -> None:
    code = """st.shared.b16 [room+2], 7; ld.shared.b32 d, [room]; ld.local.b32 t, [stack];
    add.u32 d, d, t;"""
    assert run(code, options={"check": ()})["d"][0] == (0x7FFFF + 0xFFFFFFFF) % 2**32


def test_unwritten_local_memory_is_not_read_by_any_lane() -> None:
    code = "setp.ne.u32 q, i, 5; @q st.local.u32 [stack], i; ld.local.u32 d, [stack];"
    with pytest.raises(UninitialisedReadError):
        run(code)
    assert run(code, options={"check": ()})["d"][4:7] == [4, 0xFFFFFFFF, 6]


def test_what_another_lane_wrote_may_be_read() -> None:
    code = """mov.u32 r, room; shl.b32 t, i, 2; add.u32 t, r, t; st.shared.u32 [t], i;
    sub.u32 t, 31, i; shl.b32 t, t, 2; add.u32 r, r, t; ld.shared.u32 d, [r];"""
    assert run(code)["d"] == [31 - i for i in range(32)]


@pytest.mark.parametrize("code", ["ld.shared.b32 d, [room+12];", "st.shared.b8 [room+15], i;"])
def test_the_bytes_of_an_mbarrier_are_not_accessed(code: str) -> None:
    with pytest.raises(BarrierBytesError):
        run(f"mbarrier.init.shared.b64 [room+8], 1; {code}", active=1)


@pytest.mark.parametrize(
    "code",
    ["cvta.const.u64 g, table; st.u32 [g], i;", "cvta.param.u64 g, bench_source; st.u32 [g], i;"],
)
def test_constants_and_parameters_are_not_written(code: str) -> None:
    with pytest.raises(ReadOnlyMemoryError):
        run(code, declare=".const .align 4 .u32 table[4] = {1};")


@pytest.mark.parametrize(
    "code",
    ["atom.add.u32 d, [g], i;", "st.release.gpu.u32 [g], i;", "ld.volatile.u32 d, [g];"],
)
def test_strong_accesses_go_to_shared_and_global_memory_only(code: str) -> None:
    with pytest.raises(StrongAccessError):
        run(f"st.local.u32 [stack], 1; cvta.local.u64 g, stack; {code}")


def test_shared_memory_of_the_block_itself_has_no_other_rank() -> None:
    with pytest.raises(OtherBlockError) as caught:
        run("mapa.shared::cluster.u32 r, room, 1; st.shared.u32 [r], i;", grid=2, cluster=2)
    assert {caught.value.fields["rank"], caught.value.fields["own_rank"]} <= {"0", "1"}


def test_a_rank_beyond_the_cluster_has_no_memory() -> None:
    with pytest.raises(NoSuchBlockError) as caught:
        run("mov.u32 r, room; or.b32 r, r, 0x05000000; ld.shared::cluster.u32 d, [r];")
    assert caught.value.fields["rank"] == "5"


def test_the_memory_of_an_exited_block_is_gone() -> None:
    code = """st.shared.u32 [room], i; mov.u32 t, %cluster_ctarank; setp.eq.u32 q, t, 1; @q exit;
    mapa.shared::cluster.u32 r, room, 1;
    WAIT: ld.volatile.global.u32 t, [p]; add.u32 d, d, 1; setp.lt.u32 q, d, 100; @q bra WAIT;
    ld.shared::cluster.u32 d, [r];"""
    with pytest.raises(ExitedBlockError):
        run(
            code,
            grid=2,
            cluster=2,
            memory={"p": torch.zeros(1, dtype=torch.int32)},
            options={"schedule": "random"},
        )


def test_shared_memory_of_another_block_is_read_and_written() -> None:
    got = run(
        """mov.u32 t, %cluster_ctarank; xor.b32 t, t, 1; mapa.shared::cluster.u32 r, room, t;
        shl.b32 t, i, 2; add.u32 r, r, t; mov.u32 t, %cluster_ctarank; shl.b32 t, t, 8;
        add.u32 t, t, i; st.shared::cluster.u32 [r], t;
        barrier.cluster.arrive; barrier.cluster.wait;
        mov.u32 r, room; shl.b32 t, i, 2; add.u32 r, r, t; ld.shared.u32 d, [r];
        barrier.cluster.arrive; barrier.cluster.wait;""",
        grid=2,
        cluster=2,
    )
    assert got["d"][:32] == [256 + i for i in range(32)]


# ---- what the race detector is told


RACES = {"check": ("races", "uninitialised")}
STRIPES = "mov.u32 t, %tid.x; shl.b32 t, t, {}; mov.u32 r, room; add.u32 r, r, t;"


@pytest.mark.parametrize("active", [0xFFFFFFFF, 0x5A5A5A5A])
@pytest.mark.parametrize(("shift", "value"), [(2, "b32 [r], i"), (3, "v2.b32 [r], {i, i}"),
                                              (3, "b32 [r+4], i"), (2, "b16 [r], i")])  # fmt: skip
def test_warps_that_write_side_by_side_do_not_race(shift: int, value: str, active: int) -> None:
    run(
        f"{STRIPES.format(shift)} st.shared.{value};",
        threads=64,
        declare=".shared .align 64 .b8 room[512];",
        active=active,
        options=RACES,
    )


@pytest.mark.parametrize("first", [31, 0])
def test_one_byte_that_two_warps_write_is_a_race(first: int) -> None:
    """Lane `first` of warp 1 reaches back into what warp 0 wrote."""
    with pytest.raises(RaceError, match="shared"):
        run(
            f"""{STRIPES.format(2)} mov.u32 t, %tid.x; setp.eq.u32 q, t, {32 + first};
            @q sub.u32 r, r, 128; st.shared.b32 [r], i;""",
            threads=64,
            options=RACES,
        )
