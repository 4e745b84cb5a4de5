"""Calls that are alike have one form, and those that differ in what decides have others."""

from __future__ import annotations

import warnings
import weakref
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

import flexfa4
from flexfa4.frontend.sizes import Sizes
from flexfa4.kernels import forms
from flexfa4.kernels.forms import Form, Recent, form_of, layout_of
from flexfa4.kernels.request import Choices, Inputs

BASE = torch.zeros(2, 4, 32, 64)


OTHERS = {
    "shape": BASE[:, :, 1:],
    "strides": BASE.transpose(1, 2).contiguous().transpose(1, 2),
    "dtype": BASE.double(),
    "device": BASE.to("meta"),
    "alignment": torch.zeros(BASE.numel() + 1)[1:].view(BASE.shape),
}
"""Tensors of other layouts."""


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
@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
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


# ---- forms of the last calls ---------------------------------------------------------------------

CHOICES = Choices("sm90")
Q, K, V = (BASE.clone() for _ in range(3))  # guards of torch take no tensor twice


def noted(*tensors: Any) -> tuple[Recent[Form], Form]:
    recent: Recent[Form] = Recent()
    q, k, v = tensors
    made = form_of(Inputs(q, k, v, None), CHOICES)
    made.repeated = 0
    recent.note(tensors, CHOICES, made, made)
    return recent, made


def found(recent: Recent[Form], q: Any = Q, k: Any = K, v: Any = V) -> Form | None:
    return recent.get((q, k, v), CHOICES)


def nested() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's: that they may change
        return torch.nested.nested_tensor([BASE[0, :, :5], BASE[0, :, :7]])


def test_a_form_that_was_noted_is_found_for_calls_that_are_alike() -> None:
    recent, made = noted(Q, K, V)
    assert found(recent) is made
    assert found(recent, Q.clone(), K + 1) is made
    assert recent.get((Q, K, V), Choices("cpu")) is None


@pytest.mark.parametrize("name", ["q", "k", "v"])
@pytest.mark.parametrize(
    "other",
    [
        *OTHERS.values(),
        torch.nn.Parameter(BASE.clone()),
        BASE.to_sparse(),
        BASE[0],
        torch.zeros(2, 4, 32, 64, dtype=torch.complex64).real,
        BASE.clone().as_subclass(type("Own", (torch.Tensor,), {})),
        nested(),
    ],
    ids=[
        *OTHERS,
        *("gradient", "sparse", "axes", "complex", "subclass", "nested"),
    ],
)
def test_no_other_call_is_taken_for_one_that_was_noted(name: str, other: torch.Tensor) -> None:
    recent, _ = noted(Q, K, V)
    assert found(recent, **{name: other}) is None


def under_vmap(recent: Recent[Form]) -> list[Form | None]:
    seen: list[Form | None] = []
    torch.func.vmap(lambda x: (seen.append(found(recent)), x)[1])(torch.zeros(2))
    torch.func.vmap(lambda x: (seen.append(found(recent, x)), x)[1])(torch.zeros(2, *BASE.shape))
    torch.func.grad(lambda x: (seen.append(found(recent)), x.sum())[1])(torch.zeros(2))
    return seen


def under_modes(recent: Recent[Form]) -> list[Form | None]:
    seen = []
    with FakeTensorMode():
        seen.append(found(recent))
    with torch.autocast("cpu", torch.bfloat16):
        seen.append(found(recent))
    with torch.inference_mode():
        seen.append(found(recent))
    with TorchDispatchMode():
        seen.append(found(recent))
    with forward_ad.dual_level():
        seen.append(found(recent, forward_ad.make_dual(Q, Q)))
    return seen


def under_a_trace(recent: Recent[Form]) -> list[Form | None]:
    seen: list[Form | None] = []
    example = torch.zeros(2)
    torch.jit.trace(lambda x: (seen.append(found(recent)), x + 1)[1], example, check_trace=False)
    return seen


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
@pytest.mark.parametrize("watched", [under_vmap, under_modes, under_a_trace])
def test_nothing_is_found_where_torch_watches(watched: Any) -> None:
    recent, made = noted(Q, K, V)
    seen = watched(recent)
    assert seen and not any(seen)
    assert found(recent) is made


def test_what_is_noted_holds_no_tensor() -> None:
    q = BASE.clone()
    recent, _ = noted(q, K, V)
    gone = weakref.ref(q)
    del q
    assert gone() is None and found(recent) is not None


def test_some_forms_are_kept_and_those_that_come_again_and_again_are_noted_less_often() -> None:
    recent: Recent[Form] = Recent()
    made = {length: form(BASE[:, :, :length], K, V, backend="sm90") for length in range(1, 30)}
    for _ in range(5):
        for length, each in made.items():
            tensors = (BASE[:, :, :length], K, V)
            if recent.get(tensors, CHOICES) is None:
                recent.note(tensors, CHOICES, each, each)
    assert len(recent._seen) == Recent._KEPT
    assert {each.repeated for each in made.values()} == {4, 5}  # those noted last are found
    before = recent._seen
    for repeated in (6, 7, 8):
        recent.note((BASE[:, :, :1], K, V), CHOICES, made[1], made[1])
        assert (recent._seen is before) == (repeated != 8)


def test_forms_of_addresses_that_are_not_aligned_are_not_noted() -> None:
    odd = torch.zeros(BASE.numel() + 1)[1:].view(BASE.shape)
    recent, _ = noted(odd, K, V)
    assert not recent._seen


class Renamed:
    """Guards that tell by another name whether they hold."""

    def __init__(self, *tensors: Any, **known: Any) -> None:
        pass


class Watchful(Renamed):
    """Guards that never hold."""

    def check(self, *tensors: Any) -> bool:
        """Return False."""
        return False


@pytest.mark.parametrize("guards", [None, lambda tensors: tensors, Renamed, Watchful])
def test_nothing_is_noted_by_a_torch_whose_guards_are_others(
    guards: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = torch._C._dynamo.guards
    if guards is None:
        monkeypatch.delattr(place, "TensorGuards")
    else:
        monkeypatch.setattr(place, "TensorGuards", guards)
    recent, _ = noted(Q, K, V)
    assert not recent._seen and found(recent) is None


# ---- captured tensors ----------------------------------------------------------------------------


def test_captured_tensors_that_are_alike_have_one_layout() -> None:
    def layout(bias: torch.Tensor, text: str = "score + bias[kv]") -> Any:
        return layout_of(flexfa4.parse(text, bias=bias).bind())

    bias = torch.zeros(32)
    assert layout(bias) is layout(bias + 1)
    others = [bias[1:], bias[::2], bias.double(), torch.zeros(33)[1:]]
    found = {layout(bias), layout(bias, "score * bias[kv]"), *map(layout, others)}
    assert len(found) == 2 + len(others)
