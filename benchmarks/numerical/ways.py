"""The ways to compute attention whose errors are compared: densely by torch, and by our kernels.

A way is a function of tensors and mods; the errors of single calls (`numerical.errors`) and the
training runs (`numerical.training`) use the same ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch

import flexfa4

Mod = Callable[..., Any] | None

KERNELS: Final = "flexfa4"
"""The kernels as they are: rescaling where a maximum grows by more than 2^8, exact exponentials,
gradients of queries added up in any order."""


@dataclass(frozen=True)
class Kernels:
    """A choice of our kernels, one change from what they do by themselves.

    Attributes:
        options: of `flexfa4.attention`.
        deterministic: likewise.
    """

    options: flexfa4.Options | None = None
    deterministic: bool = False


CHOICES: Final = {
    KERNELS: Kernels(),
    "rescaling always": Kernels(flexfa4.Options(tau=0)),
    "25 % emulated": Kernels(flexfa4.Options(emulated_exponentials=0.25)),
    "100 % emulated": Kernels(flexfa4.Options(emulated_exponentials=1.0)),
    "deterministic": Kernels(deterministic=True),
}

BACKENDS: Final = {"cuda": "sm90", "emulator": "emulator:sm_90a"}
"""By device: the name of our kernels there, so that no other code is taken in their place."""

DEVICES: Final = {"cuda": "cuda", "emulator": "cpu"}
"""By the same names: where tensors are."""


def by_kernels(
    tensors: tuple[torch.Tensor, ...], score: Any, mask: Any, choice: Kernels, device: str
) -> torch.Tensor:
    """Return attention by our kernels, in bf16.

    Args:
        tensors: q ``(B, Hq, S, D)``, k ``(B, Hkv, S, D)`` and v ``(B, Hkv, S, Dv)``.
        score: the score mod, or None.
        mask: a function or a block mask, or None.
        choice: which of them.
        device: a key of `BACKENDS`.
    """
    q, k, v = (t.bfloat16() for t in tensors)
    return flexfa4.attention(
        q,
        k,
        v,
        score_mod=score,
        block_mask=mask,
        options=choice.options,
        deterministic=choice.deterministic,
        backend=BACKENDS[device],
    )


def dense(
    tensors: tuple[torch.Tensor, ...], score: Mod, mask: Mod, dtype: torch.dtype
) -> torch.Tensor:
    """Return attention with the whole score matrix, by torch.

    Products take operands of a dtype.  Scores, mods and softmax are in fp32 for bf16, as
    ``torch.autocast`` has it, and otherwise in that dtype, too.

    Args:
        tensors: as in `by_kernels`.
        score: the score mod, or None.
        mask: a function, or None; every query sees a key.
        dtype: of the products.
    """
    q, k, v = (t.to(dtype) for t in tensors)
    group, length, device = q.shape[1] // k.shape[1], q.shape[2], q.device
    k, v = (t.repeat_interleave(group, dim=1) if group > 1 else t for t in (k, v))
    scores = (q @ k.mT).to(torch.promote_types(dtype, torch.float32)) * q.shape[3] ** -0.5
    index = (
        torch.arange(q.shape[0], device=device)[:, None, None, None],
        torch.arange(q.shape[1], device=device)[:, None, None],
        torch.arange(length, device=device)[:, None],
        torch.arange(length, device=device),
    )
    if score is not None:
        scores = score(scores, *index).to(scores.dtype)
    if mask is not None:
        scores = scores.masked_fill(~mask(*index), -torch.inf)
    return scores.softmax(-1).to(dtype) @ v
