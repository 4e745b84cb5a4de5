"""What is shipped: one importable name, every module once, and documents that match the code."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections import Counter
from pathlib import Path

import pytest

from flexfa4.config import VARIABLES

ROOT = Path(__file__).parent.parent
MAPPED = ("emulator", "frontend", "kernels", "primitives")
PYPROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
# Loaded only when a value of the package is given to it, so that it is there already.
LOADED_BY_ITSELF = {"numpy"}
# Packages that are imported by another name than the one they are installed by.
IMPORTED_AS = {
    "apache-tvm-ffi": "tvm_ffi",
    "nvidia-cutlass-dsl": "cutlass",
    "pillow": "PIL",
    "pyyaml": "yaml",
}
SHIPPED = ("LICENSE", "README.md", "pyproject.toml", "flexfa4", *MAPPED)


def packages_on_disk() -> dict[str, Path]:
    """Every package by its import name: the folders that hold an __init__.py."""
    packages = {}
    for root, name in [("flexfa4", "flexfa4"), *((m, f"flexfa4.{m}") for m in MAPPED)]:
        for init in (ROOT / root).rglob("__init__.py"):
            below = init.parent.relative_to(ROOT / root).parts
            packages[".".join((name, *below))] = init.parent
    return packages


def listed(section: str, opening: str) -> set[str]:
    """Read a list of strings from pyproject.toml (tomllib only came with Python 3.11)."""
    text = PYPROJECT.split(f"[{section}]", 1)[1].split(opening, 1)[1].split("]", 1)[0]
    return {line.strip().strip('",') for line in text.splitlines() if line.strip()}


def requirements(name: str) -> set[str]:
    """Return what the packages that pyproject.toml lists under a name are imported as."""
    found = re.search(rf"^{name} = \[(.*?)\]\n", PYPROJECT, re.MULTILINE | re.DOTALL)
    assert found is not None
    return {IMPORTED_AS.get(name, name) for name in re.findall(r'"([\w-]+)', found[1])}


def packages_imported_in(*folders: str, in_functions: bool) -> set[str]:
    """Return the top-level names of what modules import, the standard library's and ours apart."""
    names = set()
    for path in (p for folder in folders for p in (ROOT / folder).rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree) if in_functions else tree.body:
            if isinstance(node, ast.Import):
                names |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                names.add(node.module.split(".")[0])
    return names - sys.stdlib_module_names - {"flexfa4", "tests"}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Build the wheel and the sdist from a copy of the sources; return their paths."""
    copy = tmp_path_factory.mktemp("source")
    for name in SHIPPED:
        if (ROOT / name).is_dir():
            shutil.copytree(
                ROOT / name,
                copy / name,
                symlinks=True,
                ignore=shutil.ignore_patterns("__pycache__"),
            )
        else:
            shutil.copy(ROOT / name, copy)
    code = (
        "from setuptools import build_meta as build\n"
        "print(build.build_wheel('dist'), build.build_sdist('dist'), sep='\\n')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=copy, capture_output=True, text=True, check=True
    )
    wheel, sdist = done.stdout.split()[-2:]
    return copy / "dist" / wheel, copy / "dist" / sdist


def test_the_dependencies_are_what_shipped_code_imports() -> None:
    needed = requirements("dependencies") | requirements("plot") | requirements("gpu")
    found = packages_imported_in("flexfa4", *MAPPED, in_functions=True)
    assert found - LOADED_BY_ITSELF == needed


def test_tests_and_scripts_import_only_what_the_test_extra_brings() -> None:
    extras = requirements("plot") | requirements("test") | requirements("gpu")
    brought = requirements("dependencies") | extras
    # functions of tests also import modules that the tests make
    found = packages_imported_in("tests", "benchmarks", "docs", "examples", in_functions=False)
    found -= {path.stem for path in (ROOT / "benchmarks").iterdir()}  # they share code
    assert found <= brought and {"hypothesis", "pytest", "rich"} <= found


def test_the_package_list_names_every_package() -> None:
    assert listed("tool.setuptools", "packages = [") == set(packages_on_disk())


def test_the_wheel_brings_one_top_level_name(built: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(built[0]) as wheel:
        (top_level,) = (n for n in wheel.namelist() if n.endswith("top_level.txt"))
        assert wheel.read(top_level).decode().split() == ["flexfa4"]


def test_the_wheel_holds_every_module_and_data_file(built: tuple[Path, Path]) -> None:
    expected = {"flexfa4/py.typed"}
    for name, folder in packages_on_disk().items():
        files = [*folder.glob("*.py"), *folder.glob("*.lark")]
        expected |= {f"{name.replace('.', '/')}/{f.name}" for f in files}
    core = ROOT / "emulator" / "native"
    sources = [*core.rglob("*.cpp"), *core.rglob("*.hpp")]
    assert sources
    expected |= {f"flexfa4/emulator/native/{f.relative_to(core)}" for f in sources}
    with zipfile.ZipFile(built[0]) as wheel:
        inside = {n for n in wheel.namelist() if ".dist-info/" not in n}
    assert inside == expected


def test_the_sdist_holds_each_source_file_once(built: tuple[Path, Path]) -> None:
    with tarfile.open(built[1]) as sdist:
        names = [m.name.split("/", 1)[-1] for m in sdist.getmembers() if not m.isdir()]
    modules = Counter(name for name in names if name.endswith(".py"))
    expected = [p for folder in packages_on_disk().values() for p in folder.glob("*.py")]
    assert modules == {str(p.relative_to(ROOT)): 1 for p in expected}


def test_the_installed_wheel_runs_without_the_links(
    built: tuple[Path, Path], tmp_path: Path
) -> None:
    with zipfile.ZipFile(built[0]) as wheel:
        wheel.extractall(tmp_path)
    code = "import flexfa4.frontend.ir, flexfa4.variants; print(flexfa4.frontend.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert Path(done.stdout.strip()).is_relative_to(tmp_path)


def test_the_document_of_environment_variables_is_what_the_table_generates(
    request: pytest.FixtureRequest,
) -> None:
    rows = [f"| `{v.name}` | `{v.default}` | {v.meaning} |" for v in VARIABLES]
    text = "\n".join(
        (
            "# Environment variables",
            "",
            "Generated from the table in `flexfa4/config.py` (`pytest --update-golden` writes this",
            "file); no other module reads the environment.",
            "",
            "| name | default | meaning |",
            "|---|---|---|",
            *rows,
            "",
        )
    )
    path = ROOT / "docs" / "env_vars.md"
    if request.config.getoption("--update-golden"):
        path.write_text(text, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == text


def test_agents_file_is_short_and_claude_file_links_to_it() -> None:
    text = (ROOT / "AGENTS.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 60
    assert (ROOT / "CLAUDE.md").resolve() == ROOT / "AGENTS.md"


def test_readme_has_one_line_that_runs_the_demo_and_one_that_runs_the_tests() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    commands = [line for line in lines if line.startswith("python3 -m venv")]
    assert [c.rsplit(" && ", 1)[1] for c in commands] == [
        ".venv/bin/flexfa4 demo",
        ".venv/bin/python -m pytest -n auto --dist worksteal",
    ]


def test_the_pre_commit_hooks_are_the_tools_that_the_tests_run() -> None:
    hooks = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    for tool in ("ruff check", "ruff format", "mypy"):
        assert f"entry: {tool}" in hooks
