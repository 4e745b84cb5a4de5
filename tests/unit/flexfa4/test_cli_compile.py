"""``flexfa4 compile``: arguments, what is printed, and exit codes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flexfa4 import ahead_of_time
from flexfa4.cli import main
from flexfa4.cli.compile import head_dims
from flexfa4.kernels.forward.plan import VariantPlan
from tests.compiled_kernels import compiled_kernel


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[VariantPlan]:
    """The plans that were compiled, by something that does not."""
    found: list[VariantPlan] = []

    def compile_plan(_: Any, plan: VariantPlan, name: str) -> Any:
        found.append(plan)
        return compiled_kernel(signature=plan.signature)

    monkeypatch.setattr(ahead_of_time, "compile_plan", compile_plan)
    return found


def test_a_kernel_is_written_and_described(
    tmp_path: Path, plans: list[VariantPlan], capsys: pytest.CaptureFixture[str]
) -> None:
    tensors = ["--head-dim", "192,128", "--heads", "8", "--kv-heads", "2", "--dtype", "fp16"]
    more = ["--lse", "--sink", "--q-len", "300", "--scale", "0.5", "--out", str(tmp_path)]
    assert main(["compile", "alibi", "--mask", "causal", *tensors, *more]) == 0
    (plan,) = plans
    assert (plan.head_dims, plan.element, plan.group) == ((192, 128), "f16", 4)
    assert plan.lse and plan.sink and plan.walk.source == "closed"
    (file,) = (tmp_path / "kernels").glob("*.kernel")
    printed = "".join(capsys.readouterr().out.split())
    assert str(file) in printed and "queriesby" in printed


def test_a_mask_alone_is_compiled_too(tmp_path: Path, plans: list[VariantPlan]) -> None:
    assert main(["compile", "sliding_window", "--set", "window=7", "--out", str(tmp_path)]) == 0
    assert plans[0].walk.interval is not None and plans[0].score.graph is None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["causal", "--mask", "causal"], "the score mod first"),
        (["alibi", "--head-dim", "72"], "multiples of 16"),
        (["alibi", "--arch", "sm_80"], "sm_90a"),
        (["nothing_like_it"], "flexfa4"),
    ],
)
def test_mistakes_are_messages(
    arguments: list[str],
    said: str,
    plans: list[VariantPlan],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["compile", *arguments]) == 2
    assert said in capsys.readouterr().err
    assert not plans


def test_head_dimensions_are_one_number_or_two() -> None:
    assert head_dims("64") == (64, 64) and head_dims("192,128") == (192, 128)
    for wrong in ("", "1,2,3", "x"):
        with pytest.raises(ValueError, match=r".*"):
            head_dims(wrong)
