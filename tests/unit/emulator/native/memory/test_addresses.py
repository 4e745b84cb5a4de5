"""Addresses as values: windows of state spaces, ranks of blocks, and hints."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flexfa4.emulator.failures.memory import (
    GenericAddressError,
    NoSuchBlockError,
    PolicyFractionError,
)
from tests.ptx_programs import run_instruction

DECLARE = ".shared .align 16 .b8 room[64]; .const .align 4 .u32 table[4]; .global .u32 counter;"
REGISTERS = ".local .align 8 .b8 stack[16]; .reg .b32 r; .reg .b64 g, h;"
SPACES = ["const", "global", "local", "shared", "shared::cluster", "param"]
MAKE = {
    "const": "cvta.const.u64 g, table;",
    "global": "cvta.global.u64 g, counter;",
    "local": "cvta.local.u64 g, stack;",
    "shared": "cvta.shared.u64 g, room;",
    "param": "cvta.param.u64 g, bench_source;",
}


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("made", MAKE)
def test_isspacep_knows_the_window_of_an_address(space: str, made: str) -> None:
    """Parameters are in the window of global memory too, a block's memory in its cluster's."""
    got = run_instruction(
        f"{MAKE[made]} isspacep.{space} q, g;", outputs="q:pred", declare=DECLARE,
        registers=REGISTERS,
    )  # fmt: skip
    also = {"param": {"global"}, "shared": {"shared::cluster"}}.get(made, set())
    assert got["q"][0] == (space == made or space in also)


def test_isspacep_tells_the_own_block_from_others() -> None:
    got = run_instruction(
        """cvta.shared.u64 g, room; mov.u32 r, 1; mapa.u64 g, g, r;
        isspacep.shared::cta own, g; isspacep.shared::cluster any, g;
        or.b64 g, g, 0xFF000000; isspacep.shared::cluster none, g;""",
        outputs="own:pred any:pred none:pred",
        declare=DECLARE,
        registers=REGISTERS,
        grid=2,
        cluster=2,
    )
    assert (got["own"][0], got["own"][32]) == (False, True)
    assert all(got["any"])
    assert not any(got["none"])


@pytest.mark.parametrize("space", MAKE)
def test_cvta_there_and_back_is_the_same_address(space: str) -> None:
    name = {"const": "table", "global": "counter", "local": "stack", "shared": "room",
            "param": "bench_source"}[space]  # fmt: skip
    got = run_instruction(
        f"""mov.u64 a, {name}; cvta.{space}.u64 g, a; cvta.to.{space}.u64 b, g;
        cvta.{space}.u64 h, {name}; set.eq.u32.u64 d, g, h;""",
        outputs="a:u64 b:u64 d:u32",
        declare=DECLARE,
        registers=REGISTERS,
    )
    assert got["a"] == got["b"]
    assert got["d"][0] == 0xFFFFFFFF


def test_an_address_of_another_space_becomes_one_of_none() -> None:
    code = "cvta.to.shared.u64 g, p; cvt.u32.u64 r, g;"
    setting: dict[str, Any] = {"registers": REGISTERS, "memory": {"p": torch.zeros(8)}, "active": 1}
    run_instruction(code, **setting)
    with pytest.raises(NoSuchBlockError, match="0xffffffff"):
        run_instruction(f"{code} ld.shared::cluster.u8 r, [r];", **setting)


def test_mapa_and_getctarank_are_inverse() -> None:
    got = run_instruction(
        """mapa.shared::cluster.u32 a, room, k; getctarank.shared::cluster.u32 b, a;
        cvta.shared.u64 g, room; mapa.u64 g, g, k; getctarank.u64 c, g;
        cvta.to.shared::cluster.u64 h, g; cvt.u32.u64 d, h;
        mov.u64 h, room; mapa.shared::cluster.u64 h, h, k; getctarank.shared::cluster.u64 e, h;""",
        {"k:u32": [0, 1, 2, 3]},
        "a:u32 b:u32 c:u32 d:u32 e:u32",
        declare=DECLARE,
        registers=REGISTERS,
        grid=4,
        cluster=4,
    )
    assert got["b"] == got["c"] == got["e"] == [0, 1, 2, 3]
    assert got["a"] == got["d"] == [rank << 24 | 1024 for rank in range(4)]


def test_a_shared_address_carries_the_rank_of_its_block() -> None:
    got = run_instruction(
        "mov.u32 d, room; getctarank.shared::cluster.u32 e, room;", {}, "d:u32 e:u32",
        declare=DECLARE, grid=2, cluster=2,
    )  # fmt: skip
    assert (got["d"][0], got["d"][32]) == (1024, 1024 | 1 << 24)
    assert (got["e"][0], got["e"][32]) == (0, 1)


@pytest.mark.parametrize("rank", [2, 300])
def test_an_address_in_a_block_that_the_cluster_has_not_cannot_be_used(rank: int) -> None:
    code = f"mapa.shared::cluster.u32 r, room, {rank};"
    setting: dict[str, Any] = {"declare": DECLARE, "registers": REGISTERS, "grid": 2, "cluster": 2}
    run_instruction(code, **setting)
    with pytest.raises(NoSuchBlockError, match="ranks below 2"):
        run_instruction(f"{code} st.shared::cluster.u32 [r], 1;", **setting)


def test_generic_mapa_refuses_other_memory() -> None:
    with pytest.raises(GenericAddressError):
        run_instruction("mapa.u64 g, p, 0;", registers=REGISTERS, memory={"p": torch.zeros(8)})


def test_prefetching_touches_nothing_and_takes_any_address() -> None:
    run_instruction(
        """prefetch.global.L2 [p+65536]; prefetch.L1 [p]; mov.u64 g, 0; prefetch.tensormap [g];
        prefetch.local.L1 [stack]; prefetch.param.tensormap [bench_source];""",
        registers=REGISTERS,
        memory={"p": torch.zeros(8)},
    )


def test_policies_are_made_and_change_nothing() -> None:
    data = torch.arange(8, dtype=torch.int32)
    got = run_instruction(
        """createpolicy.fractional.L2::evict_last.L2::evict_unchanged.b64 g, 0.5;
        createpolicy.fractional.L2::evict_first.b64 h;
        ld.global.L1::evict_last.L2::cache_hint.L2::128B.b32 d, [p+8], g;
        st.global.L2::cache_hint.b32 [p], 7, h;""",
        outputs="d:u32",
        registers=REGISTERS,
        memory={"p": data},
    )
    assert got["d"][0] == 2
    assert data[0].item() == 7


@pytest.mark.parametrize("fraction", [0.0, 1.5, -1.0, float("nan")])
def test_a_policy_has_a_fraction_of_one(fraction: float) -> None:
    with pytest.raises(PolicyFractionError):
        run_instruction(
            "createpolicy.fractional.L2::evict_last.b64 g, f;", {"f:f32": fraction},
            registers=REGISTERS,
        )  # fmt: skip
