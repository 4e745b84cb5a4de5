"""Each score mod of the library against the paper's formula, written here on whole matrices."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import flexfa4
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
from flexfa4.variants.t5_relative_bias import bucket_by_distance

BATCH, HEADS, KV_HEADS, Q_LEN, KV_LEN, DIM = 2, 4, 2, 21, 30, 8
LENGTH = max(Q_LEN, KV_LEN)
Q, KV = torch.arange(Q_LEN)[:, None], torch.arange(KV_LEN)
DISTANCE = (Q - KV).abs().double()
SLOPES = torch.tensor([1 / 4, 1 / 16, 1 / 64, 1 / 256], dtype=torch.float64)[:, None, None]
Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@dataclasses.dataclass
class Formula:
    """A mod, the tensors that it learns, and what the paper makes of the scores (B, H, Q, KV)."""

    mod: Any
    learned: tuple[torch.Tensor, ...]
    scores: Callable[[torch.Tensor], torch.Tensor]
    mask: Any = None


def learned(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, requires_grad=True)


def by_head(t: torch.Tensor) -> torch.Tensor:
    return t.movedim(-1, -3)


def t5_bucket(relative: int, count: int, bidirectional: bool, max_distance: int) -> int:
    """The bucket of kv - q, as section 2.1 of the paper and its code say it in logarithms."""
    bucket = 0
    if bidirectional:
        count //= 2
        bucket, relative = (count if relative > 0 else 0), abs(relative)
    else:
        relative = max(-relative, 0)
    exact = count // 2
    if relative < exact:
        return bucket + relative
    share = math.log(relative / exact) / math.log(max_distance / exact)
    return bucket + min(exact + int(share * (count - exact) + 1e-9), count - 1)


def t5(bidirectional: bool) -> Formula:
    table = learned(10, HEADS)
    rows = [[t5_bucket(k - q, 10, bidirectional, 18) for k in range(KV_LEN)] for q in range(Q_LEN)]
    one_hot = F.one_hot(torch.tensor(rows), 10).double()
    mod = T5Bias(table, bidirectional=bidirectional, max_distance=18)
    return Formula(mod, (table,), lambda s: s + torch.einsum("qkn,nh->hqk", one_hot, table))


def kerple_log() -> Formula:
    r1, r2 = (learned(HEADS).detach().abs().requires_grad_() for _ in range(2))

    def scores(s: torch.Tensor) -> torch.Tensor:
        return s - by_head(r1 * (1 + DISTANCE[..., None] * r2).log())

    return Formula(KerpleLog(r1, r2), (r1, r2), scores, causal)


def kerple_power() -> Formula:
    r1, r2 = (torch.rand(HEADS, dtype=torch.float64).requires_grad_() for _ in range(2))

    def scores(s: torch.Tensor) -> torch.Tensor:
        power = torch.where(
            DISTANCE[..., None] == 0, 0.0, (DISTANCE.clamp(min=1).log()[..., None] * r2).exp()
        )
        return s - by_head(r1 * power)

    return Formula(KerplePower(r1, r2), (r1, r2), scores)


def fire() -> Formula:
    linear = torch.nn.Linear
    mlp = torch.nn.Sequential(linear(1, 6), torch.nn.ReLU(), linear(6, HEADS)).double()
    c = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    threshold = torch.tensor(-5.5, dtype=torch.float64, requires_grad=True)

    def psi(x: torch.Tensor) -> torch.Tensor:
        return (c * x + 1).log()

    def scores(s: torch.Tensor) -> torch.Tensor:
        share = psi(DISTANCE) / (psi(torch.max(threshold.abs(), Q.double())) + 1e-6)
        return s + by_head(mlp(share[..., None]))

    parameters = (*mlp.parameters(), c, threshold)
    return Formula(Fire.from_mlp(mlp, c=c, threshold=threshold), parameters, scores, causal)


def sandwich() -> Formula:
    rates = torch.tensor([10000 ** (-2 * i / 12) for i in range(6)], dtype=torch.float64)
    angles = torch.arange(LENGTH)[:, None] * rates
    embedded = torch.cat((angles.sin(), angles.cos()), -1)
    inner = embedded[:Q_LEN] @ embedded[:KV_LEN].T
    ratios = torch.arange(1, HEADS + 1)[:, None, None] * 8 / HEADS
    return Formula(Sandwich(dimensions=12), (), lambda s: s + inner / ratios)


def asymmetric_alibi() -> Formula:
    left, right = learned(HEADS), learned(HEADS)
    behind, ahead = (Q - KV).clamp(min=0), (KV - Q).clamp(min=0)
    return Formula(
        AsymmetricAlibi(left, right),
        (left, right),
        lambda s: (
            s - by_head(torch.stack((behind, ahead), -1).double() @ torch.stack((left, right)))
        ),
    )


def alibi_2d() -> Formula:
    places = torch.tensor([(i // 7, i % 7) for i in range(LENGTH)], dtype=torch.float64)
    apart = torch.cdist(places[:Q_LEN], places[:KV_LEN])
    return Formula(Alibi2D(7), (), lambda s: s - SLOPES * apart)


def forgetting_gate() -> Formula:
    logits = learned(BATCH, HEADS, LENGTH)

    def scores(s: torch.Tensor) -> torch.Tensor:
        rows = []
        for q in range(Q_LEN):
            gates = torch.sigmoid(logits[..., : q + 1])
            later = [gates[..., kv + 1 :].prod(-1) for kv in range(q + 1)]
            unseen = torch.ones(BATCH, HEADS, KV_LEN - q - 1, dtype=torch.float64)
            rows.append(torch.cat((torch.stack(later, -1), unseen), -1))
        return s + torch.stack(rows, -2).log()

    return Formula(ForgettingGate.from_logits(logits), (logits,), scores, causal)


def graphormer_spatial() -> Formula:
    table = learned(6, HEADS)
    distances = torch.randint(0, 6, (BATCH, LENGTH, LENGTH))
    one_hot = F.one_hot(distances, 6).double()[:, :Q_LEN, :KV_LEN]
    mod = GraphormerSpatial(table, distances)
    return Formula(mod, (table,), lambda s: s + torch.einsum("bqkd,dh->bhqk", one_hot, table))


def graphormer_edge() -> Formula:
    """x_e . w_n summed over the path and divided by its length, section 3.1.3 of the paper."""
    types, weights = learned(3, 5), learned(4, HEADS, 5)
    edges = torch.randint(0, 3, (BATCH, LENGTH, LENGTH, 4))
    lengths = torch.randint(0, 5, (BATCH, LENGTH, LENGTH))

    def scores(s: torch.Tensor) -> torch.Tensor:
        bias = torch.zeros_like(s)
        for n in range(4):
            features = types[edges[:, :Q_LEN, :KV_LEN, n]]
            term = torch.einsum("bqkd,hd->bhqk", features, weights[n])
            bias = bias + term * (lengths > n)[:, None, :Q_LEN, :KV_LEN]
        return s + bias / lengths.clamp(min=1)[:, None, :Q_LEN, :KV_LEN]

    table = torch.einsum("ed,khd->keh", types, weights)
    return Formula(GraphormerEdge(table, edges, lengths), (types, weights), scores)


def mla_rope(key_heads: int) -> Formula:
    q_rope, k_rope = learned(BATCH, HEADS, Q_LEN, 6), learned(BATCH, key_heads, KV_LEN, 6)

    def scores(s: torch.Tensor) -> torch.Tensor:
        return s + 0.3 * q_rope @ k_rope.repeat_interleave(HEADS // key_heads, 1).mT

    return Formula(MlaRope(q_rope, k_rope, scale=0.3), (q_rope, k_rope), scores, causal)


def activation_score() -> Formula:
    return Formula(
        ActivationScore(torch.nn.functional.silu, 2), (), lambda s: (s * s.sigmoid() + 2).log()
    )


def swin_bias() -> Formula:
    """The index table of section 3.2, for three windows of 2 x 5 in one sequence."""
    table = learned(3 * 9, HEADS)
    grid = torch.cartesian_prod(torch.arange(2), torch.arange(5))
    apart = grid[:, None] - grid[None, :] + torch.tensor([1, 4])
    rows = (apart[..., 0] * 9 + apart[..., 1]).repeat(3, 3)[:Q_LEN, :KV_LEN]
    mod = SwinBias(table, window=(2, 5))
    return Formula(mod, (table,), lambda s: s + by_head(table[rows]))


def pair_bias(*leading: int) -> Formula:
    bias = learned(*leading, Q_LEN, KV_LEN)
    return Formula(PairBias(bias), (bias,), lambda s: s + bias)


def head_scale() -> Formula:
    logs = learned(HEADS)
    largest = 1.5
    return Formula(
        HeadScale.from_log(logs, most=largest),
        (logs,),
        lambda s: s * (math.e**logs).clamp(max=largest)[:, None, None],
    )


def relative_bias() -> Formula:
    table = learned(2 * 4 + 1, HEADS)
    rows = [[max(-4, min(4, k - q)) + 4 for k in range(KV_LEN)] for q in range(Q_LEN)]
    return Formula(
        RelativeBias(table), (table,), lambda s: s + by_head(F.embedding(torch.tensor(rows), table))
    )


def shaw_relative(*heads: int) -> Formula:
    query, table = learned(BATCH, HEADS, Q_LEN, DIM), learned(*heads, 2 * 4 + 1, DIM)
    rows = torch.tensor([[max(-4, min(4, k - q)) + 4 for k in range(KV_LEN)] for q in range(Q_LEN)])

    def scores(s: torch.Tensor) -> torch.Tensor:
        vectors = table.expand(HEADS, 9, DIM)[:, rows]
        return s + torch.einsum("bhqd,hqkd->bhqk", query, vectors) / math.sqrt(DIM)

    return Formula(ShawRelative(query, table), (query, table), scores)


def deberta() -> Formula:
    query, key = learned(BATCH, HEADS, Q_LEN, DIM), learned(BATCH, HEADS, KV_LEN, DIM)
    q_pos, k_pos = learned(HEADS, 8, DIM), learned(HEADS, 8, DIM)

    def delta(i: int, j: int) -> int:  # equation 3, k = 4
        return 0 if i - j <= -4 else 7 if i - j >= 4 else i - j + 4

    forth = torch.tensor([[delta(i, j) for j in range(KV_LEN)] for i in range(Q_LEN)])
    back = torch.tensor([[delta(j, i) for j in range(KV_LEN)] for i in range(Q_LEN)])

    def scores(s: torch.Tensor) -> torch.Tensor:
        of_query = torch.einsum("bhqd,hqkd->bhqk", query, k_pos[:, forth])
        of_key = torch.einsum("bhkd,hqkd->bhqk", key, q_pos[:, back])
        return s + (of_query + of_key) / math.sqrt(3 * DIM)

    return Formula(Deberta(query, key, q_pos, k_pos), (query, key, q_pos, k_pos), scores)


FORMULAS: dict[str, Callable[[], Formula]] = {
    "t5 in both directions": lambda: t5(True),
    "t5 in one direction": lambda: t5(False),
    "kerple log": kerple_log,
    "kerple power": kerple_power,
    "fire": fire,
    "sandwich": sandwich,
    "symmetric alibi": lambda: Formula(SymmetricAlibi(), (), lambda s: s - SLOPES * DISTANCE),
    "asymmetric alibi": asymmetric_alibi,
    "2-d alibi": alibi_2d,
    "forgetting gate": forgetting_gate,
    "graphormer, spatial": graphormer_spatial,
    "graphormer, edges": graphormer_edge,
    "mla with one rotary key": lambda: mla_rope(1),
    "mla with grouped rotary keys": lambda: mla_rope(2),
    "activation": activation_score,
    "swin": swin_bias,
    "pair bias": lambda: pair_bias(BATCH, HEADS),
    "pair bias of all batches": lambda: pair_bias(1, HEADS),
    "pair bias of all heads": lambda: pair_bias(BATCH, 1),
    "pair bias without batch": lambda: pair_bias(HEADS),
    "pair bias of pairs alone": lambda: pair_bias(),
    "head scale": head_scale,
    "relative bias": relative_bias,
    "shaw": shaw_relative,
    "shaw for each head": lambda: shaw_relative(HEADS),
    "deberta": deberta,
}


def inputs() -> Inputs:
    return (
        learned(BATCH, HEADS, Q_LEN, DIM),
        learned(BATCH, KV_HEADS, KV_LEN, DIM),
        learned(BATCH, KV_HEADS, KV_LEN, DIM),
    )


def dense(formula: Formula, qkv: Inputs) -> torch.Tensor:
    q, k, v = (t if t is qkv[0] else t.repeat_interleave(HEADS // KV_HEADS, 1) for t in qkv)
    scores = formula.scores(q @ k.mT / math.sqrt(DIM))
    if formula.mask is not None:
        scores = scores.masked_fill(Q < KV, -math.inf)
    return scores.softmax(-1) @ v


def grads(out: torch.Tensor, by: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    weights = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).reshape(out.shape)
    return torch.autograd.grad((out * weights).sum(), by, retain_graph=True)


@pytest.mark.parametrize("name", FORMULAS)
def test_a_score_mod_and_its_gradients_are_what_the_paper_says(name: str) -> None:
    torch.manual_seed(0)
    formula, qkv = FORMULAS[name](), inputs()
    by = (*qkv, *formula.learned)
    out = flexfa4.attention(*qkv, score_mod=formula.mod, block_mask=formula.mask)
    right = dense(formula, qkv)
    torch.testing.assert_close(out, right, rtol=1e-11, atol=1e-11)
    for found, wanted in zip(grads(out, by), grads(right, by), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-11)
    assert all(g.any() for g in grads(right, by))


@pytest.mark.parametrize("name", FORMULAS)
def test_explain_tells_of_a_score_mod_and_of_all_that_it_reads(name: str) -> None:
    torch.manual_seed(0)
    formula = FORMULAS[name]()
    explanation = flexfa4.explain(formula.mod)
    assert str(explanation).startswith("score mod")
    if formula.learned:
        assert any("float64" in text for _, text in explanation["captures"].rows)


@pytest.mark.parametrize("name", FORMULAS)
def test_new_values_of_the_parameters_trace_nothing_anew(name: str) -> None:
    torch.manual_seed(0)
    make, qkv = FORMULAS[name], inputs()
    flexfa4.attention(*qkv, score_mod=make().mod)
    before = flexfa4.stats().traces
    flexfa4.attention(*qkv, score_mod=make().mod)
    assert flexfa4.stats().traces == before


# ---- far from the origin -------------------------------------------------------------------------


def shifted(mod: Any, q_by: int, kv_by: int) -> Any:
    return lambda score, b, h, q_idx, kv_idx: mod(score, b, h, q_idx + q_by, kv_idx + kv_by)


def logits_at(mod: Any, heads: int, q_at: int, kv_at: int, **options: Any) -> torch.Tensor:
    """The mod's value for a score of 0, by way of the log-sum-exp of the only key: (H,)."""
    zero = torch.zeros(1, heads, 1, 4, **options)
    _, lse = flexfa4.attention(
        zero, zero, zero, score_mod=shifted(mod, q_at, kv_at), return_lse=True
    )
    return lse[0, :, 0]


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(
    "distance", [0, 1, -1, 7, 8, -16, 31, 127, 128, -128, 129, 2**21, -(2**21)]
)
def test_t5_reads_the_bucket_of_near_and_far_keys(distance: int, bidirectional: bool) -> None:
    table = torch.arange(32.0)[:, None] + torch.tensor([0.0, 100.0], dtype=torch.float64)
    mod = T5Bias(table, bidirectional=bidirectional)
    bucket = t5_bucket(distance, 32, bidirectional, 128)
    found = logits_at(mod, 2, 2**22, 2**22 + distance, dtype=torch.float64)
    torch.testing.assert_close(found, torch.tensor([bucket, bucket + 100.0]).double())


