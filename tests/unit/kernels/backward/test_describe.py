"""What is said of a backward pass: what serves it, and what becomes of captured tensors."""

from __future__ import annotations

from typing import Any

import torch

from flexfa4.frontend.tracing.trace import resolve
from flexfa4.kernels.backward.describe import gradients_in_words
from flexfa4.kernels.sm90.backward.architecture import HOPPER_BACKWARD
from flexfa4.kernels.sm90.backward.tilings import BACKWARD

SLOPE, PAIRS, TABLE, IDS = torch.rand(4), torch.rand(9, 9), torch.rand(40), torch.arange(9)
ROWS = torch.rand(4, 5)


def words(mod: Any, head_dims: tuple[int, int] = (128, 128)) -> list[str]:
    return gradients_in_words(HOPPER_BACKWARD, head_dims, resolve(mod, "score").graph).splitlines()


def test_head_dims_have_kernels_or_are_left_to_torch() -> None:
    for head_dims, tiling in BACKWARD.items():
        found = gradients_in_words(HOPPER_BACKWARD, head_dims, None)
        assert found.startswith("three kernels")
        assert ("or two where queries meet few" in found) == tiling.finishes
    assert "CPU backend's torch code" in gradients_in_words(HOPPER_BACKWARD, (80, 80), None)


def test_derivatives_are_told_by_what_they_cost() -> None:
    assert words(lambda s, b, h, q, kv: s + q)[0].endswith("derivative of the mod: 1")
    assert words(lambda s, b, h, q, kv: s * SLOPE[h])[0].endswith("a number of each query, at most")
    assert words(lambda s, b, h, q, kv: 9 * torch.tanh(s / 9))[0].endswith("for each score")


def test_it_is_told_how_parts_of_dq_go_on() -> None:
    plain, softcap = (lambda s, b, h, q, kv: s), (lambda s, b, h, q, kv: 9 * torch.tanh(s / 9))
    assert (
        "dQ through shared memory, a tile later, and where they are few the last one finishes it;"
        in words(plain)[0]
    )
    assert "dQ through shared memory;" in words(softcap)[0]
    assert "dQ straight from registers;" in words(plain, (256, 256))[0]


def test_each_captured_tensor_of_floats_has_a_line() -> None:
    def mod(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        near = TABLE[(q - kv).abs()] + TABLE[kv] + (ROWS[h] * q).sum(-1)
        return score + SLOPE[h] * PAIRS[q, kv] + near + IDS[q]

    lines = {line.split(":")[0]: line for line in words(mod)[1:]}
    assert set(lines) == {"of SLOPE", "of PAIRS", "of TABLE", "of ROWS"}
    assert "in the kernel for each key" in lines["of SLOPE"]
    assert "for each distance from key to query, key" in lines["of TABLE"]
    assert "for each element" in lines["of PAIRS"]
    assert "slower" in lines["of ROWS"]
