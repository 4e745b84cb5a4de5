"""Errors point at the user's own code and say what to write instead."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from flexfa4.errors import ResultError, TracedBoolError, TracedNumberError, TraceError, Where
from flexfa4.frontend.tracing import locate
from flexfa4.frontend.tracing.trace import resolve

TABLE = [1, 2, 3]


def refusal(mod: Callable[..., Any]) -> TraceError:
    with pytest.raises((TracedBoolError, TracedNumberError)) as caught:
        resolve(mod, "mask")
    return caught.value


def pointed_at(where: Where | str | None) -> str:
    assert isinstance(where, Where)
    return where.source[where.column : where.column + where.width]


# ---- conditions ----------------------------------------------------------------------------------


def if_return(b, h, q_idx, kv_idx):
    if q_idx >= kv_idx:  # noqa: SIM103 - the mistake that the test is about
        return True
    return False


def if_else_return(b, h, q_idx, kv_idx):
    if q_idx >= kv_idx:
        return kv_idx > 3
    else:
        return kv_idx > 5


def if_assignment(b, h, q_idx, kv_idx):
    limit = 3
    if q_idx > 10 and kv_idx > 4:
        limit += 2
    return kv_idx < limit


def if_assignment_alone(b, h, q_idx, kv_idx):
    limit = 3
    if q_idx > 10:
        limit += 2
    return kv_idx < limit


def while_loop(b, h, q_idx, kv_idx):
    while kv_idx > 3:
        kv_idx = kv_idx - 1
    return q_idx > kv_idx


def several_lines(b, h, q_idx, kv_idx):
    return (
        q_idx >= kv_idx
        and kv_idx > 3
    )  # fmt: skip


def nested(b, h, q_idx, kv_idx):
    def inner(x):
        return x > 3 or x < 1

    return inner(q_idx)


CONDITIONS = [
    (if_return, "`if`", "q_idx >= kv_idx", "return q_idx >= kv_idx"),
    (if_else_return, "`if`", "q_idx >= kv_idx",
     "return torch.where(q_idx >= kv_idx, kv_idx > 3, kv_idx > 5)"),
    (if_assignment_alone, "`if`", "q_idx > 10",
     "limit = torch.where(q_idx > 10, limit + 2, limit)"),
    (while_loop, "`while`", "kv_idx > 3",
     "a loop over a fixed range, with torch.where for what depends on the score"),
    (nested, "`or`", "x > 3", "(x > 3) | (x < 1)"),
    (lambda b, h, q, kv: q >= kv and kv > 3, "`and`", "q >= kv", "(q >= kv) & (kv > 3)"),
    (lambda b, h, q, kv: not q >= kv, "`not`", "q >= kv", "~(q >= kv)"),
    (lambda b, h, q, kv: 0 <= q - kv < 5, "a chained comparison", "0 <= q - kv",
     "(0 <= q - kv) & (q - kv < 5)"),
    (lambda b, h, q, kv: q >= kv & q - kv < 4, "a chained comparison", "q >= kv & q - kv",
     "(q >= kv) & (q - kv < 4)"),
    (lambda b, h, q, kv: q < 3 | kv < q ^ 1 < kv & q > 2, "a chained comparison", "q < 3 | kv",
     "(q < 3) | (kv < q) ^ (1 < kv) & (q > 2)"),
    (lambda b, h, q, kv: 0 <= (q & kv) < 5, "a chained comparison", "0 <= q & kv",
     "(0 <= q & kv) & (q & kv < 5)"),
    (lambda b, h, q, kv: kv > 3 if q > 8 else kv > 1, "a conditional expression", "q > 8",
     "torch.where(q > 8, kv > 3, kv > 1)"),
    (lambda b, h, q, kv: q in (1, 2), "`in`", "q", "(q == 1) | (q == 2)"),
    (lambda b, h, q, kv: min(q, kv) > 3, "`min()`", "q", "torch.minimum(q, kv)"),
    (lambda b, h, q, kv: max(q, kv, 2) > 3, "`max()`", "q",
     "torch.maximum(q, kv).clamp(min=2)"),
    (lambda b, h, q, kv: bool(q), "`bool()`", "q", "q != 0"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("mod", "construct", "expression", "rewrite"), CONDITIONS, ids=[c[1] for c in CONDITIONS]
)
def test_a_request_for_a_truth_value_is_named_and_rewritten(
    mod: Callable[..., Any], construct: str, expression: str, rewrite: str
) -> None:
    error = refusal(mod)
    assert error.fields == {
        "construct": construct,
        "expression": expression,
        "rewrite": rewrite,
    }


def test_the_caret_covers_the_condition_and_not_the_whole_line() -> None:
    assert pointed_at(refusal(if_return).where) == "q_idx >= kv_idx"
    assert pointed_at(refusal(lambda b, h, q, kv: 0 <= q - kv < 5).where) == "0 <= q - kv < 5"


def test_the_caret_counts_characters_where_the_line_holds_wider_ones() -> None:
    mod = lambda b, h, q, kv: ("äöü" == "äöü") & (q >= kv and kv > 3)  # noqa: E731
    assert pointed_at(refusal(mod).where) == "q >= kv and kv > 3"


def test_an_expression_of_several_lines_is_pointed_at_on_its_first_line() -> None:
    error = refusal(several_lines)
    assert pointed_at(error.where) == "q_idx >= kv_idx"
    assert error.fields["rewrite"] == "(q_idx >= kv_idx) & (kv_idx > 3)"


def test_the_innermost_function_of_the_user_is_named() -> None:
    where = refusal(nested).where
    assert isinstance(where, Where)
    assert (where.function, where.file) == ("inner", __file__)
    assert where.line == nested.__code__.co_firstlineno + 2


def test_the_largest_logical_expression_is_rewritten_as_a_whole() -> None:
    error = refusal(lambda b, h, q, kv: (not q > kv) or (kv > 3 and q < 9))
    assert error.fields["rewrite"] == "~(q > kv) | (kv > 3) & (q < 9)"


def test_rewritten_conditions_compute_what_the_advice_promises() -> None:
    advice = str(refusal(lambda b, h, q, kv: 0 <= q - kv < 5 or q in (7, 9)).fields["rewrite"])
    q, kv = torch.arange(12).view(-1, 1), torch.arange(12)
    got = eval(advice, {"q": q, "kv": kv})
    want = [[0 <= i - j < 5 or i in (7, 9) for j in range(12)] for i in range(12)]
    assert torch.equal(got, torch.tensor(want))


def test_an_assert_is_named(tmp_path: Path) -> None:
    source = "def mod(b, h, q, kv):\n    assert q >= 0\n    return q > kv\n"
    file = tmp_path / "mods.py"  # not in this file: pytest rewrites its asserts
    file.write_text(source)
    namespace: dict[str, Any] = {"__name__": "mods"}
    exec(compile(source, str(file), "exec"), namespace)
    error = refusal(namespace["mod"])
    assert error.fields["construct"] == "`assert`"
    assert error.fields["rewrite"] == "check it outside the mod, or remove the assert"
    assert pointed_at(error.where) == "q >= 0"


# ---- numbers -------------------------------------------------------------------------------------


def one_of_several(construct: str, expression: str, rewrite: str) -> tuple[str, str, str]:
    """What is said where several constructs may be meant: Python 3.10 knows the line only."""
    if sys.version_info >= (3, 11):
        return construct, expression, rewrite
    return "Python", "this value", "use a torch function or an operator"


def loops(b, h, q_idx, kv_idx):
    for i in range(q_idx):
        kv_idx = kv_idx + i
    return kv_idx > 3


NUMBERS = [
    (lambda b, h, q, kv: int(q) > 3, "`int()`", "q", "q.to(torch.int32)"),
    (lambda b, h, q, kv: float(q + 1) > 3, "`float()`", "q + 1", "(q + 1).to(torch.float32)"),
    (lambda b, h, q, kv: TABLE[q] > 3, "a list index", "q",
     "make `TABLE` a tensor: torch.tensor(TABLE)[q]"),
    (lambda b, h, q, kv: sum(range(q)) > 3,
     *one_of_several("`range()`", "q", "a loop over a fixed range, with torch.where for what "
                     "depends on the score")),
    (loops, "`range()`", "q_idx",
     "a loop over a fixed range, with torch.where for what depends on the score"),
    (lambda b, h, q, kv: q.item() > 3, "`q.item()`", "q", "q"),
    (lambda b, h, q, kv: sum([x > 1 for x in q]) > 3,
     *one_of_several("a loop", "q", "a loop over range(n) with a fixed n")),
]  # fmt: skip


@pytest.mark.parametrize(
    ("mod", "construct", "expression", "rewrite"), NUMBERS, ids=[c[3] for c in NUMBERS]
)
def test_a_request_for_a_number_is_named_and_rewritten(
    mod: Callable[..., Any], construct: str, expression: str, rewrite: str
) -> None:
    error = refusal(mod)
    fields = {"construct": construct, "expression": expression, "rewrite": rewrite}
    assert error.fields == fields


# ---- less to go by -------------------------------------------------------------------------------


@pytest.mark.parametrize("mod", [if_return, if_assignment_alone, nested])
def test_the_line_alone_finds_the_construct_where_python_keeps_no_columns(
    mod: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with_columns = refusal(mod)
    monkeypatch.setattr(locate, "_span_of_instruction", lambda frame: None)
    by_line = refusal(mod)
    assert by_line.fields == with_columns.fields
    assert pointed_at(by_line.where) == pointed_at(with_columns.where) or "or" in str(by_line)


def test_code_without_source_costs_the_caret_and_not_the_error() -> None:
    namespace: dict[str, Any] = {"__name__": "user"}
    exec(
        compile("def mod(b, h, q, kv):\n    return q > 1 and kv > 2", "<made up>", "exec"),
        namespace,
    )
    error = refusal(namespace["mod"])
    assert isinstance(error.where, Where)
    assert (error.where.file, error.where.line, error.where.source) == ("<made up>", 2, "")
    assert "&" in error.fields["rewrite"]


def test_a_wrong_result_is_pointed_at_where_it_is_returned() -> None:
    with pytest.raises(ResultError) as caught:
        resolve(while_loop_free, "mask")
    assert pointed_at(caught.value.where) == "return difference"


def while_loop_free(b, h, q_idx, kv_idx):
    difference = q_idx - kv_idx
    return difference


def test_one_of_several_lambdas_on_a_line_is_told_apart() -> None:
    mods = [lambda b, h, q, kv: q > kv, lambda b, h, q, kv: q - kv]
    with pytest.raises(ResultError) as caught:
        resolve(mods[1], "mask")
    assert pointed_at(caught.value.where) == "q - kv"


def test_where_several_constructs_are_possible_the_whole_line_is_pointed_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(locate, "_span_of_instruction", lambda frame: None)
    error = refusal(several_requests)
    assert pointed_at(error.where) == "return int(q_idx) > float(kv_idx)"
    assert error.fields == {
        "construct": "Python",
        "expression": "this value",
        "rewrite": "use a torch function or an operator",
    }


def several_requests(b, h, q_idx, kv_idx):
    return int(q_idx) > float(kv_idx)
