"""FIRE: a small network maps the distance, relative to the query's position, to a bias."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch

from flexfa4.combine import ScoreMod
from flexfa4.errors import ArgumentError
from flexfa4.variants.parameters import given, require_float_tensor, require_positive


@dataclass(frozen=True, eq=False)  # tensors have no single True or False for ==
class Fire(ScoreMod):
    """Add ``f(psi(|q - kv|) / psi(max(q, threshold)))[h]`` with ``psi(x) = log(1 + c * x)``.

    ``f(x) = w2 @ relu(w1 * x + b1) + b2``.  Dividing by the query's position keeps the argument
    between 0 and 1 under a causal mask, whatever the length; below the threshold, distances are
    told apart by their own size.  `c` and `threshold` count by their size, not their sign.

    The network runs for each score, with W products each: on long sequences it outweighs the rest.

        mlp = torch.nn.Sequential(nn.Linear(1, 32), nn.ReLU(), nn.Linear(32, heads))
        c, threshold = (nn.Parameter(torch.tensor(x)) for x in (0.1, 512.0))
        mod = Fire.from_mlp(mlp, c=c, threshold=threshold)
        out = flexfa4.attention(q, k, v, score_mod=mod, block_mask=causal)

    Source: Li et al., "Functional Interpolation for Relative Positions Improves Long Context
    Transformers" (2023), section 3.

    Attributes:
        w1: (W, 1), learnable: weights of the first layer, as `torch.nn.Linear` has them.
        b1: (W,), learnable.
        w2: (H, W), learnable: a row for each query head.
        b2: (H,), learnable.
        c: a number, or learnable, ().
        threshold: positions below are not divided by; a number, or learnable, ().
    """

    w1: torch.Tensor | None = None
    b1: torch.Tensor | None = None
    w2: torch.Tensor | None = None
    b2: torch.Tensor | None = None
    c: float | torch.Tensor = 0.1
    threshold: float | torch.Tensor = 512.0

    def __post_init__(self) -> None:
        for name in ("c", "threshold"):
            value = getattr(self, name)
            if isinstance(value, torch.Tensor):
                require_float_tensor(f"Fire.{name}", value, ())
            else:
                require_positive(f"Fire.{name}", value)
        if self.w1 is not None:
            width: int = require_float_tensor("Fire.w1", self.w1, ("W", 1)).shape[0]
            require_float_tensor("Fire.b1", self.b1, (width,))
            w2 = require_float_tensor("Fire.w2", self.w2, ("H", width))
            require_float_tensor("Fire.b2", self.b2, (w2.shape[0],))

    @classmethod
    def from_mlp(
        cls,
        mlp: torch.nn.Module,
        *,
        c: float | torch.Tensor = 0.1,
        threshold: float | torch.Tensor = 512.0,
    ) -> Fire:
        """Return the bias of a network of two linear layers with a ReLU between them.

        Args:
            mlp: ``Sequential(Linear(1, W), ReLU(), Linear(W, H))``; its own parameters are used.
            c: as in the class.
            threshold: as in the class.

        Raises:
            ArgumentError: `mlp` is no such network.
        """
        match tuple(mlp) if isinstance(mlp, torch.nn.Sequential) else ():
            case (torch.nn.Linear() as first, torch.nn.ReLU(), torch.nn.Linear() as last):
                return cls(first.weight, first.bias, last.weight, last.bias, c, threshold)
        raise ArgumentError(
            name="Fire.from_mlp(mlp)",
            found_value=repr(mlp),
            expected="Sequential(Linear(1, W), ReLU(), Linear(W, H))",
            rewrite="Fire(w1, b1, w2, b2), with tensors of any origin",
        )

    def __call__(self, score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        """Return the biased score."""
        w1, b1, w2, b2 = (
            given(
                f"Fire.{name}",
                weights,
                expected="the weights of the network, of shapes (W, 1), (W,), (H, W) and (H,)",
                rewrite="Fire.from_mlp(Sequential(Linear(1, 32), ReLU(), Linear(32, heads)))",
            )
            for name, weights in (
                ("w1", self.w1),
                ("b1", self.b1),
                ("w2", self.w2),
                ("b2", self.b2),
            )
        )
        c: Any = self.c
        threshold: Any = abs(self.threshold)
        # of products rather than of c: so it is seen that logarithms are of 1 or more
        size = torch.log1p((c * (q_idx - kv_idx)).abs())
        largest = torch.log1p((c * torch.where(q_idx > threshold, q_idx, threshold)).abs())
        share = size / (largest + 1e-6)  # finite where the threshold is 0, as in the paper's code
        hidden = torch.relu(share.unsqueeze(-1) * w1[:, 0] + b1)
        return score + (w2[h] * hidden).sum(-1) + b2[h]


fire: Final = Fire()
