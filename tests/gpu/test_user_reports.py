"""Public reports on other systems, on this machine's GPU: right values at the sizes reported.

Rows of calls are those of `tests.reported_calls`; here are what is too large for an emulator, what
takes many runs, and what depends on CUDA.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
    pytest.skip("needs a GPU of compute capability 9.0", allow_module_level=True)

import flexfa4
from flexfa4.errors import BlockMaskMismatchError
from flexfa4.testing import Case, Sizes, Trial, agrees, excess
from flexfa4.variants import Document, SlidingWindow, causal
from tests.forward_trials import attend_with
from tests.reported_calls import REPORTS, in_sequence_order

BF16 = torch.bfloat16


@pytest.mark.parametrize("small", [True, False], ids=["small", "as reported"])
@pytest.mark.parametrize("name", REPORTS)
def test_results_and_gradients_are_those_of_the_reference(name: str, small: bool) -> None:
    report = REPORTS[name]
    assert not excess(report.trial(small=small), report.attend("sm90", "cuda"))


def drawn(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    """Return normally distributed numbers, a leaf."""
    return torch.randn(shape, device="cuda", dtype=dtype).requires_grad_()


def both_passes(
    tensors: list[torch.Tensor], do: torch.Tensor, backend: str = "sm90", **chosen: Any
) -> list[torch.Tensor]:
    """Return the output and the gradients of q, k and v."""
    leaves = [x.detach().requires_grad_() for x in tensors]
    out = flexfa4.attention(*leaves, backend=backend, **chosen)
    return [out.detach(), *torch.autograd.grad(out, leaves, do)]


def near(found: list[torch.Tensor], tensors: list[torch.Tensor], do: Any, **chosen: Any) -> bool:
    """Return whether results are as near to the exact ones as those of the CPU backend."""
    exact = both_passes([x.double() for x in tensors], do.double(), "cpu", **chosen)
    eager = both_passes(tensors, do, "cpu", **chosen)
    terms = max(tensors[0].shape[2], tensors[1].shape[2])
    results = zip(found, exact, eager, strict=True)
    return all(bool(f.isfinite().all()) and agrees(f, e, b, terms=terms) for f, e, b in results)


# ---- more than 2**31 -----------------------------------------------------------------------------


def test_keys_whose_rows_are_gigabytes_from_each_other_have_gradients() -> None:
    """pytorch/pytorch#190857: keys stored [KV, B, D], 720 batches, offsets beyond 2**31 bytes."""
    batch, keys = 720, 24000
    q, do = drawn(batch, 1, 256, 128), drawn(batch, 1, 256, 128).detach()
    k, v = (drawn(keys, batch, 128).detach().transpose(0, 1).unsqueeze(1) for _ in range(2))
    found = both_passes([q, k, v], do)
    some = slice(batch - 2, batch)
    assert near([x[some] for x in found], [x[some].contiguous() for x in (q, k, v)], do[some])


def test_a_captured_bias_of_more_than_2_to_the_32_elements_is_read_where_it_should_be() -> None:
    """pytorch/pytorch#145869, pytorch/pytorch#146724: bias [16, 32, 4096, 4096]."""
    q, k, v = (drawn(16, 32, 4096, 64).detach() for _ in range(3))
    bias = torch.randn(16, 32, 4096, 4096, device="cuda", dtype=BF16)

    def run(own: torch.Tensor, *tensors: torch.Tensor) -> torch.Tensor:
        mod = lambda score, b, h, q, kv: score + own[b, h, q, kv]  # noqa: E731
        return flexfa4.attention(*tensors, score_mod=mod, backend="sm90")

    last = [x[-1:, -1:].contiguous() for x in (bias, q, k, v)]
    assert torch.equal(run(bias, q, k, v)[-1:, -1:], run(*last))


@pytest.mark.parametrize(
    ("batch", "heads", "length", "dim"), [(1, 8, 1 << 21, 128), (15000, 4, 64, 64)]
)
def test_long_contexts_and_many_batches_are_right_at_their_ends(
    batch: int, heads: int, length: int, dim: int
) -> None:
    """Dao-AILab/flash-attention#2662, Dao-AILab/flash-attention#1500, meta-pytorch/MSLK#303."""
    q, k, v, do = (drawn(batch, heads, length, dim).detach() for _ in range(4))
    found = both_passes([q, k, v], do, block_mask=SlidingWindow(128) & causal)
    end = slice(max(0, length - 1024), length)  # whose windows end in it, but for the first rows
    tensors = [x[-1:, :, end].contiguous() for x in (q, k, v)]
    right = both_passes(tensors, do[-1:, :, end], block_mask=SlidingWindow(128) & causal)
    assert near(right, tensors, do[-1:, :, end], block_mask=SlidingWindow(128) & causal)
    inner = slice(256 if length > 1024 else 0, None)
    for a, b in zip(found, right, strict=True):
        a, b = a[-1:, :, end][:, :, inner], b[:, :, inner]
        assert agrees(a, b, b, terms=256)


