"""Sequences of different lengths in one call: ours beside flash-attn-4's, and what our table costs.

Ours reads the cumulative lengths on the device: each call launches the kernel that makes the table
of work items, and behind it that of attention.  Both are timed together, as a call is, and the
first one also by itself: an executor that stands in for the device tells what is launched, and a
CUDA graph launches it many times, so that no time of the host is in it.
*Known lengths* is the same attention as a mask of documents over one row, which has its lists made
beforehand for these lengths.
"""

from __future__ import annotations

import functools
import itertools
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from hopper.providers import BACKEND, OURS
from hopper.speed import Bench, in_a_line
from hopper.timing import Call, interleaved, synchronize
from hopper.variants import causal_mask, triangle

import flexfa4
from flexfa4.kernels.compile.compiled_kernel import CompiledKernel, Dim3
from flexfa4.kernels.launch.executor import Executor, cuda_executor
from flexfa4.kernels.launch.target import Target, standing_in
from flexfa4.testing import agrees

TOKENS: Final = 1 << 16
HEADS, KV_HEADS, DIM = 16, 16, 128
FLASH, KNOWN, TABLE = "flash-attn-4", "known lengths", "the table alone"
TABLES: Final = 20
"""Launches of the kernel of the table that are timed at once."""
_CHECKED_ROWS: Final = 32


def _mixed() -> list[int]:
    draw, lengths = random.Random(0), list[int]()
    while sum(lengths) < TOKENS:
        lengths.append(min(draw.randint(512, 3584), TOKENS - sum(lengths)))
    return lengths


LENGTHS: Final[dict[str, list[int]]] = {
    "equal": [2048] * 32,
    "mixed": _mixed(),
    "one-long": [128, 384] * 64 + [TOKENS // 2],
    "short": [64 + (97 * i) % 192 for i in range(400)],
}
"""Lengths of sequences: equal; of 512 to 3584; 128 of 128 or 384 with one of 32k; 64 to 255."""

JOBS: Final = tuple(f"{name}-{kind}" for name in LENGTHS for kind in ("full", "causal"))


@dataclass(frozen=True, eq=False)
class Packed:
    """Sequences one behind the other, bf16 ``(tokens, heads, dim)``."""

    lengths: list[int]
    causal: bool
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    ends: torch.Tensor

    @classmethod
    def of(cls, job: str, device: torch.device) -> Packed:
        """Return the sequences of a job."""
        name, _, kind = job.rpartition("-")
        lengths = LENGTHS[name]
        draw = torch.Generator(device).manual_seed(0)
        q, k, v = (
            torch.randn(
                sum(lengths), heads, DIM, device=device, dtype=torch.bfloat16, generator=draw
            )
            for heads in (HEADS, KV_HEADS, KV_HEADS)
        )
        ends = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32, device=device)
        return cls(lengths, kind == "causal", q, k, v, ends)

    @property
    def tflop(self) -> float:
        """Floating point operations of the visible scores, in units of 10^12."""
        visible = sum(triangle(n) if self.causal else n * n for n in self.lengths)
        return 4 * visible * HEADS * DIM / 1e12


@dataclass(eq=False)
class Recorder:
    """Launches on a device, and keeps what it is given.

    Attributes:
        device: what launches.
        launches: kernel, grid, values and memory of each.
    """

    device: Executor
    launches: list[tuple[CompiledKernel, Dim3, Sequence[Any], Sequence[Any]]] = field(
        default_factory=list
    )

    def load(self, kernel: CompiledKernel) -> Any:
        """Make a kernel ready, see `Executor.load`."""
        return self.device.load(kernel)

    def launch(
        self,
        kernel: CompiledKernel,
        grid: Dim3,
        values: Sequence[Any],
        *,
        stream: int = 0,
        memory: Sequence[Any] = (),
    ) -> None:
        """Launch a kernel, see `Executor.launch`."""
        self.launches.append((kernel, grid, values, memory))
        self.device.launch(kernel, grid, values, stream=stream, memory=memory)


# ---- providers -----------------------------------------------------------------------------------


def ours(packed: Packed) -> Call:
    """Return the call that finds the lengths on the device."""
    mask = causal_mask if packed.causal else None
    return lambda: flexfa4.attention_varlen(
        packed.q, packed.k, packed.v, packed.ends, block_mask=mask, backend=BACKEND
    )


