"""The case table and the dense reference that every tier of tests, and the benchmarks, share.

`CASES` names attention variants as users write them.  `dense_reference` computes one in fp64 by
calling the user's own functions on index tensors and building the whole score matrix: it shares
nothing with tracing, analysis or kernels, so it can find fault with all of them.  `compare` holds
an implementation against it, within a budget taken from eager torch's own error.

Not for production use: everything here is quadratic in memory.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import torch

import flexfa4
from flexfa4.variants import Alibi, Document, PrefixLM, SlidingWindow, Softcap, alibi, causal


@dataclass(frozen=True)
class Sizes:
    """Sizes of a case.

    Attributes:
        batch, heads, kv_heads, q_len, kv_len: as in `flexfa4.attention`.
        dim, value_dim: head dimensions of query and key, and of value.
        kv_batch: batch of key and value, None for `batch`.
    """

    batch: int = 2
    heads: int = 4
    kv_heads: int = 2
    q_len: int = 67
    kv_len: int = 83
    dim: int = 16
    value_dim: int = 16
    kv_batch: int | None = None


@dataclass(frozen=True)
class Mods:
    """The mods of a case, made for given sizes.

    Attributes:
        score_mod, mask: what the user passes (None: absent).
        learned: captured tensors that require gradients, in the order in which tests compare them.
        eager_score_mod, eager_mask: the same on index tensors, where the user's form cannot be
            called eagerly (text, or symbols such as ``flexfa4.num_heads``).
    """

    score_mod: Any = None
    mask: Any = None
    learned: tuple[torch.Tensor, ...] = ()
    eager_score_mod: Callable[..., Any] | None = None
    eager_mask: Callable[..., Any] | None = None


@dataclass(frozen=True)
class Draw:
    """Where a case takes its captured tensors from: the same values in any dtype."""

    generator: torch.Generator
    dtype: torch.dtype = torch.float32

    def learned(self, *shape: int) -> torch.Tensor:
        """Return a normally distributed tensor that requires gradients."""
        return torch.randn(shape, generator=self.generator).to(self.dtype).requires_grad_()

    def fixed(self, *shape: int) -> torch.Tensor:
        """Return a uniformly distributed tensor."""
        return torch.rand(shape, generator=self.generator).to(self.dtype)

    def integers(self, low: int, high: int, *shape: int) -> torch.Tensor:
        """Return integers, `high` excluded."""
        return torch.randint(low, high, shape, generator=self.generator)


Factory = Callable[[Sizes, Draw], Mods]


@dataclass(frozen=True)
class Case:
    """One row of the case table.

    Attributes:
        name: identifies it in test ids and tables.
        make: builds the mods for given sizes.
    """

    name: str
    make: Factory


def _learned_slopes(s: Sizes, d: Draw) -> Mods:
    slopes = d.learned(s.heads)

    def score_mod(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return score - slopes[h].abs() * (q_idx - kv_idx).abs()

    return Mods(score_mod, learned=(slopes,))


def _relative_bias(s: Sizes, d: Draw) -> Mods:
    table = d.learned(s.heads, s.q_len + s.kv_len)
    offset = s.kv_len

    def score_mod(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return score + table[h, q_idx - kv_idx + offset]

    return Mods(score_mod, causal, (table,))


def _pair_bias(s: Sizes, d: Draw) -> Mods:
    bias = d.learned(s.batch, s.heads, s.q_len, s.kv_len)
    return Mods(lambda score, b, h, q_idx, kv_idx: score + bias[b, h, q_idx, kv_idx], None, (bias,))


def _shared_bias(s: Sizes, d: Draw) -> Mods:
    bias = d.learned(max(s.q_len, s.kv_len))
    return Mods(
        lambda score, b, h, q_idx, kv_idx: score + bias[q_idx] + bias[kv_idx], None, (bias,)
    )


def _learned_temperature(s: Sizes, d: Draw) -> Mods:
    t = d.learned()
    return Mods(lambda score, b, h, q_idx, kv_idx: score * t + t, causal, (t,))


def _head_gate(s: Sizes, d: Draw) -> Mods:
    gate = d.learned(s.batch, s.heads, s.q_len)

    def score_mod(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return torch.where(q_idx == kv_idx, score, score * torch.sigmoid(gate[b, h, q_idx]))

    return Mods(score_mod, None, (gate,))


def _rotary_part(s: Sizes, d: Draw) -> Mods:
    q_rope = d.learned(s.batch, s.heads, s.q_len, 4)
    k_rope = d.learned(s.batch, s.kv_heads, s.kv_len, 4)
    group = s.heads // s.kv_heads

    def score_mod(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return score + 0.5 * (q_rope[b, h, q_idx] * k_rope[b, h // group, kv_idx]).sum(-1)

    return Mods(score_mod, causal, (q_rope, k_rope))


def _document(s: Sizes, d: Draw) -> Mods:
    ids = d.integers(0, 4, s.batch, max(s.q_len, s.kv_len))
    return Mods(None, Document(ids) & causal)


def _sorted_documents(s: Sizes, d: Draw) -> Mods:
    length = max(s.q_len, s.kv_len)
    ids = d.integers(0, 4, length).sort().values
    return Mods(Alibi(s.heads), Document(ids) & SlidingWindow(32))


def _window_by_head(s: Sizes, d: Draw) -> Mods:
    window = d.integers(1, 40, s.heads)
    return Mods(None, lambda b, h, q_idx, kv_idx: (q_idx - kv_idx).abs() < window[h])


def _bottom_right(s: Sizes, d: Draw) -> Mods:
    return Mods(
        None,
        lambda b, h, q_idx, kv_idx: kv_idx - q_idx <= flexfa4.kv_len - flexfa4.q_len,
        eager_mask=lambda b, h, q_idx, kv_idx: kv_idx - q_idx <= s.kv_len - s.q_len,
    )


def _default_alibi(s: Sizes, d: Draw) -> Mods:
    return Mods(alibi, causal, eager_score_mod=Alibi(s.heads))


def _text(s: Sizes, d: Draw) -> Mods:
    slope = d.fixed(s.heads)
    return Mods(
        flexfa4.parse("score + slope[h] * (kv - q)", slope=slope),
        "q >= kv and q - kv <= 24",
        eager_score_mod=lambda score, b, h, q, kv: score + slope[h] * (kv - q),
        eager_mask=lambda b, h, q, kv: (q >= kv) & (q - kv <= 24),
    )


def _score_free(s: Sizes, d: Draw) -> Mods:
    bias = d.learned(s.heads, s.kv_len)
    return Mods(lambda score, b, h, q_idx, kv_idx: bias[h, kv_idx], causal, (bias,))


def _masked_by_score(s: Sizes, d: Draw) -> Mods:
    def score_mod(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return torch.where((q_idx + kv_idx) % 3 == 0, -math.inf, score)

    return Mods(score_mod)


def _nothing_visible(s: Sizes, d: Draw) -> Mods:
    return Mods(None, lambda b, h, q_idx, kv_idx: (q_idx >= 40) & (q_idx >= kv_idx))


CASES: Final[tuple[Case, ...]] = (
    Case("dense", lambda s, d: Mods()),
    Case("causal", lambda s, d: Mods(None, causal)),
    Case("sliding_window", lambda s, d: Mods(None, SlidingWindow(17))),
    Case("prefix_lm", lambda s, d: Mods(None, PrefixLM(23))),
    Case("document", _document),
    Case("alibi", lambda s, d: Mods(Alibi(s.heads), causal)),
    Case("softcap", lambda s, d: Mods(Softcap(2.0), causal)),
    Case("default_alibi", _default_alibi),
    Case("packed_alibi_window", _sorted_documents),
    Case("learned_slopes", _learned_slopes),
    Case("relative_bias", _relative_bias),
    Case("pair_bias", _pair_bias),
    Case("shared_bias", _shared_bias),
    Case("learned_temperature", _learned_temperature),
    Case("head_gate", _head_gate),
    Case("rotary_part", _rotary_part),
    Case("window_by_head", _window_by_head),
    Case("bottom_right_causal", _bottom_right),
    Case("text", _text),
    Case("score_free", _score_free),
    Case("masked_by_score", _masked_by_score),
    Case("rows_without_keys", _nothing_visible),
)


# ---- inputs and reference ------------------------------------------------------------------------


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
    s: Sizes, g: torch.Generator, *, dtype: torch.dtype = torch.float32, sink: bool = False
) -> Inputs:
    """Draw normally distributed inputs that require gradients."""

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
    score_mod = mods.eager_score_mod or mods.score_mod
    mask = mods.eager_mask or mods.mask
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
    sizes: Sizes = Sizes()
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
