"""The documents name only what exists: files, folders, links and names of the package; and the maps
in the docstrings of packages name all that does.

Placeholders (``tests/unit/<package>/test_<module>.py``), addresses on the web and files that a
reader makes are left alone.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import flexfa4

ROOT = Path(__file__).parent.parent
FOLDERS = (".", "docs", "tests", "benchmarks", "examples")
MADE_BY_READERS = (".venv", "flexfa4-demo")
DOCUMENTS = sorted(
    str(path.relative_to(ROOT))
    for folder in FOLDERS
    for path in (*(ROOT / folder).glob("*.md"), *(ROOT / folder).glob("README"))
)

ADDRESS = re.compile(r"https?://\S+")
PATH = re.compile(r"[\w.<>{},*-]+/[\w./<>{},*-]*")
SOURCE = re.compile(r"\.(json|lark|md|py|toml|txt|yaml)$")
LINK = re.compile(r"\]\(([^)#]+)[^)]*\)")
NAME = re.compile(r"\bflexfa4(?:\.[A-Za-z_]\w*)+")


def paths(text: str) -> Iterator[str]:
    """Yield what reads as a path of this checkout: with a suffix, or below one of its folders."""
    for word in PATH.findall(ADDRESS.sub("", text)):
        path = word.rstrip(".,")
        first = path.split("/")[0]
        if first in MADE_BY_READERS or re.search(r"[<>{}*]", path):
            continue
        if SOURCE.search(path) or (ROOT / first).is_dir():
            yield path


def is_name(dotted: str) -> bool:
    """Whether a dotted name is a module of the package, or is reached from one by attributes."""
    module, *attributes = dotted.split(".")
    found = importlib.import_module(module)
    for attribute in attributes:
        module += f".{attribute}"
        if not hasattr(found, attribute):
            try:
                importlib.import_module(module)
            except ModuleNotFoundError:
                return False
        found = getattr(found, attribute)
    return True


def missing(text: str, folder: Path) -> list[str]:
    """Return what a document in `folder` names and is not there."""
    links = (link for link in LINK.findall(text) if not ADDRESS.match(link))
    return [
        *(path for path in paths(LINK.sub("", text)) if not (ROOT / path).exists()),
        *(link for link in links if not (folder / link).exists()),
        *(name for name in NAME.findall(ADDRESS.sub("", text)) if not is_name(name)),
    ]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_a_document_names_only_what_exists(document: str) -> None:
    path = ROOT / document
    assert not missing(path.read_text(encoding="utf-8"), path.parent)


@pytest.mark.parametrize("name", ["attention", "attention_varlen", "create_block_mask"])
def test_readme_shows_the_signature_as_it_is(name: str) -> None:
    signature = inspect.signature(getattr(flexfa4, name))
    bare = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in signature.parameters.values()
    ]
    shown = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert f"{name}{inspect.Signature(bare)}" in shown


def test_readme_shows_the_defaults_of_the_variants() -> None:
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
        if line.startswith("| `")
    ]
    table = {name.strip("`"): parameters for name, parameters, *_ in rows}
    for name in ("sliding_window", "softcap"):
        variant = getattr(flexfa4.variants, name)
        (field,) = dataclasses.fields(variant)
        assert f"{type(variant).__name__}({field.name})` ({field.default:g})" in table[name]


def unmapped(package: Path) -> list[str]:
    """Return the modules of a package that the map in its docstring does not name."""
    doc = ast.get_docstring(ast.parse((package / "__init__.py").read_text(encoding="utf-8"))) or ""
    modules = [p.stem for p in package.glob("*.py") if not p.stem.startswith("__")]
    packages = [p.parent.name for p in package.glob("*/__init__.py")]
    return [name for name in (*modules, *packages) if not re.search(rf"\b{name}\b", doc)]


@pytest.mark.parametrize(
    "package",
    [
        "emulator",
        "emulator/ptx",
        "flexfa4/cli",
        "flexfa4/flex",
        "flexfa4/plotting",
        "flexfa4/torch_op",
        "frontend",
        "frontend/analysis",
        "frontend/masks",
        "frontend/masks/search",
        "frontend/masks/solving",
        "frontend/rewriting",
        "frontend/text",
        "frontend/tracing",
        "kernels",
        "kernels/blocks",
        "kernels/cache",
        "kernels/compile",
        "kernels/cpu",
        "kernels/emit",
        "kernels/flex",
        "kernels/forward",
        "kernels/launch",
        "kernels/sm90",
        "kernels/sm90/forward",
        "kernels/sm100",
        "kernels/sm100/forward",
        "primitives",
    ],
)
def test_the_map_of_a_package_names_all_its_modules(package: str) -> None:
    assert not unmapped(ROOT / package)


def test_a_module_that_is_on_no_map_is_found(tmp_path: Path) -> None:
    for name, text in (("__init__", '"""Of one and none."""'), ("one", ""), ("two", "")):
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    assert unmapped(tmp_path) == ["two"]


def test_the_documents_are_found() -> None:
    assert {"README.md", "AGENTS.md", "docs/architecture.md", "tests/README"} <= set(DOCUMENTS)


@pytest.mark.parametrize(
    "text",
    [
        "a row in `frontend/intervals.py`",
        "run `pytest tests/unit/frontend/test_rules.py`.",
        "the folder `frontend/passes/`",
        "in elsewhere/module.py, or not",
        "see [the map](docs/plan.md)",
        "the leaf `flexfa4.utilities`",
        "call `flexfa4.frontend.trace.resolve(mod)`",
        "    flexfa4.attend(q, k, v)",
    ],
)
def test_the_rule_finds_what_does_not_exist(text: str) -> None:
    assert missing(text, ROOT)


@pytest.mark.parametrize(
    "text",
    [
        "`frontend/analysis/intervals.py`, and the folder `kernels/cpu/`.",
        "[the map](docs/architecture.md#meaning) and https://example.org/no/such/file.py",
        "`tests/unit/<package>/test_<module>.py`, `flexfa4/<name>` and and/or",
        "`flexfa4.Options(scores_at_once=1)`, `flexfa4.frontend.tracing.trace.resolve`",
        "`flexfa4.errors`. Then `my_masks.py` in your folder, or `.venv/bin/no-such-command`",
    ],
)
def test_the_rule_accepts_what_exists_and_what_is_no_name(text: str) -> None:
    assert not missing(text, ROOT)
