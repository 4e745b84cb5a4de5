"""The time of a training step of a transformer block in which only the attention call differs.

A step is the forward and the backward pass of one pre-norm block with a SwiGLU network, all of it
bf16 and eager: what a model spends its time with, one block of many.  Sequences are packed
documents, or the attention is to a window, or has ALiBi's bias.  Beside the providers stands the
block without attention, whose values take its place: what is left is the share of attention.

Before it is timed, a provider's output and the gradients of the input and of all weights are
compared with those of the block in fp64 with dense attention, head by head.  The budget is that of
`flexfa4.testing.agrees`: twice the error of the block in bf16 with dense attention, and rounding.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Final

import torch
from hopper.cases import FLEX, Case
from hopper.providers import ATTENTIONS, OURS, Problem
from hopper.speed import Bench, in_a_line
from hopper.timing import Call, interleaved, synchronize
from hopper.variants import Mods, Shape
from torch import nn
from torch.utils.checkpoint import checkpoint

from flexfa4.testing import agrees

STEPS: Final = ("documents", "window-1024", "alibi")
"""Keys of `hopper.variants.VARIANTS`."""
SHAPE: Final = Shape(2, 16, 16, 8192, 128, 128)
HIDDEN: Final = 5632
"""Width of the SwiGLU network: 8/3 of that of the block, and a multiple of 256."""
PEERS: Final = ("flash-attn-4", *FLEX)
NOTHING: Final = "without attention"

Heads = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""From q, k and v to the output, all ``(B, H, S, D)``."""


class Block(nn.Module):
    """Attention and a SwiGLU network, each on the normalised residual stream; no biases."""

    def __init__(self, shape: Shape, hidden: int) -> None:
        super().__init__()
        assert shape.heads == shape.kv_heads and shape.dim == shape.value_dim
        width = shape.heads * shape.dim
        self.heads = shape.heads
        self.before_attention = nn.RMSNorm(width)
        self.project_in = nn.Linear(width, 3 * width, bias=False)
        self.project_out = nn.Linear(width, width, bias=False)
        self.before_network = nn.RMSNorm(width)
        self.gate_and_up = nn.Linear(width, 2 * hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: torch.Tensor, attend: Heads) -> torch.Tensor:
        """Return the residual stream ``(B, S, width)`` after this block."""
        parts = self.project_in(self.before_attention(x)).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        x = x + self.project_out(attend(q, k, v).transpose(1, 2).flatten(-2))
        gate, up = self.gate_and_up(self.before_network(x)).chunk(2, -1)
        return x + self.down(nn.functional.silu(gate) * up)


@dataclass(frozen=True, eq=False)
class Step:
    """A block with what goes into its step.

    Attributes:
        problem: the attention of the block; its tensors are not used.
        block: bf16.
        x: the residual stream.
        grad: the gradient of the output.
    """

    problem: Problem
    block: Block
    x: torch.Tensor
    grad: torch.Tensor

    @classmethod
    def of(cls, case: Case, device: torch.device, hidden: int = HIDDEN) -> Step:
        """Return the step of a case, with weights as torch makes them and normal inputs."""
        shape = case.shape
        torch.manual_seed(0)
        block = Block(shape, hidden).to(device, torch.bfloat16)
        draw = torch.Generator(device).manual_seed(1)
        size = (shape.batch, shape.length, shape.heads * shape.dim)
        given: dict[str, Any] = {"device": device, "dtype": torch.bfloat16, "generator": draw}
        x, grad = (torch.randn(size, **given) for _ in range(2))
        return cls(Problem.of(case, device), block, x.requires_grad_(), grad)

    def run(self, attend: Heads) -> list[torch.Tensor]:
        """Return the output, and the gradients of x and of the weights."""
        out = self.block(self.x, attend)
        leaves = (self.x, *self.block.parameters())
        return [out, *torch.autograd.grad(out, leaves, self.grad)]

    def in_fp64(self) -> Step:
        """Return the same step in fp64."""
        block = Block(self.problem.case.shape, self.block.down.in_features)
        block = block.to(self.x.device, torch.float64)
        block.load_state_dict(self.block.state_dict())
        x = self.x.detach().double().requires_grad_()
        return Step(self.problem, block, x, self.grad.double())

    @property
    def names(self) -> list[str]:
        """What `run` returns."""
        return ["output", "input", *(name for name, _ in self.block.named_parameters())]