@pytest.mark.parametrize(
    ("count", "max_distance"), [(16, 128), (32, 128), (32, 256), (5, 3), (2, 2)]
)
def test_t5_buckets_agree_with_the_logarithm_at_every_distance(
    count: int, max_distance: int
) -> None:
    found = bucket_by_distance(count, max_distance)
    assert found == [t5_bucket(-n, count, False, max_distance) for n in range(max_distance + 1)]
    assert found[-1] == count - 1


@pytest.mark.parametrize("mod", [KerpleLog, KerplePower])
def test_kerple_adds_nothing_at_distance_0_and_differentiates_there(mod: Any) -> None:
    r1, r2 = torch.tensor([0.5, 2.0]).requires_grad_(), torch.tensor([0.01, 1.5]).requires_grad_()
    found = logits_at(mod(r1, r2), 2, 2**22, 2**22)
    found.sum().backward()
    assert r1.grad is not None and r2.grad is not None
    for value in (found, r1.grad, r2.grad):
        assert value.tolist() == [0.0, 0.0]


def test_kerple_counts_parameters_beyond_their_range_as_its_ends() -> None:
    r1, r2 = torch.tensor([-3.0, 0.0, 1.0]), torch.tensor([1.0, -1.0, 9.0])
    log = [0.01 * math.log1p(4), 0.01 * math.log1p(0.04), math.log1p(36)]
    power = [0.01 * 4, 0.01 * 4**0.01, 4.0**2]
    for mod, size in ((KerpleLog(r1, r2), log), (KerplePower(r1, r2), power)):
        torch.testing.assert_close(logits_at(mod, 3, 9, 5), -torch.tensor(size))


