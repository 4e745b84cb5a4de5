"""Every example runs as a script, says what it promises and leaves nothing behind; README's runs.

The examples run in this process, each as ``__main__`` in a folder of its own: a process for each
would spend most of its time on imports.
"""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# An example, and what its output must say.
EXPECTED = {
    "01_variants.py": ("16.8% of the blocks are computed",),
    "02_your_own_variant.py": (
        "the forms agree: True",
        "as a dense mask: True",
        "8 windows, traced 0 times more",
    ),
    "03_learnable_bias.py": ("traced 0 times after the first step",),
    "04_packed_documents.py": (
        "traced 0 times after the first step",
        "document 3, packed as alone: True",
    ),
    "05_from_flexattention.py": ("flexfa4.flex: 25 % of the blocks are skipped", "gradient of q"),
    "06_variants_from_yaml.py": (
        "local: block_mask and score_mod from text",
        "`widow` is not known here",
    ),
    "07_debug_a_mask.py": (
        "3, 4, 5, 5",
        "at query 4: key 0, at distance 4",
        "(q >= kv) & (q - kv <= 4)",
        "instead: torch.where(q_idx >= kv_idx, q_idx - kv_idx < 4, False)",
    ),
    "08_compile_and_checkpoint.py": (
        "length 96, window 48: outputs and gradients agree: True",
        "compiled once, as one graph",
    ),
    "09_emulated_kernel.py": (
        "sums [8128, 24512, 40896, 57280]",
        "without the wait: RaceError",
        "with one arrival too many: DeadlockError",
        "1 of 2 arrivals and 0 bytes pending",
    ),
    "10_sequences_of_any_length.py": (
        "sequence 2, packed as alone: True",
        "out (7, 8, 64), lse (7, 8)",
    ),
}


def output(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> str:
    """Run an example as its user would, in an empty folder, and return what it prints."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [name])
    runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")
    assert not list(tmp_path.iterdir())
    return capsys.readouterr().out


def test_every_example_is_listed_and_short() -> None:
    paths = {path.name: path for path in (ROOT / "examples").glob("*.py")}
    assert set(paths) == set(EXPECTED)
    assert all(len(path.read_text("utf-8").splitlines()) < 80 for path in paths.values())


@pytest.mark.parametrize("name", EXPECTED)
def test_an_example_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = output(name, tmp_path, monkeypatch, capsys)
    for line in EXPECTED[name]:
        assert line in shown


def test_the_learned_bias_approaches_the_one_that_was_taught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = output("03_learnable_bias.py", tmp_path, monkeypatch, capsys)
    losses = [float(line.split()[-1]) for line in shown.splitlines() if "loss 0" in line]
    assert len(losses) == 4 and losses[-1] < losses[0] / 50


def test_the_code_at_the_top_of_the_readme_runs(tmp_path: Path) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    code = readme.split("```python\n", 1)[1].split("```", 1)[0]
    assert "flexfa4.attention(" in code
    path = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", path + code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