# ---- memory --------------------------------------------------------------------------------------


def memory_of(run: Callable[[], object]) -> int:
    """Return how many bytes are allocated at most, beyond those that are now."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    run()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def test_a_block_mask_of_a_long_sequence_never_holds_all_scores() -> None:
    """pytorch/pytorch#134756, meta-pytorch/attention-gym#32: out of memory for 96000 positions."""
    length = 96000
    ids = torch.arange(length, device="cuda") // 9999
    for mask in (causal, Document(ids), Document(ids) & causal, SlidingWindow(5)):

        def lists(mask: Any = mask) -> object:
            made = flexfa4.create_block_mask(mask, q_len=length, kv_len=length, device="cuda")
            return made.lists("rows"), made.lists("columns")

        assert memory_of(lists) <= 8 * 128 * length  # one row of blocks, in 8 bytes for each score


def test_a_window_over_a_long_sequence_takes_memory_for_its_tensors_alone() -> None:
    """pytorch/pytorch#152528: (16, 3, 25000, 32) with a window of 5, in eager."""
    tensors = [drawn(16, 3, 25000, 32) for _ in range(3)]
    do = torch.ones_like(tensors[0])
    used = memory_of(lambda: both_passes(tensors, do, block_mask=SlidingWindow(5)))
    assert used <= 16 * tensors[0].nbytes  # all scores of one head alone would take this much


# ---- heads and batches ---------------------------------------------------------------------------


@pytest.mark.parametrize(("batch", "heads"), [(3, 5), (3, None), (None, 5)])
def test_a_block_mask_for_other_batches_or_heads_is_refused(
    batch: int | None, heads: int | None
) -> None:
    """pytorch/pytorch#172225: memory is read out of bounds."""
    mask = flexfa4.create_block_mask(
        causal, batch=batch, heads=heads, q_len=128, kv_len=128, device="cuda"
    )
    q = drawn(2, 2, 128, 64)
    with pytest.raises(BlockMaskMismatchError):
        flexfa4.attention(q, q, q, block_mask=mask)


# ---- what is made once ---------------------------------------------------------------------------


def scaled(by: float) -> Callable[..., Any]:
    def score_mod(score: Any, b: Any, h: Any, q: Any, kv: Any, by: Any = by) -> Any:
        return score * by

    return score_mod


def test_mods_that_differ_in_their_defaults_only_are_told_apart() -> None:
    """Dao-AILab/flash-attention#2773: one kernel for both, 87 % of the elements wrong."""
    for by in (1.0, 2.0, 1.0):
        trial = Trial(Case.of(scaled(by), causal), Sizes(1, 2, 2, 200, 200, 64, 64), BF16)
        assert not excess(trial, attend_with("sm90", "cuda"))


