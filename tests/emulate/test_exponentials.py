"""2^x in kernels: emulated powers have the bits of `exponentials`, in the emulator."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("cutlass")

from cutlass import Float32, Int32, cute

from flexfa4.emulator import Device
from flexfa4.kernels.compile.cute import compile_with_cute
from flexfa4.primitives.exponentials import POLYNOMIALS, emulated_exp2
from tests.emulate.evaluation import pointer
from tests.emulate.whole_row_kernels import ROWS, Powers

ON_PAIRS = ("sm_100a",)
SPECIAL = (
    -torch.inf, -3e38, -1000.0, -127.5, -127.0, -126.75, -126.0, -125.5, -1.0, -0.0, 0.0, 1.0, 7.99,
    8.0, 127.0, torch.nan, -(2.0**-30), 2.0**-30, -(2.0**-149), 2.0**-149, -1.0 + 2.0**-24,
    -8388608.0, -12582912.0, 127.99999,
)  # fmt: skip


def arguments_of_rows() -> torch.Tensor:
    """Return numbers in all sections of the range that exponents of rows are in."""
    generator = torch.Generator().manual_seed(0)
    near = torch.rand(2000, generator=generator) * -20
    far = torch.rand(2000, generator=generator) * -140
    above = torch.rand(500, generator=generator) * 9
    whole = torch.arange(-130, 10).float()
    beside = torch.cat([torch.nextafter(whole, whole + d) for d in (-1, 1)])
    found = torch.cat([torch.tensor(SPECIAL), near, far, above, whole, beside])
    return torch.nn.functional.pad(found, (0, -len(found) % (2 * ROWS)))


def powers(x: torch.Tensor, degree: int | None, arch: str = "sm_100a") -> torch.Tensor:
    found = torch.zeros_like(x)
    with Device(arch) as device:
        places = [pointer(Float32, device.tensor(t).data_ptr()) for t in (x, found)]
        given = (*places, Int32(len(x) // (2 * ROWS)))
        cute.compile(Powers(degree, arch in ON_PAIRS), *given)(*given)
    return found


@pytest.mark.parametrize("arch", ["sm_90a", *ON_PAIRS])
@pytest.mark.parametrize("degree", POLYNOMIALS)
def test_emulated_powers_have_the_bits_of_the_definition(degree: int, arch: str) -> None:
    x = arguments_of_rows()
    found, expected = powers(x, degree, arch), emulated_exp2(x, degree)
    assert torch.equal(found.view(torch.int32), expected.view(torch.int32))


def test_the_unit_and_the_polynomials_agree_on_what_is_masked() -> None:
    masked = torch.full((2 * ROWS,), -torch.inf)
    for degree in (None, *POLYNOMIALS):
        assert torch.equal(powers(masked, degree).view(torch.int32), torch.zeros_like(masked).int())


@pytest.mark.parametrize(("arch", "numbers"), [("sm_90a", "f32"), ("sm_100a", "f32x2")])
def test_emulated_powers_take_no_exponential_unit_and_pairs_where_there_are_some(
    arch: str, numbers: str
) -> None:
    place = pointer(Float32, 1 << 20)
    given = (place, place, Int32(1))
    text = compile_with_cute(Powers(3, arch in ON_PAIRS), given, arch).ptx
    of_two = 1 if arch in ON_PAIRS else 2
    assert "ex2" not in text
    assert text.count(f"fma.rn.{numbers} ") == 3 * of_two
    assert text.count(f"add.rm.{numbers} ") == of_two
