"""The Blackwell forward kernel through `flexfa4.attention`, in the emulator.

Held against the dense reference are out, lse and all gradients, which the CPU backend computes from
them.  The emulator is strict: races, reads out of bounds and of memory that nobody wrote fail a
test whatever the numbers are.  What is common to all architectures is tried on Hopper's kernels.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import pytest
import torch

pytest.importorskip("cutlass")

import flexfa4
from flexfa4.emulator.options import SCHEDULES
from flexfa4.emulator.results import Run
from flexfa4.kernels.emit.errors import KernelLimitError
from flexfa4.kernels.request import Inputs
from flexfa4.kernels.sm100.architecture import Blackwell
from flexfa4.kernels.sm100.forward.plan import Registers, Tiling
from flexfa4.primitives.exponentials import EmulatedFraction
from flexfa4.testing import Inputs as Given
from flexfa4.testing import Mods, excess
from tests.emulated_executor import emulated_gpu
from tests.forward_calls import drawn, near
from tests.forward_trials import (
    VARIANTS,
    Row,
    all_of,
    attend_with,
    pairs_missing,
    poisoned_memory,
    sample_of,
)

# Of those that models have, and one with narrow swizzles, whose parts of K and V differ in size.
HEAD_DIMS = ((64, 64), (64, 128), (96, 96), (128, 128), (192, 128), (80, 48))
SAMPLE = sample_of(HEAD_DIMS)
BLACKWELL: dict[str, Any] = {"capability": (10, 0)}


def attend(inputs: Given, mods: Mods) -> tuple[torch.Tensor, torch.Tensor]:
    with emulated_gpu(**BLACKWELL):
        return attend_with("sm100")(inputs, mods)


@pytest.mark.parametrize("row", SAMPLE, ids=str)
def test_a_variant_agrees_with_the_dense_reference(row: Row) -> None:
    assert not excess(row.trial(), attend)


@pytest.mark.full
@pytest.mark.parametrize("row", all_of(HEAD_DIMS), ids=str)
def test_every_variant_agrees_for_all_head_dimensions_or_is_refused(row: Row) -> None:
    try:
        assert not excess(row.trial(), attend)
    except KernelLimitError as error:
        assert 'backend="cpu"' in str(error)


MORE_DIMS = [(16, 16), (48, 112), (112, 80), (240, 96), (224, 64), (16, 128), (160, 96)]


@pytest.mark.full
@pytest.mark.parametrize("dims", MORE_DIMS, ids=str)
def test_all_kinds_of_head_dimensions_are_right(dims: tuple[int, int]) -> None:
    row = Row("sliding_window", dims, "shared keys", torch.bfloat16, True)
    assert not excess(row.trial(), attend)


def test_the_sample_has_every_variant_and_every_pair_of_choices() -> None:
    assert {row.variant for row in SAMPLE} == set(VARIANTS)
    assert not pairs_missing(SAMPLE)


# ---- single calls --------------------------------------------------------------------------------


def run(inputs: Inputs, **call: Any) -> tuple[torch.Tensor, Run]:
    """Return the output of a call, and what its launch did."""
    with emulated_gpu(**BLACKWELL) as executor, poisoned_memory():
        out = flexfa4.attention(*inputs[:3], backend="sm100", **call)
    return out, executor.runs[-1]


def executed(run: Run, opcode: str) -> int:
    """Return how many instructions of an opcode were executed, with whatever modifiers."""
    return sum(n for name, n in run.executed.items() if name.startswith(opcode))


def causal(b: Any, h: Any, q: Any, kv: Any) -> Any:
    return q >= kv


@pytest.mark.parametrize("name", ["documents", "alibi of packed heads", "no tile for some items"])
def test_every_schedule_gives_the_same_bits(name: str) -> None:
    inputs = drawn(2, 4, 200, 64, kv_heads=2)
    ids = torch.tensor([0] * 70 + [1] * 90 + [2] * 40)
    slopes = torch.rand(4)
    variants: dict[str, dict[str, Any]] = {
        "documents": {"block_mask": lambda b, h, q, kv: (ids[q] == ids[kv]) & (q >= kv)},
        "alibi of packed heads": {
            "block_mask": causal, "score_mod": lambda s, b, h, q, kv: s + slopes[h] * (kv - q),
        },
        "no tile for some items": {"block_mask": lambda b, h, q, kv: (q >= 150) & (kv < 150)},
    }  # fmt: skip
    results = []
    for schedule in SCHEDULES:
        with emulated_gpu(**BLACKWELL, schedule=schedule, seed=3), poisoned_memory():
            results.append(
                flexfa4.attention(*inputs[:3], backend="sm100", return_lse=True, **variants[name])
            )
    for out, lse in results[1:]:
        assert torch.equal(out, results[0][0]) and torch.equal(lse, results[0][1])


def test_new_values_lengths_batches_and_strides_compile_nothing() -> None:
    window = 40

    def local(b: Any, h: Any, q: Any, kv: Any) -> Any:
        return (q >= kv) & (q - kv < window)

    run(drawn(1, 2, 100, 64), block_mask=local)
    before = flexfa4.stats()
    for shape in ((1, 2, 100, 64), (3, 4, 150, 64), (2, 3, 20, 64)):
        window += 30
        inputs = drawn(*shape)
        q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in inputs[:3])
        moved = Inputs(q, k, v, None)
        out, _ = run(moved, block_mask=local, scale=0.2)
        assert near(out, inputs, mask=local, scale=0.2)
        assert out.stride() == moved.q.stride()
    done = flexfa4.stats() - before
    assert (done.compiles, done.plans, done.traces) == (0, 0, 0)


@pytest.mark.parametrize("scale", [0.0, -0.3, 1e6, -1e-30])
def test_any_scale_is_served(scale: float) -> None:
    inputs = drawn(1, 1, 150, 64)
    out, _ = run(inputs, block_mask="q >= kv", scale=scale)
    assert near(out, inputs, mask=causal, scale=scale)


@pytest.mark.parametrize("name", ["packed", "heads that differ"])
def test_four_query_heads_share_a_key_head(name: str) -> None:
    masks = {"packed": causal, "heads that differ": lambda b, h, q, kv: q + 20 * h >= kv}
    slopes = torch.rand(8)

    def score_mod(s: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        return s + slopes[h] * (kv - q)

    inputs = drawn(2, 8, 70, 64, kv_len=150, kv_heads=2)
    out, _ = run(inputs, block_mask=masks[name], score_mod=score_mod)
    assert near(out, inputs, mask=masks[name], score_mod=score_mod)


FAR: Final = 1 << 20  # from here on fp32 holds eighths of a position, and no finer parts


def test_keys_at_positions_beyond_2_to_the_20_are_as_exact_as_at_the_first_ones() -> None:
    near_by = drawn(1, 2, 70, 16, kv_len=333, kv_heads=1)
    k, v = (torch.zeros(1, 1, FAR + 333, 16).bfloat16() for _ in range(2))
    k[:, :, FAR:], v[:, :, FAR:] = near_by.k, near_by.v

    def mods(first: int) -> dict[str, Any]:
        def shown(b: Any, h: Any, q: Any, kv: Any) -> Any:
            return (kv >= first + 77) & (q + first + 210 >= kv)

        def score_mod(s: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
            distance = q + first + 210 - kv
            return s - 0.01 * distance + torch.where(distance % 7 == 3, 1.0, 0.0)

        return {"mask": shown, "score_mod": score_mod}

    far = mods(FAR)
    out, done = run(
        Inputs(near_by.q, k, v, None), block_mask=far["mask"], score_mod=far["score_mod"]
    )
    assert near(out, near_by, **mods(0))
    assert executed(done, "tcgen05.mma") < 100  # of the tiles that are seen alone


@pytest.mark.full
def test_queries_at_positions_beyond_2_to_the_20_are_as_exact_as_at_the_first_ones() -> None:
    near_by = drawn(1, 1, 150, 16, kv_len=170)
    q = torch.zeros(1, 1, FAR + 150, 16).bfloat16()
    q[:, :, FAR:] = near_by.q

    def mods(first: int) -> dict[str, Any]:
        def shown(b: Any, h: Any, q: Any, kv: Any) -> Any:
            return (q >= first) & (q - first + 20 >= kv)

        def score_mod(s: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
            distance = q - first - kv
            return s - 0.01 * distance + torch.where(distance % 7 == 3, 1.0, 0.0)

        return {"mask": shown, "score_mod": score_mod}

    far = mods(FAR)
    out, _ = run(Inputs(q, *near_by[1:3], None), block_mask=far["mask"], score_mod=far["score_mod"])
    assert not out[:, :, :FAR].any()
    assert near(out[:, :, FAR:], near_by, **mods(0))


# ---- halves --------------------------------------------------------------------------------------

OF_SCORES, OF_VALUES = 64 // 16, 128 // 16  # products of a tile of 128 keys, for head dims of 64


def products(inputs: Inputs, **call: Any) -> float:
    """Return for how many tiles of scores of 128 by 128 a call issues products."""
    out, done = run(inputs, **call)
    assert not out.isnan().any()
    return executed(done, "tcgen05.mma") / (OF_SCORES + OF_VALUES)


@pytest.mark.parametrize(
    ("q_len", "mask", "tiles"),
    [
        (256, None, 4),
        (128, None, 2),  # the second half has no queries
        (130, None, 4),
        (256, "q >= kv", 3),  # the first half sees nothing of the second tile
        (256, "(q >= kv) & (q - kv < 100)", 3),
        (256, "(q < 128) & (kv < 128) | (q >= 128) & (kv >= 128)", 2),
        (256, "q < 0", 0),
    ],
)
def test_a_half_that_sees_nothing_of_a_tile_takes_no_part_in_it(
    q_len: int, mask: str | None, tiles: int
) -> None:
    assert products(drawn(1, 1, q_len, 64, kv_len=256), block_mask=mask) == tiles


# ---- rescaling and exponentials ------------------------------------------------------------------


def climbing(step: float) -> Inputs:
    """Return inputs whose scores climb by a step from each tile of 128 keys to the one before."""
    q = torch.zeros(1, 1, 256, 64, dtype=torch.bfloat16)
    k, v = torch.zeros_like(q).repeat(1, 1, 4, 1), torch.randn(1, 1, 1024, 64).bfloat16()
    q[..., 0] = 1.0
    k[..., 0] = -step * torch.arange(8).repeat_interleave(128)
    return Inputs(q, k, v, None)


def rescales(inputs: Inputs, tau: float) -> int:
    """Return how many stores of outputs a call makes to tensor memory; its output is right."""
    options = flexfa4.Options(tau=tau)
    out, done = run(inputs, scale=1.0, options=options)
    assert near(out, inputs, scale=1.0)
    return executed(done, "tcgen05.st")


def test_outputs_are_rescaled_where_the_maximum_grows_by_more_than_the_threshold() -> None:
    gentle, steep = climbing(1.0), climbing(20.0)
    counts = {
        (name, tau): rescales(inputs, tau)
        for name, inputs in (("gentle", gentle), ("steep", steep))
        for tau in (0.0, 8.0)
    }
    # 7 tiles of 8 raise the maximum: by 1.44 in base 2, which adds up to 8 once, or by 28.9
    assert counts["gentle", 8.0] < counts["gentle", 0.0]
    assert counts["steep", 8.0] == counts["steep", 0.0] == counts["gentle", 0.0]


def test_scores_that_only_fall_are_never_rescaled() -> None:
    falling = climbing(-20.0)
    few, none = (rescales(falling, tau) for tau in (0.0, 8.0))
    assert few == none < rescales(climbing(20.0), 0.0)


@pytest.mark.parametrize(
    "degree", [3, *(pytest.param(degree, marks=pytest.mark.full) for degree in (4, 5))]
)
def test_any_part_of_the_exponentials_may_be_emulated(
    degree: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = []
    for batch, numerator in enumerate((0, 1, 4), 1):
        fraction = EmulatedFraction(numerator, 4, degree)

        def tiling_of(self: Any, plan: Any, *_: Any, fraction: Any = fraction) -> Tiling:
            return replace(plan.tiling, emulated=fraction)

        monkeypatch.setattr(Blackwell, "tiling_of", tiling_of)
        inputs = drawn(batch, 1, 140 + degree, 64)  # calls of another form each
        out, done = run(inputs, block_mask="q >= kv")
        assert near(out, inputs, mask=causal)
        counts.append(executed(done, "ex2") / batch)
    corrections = counts[2]
    assert counts[1] - corrections == (counts[0] - corrections) * 3 / 4


# ---- other tilings -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["turns", "few registers for the correction"])
def test_a_tiling_chosen_by_hand_is_right(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    changes: dict[str, dict[str, Any]] = {
        "turns": {"turns": True},
        "few registers for the correction": {"registers": Registers(200, 64, 48)},
    }

    def tiling_of(self: Any, plan: Any, *_: Any) -> Tiling:
        return replace(plan.tiling, **changes[name])

    monkeypatch.setattr(Blackwell, "tiling_of", tiling_of)
    inputs = drawn(1, 1, 300 + len(name), 64)  # a call of another form each
    window = lambda b, h, q, kv: (q >= kv) & (q - kv < 150)  # noqa: E731
    out, _ = run(inputs, block_mask=window)
    assert near(out, inputs, mask=window)


@pytest.mark.parametrize("keys", [32, 64, 96])
def test_tiles_of_fewer_keys_are_right(keys: int) -> None:
    inputs = drawn(1, 2, 200, 64)
    out, _ = run(inputs, block_mask=causal, options=flexfa4.Options(tile=(256, keys)))
    assert near(out, inputs, mask=causal)


def test_the_largest_score_is_found_by_the_loads_where_hardware_can() -> None:
    inputs = drawn(1, 1, 200, 64, kv_len=300)
    with emulated_gpu(capability=(10, 3)) as executor, poisoned_memory():
        out = flexfa4.attention(*inputs[:3], backend="sm100")
        plain = executor.runs[-1]
        flexfa4.attention(*inputs[:3], score_mod="2 * tanh(score)", backend="sm100")
    assert near(out, inputs)
    full, half_tiles, warps, loads = 2, 2, 4, 4  # of 3 tiles of keys the last one is masked
    assert executed(plain, "tcgen05.ld.red") == full * half_tiles * warps * loads
    assert not executed(executor.runs[-1], "tcgen05.ld.red")


# ---- pairs of blocks -----------------------------------------------------------------------------


PAIRS: Final = flexfa4.Options(tile=(512, 128))


@pytest.mark.parametrize("dim", [64, pytest.param(128, marks=pytest.mark.full)])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_two_blocks_compute_together_with_half_of_the_keys_each(dim: int, schedule: str) -> None:
    chosen: dict[str, Any] = {**BLACKWELL, "multiprocessors": 4, "schedule": schedule, "seed": 1}
    inputs = drawn(1, 2, 512, dim, kv_len=300)
    loaded: list[Any] = []
    for group, options in enumerate((None, PAIRS), 1):
        with emulated_gpu(**chosen) as executor, poisoned_memory():
            out = flexfa4.attention(*inputs[:3], backend="sm100", options=options)
        assert near(out, inputs)
        done = executor.runs[-1]
        assert all(f"cta_group::{group}" in name for name in done.matrices)
        loaded.append(done.traffic.tensor_loaded - 2 * 2 * 512 * dim)
    of_one, of_pairs = loaded
    assert of_one == 2 * of_pairs


DIMS_OF_PAIRS = [
    (16, 32, 96), (64, 64, 32), (64, 128, 128), (80, 96, 64), (96, 96, 128), (192, 128, 128),
    (240, 96, 128),
]  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize(("dim", "dim_v", "keys"), DIMS_OF_PAIRS)
def test_pairs_serve_all_kinds_of_head_dimensions_and_keys(dim: int, dim_v: int, keys: int) -> None:
    inputs = drawn(1, 2, 300, dim, kv_len=200)
    inputs = inputs._replace(v=torch.randn(1, 2, 200, dim_v).bfloat16())
    out, done = run(inputs, options=flexfa4.Options(tile=(512, keys)))
    assert near(out, inputs)
    assert all("cta_group::2" in name for name in done.matrices)


def test_pairs_serve_mods_sinks_packed_heads_and_tails() -> None:
    slopes, sink = torch.rand(6), torch.randn(6)

    def score_mod(s: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        return s + slopes[h] * (kv - q)

    inputs = drawn(2, 6, 190, 64, kv_len=130, kv_heads=2)
    out, done = run(inputs, score_mod=score_mod, sink=sink, options=PAIRS)
    assert near(out, inputs._replace(sink=sink), score_mod=score_mod)
    assert all("cta_group::2" in name for name in done.matrices)


# ---- rows that see nothing, packed sequences -----------------------------------------------------


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_an_output_takes_the_place_of_queries_that_no_product_has_used(schedule: str) -> None:
    q, k, v = (torch.randn(2, 2, 170, dim).bfloat16() for dim in (192, 192, 128))
    call: dict[str, Any] = {"block_mask": "q < 0", "return_lse": True, "backend": "sm100"}
    with emulated_gpu(**BLACKWELL, schedule=schedule, seed=1), poisoned_memory():
        out, lse = flexfa4.attention(q, k, v, **call)
    assert not out.any() and (lse == -torch.inf).all()


@pytest.mark.parametrize("dims", [(64, 64), (192, 128)], ids=str)
def test_packed_sequences_whose_lengths_are_on_the_device_are_served(dims: tuple[int, int]) -> None:
    q_lengths, kv_lengths = [5, 0, 170, 130, 1, 9], [7, 3, 70, 0, 200, 3]
    heads, (dim, dim_v) = 4, dims
    q = torch.randn(sum(q_lengths), heads, dim).bfloat16()
    k = torch.randn(sum(kv_lengths), 2, dim).bfloat16()
    v = torch.randn(sum(kv_lengths), 2, dim_v).bfloat16()
    ends = [torch.tensor([0, *n]).cumsum(0).int() for n in (q_lengths, kv_lengths)]
    call: dict[str, Any] = {"block_mask": "q + 30 >= kv", "return_lse": True}
    with emulated_gpu(**BLACKWELL) as executor, poisoned_memory():
        out, lse = flexfa4.attention_varlen(q, k, v, *ends, backend="sm100", **call)
    assert len(executor.runs) == 2  # the table of work, and attention
    for i, (n, m) in enumerate(zip(q_lengths, kv_lengths, strict=True)):
        rows, keys = (slice(int(of[i]), int(of[i + 1])) for of in ends)
        if not m:
            assert not out[rows].any() and (lse[:, rows] == -torch.inf).all()
            continue
        own = (x.transpose(0, 1)[None] for x in (q[rows], k[keys], v[keys]))
        mask = lambda b, h, q, kv: q + 30 >= kv  # noqa: E731
        assert not n or near(out[rows].transpose(0, 1)[None], Inputs(*own, sink=None), mask=mask)
