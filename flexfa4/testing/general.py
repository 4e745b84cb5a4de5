"""Cases of mods as users write them: the rows that belong to no variant of their own."""

from __future__ import annotations

import math
from typing import Any, Final

import torch

import flexfa4
from flexfa4.testing.case import Case, Draw, Mods, Sizes
from flexfa4.variants import Alibi, Document, PrefixLM, SlidingWindow, Softcap, alibi, causal


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
