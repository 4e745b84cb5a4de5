"""``flexfa4 emulate``: arguments, tables, and exit codes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from flexfa4.cli import main
from flexfa4.cli.emulate import argument
from flexfa4.errors import ArgumentError
from tests.kernel_texts import SOFTMAX

SIZES = ["--grid", "4", "--block", "64"]
RUN = ["emulate", str(SOFTMAX), *SIZES, "--shared-memory", "1024"]


def test_a_kernel_is_run_and_its_tensors_are_saved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.pt"
    code = main([*RUN, "--args", "random:f32:4x64", "zeros:f32:4x64", "--save", str(out)])
    assert code == 0
    saved = torch.load(out)
    expected = torch.softmax(saved[0].double().view(4, 2, 32), 2).view(4, 64)
    excess = (saved[1] - expected).abs().max()
    assert excess < 8 * torch.finfo(torch.float32).eps
    printed = capsys.readouterr().out
    assert "softmax_rows: " in printed and "shfl.sync.bfly.b32" in printed
    assert "global written" in printed and "1,024" in printed


def test_all_opcodes_are_listed_when_they_are_asked_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    args = ["--args", "random:f32:4x64", "zeros:f32:4x64"]
    main([*RUN, *args])
    few = capsys.readouterr().out
    main([*RUN, *args, "--all"])
    assert "st.global.b32" in capsys.readouterr().out and "st.global.b32" not in few


def test_a_kernel_that_fails_is_told_with_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["emulate", str(SOFTMAX), *SIZES, "--args", "random:f32:4x64", "zeros:f32:4x64"])
    assert code == 1
    assert "PTX line" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["emulate", "/nowhere.ptx"], "a file with PTX text"),
        ([*RUN, "--args", "zeros:f3:4"], "zeros:f32:128x64"),
        ([*RUN, "--args", "1"], "1 arguments"),
        (["emulate", str(SOFTMAX), "--grid", "0", "--args", "1", "2"], "grid"),
        (["emulate", str(SOFTMAX), "--kernel", "other"], "softmax_rows"),
        ([*RUN, "--workers", "0", "--args", "1", "2"], "workers is 0"),
        ([*RUN, "--args", "1.0", "2"], "instead: 1"),
        ([*RUN, "--save", "/nowhere/out.pt"], "mkdir -p /nowhere"),
        (["emulate", sys.executable], "nvcc -ptx"),
        (["emulate", "/"], "another path: Is a directory"),
    ],
)
def test_mistakes_of_the_user_end_with_exit_code_2(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert said in capsys.readouterr().err


def test_nothing_is_said_about_numpy_where_it_is_not_installed() -> None:
    """Torch warns of it when it is imported, which for commands is none of the user's doing."""
    code = (
        "import sys; sys.modules['numpy'] = None; from flexfa4.cli import main;"
        "sys.exit(main(['variants']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_machine_without_a_compiler_is_told_what_to_install() -> None:
    args = ["--args", "random:f32:4x64", "zeros:f32:4x64"]
    done = subprocess.run(
        [sys.executable, "-m", "flexfa4", *RUN, *args],
        env={**os.environ, "CXX": "/nowhere/c++", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        "flexfa4: no C++ compiler runs; looked for /nowhere/c++ ($CXX)\n"
        "  allowed: a compiler of C++17 that takes the options of GCC: GCC 9 or later, Clang,"
        " Zig's\n"
        "  instead: apt-get install g++, or pip install ziglang, or the path of a compiler in"
        " $CXX\n"
    )


@pytest.mark.parametrize("text", ["1,2,3,4", "-1", "x", "1,,2", ""])
def test_sizes_that_are_none_are_refused_by_the_parser(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([*RUN, f"--grid={text}"])
    assert "--grid" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "value"),
    [("12", 12), ("-3", -3), ("0x10", 16), ("0.5", 0.5), ("1e3", 1000.0), ("-inf", float("-inf")),
     ("bytes:00ff", b"\x00\xff")],
)  # fmt: skip
def test_numbers_and_bytes_are_read(text: str, value: Any) -> None:
    assert argument(text) == value
    assert type(argument(text)) is type(value)


@pytest.mark.parametrize(
    ("text", "dtype", "shape"),
    [
        ("zeros:f32:4x2", torch.float32, (4, 2)),
        ("random:bf16:8", torch.bfloat16, (8,)),
        ("random:e4m3:8", torch.float8_e4m3fn, (8,)),
        ("random:i8:8", torch.int8, (8,)),
        ("arange:i64:2x3", torch.int64, (2, 3)),
    ],
)
def test_tensors_are_made_by_contents_dtype_and_shape(
    text: str, dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    made = argument(text)
    assert (made.dtype, tuple(made.shape)) == (dtype, shape)


def test_counting_tensors_count_through_all_axes() -> None:
    assert argument("arange:i32:2x3").tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("text", ["", "zeros", "zeros:f32", "zeros:f32:", "bytes:0", "1x", "a"])
def test_other_texts_are_errors(text: str) -> None:
    with pytest.raises(ArgumentError, match="random"):
        argument(text)
