"""Real text that is on every machine: the source files of Python's standard library.

Files become documents, documents are laid end to end, and that stream is cut into sequences of
equal length.  Every position keeps the number of the document it came from, so that attention can
stay within it.

It does not tokenise (a token is a byte) and does not download anything.
"""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch

from flexfa4.errors import ArgumentError

# Folders whose files are data for tests, or not part of the library itself.
SKIPPED_FOLDERS: Final = frozenset(("__pycache__", "site-packages", "test", "tests"))
# Larger files would fill whole sequences, and documents would not meet in one.
LARGEST_FILE: Final = 8192  # bytes

VOCABULARY: Final = 256  # a token is a byte
NO_TARGET: Final = -100  # what torch's cross entropy leaves out


@dataclass(frozen=True)
class Sequences:
    """Documents packed into N sequences of S positions.

    Attributes:
        tokens: (N, S) int64, the bytes.
        targets: (N, S) int64, the byte that follows in the same document; `NO_TARGET` where the
            document ends.
        documents: (N, S) int64, the document of each position.
    """

    tokens: torch.Tensor
    targets: torch.Tensor
    documents: torch.Tensor


def source_files(root: Path | None = None, *, largest: int | None = LARGEST_FILE) -> Iterator[Path]:
    """Yield the library's source files that serve as documents, in an order that never changes.

    Args:
        root: folder to search; None is the standard library of this Python.
        largest: bytes of a file; None for no limit.
    """
    start = Path(sysconfig.get_path("stdlib")) if root is None else root
    for folder, folders, files in os.walk(start):
        folders[:] = sorted(set(folders) - SKIPPED_FOLDERS)  # os.walk enters these, in this order
        for name in sorted(files):
            path = Path(folder, name)
            size = path.stat().st_size
            if path.suffix == ".py" and size > 0 and (largest is None or size <= largest):
                yield path


def pack(documents: Iterable[bytes], count: int, length: int) -> Sequences:
    """Lay documents end to end and cut them into sequences.

    Args:
        documents: one after the other; only as many as needed are read.
        count: sequences to make.
        length: positions of each sequence.

    Raises:
        ArgumentError: the documents hold too few bytes.
    """
    needed = count * length + 1  # the last position has a target too
    stream, lengths = bytearray(), []
    for text in documents:
        stream += text
        lengths.append(len(text))
        if len(stream) >= needed:
            break
    if len(stream) < needed:
        raise ArgumentError(
            name="count * length",
            found_value=f"{count} * {length}, {needed} bytes of text",
            expected=f"at most the {len(stream)} bytes that the documents hold",
            rewrite="ask for fewer steps or shorter sequences",
        )
    tokens = torch.frombuffer(stream, dtype=torch.uint8)[:needed].long()
    ids = torch.repeat_interleave(torch.tensor(lengths))[:needed]
    targets = torch.where(ids[1:] == ids[:-1], tokens[1:], NO_TARGET)
    return Sequences(*(t.view(count, length) for t in (tokens[:-1], targets, ids[:-1])))


def load(count: int, length: int) -> Sequences:
    """Return `count` sequences of `length` bytes of the standard library's source."""
    return pack((path.read_bytes() for path in source_files()), count, length)
