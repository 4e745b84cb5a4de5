"""KERPLE: biases that fall with a power or a logarithm of the distance, learned for each head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch

from flexfa4.combine import ScoreMod
from flexfa4.variants.parameters import given, require_float_tensor


def _check(name: str, r1: torch.Tensor | None, r2: torch.Tensor | None) -> None:
    if r1 is not None or r2 is not None:
        heads = require_float_tensor(f"{name}.r1", r1, ("H",)).shape[0]
        require_float_tensor(f"{name}.r2", r2, (heads,))


def _of_head(name: str, value: torch.Tensor | None, h: Any) -> Any:
    """Return the parameter of a head, kept from falling below 0.01 as in the authors' code."""
    parameters: Any = given(
        name,
        value,
        expected="a number for each head, a tensor of shape (H,)",
        rewrite=f"{name.partition('.')[0]}(r1, r2)",
    )
    return parameters[h].clamp(min=0.01)


@dataclass(frozen=True, eq=False)  # tensors have no single True or False for ==
class KerpleLog(ScoreMod):
    """Add ``-r1[h] * log(1 + r2[h] * |q - kv|)``.

    Both parameters must be positive for the bias to be what the paper derives.  Smaller ones than
    0.01 count as 0.01 and get no gradient there, so bring them back after each step:

        r1, r2 = (torch.nn.Parameter(torch.rand(heads)) for _ in range(2))
        out = flexfa4.attention(q, k, v, score_mod=KerpleLog(r1, r2), block_mask=causal)
        ...
        optimizer.step()
        with torch.no_grad():
            r1.clamp_(min=0.01), r2.clamp_(min=0.01)

    Source: Chi et al., "KERPLE: Kernelized Relative Positional Embedding for Length Extrapolation"
    (2022), section 4, the logarithmic variant.

    Attributes:
        r1: (H,), learnable: the size of the bias.
        r2: (H,), learnable: how soon it grows.
    """

    r1: torch.Tensor | None = None
    r2: torch.Tensor | None = None

    def __post_init__(self) -> None:
        _check("KerpleLog", self.r1, self.r2)

    def __call__(self, score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        """Return the biased score."""
        r1, r2 = _of_head("KerpleLog.r1", self.r1, h), _of_head("KerpleLog.r2", self.r2, h)
        return score - r1 * torch.log1p(r2 * (q_idx - kv_idx).abs())


@dataclass(frozen=True, eq=False)  # tensors have no single True or False for ==
class KerplePower(ScoreMod):
    """Add ``-r1[h] * |q - kv| ** r2[h]``.

    The first parameter must be positive, the second at most 2 besides.  Values outside 0.01 and 2
    count as these and get no gradient there: bring them back after each step, as for `KerpleLog`.

    Source: Chi et al., "KERPLE: Kernelized Relative Positional Embedding for Length Extrapolation"
    (2022), section 4, the power variant.

    Attributes:
        r1: (H,), learnable: the size of the bias.
        r2: (H,), learnable: the exponent.
    """

    r1: torch.Tensor | None = None
    r2: torch.Tensor | None = None

    def __post_init__(self) -> None:
        _check("KerplePower", self.r1, self.r2)

    def __call__(self, score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        """Return the biased score."""
        r1, r2 = _of_head("KerplePower.r1", self.r1, h), _of_head("KerplePower.r2", self.r2, h)
        return score - r1 * (q_idx - kv_idx).abs() ** r2.clamp(max=2.0)


kerple_log: Final = KerpleLog()
kerple_power: Final = KerplePower()