def test_sandwich_holds_at_any_length_and_distance() -> None:
    for q, kv in ((0, 70_000), (5, 5), (1_000_000, 3)):
        exact = sum(math.cos((q - kv) / 10000 ** (2 * i / 128)) for i in range(64))
        found = logits_at(Sandwich(), 2, q, kv, dtype=torch.float64)
        torch.testing.assert_close(found, torch.tensor([exact / 4, exact / 8]).double())


def test_forgetting_gates_stay_exact_at_a_hundred_thousand_positions() -> None:
    torch.manual_seed(0)
    start, q_len = 100_000, 24
    logits = torch.randn(1, 2, start + q_len).requires_grad_()
    q, k, v = (torch.randn(1, 2, q_len, 16) for _ in range(3))
    gate = ForgettingGate.from_logits(logits)
    out, lse = flexfa4.attention(
        q, k, v, score_mod=shifted(gate, start, start), block_mask=causal, return_lse=True
    )
    exact_logits = logits.detach().double().requires_grad_()
    gates = F.logsigmoid(exact_logits[..., start:])  # the sum before the first query cancels
    total = gates.cumsum(-1)
    scores = q.double() @ k.double().mT / 4 + total[..., None] - total[..., None, :]
    scores = scores.masked_fill(torch.ones(q_len, q_len).triu(1) > 0, -math.inf)
    assert gate.log_gates is not None and -gate.log_gates.sum(-1).max() > 50_000
    right = scores.softmax(-1) @ v.double()
    torch.testing.assert_close(out.double(), right, rtol=0, atol=2e-6)
    torch.testing.assert_close(lse.double(), scores.logsumexp(-1), rtol=0, atol=2e-6)
    (found,), (wanted,) = grads(out, (logits,)), grads(right, (exact_logits,))
    torch.testing.assert_close(found.double(), wanted, rtol=0, atol=5e-6)
    assert wanted[..., start + 1 :].all()  # the others have none, which 5e-6 shows of found too


