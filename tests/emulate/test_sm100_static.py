"""What is counted in machine code is what the emulator executes, where both have the same names."""

from __future__ import annotations

from typing import Final

import pytest
import torch

pytest.importorskip("cutlass")

from blackwell.loops import steady_loop
from blackwell.sass import disassembled, disassembler, parsed

import flexfa4
from flexfa4.emulator.results import Run
from flexfa4.kernels.sm100.forward.plan import ForwardPlan
from flexfa4.kernels.sm100.model import tile_of
from tests.emulated_executor import emulated_gpu

# SASS -> PTX
SAME: Final = {
    "MUFU.EX2": "ex2.approx.ftz.f32",
    "FFMA2": "fma.rn.f32x2",
    "F2FP": "cvt.rn.bf16x2.f32",
    "LDTM.x32": "tcgen05.ld.sync.aligned.32x32b.x32.b32",
    "STTM.x16": "tcgen05.st.sync.aligned.32x32b.x16.b32",
}
SOFTMAX_WARPS: Final = 8
TILES: Final = 2  # more of keys, in the longer of two calls


@pytest.fixture(scope="module", autouse=True)
def nvdisasm() -> None:
    try:
        disassembler()
    except FileNotFoundError as error:
        pytest.skip(str(error))


def ran(keys: int) -> Run:
    """Return what the kernel does for 256 queries."""
    torch.manual_seed(keys)
    q, k, v = (torch.randn(1, 1, n, 128).bfloat16() for n in (256, keys, keys))
    with emulated_gpu(capability=(10, 0)) as executor:
        flexfa4.attention(q, k, v, backend="sm100")
    return executor.runs[-1]


def test_the_steady_loop_is_executed_by_each_warp_for_each_tile() -> None:
    loop = steady_loop(parsed(disassembled(flexfa4.compile(arch="sm_100a").cubin)))
    short, long = ran(3 * 128), ran((3 + TILES) * 128)
    for opcode, name in SAME.items():
        more = long.executed[name] - short.executed[name]
        assert more == loop.count(opcode) * SOFTMAX_WARPS * TILES, opcode


def test_the_models_products_and_copies_are_those_that_are_made() -> None:
    plan = flexfa4.compile(arch="sm_100a").plan
    assert isinstance(plan, ForwardPlan)
    work = tile_of(plan, "sm_100a").work()
    short, long = ran(3 * 128), ran((3 + TILES) * 128)
    (shape,) = long.matrices
    assert shape.endswith("m128n128k16")
    products = (long.matrices[shape] - short.matrices[shape]) / TILES
    assert work.tensor == products * 2 * 128 * 128 * 16
    assert work.l2 == (long.traffic.tensor_loaded - short.traffic.tensor_loaded) / TILES
    # both operands of the products with K are in shared memory, one of those with V
    assert work.shared == products / 2 * (3 * 2 * 128 * 16)
