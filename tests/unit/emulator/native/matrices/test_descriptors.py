"""Descriptors of matrices in shared memory: fields that are not known are refused."""

from __future__ import annotations

import pytest
import torch

from flexfa4.emulator.failures.matrices import SharedDescriptorError
from tests.tensor_core_programs import Layout, Program, instruction_descriptor, product

PLAIN = Layout.compact(2, False, 128, 2)
KNOWN = PLAIN.bits

FIELDS = [
    (14, "14-15"),
    (30, "30-31"),
    (47, "46-48"),
    (49, "49-51"),
    (53, "53-60"),
    (61, "61-63"),  # 3, with the 2 that is there
]


@pytest.mark.parametrize("bit,field", FIELDS)
def test_a_field_that_is_not_known_is_refused(bit: int, field: str) -> None:
    class Changed(Layout):
        @property
        def bits(self) -> int:
            return KNOWN ^ 1 << bit

    changed = Changed(2, PLAIN.leading, PLAIN.stride)
    body = product(
        "tcgen05.mma.cta_group::1.kind::f16",
        instruction_descriptor(128, 32),
        (changed, 0),
        (PLAIN, 32768),
        accumulate=False,
    )
    with pytest.raises(SharedDescriptorError) as caught:
        Program(body).run(torch.zeros(1, 65536, dtype=torch.uint8))
    assert f"bits {field} of a_desc" in str(caught.value)
