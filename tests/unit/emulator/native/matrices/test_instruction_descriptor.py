"""Instruction descriptors: fields and shapes that no product has are refused."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from flexfa4.emulator.failures.matrices import InstructionDescriptorError
from tests.tensor_core_programs import Layout, Program, instruction_descriptor, product

LAYOUT = Layout.compact(2, False, 128, 2)


def refused(kind: str, idesc: int, group: int = 1, scales: str = "") -> str:
    body = product(
        f"tcgen05.mma.cta_group::{group}.kind::{kind}",
        idesc,
        (LAYOUT, 0),
        (LAYOUT, 32768),
        accumulate=False,
        between=scales,
    )
    with pytest.raises(InstructionDescriptorError) as caught:
        Program(body, group=group).run(torch.zeros(group, 65536, dtype=torch.uint8))
    return str(caught.value)


# kind, what is wrong with the descriptor of a good product, and how it is reported
MISTAKES = [
    ("f16", {"other": 1 << 2}, "bits 0-2 .*sparsity.* are 4"),
    ("f16", {"other": 1 << 3}, "bits 3 .*saturation"),
    ("f16", {"d": 2}, "bits 4-5 .*the type of D.* are 2"),
    ("f16", {"a": 1, "b": 1, "d": 0}, "bits 4-5"),
    ("f16", {"other": 1 << 6}, "bits 6 .*reserved"),
    ("f16", {"a": 2}, "bits 7-9 .*the type of A.* are 2"),
    ("f16", {"a": 1}, "bits 10-12 .*the type of B.* are 0"),
    ("f16", {"other": 1 << 23}, "bits 23 .*reserved"),
    ("f16", {"other": 1 << 29}, "bits 29 .*reserved"),
    ("f16", {"other": 1 << 30}, "bits 30-31 .*the shift of B"),
    ("f16", {"m": 32}, "bits 24-28 .*M / 16.* are 2"),
    ("f16", {"m": 256}, "bits 24-28 .*M / 16.* are 16"),
    ("f16", {"n": 0}, "bits 17-22 .*N / 8.* are 0"),
    ("f16", {"n": 24}, "bits 17-22 .*N / 8.* are 3"),
    ("f16", {"n": 264}, "bits 17-22 .*N / 8.* are 33"),
    ("tf32", {"a": 2, "b": 2, "d": 0}, "bits 4-5"),
    ("tf32", {"a": 2, "b": 0}, "bits 10-12"),
    ("f8f6f4", {"a": 2}, "bits 7-9"),
    ("f8f6f4", {"a": 5, "a_mn": True}, "bits 15 .*transposition of A.* are 1"),
    ("i8", {"d": 2, "other": 1 << 13}, "bits 13-14 .*negation"),
    ("i8", {"d": 1}, "bits 4-5"),
    ("i8", {"d": 2, "n": 40}, "bits 17-22"),
    ("i8", {"d": 2, "n": 24, "b_mn": True}, "bits 17-22 .*(?s:.*)multiple of 16 .*N-major B"),
    ("f8f6f4", {"m": 64, "n": 24, "b_mn": True}, "bits 17-22 .*(?s:.*)multiple of 16 .*N-major B"),
]


@pytest.mark.parametrize("kind,changes,report", MISTAKES)
def test_a_field_that_is_not_known_is_refused(
    kind: str, changes: dict[str, Any], report: str
) -> None:
    idesc = instruction_descriptor(**{"m": 128, "n": 32, **changes})
    assert re.search(report, refused(kind, idesc))


def test_a_pair_has_shapes_of_its_own() -> None:
    assert "M / 16" in refused("f16", instruction_descriptor(64, 32), group=2)
    assert "multiple of 16" in refused("f16", instruction_descriptor(256, 24), group=2)
    n_major = instruction_descriptor(256, 48, b_mn=True)
    assert "multiple of 32 up to 256, and not 0 for an N-major B" in refused("f8f6f4", n_major, 2)


SCALED_MISTAKES = [
    ("mxf8f6f4.block_scale", {"other": 0}, "bits 23"),  # ue4m3
    ("mxf8f6f4.block_scale", {"m": 64}, "bits 24-28"),
    ("mxf4.block_scale", {"a": 1, "b": 1, "other": 1 << 23 | 1 << 4}, "bits 4-5"),
    ("mxf4.block_scale", {"a": 0, "b": 1}, "bits 7-9"),
    ("mxf4nvf4.block_scale.block16", {"a": 1, "b": 1, "other": 1 << 29}, "bits 29-30"),
    ("mxf4.block_scale", {"a": 1, "b": 1, "other": 1 << 23 | 1 << 31}, "bits 31.*96"),
]


@pytest.mark.parametrize("kind,changes,report", SCALED_MISTAKES)
def test_block_scales_have_fields_of_their_own(
    kind: str, changes: dict[str, Any], report: str
) -> None:
    idesc = instruction_descriptor(**{"m": 128, "n": 32, "d": 0, "other": 1 << 23, **changes})
    assert re.search(report, refused(kind, idesc, scales=", [%r8], [%r8]"))
