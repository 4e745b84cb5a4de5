"""The demo from end to end, small: what it prints, what it saves and what it ends with."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from flexfa4 import cli, demo
from flexfa4.errors import ArgumentError


def test_the_demo_trains_both_sides_compares_them_and_saves_a_picture(tmp_path: Path) -> None:
    text = io.StringIO()
    options = demo.Options(steps=2, length=600, folder=tmp_path / "new" / "folder")
    assert demo.run(options, Console(file=text, width=100))
    picture = tmp_path / "new" / "folder" / "flexfa4-demo.png"
    assert picture.read_bytes().startswith(b"\x89PNG")
    shown = " ".join(text.getvalue().split())
    for words in ("they agree", "tokens/s", "blocks skipped", "peak memory", str(picture), "2/2"):
        assert words in shown


def test_losses_that_differ_end_the_command_with_1(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(demo, "run", lambda options, console: False)
    assert cli.main(["demo", "--out", str(tmp_path)]) == 1


@pytest.mark.parametrize(("field", "option"), [("steps", "--steps"), ("length", "--seq-len")])
def test_sizes_that_make_no_sense_are_refused_by_their_options_name(
    field: str, option: str
) -> None:
    with pytest.raises(ArgumentError, match=f"{option} is 0") as caught:
        demo.Options(**{field: 0})  # type: ignore[arg-type]
    assert f"{option} {getattr(demo.Options(), field)}" in str(caught.value)
