"""Calls that are alike have one form, and those that differ in what decides have others."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flexfa4.frontend.sizes import Sizes
from flexfa4.kernels import forms
from flexfa4.kernels.forms import Form, form_of
from flexfa4.kernels.request import Choices, Inputs

BASE = torch.zeros(2, 4, 32, 64)


def form(q: Any = BASE, k: Any = BASE, v: Any = BASE, sink: Any = None, **chosen: Any) -> Form:
    return form_of(Inputs(q, k, v, sink), Choices(**chosen))


def test_a_form_knows_the_sizes_and_the_scale_of_its_calls() -> None:
    found = form(k=BASE[:, :2, :16], v=BASE[:, :2, :16])
    assert found.sizes == Sizes(2, 4, 2, 32, 16)
    assert found.scale == 0.125 and not found.checked


def test_calls_of_other_tensors_that_are_alike_have_the_same_form() -> None:
    assert form() is form(BASE.clone(), BASE + 1, BASE.clone(), backend="auto", tau=8)
    sink = torch.zeros(4)
    assert form(sink=sink) is form(sink=sink + 1)


@pytest.mark.parametrize("name", ["q", "k", "v"])
@pytest.mark.parametrize(
    "other",
    [
        BASE[:, :, 1:],
        BASE.transpose(1, 2).contiguous().transpose(1, 2),
        BASE.double(),
        BASE.to("meta"),
        torch.zeros(BASE.numel() + 1)[1:].view(BASE.shape),
    ],
    ids=["shape", "strides", "dtype", "device", "alignment"],
)
def test_another_layout_is_another_form(name: str, other: torch.Tensor) -> None:
    assert form(**{name: other}) is not form()


@pytest.mark.parametrize(
    "chosen",
    [{"backend": "cpu"}, {"tau": 0.0}, {"deterministic": True}, {"emulated": 0.5}],
    ids=str,
)
def test_another_choice_is_another_form(chosen: dict[str, Any]) -> None:
    assert form(**chosen) is not form()


def test_a_sink_is_part_of_the_form() -> None:
    found = {form(), form(sink=torch.zeros(4)), form(sink=torch.zeros(4, dtype=torch.float64))}
    assert len(found) == 3


@pytest.mark.parametrize("wrong", [None, BASE.to_sparse(), BASE[0]], ids=["none", "sparse", "axes"])
def test_what_has_no_layout_of_four_axes_has_no_form(wrong: Any) -> None:
    with pytest.raises((AttributeError, RuntimeError, ValueError)):
        form(k=wrong)


def test_forms_are_not_kept_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forms, "_FORMS", {})
    monkeypatch.setattr(forms, "_MOST", 8)
    for length in range(1, 30):
        form(BASE[:, :, :length])
    assert len(forms._FORMS) <= 8
