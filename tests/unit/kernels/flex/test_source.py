"""Graphs as Python: what is written for torch to trace."""

from __future__ import annotations

from typing import Any, Literal

import pytest
import torch

from flexfa4.frontend.ops import OPS
from flexfa4.frontend.sizes import Sizes
from flexfa4.frontend.tracing.trace import resolve
from flexfa4.kernels.flex.function import plain, plan_mod
from flexfa4.kernels.flex.source import ModSource, _function, mod_source


def source_of(
    mod: Any, kind: Literal["score", "mask"] = "score", learned: bool = False, length: int = 40
) -> ModSource:
    bound = plain(resolve(mod, kind))
    buffers = frozenset(bound.graph.buffers) if learned else frozenset()
    return mod_source(plan_mod(bound, Sizes(2, 4, 4, length, length), buffers))


def test_every_op_on_numbers_is_a_function_of_torch() -> None:
    for name, row in OPS.items():
        if not row.reduces and not name.startswith("to_"):
            assert callable(getattr(torch, _function(name))), name


def test_integers_are_as_wide_as_they_have_to_be() -> None:
    assert "int64" not in source_of("score + (q - kv) * 3").text
    assert "int64" in source_of("score + (q - kv) * 3", length=1 << 30).text
    assert "int64" in source_of("score + q * q * q * q").text


def test_numbers_are_arguments_each_once() -> None:
    slope, table = 0.5, torch.zeros(8)
    found = source_of(lambda s, b, h, q, kv: s * slope + slope * table[q] + table.shape[0])
    assert [dtype for _, dtype in found.numbers] == [torch.float32, torch.int32, torch.int32]
    assert "0.5" not in found.text and len(found.tensors) == 1


@pytest.mark.parametrize("size", [40, 39])
def test_only_what_is_not_proved_in_range_is_compared_with_the_size(size: int) -> None:
    table = torch.zeros(size)
    text = source_of(lambda s, b, h, q, kv: s + table[q]).text
    assert ("torch.where" in text) == (size < 40)


def test_a_learned_tensor_comes_once_for_each_read() -> None:
    table = torch.zeros(40)
    mod = lambda s, b, h, q, kv: s + table[q] * table[kv] + table[q]  # noqa: E731
    assert len(source_of(mod).tensors) == 1
    assert len(source_of(mod, learned=True).tensors) == 2


def test_infinite_constants_are_written() -> None:
    assert 'float("-inf")' in source_of("where(q < kv, -inf, score)").text


def test_results_depend_on_what_torch_wants_them_to() -> None:
    assert source_of("f32(kv)").lines[-1].startswith("return torch.where(torch.lt(q_idx, 0), score")
    assert source_of("h < 2", "mask").lines[-1].startswith("return torch.bitwise_or(")
