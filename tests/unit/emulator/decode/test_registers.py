"""Places in the register file."""

from __future__ import annotations

import itertools

from flexfa4.emulator.decode.encoding import Filled
from flexfa4.emulator.decode.registers import LINE, RegisterFile, register_bits
from flexfa4.emulator.ptx.program import Register
from flexfa4.emulator.ptx.types import TYPES


def test_registers_of_all_sizes_and_functions_lie_apart() -> None:
    sizes = {"b128": 512, "b64": 256, "f32": 128, "b16": 64, "b8": 64, "pred": 4}
    registers = [Register(f"{name}{i}", TYPES[name], i) for name in sizes for i in range(3)]
    file = RegisterFile()
    for function in ("f", "g"):
        file.add_function(
            function, {r: r.slot for r in registers}, {TYPES[name].bits: 3 for name in sizes}
        )
    ends = []
    for function in ("f", "g"):
        for register in registers:
            start = file.place(function, register)
            nbytes = sizes[register.type.name]
            assert start % min(nbytes, LINE) == 0
            ends.append((start, start + nbytes))
    ends.sort()
    assert all(stop <= start for (_, stop), (start, _) in itertools.pairwise(ends))
    assert ends[-1][1] <= file.size


def test_equal_numbers_share_a_register_and_others_do_not() -> None:
    file = RegisterFile()
    one = file.filled(Filled.NUMBER, 32, 1)
    assert file.filled(Filled.NUMBER, 32, 1) == one
    others = [
        file.filled(Filled.NUMBER, 64, 1),
        file.filled(Filled.NUMBER, 32, 2),
        file.filled(Filled.SHARED, 32, 1),
        file.filled(Filled.SPECIAL, 32, 0, "laneid"),
        file.filled(Filled.SPECIAL, 32, 0, "warpid"),
        file.sink(),
    ]
    assert len({one, *others}) == 7
    assert file.sink() == others[-1]
    assert [initial.place for initial in file.initials] == [one, *others[:-1]]


def test_values_of_eight_bits_are_held_in_sixteen() -> None:
    assert [register_bits(bits) for bits in (1, 8, 16, 128)] == [1, 16, 16, 128]
