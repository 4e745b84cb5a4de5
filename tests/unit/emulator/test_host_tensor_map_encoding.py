"""Tensor maps as the driver writes them: its words for an H200, and what it refuses."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest

from flexfa4.emulator.host.errors import TensorMapError
from flexfa4.emulator.host.tensor_map_encoding import TiledArguments

# f32 of 2 * 4 * 8 * 32 * 64; with a rank, as many of the axes
SIZES, BOX = (64, 32, 8, 4, 2), (8, 4, 1, 1, 1)
STRIDES = (256, 8192, 65536, 262144)


def arguments(rank: int = 2, **changes: object) -> TiledArguments:
    base = TiledArguments(
        7, 0x7F0000001000, SIZES[:rank], STRIDES[: rank - 1], BOX[:rank], (1,) * rank
    )
    return replace(base, **changes)  # type: ignore[arg-type]


# what changes in the eight words of the driver's map
WORDS = (
    0x7F0000001000, 0x10_00000390, 0, 0, 0x1F_0000003F, 0, 0x07000000_00000000, 3,
)  # fmt: skip
RANK_5 = (
    0x7F0000001000, 0x10_000003C0, 0x1000_00000200, 0x4000, 0x1F_0000003F, 0x3_00000007,
    0x07000000_00000001, 3,
)  # fmt: skip


@pytest.mark.parametrize(
    "given,base,changed",
    [
        (arguments(), WORDS, {}),
        (arguments(1), WORDS, {1: 0x380, 4: 0x3F, 7: 0}),
        (arguments(3), WORDS, {1: 0x10_000003A0, 2: 0x200, 5: 7}),
        (arguments(5), RANK_5, {}),
        *(
            (arguments(data_type=data_type, box=(16, 4)), WORDS, {1: word, 6: 0x0F << 56})
            for data_type, word in (
                (2, 0x10_00000110), (3, 0x10_00000190), (4, 0x10_00000210), (5, 0x10_00000290),
                (8, 0x10_00000490), (10, 0x10_00000410), (11, 0x10_00010390),
                (12, 0x10_00010410), (9, 0x10_00000510), (6, 0x10_00000310),
                (1, 0x10_00000090), (0, 0x10_00000010),
            )
        ),
        *((arguments(swizzle=s), WORDS, {1: 0x10_00000390 | s << 13}) for s in (1, 2, 3)),
        # what an H200 has not: codes and bits are those that tensormap.replace writes
        *((arguments(swizzle=3 + s), WORDS, {1: 0x10_00006390 | s << 19}) for s in (1, 2, 3)),
        (arguments(data_type=13, box=(32, 4)), WORDS, {1: 0x10_00000590, 6: 0x1F << 56}),
        *(
            (arguments(data_type=data_type, sizes=(128, 32), box=(128, 4)), WORDS,
             {1: word, 4: 0x1F_0000007F, 6: 0x7F << 56})
            for data_type, word in ((14, 0x10_00000610), (15, 0x10_00000690))
        ),
        *((arguments(fetched=n), WORDS, {1: 0x10_00000390 | n << 17}) for n in (1, 2, 3)),
        (arguments(fill=1), WORDS, {1: 0x10_00008390}),
        *(
            (arguments(5, steps=tuple(3 if i == axis else 1 for i in range(5))), RANK_5,
             {6: 0x07000000_00000001 | 2 << (32 + 3 * axis)})
            for axis in range(5)
        ),
        (
            arguments(5, strides=(0x1230000000, 0x4560000000, 0x7890000000, 0xABC0000000)),
            RANK_5,
            {1: 0x23000000_000003C0, 2: 0x89000000_56000000, 3: 0x0000A741_BC000000},
        ),
        (arguments(5, box=(8, 5, 6, 7, 8)), RANK_5, {7: 0x07060504}),
    ],
)  # fmt: skip
def test_the_words_are_those_of_the_driver(
    given: TiledArguments, base: tuple[int, ...], changed: dict[int, int]
) -> None:
    expected = [changed.get(i, word) for i, word in enumerate(base)]
    assert struct.unpack("<16Q", given.encode()) == (*expected, *[0] * 8)


@pytest.mark.parametrize(
    "given,report",
    [
        (arguments(data_type=16), "data type 16"),
        (arguments(sizes=()), "rank 0"),
        (arguments(interleave=1), "interleave 1"),
        (arguments(swizzle=7), "swizzle 7"),
        (arguments(swizzle=1, box=(16, 4)), "a box of 64 bytes"),
        (arguments(box=(8, 257)), "a box of"),
        (arguments(box=(6, 4)), "a box of 24 bytes"),
        (arguments(sizes=(0, 32)), "sizes"),
        (arguments(steps=(1, 9)), "element strides"),
        (arguments(strides=(24,)), "strides of"),
        (arguments(strides=(1 << 40,)), "strides of"),
        (arguments(address=0x1008), "address 0x1008"),
    ],
)
def test_what_the_driver_refuses_is_refused(given: TiledArguments, report: str) -> None:
    with pytest.raises(TensorMapError, match=report):
        given.encode()
