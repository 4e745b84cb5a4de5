"""The share of exponentials that a user wants emulated: through `flexfa4.attention`, emulated.

That any share is right on Blackwell, whose kernels emulate some by themselves, is a matter of the
tests of its forward pass.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("cutlass")

import flexfa4
from flexfa4.emulator import Run
from flexfa4.primitives.exponentials import RELATIVE_ERRORS
from flexfa4.testing import Sizes, excess, make_inputs
from tests.emulated_executor import emulated_gpu
from tests.forward_trials import Row, attend_with

HOPPER = "emulator:sm_90a"


def emulating(share: float) -> dict[str, Any]:
    return {"options": flexfa4.Options(emulated_exponentials=share)}


# ---- right ---------------------------------------------------------------------------------------


ROWS = {  # and the share that the default run takes of each
    Row("causal", (64, 64), "packed", torch.bfloat16, True): 0.25,
    Row("softcap", (128, 128), "a group of 3", torch.bfloat16, False): 1.0,
    Row("rows_without_keys", (64, 128), "one key head", torch.float16, False): 1.0,
}


@pytest.mark.parametrize(
    ("row", "share"),
    [
        pytest.param(row, share, marks=[pytest.mark.full] * (share != quick))
        for row, quick in ROWS.items()
        for share in (0.25, 1.0)
    ],
    ids=str,
)
def test_outputs_and_gradients_keep_the_budget_of_exact_exponentials(
    row: Row, share: float
) -> None:
    attend = attend_with(HOPPER, **emulating(share))
    assert not excess(row.trial(), attend)


def test_lse_is_off_by_what_the_polynomial_is() -> None:
    q, k, v = make_inputs(Sizes(1, 2, 2, 150, 170, 64, 64), dtype=torch.bfloat16).leaves()
    found = {
        share: flexfa4.attention(q, k, v, return_lse=True, backend=HOPPER, **emulating(share))[1]
        for share in (0.0, 1.0)
    }
    off = (found[1.0] - found[0.0]).abs().max().item()
    rounding = torch.finfo(torch.float32).eps * found[0.0].abs().max().item()
    assert 0 < off <= RELATIVE_ERRORS[3] + 4 * rounding


@pytest.mark.parametrize("share", [0.25, 1.0])
@pytest.mark.parametrize("backend", [HOPPER, "emulator"])
def test_nan_of_a_key_reaches_every_row_that_sees_it(backend: str, share: float) -> None:
    q, k, v = make_inputs(Sizes(1, 1, 1, 140, 140, 64, 64), dtype=torch.bfloat16).leaves()
    k = k.detach().clone()
    k[0, 0, 7, 3] = torch.nan
    out, lse = flexfa4.attention(
        q, k, v, block_mask="q >= kv", return_lse=True, backend=backend, **emulating(share)
    )
    assert torch.equal(lse.isnan()[0, 0], torch.arange(140) >= 7)
    assert torch.equal(out.isnan().all(-1)[0, 0], torch.arange(140) >= 7)
    assert out[0, 0, :7].isfinite().all()


# ---- and what is asked for -----------------------------------------------------------------------


def runs(share: float | None) -> list[Run]:
    """Return the launches of a call with its gradients."""
    inputs = make_inputs(Sizes(1, 1, 1, 128, 128, 64, 64), dtype=torch.bfloat16)
    with emulated_gpu() as executor:
        chosen = {} if share is None else emulating(share)
        out = flexfa4.attention(*inputs.leaves(), backend="sm90", **chosen)
        torch.autograd.grad(out.sum(), inputs.leaves())
    return list(executor.runs)


def exponentials(run: Run) -> int:
    return sum(n for name, n in run.executed.items() if name.startswith("ex2"))


def test_emulated_exponentials_do_not_take_the_unit() -> None:
    forward, _, main, _ = zip(*map(runs, (0.0, 0.25, 1.0)), strict=True)
    none, quarter, others = map(exponentials, forward)  # the last ones are corrections
    assert quarter - others == (none - others) * 3 / 4 > 0
    none, quarter, all_ = map(exponentials, main)
    assert all_ == 0 and quarter == none * 3 / 4


def test_hopper_emulates_none_unless_told_to() -> None:
    assert [r.executed for r in runs(None)] == [r.executed for r in runs(0.0)]