def tables_alone(packed: Packed) -> Call:
    """Return `TABLES` launches of the kernel that makes the table, and nothing else."""
    device = packed.q.device
    properties = torch.cuda.get_device_properties(device)
    recorder = Recorder(cuda_executor(device.index))
    capability = (properties.major, properties.minor)
    with standing_in(Target(recorder, capability, properties.multi_processor_count)):
        ours(packed)()
    kernel, grid, values, memory = recorder.launches[0]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        stream = torch.cuda.current_stream().cuda_stream
        for _ in range(TABLES):
            recorder.device.launch(kernel, grid, values, stream=stream, memory=memory)

    def replay() -> Sequence[Any]:
        graph.replay()
        return memory  # which the kernel reads and writes

    return replay


def known(packed: Packed) -> Call:
    """Return the same attention as a mask over one row."""
    number = torch.arange(len(packed.lengths), dtype=torch.int32)
    ids = number.repeat_interleave(torch.tensor(packed.lengths)).to(packed.q.device)

    def mask(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        same = ids[q_idx] == ids[kv_idx]
        return same & (q_idx >= kv_idx) if packed.causal else same

    rows = [t.transpose(0, 1).unsqueeze(0) for t in (packed.q, packed.k, packed.v)]
    attend = functools.partial(flexfa4.attention, *rows, block_mask=mask, backend=BACKEND)
    return lambda: attend()[0].transpose(0, 1)


def flash(packed: Packed) -> Call:
    """Return the call of flash-attn-4."""
    from flash_attn.cute import flash_attn_varlen_func

    longest = max(packed.lengths)

    def call() -> Any:
        found = flash_attn_varlen_func(
            packed.q,
            packed.k,
            packed.v,
            cu_seqlens_q=packed.ends,
            cu_seqlens_k=packed.ends,
            max_seqlen_q=longest,
            max_seqlen_k=longest,
            causal=packed.causal,
        )
        return found[0] if isinstance(found, tuple) else found

    return call


_PROVIDERS: Final[dict[str, Callable[[Packed], Call]]] = {OURS: ours, FLASH: flash, KNOWN: known}


# ---- the job -------------------------------------------------------------------------------------


def measured(job: str, bench: Bench) -> dict[str, Any]:
    """Return the row of a job."""
    packed = Packed.of(job, bench.device)
    calls: dict[str, Call] = {}
    found: dict[str, dict[str, Any]] = {}
    for name, provider in _PROVIDERS.items():
        try:
            call = provider(packed)
            error = off(packed, call())
        except Exception as failure:  # of whatever kind: peers are not ours
            found[name] = {"failed": in_a_line(failure)}
            continue
        found[name] = {} if error is None else {"failed": f"wrong: off by {error:.2g}"}
        if error is None:
            calls[name] = call
    if OURS in calls:
        calls[TABLE], found[TABLE] = tables_alone(packed), {}
    for name, times in interleaved(calls, bench.clock, bench.rounds).items():
        found[name]["ms"] = [ms / TABLES for ms in times] if name == TABLE else times
    return {
        "lengths": job,
        "sequences": len(packed.lengths),
        "tokens": sum(packed.lengths),
        "tflop": packed.tflop,
        "providers": found,
    }


def off(packed: Packed, out: torch.Tensor) -> float | None:
    """Return by how much an output is wrong in the first, a middle or the last sequence.

    The first and the last rows of each are looked at, of the first and the last head.
    """
    synchronize(out.device)
    middle = len(packed.lengths) // 2
    for number in sorted({0, middle, len(packed.lengths) - 1}):
        begin, length = sum(packed.lengths[:number]), packed.lengths[number]
        rows = torch.arange(length, device=out.device)
        rows = torch.cat((rows[:_CHECKED_ROWS], rows[-_CHECKED_ROWS:]))
        for head in (0, HEADS - 1):
            exact, eager = (
                _attended(packed, (begin, length), head, rows, dtype)
                for dtype in (torch.float64, torch.bfloat16)
            )
            mine = out[begin + rows, head]
            if not agrees(mine, exact, eager, terms=1):
                return float((mine.double() - exact).abs().max())
    return None


def _attended(
    packed: Packed, span: tuple[int, int], head: int, rows: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    begin, length = span
    q = packed.q[begin + rows, head].to(dtype)
    kv_head = head // (HEADS // KV_HEADS)
    k, v = (t[begin : begin + length, kv_head].to(dtype) for t in (packed.k, packed.v))
    score = (q @ k.T) * DIM**-0.5
    if packed.causal:
        keys = torch.arange(length, device=q.device)
        score = score.masked_fill(rows[:, None] < keys, -math.inf)
    return score.softmax(-1) @ v
