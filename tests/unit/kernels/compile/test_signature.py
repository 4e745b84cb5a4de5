"""Parameters of kernels: what a tensor map can say, and signatures as data."""

from __future__ import annotations

import json
from typing import Any

import pytest

from flexfa4.emulator.host.tensor_map import ELEMENT_TYPES
from flexfa4.emulator.host.tensor_map_encoding import CODES
from flexfa4.kernels.compile.errors import TensorMapSpecError
from flexfa4.kernels.compile.signature import ELEMENTS, TensorMap, from_data, to_data
from tests.compiled_kernels import EVERY_KIND


def test_a_signature_survives_as_json() -> None:
    assert from_data(json.loads(json.dumps(to_data(EVERY_KIND)))) == EVERY_KIND


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"element": "f8"}, "elements 'f8'"),
        ({"box": ()}, "a box of 0 axes"),
        ({"box": (16,) * 6}, "a box of 6 axes"),
        ({"box": (16, 257)}, "box (16, 257)"),
        ({"box": (16, 0)}, "box (16, 0)"),
        ({"box": (4, 16)}, "rows of 8 bytes"),
        ({"box": (64, 16), "swizzle": 64}, "rows of 128 bytes with swizzle 64"),
        ({"swizzle": 16}, "swizzle 16"),
        ({"l2_promotion": 32}, "l2_promotion 32"),
        ({"element": "u32", "nan_fill": True}, "NaN as fill of u32"),
    ],
)
def test_what_no_tensor_map_can_say_is_refused(fields: dict[str, Any], found: str) -> None:
    with pytest.raises(TensorMapSpecError) as caught:
        TensorMap(**{"name": "x", "element": "f16", "box": (16, 16), **fields})
    assert f"tensor map x has {found}\n" in str(caught.value)


def test_elements_have_the_sizes_that_the_driver_takes_them_to_have() -> None:
    for element in ELEMENTS.values():
        assert ELEMENT_TYPES[CODES[element.code]].nbytes == element.nbytes
