"""Values of a text's names: a list of numbers is a tensor."""

from __future__ import annotations

import pytest
import torch

import flexfa4
from flexfa4.errors import BindingTypeError
from flexfa4.frontend.text.bindings import of_lists


def test_a_list_of_numbers_is_a_tensor_and_other_values_stay_themselves() -> None:
    made = of_lists({"a": [1.0, 2.5], "b": [[1, 2], [3, 4]], "c": 3, "d": torch.ones(1)})
    assert torch.equal(made["a"], torch.tensor([1.0, 2.5]))  # type: ignore[arg-type]
    assert torch.equal(made["b"], torch.tensor([[1, 2], [3, 4]]))  # type: ignore[arg-type]
    assert made["c"] == 3 and isinstance(made["d"], torch.Tensor)


def test_a_text_with_a_list_computes_what_it_does_with_the_tensor() -> None:
    q, text = torch.randn(1, 2, 8, 4), "score + slope[h] * (kv - q)"
    from_list, from_tensor = (
        flexfa4.attention(q, q, q, score_mod=flexfa4.parse(text, slope=slope))
        for slope in ([0.5, 2.0], torch.tensor([0.5, 2.0]))
    )
    assert torch.equal(from_list, from_tensor)


@pytest.mark.parametrize("values", [["a"], [[1], [1, 2]], [None], [1 << 80]], ids=str)
def test_a_list_of_anything_else_is_refused(values: list[object]) -> None:
    with pytest.raises(BindingTypeError, match="`s` is a list that is no tensor"):
        flexfa4.parse("score + s[h]", s=values)
