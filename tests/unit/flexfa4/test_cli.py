"""The command line prints what the library says, and turns mistakes into messages."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import flexfa4
from flexfa4.cli import main
from flexfa4.variant_index import entries
from flexfa4.variants import Document, OffsetCausal, SlidingWindow, alibi, causal


def test_explain_of_a_variants_name_is_the_librarys_explanation(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["explain", "alibi"]) == 0
    assert capsys.readouterr().out == f"{flexfa4.explain(alibi)}\n"


def test_explain_takes_a_text_with_values_for_its_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "score + s * (kv - q) + w", "--set", "s=0.5", "--set", "w=3"]) == 0
    expected = flexfa4.explain(flexfa4.parse("score + s * (kv - q) + w", s=0.5, w=3))
    assert capsys.readouterr().out == f"{expected}\n"


def test_explain_imports_a_function_from_the_current_folder(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "masks_of_mine.py").write_text("from flexfa4.variants import causal as mine\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))  # undone after the test, unlike what main adds
    assert main(["explain", "masks_of_mine:mine"]) == 0
    assert capsys.readouterr().out == f"{flexfa4.explain(causal)}\n"


def test_explain_takes_the_parameters_of_a_variant(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "sliding_window", "--set", "window=64"]) == 0
    assert capsys.readouterr().out == f"{flexfa4.explain(SlidingWindow(64))}\n"


def test_variants_lists_every_variant_with_its_parameters_and_what_it_computes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "400")  # a line for each
    assert main(["variants"]) == 0
    shown = capsys.readouterr().out
    rows = dict(re.findall(r"^  (\w+).*\n      (.*)$", shown, flags=re.MULTILINE))
    assert set(rows) == set(entries())
    assert "  sliding_window  window=1024\n" in shown
    assert "table[bucket(kv - q), h]" in rows["t5_bias"]
    assert shown.index("Masks of text") < shown.index("  causal") < shown.index("Biases by")


def test_variants_with_a_word_lists_those_that_have_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["variants", "Softcap"]) == 0
    shown = capsys.readouterr().out
    assert "  softcap  cap=50" in shown and "alibi" not in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_explain_finds_the_blocks_of_a_mask_for_lengths(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "q >= kv and h < 4", "--q-len", "1048576", "--heads", "6"]) == 0
    shown = capsys.readouterr().out
    assert "heads=6, q_len=1048576, kv_len=1048576" in shown
    assert f"empty     {4 * 33550336 + 2 * 2**26} (" in shown and f"partial   {4 * 8192} (" in shown
    assert "classes   2, of 6 pairs" in shown


def test_a_variant_without_data_is_explained_by_its_example(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["explain", "document"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("with example parameters") and "Document.from_lengths(" in shown
    assert str(flexfa4.explain(Document.from_lengths([14, 30, 20]))) in shown


def test_a_variant_without_settings_is_drawn_as_in_the_gallery(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[tuple[Any, ...]] = []
    plot_mask = flexfa4.plot_mask
    monkeypatch.setattr(
        flexfa4, "plot_mask", lambda *a, **kw: (drawn.append(a), plot_mask(*a, **kw))[1]
    )
    out = ["--out", str(tmp_path / "mod.png")]
    assert main(["plot", "offset_causal", *out]) == 0
    shown = capsys.readouterr().out
    assert "OffsetCausal(40)" in shown and "of 16 queries and 64 keys" in shown
    assert main(["plot", "sliding_window", "--set", "window=9", *out]) == 0
    assert "example" not in capsys.readouterr().out
    assert main(["plot", "sliding_window", "--q-len", "24", *out]) == 0
    assert [(repr(mod), *lengths) for mod, *lengths in drawn] == [
        (repr(OffsetCausal(40)), 16, 64),
        (repr(SlidingWindow(9)), 512, None),
        (repr(SlidingWindow(12)), 24, None),
    ]


@pytest.mark.parametrize(
    ("name", "option"), [("mask", "--q-len 24"), ("heads", "--heads 2"), ("by_head", "--heads 2")]
)
def test_a_tensor_too_short_for_the_picture_says_which_size_fits(
    name: str,
    option: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "short.py").write_text(
        "import torch\nfrom flexfa4.variants import Document, HeadScale\n"
        "mask = Document(torch.zeros(24, dtype=torch.long))\n"
        "heads = HeadScale(torch.ones(2))\ntable = torch.ones(2)\n"
        "def by_head(score, b, h, q_idx, kv_idx):\n    return score - table[h] * kv_idx\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert main(["plot", f"short:{name}"]) == 2
    assert f"or a picture of fewer: {option}" in capsys.readouterr().err


def test_a_name_that_a_module_does_not_have_is_answered_with_those_that_it_has(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "holds_two.py").write_text(
        "from math import pi, sin\nfrom flexfa4.variants import causal as window\n"
        "def windwo(b, h, q_idx, kv_idx):\n    return q_idx >= kv_idx\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert main(["explain", "holds_two:wind"]) == 2
    shown = capsys.readouterr().err
    assert "what holds_two holds: window, windwo\n" in shown
    assert "instead: flexfa4 explain holds_two:win" in shown


@pytest.mark.parametrize(
    "arguments",
    [
        ["causal", "--q-len", "16", "--kv-len", "24"],
        ["alibi", "--q-len", "16", "--head", "2"],
        ["score + s", "--set", "s=2", "--q-len", "16"],
    ],
    ids=str,
)
def test_plot_writes_a_picture_of_a_mask_or_a_score_mod(
    arguments: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "mod.png"
    assert main(["plot", *arguments, "--out", str(path)]) == 0
    assert path.read_bytes().startswith(b"\x89PNG")
    assert capsys.readouterr().out == f"picture: {path}\n"


def test_a_picture_without_a_suffix_is_a_png(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["plot", "causal", "--q-len", "8", "--out", str(tmp_path / "mod")]) == 0
    assert capsys.readouterr().out == f"picture: {tmp_path / 'mod.png'}\n"
    assert [path.name for path in tmp_path.iterdir()] == ["mod.png"]


MISTAKES = {
    "a text that does not parse": ["explain", "score +"],
    "an unknown name": ["explain", "score + slope"],
    "a word that no variant has": ["variants", "nothing of the kind"],
    "a module that does not exist": ["explain", "no_such_module:mask"],
    "a function that does not exist": ["explain", "math:no_such_function"],
    "something that is no function": ["explain", "math:pi"],
    "a setting without a value": ["explain", "score + s", "--set", "s"],
    "a setting that is no number": ["explain", "score + s", "--set", "s=much"],
    "a setting for a variant": ["explain", "alibi", "--set", "s=1"],
    "a parameter that a variant does not have": ["explain", "sliding_window", "--set", "w=1"],
    "a picture without queries": ["plot", "causal", "--q-len", "0"],
    "a head that is not there": ["plot", "alibi", "--q-len", "8", "--head", "8"],
    "a picture in no folder": ["plot", "causal", "--q-len", "8", "--out", "/no/such/mod.png"],
    "a picture that is a folder": ["plot", "causal", "--q-len", "8", "--out", "."],
    "a picture without a name": ["plot", "causal", "--q-len", "8", "--out", ""],
    "a parameter twice": ["explain", "sliding_window", "--set", "window=3", "--set", "window=4"],
    "a picture of no format": ["plot", "causal", "--q-len", "8", "--out", "mod.nothing"],
    "no steps": ["demo", "--steps", "0"],
    "a sequence of one byte": ["demo", "--seq-len", "1"],
    "a folder that is a file": ["demo", "--out", __file__],
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_gives_a_message_and_exit_code_2(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(MISTAKES[name]) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith("flexfa4: ")
    assert "instead:" in shown.err and "Traceback" not in shown.err


ADVICE = {
    "slidng_window": "flexfa4 explain sliding_window",
    "SlidingWindw": "flexfa4 explain SlidingWindow",
    "SlidingWindow(4)": "from flexfa4.variants import SlidingWindow; mod = SlidingWindow(4)",
    "SlidingWindow(window=4)": "flexfa4 explain my_mods:mod",
    "PrefixLM(9)": "or: flexfa4 explain prefix_lm --set prefix=",
    "causal & sliding_window": "import causal, sliding_window; mod = causal & sliding_window",
    "nothing_of_the_kind": "flexfa4 explain causal",
    "q - kv < w": "--set w=0.5",
    "score + t[q]": "--set 't=[0.5, 0.5]'",
    "score + t [h, q]": "--set 't=[[0.5, 0.5], [0.5, 0.5]]'",
    "tahn(score)": "tanh, if that is what you mean",
}


@pytest.mark.parametrize("text", ADVICE)
def test_a_name_that_a_text_does_not_know_gets_advice_for_the_command_line(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", text]) == 2
    shown = capsys.readouterr().err
    assert ADVICE[text] in shown.partition("instead:")[2] and "parse(" not in shown


def test_version_prints_the_packages_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"flexfa4 {flexfa4.__version__}\n"


@pytest.mark.parametrize("arguments", [[], ["fly"], ["demo", "--steps", "many"], ["explain"]])
def test_arguments_that_argparse_refuses_also_end_with_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2


def test_doctor_says_that_the_cpu_backend_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    assert "CPU backend" in capsys.readouterr().out


def test_the_module_can_be_run_with_python() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "flexfa4", "explain", "q >= kv and"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert done.stdout == "" and "^" in done.stderr


@pytest.mark.parametrize("arguments", [["explain", "q >= kv"], ["doctor"]])
def test_a_reader_that_has_seen_enough_gets_no_traceback(arguments: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as pipe:
        done = subprocess.run(
            [sys.executable, "-m", "flexfa4", *arguments],
            stdout=pipe,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert done.stderr == "" and done.returncode != 0
