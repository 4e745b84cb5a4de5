"""What the command line names becomes the mod that is meant, or an error saying how to name it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flexfa4.cli.named_mods import Request, setting
from flexfa4.errors import ArgumentError
from flexfa4.variant_index import entries
from flexfa4.variants import Axial, FoldedBatch, PrefixTree, SlidingWindow, Softcap, causal


def resolve(text: str, *settings: str) -> Any:
    return Request(text, dict(map(setting, settings)), "explain").resolve().mod


def test_a_variant_is_named_by_its_instance_or_its_class() -> None:
    assert resolve("causal") is causal
    assert resolve("Softcap") == Softcap()


def test_settings_are_the_parameters_of_a_variant() -> None:
    assert resolve("sliding_window", "window=64") == SlidingWindow(64)
    assert resolve("softcap", "cap=2.5") == Softcap(2.5)
    assert resolve("axial", "canvas=(4, 6)", "axis=0") == Axial((4, 6), 0)
    assert resolve("axial", "canvas=4,6") == Axial((4, 6))


def test_a_list_becomes_a_tensor_where_the_parameter_takes_one() -> None:
    mask = resolve("document", "ids=[0, 0, 3]")
    assert torch.equal(mask.ids, torch.tensor([0, 0, 3]))
    tree = resolve("prefix_tree", "offsets=[0, 4, 6]", "parents=[-1, 0]")
    assert isinstance(tree, PrefixTree) and tree.parents == [-1, 0]


def test_a_mask_inside_a_variant_may_be_given_as_text() -> None:
    mask = resolve("folded_batch", "length=8", "inner=q >= kv")
    assert mask == FoldedBatch(8, "q >= kv")
    assert resolve("folded_batch", "length=8", "inner=causal") == FoldedBatch(8, causal)


def test_a_list_becomes_a_tensor_in_a_text_too() -> None:
    mod = resolve("score + slope[h]", "slope=[0.5, 0.25]")
    (slope,) = mod.bind().tensors
    assert slope.tolist() == [0.5, 0.25]


USABLE = [entry.name for entry in entries().values() if entry.missing() is None]
LACKING = [name for name in entries() if name not in USABLE]


@pytest.mark.parametrize("name", LACKING)
def test_a_variant_without_its_data_is_its_example_where_nothing_is_set(name: str) -> None:
    named = Request(name, {}, "explain").resolve()
    assert named.example is not None and named.example.name == name
    assert entries()[name].missing(named.mod) is None and named.example.example in named.note()


def test_a_variant_that_still_lacks_data_says_what_is_missing_and_how_to_give_it() -> None:
    with pytest.raises(ArgumentError) as raised:
        resolve("global_window", "window=3")
    assert raised.value.fields["name"] == "GlobalWindow.is_global"
    assert "explain my_mods:mod" in raised.value.fields["rewrite"]


def test_most_variants_need_no_data() -> None:
    assert set(USABLE) >= {"causal", "alibi", "softcap", "neighborhood", "sink_window"}


WRONG = {
    "a parameter that does not exist": ("sliding_window", "widow=3", "--set window=3"),
    "a parameter where there are none": ("causal", "window=3", "leave --set out"),
    "a value that is nothing": ("sliding_window", "window=many", "--set 'window="),
    "a value that the variant refuses": ("sliding_window", "window=0", "such as 1"),
    "lists of unequal lengths": ("document", "ids=[[1], [1, 2]]", "--set 'ids="),
    "a list with a text in it": ("document", "ids=[1, 'a']", "--set 'ids="),
    "a tuple for a tensor": ("document", "ids=0,0,1,1", "--set 'ids=[0, 0, 1, 1]'"),
    "ints for floats": ("head_scale", "factor=[1, 2]", "--set 'factor=[1.0, 2.0]'"),
    "floats for ints": ("document", "ids=[1.0, 2.0]", "--set 'ids=[1, 2]'"),
    "a tuple in a text": ("score + s", "s=(1, 2)", "--set s=0.5"),
    "a variant inside that there is not": ("folded_batch", "inner=causl", "--set inner=causal"),
    "an int beyond 64 bits": ("sliding_window", f"window={10**23}", "a smaller number"),
    "a setting for a function": ("math:sin", "x=1", "leave --set out"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_setting_is_refused_with_what_to_write(name: str) -> None:
    text, wrong, advice = WRONG[name]
    with pytest.raises(ArgumentError) as raised:
        resolve(text, wrong)
    assert advice in raised.value.fields["rewrite"]


@pytest.mark.parametrize("text", ["window", "=3", "window=", "2=3"])
def test_a_setting_needs_a_name_and_a_value(text: str) -> None:
    with pytest.raises(ArgumentError, match="--set"):
        setting(text)


def test_a_setting_is_never_evaluated() -> None:
    with pytest.raises(ArgumentError, match="__import__"):
        resolve("sliding_window", "window=__import__('os').getpid()")
