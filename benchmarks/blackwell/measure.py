"""One kernel of one provider, compiled and taken apart: `Case` -> a row of results.

Runs in a process of its own, so that compiling is as cold as a user's first call, but for imports.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from blackwell.loops import SoftmaxLoop, registers_by_budget, softmax_loops
from blackwell.sass import disassembled, parsed

OURS: Final = "FlexFA4"
PEER: Final = "flash-attn-4"
MMA_CYCLES: Final = 8192
"""Floating point operations of the tensor cores in a cycle of a multiprocessor."""


@dataclass(frozen=True)
class Case:
    """What is compiled.

    Attributes:
        provider: `OURS` or `PEER`.
        variant: a key of `hopper.variants.VARIANTS`.
        arch: ``sm_100a`` or ``sm_103a``.
        sizes: batch, heads, key heads, length, and head dims of q and v.
        width: of the vectors that a peer's mods take.
    """

    provider: str
    variant: str
    arch: str
    sizes: tuple[int, int, int, int, int, int]
    width: int = 1


@dataclass(frozen=True)
class Built:
    """What a compilation gave.

    Attributes:
        ptx, cubin: text and machine code.
        smem_bytes: dynamic shared memory of a block.
        spills: bytes that a thread spills.
        seconds: that compiling took of processors; elapsed time depends on what else runs.
        model: what the performance model says of a tile, for our kernels.
    """

    ptx: str
    cubin: bytes
    smem_bytes: int
    spills: int
    seconds: float
    model: dict[str, Any] | None = None


def measured(case: Case) -> dict[str, Any]:
    """Compile a case; return what is in its machine code."""
    build: Callable[[Case], Built] = _ours if case.provider == OURS else _peers
    built = build(case)
    kernel = parsed(disassembled(built.cubin))
    loops = softmax_loops(kernel)
    head_dims = case.sizes[4:]
    return {
        "provider": case.provider,
        "variant": case.variant,
        "arch": case.arch,
        "sizes": list(case.sizes),
        "width": case.width,
        "loops": [_loop(loop, head_dims) for loop in loops],
        "instructions": sum(1 for _ in kernel.instructions),
        "shared_memory": built.smem_bytes,
        "tensor_memory": tensor_memory(built.ptx),
        "operand_bytes": operand_bytes(head_dims, blocks_together(built.ptx)),
        "registers": registers_by_budget(kernel),
        "spills": built.spills,
        "seconds": round(built.seconds, 2),
        "model": built.model,
    }


def _loop(loop: SoftmaxLoop, head_dims: tuple[int, ...]) -> dict[str, Any]:
    """Return what is known of a loop of softmax warps.

    Two of them share a scheduler, so that is what an issue slot of a tile of 256 queries by 128
    keys takes: twice what a warp executes for 128 keys.
    """
    products = 2 * 256 * 128 * sum(head_dims)
    return {
        "per_128_keys": round(loop.per_128_keys, 1),
        "issue_cycles": round(2 * loop.per_128_keys),
        "mma_cycles": products // MMA_CYCLES,
        "mufu_per_score": round(loop.count("MUFU.EX2") / 128, 3),
        "functions_per_score": round(loop.count("MUFU") / 128, 3),
        "keys": loop.keys,
        "opcodes": loop.opcodes(),
    }


_ALLOCATION: Final = re.compile(r"tcgen05\.alloc\S*\s+\[[^\]]+\],\s*(%?\w+);")


def tensor_memory(ptx: str) -> int | None:
    """Return the columns of tensor memory that a kernel allocates; None if that is not constant."""
    found = _ALLOCATION.search(ptx)
    if found is None:
        return None
    if found[1].isdigit():
        return int(found[1])
    moved = re.search(rf"mov\.[bu]32\s+{re.escape(found[1])},\s*(\d+);", ptx)
    return int(moved[1]) if moved else None


_PRODUCT: Final = re.compile(r"tcgen05\.mma\.cta_group::(\d)")


def blocks_together(ptx: str) -> int:
    """Return how many blocks compute a product together, in all products of a kernel."""
    (blocks,) = set(_PRODUCT.findall(ptx))
    return int(blocks)


def operand_bytes(head_dims: tuple[int, ...], blocks: int) -> int:
    """Return what the products of a tile of 256 queries by 128 keys read of shared memory.

    Each of two halves reads its queries, and the keys and values, of which each of several blocks
    that compute together has a part; probabilities are in tensor memory (FlashAttention-4, arXiv
    2603.05451, section 3.1).

    Args:
        head_dims: of q and k, and of v.
        blocks: that compute a product together.
    """
    head_dim, head_dim_v = head_dims
    return 2 * 2 * 128 * (head_dim + (head_dim + head_dim_v) // blocks)


_SPILLED: Final = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")


def _peers(case: Case) -> Built:
    from blackwell import peer
    from blackwell.peer_mods import peers

    batch, heads, _, length, _, _ = case.sizes
    chosen = peers(heads, length, batch, buckets=32)[case.variant]
    start = time.process_time()
    made = peer.compiled(chosen, case.sizes, case.arch, case.width)
    seconds = time.process_time() - start
    said = _SPILLED.search(made.report)
    assert said is not None and made.smem_bytes is not None
    spills = int(said[1]) + int(said[2])
    return Built(made.ptx, made.cubin, made.smem_bytes, spills, seconds)


def _ours(case: Case) -> Built:
    from blackwell.plans import plan_of

    from flexfa4.kernels.architectures import named
    from flexfa4.kernels.compile.compiler import require_cute
    from flexfa4.kernels.forward.compiled import compile_plan

    require_cute(case.arch)  # the import, which peers have had, too
    plan = plan_of(case.variant, case.sizes, case.arch)
    start = time.process_time()
    made = compile_plan(named(case.arch), plan, case.arch)
    seconds = time.process_time() - start
    model = _model(plan, case.arch)
    return Built(made.ptx, made.cubin, made.smem_bytes, made.spills, seconds, model)


def _model(plan: Any, arch: str) -> dict[str, Any]:
    """Return what the performance model says of the tiles of a plan."""
    from flexfa4.kernels.sm100.model import tile_of, tile_times

    tile, times = tile_of(plan, arch), tile_times(plan, arch)
    cycles = {name: round(busy) for name, busy in times.full.cycles.items() if busy}
    return {
        "cycles": round(times.full.total),
        "masked": round(times.masked.total),
        "bound": times.full.bound,
        "resources": cycles,
        "shared_bytes": round(tile.work().shared),
        "emulated": plan.tiling.emulated.value,
    }
