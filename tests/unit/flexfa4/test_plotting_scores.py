"""Pictures of score mods hold what the mod computes, by position or by score."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import flexfa4
from flexfa4.errors import ArgumentError, FlexFA4Error
from flexfa4.variants import Alibi, HeadScale, RelativeBias, Softcap, causal


def test_the_matrix_is_what_the_mod_adds_for_each_query_and_key() -> None:
    matrix = flexfa4.plot_score_mod(Alibi(4), 5, 7, num_heads=4, head_index=1).axes[0].images[0]
    distance = torch.arange(7) - torch.arange(5)[:, None]
    assert torch.equal(torch.tensor(matrix.get_array().tolist()), 2.0**-4 * distance)  # type: ignore[union-attr]


def test_the_lines_are_the_last_querys_row_in_several_heads() -> None:
    rows = flexfa4.plot_score_mod(Alibi(4), 5, 7, num_heads=4).axes[1]
    legend = rows.get_legend()
    assert legend is not None
    assert [t.get_text() for t in legend.get_texts()] == [f"head {h}" for h in range(4)]
    for head, line in enumerate(rows.lines):
        expected = 2.0 ** (-2 * (head + 1)) * (torch.arange(7) - 4)
        assert torch.equal(torch.tensor(line.get_ydata().tolist()), expected)  # type: ignore[union-attr]


def test_heads_are_not_told_apart_where_the_mod_does_not() -> None:
    rows = flexfa4.plot_score_mod("score - abs(q - kv)", 8).axes[1]
    assert len(rows.lines) == 1 and rows.get_legend() is None


def test_a_mod_that_reads_no_position_is_drawn_as_a_curve() -> None:
    (curve,) = flexfa4.plot_score_mod(Softcap(20.0), 8).axes
    scores, capped = (torch.tensor(a.tolist()) for a in curve.lines[0].get_data())  # type: ignore[union-attr]
    torch.testing.assert_close(capped, 20 * torch.tanh(scores / 20))
    (curves,) = flexfa4.plot_score_mod(HeadScale(torch.tensor([1.0, 3.0])), 8, num_heads=2).axes
    high = [line.get_ydata().tolist()[-1] for line in curves.lines[:2]]  # type: ignore[union-attr]
    assert high == [100.0, 300.0]


def test_another_score_than_zero_may_be_given() -> None:
    figure = flexfa4.plot_score_mod("score * (q + 1)", 2, score=3.0)
    shown = figure.axes[0].images[0].get_array()
    assert shown is not None and shown.tolist() == [[3.0, 3.0], [6.0, 6.0]]
    assert "a score of 3" in figure.axes[0].get_title()


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("score - kv", "#0072b2", "#ffffff"),
        ("score + kv", "#ffffff", "#e69f00"),
        ("score + kv - 3", "#0072b2", "#e69f00"),
    ],
)
def test_zero_is_white_and_the_sign_has_a_colour(text: str, low: str, high: str) -> None:
    from matplotlib.colors import to_hex

    image: Any = flexfa4.plot_score_mod(text, 1, 7).axes[0].images[0]
    lowest, highest = image.get_clim()
    colours = [to_hex(image.to_rgba(value)) for value in (lowest, 0.0, highest)]
    assert colours[0] == low and colours[2] == high
    assert all(int(colours[1][i : i + 2], 16) >= 250 for i in (1, 3, 5))


def test_nothing_but_zeros_is_white() -> None:
    figure = flexfa4.plot_score_mod(RelativeBias(torch.zeros(3, 1)), 4, num_heads=1)
    image: Any = figure.axes[0].images[0]
    assert image.get_clim() == (0.0, 1.0)
    assert image.to_rgba(0.0)[:3] == (1.0, 1.0, 1.0)


def test_minus_infinity_does_not_spoil_the_scale() -> None:
    figure = flexfa4.plot_score_mod("score + kv if kv > 2 else -inf", 4, 8)
    assert figure.axes[0].images[0].get_clim() == (0.0, 7.0)


WRONG: dict[str, tuple[Any, dict[str, Any], str]] = {
    "a mask": (causal, {"q_len": 8}, "score_mod is a mask, a Causal"),
    "no queries": (Alibi(), {"q_len": 0}, "q_len is 0"),
    "queries as a bool": (Alibi(), {"q_len": True}, "q_len is True"),
    "half a query": (Alibi(), {"q_len": 3.5}, "q_len is 3.5"),
    "heads as a text": (Alibi(), {"q_len": 8, "num_heads": "2"}, "num_heads is '2'"),
    "a score as a text": (Alibi(), {"q_len": 8, "score": "2"}, "score is '2'"),
    "a head that is not there": (
        Alibi(),
        {"q_len": 8, "num_heads": 2, "head_index": 2},
        "head_index is 2",
    ),
    "half a head": (Alibi(), {"q_len": 8, "head_index": 0.5}, "head_index is 0.5"),
    "fewer heads in a table": (
        RelativeBias(torch.zeros(3, 2)),
        {"q_len": 8, "num_heads": 4, "head_index": 3},
        "index 3",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_argument_is_refused(name: str) -> None:
    mod, arguments, message = WRONG[name]
    with pytest.raises(FlexFA4Error, match=message):
        flexfa4.plot_score_mod(mod, **arguments)


def test_the_error_for_a_missing_head_is_one_of_arguments() -> None:
    with pytest.raises(ArgumentError, match="num_heads=4"):
        flexfa4.plot_score_mod(Alibi(), 8, num_heads=2, head_index=3)
