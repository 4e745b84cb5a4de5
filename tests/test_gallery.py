"""The gallery of variants shows every one of them, as the library has it."""

from __future__ import annotations

import importlib
import io
from pathlib import Path
from types import ModuleType

import pytest
from PIL import Image

import flexfa4
from flexfa4.variant_examples import examples
from flexfa4.variant_index import entries

ROOT = Path(__file__).parent.parent
PICTURES = ROOT / "docs" / "pictures"
LARGEST = 10_000  # bytes of a picture


@pytest.fixture(scope="module")
def gallery() -> ModuleType:
    return importlib.import_module("docs.make_gallery")


def test_the_committed_text_is_what_the_docstrings_say(
    gallery: ModuleType, request: pytest.FixtureRequest
) -> None:
    path = ROOT / "docs" / "variants.md"
    if request.config.getoption("--update-golden"):
        path.write_text(gallery.text(), encoding="utf-8")
    assert path.read_text(encoding="utf-8") == gallery.text(), "run docs/make_gallery.py"


def test_every_variant_has_an_example() -> None:
    names = [row.name for row in examples()]
    assert sorted(names) == sorted(entries()) and len(set(names)) == len(names)


def test_every_variant_has_a_small_picture_and_no_picture_is_left_over() -> None:
    pictures = {path.stem: path for path in PICTURES.iterdir()}
    assert set(pictures) == set(entries())
    for path in pictures.values():
        assert path.stat().st_size <= LARGEST, path
        with Image.open(path) as image:
            assert image.format == "PNG" and len(image.convert("RGB").getcolors() or []) > 2


def test_every_variant_is_made_explained_and_drawn(gallery: ModuleType) -> None:
    for row in examples():
        mod, entry = row.made(), entries()[row.name]
        assert isinstance(mod, entry.variant) or entry.variant.__name__ in row.example
        assert flexfa4.explain(mod)["on the CPU"].rows
        drawn = gallery.picture(row).axes
        shown = drawn[0].images[0].get_array() if drawn[0].images else drawn[0].lines[0].get_ydata()
        assert len({round(float(value), 6) for value in shown.flat}) > 1, row.name


@pytest.mark.parametrize("name", ["causal", "neighborhood", "alibi", "alibi_2d", "softcap"])
def test_a_picture_of_each_kind_is_drawn_as_it_was_committed(
    gallery: ModuleType, name: str
) -> None:
    (row,) = (row for row in examples() if row.name == name)
    drawn = io.BytesIO()
    gallery.write(row, drawn)
    with Image.open(drawn) as new, Image.open(PICTURES / f"{name}.png") as committed:
        # fonts and antialiasing may differ; that it is the same picture shows when both are small
        assert new.size == committed.size
        small = [image.convert("L").resize((24, 12)).tobytes() for image in (new, committed)]
    assert max(abs(a - b) for a, b in zip(*small, strict=True)) < 32
