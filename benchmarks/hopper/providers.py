"""The implementations that are compared, each as a call without arguments.

A provider turns a problem into a `Prepared` call, or None where it cannot compute the variant.
What it needs beforehand, such as a block mask or tensors in its own layout, is made there and not
timed.  All get the same values; peers whose layout is ``(B, S, H, D)`` get contiguous copies.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from hopper.cases import Case
from hopper.variants import VARIANTS, Mods

import flexfa4


@dataclass(frozen=True, eq=False)
class Problem:
    """A case with its tensors.

    Attributes:
        case: what is computed.
        q, k, v: bf16 ``(B, H, S, D)``, contiguous.
        mods: those of the case's variant.
    """

    case: Case
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    mods: Mods

    @classmethod
    def of(cls, case: Case, device: torch.device) -> Problem:
        """Return the problem of a case, with normally distributed values."""
        shape = case.shape
        draw = torch.Generator(device).manual_seed(0)
        q, k, v = (
            torch.randn(
                shape.batch, heads, shape.length, dim,
                device=device, dtype=torch.bfloat16, generator=draw,
            )
            for heads, dim in (
                (shape.heads, shape.dim),
                (shape.kv_heads, shape.dim),
                (shape.kv_heads, shape.value_dim),
            )
        )  # fmt: skip
        return cls(case, q, k, v, VARIANTS[case.variant].make(shape, device))

    def apart(self) -> Problem:
        """Return the same values in tensors of which nothing is recorded."""
        q, k, v = (t.detach() for t in (self.q, self.k, self.v))
        return replace(self, q=q, k=k, v=v)

    @property
    def grouped(self) -> bool:
        """Whether query heads share key heads."""
        return self.case.shape.heads != self.case.shape.kv_heads


@dataclass(frozen=True, eq=False)
class Prepared:
    """What is timed.

    Attributes:
        call: computes the output.
        view: shows a result, or something of its form, as ``(B, H, S, Dv)``.
        inputs: q, k and v in the provider's own layout, which `view` shows, too.
    """

    call: Callable[[], Any]
    view: Callable[[Any], torch.Tensor] = lambda out: out
    inputs: tuple[torch.Tensor, ...] = ()


OURS: Final = "FlexFA4"
BACKEND: Final = "sm90"
"""Named, so that a call which the kernel does not serve is an error."""

Provider = Callable[[Problem], "Prepared | None"]


def ours(problem: Problem, *, deterministic: bool = False) -> Prepared:
    """Return the call of this project."""
    q, k, v, mods = problem.q, problem.k, problem.v, problem.mods
    return Prepared(
        lambda: flexfa4.attention(
            q,
            k,
            v,
            score_mod=mods.score,
            block_mask=mods.mask,
            deterministic=deterministic,
            backend=BACKEND,
        ),
        inputs=(q, k, v),
    )


def flash_attn(problem: Problem) -> Prepared | None:
    """Return the call of flash-attn-4: of fixed lengths, or of documents that follow each other."""
    mods, shape = problem.mods, problem.case.shape
    if mods.flash is None and mods.documents is None:
        return None
    from flash_attn.cute import flash_attn_func, flash_attn_varlen_func

    q, k, v = (t.transpose(1, 2).contiguous() for t in (problem.q, problem.k, problem.v))
    if mods.documents is None:
        given = mods.flash
        return Prepared(
            lambda: flash_attn_func(q, k, v, **given),
            lambda out: first_of(out).transpose(1, 2),
            (q, k, v),
        )
    lengths = list(itertools.chain.from_iterable(mods.documents))
    begins = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32, device=q.device)
    longest = max(lengths)
    packed = tuple(t.flatten(0, 1) for t in (q, k, v))

    def call() -> Any:
        return flash_attn_varlen_func(
            *packed,
            cu_seqlens_q=begins,
            cu_seqlens_k=begins,
            max_seqlen_q=longest,
            max_seqlen_k=longest,
            causal=True,
        )

    return Prepared(
        call,
        lambda out: first_of(out).unflatten(0, (shape.batch, shape.length)).transpose(1, 2),
        packed,
    )


def first_of(result: Any) -> torch.Tensor:
    """Return the output of what may also return the log-sum-exp."""
    out: torch.Tensor = result[0] if isinstance(result, tuple) else result
    return out


def flex(options: dict[str, Any] | None) -> Provider:
    """Return the provider of compiled FlexAttention with these kernel options."""

    def prepare(problem: Problem) -> Prepared:
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        q, k, v, mods, shape = problem.q, problem.k, problem.v, problem.mods, problem.case.shape
        compiled = torch.compile(flex_attention, dynamic=False)
        mask = None
        if mods.mask is not None:
            batch = shape.batch if mods.mask_by_batch else None
            sizes = (batch, None, shape.length, shape.length)
            mask = create_block_mask(mods.mask, *sizes, device=q.device)
        given = {"score_mod": mods.score, "block_mask": mask, "kernel_options": options}
        return Prepared(
            lambda: compiled(q, k, v, enable_gqa=problem.grouped, **given), inputs=(q, k, v)
        )

    return prepare


def cudnn(problem: Problem) -> Prepared | None:
    """Return the call of cuDNN through torch's ``scaled_dot_product_attention``."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    if problem.mods.sdpa is None:
        return None
    q, k, v, given = problem.q, problem.k, problem.v, problem.mods.sdpa

    def call() -> Any:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return torch.nn.functional.scaled_dot_product_attention(
                q, k, v, enable_gqa=problem.grouped, **given
            )

    return Prepared(call, inputs=(q, k, v))


PROVIDERS: Final[dict[str, Provider]] = {
    OURS: ours,
    "flash-attn-4": flash_attn,
    "Flex FLASH": flex({"BACKEND": "FLASH"}),
    "Flex Triton": flex(None),
    "cuDNN": cudnn,
}
