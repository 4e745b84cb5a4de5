"""st.bulk and discard: what they write, and the ranges that they take."""

from __future__ import annotations

import pytest
import torch

from flexfa4.emulator.failures.memory import (
    FillSizeError,
    GlobalBoundsError,
    MisalignedAccessError,
    OutOfBoundsError,
)
from tests.ptx_programs import run_instruction

SHARED = ".shared .align 16 .b8 room[1024];"


@pytest.mark.parametrize("form", ["st.bulk.weak.shared::cta [room+16]", "st.bulk [g]"])
@pytest.mark.parametrize("size", [8, 40, 0])
def test_bulk_stores_write_zeros(form: str, size: int) -> None:
    got = run_instruction(
        f"""mov.u32 r, room; shl.b32 t, i, 2; add.u32 r, r, t; st.shared.u32 [r], 7;
        cvta.shared.u64 g, room; add.u64 g, g, 16; setp.eq.u32 q, i, 3; @q {form}, {size}, 0;
        ld.shared.u32 d, [r];""",
        {"i:u32": list(range(32))},
        "d:u32",
        declare=SHARED,
        registers=".reg .b32 r, t; .reg .b64 g; .reg .pred q;",
    )
    assert got["d"] == [0 if 4 <= i < 4 + size // 4 else 7 for i in range(32)]


def test_bulk_stores_initialise() -> None:
    got = run_instruction(
        "st.bulk.shared::cta [room], 1024, 0; ld.shared.b64 d, [room+1016];",
        outputs="d:b64",
        declare=SHARED,
        active=1,
    )
    assert got["d"][0] == 0


@pytest.mark.parametrize(
    ("operands", "error"),
    [("[room+4], 8, 0", MisalignedAccessError), ("[room], 12, 0", FillSizeError),
     ("[room+512], 520, 0", OutOfBoundsError), ("[room], 0x100000000, 0", FillSizeError),
     ("[room], 8, 1", FillSizeError)],
)  # fmt: skip
def test_bulk_stores_take_multiples_of_8_within_shared_memory(
    operands: str, error: type[Exception]
) -> None:
    with pytest.raises(error):
        run_instruction(f"st.bulk.shared::cta {operands};", declare=SHARED)


def test_discarded_bytes_are_poison() -> None:
    start = torch.zeros(128, dtype=torch.int32)
    first = -start.data_ptr() % 128 // 4
    run_instruction(f"discard.global.L2 [p+{4 * first}], 128;", memory={"p": start}, active=1)
    assert start.tolist() == [-1 if first <= i < first + 32 else 0 for i in range(128)]


@pytest.mark.parametrize(
    ("offset", "size", "error"),
    [(4, 128, MisalignedAccessError), (0, 64, FillSizeError), (1 << 20, 128, GlobalBoundsError)],
)
def test_whole_lines_of_an_allocation_are_discarded(
    offset: int, size: int, error: type[Exception]
) -> None:
    data = torch.zeros(128, dtype=torch.int32)
    first = -data.data_ptr() % 128
    with pytest.raises(error):
        run_instruction(f"discard.L2 [p+{first + offset}], {size};", memory={"p": data})