def dense(mods: Mods) -> Heads:
    """Return dense attention by torch, a head at a time, which is computed again for gradients."""

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        batch, heads = q.shape[:2]
        rows = [
            checkpoint(_head, q[b, h], k[b, h], v[b, h], mods, (b, h), use_reentrant=False)
            for b in range(batch)
            for h in range(heads)
        ]
        return torch.stack(rows).unflatten(0, (batch, heads))

    return attend


def _head(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mods: Mods, place: tuple[int, int]
) -> torch.Tensor:
    own = torch.arange(len(q), device=q.device)
    index = (*(torch.tensor(i, device=q.device) for i in place), own[:, None], own)
    score = (q @ k.T) * q.shape[1] ** -0.5
    if mods.score is not None:
        score = mods.score(score, *index).to(q.dtype)
    if mods.mask is not None:
        score = torch.where(mods.mask(*index), score, -math.inf)
    return score.softmax(-1) @ v


@dataclass(frozen=True, eq=False)
class Expected:
    """What a step should give.

    Attributes:
        names: of the results.
        exact: in fp64.
        eager: in bf16.
    """

    names: list[str]
    exact: list[torch.Tensor]
    eager: list[torch.Tensor]

    @classmethod
    def of(cls, step: Step) -> Expected:
        """Return what a step should give, by dense attention."""
        attend = dense(step.problem.mods)
        exact = [result.detach() for result in step.in_fp64().run(attend)]
        return cls(step.names, exact, [result.detach() for result in step.run(attend)])

    def wrong(self, found: list[torch.Tensor]) -> str | None:
        """Return the first result that is beyond its budget, and how far it is off."""
        for name, mine, exact, eager in zip(self.names, found, self.exact, self.eager, strict=True):
            if not agrees(mine, exact, eager, terms=1):
                return f"{name} off by {float((mine.detach().double() - exact).abs().max()):.2g}"
        return None


def measured(variant: str, bench: Bench) -> dict[str, Any]:
    """Return the row of a variant."""
    torch._dynamo.reset()
    step = Step.of(Case(f"step-{variant}", "step", variant, SHAPE), bench.device)
    right = Expected.of(step) if bench.only is None else None
    calls: dict[str, Call] = {NOTHING: functools.partial(step.run, lambda q, k, v: v)}
    found: dict[str, dict[str, Any]] = {NOTHING: {}}
    for name in filter(bench.tries, (OURS, *PEERS)):
        row, call = _tried(name, step, right)
        if row:
            found[name] = row
        if call is not None:
            calls[name] = call
    before = bench.ceiling.tflops(bench.clock)
    for name, times in interleaved(calls, bench.clock, bench.rounds).items():
        found[name]["ms"] = times
    return {
        "variant": variant,
        "shape": asdict(SHAPE),
        "hidden": HIDDEN,
        "ceiling_tflops": [before, bench.ceiling.tflops(bench.clock)],
        "providers": found,
    }


def _tried(name: str, step: Step, right: Expected | None) -> tuple[dict[str, Any], Call | None]:
    """Return what is to be said of a provider's first step, and what to time, if anything."""
    try:
        made = ATTENTIONS[name](step.problem)
        if made is None:
            return {}, None

        def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return made.view(made.attend(*map(made.arrange, (q, k, v))))

        start = time.perf_counter()
        result = step.run(attend)
        synchronize(step.x.device)
        row: dict[str, Any] = {"first_s": time.perf_counter() - start}
        wrong = None if right is None else right.wrong(result)
    except Exception as error:  # of whatever kind: peers are not ours
        return {"failed": in_a_line(error)}, None
    if wrong is not None:
        return {**row, "failed": f"wrong: {wrong}"}, None
    return row, functools.partial(step.run, attend)
