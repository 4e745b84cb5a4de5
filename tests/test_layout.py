"""Imports point one way, the front door is light, and no stage below it knows a variant's name."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LEAVES = ("flexfa4.errors", "flexfa4.config", "flexfa4.counters")

# Each layer: the folder that holds it, and the packages its modules may import.
FRONTEND = ("flexfa4.frontend", *LEAVES)
PRIMITIVES = ("flexfa4.primitives", *FRONTEND)
KERNELS = ("flexfa4.kernels", "flexfa4.emulator", "flexfa4.collector", *PRIMITIVES)
LAYERS = {
    "frontend": FRONTEND,
    "primitives": PRIMITIVES,
    "kernels": KERNELS,
    "emulator": ("flexfa4.emulator", "flexfa4.config"),
}
# The modules of flexfa4/ that know a backend; the others work for any.
FRONT_OF_KERNELS = (
    "flexfa4/ahead_of_time.py",
    "flexfa4/api.py",
    "flexfa4/device_lengths.py",
    "flexfa4/report.py",
    "flexfa4/torch_op/ops.py",
)


def modules_of(folder: str) -> list[Path]:
    # rglob does not enter linked folders, so flexfa4/ yields its own modules only
    return sorted((ROOT / folder).rglob("*.py"))


def imports_of(tree: ast.AST) -> Iterator[str]:
    """Yield the full name of everything the module imports, inside functions too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def within(name: str, packages: tuple[str, ...]) -> bool:
    return any(name == p or name.startswith(p + ".") for p in packages)


def forbidden_imports(source: str, allowed: tuple[str, ...]) -> list[str]:
    ours = [name for name in imports_of(ast.parse(source)) if within(name, ("flexfa4",))]
    return [name for name in ours if not within(name, allowed)]


@pytest.mark.parametrize("folder", LAYERS)
def test_a_layer_imports_only_layers_below_it(folder: str) -> None:
    allowed = LAYERS[folder]
    wrong = {
        str(path.relative_to(ROOT)): names
        for path in modules_of(folder)
        if (names := forbidden_imports(path.read_text(encoding="utf-8"), allowed))
    }
    assert not wrong


@pytest.mark.parametrize("leaf", LEAVES)
def test_a_leaf_imports_nothing_of_the_project(leaf: str) -> None:
    path = ROOT / (leaf.replace(".", "/") + ".py")
    assert not forbidden_imports(path.read_text(encoding="utf-8"), ())


def test_only_the_front_of_the_backends_imports_kernels() -> None:
    importers = {
        str(path.relative_to(ROOT))
        for path in modules_of("flexfa4")
        if imports_kernels(path.read_text(encoding="utf-8"))
    }
    assert importers == set(FRONT_OF_KERNELS)


def imports_kernels(source: str) -> bool:
    return any(within(name, ("flexfa4.kernels",)) for name in imports_of(ast.parse(source)))


def test_the_layer_check_sees_imports_inside_functions_and_through_the_front_door() -> None:
    source = "def f():\n    from flexfa4.kernels import plan\n    from flexfa4 import kernels"
    assert forbidden_imports(source, FRONTEND) == ["flexfa4.kernels.plan", "flexfa4.kernels"]


def test_importing_flexfa4_loads_no_heavy_package() -> None:
    heavy = ("cutlass", "triton", "sympy", "lark", "matplotlib", "rich")
    code = f"import flexfa4, sys; print(*[m for m in {heavy!r} if m in sys.modules])"
    assert run_python(code) == ""


def test_tracing_loads_neither_gpu_nor_drawing_packages() -> None:
    code = (
        "import flexfa4, sys\n"
        "flexfa4.trace(lambda score, b, h, q_idx, kv_idx: score + (kv_idx - q_idx))\n"
        "print(*[m for m in ('cutlass', 'triton', 'matplotlib', 'rich') if m in sys.modules])"
    )
    assert run_python(code) == ""


def test_the_way_to_a_first_call_loads_no_backend_and_no_compiler() -> None:
    # a process that finds its kernel on disk is to answer at once
    late = [
        f"flexfa4.kernels.{name}"
        for name in (
            "compile.compiler", "cpu.function", "emit.cost", "flex.function",
            "backward.function", "sm90.model", "sm100.tuning", "varlen.call",
        )
    ]  # fmt: skip
    for name in late:
        assert importlib.util.find_spec(name), name
    code = f"import flexfa4, sys; flexfa4.attention; print(*set({late}) & set(sys.modules))"
    assert run_python(code) == ""


def test_calls_import_nothing_of_torchs_compiler() -> None:
    # some plain functions of torch import sympy when they are called: a third of a second
    code = (
        "import flexfa4, sys, torch\n"
        "x = torch.randn(2, 2, 300, 16, requires_grad=True)\n"
        "ids = (torch.arange(300) // 70).repeat(2, 1)\n"
        "slopes = torch.rand(2, requires_grad=True)\n"
        "mod = lambda s, b, h, q, kv: torch.tanh(s) + slopes[h] * (kv - q)\n"
        "documents = lambda b, h, q, kv: (q >= kv) & (ids[b, q] == ids[b, kv])\n"
        "holes = lambda b, h, q, kv: documents(b, h, q, kv) | (kv % 7 == ids[b, q])\n"
        "for mask in (documents, holes):\n"
        "    flexfa4.attention(x, x, x, score_mod=mod, block_mask=mask).sum().backward()\n"
        "print('sympy' in sys.modules)"
    )
    assert run_python(code) == "False"


@pytest.mark.parametrize("folder", LAYERS)
def test_a_root_folder_refuses_to_be_imported_as_a_top_level_package(folder: str) -> None:
    code = (
        f"try:\n    import {folder}\n"
        f"except ImportError as error:\n    print(error)\nelse:\n    print('imported')"
    )
    message = run_python(code)
    assert f"write `import flexfa4.{folder}`" in message


@pytest.mark.parametrize("folder", LAYERS)
def test_a_root_folder_is_linked_into_the_package(folder: str) -> None:
    link = ROOT / "flexfa4" / folder
    assert link.resolve() == (ROOT / folder).resolve()


@pytest.mark.parametrize("folder", ["frontend", "primitives", "kernels"])
def test_no_stage_below_the_front_door_names_a_variant(folder: str) -> None:
    names = "|".join(variant_names())
    assert "alibi" in names
    found = {
        f"{path.relative_to(ROOT)}:{line} {word}"
        for path in modules_of(folder)
        for line, word in words_of(ast.parse(path.read_text(encoding="utf-8")))
        if re.search(rf"(?<![a-z])({names})(?![a-z])", word.lower())
    }
    assert not found


def variant_names() -> set[str]:
    """Every public name of flexfa4.variants in lower case, read from the source."""
    source = (ROOT / "flexfa4" / "variants" / "__init__.py").read_text(encoding="utf-8")
    (names,) = (
        ast.literal_eval(node.value)
        for node in ast.parse(source).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )
    return {name.lower() for name in names}


def words_of(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the identifiers and strings of a module with their lines; not its docstrings."""
    # docstrings are the strings that stand alone as statements
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        for field in ("id", "attr", "arg", "name", "asname", "module", "value"):
            word = getattr(node, field, None)
            if isinstance(word, str) and id(node) not in prose:
                yield getattr(node, "lineno", 0), word


def run_python(code: str) -> str:
    """Run code in a fresh interpreter at the root of the checkout; return what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()
