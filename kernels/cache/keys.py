"""The key of a compiled kernel: what it was compiled from, as one digest.

A plan is a frozen dataclass of numbers, names, graphs and more such dataclasses.  Its canonical
text is the same in every process and on every machine, and differs wherever two plans do: numbers
keep their types and floats all their bits, sets are sorted, graphs are written node by node.  What
it does not know it refuses, for a guess could let two plans share a kernel.

Beside the plan the key has the sources that kernels are made of, the release of CuTe-DSL, the
architecture and the format of entries.  This module makes keys only; files are in `entry` and
`store`.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import importlib.metadata
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import torch

from flexfa4.frontend.ir import Node, topological

PACKAGE: Final = "nvidia-cutlass-dsl"
RELEASE: Final = "4.8.1"
SOURCES: Final = ("frontend", "primitives", "kernels")
_ROOT: Final = Path(__file__).resolve().parent.parent.parent


def key_of(plan: Any, arch: str, form: str) -> str:
    """Return the key of a plan's kernel for an architecture: 64 hexadecimal digits.

    Args:
        plan: a frozen dataclass that `canonical_text` can write.
        arch: such as ``sm_90a``.
        form: of the entry that is kept under it.
    """
    parts = (form, arch, compiler_release(), sources_fingerprint(), canonical_text(plan))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def canonical_text(value: Any) -> str:
    """Return a text that is equal for two values exactly where they are.

    Args:
        value: None, a bool, number, str, bytes, dtype, enum, node or frozen dataclass, or a tuple,
            frozenset or dict of such.
    """
    if value is None or isinstance(value, (bool, int, str, bytes)):
        return repr(value)
    if isinstance(value, float):
        return value.hex()
    if isinstance(value, (torch.dtype, torch.device)):
        return f"{type(value).__name__} {value}"
    if isinstance(value, enum.Enum):
        return f"{_name(value)}.{value.name}"
    if isinstance(value, Node):
        return _graph_text(value)
    if isinstance(value, tuple):
        return f"({''.join(f'{canonical_text(item)},' for item in value)})"
    if isinstance(value, frozenset):
        return f"{{{''.join(f'{text},' for text in sorted(map(canonical_text, value)))}}}"
    if isinstance(value, dict):
        pairs = sorted((canonical_text(k), canonical_text(v)) for k, v in value.items())
        return f"{{{''.join(f'{k}:{v},' for k, v in pairs)}}}"
    frozen = getattr(getattr(value, "__dataclass_params__", None), "frozen", False)
    assert frozen and not isinstance(value, type), (
        f"{value!r} of type {type(value).__name__} is part of a plan, but has no canonical text"
    )
    fields = (
        f"{f.name}={canonical_text(getattr(value, f.name))},"
        for f in dataclasses.fields(value)
        if f.compare  # as in ==: what does not tell plans apart is none of the key's business
    )
    return f"{_name(value)}({''.join(fields)})"


def _graph_text(root: Node) -> str:
    """Return the nodes below a root, operands before users and by number: shared ones once."""
    numbers: dict[Node, int] = {}
    lines = []
    for node in topological(root):
        numbers[node] = len(numbers)
        args = ",".join(str(numbers[arg]) for arg in node.args)
        attr = canonical_text(node.attr)
        lines.append(f"{node.op}({args};{attr};{node.dtype!r};{node.length});")
    return f"graph[{''.join(lines)}]"


def _name(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


@functools.cache
def compiler_release() -> str:
    """Return the release of CuTe-DSL that is installed, or else the one that kernels are made for.

    So a machine without it finds kernels that were compiled elsewhere.
    """
    try:
        return importlib.metadata.version(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return RELEASE


@functools.cache
def sources_fingerprint() -> str:
    """Return a digest of the sources that kernels are made of, as they are in files now."""
    return fingerprint_of([_folder(name) for name in SOURCES])


def fingerprint_of(folders: list[Path]) -> str:
    """Return a digest of the Python sources in folders: their names there, and what they say."""
    said: list[bytes] = []
    for folder in folders:
        for path in sorted(_python_files(str(folder))):  # texts: objects would take as long again
            with open(path, "rb", buffering=0) as file:
                content = file.read()
            said += (path.removeprefix(str(folder.parent)).encode(), b"%d" % len(content), content)
    return hashlib.sha256(b"\0".join(said)).hexdigest()


def _python_files(folder: str) -> Iterator[str]:
    """Yield the paths of all files of Python in a folder; half the time of `os.walk`."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(".py"):
                yield entry.path
            elif entry.name != "__pycache__" and entry.is_dir(follow_symlinks=False):
                yield from _python_files(entry.path)


def _folder(name: str) -> Path:
    """Return the folder of a package of ours, in a checkout or installed."""
    folder = _ROOT / name
    return folder.resolve()  # rglob does not enter links
