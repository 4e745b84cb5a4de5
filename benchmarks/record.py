"""What each benchmark writes beside its rows: sizes, date, commit and machine; tables in documents.

Measures nothing.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import platform
import subprocess
from pathlib import Path
from typing import Any, Final

import torch

FOLDER: Final = Path(__file__).parent / "results"


def circumstances(**sizes: int) -> dict[str, Any]:
    """Return under what the rows are measured; fp32 tensors of these sizes."""
    return {
        "sizes": {**sizes, "dtype": "fp32"},
        "run": {"date": datetime.date.today().isoformat(), "commit": commit()},
        "machine": machine(),
    }


def write(name: str, results: dict[str, Any]) -> None:
    """Write results as ``results/<name>.json``."""
    (FOLDER / f"{name}.json").write_text(json.dumps(results, indent=1) + "\n")


def commit() -> str:
    """Return the commit that is measured, with ``-dirty`` after it where files differ from it."""
    command = ["git", "describe", "--always", "--dirty", "--exclude=*", "--abbrev=40"]
    try:
        done = subprocess.run(
            command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"  # not a git checkout, or no git
    return done.stdout.strip()


def cpu_model() -> str:
    """Return the processor's name as its maker writes it, where the system tells it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    named = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or "unknown")


def machine() -> dict[str, Any]:
    """Return on what is measured."""
    return {
        "cpu": cpu_model(),
        "architecture": platform.machine(),
        "vector_instructions": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


END: Final = "<!-- end -->"
"""What the place of a table in a document ends with."""


def inserted(document: str, text: str, begin: str) -> str:
    """Return a document with a text in its place.

    Args:
        document: that has the place.
        text: for it.
        begin: what the place begins with; it ends with `END`.
    """
    before, rest = document.split(begin)
    return f"{before}{begin}\n\n{text}\n\n{END}{rest.split(END, 1)[1]}"


GPU_PACKAGES: Final = ("torch", "triton", "flash-attn-4", "nvidia-cutlass-dsl", "nvidia-cudnn-cu13")


def card() -> dict[str, Any]:
    """Return the current CUDA device, its driver, and the packages whose kernels run on it."""
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return {
        "name": properties.name,
        "multiprocessors": properties.multi_processor_count,
        "memory_gib": properties.total_memory / 2**30,
        "driver": driver(),
        "cuda": torch.version.cuda,
        "packages": {name: version for name in GPU_PACKAGES if (version := _installed(name))},
    }


def driver() -> str:
    """Return the version of the NVIDIA driver, where it tells it."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.split("\n")[0].strip()


def _installed(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