def test_new_lengths_and_batches_compile_nothing_in_either_pass() -> None:
    """Dao-AILab/flash-attention#2635, Dao-AILab/flash-attention#2507: compiles at each backward."""

    def run(batch: int, length: int) -> None:
        q = drawn(batch, 2, length, 64)
        both_passes([q, q, q], q.detach(), block_mask=causal)
        ends = torch.tensor([0, length // 3, length], device="cuda", dtype=torch.int32)
        rows = q[0].transpose(0, 1).contiguous()
        flexfa4.attention_varlen(rows, rows, rows, ends, block_mask=causal).sum().backward()

    run(2, 300)
    before = flexfa4.stats()
    for batch, length in ((1, 301), (3, 500), (2, 128), (5, 1000)):
        run(batch, length)
    assert (flexfa4.stats() - before).compiles == 0


def test_a_process_that_finds_kernels_on_disk_gets_each_mod_its_own() -> None:
    """Dao-AILab/flash-attention#2566: the cache on disk returned a kernel of another call."""
    code = (
        "import flexfa4, torch\n"
        "q = (torch.arange(2 * 300 * 64) % 97 / 97).view(1, 2, 300, 64).cuda().bfloat16()\n"
        "for mod in (None, 'score + kv / 64', 'tanh(score) * 3', 'score * 2'):\n"
        "    chosen = {'score_mod': mod, 'block_mask': 'q >= kv', 'backend': 'sm90'}\n"
        "    out = flexfa4.attention(q, q, q, **chosen)\n"
        "    print(out.double().sum().item(), out[0, 1, 299, :3].tolist())\n"
        "print(flexfa4.stats().compiles)\n"
    )
    runs = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        for _ in range(2)
    ]
    (*first, _), (*second, compiled) = (run.stdout.splitlines() for run in runs)
    assert first == second and len(set(first)) == 4
    assert compiled == "0"


# ---- nothing to compute --------------------------------------------------------------------------


@pytest.mark.parametrize(("batch", "q_len", "kv_len"), [(0, 5, 5), (1, 0, 5), (1, 5, 0), (0, 0, 0)])
@pytest.mark.parametrize("mask", [None, causal, "q < 0"])
def test_empty_inputs_give_zeros_and_zero_gradients(
    mask: Any, batch: int, q_len: int, kv_len: int
) -> None:
    """Dao-AILab/flash-attention#2776, Dao-AILab/flash-attention#1713."""
    q = drawn(batch, 4, q_len, 64)
    k, v = (drawn(batch, 2, kv_len, 64) for _ in range(2))
    out, lse = flexfa4.attention(q, k, v, block_mask=mask, return_lse=True, backend="sm90")
    assert out.shape == q.shape and not out.any() and bool((lse == -torch.inf).all())
    grads = torch.autograd.grad(out.sum(), (q, k, v))
    assert all(g.shape == x.shape and not g.any() for g, x in zip(grads, (q, k, v), strict=True))


def test_segments_of_length_zero_change_nothing() -> None:
    """Dao-AILab/flash-attention#2470: cu_q [0, 150, 150, 300], cu_k [0, 100, 200, 300]."""
    q, k, v = drawn(300, 4, 64), drawn(300, 2, 64), drawn(300, 2, 64)
    ends = [torch.tensor(n, device="cuda") for n in ([0, 150, 150, 300], [0, 100, 200, 300])]

    def run(backend: str, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        leaves = [x.detach().requires_grad_() for x in tensors]
        out = flexfa4.attention_varlen(*leaves, *ends, backend=backend)
        return [out.detach(), *torch.autograd.grad(out.sum(), leaves)]

    with torch.no_grad():  # where the kernel finds the lengths itself
        alone = flexfa4.attention_varlen(q, k, v, *ends, backend="sm90")
    found, eager = run("sm90", [q, k, v]), run("cpu", [q, k, v])
    exact = run("cpu", [x.double() for x in (q, k, v)])
    for f, e, b in zip([alone, *found], [exact[0], *exact], [eager[0], *eager], strict=True):
        assert agrees(f, e, b, terms=300)
    assert not found[2][100:200].any() and not found[3][100:200].any()


# ---- precision and determinism -------------------------------------------------------------------


def test_fp32_is_computed_in_fp32() -> None:
    """pytorch/pytorch#135161, pytorch/pytorch#138556: fp32 computed as TF32."""
    trial = Trial(Case.of(mask=causal), Sizes(1, 2, 2, 256, 256, 64, 64))
    assert not excess(trial, attend_with("auto", "cuda"))


def test_deterministic_gradients_have_the_same_bits_on_every_run() -> None:
    """Dao-AILab/flash-attention#2244, SandAI-org/MagiAttention#65: fp16 (2, 1024, 12, 64) BSHD."""
    tensors = [in_sequence_order(drawn(2, 12, 1024, 64, dtype=torch.float16)) for _ in range(3)]
    do = torch.randn_like(tensors[0])
    for mask in (None, causal, SlidingWindow(200)):
        first = both_passes(tensors, do, block_mask=mask, deterministic=True)
        for _ in range(40):
            again = both_passes(tensors, do, block_mask=mask, deterministic=True)
            assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def test_autocast_casts_all_three_inputs() -> None:
    """k2-fsa/OmniVoice#212: fp32 query and key beside bf16 value, silently four times slower."""
    q, k = (drawn(1, 4, 300, 64, dtype=torch.float32) for _ in range(2))
    v = drawn(1, 4, 300, 64)
    with torch.autocast("cuda", torch.bfloat16):
        out = flexfa4.attention(q, k, v, block_mask=causal, backend="sm90")
    cast = flexfa4.attention(q.bfloat16(), k.bfloat16(), v, block_mask=causal, backend="sm90")
    assert out.dtype is BF16 and torch.equal(out, cast)
