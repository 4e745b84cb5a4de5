"""Random mods, sizes, strides and dtypes against the dense fp64 reference, and `gradcheck`.

A drawn mod is Python source: the same function runs eagerly on index tensors for the reference, and
is traced by FlexFA4.  The source is what a failing example prints.

What is left out on purpose: functions that jump where the score passes a threshold, since rounding
decides there, and values that overflow fp16 in the eager computation that sets the budget.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

import flexfa4
from flexfa4.testing import Case, Draw, Inputs, Mods, Sizes, Trial, excess, finite_rows
from tests.grammars import Text, grammar

# ---- sources of mods -----------------------------------------------------------------------------

# Captured values by name; each takes what it needs of the sizes.
LEARNED: Final[dict[str, Callable[[Sizes], tuple[int, ...]]]] = {
    "gain": lambda s: (),
    "slope": lambda s: (s.heads,),
    "bias": lambda s: (max(s.q_len, s.kv_len),),
    "table": lambda s: (s.heads, s.q_len + s.kv_len),
    "pair": lambda s: (s.batch, s.heads, s.q_len, s.kv_len),
    "code_q": lambda s: (s.batch, s.q_len, 3),
    "code_k": lambda s: (s.kv_len, 3),
}
FLOAT_LOADS: Final = (
    "gain",
    "slope[h]",
    "bias[q_idx]",
    "bias[kv_idx]",
    "table[h, q_idx - kv_idx + width]",
    "table[h, q_idx - kv_idx]",  # negative indices wrap
    "pair[b, h, q_idx, kv_idx]",
    "(code_q[b, q_idx] * code_k[kv_idx]).sum(-1)",
    "code_k[kv_idx, 1]",
)
INT_LEAVES: Final = (
    "b", "h", "q_idx", "kv_idx", "(q_idx - kv_idx)", "(kv_idx + count)",
    "document[q_idx]", "document[kv_idx]", "order[document[kv_idx]]",
)  # fmt: skip


def binary(operators: tuple[str, ...], *operands: Text) -> Text:
    return st.builds(lambda op, x, y: f"({x} {op} {y})", st.sampled_from(operators), *operands)


@grammar
def ints(depth: int) -> Text:
    leaf = st.sampled_from(INT_LEAVES)
    if not depth:
        return leaf
    below = ints(depth - 1)
    return st.one_of(
        leaf,
        binary(("+", "-"), below, below),
        binary(("//", "%"), below, st.sampled_from(("2", "3", "5", "count"))),
        st.builds("({}).abs()".format, below),
        st.builds("torch.maximum({}, {})".format, below, below),
        st.builds("torch.where({}, {}, {})".format, conditions(depth - 1), below, below),
    )


@grammar
def conditions(depth: int) -> Text:
    leaf = st.one_of(
        binary(("<", "<=", ">", ">=", "==", "!="), ints(min(depth, 1)), ints(0)),
        st.builds("({} {} {})".format, ints(min(depth, 1)), st.sampled_from(("<", ">=")),
                  st.sampled_from(("1", "count", "17"))),
        st.sampled_from(("visible[kv_idx]", "(document[q_idx] == document[kv_idx])",
                         "(q_idx >= kv_idx)")),
    )  # fmt: skip
    if not depth:
        return leaf
    below = conditions(depth - 1)
    return st.one_of(leaf, binary(("&", "|", "^"), below, below), st.builds("(~{})".format, below))


@grammar
def floats(depth: int) -> Text:
    leaf = st.one_of(
        st.sampled_from(FLOAT_LOADS),
        st.builds("(0.01 * {})".format, ints(1)),
        st.builds("torch.sin({} * factor)".format, ints(1)),
    )
    if not depth:
        return leaf
    below = floats(depth - 1)
    return st.one_of(
        leaf,
        binary(("+", "-", "*"), below, below),
        st.builds("torch.where({}, {}, {})".format, conditions(0), below, below),
        st.builds("torch.{}({})".format, st.sampled_from(("tanh", "sigmoid", "cos")), below),
        st.builds("(-{})".format, below),
    )


@grammar
def scores(depth: int) -> Text:
    if not depth:
        return st.just("score")
    below, other = scores(depth - 1), floats(min(depth - 1, 1))
    return st.one_of(
        st.just("score"),
        binary(("+", "-"), below, other),
        binary(("+", "-"), other, below),
        binary(("*",), below, other),
        binary(("+", "-"), below, below),
        st.builds("({} / {})".format, below, st.sampled_from(("1.5", "factor"))),
        st.builds("torch.{}({})".format, st.sampled_from(("tanh", "sigmoid", "erf")), below),
        st.builds("torch.where({}, {}, {})".format, conditions(1), below, below),
        st.builds("torch.maximum({}, {})".format, below, other),
        st.builds("({}).abs()".format, below),
        other,
    )


score_texts = st.one_of(
    scores(3),
    st.builds("torch.where({}, {}, -math.inf)".format, conditions(1), scores(2)),
)
mask_texts = conditions(2)


# ---- cases ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Source:
    """Sources of a score mod and a mask; None: absent."""

    score: str | None
    mask: str | None

    def make(self, s: Sizes, d: Draw) -> Mods:
        """Return the functions, with captures of their own."""
        length = max(s.q_len, s.kv_len)
        learned = {name: d.learned(*shape(s)) for name, shape in LEARNED.items()}
        captured: dict[str, Any] = {
            "document": d.integers(0, 4, length),
            "order": d.integers(0, 4, 4),
            "visible": d.integers(0, 3, length) > 0,
            "count": 3,
            "factor": 0.7,
            "width": s.kv_len,
        }
        space = {"torch": torch, "math": math, **captured, **learned}
        text = f"{self.score} {self.mask}"
        used = tuple(t for name, t in learned.items() if name in text)
        return Mods(
            None
            if self.score is None
            else _function("score, b, h, q_idx, kv_idx", self.score, space),
            None if self.mask is None else _function("b, h, q_idx, kv_idx", self.mask, space),
            used,
        )


def _function(parameters: str, result: str, space: dict[str, Any]) -> Callable[..., Any]:
    exec(f"def mod({parameters}):\n    return {result}", space)
    function: Callable[..., Any] = space.pop("mod")
    return function


@dataclass(frozen=True)
class Layout:
    """How the tensors of a call lie in memory, and how its mask is given.

    Attributes:
        strides: a name of `STRIDES` for each of query, key and value.
        block_size: of the block mask; None: the mask is given as a function.
    """

    strides: tuple[str, str, str] = ("contiguous",) * 3
    block_size: int | tuple[int, int] | None = None

    def attend(self, scale: float | None) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
        """Return attention of inputs laid out like this."""

        def run(inputs: Inputs, mods: Mods) -> tuple[torch.Tensor, torch.Tensor]:
            q, k, v = (
                STRIDES[name](x)
                for name, x in zip(self.strides, (inputs.q, inputs.k, inputs.v), strict=True)
            )
            mask = mods.mask
            if mask is not None and self.block_size is not None:
                mask = flexfa4.create_block_mask(
                    mask,
                    batch=q.shape[0],
                    heads=q.shape[1],
                    q_len=q.shape[2],
                    kv_len=k.shape[2],
                    block_size=self.block_size,
                )
            out, lse = flexfa4.attention(
                q, k, v, score_mod=mods.score_mod, block_mask=mask, scale=scale,
                sink=inputs.sink, return_lse=True,
            )  # fmt: skip
            return out, lse

        return run


# Each keeps the values of a (B, H, S, D) tensor and changes how they lie in memory.
STRIDES: Final[dict[str, Callable[[torch.Tensor], torch.Tensor]]] = {
    "contiguous": lambda x: x,
    "(B, S, H, D)": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "reversed axes": lambda x: x.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0),
    "odd offset": lambda x: torch.nn.functional.pad(x, (1, 2, 3, 1))[..., 3:-1, 1:-2],
    "every second": lambda x: x.repeat_interleave(2, -1)[..., ::2],
    "part of a packed tensor": lambda x: (
        torch.cat((x + 1, x, x + 1), dim=1).transpose(1, 2).contiguous().transpose(1, 2)
    )[:, x.shape[1] : 2 * x.shape[1]],
    "two batches seen as one": lambda x: torch.stack((x, x))[1],
}

EXAMPLES: Final = settings().max_examples  # of the profile that is loaded
LENGTHS: Final = (0, 1, 2, 15, 16, 17, 33, 64, 100, 127, 128, 129, 130)


@st.composite
def sizes(draw: st.DrawFn, longest: int = 130) -> Sizes:
    group = draw(st.sampled_from((1, 2, 3, 6, 7)))
    kv_heads = draw(st.sampled_from((1, 2)))
    lengths = st.sampled_from([n for n in LENGTHS if n <= (longest if group < 6 else 33)])
    return Sizes(
        batch=draw(st.sampled_from((1, 2, 2, 3, 0))),
        heads=group * kv_heads,
        kv_heads=kv_heads,
        q_len=draw(lengths),
        kv_len=draw(lengths),
        dim=draw(st.sampled_from((1, 3, 8, 16))),
        value_dim=draw(st.sampled_from((1, 5, 8))),
        kv_batch=draw(st.sampled_from((None, 1))),
    )


sources = st.builds(Source, st.none() | score_texts, st.none() | mask_texts)
layouts = st.builds(
    Layout,
    st.tuples(*[st.sampled_from(list(STRIDES))] * 3),
    st.sampled_from((None, 16, 32, 128, (16, 64), (48, 16))),
)
scales = st.sampled_from((None, 1.0, 0.0, -0.5, 0.3))


@st.composite
def trials(draw: st.DrawFn) -> Trial:
    return Trial(
        Case("drawn", draw(sources).make),
        draw(sizes()),
        draw(st.sampled_from((torch.float32, torch.float64, torch.bfloat16, torch.float16))),
        sink=draw(st.booleans()),
        seed=draw(st.integers(0, 1000)),
        scale=draw(scales),
    )


@settings(max_examples=EXAMPLES * 20)
@given(trials(), layouts)
def test_random_mods_agree_with_the_dense_reference(trial: Trial, layout: Layout) -> None:
    assert not excess(trial, layout.attend(trial.scale))


def gradcheck_function(
    source: Source, s: Sizes, sink: bool
) -> tuple[Callable[..., Any], tuple[torch.Tensor, ...]]:
    """Return (out, lse) as a function of every tensor that may be learned, and those tensors."""
    inputs, mods = Trial(Case("drawn", source.make), s, torch.float64, sink).build(torch.float64)
    names = [n for n in LEARNED if n in f"{source.score} {source.mask}"]
    spaces = [f.__globals__ for f in (mods.score_mod, mods.mask) if f is not None]

    def run(*tensors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        count = len(inputs.leaves())
        q, k, v, *rest = tensors[:count]
        for space in spaces:
            space.update(zip(names, tensors[count:], strict=True))
        out, lse = flexfa4.attention(
            q, k, v, score_mod=mods.score_mod, block_mask=mods.mask,
            sink=rest[0] if rest else None, return_lse=True,
        )  # fmt: skip
        return out, finite_rows(lse)

    return run, inputs.leaves() + mods.learned


TINY: Final = Sizes(batch=1, heads=2, kv_heads=1, q_len=4, kv_len=5, dim=2, value_dim=3)


@settings(max_examples=EXAMPLES // 2)
@given(sources, st.booleans())
@example(Source("score * gain + table[h, q_idx - kv_idx] + gain", "q_idx >= kv_idx"), True)
@example(Source("bias[q_idx] * bias[kv_idx] + pair[b, h, q_idx, kv_idx] * score.abs()", None), True)
@example(Source("score + torch.tanh(score * (code_q[b, q_idx] * code_k[kv_idx]).sum(-1))",
                "(q_idx > 0) & (kv_idx < q_idx)"), False)  # fmt: skip
def test_gradients_of_random_mods_pass_gradcheck(source: Source, sink: bool) -> None:
    run, tensors = gradcheck_function(source, TINY, sink)
    assert torch.autograd.gradcheck(run, tensors, fast_mode=True)


def test_gradcheck_notices_a_wrong_gradient_of_a_capture() -> None:
    run, tensors = gradcheck_function(Source("score + bias[kv_idx]", None), TINY, False)

    def detached(*given: torch.Tensor) -> Any:
        return run(*given[:3], given[3] * 0.5 + given[3].detach() * 0.5)

    assert not torch.autograd.gradcheck(detached, tensors, fast_mode=True, raise_exception=False)
