"""The front door: names are loaded on first use, and each is documented."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import flexfa4

SOURCE = Path(flexfa4.__file__)


def in_fresh_process(code: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_importing_flexfa4_loads_neither_torch_nor_any_of_its_own_modules() -> None:
    code = (
        "import sys, flexfa4; dir(flexfa4); repr(flexfa4)\n"
        "print(*[m for m in sys.modules if m.split('.')[0] in ('torch', 'numpy', 'lark')"
        " or m.startswith('flexfa4.')])"
    )
    assert in_fresh_process(code) == []


def test_the_counters_alone_do_not_load_torch() -> None:
    assert in_fresh_process(
        "import sys, flexfa4; flexfa4.stats(); print('torch' in sys.modules)"
    ) == ["False"]


def test_dir_lists_every_public_name_and_nothing_is_listed_that_is_not_there() -> None:
    assert set(flexfa4.__all__) <= set(dir(flexfa4))
    assert all(hasattr(flexfa4, name) for name in dir(flexfa4))
    assert flexfa4.__all__ == sorted(flexfa4.__all__)


def test_dir_lists_no_name_that_the_module_itself_imported() -> None:
    importlib.import_module("flexfa4.report")
    assert "report" in vars(flexfa4)
    listed = {name for name in dir(flexfa4) if not name.startswith("__")}
    assert listed == {*flexfa4.__all__, *flexfa4._MODULES}


def test_an_unknown_name_is_an_attribute_error_and_a_failed_import() -> None:
    with pytest.raises(AttributeError, match="module 'flexfa4' has no attribute 'atention'"):
        flexfa4.atention  # noqa: B018
    with pytest.raises(ImportError):
        exec("from flexfa4 import atention")
    assert not hasattr(flexfa4, "__wrapped__")


def test_variants_and_errors_are_there_without_an_import_of_their_own() -> None:
    code = "import flexfa4; print(flexfa4.{})"
    assert in_fresh_process(code.format("variants.causal")) == ["Causal()"]
    assert in_fresh_process(code.format("errors.TextError.__name__")) == ["TextError"]


def test_a_name_is_loaded_once() -> None:
    assert flexfa4.attention is vars(flexfa4)["attention"]


def test_type_checkers_see_the_names_from_where_they_are_loaded() -> None:
    tree = ast.parse(SOURCE.read_text(encoding="utf-8"))
    imported = {
        alias.name: (node.module or "").removeprefix("flexfa4.")
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("flexfa4.")
        for alias in node.names
    }
    assert imported == flexfa4._HOME
    assert sorted(imported) == flexfa4.__all__


def test_no_module_has_the_name_of_a_public_object() -> None:
    modules = {module.name for module in pkgutil.iter_modules(flexfa4.__path__)}
    assert {"api", "frontend", "variants"} <= modules
    assert not modules & set(flexfa4.__all__)


def documented(value: Any) -> list[str]:
    """Return the names of public parts without a docstring."""
    parts = {"": value}
    if isinstance(value, type):
        parts |= {
            name: part
            for name, part in vars(value).items()
            if not name.startswith("_") and (callable(part) or isinstance(part, property))
        }
    return [
        name for name, part in parts.items() if not (getattr(part, "__doc__", "") or "").strip()
    ]


@pytest.mark.parametrize("name", flexfa4.__all__)
def test_every_public_name_is_documented(name: str) -> None:
    assert documented(getattr(flexfa4, name)) == []


@pytest.mark.parametrize("name", ["attention", "create_block_mask", "explain", "mask", "plot_mask"])
def test_the_docstring_of_a_public_function_names_every_parameter(name: str) -> None:
    function = getattr(flexfa4, name)
    lines = [line.strip() for line in function.__doc__.split("\n")]
    for parameter in function.__annotations__:
        if parameter != "return":
            assert any(line.startswith((f"{parameter}:", f"{parameter},")) for line in lines)
