"""The implementations that are compared, as functions of q, k and v and as calls without arguments.

An `Attention` is made for a variant and a shape; None where an implementation cannot compute the
variant.  A provider turns a problem into a `Prepared` call of it.  What they need beforehand, such
as a block mask or tensors in their own layout, is made there and not timed.  All get the same
values; peers whose layout is ``(B, S, H, D)`` get contiguous copies.
"""

from __future__ import annotations

import functools
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


Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], Any]
View = Callable[[Any], torch.Tensor]


def same(x: torch.Tensor) -> torch.Tensor:
    """Return what is given."""
    return x


@dataclass(frozen=True, eq=False)
class Attention:
    """An implementation of a variant, of which masks and the like are made.

    Attributes:
        attend: from q, k and v in the provider's own layout to what it computes.
        arrange: from a tensor ``(B, H, S, D)`` to one in that layout, a view where strides allow.
        view: shows a result, or something of its form, as ``(B, H, S, Dv)``.
    """

    attend: Attend
    arrange: View = same
    view: View = same

    def of(self, problem: Problem) -> Prepared:
        """Return the call with the tensors of a problem."""
        inputs = [problem.q, problem.k, problem.v]
        q, k, v = (self.arrange(x).contiguous() for x in inputs)
        return Prepared(lambda: self.attend(q, k, v), self.view, (q, k, v))


@dataclass(frozen=True, eq=False)
class Prepared:
    """What is timed.

    Attributes:
        call: computes the output.
        view: see `Attention`.
        inputs: q, k and v in the provider's own layout, which `view` shows, too.
    """

    call: Callable[[], Any]
    view: View = same
    inputs: tuple[torch.Tensor, ...] = ()


OURS: Final = "FlexFA4"
BACKEND: Final = "sm90"
"""Named, so that a call which the kernel does not serve is an error."""

Maker = Callable[[Problem], "Attention | None"]
"""Of a problem only its variant, shape and device matter."""
Provider = Callable[[Problem], "Prepared | None"]


def ours(problem: Problem, *, deterministic: bool = False) -> Prepared:
    """Return the call of this project."""
    return our_attention(problem, deterministic=deterministic).of(problem)


def our_attention(problem: Problem, *, deterministic: bool = False) -> Attention:
    """Return this project."""
    mods = problem.mods

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        return flexfa4.attention(
            q,
            k,
            v,
            score_mod=mods.score,
            block_mask=mods.mask,
            deterministic=deterministic,
            backend=BACKEND,
        )

    return Attention(attend)


def flash_attention(problem: Problem) -> Attention | None:
    """Return flash-attn-4: of fixed lengths, or of documents that follow each other."""
    mods, shape = problem.mods, problem.case.shape
    if mods.flash is None and mods.documents is None:
        return None
    from flash_attn.cute import flash_attn_func, flash_attn_varlen_func

    if mods.documents is None:
        return Attention(
            functools.partial(flash_attn_func, **(mods.flash or {})),
            lambda x: x.transpose(1, 2),
            lambda out: first_of(out).transpose(1, 2),
        )
    lengths = list(itertools.chain.from_iterable(mods.documents))
    begins = torch.tensor(
        [0, *itertools.accumulate(lengths)], dtype=torch.int32, device=problem.q.device
    )
    longest = max(lengths)
    attend = functools.partial(
        flash_attn_varlen_func,
        cu_seqlens_q=begins,
        cu_seqlens_k=begins,
        max_seqlen_q=longest,
        max_seqlen_k=longest,
        causal=True,
    )
    return Attention(
        attend,
        lambda x: x.transpose(1, 2).flatten(0, 1),
        lambda out: first_of(out).unflatten(0, (shape.batch, shape.length)).transpose(1, 2),
    )


def first_of(result: Any) -> torch.Tensor:
    """Return the output of what may also return the log-sum-exp."""
    out: torch.Tensor = result[0] if isinstance(result, tuple) else result
    return out


def flex_attention(options: dict[str, Any] | None) -> Maker:
    """Return who makes compiled FlexAttention with these kernel options."""

    def make(problem: Problem) -> Attention:
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        mods, shape = problem.mods, problem.case.shape
        compiled = torch.compile(flex_attention, dynamic=False)
        mask = None
        if mods.mask is not None:
            batch = shape.batch if mods.mask_by_batch else None
            sizes = (batch, None, shape.length, shape.length)
            mask = create_block_mask(mods.mask, *sizes, device=problem.q.device)
        given = {"score_mod": mods.score, "block_mask": mask, "kernel_options": options}
        return Attention(functools.partial(compiled, enable_gqa=problem.grouped, **given))

    return make


def cudnn_attention(problem: Problem) -> Attention | None:
    """Return cuDNN through torch's ``scaled_dot_product_attention``."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    if problem.mods.sdpa is None:
        return None
    given = problem.mods.sdpa

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return torch.nn.functional.scaled_dot_product_attention(
                q, k, v, enable_gqa=problem.grouped, **given
            )

    return Attention(attend)


def provider(make: Maker) -> Provider:
    """Return the provider of an implementation."""

    def prepare(problem: Problem) -> Prepared | None:
        found = make(problem)
        return None if found is None else found.of(problem)

    return prepare


ATTENTIONS: Final[dict[str, Maker]] = {
    OURS: our_attention,
    "flash-attn-4": flash_attention,
    "Flex FLASH": flex_attention({"BACKEND": "FLASH"}),
    "Flex Triton": flex_attention(None),
    "cuDNN": cudnn_attention,
}
PROVIDERS: Final[dict[str, Provider]] = {name: provider(make) for name, make in ATTENTIONS.items()}