def test_a_sequence_shorter_than_the_gates_reads_its_own_positions() -> None:
    log_gates = -torch.arange(9.0).expand(1, 1, 9)
    found = logits_at(ForgettingGate(log_gates), 1, 7, 3)
    assert found.item() == -(4 + 5 + 6 + 7)


# ---- what else the classes offer ---------------------------------------------------------------


@pytest.mark.parametrize("mask", [None, causal])
def test_undoing_softmax_leaves_the_activation_of_the_scores_times_the_values(mask: Any) -> None:
    torch.manual_seed(0)
    q, k, v = inputs()
    mod = ActivationScore()
    out, lse = flexfa4.attention(q, k, v, score_mod=mod, block_mask=mask, return_lse=True)
    k2, v2 = (t.repeat_interleave(HEADS // KV_HEADS, 1) for t in (k, v))
    seen = torch.ones(Q_LEN, KV_LEN, dtype=torch.float64)
    seen = seen if mask is None else seen.tril()
    found = mod.undo_softmax(out, lse, seen @ v2)
    right = (F.gelu(q @ k2.mT / math.sqrt(DIM)) * seen) @ v2
    torch.testing.assert_close(found, right)
    for a, b in zip(grads(found, (q, k, v)), grads(right, (q, k, v)), strict=True):
        torch.testing.assert_close(a, b)


def test_dropout_of_weights_is_a_mask_and_two_sums() -> None:
    """The recipe of docs/variants_not_expressible.md."""
    torch.manual_seed(0)
    q, k, v = (learned(2, 2, 9, 8) for _ in range(3))
    keep = torch.rand(2, 2, 9, 9) > 0.3
    keep[0, 0, 3] = False
    out, kept = flexfa4.attention(
        q, k, v, block_mask=lambda b, h, q_idx, kv_idx: keep[b, h, q_idx, kv_idx], return_lse=True
    )
    _, whole = flexfa4.attention(q, k, v, return_lse=True)
    found = out * torch.exp(kept - whole)[..., None] / 0.7
    right = ((q @ k.mT / math.sqrt(8)).softmax(-1) * keep / 0.7) @ v
    torch.testing.assert_close(found, right)
    for a, b in zip(grads(found, (q, k, v)), grads(right, (q, k, v)), strict=True):
        torch.testing.assert_close(a, b)


def test_latent_attention_equals_attention_on_the_joined_vectors() -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 4, 9, n, dtype=torch.float64) for n in (16, 16, 12))
    q_rope = torch.randn(2, 4, 9, 8, dtype=torch.float64)
    k_rope = torch.randn(2, 1, 9, 8, dtype=torch.float64)
    mod = MlaRope(q_rope, k_rope, scale=24**-0.5)
    out = flexfa4.attention(q, k, v, score_mod=mod, scale=24**-0.5)
    joined = torch.cat((q, q_rope), -1), torch.cat((k, k_rope.expand(-1, 4, -1, -1)), -1)
    torch.testing.assert_close(out, F.scaled_dot_product_attention(*joined, v))


