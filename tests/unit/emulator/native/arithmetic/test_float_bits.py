"""Signs and classes of floats, on bits."""

from __future__ import annotations

import itertools

import pytest

from tests import float_rules as rules
from tests.float_rules import BF16, F16, F32, F64
from tests.ptx_rules import evaluate

FORMATS = {"f16": F16, "bf16": BF16, "f32": F32, "f64": F64, "f16x2": F16, "bf16x2": BF16}
CLASSES = ("finite", "infinite", "number", "notanumber", "normal", "subnormal")
OPCODES = [
    f"{op}{ftz}.{kind}"
    for op in ("abs", "neg")
    for kind in FORMATS
    for ftz in ("", ".ftz")
    if not ftz or kind in ("f32", "f16", "f16x2")
]


def signed(of: rules.Format, words: list[str], bits: int) -> int:
    magnitude = bits & (of.sign - 1)
    if magnitude > of.infinity:
        return bits | 1 << (of.mantissa - 1) if of is F64 else of.sign - 1
    if "ftz" in words and magnitude < 1 << of.mantissa:
        bits &= of.sign
    return bits & ~of.sign if words[0] == "abs" else bits ^ of.sign


@pytest.mark.parametrize("opcode", OPCODES)
def test_only_the_sign_changes(opcode: str) -> None:
    words = opcode.split(".")
    of = FORMATS[words[-1]]
    values = list(itertools.islice(rules.operands(of, opcode), 256))
    if words[-1].endswith("x2"):
        pairs = [(a | b << 16,) for a, b in itertools.pairwise(values)]
        wanted = [
            signed(of, words, a) | signed(of, words, b) << 16 for a, b in itertools.pairwise(values)
        ]
        assert evaluate(opcode, pairs) == wanted
    else:
        wanted = [signed(of, words, bits) for bits in values]
        assert evaluate(opcode, [(bits,) for bits in values]) == wanted


@pytest.mark.parametrize("of", [F32, F64])
def test_copysign_takes_the_sign_of_the_first_operand(of: rules.Format) -> None:
    stream = rules.operands(of, "copysign")
    rows = [tuple(itertools.islice(stream, 2)) for _ in range(128)]
    wanted = [(a & of.sign) | (b & ~of.sign) for a, b in rows]
    assert evaluate(f"copysign.{of.name}", rows) == wanted


@pytest.mark.parametrize("of", [F32, F64])
@pytest.mark.parametrize("word", CLASSES)
def test_testp_knows_the_classes(word: str, of: rules.Format) -> None:
    one, least = rules.encode(of, 1.0), 1 << of.mantissa
    members = {
        "infinite": [of.infinity],
        "notanumber": [of.infinity + 1, of.sign - 1],
        "subnormal": [1, least - 1],
        "normal": [0, least, one, of.greatest],  # zero counts as normal
    }
    members["finite"] = members["normal"] + members["subnormal"]
    members["number"] = members["finite"] + members["infinite"]
    every = sorted({bits for group in members.values() for bits in group})
    rows = [(bits | sign,) for bits in every for sign in (0, of.sign)]
    wanted = [bits & ~of.sign in members[word] for (bits,) in rows]
    assert [bool(value) for value in evaluate(f"testp.{word}.{of.name}", rows)] == wanted
