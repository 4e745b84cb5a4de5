"""The dense reference and the budget that an implementation must keep.

`dense_reference` computes attention in fp64 by calling the user's own functions on index tensors
and building the whole score matrix: it shares nothing with tracing, analysis or kernels, so it can
find fault with all of them.  `compare` holds an implementation against it, within a budget taken
from eager torch's own error.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch

import flexfa4
from flexfa4.testing.case import Case, Draw, Mods, Sizes


@dataclass(frozen=True)
class Inputs:
    """Tensors of a call; `sink` may be None."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    sink: torch.Tensor | None = None

    def leaves(self) -> tuple[torch.Tensor, ...]:
        """Return the tensors that tests differentiate by."""
        return (self.q, self.k, self.v) + (() if self.sink is None else (self.sink,))


def make_inputs(
    s: Sizes,
    generator: torch.Generator | None = None,
    *,
    dtype: torch.dtype = torch.float32,
    sink: bool = False,
) -> Inputs:
    """Draw normally distributed inputs that require gradients; None draws the same ones always."""
    g = torch.Generator().manual_seed(0) if generator is None else generator

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=g).to(dtype).requires_grad_()

    kv_batch = s.batch if s.kv_batch is None else s.kv_batch
    return Inputs(
        draw(s.batch, s.heads, s.q_len, s.dim),
        draw(kv_batch, s.kv_heads, s.kv_len, s.dim),
        draw(kv_batch, s.kv_heads, s.kv_len, s.value_dim),
        draw(s.heads) if sink else None,
    )


