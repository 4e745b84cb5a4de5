"""`attention_varlen`: what a loop over the sequences gives, for every variant and any lengths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

import flexfa4
from flexfa4.errors import (
    ArgumentError,
    HeadsDoNotDivideError,
    OutOfRangeError,
    ShapeMismatchError,
    TransformError,
)
from flexfa4.testing import (
    CASES,
    Case,
    Inputs,
    Mods,
    Sizes,
    Trial,
    agrees,
    dense_reference,
    excess,
    finite_rows,
)
from flexfa4.variants import alibi, causal

HEADS, KV_HEADS, DIM = 4, 2, 16
RAGGED = ([5, 0, 70, 130, 1], [7, 3, 70, 0, 200])


def cumulative(lengths: Sequence[int], dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).to(dtype)


# ---- equal lengths: the whole case table ---------------------------------------------------------


def pack(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(1, 2).flatten(0, 1)


def attend_packed(inputs: Inputs, mods: Mods) -> tuple[torch.Tensor, torch.Tensor]:
    """Pack a batch into one row, and unpack what comes out."""
    batch, _, q_len, _ = inputs.q.shape
    out, lse = flexfa4.attention_varlen(
        pack(inputs.q),
        pack(inputs.k),
        pack(inputs.v),
        cumulative([q_len] * batch),
        cumulative([inputs.k.shape[2]] * batch),
        score_mod=mods.score_mod,
        block_mask=mods.mask,
        sink=inputs.sink,
        return_lse=True,
    )
    return out.unflatten(0, (batch, q_len)).transpose(1, 2), lse.unflatten(
        0, (batch, q_len)
    ).transpose(1, 2)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_batch_that_is_packed_agrees_with_the_dense_reference(case: Case) -> None:
    assert not excess(Trial(case, sink=True), attend_packed)


@pytest.mark.parametrize("case", CASES[:8], ids=lambda case: case.name)
def test_sequences_with_keys_of_the_same_lengths_agree(case: Case) -> None:
    sizes = Sizes(q_len=70, kv_len=70)
    assert not excess(Trial(case, sizes), attend_packed)


# ---- any lengths: a loop over the sequences ------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """A variant; the second form is what the reference calls, with the lengths of the sequence."""

    score_mod: Any = None
    mask: Any = None
    eager: Any = None
    eager_mask: Any = None


TABLE = torch.randn(400, HEADS, generator=torch.Generator().manual_seed(3))
SLOPES = torch.tensor([0.5, 0.25, 0.125, 0.0625])
SEEN = torch.rand(6, 200, generator=torch.Generator().manual_seed(4)) < 0.7
LENGTHS = torch.tensor([3, 9, 40, 60, 2, 5])


def bottom_right(b: Any, h: Any, q: Any, kv: Any) -> Any:
    return kv <= q + flexfa4.kv_len - flexfa4.q_len


ROWS = {
    "nothing": Row(),
    "causal": Row(mask=lambda b, h, q, kv: q >= kv),
    "window": Row(mask=lambda b, h, q, kv: (q >= kv) & (q - kv < 16)),
    "causal at the end": Row(
        mask=bottom_right, eager_mask=lambda b, h, q, kv, q_len, kv_len: kv <= q + kv_len - q_len
    ),
    "keys of a sequence": Row(mask=lambda b, h, q, kv: SEEN[b, kv]),
    "lengths of a sequence": Row(mask=lambda b, h, q, kv: kv < LENGTHS[b]),
    "chunks": Row(mask=lambda b, h, q, kv: q // 16 == kv // 16),
    "heads": Row(mask=lambda b, h, q, kv: (kv % HEADS == h) | (q == kv)),
    "slopes": Row(lambda s, b, h, q, kv: s + SLOPES[h].to(s.dtype) * (kv - q), causal),
    "table": Row(
        lambda s, b, h, q, kv: s + TABLE[(q - kv).abs(), h].to(s.dtype), lambda b, h, q, kv: q >= kv
    ),
    "scale by length": Row(
        lambda s, b, h, q, kv: s * (1 + b) / (flexfa4.kv_len + 1) + q / (flexfa4.q_len + 1),
        eager=lambda s, b, h, q, kv, q_len, kv_len: s * (1 + b) / (kv_len + 1) + q / (q_len + 1),
    ),
}


def looped(
    inputs: Inputs, lengths: tuple[Sequence[int], Sequence[int]], row: Row, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return out and lse of the dense reference of each sequence, joined."""
    outs, lses = [], []
    splits = (x.split(list(n)) for x, n in zip((inputs.q, inputs.k, inputs.v),
              (lengths[0], lengths[1], lengths[1]), strict=True))  # fmt: skip
    for number, (q, k, v) in enumerate(zip(*splits, strict=True)):
        sizes = (q.shape[0], k.shape[0])

        def score(s: Any, b: Any, h: Any, q: Any, kv: Any, n: int = number, z: Any = sizes) -> Any:
            if row.eager is not None:
                return row.eager(s, b + n, h, q, kv, *z)
            return row.score_mod(s, b + n, h, q, kv)

        def mask(b: Any, h: Any, q: Any, kv: Any, n: int = number, z: Any = sizes) -> Any:
            if row.eager_mask is not None:
                return row.eager_mask(b + n, h, q, kv, *z)
            return row.mask(b + n, h, q, kv)

        q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
        one = Inputs(q, k, v, inputs.sink)
        mods = Mods(None if row.score_mod is None else score, None if row.mask is None else mask)
        out, lse = dense_reference(one, mods, dtype=dtype)
        outs.append(out[0].transpose(0, 1))
        lses.append(lse[0].transpose(0, 1))
    return torch.cat(outs), torch.cat(lses)


