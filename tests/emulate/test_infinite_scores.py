"""Scores and sinks that are infinite, NaN, or so large that they are infinite in base 2.

On the CPU and in the kernels for Hopper and Blackwell, which all say the same.
"""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

import pytest
import torch

pytest.importorskip("cutlass")

import flexfa4
from flexfa4.kernels.request import Inputs
from tests.emulated_executor import CAPABILITIES, emulated_gpu
from tests.forward_calls import drawn, near
from tests.forward_trials import poisoned_memory

BACKENDS: Final = ("cpu", *CAPABILITIES)
LOWEST: Final = torch.finfo(torch.float32).min
BEYOND: Final = 3e38  # finite, but not times log2(e)
Q_LEN, KV_LEN, FILLED = 70, 200, 40


class Result(NamedTuple):
    """What a row is: each of its outputs, and its lse."""

    out: float
    lse: float


NOTHING: Final = Result(0.0, -math.inf)
INFINITE: Final = Result(math.nan, math.inf)
UNDEFINED: Final = Result(math.nan, math.nan)

# a score, and what it makes of a row that has no other
WHOLE_ROWS: Final = {
    -math.inf: NOTHING,
    LOWEST: NOTHING,
    -BEYOND: NOTHING,
    BEYOND: INFINITE,
    math.inf: INFINITE,
    math.nan: UNDEFINED,
}
# a score, and what it makes of a row that has others; None: nothing, it is as if hidden
ONE_OF_MANY: Final = {**WHOLE_ROWS, -math.inf: None, LOWEST: None, -BEYOND: None}
# a score and a sink, and what they make of a row that has no other score
WITH_SINKS: Final = {
    (-math.inf, 0.5): Result(0.0, 0.5),
    (LOWEST, 0.5): Result(0.0, 0.5),
    (LOWEST, LOWEST): NOTHING,
    (1.0, math.inf): Result(0.0, math.inf),
    (math.inf, 0.5): INFINITE,
    (math.inf, math.inf): INFINITE,
    (1.0, math.nan): UNDEFINED,
}

every_backend = pytest.mark.parametrize("backend", BACKENDS)


def attended(backend: str, inputs: Inputs, mod: Any) -> tuple[torch.Tensor, torch.Tensor]:
    capability = CAPABILITIES.get(backend, (9, 0))
    with emulated_gpu(capability=capability), poisoned_memory():
        return flexfa4.attention(
            *inputs[:3], score_mod=mod, sink=inputs.sink, return_lse=True, backend=backend
        )


def is_all(found: torch.Tensor, expected: float) -> bool:
    return bool((found.isnan() if math.isnan(expected) else found == expected).all())


def shows(out: torch.Tensor, lse: torch.Tensor, expected: Result) -> bool:
    return is_all(out, expected.out) and is_all(lse, expected.lse)


@every_backend
def test_a_row_of_nothing_else(backend: str) -> None:
    fills = torch.tensor(list(WHOLE_ROWS))
    inputs = drawn(1, len(fills), Q_LEN, 64, kv_len=KV_LEN)
    out, lse = attended(
        backend, inputs, lambda s, b, h, q, kv: torch.where(q < FILLED, fills[h], s)
    )
    for head, expected in enumerate(WHOLE_ROWS.values()):
        assert shows(out[0, head, :FILLED], lse[0, head, :FILLED], expected)
    others = inputs._replace(q=inputs.q[:, :, FILLED:])
    assert near(out[:, :, FILLED:], others)


@every_backend
def test_one_score_of_many(backend: str) -> None:
    fills, row, key = torch.tensor(list(ONE_OF_MANY)), 3, 150
    inputs = drawn(1, len(fills), Q_LEN, 64, kv_len=KV_LEN)
    out, lse = attended(
        backend, inputs, lambda s, b, h, q, kv: torch.where((q == row) & (kv == key), fills[h], s)
    )
    for head, expected in enumerate(ONE_OF_MANY.values()):
        if expected is not None:
            assert shows(out[0, head, row], lse[0, head, row], expected)
            out[0, head, row] = 0.0
    assert out.isfinite().all()
    hidden = torch.tensor([expected is None for expected in ONE_OF_MANY.values()])
    some = Inputs(*(x[:, hidden] for x in inputs[:3]), sink=None)
    assert near(out[:, hidden], some, mask=lambda b, h, q, kv: (q != row) | (kv != key))


@every_backend
def test_rows_with_sinks(backend: str) -> None:
    fills, sinks = map(torch.tensor, zip(*WITH_SINKS, strict=True))
    inputs = drawn(1, len(fills), Q_LEN, 64, kv_len=KV_LEN)._replace(sink=sinks)
    out, lse = attended(backend, inputs, lambda s, b, h, q, kv: fills[h])
    for head, expected in enumerate(WITH_SINKS.values()):
        assert shows(out[0, head].abs(), lse[0, head], expected)


@every_backend
def test_rows_that_a_sink_takes_or_that_see_nothing_have_no_gradients(backend: str) -> None:
    sinks, fills = torch.tensor([math.inf, 0.5]), torch.tensor([0.5, LOWEST])
    inputs = drawn(1, 2, Q_LEN, 64, kv_len=KV_LEN)._replace(sink=sinks)
    leaves = [x.detach().requires_grad_() for x in (*inputs[:3], sinks)]

    def mod(s: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        return torch.where(q < FILLED, fills[h], s)

    out, _ = attended(backend, Inputs(*leaves), mod)
    with emulated_gpu(capability=CAPABILITIES.get(backend, (9, 0))), poisoned_memory():
        found = torch.autograd.grad(out.float().square().sum(), leaves)
    dq, dk, dv, dsink = found
    assert all(x.isfinite().all() for x in found)
    assert not any(x[:, 0].any() for x in (dq, dk, dv)) and dsink[0] == 0
    assert not dq[:, 1, :FILLED].any() and dq[:, 1, FILLED:].any() and dsink[1] != 0