def dense_reference(
    inputs: Inputs,
    mods: Mods,
    *,
    scale: float | None = None,
    dtype: torch.dtype = torch.float64,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute attention densely by calling the user's functions on index tensors.

    Args:
        inputs: the tensors.
        mods: the mods.
        scale: as in `flexfa4.attention`.
        dtype: fp64 for the reference; the inputs' dtype for what eager torch would give.

    Returns:
        out ``(B, Hq, Lq, Dv)`` and lse ``(B, Hq, Lq)``, differentiable.
    """
    q, k, v = (t.to(dtype) for t in (inputs.q, inputs.k, inputs.v))
    group = q.shape[1] // k.shape[1]
    k, v = (t.repeat_interleave(group, dim=1) for t in (k, v))
    score = (q @ k.transpose(-1, -2)) * (q.shape[-1] ** -0.5 if scale is None else scale)
    batch, heads, q_len, kv_len = score.shape
    index = (
        torch.arange(batch)[:, None, None, None],
        torch.arange(heads)[:, None, None],
        torch.arange(q_len)[:, None],
        torch.arange(kv_len),
    )
    score_mod = mods.score_mod if mods.eager_score_mod is None else mods.eager_score_mod
    mask = mods.mask if mods.eager_mask is None else mods.eager_mask
    with _numbers_as(torch.promote_types(dtype, torch.float32)):
        if score_mod is not None:
            score = score_mod(score, *index).to(dtype).expand(batch, heads, q_len, kv_len)
        if mask is not None:
            score = torch.where(mask(*index), score, -math.inf)
    lse = score.logsumexp(-1)
    if inputs.sink is not None:
        lse = torch.logaddexp(lse, inputs.sink.to(dtype)[:, None].expand_as(lse))
    safe = torch.where(lse == -math.inf, 0.0, lse)
    return (score - safe[..., None]).exp() @ v, lse


@contextlib.contextmanager
def _numbers_as(dtype: torch.dtype) -> Iterator[None]:
    """Let torch compute quotients and functions of integer tensors, such as indices, in `dtype`."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def finite_rows(lse: torch.Tensor) -> torch.Tensor:
    """Return lse with 0 for rows without visible keys, so that it can enter a loss."""
    return torch.where(lse == -math.inf, torch.zeros_like(lse), lse)


def _worst_relative_error(
    found: Sequence[torch.Tensor], exact: Sequence[torch.Tensor], sizes: Sequence[float]
) -> float:
    """Return the largest error of any tensor, as a share of that tensor's size."""
    triples = zip(found, exact, sizes, strict=True)
    return max((_error(f, x) / size for f, x, size in triples if size), default=0.0)


def _top(x: torch.Tensor) -> float:
    return float(x.abs().max()) if x.numel() else 0.0


def _error(found: torch.Tensor, exact: torch.Tensor) -> float:
    return float((found.double() - exact.double()).abs().max()) if exact.numel() else 0.0


@dataclass(frozen=True)
class Deviation:
    """How far one tensor is from the reference, and how far it may be."""

    name: str
    error: float
    budget: float

    def holds(self) -> bool:
        """Whether the error is within the budget (NaN is not)."""
        return self.error <= self.budget


Attend = Callable[[Inputs, Mods], tuple[torch.Tensor, torch.Tensor]]


def attend(inputs: Inputs, mods: Mods) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `flexfa4.attention` of a case: the implementation that most tests compare."""
    out, lse = flexfa4.attention(
        inputs.q,
        inputs.k,
        inputs.v,
        score_mod=mods.score_mod,
        block_mask=mods.mask,
        sink=inputs.sink,
        return_lse=True,
    )
    return out, lse


@dataclass(frozen=True)
class Trial:
    """A case at given sizes and dtype, reproducible from its seed.

    Attributes:
        case, sizes, dtype, seed: as named.
        sink: with a sink for each head.
        scale: as in `flexfa4.attention`; the implementation that is compared must use it too.
    """

    case: Case
    sizes: Sizes = field(default_factory=Sizes)
    dtype: torch.dtype = torch.float32
    sink: bool = False
    seed: int = 0
    scale: float | None = None

    def build(self, dtype: torch.dtype) -> tuple[Inputs, Mods]:
        """Return inputs and mods holding the values of `self.dtype`, stored as `dtype`."""
        g = torch.Generator().manual_seed(self.seed)
        captures = torch.float64 if dtype is torch.float64 else torch.float32
        mods = self.case.make(self.sizes, Draw(g, captures))
        inputs = make_inputs(self.sizes, g, dtype=self.dtype, sink=self.sink)
        stored = (t.detach().to(dtype).requires_grad_() for t in inputs.leaves())
        return Inputs(*stored), mods


def compare(trial: Trial, attend: Attend) -> list[Deviation]:
    """Compare an implementation's out, lse and all gradients with the dense fp64 reference.

    The budget of each tensor is twice the worst relative error that the same computation makes in
    eager torch in the trial's dtype, plus rounding: of the result once; of the scores once, which
    weights have to first order as a relative error (|lse| stands for the scores that matter); and
    of the longest sum of n terms, sqrt(n) epsilons of the score dtype (Higham and Mary, SIAM J.
    Sci. Comput. 41(5), 2019, with lambda = 2).  For fp64, where the reference errs as much as eager
    torch, it is three times fp32's, scaled by the ratio of the epsilons.

    Errors are relative to the largest element that a tensor has, in this computation or in that of
    the same values and loss weights without their signs: where a sum cancels, its error has the
    size of its terms.

    Args:
        trial: what to compute.
        attend: the implementation: ``(inputs, mods) -> (out, lse)``.
    """
    low = torch.float32 if trial.dtype is torch.float64 else trial.dtype
    scale, (double, mods) = trial.scale, trial.build(torch.float64)
    empty, exact = _results(lambda i, m: dense_reference(i, m, scale=scale), (double, mods))
    positive = replace(double, v=double.v.detach().abs().requires_grad_())
    _, unsigned = _results(
        lambda i, m: dense_reference(i, m, scale=scale), (positive, mods), signs=False
    )
    sizes = [max(_top(x), _top(y)) for x, y in zip(exact, unsigned, strict=True)]
    _, eager = _results(
        lambda i, m: dense_reference(i, m, scale=scale, dtype=low), trial.build(low)
    )
    found_empty, found = _results(attend, trial.build(trial.dtype))
    times = 3 if trial.dtype is torch.float64 else 2
    relative = times * _worst_relative_error(eager, exact, sizes)
    relative *= torch.finfo(trial.dtype).eps / torch.finfo(low).eps
    relative += _top(exact[1]) * torch.finfo(torch.promote_types(trial.dtype, torch.float32)).eps
    names = ["out", "lse", "grad q", "grad k", "grad v"] + ["grad sink"] * trial.sink
    names += [f"grad capture {i}" for i in range(len(exact) - len(names))]
    return [
        Deviation("rows with lse = -inf", float((empty != found_empty).sum()), 0.0),
        *(
            Deviation(
                name,
                _error(f, x),
                (relative + _sum_rounding(trial, name) + torch.finfo(f.dtype).eps) * size,
            )
            for name, f, x, size in zip(names, found, exact, sizes, strict=True)
        ),
    ]


def excess(trial: Trial, attend: Attend = attend) -> list[Deviation]:
    """Return the deviations that `compare` finds beyond their budgets; none is right."""
    return [d for d in compare(trial, attend) if not d.holds()]


def agrees(found: torch.Tensor, exact: torch.Tensor, eager: torch.Tensor, *, terms: int) -> bool:
    """Return whether one finite result is as near to the exact one as its dtype lets it be.

    The budget is that of `compare` where no trial builds the inputs: twice the error of eager torch
    in the same dtype, and of the largest element one rounding and sqrt(terms) more.

    Args:
        found: the result.
        exact: the same in fp64.
        eager: the same by plain torch in the dtype that `found` was computed in.
        terms: how many terms the longest sum behind the result has.
    """
    found, exact, eager = (t.detach() for t in (found, exact, eager))
    eps = torch.finfo(found.dtype).eps
    budget = 2 * _error(eager, exact) + (1 + math.sqrt(terms)) * eps * _top(exact)
    return _error(found, exact) <= budget


def _sum_rounding(trial: Trial, name: str) -> float:
    """Return the rounding to expect of the longest sum behind a result."""
    s = trial.sizes
    longest = max(s.dim, s.value_dim, s.kv_len, s.q_len * (s.heads // s.kv_heads))
    if name.startswith("grad capture"):  # may be summed over all scores
        longest = s.batch * s.heads * s.q_len * s.kv_len
    score_dtype = torch.promote_types(trial.dtype, torch.float32)
    return math.sqrt(longest) * torch.finfo(score_dtype).eps


def _results(
    attend: Attend, built: tuple[Inputs, Mods], *, signs: bool = True
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Return which rows are empty, and out, lse and the gradients of a fixed random loss."""
    inputs, mods = built
    out, lse = attend(inputs, mods)
    g = torch.Generator().manual_seed(1)
    weights = [torch.randn(t.shape, generator=g, dtype=torch.float64) for t in (out, lse)]
    if not signs:
        weights = [w.abs() for w in weights]
        # makes up for delta, which backward subtracts: dS = P * (dP - delta + dlse)
        weights[1] += (weights[0] * out.detach()).sum(-1)
    lse_or_zero = finite_rows(lse)
    loss = (out.double() * weights[0]).sum() + (lse_or_zero.double() * weights[1]).sum()
    grads = torch.autograd.grad(
        loss, inputs.leaves() + mods.learned, allow_unused=True, materialize_grads=True
    )
    return lse.detach() == -math.inf, [out.detach(), lse_or_zero.detach(), *grads]