def drawn(
    lengths: tuple[Sequence[int], Sequence[int]], dtype: torch.dtype = torch.float32, seed: int = 0
) -> Inputs:
    g = torch.Generator().manual_seed(seed)
    shapes = ((sum(lengths[0]), HEADS), (sum(lengths[1]), KV_HEADS), (sum(lengths[1]), KV_HEADS))
    q, k, v = (torch.randn(*s, DIM, generator=g).to(dtype).requires_grad_() for s in shapes)
    return Inputs(q, k, v, torch.randn(HEADS, generator=g).requires_grad_())


def check(
    lengths: tuple[Sequence[int], Sequence[int]], row: Row, dtype: torch.dtype = torch.float32
) -> None:
    """Compare out, lse and all gradients with the loop."""
    inputs = drawn(lengths, dtype)
    out, lse = flexfa4.attention_varlen(
        inputs.q,
        inputs.k,
        inputs.v,
        cumulative(lengths[0]),
        None if lengths[0] is lengths[1] else cumulative(lengths[1], torch.int64),
        score_mod=row.score_mod,
        block_mask=row.mask,
        sink=inputs.sink,
        return_lse=True,
    )
    results = []
    for found in ((out, lse), *(looped(inputs, lengths, row, t) for t in (torch.float64, dtype))):
        out, lse = found
        loss = (out.double() ** 2).sum() + finite_rows(lse.double()).sum()
        grads = torch.autograd.grad(loss, inputs.leaves())
        results.append([out, finite_rows(lse), *grads])
    terms = max(*lengths[0], *lengths[1], 1) * HEADS // KV_HEADS
    for name, found, exact, eager in zip(
        ("out", "lse", "grad q", "grad k", "grad v", "grad sink"), *results, strict=True
    ):
        assert agrees(found, exact.double(), eager, terms=terms), name


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
@pytest.mark.parametrize("self_attention", [True, False], ids=["one set of lengths", "two"])
def test_it_agrees_with_a_loop_over_the_sequences(row: Row, self_attention: bool) -> None:
    q_lengths, kv_lengths = RAGGED
    check((q_lengths, q_lengths if self_attention else kv_lengths), row)


@given(
    pairs=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), min_size=1, max_size=6),
    name=st.sampled_from(sorted(ROWS)),
    self_attention=st.booleans(),
)
def test_it_agrees_with_a_loop_for_any_lengths(
    pairs: list[tuple[int, int]], name: str, self_attention: bool
) -> None:
    q_lengths = [q for q, _ in pairs]
    check((q_lengths, q_lengths if self_attention else [kv for _, kv in pairs]), ROWS[name])


def test_captured_tensors_get_the_gradients_of_a_loop() -> None:
    lengths = RAGGED[0]
    g = torch.Generator().manual_seed(7)
    learned = torch.randn(len(lengths), HEADS, generator=g).requires_grad_()
    row = Row(
        lambda s, b, h, q, kv: s * learned[b, h].to(s.dtype) + learned[b, h] * ((q - kv) / 64),
        lambda b, h, q, kv: q >= kv,
    )
    inputs = drawn((lengths, lengths))
    bare = Inputs(inputs.q, inputs.k, inputs.v)
    cu = cumulative(lengths)
    packed = flexfa4.attention_varlen(
        bare.q, bare.k, bare.v, cu, score_mod=row.score_mod, block_mask=row.mask
    )
    exact, eager = (
        looped(bare, (lengths, lengths), row, t)[0] for t in (torch.float64, torch.float32)
    )
    found, expected, rounded = (
        torch.autograd.grad((out.double() ** 2).sum(), learned)[0] for out in (packed, exact, eager)
    )
    assert agrees(found, expected.double(), rounded, terms=max(lengths) ** 2 * DIM)


