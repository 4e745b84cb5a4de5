"""Fences change no value; what they are given is checked, and the race detector hears of them."""

from __future__ import annotations

import pytest
import torch

from flexfa4.emulator import load
from flexfa4.emulator.failures.copies import TensorMapPlaceError, TensorMapSizeError
from flexfa4.emulator.failures.memory import GlobalBoundsError
from tests.ptx_programs import run_instruction

FENCES = [
    *(
        f"fence{sem}.{scope};"
        for sem in ("", ".sc", ".acq_rel", ".acquire", ".release")
        for scope in ("cta", "cluster", "gpu", "sys")
    ),
    "fence.mbarrier_init.release.cluster;",
    "fence.proxy.alias;",
    "fence.proxy.async;",
    "fence.proxy.async.global;",
    "fence.proxy.async.shared::cta;",
    "fence.proxy.async.shared::cluster;",
    "fence.proxy.tensormap::generic.release.gpu;",
    "fence.proxy.async::generic.acquire.sync_restrict::shared::cluster.cluster;",
    "fence.proxy.async::generic.release.sync_restrict::shared::cta.cluster;",
    "membar.cta;",
    "membar.gl;",
    "membar.sys;",
    "griddepcontrol.wait;",
    "griddepcontrol.launch_dependents;",
]


@pytest.mark.parametrize("fence", FENCES)
def test_a_fence_changes_nothing(fence: str) -> None:
    options = {"check": ("races", "uninitialised")}
    code = f"add.u32 d, a, 1; {fence} add.u32 d, d, 1;"
    found = run_instruction(code, {"a:u32": list(range(32))}, "d:u32", options=options)
    assert found["d"] == list(range(2, 34))


def acquire(tensor: torch.Tensor, address: str, size: int = 128) -> None:
    code = f"fence.proxy.tensormap::generic.acquire.gpu [{address}], {size};"
    run_instruction(code, memory={"g": tensor}, registers=".reg .b64 x;")


def aligned(nbytes: int) -> torch.Tensor:
    room = torch.zeros(nbytes + 128, dtype=torch.uint8)
    return room[-room.data_ptr() % 128 :][:nbytes]


def test_a_tensor_map_is_acquired_in_global_memory() -> None:
    acquire(aligned(128), "g")


def test_a_tensor_map_is_acquired_among_the_parameters() -> None:
    text = (
        ".version 8.8\n.target sm_100a\n.address_size 64\n"
        ".visible .entry k(.param .align 64 .b8 map[128]) {\n.reg .b64 x;\n"
        "mov.b64 x, map; cvta.param.u64 x, x;\n"
        "fence.proxy.tensormap::generic.acquire.sys [x], 128;\nret;\n}"
    )
    load(text).run(grid=1, block=32, args=[bytes(128)])


def test_a_map_is_acquired_as_a_whole() -> None:
    with pytest.raises(TensorMapSizeError, match="64 bytes"):
        acquire(aligned(128), "g", 64)


def test_a_map_that_no_copy_could_read_is_refused() -> None:
    with pytest.raises(TensorMapPlaceError, match="multiples of 64"):
        acquire(aligned(192), "g+16")
    with pytest.raises(GlobalBoundsError):
        acquire(aligned(128), "g+64")
