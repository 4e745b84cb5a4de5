"""Forgetting gate: each position says how much of all that came before it is kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch

from flexfa4.combine import ScoreMod
from flexfa4.variants.parameters import given, require_float_tensor


@dataclass(frozen=True, eq=False)  # tensors have no single True or False for ==
class ForgettingGate(ScoreMod):
    """Add ``sum(log_gates[b, h, kv + 1 : q + 1])``: all gates from behind the key to the query.

    Computed as ``F[q] - F[kv]`` of the running sum F.  It is right at any length: F is summed in
    fp64 and read as a coarse part, rounded to fp32, and the rest.  The difference of the coarse
    parts is off by one rounding of itself, not of F, which at 100,000 positions is thousands of
    times larger.  Gradients reach the gates through the sum.

    Combine it with a causal mask: for later keys the bias grows instead of falling.

        gates = torch.nn.functional.linear(x, weight, bias)  # (B, S, H)
        mod = ForgettingGate.from_logits(gates.transpose(1, 2))
        out = flexfa4.attention(q, k, v, score_mod=mod, block_mask=causal)

    Source: Lin et al., "Forgetting Transformer: Softmax Attention with a Forget Gate" (2025),
    section 3.

    Attributes:
        log_gates: (B, H, S), learnable: logarithm of the gate of each position and query head, at
            most 0, with S at least the number of queries and of keys.
    """

    log_gates: torch.Tensor | None = None

    def __post_init__(self) -> None:
        if self.log_gates is not None:
            require_float_tensor("ForgettingGate.log_gates", self.log_gates, ("B", "H", "S"))

    @classmethod
    def from_logits(cls, logits: torch.Tensor) -> ForgettingGate:
        """Return the bias of gates ``sigmoid(logits)``, whose logarithm is taken without rounding.

        Args:
            logits: (B, H, S), learnable.  Made of the layer's input: make the mod in each forward.
        """
        require_float_tensor("ForgettingGate.from_logits(logits)", logits, ("B", "H", "S"))
        return cls(torch.nn.functional.logsigmoid(logits))

    def __call__(self, score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        """Return the biased score."""
        log_gates: Any = given(
            "ForgettingGate.log_gates",
            self.log_gates,
            expected="the logarithm of each position's gate, a tensor of shape (B, H, S)",
            rewrite="ForgettingGate.from_logits(logits)",
        )
        total = log_gates.double().cumsum(-1)
        coarse = total.detach().float().double()
        rest = total - coarse  # takes the gradient, which a cast to fp32 would round
        kept = coarse[b, h, q_idx] - coarse[b, h, kv_idx]
        return score + (kept + (rest[b, h, q_idx] - rest[b, h, kv_idx]))


forgetting_gate: Final = ForgettingGate()
