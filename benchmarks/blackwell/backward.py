"""The main backward kernel of a case as machine code: ours, or flash-attn-4's.

What counts is what a warp of those executes that compute probabilities and their gradients, for 128
queries and a key for each lane: in the loop over tiles that no mask cuts, and in that over masked
ones (`loops`).  flash-attn-4's front end chooses tiles and clusters, as in the forward benchmark
(`peer`).  It is compared where it has a derivative of its own or the derivative is 1; its backward
kernel calls a mod that reads tensors for one score at a time.
"""

from __future__ import annotations

import re
import time
from typing import Any, Final
from unittest import mock

import torch
from blackwell import peer
from blackwell.loops import registers_by_budget, softmax_loops
from blackwell.measure import OURS, Built, Case, tensor_memory
from blackwell.peer_mods import peers
from blackwell.sass import disassembled, parsed

VARIANTS: Final = ("full", "causal", "alibi", "softcap-30", "documents")
_SPILLED: Final = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
_MAIN: Final = "FlashAttentionBackwardSm100"


def measured(case: Case) -> dict[str, Any]:
    """Compile a case; return what is in its machine code."""
    built = _ours(case) if case.provider == OURS else _peers(case)
    kernel = parsed(disassembled(built.cubin))
    loops = softmax_loops(kernel)
    return {
        "provider": case.provider,
        "variant": case.variant,
        "arch": case.arch,
        "sizes": list(case.sizes),
        "loops": [
            {
                "columns": loop.keys,
                "instructions": len(loop.instructions),
                "opcodes": loop.opcodes(),
            }
            for loop in loops
        ],
        "shared_memory": built.smem_bytes,
        "tensor_memory": tensor_memory(built.ptx),
        "registers": registers_by_budget(kernel),
        "spills": built.spills,
        "seconds": round(built.seconds, 2),
    }


def _ours(case: Case) -> Built:
    from hopper.variants import VARIANTS as MODS
    from hopper.variants import Shape

    import flexfa4
    from flexfa4.frontend.tracing.trace import resolve
    from flexfa4.kernels.backward.call import Wishes, plan_backward
    from flexfa4.kernels.backward.compiled import compile_plan
    from flexfa4.kernels.compile.compiler import require_cute
    from flexfa4.kernels.request import Inputs, Request
    from flexfa4.kernels.sm100.backward.architecture import BLACKWELL_BACKWARD

    require_cute(case.arch)
    batch, heads, kv_heads, length, dim, dim_v = case.sizes
    mods = MODS[case.variant].make(Shape(*case.sizes), torch.device("cpu"))
    one = torch.empty(1, dtype=torch.bfloat16)
    shapes = ((heads, dim), (kv_heads, dim), (kv_heads, dim_v))
    q, k, v = (one.expand(batch, h, length, d) for h, d in shapes)
    blocks = None
    if mods.mask is not None:
        batches = batch if mods.mask_by_batch else 1
        made = flexfa4.create_block_mask(mods.mask, batch=batches, q_len=length, kv_len=length)
        blocks = made.blocks_on(torch.device("cpu"))
    score = None if mods.score is None else resolve(mods.score, "score")
    request = Request(score, blocks, dim**-0.5, frozenset(), False)
    wishes = Wishes(frozenset(), False)
    call = plan_backward(BLACKWELL_BACKWARD, Inputs(q, k, v, None), request, wishes)
    assert call is not None
    start = time.process_time()
    kernel = compile_plan(BLACKWELL_BACKWARD, case.arch, call.main)
    seconds = time.process_time() - start
    return Built(kernel.ptx, kernel.cubin, kernel.smem_bytes, kernel.spills, seconds)


class _Compiler(peer._Cute):  # type: ignore[misc]
    """`cutlass.cute`, whose `compile` lets the kernels around the main one pass."""

    def compile(self, *arguments: Any, **_options: Any) -> Any:
        if type(arguments[0]).__name__ == _MAIN:
            raise peer._Caught(arguments)
        return mock.Mock()


def _peers(case: Case) -> Built:
    import cutlass.utils
    from torch._subclasses.fake_tensor import FakeTensorMode

    from flexfa4.kernels.compile.cute import compile_with_cute

    batch, heads, kv_heads, length, dim, dim_v = case.sizes
    chosen = peers(heads, length, batch, buckets=32)[case.variant]
    mods = {} if chosen.mask is None else {"mask_mod": peer._vectorized(chosen.mask, case.width)}
    if chosen.score is not None:
        mods |= {"score_mod": peer._vectorized(chosen.score, 1), "score_mod_bwd": _handed_on}
    interface = peer._front_end()
    start = time.process_time()
    with (
        mock.patch.object(cutlass.utils, "HardwareInfo", peer._Hardware),
        FakeTensorMode(),
        mock.patch.object(interface, "cute", _Compiler()),
        mock.patch.object(interface, "_get_device_arch", lambda: peer._NUMBERS[case.arch]),
    ):
        shapes = ((heads, dim), (kv_heads, dim), (kv_heads, dim_v), (heads, dim_v), (heads, dim_v))
        tensors = [
            torch.empty(batch, length, h, d, dtype=torch.bfloat16, device="cuda") for h, d in shapes
        ]
        captured = [
            torch.empty(shape, dtype=dtype, device="cuda") for shape, dtype in chosen.captured
        ]
        lse = torch.empty(batch, heads, length, dtype=torch.float32, device="cuda")
        options = {**chosen.options, **mods, "aux_tensors": captured or None}
        try:
            interface._flash_attn_bwd(*tensors, lse, **options)
        except peer._Caught as caught:
            jit, *example = caught.arguments
        else:
            raise RuntimeError(f"{peer.NAME} compiled nothing")
    with mock.patch.object(cutlass.utils, "HardwareInfo", peer._Hardware):
        made = compile_with_cute(jit, example, case.arch)
    seconds = time.process_time() - start
    said = _SPILLED.search(made.report)
    assert said is not None and made.smem_bytes is not None
    spills = int(said[1]) + int(said[2])
    return Built(made.ptx, made.cubin, made.smem_bytes, spills, seconds)


def _handed_on(change: Any, *_: Any, **_named: Any) -> Any:
    """Return the gradient of a score that something was added to."""
    return change
