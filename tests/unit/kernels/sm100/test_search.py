"""The search for tilings: what fits, what is best, and that the table says so."""

from __future__ import annotations

from pathlib import Path

import pytest
import sm100_search

from flexfa4.kernels.emit.cost import Instructions
from flexfa4.kernels.sm100.forward.storage import SHARED_MEMORY, plan_storage
from flexfa4.kernels.sm100.forward.tmem import plan_tensor_memory
from flexfa4.kernels.sm100.model import Mod, Tile
from flexfa4.kernels.sm100.search import (
    ALIKE,
    CLASSES,
    SPLITS,
    best,
    candidates,
    class_of,
    feasible,
    ranked,
)
from flexfa4.kernels.sm100.tilings import TABLE


@pytest.mark.parametrize("head_dims", [*sm100_search.HEAD_DIMS, (16, 16), (256, 192), (80, 48)])
def test_what_is_feasible_fits_both_memories(head_dims: tuple[int, int]) -> None:
    found = list(feasible(head_dims))
    assert found
    for tiling in found:
        storage = plan_storage(tiling.keys, head_dims, tiling.stages)
        assert storage.bytes <= SHARED_MEMORY
        assert plan_tensor_memory(tiling.keys, head_dims[1]).fits


def test_nothing_is_feasible_for_256() -> None:
    assert not list(feasible((256, 256)))


def test_registers_are_split_without_rest() -> None:
    for split in SPLITS:
        assert 2 * split.softmax + split.correction + split.others <= 512
        assert not any(n % 8 for n in (split.softmax, split.correction, split.others))


@pytest.mark.parametrize(
    ("mod", "name"),
    [
        (Mod(), "plain"), (Mod(Instructions(fma=1)), "arithmetic"),
        (Mod(Instructions(fma=2, mufu=1)), "a function"),
        (Mod(Instructions(mufu=2)), "several functions"),
        (Mod(Instructions(alu=5, load=2), 2), "integers"),
    ],
)  # fmt: skip
def test_mods_fall_into_classes_by_what_they_cost(mod: Mod, name: str) -> None:
    assert class_of(mod).name == name


def test_every_class_has_its_own_usual_mod() -> None:
    assert [class_of(known.mod) for known in CLASSES] == list(CLASSES)


def test_the_best_is_as_good_as_all_others_and_emulates_no_more_than_that_takes() -> None:
    name, dims, known = "sm_100a", (128, 128), CLASSES[0]
    found = best(name, dims, known.name).tiling
    costs = {
        (tiling, tau): Tile(name, tiling, dims, known.mod, tau).cost()
        for tiling, tau in candidates(dims, known.mod)
        if tiling.blocks == 1
    }
    least = min(costs.values())
    assert costs[found, 8.0] <= ALIKE * least
    fewer = [c for (t, _), c in costs.items() if t.emulated.value < found.emulated.value]
    assert fewer and min(fewer) > ALIKE * least


def test_functions_of_a_mod_move_exponentials_to_arithmetic() -> None:
    shares = {
        known.name: best("sm_100a", (128, 128), known.name).tiling.emulated.value
        for known in CLASSES
    }
    assert shares["a function"] > shares["plain"] > shares["integers"] == 0


@pytest.mark.parametrize("head_dims", sm100_search.HEAD_DIMS)
def test_nothing_is_emulated_where_exponentials_are_twice_as_many(
    head_dims: tuple[int, int],
) -> None:
    for known in CLASSES:
        assert best("sm_103a", head_dims, known.name).tiling.emulated.value == 0


def test_a_threshold_of_rescaling_is_never_worse_than_none() -> None:
    assert {row.tau for row in TABLE} == {8.0}


def test_all_candidates_are_ranked() -> None:
    costs = [cost for cost, _, _ in ranked("sm_100a", (64, 64), Mod())]
    assert costs == sorted(costs) and len(costs) == len(list(candidates((64, 64), Mod())))


def test_the_table_is_what_the_script_writes() -> None:
    assert tuple(sm100_search.rows()) == TABLE
    text = sm100_search.source(sm100_search.rows())
    written: dict[str, object] = {}
    exec(compile(text, "tilings", "exec"), written)
    assert written["TABLE"] == TABLE
    assert text.startswith(Path(sm100_search.TABLE).read_text().split("TABLE", 1)[0])