def test_results_lie_as_the_inputs_do_and_lse_has_the_shape_of_out_without_its_last() -> None:
    inputs = drawn((RAGGED[0], RAGGED[0]))
    cu = cumulative(RAGGED[0])
    out, lse = flexfa4.attention_varlen(inputs.q, inputs.k, inputs.v, cu, return_lse=True)
    assert out.is_contiguous() and lse.shape == out.shape[:2]
    assert torch.equal(flexfa4.attention_varlen(inputs.q, inputs.k, inputs.v, cu), out)


@pytest.mark.parametrize(
    "lengths", [([], []), ([0, 0], [0, 0]), ([0, 0], [1, 2]), ([1, 2], [0, 0])]
)
def test_nothing_to_attend_to_gives_zeros(lengths: tuple[list[int], list[int]]) -> None:
    inputs = drawn(lengths)
    out, lse = flexfa4.attention_varlen(
        inputs.q, inputs.k, inputs.v, *map(cumulative, lengths), block_mask=causal, return_lse=True
    )
    assert out.shape == inputs.q.shape and not out.any()
    assert lse.shape == (sum(lengths[0]), HEADS) and bool((lse == -torch.inf).all())


# ---- what a repeated call does not do again ------------------------------------------------------


def test_a_repeated_call_traces_analyses_and_plans_nothing() -> None:
    inputs, cu = drawn((RAGGED[0], RAGGED[0])), cumulative(RAGGED[0])

    def attend() -> torch.Tensor:
        return flexfa4.attention_varlen(
            inputs.q, inputs.k, inputs.v, cu, score_mod=alibi, block_mask=causal
        )

    first, before = attend(), flexfa4.stats()
    assert torch.equal(attend(), first)
    done = flexfa4.stats() - before
    assert done == type(done)(calls=1)


def test_new_lengths_are_seen_and_trace_nothing() -> None:
    lengths = [70, 30]
    inputs, cu = drawn((lengths, lengths)), cumulative(lengths)
    flexfa4.attention_varlen(inputs.q, inputs.k, inputs.v, cu, block_mask=causal)
    before = flexfa4.stats()
    cu[1] = 20
    out = flexfa4.attention_varlen(inputs.q, inputs.k, inputs.v, cu, block_mask=causal)
    again = flexfa4.attention_varlen(
        inputs.q, inputs.k, inputs.v, cumulative([20, 80]), block_mask=causal
    )
    assert torch.equal(out, again)
    done = flexfa4.stats() - before
    assert (done.traces, done.plans, done.closed_forms) == (0, 0, 0)


def test_changes_that_torch_does_not_count_are_seen() -> None:
    inputs, cu = drawn(([70, 30], [70, 30])), cumulative([70, 30])
    flexfa4.attention_varlen(inputs.q, inputs.k, inputs.v, cu)
    cu.numpy()[1] = 20
    out = flexfa4.attention_varlen(inputs.q, inputs.k, inputs.v, cu)
    assert torch.equal(
        out, flexfa4.attention_varlen(inputs.q, inputs.k, inputs.v, cumulative([20, 80]))
    )


# ---- other ways to call it -----------------------------------------------------------------------


def test_it_runs_in_compiled_functions_in_inference_mode_and_under_grad_transforms() -> None:
    lengths = [20, 31]
    inputs, cu = drawn((lengths, lengths), torch.float64), cumulative(lengths)
    window = 7

    def attend(q: torch.Tensor) -> torch.Tensor:
        return flexfa4.attention_varlen(
            q, inputs.k, inputs.v, cu, block_mask=lambda b, h, q, kv: (q >= kv) & (q - kv < window)
        )

    expected = attend(inputs.q)
    assert torch.equal(torch.compile(attend, backend="eager")(inputs.q), expected)
    with torch.inference_mode():
        fresh = [t.detach().clone() for t in (inputs.q, inputs.k, inputs.v, cu)]
        again = flexfa4.attention_varlen(*fresh, block_mask="q >= kv and q - kv < 7")
        assert torch.equal(again, expected)
    found = torch.func.grad(lambda q: (attend(q) ** 2).sum())(inputs.q)
    (exact,) = torch.autograd.grad((expected**2).sum(), inputs.q)
    assert agrees(found, exact, exact, terms=max(lengths))


