"""What is said of a plan for Hopper."""

from __future__ import annotations

from flexfa4.ahead_of_time import Call, plan_of
from flexfa4.api import Options
from flexfa4.kernels.architectures import named


def told(options: Options | None = None) -> dict[str, str]:
    plan = plan_of(None, "q >= kv", Call(128, options=options), "sm_90a")
    return dict(named("sm_90a").describe(plan, "sm_90a"))


def test_emulated_exponentials_are_told_where_there_are_some() -> None:
    assert "exponentials" not in told()
    rows = told(Options(emulated_exponentials=0.25))
    assert rows["exponentials"] == "emulated: 25.0% by polynomials of degree 3"
    assert "special functions 768" in rows["model"]
