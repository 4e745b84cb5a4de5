"""Training a small language model on real text, where runs differ in their attention only.

The model is that of ``flexfa4 demo`` (`flexfa4.demo.model`): bytes in, logits of the next byte out,
ALiBi for positions.  All of it is fp32 and computed in fp32; attention is within documents and
causal, computed in the way that a run is about, bf16 in our kernels.  Text is the Python standard
library of this interpreter, its files in an order that never changes; a run's seed decides the
weights it begins with and the order of the sequences.  The same held-out sequences are left for
the loss at the end.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch
from numerical.ways import CHOICES, DEVICES, Kernels, by_kernels, dense

import flexfa4
from flexfa4.demo.corpus import Sequences, pack, source_files
from flexfa4.demo.model import Attention, Shape, Transformer
from flexfa4.variants import Alibi, Document, causal

REFERENCE: Final = "fp32 dense"
NUDGED: Final = "fp32 dense, nudged"
"""The reference from weights that are one fp32 rounding away: what training makes of any change."""
HALF: Final = "bf16 dense"

DENSE: Final = {REFERENCE: torch.float32, NUDGED: torch.float32, HALF: torch.bfloat16}
WAYS: Final = (*DENSE, *CHOICES)

LEARNING_RATE: Final = 1e-3
WARMUP: Final = 20  # steps
LARGEST_GRADIENT: Final = 1.0  # the norm that they are cut to


_MODEL: Final = Shape(layers=4, heads=8, kv_heads=8, head_dim=64)


@dataclass(frozen=True)
class Size:
    """How large the model and its training are.

    Attributes:
        model: the model's own sizes; its window is not used.
        length: bytes of a sequence.
        batch: sequences of a step.
        steps: optimiser steps.
        held_out: sequences that are left for the end.
    """

    model: Shape = _MODEL
    length: int = 1024
    batch: int = 4
    steps: int = 300
    held_out: int = 64


TINY: Final = Size(Shape(layers=1, heads=2, kv_heads=1, head_dim=64), 96, 1, 2, 1)
"""What the emulator trains in seconds."""


@dataclass(frozen=True)
class TrainingJob:
    """A run.

    Attributes:
        way: one of `WAYS`.
        seed: of the weights and of the order of sequences.
        size: of the run.
        device: a key of `numerical.ways.BACKENDS`.
        repeated: how often it was done before: the same run once more, to compare the bits.
    """

    way: str
    seed: int
    size: Size
    device: str = "cuda"
    repeated: int | None = None

    @property
    def name(self) -> str:
        """What it is called in reports."""
        again = "" if self.repeated is None else f", repeated {self.repeated}"
        return f"training, {self.way}, seed {self.seed}{again}"

    def run(self, deadline: float) -> Iterator[dict[str, Any]]:
        """Yield the row of the run; nothing if the time was over before."""
        text = _text(self.size)
        where = torch.device(DEVICES[self.device])
        torch.manual_seed(self.seed)
        model = Transformer(self.size.model)
        if self.way == NUDGED:
            _nudge(model)
        model.to(where)
        attention = _attention(self.way, self.size, self.device)
        losses = []
        for loss in _steps(model, attention, _batches(text, self.size, self.seed, where)):
            losses.append(loss)
            if time.time() > deadline:
                return
        row: dict[str, Any] = {
            "way": self.way,
            "seed": self.seed,
            "losses": [round(float(loss), 5) for loss in losses],
            "fingerprint": fingerprint(model),
        }
        if self.repeated is None:
            row["held_out"] = _held_out(model, attention, text, self.size, where)
        else:
            row["repeated"] = self.repeated
        yield row


def _steps(
    model: Transformer, attention: Attention, batches: Iterator[Sequences]
) -> Iterator[torch.Tensor]:
    """Train, and yield the loss of each step: on the device, which nobody waits for."""
    optimizer = torch.optim.AdamW(model.parameters(), LEARNING_RATE, betas=(0.9, 0.95))
    for step, batch in enumerate(batches):
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * min(1.0, (step + 1) / WARMUP)
        attention.prepare(batch.documents)
        loss = model.loss(batch.tokens, batch.targets, attention)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), LARGEST_GRADIENT)
        optimizer.step()
        yield loss.detach()


@torch.no_grad()
def _held_out(
    model: Transformer, attention: Attention, text: Sequences, size: Size, where: torch.device
) -> float:
    """Return the mean cross entropy of the sequences that no step has seen, in nats of a byte."""
    losses = []
    for start in range(0, size.held_out, size.batch):
        rows = slice(start, min(start + size.batch, size.held_out))
        part = _on(where, text, torch.arange(rows.start, rows.stop))
        attention.prepare(part.documents)
        losses.append(model.loss(part.tokens, part.targets, attention))
    return float(torch.stack(losses).double().mean())


# ---- text ----------------------------------------------------------------------------------------


def _text(size: Size) -> Sequences:
    """Return the sequences of a run: those held out, from anywhere in the text, come first."""
    files = sorted(source_files(largest=None))
    random.Random(0).shuffle(files)
    count = size.held_out + size.batch * size.steps
    text = pack((path.read_bytes() for path in files), count, size.length)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    return Sequences(*(t[order] for t in (text.tokens, text.targets, text.documents)))


def _batches(text: Sequences, size: Size, seed: int, where: torch.device) -> Iterator[Sequences]:
    draw = torch.Generator().manual_seed(seed)
    order = size.held_out + torch.randperm(size.batch * size.steps, generator=draw)
    for rows in order.split(size.batch):
        yield _on(where, text, rows)


def _on(where: torch.device, text: Sequences, rows: torch.Tensor) -> Sequences:
    parts = (t[rows] for t in (text.tokens, text.targets, text.documents))
    return Sequences(*(t.to(where, non_blocking=True) for t in parts))


# ---- attention and weights -----------------------------------------------------------------------


def _attention(way: str, size: Size, device: str) -> Attention:
    heads = size.model.heads
    if way in DENSE:
        return _Dense(Alibi(heads), DENSE[way])
    return _ByKernels(Alibi(heads), CHOICES[way], device)


class _Dense:
    def __init__(self, score: Alibi, dtype: torch.dtype) -> None:
        self._score, self._dtype = score, dtype

    def prepare(self, documents: torch.Tensor) -> None:
        self._mask = Document(documents) & causal

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return dense((q, k, v), self._score, self._mask, self._dtype).float()


class _ByKernels:
    def __init__(self, score: Alibi, choice: Kernels, device: str) -> None:
        self._score, self._choice, self._device = score, choice, device

    def prepare(self, documents: torch.Tensor) -> None:
        batch, length = documents.shape
        self._mask = flexfa4.create_block_mask(
            Document(documents) & causal, batch=batch, q_len=length, kv_len=length
        )

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        out = by_kernels((q, k, v), self._score, self._mask, self._choice, self._device)
        return out.float()


@torch.no_grad()
def _nudge(model: torch.nn.Module) -> None:
    """Move every weight to the next larger fp32 number."""
    for weight in model.parameters():
        weight.copy_(torch.nextafter(weight, torch.full_like(weight, math.inf)))


def fingerprint(model: torch.nn.Module) -> str:
    """Return 64 bits in which weights with other bits are as good as sure to differ."""
    draw, total = random.Random(0), 0
    for weight in model.parameters():
        bits = weight.detach().flatten().view(torch.int32).to(torch.int64)
        places = torch.arange(len(bits), device=bits.device) * 2 + 1
        mixed = (bits * places * draw.getrandbits(31)).sum()  # modulo 2^64, in any order
        total = (total + int(mixed)) % 2**64
    return f"{total:016x}"
