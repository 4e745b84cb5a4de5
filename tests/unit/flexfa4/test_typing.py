"""The types of arguments that are mods."""

from __future__ import annotations

import typing

import flexfa4
from flexfa4 import typing as types


def test_the_hints_of_public_functions_can_be_read_at_run_time() -> None:
    assert typing.get_type_hints(flexfa4.create_block_mask)["mask"] == types.MaskLike
    assert typing.get_type_hints(flexfa4.mask)["function"] == types.MaskLike
    assert typing.get_type_hints(flexfa4.compose)["score_mods"] == types.ScoreLike
    explained = typing.get_args(typing.get_type_hints(flexfa4.explain)["mod"])
    assert {flexfa4.BlockMask, flexfa4.Mod, str} < set(explained)


def test_the_forms_are_a_function_a_mod_and_a_text() -> None:
    assert set(typing.get_args(types.MaskLike)) == {types.MaskFunction, flexfa4.Mod, str}
    assert set(typing.get_args(types.ScoreLike)) == {types.ScoreFunction, flexfa4.Mod, str}


def test_operators_of_masks_say_which_operands_they_take() -> None:
    from flexfa4.frontend.tracing import combining, forms

    hints = typing.get_type_hints(combining.Combinable.__and__, vars(combining) | vars(forms))
    assert hints["other"] == types.MaskLike