def test_graphs_by_their_edges_read_the_row_of_the_distance() -> None:
    chain = torch.diag(torch.ones(4), 1)[None]  # 0 -> 1 -> 2 -> 3 -> 4
    mod = GraphormerSpatial.from_adjacency(torch.arange(5.0)[:, None], chain)
    found = [logits_at(mod, 1, 0, node).item() for node in range(5)]
    assert found == [0.0, 1.0, 2.0, 3.0, 3.0]
    assert logits_at(mod, 1, 1, 0).item() == 4.0  # no way back


def test_graphs_by_their_edges_take_the_mean_of_the_first_edges_of_a_path() -> None:
    chain = torch.diag(torch.ones(3), 1)[None]
    types = torch.diag(torch.tensor([1, 0, 1]), 1)[None]
    table = torch.tensor([[[1.0], [10.0]], [[100.0], [1000.0]]])  # 2 places, 2 types
    mod = GraphormerEdge.from_adjacency(table, chain, types)
    found = [logits_at(mod, 1, 0, node).item() for node in range(4)]
    assert found == [0.0, 10.0, (10 + 100) / 2, (10 + 100) / 2]
    assert logits_at(mod, 1, 2, 3).item() == 10.0
    assert logits_at(mod, 1, 3, 0).item() == 0.0


