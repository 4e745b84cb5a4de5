"""Which calls of `attention_varlen` go to kernels that find the lengths, and what is checked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import flexfa4
from flexfa4 import device_lengths, varlen
from flexfa4.errors import ArgumentError, DTypesDifferError, SinkShapeError
from flexfa4.kernels.launch.target import Target, standing_in
from flexfa4.kernels.request import Inputs, Request
from flexfa4.kernels.varlen.call import Ends

LENGTHS = [5, 0, 7]


class Served:
    """Serves every call that it is asked to: with ones."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.inputs: list[Inputs] = []
        self.ends: list[Ends] = []

    def __call__(self, request: Request, mask: Any, inputs: Inputs, ends: Ends) -> Any:
        self.requests.append(request)
        self.inputs.append(inputs)
        self.ends.append(ends)
        return torch.ones_like(inputs.q), torch.ones(inputs.q.shape[:3])


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """Kernels for tensors of the CPU."""
    made = Served()
    monkeypatch.setattr(device_lengths, "attend_varlen", made)
    executor: Any = None
    with standing_in(Target(executor, (9, 0), 1)):
        yield made


def drawn(**options: Any) -> Any:
    ends = torch.tensor([0, *LENGTHS]).cumsum(0)
    return torch.randn(12, 4, 16, dtype=torch.bfloat16, **options), ends


def call(x: Any, ends: Any, **given: Any) -> Any:
    return flexfa4.attention_varlen(x, x, x, ends, **{"backend": "sm90", **given})


def test_tokens_are_handed_over_as_one_row_and_come_back_as_they_were(served: Served) -> None:
    x, ends = drawn()
    out, lse = call(x, ends, return_lse=True, scale=0.5, score_mod="score * 2")
    assert out.shape == (12, 4, 16) and lse.shape == (12, 4)
    (inputs,), (request,), (given,) = served.inputs, served.requests, served.ends
    assert inputs.q.shape == (1, 4, 12, 16) and inputs.q.data_ptr() == x.data_ptr()
    assert request.scale == 0.5 and request.score is not None and request.return_lse
    assert given.sequences == 3 and given.q is given.kv


def test_under_autocast_operands_are_cast(served: Served) -> None:
    x, ends = drawn()
    with torch.autocast("cpu", torch.bfloat16):
        call(x.float(), ends)
    assert served.inputs[0].q.dtype == torch.bfloat16


@pytest.mark.parametrize("backend", ["cpu", "auto"])
def test_backends_without_such_kernels_are_not_asked(served: Served, backend: str) -> None:
    call(*drawn(), backend=backend)
    assert not served.requests


class ElsewhereError(Exception):
    """The call went on without kernels that find the lengths."""


def test_what_torch_watches_and_learned_captures_are_left_to_others(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def attention(*tensors: Any, **options: Any) -> Any:
        raise ElsewhereError

    monkeypatch.setattr(varlen, "attention", attention)
    x, ends = drawn()
    slope = torch.ones(4, requires_grad=True)
    with pytest.raises(ElsewhereError):
        call(x, ends, score_mod=lambda s, b, h, q, kv: s * slope[h])
    with pytest.raises(flexfa4.FlexFA4Error):  # made for other lengths
        call(x, ends, block_mask=flexfa4.create_block_mask("q >= kv", q_len=4, kv_len=4))
    with pytest.raises(flexfa4.FlexFA4Error):
        torch.func.vmap(lambda ends: call(x, ends))(torch.stack([ends, ends]))
    assert not served.requests


MISTAKES: dict[str, tuple[dict[str, Any], type[Exception]]] = {
    "a flag": ({"return_lse": 1}, ArgumentError),
    "a scale": ({"scale": "wide"}, ArgumentError),
    "a sink": ({"sink": torch.zeros(3)}, SinkShapeError),
    "a mod": ({"score_mod": 3}, ArgumentError),
    "a mask": ({"block_mask": torch.ones(2, 2)}, ArgumentError),
    "options": ({"options": {}}, ArgumentError),
}


@pytest.mark.parametrize(("given", "error"), MISTAKES.values(), ids=MISTAKES)
def test_arguments_are_checked_as_everywhere(
    served: Served, given: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        call(*drawn(), **given)
    assert not served.requests


def test_tensors_and_lengths_are_checked_but_for_the_content_of_lengths(served: Served) -> None:
    x, ends = drawn()
    with pytest.raises(DTypesDifferError):
        flexfa4.attention_varlen(x, x.half(), x, ends, backend="sm90")
    with pytest.raises(ArgumentError):
        call(x, ends[None])
    with pytest.raises(ArgumentError, match="as many sequences"):
        flexfa4.attention_varlen(x, x, x, ends, torch.tensor([0, 12]), backend="sm90")
    assert not served.requests
    call(x, ends * 0 - 1)
    assert len(served.requests) == 1