def test_queries_can_be_mapped_and_calls_checkpointed() -> None:
    lengths = [20, 31]
    inputs, cu = drawn((lengths, lengths), torch.float64), cumulative(lengths)

    def attend(q: torch.Tensor) -> torch.Tensor:
        return flexfa4.attention_varlen(q, inputs.k, inputs.v, cu, block_mask="q >= kv").sin()

    both = torch.stack((inputs.q, inputs.q * 2))
    mapped, exact = torch.func.vmap(attend)(both), torch.stack([attend(q) for q in both])
    assert agrees(mapped, exact, exact, terms=max(lengths))
    kept = partial(create_selective_checkpoint_contexts, [torch.ops.aten.mm.default])
    cu[1] = 22  # not seen before: what the first pass reads, the second finds
    out: Any = checkpoint(attend, inputs.q, use_reentrant=False, context_fn=kept)
    found, plain = (torch.autograd.grad(x.sum(), inputs.q)[0] for x in (out, attend(inputs.q)))
    assert agrees(found, plain, plain, terms=max(lengths))


def test_it_refuses_to_be_recorded_in_a_graph_that_would_keep_the_lengths() -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    inputs, cu = drawn(([3, 4], [3, 4])), cumulative([3, 4])

    def attend(q: torch.Tensor) -> torch.Tensor:
        return flexfa4.attention_varlen(q, inputs.k, inputs.v, cu)

    attend(inputs.q)  # which keeps what it found
    with pytest.raises(TransformError):
        make_fx(attend)(inputs.q)


# ---- mistakes ------------------------------------------------------------------------------------


def bad_call(**changed: Any) -> Any:
    inputs = drawn(([3, 4], [3, 4]))
    given: dict[str, Any] = {
        "query": inputs.q,
        "key": inputs.k,
        "value": inputs.v,
        "cu_seqlens_q": cumulative([3, 4]),
        **changed,
    }
    return flexfa4.attention_varlen(**given)


def zeros(*shape: int) -> torch.Tensor:
    return torch.zeros(shape)


MISTAKES: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "four dimensions": (
        {"query": zeros(2, 4, 7, 16)},
        ArgumentError,
        "instead: query.transpose(1, 2).flatten(0, 1)",
    ),
    "a list of sequences": ({"key": [zeros(3, 2, 16)]}, ArgumentError, "instead: torch.cat"),
    "other tokens in value": ({"value": zeros(6, 2, 16)}, ShapeMismatchError, "number of tokens"),
    "heads that do not divide": ({"query": zeros(7, 3, 16)}, HeadsDoNotDivideError, "[:, :2]"),
    "no heads": ({"query": zeros(7, 0, 16)}, ShapeMismatchError, "the dimension of heads"),
    "a block mask": (
        {"block_mask": flexfa4.create_block_mask(causal, q_len=7, kv_len=7)},
        ArgumentError,
        "instead: block_mask=block_mask.mask",
    ),
    "a mask of the wrong kind": ({"block_mask": 3}, ArgumentError, "mask_mod"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_told_in_terms_of_packed_tokens(name: str) -> None:
    changed, kind, said = MISTAKES[name]
    with pytest.raises(kind) as error:
        bad_call(**changed)
    assert said in str(error.value)


def test_a_read_out_of_range_is_told_where_the_mod_reads() -> None:
    table = torch.zeros(3)
    with pytest.raises(OutOfRangeError) as error:
        bad_call(score_mod=lambda s, b, h, q, kv: s + table[kv])
    assert "table[kv]" in str(error.value) and "`table` has size 3" in str(error.value)
    with pytest.raises(OutOfRangeError) as error:
        bad_call(block_mask=lambda b, h, q, kv: table[q] > -1.0)
    assert "table[q]" in str(error.value)


def test_a_mask_reads_captured_tensors_within_each_sequence_only() -> None:
    seen = torch.tensor([True, False, True, True])  # as long as the longest sequence
    out = bad_call(block_mask=lambda b, h, q, kv: seen[kv])
    row = Row(mask=lambda b, h, q, kv: seen[kv])
    inputs = drawn(([3, 4], [3, 4]))
    bare = Inputs(inputs.q, inputs.k, inputs.v)
    exact, _ = looped(bare, ([3, 4], [3, 4]), row, torch.float64)
    eager, _ = looped(bare, ([3, 4], [3, 4]), row, torch.float32)
    assert agrees(out, exact, eager, terms=DIM)