@pytest.mark.parametrize("kind", [-1, 2])
def test_an_edge_of_a_type_that_the_table_lacks_is_out_of_range(kind: int) -> None:
    table, edges = torch.ones(2, 2, 1), torch.zeros(1, 4, 4, 2, dtype=torch.long)
    edges[0, 0, 1, 0] = kind  # of the first place: with another place's row behind it
    mod = GraphormerEdge(table, edges, torch.ones(1, 4, 4, dtype=torch.long))
    with pytest.raises(flexfa4.errors.OutOfRangeError, match=r"graphormer_bias(.|\n)*docstring"):
        logits_at(mod, 1, 0, 1)


def test_edges_beyond_the_places_of_the_table_do_not_count() -> None:
    edges, lengths = torch.zeros(1, 4, 4, 2, dtype=torch.long), torch.full((1, 4, 4), 7)
    mod = GraphormerEdge(torch.tensor([[[1.0]], [[3.0]]]), edges, lengths)
    assert logits_at(mod, 1, 0, 1).item() == 2.0


def test_rotary_vectors_for_other_heads_than_the_calls_are_out_of_range() -> None:
    mod = MlaRope(torch.ones(1, 4, 4, 2), torch.ones(1, 2, 4, 2))
    q = torch.ones(1, 2, 4, 8)
    with pytest.raises(
        flexfa4.errors.OutOfRangeError, match=r"MlaRope.q_rope has size 4 in dimension 1"
    ):
        flexfa4.attention(q, q, q, score_mod=mod)


def test_a_parameter_learns_by_an_ordinary_optimizer() -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 12, 8) for _ in range(3))
    with torch.no_grad():
        wanted = flexfa4.attention(q, k, v, score_mod=T5Bias(torch.randn(8, 2), max_distance=9))
    table = torch.nn.Parameter(torch.zeros(8, 2))
    optimizer = torch.optim.Adam([table], lr=0.1)
    losses = []
    for _ in range(40):
        out = flexfa4.attention(q, k, v, score_mod=T5Bias(table, max_distance=9))
        loss = (out - wanted).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.02 * losses[0]
