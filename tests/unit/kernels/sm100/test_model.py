"""The performance model of Blackwell: FlashAttention-4's bounds, what mods and fractions cost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flexfa4.kernels.emit.cost import Instructions
from flexfa4.kernels.sm100 import model
from flexfa4.kernels.sm100.forward.plan import Tiling
from flexfa4.kernels.sm100.model import Mod, Tile
from flexfa4.primitives.exponentials import EmulatedFraction

B200, B300 = "sm_100a", "sm_103a"


def tile(
    emulated: int = 0,
    *,
    mod: Mod | None = None,
    head_dims: tuple[int, int] = (128, 128),
    name: str = B200,
) -> Tile:
    """Return a tile of which so many sixteenths of the exponentials are emulated."""
    tiling = Tiling(128, 3, emulated=EmulatedFraction(emulated, 16))
    return Tile(name, tiling, head_dims, mod or Mod())


def test_a_tile_asks_for_what_the_paper_says() -> None:
    """Table 1 of FlashAttention-4: 256 by 128 takes 2048, 1536 and 2048 cycles, half of it half."""
    cycles = tile().time().cycles
    assert (cycles["tensor"], cycles["shared"], cycles["mufu"]) == (2048, 1536, 2048)
    halves = [cycles[name] / 2 for name in ("tensor", "shared", "mufu")]
    assert halves == [1024, 768, 1024]


def test_two_blocks_for_a_product_read_half_of_the_keys_and_values_each() -> None:
    one, pair = tile(), replace(tile(), tiling=replace(tile().tiling, blocks=2))
    first, second = (t.time().cycles for t in (one, pair))
    assert second["l2"] == first["l2"] / 2
    assert second["shared"] == first["shared"] - 2 * 2 * 128 * 256 / 2 / 128


def test_an_exponential_that_is_emulated_moves_from_one_unit_to_others() -> None:
    plain, half = (tile(n).time().cycles for n in (0, 8))
    assert half["mufu"] == plain["mufu"] / 2
    scores = 256 * 128
    assert half["fma"] - plain["fma"] == scores / 2 * 6 / 128
    assert half["issue"] - plain["issue"] == scores / 2 * 4 / 128


@pytest.mark.parametrize("degree", [3, 4, 5])
def test_each_degree_costs_a_product_more(degree: int) -> None:
    assert model.emulation(degree) == Instructions(
        fma=3 + degree, paired=3 + degree, alu=2, mufu=-1
    )


def test_some_emulation_is_faster_on_a_b200_and_none_on_a_b300() -> None:
    for name, gains in ((B200, True), (B300, False)):
        none, some = (tile(n, name=name).time().total for n in (0, 4))
        assert (some < none) is gains


def test_head_dim_64_is_bound_by_exponentials_and_192_by_products() -> None:
    assert tile(head_dims=(64, 64)).time().bound == "special functions"
    assert tile(head_dims=(192, 128)).time().bound == "tensor cores"
    assert tile().time().bound == "tensor cores and special functions"


def test_ratios_between_head_dims_are_near_published_ones() -> None:
    """flash-attention's pull request 2605 (d64: 1243 TFLOPS, d128: 1882) and cudnn-frontend's GB200
    results of 28 September 2026 (d128: 1636, (192, 128): 1815), both without a mask at 16k."""
    published = {(64, 64): 1243 / 1882, (192, 128): 1815 / 1636}
    per_flop = {
        dims: tile(3, head_dims=dims).time().total / sum(dims) for dims in (*published, (128, 128))
    }
    for dims, ratio in published.items():
        assert per_flop[128, 128] / per_flop[dims] == pytest.approx(ratio, rel=0.1)


def test_a_mods_instructions_cost_time_and_its_reads_waiting() -> None:
    function, reading = Mod(Instructions(fma=2, mufu=1)), Mod(Instructions(load=0.25), reads=2)
    assert tile(mod=function).time().cycles["mufu"] == 2 * 2048
    assert tile(mod=reading).time().waits == 2 * model.FITTED.load
    assert tile(mod=function).cost() > tile().cost()


def test_a_mask_costs_only_where_it_is_applied() -> None:
    full, masked = tile().time(), tile().time(model.LIMITS)
    assert masked.total > full.total and masked.cycles["mufu"] == full.cycles["mufu"]


def test_rescaling_always_costs_and_a_threshold_saves_it() -> None:
    always = replace(tile(), tau=0.0)
    assert 0 < model.rescaled(0.0) < 1 and model.rescaled(8.0) == 0
    assert always.cost() > tile().cost()


def test_a_b300_finds_the_maximum_of_scores_that_nothing_changes_while_it_reads_them() -> None:
    mod = Mod(Instructions(fma=1, paired=1))
    counts = {
        (name, known, masked): tile(mod=known, name=name)
        .per_score(model.LIMITS if masked else Instructions())
        .alu
        for name in (B200, B300)
        for known in (Mod(), mod)
        for masked in (False, True)
    }
    saved = {key for key in counts if key[0] == B300 and counts[key] < counts[(B200, *key[1:])]}
    assert saved == {(B300, Mod(), False)}
