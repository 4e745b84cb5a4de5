"""Tensors that copies can take, and what encoders are given for them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexfa4.emulator.host.errors import TensorMapError
from flexfa4.emulator.host.tensor_map import TensorMap as DecodedMap
from flexfa4.kernels.compile.signature import ELEMENTS, TensorMap
from flexfa4.kernels.launch.errors import TensorLimitError
from flexfa4.kernels.launch.tensor_map import Tensor, limit_of, tiled
from tests.emulated_executor import encoded

ADDRESS = 0x7F00_0000_1000
GOOD = Tensor(ADDRESS, (64, 100, 3), (128, 12800))


@pytest.mark.parametrize(
    ("changed", "found"),
    [
        (GOOD._replace(address=ADDRESS + 8), f"the address {ADDRESS + 8:#x}"),
        (GOOD._replace(address=0), "the address 0x0"),
        (GOOD._replace(sizes=(64, 0, 3)), "the sizes (64, 0, 3)"),
        (GOOD._replace(sizes=(64, 2**32 + 1, 3)), f"the sizes (64, {2**32 + 1}, 3)"),
        (GOOD._replace(strides=(130, 12800)), "a stride of 130 bytes"),
        (GOOD._replace(strides=(128, -128)), "a stride of -128 bytes"),
        (GOOD._replace(strides=(128, 1 << 40)), f"a stride of {1 << 40} bytes"),
        (GOOD._replace(strides=(128,)), "3 sizes and 1 strides"),
        (Tensor(ADDRESS, (64, 100), (128,)), "2 axes"),
    ],
)
def test_what_the_hardware_cannot_take_is_refused(changed: Tensor, found: str) -> None:
    with pytest.raises(TensorLimitError) as caught:
        tiled(TensorMap("query", "bf16", box=(64, 8, 1)), changed)
    assert f"tensor query has {found}\n" in str(caught.value)
    assert "contiguous copy" in str(caught.value)


@pytest.mark.parametrize(
    "extreme",
    [
        GOOD,
        GOOD._replace(sizes=(2**32, 2**32, 1)),
        GOOD._replace(strides=(16, (1 << 40) - 16)),
        GOOD._replace(strides=(0, 0)),  # one row for all, as expand() makes it
        Tensor(16, (1,), ()),
        Tensor(16, (8, 1, 1), (5, 1 << 50)),  # strides that lead nowhere
    ],
)
def test_what_the_hardware_can_take_has_no_limit(extreme: Tensor) -> None:
    assert limit_of(extreme) is None


@st.composite
def maps(draw: st.DrawFn) -> tuple[TensorMap, Tensor]:
    """Draw a declaration and a tensor for it."""
    rank = draw(st.integers(1, 5))
    element = draw(st.sampled_from(sorted(ELEMENTS)))
    nbytes = ELEMENTS[element].nbytes
    swizzle = draw(st.sampled_from((0, 32, 64, 128)))
    rows = draw(st.integers(1, (swizzle or 256) // 16))
    inner = min(rows * 16 // nbytes, 256)
    box = (inner, *draw(st.tuples(*[st.integers(1, 256)] * (rank - 1))))
    sizes = draw(st.tuples(*[st.just(1) | st.integers(1, 2**32)] * rank))
    strides = draw(st.tuples(*[st.integers(0, 2**36 - 1)] * (rank - 1)))
    spec = TensorMap(
        "x",
        element,
        box,
        swizzle,
        l2_promotion=draw(st.sampled_from((0, 64, 128, 256))),
        nan_fill=ELEMENTS[element].floating and draw(st.booleans()),
    )
    address = draw(st.integers(1, 2**52)) * 16
    return spec, Tensor(address, sizes, tuple(16 * stride for stride in strides))


@given(maps())
def test_an_encoded_map_says_what_was_declared_and_given(
    drawn: tuple[TensorMap, Tensor],
) -> None:
    spec, tensor = drawn
    decoded = DecodedMap.decode(encoded(tiled(spec, tensor)))
    assert (decoded.address, decoded.sizes) == (tensor.address, tensor.sizes)
    strides = [s if n > 1 else 0 for n, s in zip(tensor.sizes[1:], tensor.strides, strict=True)]
    assert decoded.strides == (spec.row_element.nbytes, *strides)
    assert (decoded.box, decoded.swizzle) == (spec.box, spec.swizzle)
    assert decoded.fills_nan is spec.nan_fill
    assert decoded.element.name == spec.element.replace("u", "b")


@pytest.mark.parametrize(
    "changed",
    [
        GOOD._replace(address=ADDRESS + 8),
        GOOD._replace(sizes=(64, 0, 3)),
        GOOD._replace(sizes=(64, 2**32 + 1, 3)),
        GOOD._replace(strides=(130, 12800)),
        GOOD._replace(strides=(128, 1 << 40)),
    ],
)
def test_limits_are_those_of_the_driver(changed: Tensor) -> None:
    """The emulator's encoder refuses what an H200's driver refuses."""
    assert limit_of(changed) is not None
    good = tiled(TensorMap("x", "bf16", (64, 8, 1)), GOOD)
    with pytest.raises(TensorMapError):
        encoded(good._replace(**changed._asdict()))
