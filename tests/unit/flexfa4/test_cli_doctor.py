"""Doctor tells what is there, and promises nothing that this release does not have."""

from __future__ import annotations

import importlib.metadata
import io
from pathlib import Path

import pytest
import torch
from rich.console import Console

from flexfa4.cli import doctor
from flexfa4.emulator.failures.build import MissingCompilerError
from flexfa4.emulator.native.build import Build
from flexfa4.emulator.native.compiler import Compiler
from flexfa4.kernels.architectures import AUTOMATIC, CAPABILITIES


def by_name(findings: list[doctor.Finding]) -> dict[str, doctor.Finding]:
    return {finding.name: finding for finding in findings}


def pretend_gpus(monkeypatch: pytest.MonkeyPatch, *capabilities: tuple[int, int]) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(capabilities))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: capabilities[index])
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: f"product {index}")


def test_the_cpu_backend_is_usable_everywhere() -> None:
    finding = by_name(doctor.examine())["CPU backend"]
    assert finding.usable and finding.found == f"{torch.get_num_threads()} threads"


def test_without_a_gpu_the_kernels_are_not_usable_and_the_reason_is_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pretend_gpus(monkeypatch)
    monkeypatch.setattr(torch.version, "cuda", None)
    assert "built without CUDA" in by_name(doctor.examine())["GPU kernels"].note
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    finding = by_name(doctor.examine())["GPU kernels"]
    assert finding.usable is False and "no CUDA device" in finding.note


def test_every_gpu_is_named_with_its_capability_and_target(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_gpus(monkeypatch, (9, 0), (10, 0), (8, 6))
    findings = by_name(doctor.examine())
    hopper, blackwell, ampere = (findings[f"GPU {i}"] for i in range(3))
    assert hopper.found == "product 0, compute capability 9.0"
    assert "10.3 only" in ampere.note and ampere.usable is False
    assert blackwell.found == "product 1, compute capability 10.0"


def test_kernels_that_no_gpu_has_run_are_said_to_be_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_version", lambda name: "4.8.1")
    pretend_gpus(monkeypatch, (10, 3))
    assert "in the emulator only" in by_name(doctor.examine())["GPU 0"].note


def test_doctor_knows_the_architectures_that_there_are_kernels_for() -> None:
    assert doctor.KERNELS == CAPABILITIES
    assert set(doctor.UNTRIED) == set(CAPABILITIES.values()) - set(AUTOMATIC)


@pytest.mark.parametrize("installed", [False, True])
def test_a_gpu_with_kernels_is_usable_where_they_can_be_compiled(
    installed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(name: str) -> str:
        if name == doctor.COMPILER and not installed:
            raise importlib.metadata.PackageNotFoundError(name)
        return "4.8.1"

    monkeypatch.setattr(importlib.metadata, "version", version)
    finding = doctor.describe_gpu("GPU 0", "NVIDIA H200", (9, 0))
    assert finding.usable is installed
    assert ('backend="sm90"' if installed else "pip install 'flexfa4[gpu]'") in finding.note


def test_the_emulator_needs_a_compiler_and_says_which_there_is_and_where_its_core_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent() -> Compiler:
        raise MissingCompilerError(names="c++")

    monkeypatch.setattr(doctor, "find_compiler", lambda: Compiler(("c++",), "GCC 12\nmore", ()))
    monkeypatch.setenv("FLEXFA4_CACHE_DIR", str(tmp_path))
    finding = by_name(doctor.examine())["emulator"]
    assert finding.usable and finding.found == "GCC 12"
    assert finding.note == f"compiles its core at first use, into {tmp_path / 'emulator'}"
    monkeypatch.setattr(Build, "built", lambda self: self.folder / "core.so")
    finding = by_name(doctor.examine())["emulator"]
    assert finding.note == f"its core is built: {tmp_path / 'emulator' / 'core.so'}"
    monkeypatch.setattr(doctor, "find_compiler", absent)
    finding = by_name(doctor.examine())["emulator"]
    assert finding.usable is False and "pip install ziglang" in finding.note


def test_a_missing_package_comes_with_the_way_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def absent(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", absent)
    findings = by_name(doctor.examine())
    for name, extra in (("pictures", "plot"), ("CuTe-DSL", "gpu")):
        finding = findings[name]
        assert finding.usable is False and f"pip install 'flexfa4[{extra}]'" in finding.note
        text = io.StringIO()
        doctor.show([finding], Console(file=text, width=400))
        assert f"'flexfa4[{extra}]'" in text.getvalue(), "brackets are text, not markup"


def test_every_finding_is_printed_with_its_note() -> None:
    findings = doctor.examine()
    text = io.StringIO()
    doctor.show(findings, Console(file=text, width=400))
    rows = [
        [cell.strip() for cell in line.split("│")[1:-1]]
        for line in text.getvalue().splitlines()
        if line.startswith("│")
    ]
    assert [(name, found, note) for name, _, found, note in rows] == [
        (finding.name, finding.found, finding.note) for finding in findings
    ]
