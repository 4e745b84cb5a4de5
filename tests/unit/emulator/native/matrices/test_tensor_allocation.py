"""Allocation of tensor memory: addresses, waiting, pairs of blocks, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flexfa4.emulator.errors import EmulationError
from flexfa4.emulator.failures.matrices import (
    ColumnCountError,
    DeallocationError,
    MixedGroupsError,
    NoPairError,
    PairColumnsError,
    RelinquishedError,
    TensorMemoryLeakError,
    UninitialisedTensorError,
)
from flexfa4.emulator.kernel import load


def kernel(body: str) -> str:
    """A kernel that writes %r1 and so on, as each warp has them, to a row of 8 words."""
    stores = "\n".join(f"    st.global.b32 [%d1+{4 * i}], %r{i};" for i in range(1, 8))
    return f"""
.version 8.7
.target sm_100a
.address_size 64
.visible .entry program(.param .u64 output)
{{
    .reg .pred %p<4>;
    .reg .b32 %r<20>;
    .reg .b64 %d<4>;
    .shared .align 4 .b32 slots[8];
    ld.param.u64 %d1, [output];
    mov.u32 %r10, %tid.x;
    mov.u32 %r11, %cluster_ctarank;
    shr.u32 %r12, %r10, 5;          // warp
    setp.eq.u32 %p1, %r12, 0;
    setp.eq.u32 %p2, %r11, 0;
    shl.b32 %r13, %r11, 2;
    add.u32 %r13, %r13, %r12;
    mul.wide.u32 %d2, %r13, 32;
    add.u64 %d1, %d1, %d2;
    mov.b32 %r1, 0; mov.b32 %r2, 0; mov.b32 %r3, 0; mov.b32 %r4, 0;
    mov.b32 %r5, 0; mov.b32 %r6, 0; mov.b32 %r7, 0;
{body}
{stores}
    ret;
}}
"""


def run(body: str, warps: int = 1, cluster: int = 1, **options: Any) -> torch.Tensor:
    """Return [cluster, 4 warps, 8 words]."""
    out = torch.zeros(cluster, 4, 8, dtype=torch.int32)
    launch: dict[str, Any] = {"grid": cluster, "block": 32 * warps, "cluster": cluster}
    load(kernel(body)).run(args=[out], **launch, **options)
    return out


def alloc(columns: int, slot: int = 0, group: int = 1) -> str:
    return (
        f"    mov.b32 %r14, {columns};\n"
        f"    tcgen05.alloc.cta_group::{group}.sync.aligned.shared::cta.b32"
        f" [slots+{4 * slot}], %r14;\n"
        f"    ld.shared.b32 %r{1 + slot}, [slots+{4 * slot}];\n"
    )


def dealloc(columns: int, slot: int = 0, group: int = 1) -> str:
    return f"    tcgen05.dealloc.cta_group::{group}.sync.aligned.b32 %r{1 + slot}, {columns};\n"


def failure(body: str, kind: type[EmulationError], **launch: Any) -> str:
    with pytest.raises(kind) as caught:
        run(body, **launch)
    return str(caught.value)


def test_allocations_lie_side_by_side_and_are_reused() -> None:
    body = alloc(64) + alloc(128, 1) + dealloc(64) + alloc(32, 2) + alloc(64, 3)
    body += dealloc(128, 1) + dealloc(32, 2) + dealloc(64, 3)
    assert run(body)[0, 0, 1:5].tolist() == [0, 64, 0, 192]


def test_an_allocation_waits_until_columns_are_free() -> None:
    """Warp 1 gets columns that warp 0 gives back once it has seen a flag."""
    body = f"""
    @!%p1 bra SECOND;
{alloc(512)}
    barrier.sync 1, 64;
{dealloc(512)}
    bra TOGETHER;
SECOND:
    barrier.sync 1, 64;
{alloc(512, 1)}
{dealloc(512, 1)}
TOGETHER:
"""
    for schedule in ("eager", "late", "random", "priority"):
        out = run(body, warps=2, schedule=schedule)
        assert out[0, 0, 1] == 0
        assert out[0, 1, 2] == 0


def test_waiting_for_columns_that_nobody_gives_back_is_a_deadlock() -> None:
    with pytest.raises(EmulationError) as caught:
        run(alloc(512) + alloc(32, 1))
    text = str(caught.value)
    assert type(caught.value).__name__ == "DeadlockError"
    assert "32 free columns of tensor memory; allocated are columns 0-511" in text


def test_both_blocks_of_a_pair_get_the_same_columns() -> None:
    body = alloc(64, 0, 2) + alloc(32, 1, 2) + dealloc(64, 0, 2) + dealloc(32, 1, 2)
    for schedule in ("eager", "late", "random", "priority"):
        out = run(body, cluster=2, schedule=schedule)
        assert out[:, 0, 1:3].tolist() == [[0, 64], [0, 64]]


def test_a_pair_allocates_together_or_not_at_all() -> None:
    body = f"""
    @!%p2 bra TOGETHER;
{alloc(64, 0, 2)}
TOGETHER:
"""
    with pytest.raises(EmulationError) as caught:
        run(body, cluster=2)
    assert type(caught.value).__name__ == "DeadlockError"
    assert "tcgen05.alloc in the other block of the pair, block (1, 0, 0)" in str(caught.value)


def test_a_pair_asks_for_one_number_of_columns() -> None:
    body = """
    mov.b32 %r14, 64;
    @%p2 mov.b32 %r14, 32;
    tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [slots], %r14;
"""
    failure(body, PairColumnsError, cluster=2)


def test_a_pair_needs_two_blocks() -> None:
    assert "cluster of 1 blocks" in failure(alloc(32, 0, 2), NoPairError)


@pytest.mark.parametrize("columns", [0, 16, 48, 1024])
def test_columns_are_powers_of_two_from_32_to_512(columns: int) -> None:
    assert f"{columns} columns" in failure(alloc(columns), ColumnCountError)


def test_columns_have_to_be_given_back() -> None:
    text = failure(alloc(32) + alloc(64, 1) + dealloc(32), TensorMemoryLeakError)
    assert "columns 32-95 (cta_group::1, by warp 0)" in text


def test_nothing_is_allocated_after_the_permit_is_given_back() -> None:
    permit = "    tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;\n"
    failure(alloc(32) + permit + alloc(32, 1), RelinquishedError)
    assert run(alloc(32) + permit + dealloc(32))[0, 0, 1] == 0


def test_only_whole_allocations_are_given_back() -> None:
    text = failure(alloc(64) + dealloc(32), DeallocationError)
    assert "columns 0-31 are given back" in text
    assert "columns 0-63" in text
    again = alloc(64) + alloc(64, 1) + dealloc(64) + dealloc(64)
    assert "dealloc" in failure(again, EmulationError)


def test_one_kernel_has_one_group() -> None:
    body = alloc(32, 0, 2) + alloc(32, 1, 1)
    failure(body, MixedGroupsError, cluster=2)


def test_columns_that_were_given_back_are_unwritten_again() -> None:
    body = f"""
{alloc(32)}
    tcgen05.st.sync.aligned.32x32b.x1.b32 [%r1], {{%r10}};
    tcgen05.wait::st.sync.aligned;
{dealloc(32)}
{alloc(32)}
    tcgen05.ld.sync.aligned.32x32b.x1.b32 {{%r2}}, [%r1];
{dealloc(32)}
"""
    failure(body, UninitialisedTensorError)
