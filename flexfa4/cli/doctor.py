"""What this machine can run, and why not the rest.

`examine` looks, `show` prints.  Nothing is installed, compiled or timed.
"""

from __future__ import annotations

import importlib.metadata
import platform
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from flexfa4.emulator.failures.build import MissingCompilerError
from flexfa4.emulator.native.build import Build, core_folder
from flexfa4.emulator.native.compiler import find_compiler

# Compute capability of a GPU -> the backend with kernels for it.
KERNELS = {(9, 0): "sm90", (10, 0): "sm100", (10, 3): "sm100"}

# Backends whose kernels have run in the emulator only: auto does not take them.
UNTRIED = ("sm100",)

COMPILER = "nvidia-cutlass-dsl"
_ABSENT = "not installed"


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        name: what it is.
        usable: whether this machine can use it with this release; None where nothing depends on it.
        found: what was found.
        note: why it is not usable and what would change that, or what it is for.
    """

    name: str
    usable: bool | None
    found: str
    note: str = ""


def examine() -> list[Finding]:
    """Look at Python, torch, the backends, the emulator and the optional packages."""
    return [
        Finding("Python", None, platform.python_version()),
        Finding("torch", None, torch.__version__),
        Finding("CPU backend", True, f"{torch.get_num_threads()} threads"),
        *_gpus(),
        _emulator(),
        _cute(),
        _drawing(),
    ]


def _gpus() -> list[Finding]:
    count = torch.cuda.device_count()
    if count == 0:
        reason = (
            "this torch is built without CUDA"
            if torch.version.cuda is None
            else "torch sees no CUDA device"
        )
        return [Finding("GPU kernels", False, "no GPU", f"{reason}; the CPU backend runs")]
    return [_gpu(index) for index in range(count)]


def _gpu(index: int) -> Finding:
    major, minor = torch.cuda.get_device_capability(index)
    return describe_gpu(f"GPU {index}", torch.cuda.get_device_name(index), (major, minor))


def describe_gpu(name: str, product: str, capability: tuple[int, int]) -> Finding:
    """Say what this release does on a GPU of a compute capability."""
    found = f"{product}, compute capability {capability[0]}.{capability[1]}"
    backend = KERNELS.get(capability)
    if backend is None:
        known = ", ".join(f"{major}.{minor}" for major, minor in KERNELS)
        why = f"there are kernels for compute capability {known} only"
        note = f"{why}; torch's FlexAttention runs here where Triton does, else torch code"
        return Finding(name, False, found, note)
    if _version(COMPILER) == _ABSENT:
        why = "compiling kernels takes CuTe-DSL: pip install 'flexfa4[gpu]'"
        return Finding(name, False, found, f"{why}; those in the cache of kernels run")
    if backend in UNTRIED:
        note = f'the kernels of backend="{backend}" are for it, but have run in the emulator only'
        return Finding(name, True, found, note)
    note = f'the kernels of backend="{backend}" run here; gradients are the CPU backend\'s'
    return Finding(name, True, found, note)


def _emulator() -> Finding:
    try:
        compiler = find_compiler()
    except MissingCompilerError as error:
        return Finding("emulator", False, "no C++ compiler", error.instead)
    built = Build(compiler, core_folder()).built()
    core = "compiles its core at first use, into" if built is None else "its core is built:"
    note = f"{core} {built or core_folder()}"
    return Finding("emulator", True, compiler.version.splitlines()[0], note)


def _cute() -> Finding:
    version = _version(COMPILER)
    if version == _ABSENT:
        return Finding("CuTe-DSL", False, version, "pip install 'flexfa4[gpu]'")
    return Finding("CuTe-DSL", True, version, "compiles kernels, for GPUs and for the emulator")


def _drawing() -> Finding:
    version = _version("matplotlib")
    if version == _ABSENT:
        return Finding("pictures", False, version, "pip install 'flexfa4[plot]'")
    return Finding("pictures", True, f"matplotlib {version}")


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return _ABSENT


def show(findings: list[Finding], console: Console) -> None:
    """Print the findings as a table."""
    table = Table(title="what this machine can run")
    table.add_column("")
    table.add_column("usable")
    table.add_column("found")
    table.add_column("note", overflow="fold")  # paths are shown whole
    words = {True: "[green]yes[/]", False: "[yellow]no[/]", None: ""}
    for finding in findings:
        table.add_row(
            finding.name, words[finding.usable], escape(finding.found), escape(finding.note)
        )
    console.print(table)
