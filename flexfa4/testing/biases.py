"""Cases of the score mods: one row or more for each variant."""

from __future__ import annotations

from typing import Any, Final

import torch

from flexfa4.testing.case import Case, Draw, Mods, Sizes
from flexfa4.variants import (
    ActivationScore,
    Alibi2D,
    AsymmetricAlibi,
    Deberta,
    Fire,
    ForgettingGate,
    GraphormerEdge,
    GraphormerSpatial,
    HeadScale,
    KerpleLog,
    KerplePower,
    MlaRope,
    PairBias,
    RelativeBias,
    Sandwich,
    ShawRelative,
    SwinBias,
    SymmetricAlibi,
    T5Bias,
    causal,
)


def _length(s: Sizes) -> int:
    return max(s.q_len, s.kv_len)


def _t5(s: Sizes, d: Draw) -> Mods:
    table = d.learned(16, s.heads)
    return Mods(T5Bias(table, max_distance=40), None, (table,))


def _t5_causal(s: Sizes, d: Draw) -> Mods:
    table = d.learned(7, s.heads)
    return Mods(T5Bias(table, bidirectional=False, max_distance=50), causal, (table,))


def _asymmetric_alibi(s: Sizes, d: Draw) -> Mods:
    earlier, later = d.learned(s.heads), d.learned(s.heads)
    return Mods(AsymmetricAlibi(earlier, later), None, (earlier, later))


def _kerple_log(s: Sizes, d: Draw) -> Mods:
    r1, r2 = d.learned(s.heads), d.learned(s.heads)
    return Mods(KerpleLog(r1, r2), causal, (r1, r2))


def _kerple_power(s: Sizes, d: Draw) -> Mods:
    r1, r2 = d.learned(s.heads), d.learned(s.heads)
    return Mods(KerplePower(r1, r2), causal, (r1, r2))


def _fire(s: Sizes, d: Draw) -> Mods:
    weights = d.learned(8, 1), d.learned(8), d.learned(s.heads, 8), d.learned(s.heads)
    # large: to a query above it the first key's share is 1, whatever c is, so that with one key
    # alone c would have no gradient but rounding errors
    threshold = (d.learned().detach() + 40).requires_grad_()
    c = d.learned()
    return Mods(Fire(*weights, c, threshold), causal, (*weights, c, threshold))


def _forgetting_gate(s: Sizes, d: Draw) -> Mods:
    log_gates = -d.learned(s.batch, s.heads, _length(s)).detach().abs()
    log_gates.requires_grad_()
    return Mods(ForgettingGate(log_gates), causal, (log_gates,))


def _graphormer_spatial(s: Sizes, d: Draw) -> Mods:
    table = d.learned(6, s.heads)
    distances = d.integers(0, 6, s.batch, _length(s), _length(s))
    return Mods(GraphormerSpatial(table, distances), None, (table,))


def _graphormer_edge(s: Sizes, d: Draw) -> Mods:
    table = d.learned(3, 5, s.heads)
    length = _length(s)
    edges = d.integers(0, 5, s.batch, length, length, 3)
    lengths = d.integers(0, 4, s.batch, length, length)
    return Mods(GraphormerEdge(table, edges, lengths), None, (table,))


def _mla_rope(s: Sizes, d: Draw) -> Mods:
    return _rotary(s, d, 1, causal)


def _mla_rope_by_group(s: Sizes, d: Draw) -> Mods:
    return _rotary(s, d, s.kv_heads, None)


def _rotary(s: Sizes, d: Draw, key_heads: int, mask: Any) -> Mods:
    q_rope = d.learned(s.batch, s.heads, s.q_len, 6)
    k_rope = d.learned(s.batch, key_heads, s.kv_len, 6)
    group = s.heads // key_heads

    def eager(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return score + 0.25 * (q_rope[b, h, q_idx] * k_rope[b, h // group, kv_idx]).sum(-1)

    mod = MlaRope(q_rope, k_rope, scale=0.25)
    return Mods(mod, mask, (q_rope, k_rope), eager_score_mod=eager)


def _swin(s: Sizes, d: Draw) -> Mods:
    table = d.learned(5 * 7, s.heads)
    return Mods(SwinBias(table, window=(3, 4)), None, (table,))


def _pair(s: Sizes, d: Draw) -> Mods:
    bias = d.learned(1, s.heads, s.q_len, s.kv_len)
    return Mods(PairBias(bias), None, (bias,))


def _head_scale(s: Sizes, d: Draw) -> Mods:
    factor = d.learned(s.heads)
    return Mods(HeadScale(factor), causal, (factor,))


def _relative_bias(s: Sizes, d: Draw) -> Mods:
    table = d.learned(2 * 9 + 1, s.heads)
    return Mods(RelativeBias(table), None, (table,))


def _shaw(s: Sizes, d: Draw) -> Mods:
    query, table = d.learned(s.batch, s.heads, s.q_len, s.dim), d.learned(2 * 9 + 1, s.dim)
    return Mods(ShawRelative(query, table), None, (query, table))


def _deberta(s: Sizes, d: Draw) -> Mods:
    query = d.learned(s.batch, s.heads, s.q_len, s.dim)
    key = d.learned(s.batch, s.heads, s.kv_len, s.dim)
    q_pos, k_pos = d.learned(s.heads, 12, s.dim), d.learned(s.heads, 12, s.dim)
    return Mods(Deberta(query, key, q_pos, k_pos), None, (query, key, q_pos, k_pos))


def _activation(s: Sizes, d: Draw) -> Mods:
    bias = d.learned(s.heads)

    def score_mod(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return ActivationScore(torch.nn.functional.gelu)(score + bias[h], b, h, q_idx, kv_idx)

    return Mods(score_mod, causal, (bias,))


CASES: Final[tuple[Case, ...]] = (
    Case("t5_bias", _t5),
    Case("t5_bias_causal", _t5_causal),
    Case("kerple_log", _kerple_log),
    Case("kerple_power", _kerple_power),
    Case("fire", _fire),
    Case("sandwich", lambda s, d: Mods(Sandwich(s.heads, dimensions=12))),
    Case("symmetric_alibi", lambda s, d: Mods(SymmetricAlibi(s.heads))),
    Case("asymmetric_alibi", _asymmetric_alibi),
    Case("alibi_2d", lambda s, d: Mods(Alibi2D(9, s.heads))),
    Case("forgetting_gate", _forgetting_gate),
    Case("graphormer_spatial", _graphormer_spatial),
    Case("graphormer_edge", _graphormer_edge),
    Case("mla_rope", _mla_rope),
    Case("mla_rope_by_group", _mla_rope_by_group),
    Case("activation_score", _activation),
    Case("swin_bias", _swin),
    Case("pair_bias_of_all_batches", _pair),
    Case("head_scale", _head_scale),
    Case("clipped_relative_bias", _relative_bias),
    Case("shaw_relative", _shaw),
    Case("deberta", _deberta),
)
