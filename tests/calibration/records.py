"""The file of what a GPU computed: written by `python -m tests.calibration record`.

Floats are kept as their distance from a rounded reference, in units in the last place, which takes
little room.

What this module deliberately does not do: run anything.
"""

from __future__ import annotations

import base64
import gzip
import json
import zlib
from pathlib import Path
from typing import Any

import torch

PATH = Path(__file__).parent / "h200.json.gz"


def read() -> dict[str, Any]:
    """Return the record."""
    record: dict[str, Any] = json.loads(gzip.decompress(PATH.read_bytes()))
    return record


def write(record: dict[str, Any], path: Path = PATH) -> None:
    """Write a record, the same bytes for the same content."""
    text = json.dumps(record, indent=0, sort_keys=True)
    path.write_bytes(gzip.compress(text.encode(), mtime=0))


def ordinals(values: torch.Tensor) -> torch.Tensor:
    """Return the place of each float among all floats of its type; int64, all NaN alike."""
    size = values.element_size()
    bits = values.contiguous().view(torch.int32 if size == 4 else torch.int16).long()
    magnitude = bits & ((1 << (8 * size - 1)) - 1)
    places = torch.where(bits < 0, -magnitude - 1, magnitude)
    return torch.where(values.isnan(), (1 << (8 * size - 1)) - 1, places)


def packed(values: torch.Tensor, reference: torch.Tensor) -> str:
    """Return floats as text, given others of the type that are near."""
    steps = (ordinals(values) - ordinals(reference)).flatten().to(torch.int64)
    raw = bytes(steps.view(torch.uint8).tolist())
    return base64.b85encode(zlib.compress(raw, 9)).decode()


def unpacked(text: str, reference: torch.Tensor) -> torch.Tensor:
    """Return the ordinals of floats that `packed` made a text of."""
    raw = bytearray(zlib.decompress(base64.b85decode(text)))
    steps = torch.frombuffer(raw, dtype=torch.int64)
    return ordinals(reference) + steps.view(reference.shape)


def floats(text: str, reference: torch.Tensor) -> torch.Tensor:
    """Return floats that `packed` made a text of."""
    places = unpacked(text, reference)
    size = reference.element_size()
    sign = 1 << (8 * size - 1)
    bits = torch.where(places < 0, (-places - 1) | sign, places)
    words = bits.to(torch.uint32 if size == 4 else torch.uint16)
    return words.view(reference.dtype)
