"""Tokens of PTX text, and the cursor over them."""

from __future__ import annotations

import pytest

from flexfa4.emulator.ptx.errors import CharacterError, SyntaxMistakeError, TruncatedError
from flexfa4.emulator.ptx.scanner import Cursor, scan, source_of


def texts(text: str) -> list[str]:
    return [token.text for token in scan(source_of(text))][:-1]


def kinds(text: str) -> list[str]:
    return [token.kind for token in scan(source_of(text))][:-1]


def test_an_opcode_with_its_modifiers_is_one_token() -> None:
    text = "@!p cp.async.bulk.tensor.2d.shared::cta.global [%r1+8], {%r2};"
    assert texts(text)[3] == "cp.async.bulk.tensor.2d.shared::cta.global"
    assert texts(text)[4:] == ["[", "%r1", "+", "8", "]", ",", "{", "%r2", "}", ";"]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("%tid.x", "word"),
        ("$L__BB0_2", "word"),
        ("_", "word"),
        ("tcgen05.wait::ld.sync.aligned", "word"),
        ("mbarrier.try_wait.parity.acquire.cta.shared::cta.b64", "word"),
        (".reg", "directive"),
        (".b32", "directive"),
        ("0x7771U", "number"),
        ("0fFF800000", "number"),
        ("0d3FF0000000000000", "number"),
        ("0b101", "number"),
        ("8.8", "number"),
        ("1.5e-3", "number"),
        ("10U", "number"),
        ('"nounroll"', "string"),
    ],
)
def test_a_token_is_one_piece_of_its_kind(text: str, kind: str) -> None:
    assert (texts(text), kinds(text)) == ([text], [kind])


def test_comments_and_space_are_no_tokens() -> None:
    assert texts("a // b\n/* c\n d */ e\t;") == ["a", "e", ";"]


def test_a_token_tells_its_line_and_column() -> None:
    cursor = Cursor("ret;\n/* two\nlines */ exit;")
    place = cursor.place(cursor.tokens[2])
    assert (place.line, place.column, place.width, place.text) == (3, 9, 4, "lines */ exit;")


@pytest.mark.parametrize(
    ("text", "construct"), [("ret; /* no end", "a comment"), ('.pragma "no end', "a string")]
)
def test_text_that_ends_inside_a_comment_or_string_is_truncated(text: str, construct: str) -> None:
    with pytest.raises(TruncatedError, match=f"ends inside {construct}"):
        scan(source_of(text))


def test_a_character_that_starts_nothing_is_shown() -> None:
    with pytest.raises(CharacterError, match="'#' starts nothing") as caught:
        scan(source_of("ret;\n  # 5"))
    assert caught.value.where is not None and caught.value.where.line == 2


def test_a_wrong_token_is_a_mistake_and_the_end_a_truncation() -> None:
    cursor = Cursor("a b")
    with pytest.raises(SyntaxMistakeError, match=r"`a` cannot stand here"):
        cursor.expect(";", "a list")
    cursor.advance(), cursor.advance()
    with pytest.raises(TruncatedError, match="ends inside a list"):
        cursor.expect(";", "a list")
