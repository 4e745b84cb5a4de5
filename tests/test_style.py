"""The rules of the code that a machine can check: sizes, names, docstrings, errors, linters.

Each rule is a function from a parsed module to complaints; one test runs a rule over every module
and another shows that the rule can fail.
"""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("flexfa4", "frontend", "primitives", "kernels", "emulator")
FOLDERS = (*PACKAGES, "benchmarks", "docs", "examples", "tests")

DEVICE_FOLDERS = ("kernels", "primitives")  # device code reads better in one piece
MAX_LINES = {"kernels": 800, "emulator": 800}
MAX_LINES_ELSEWHERE = 600
MAX_PARAMETERS = 12
# public functions with more parameters: how many, and what they are
MORE_PARAMETERS = {
    "flexfa4/varlen.py: attention_varlen": (13, "those of attention, and where sequences end"),
}
DRAWERS = {"utils", "util", "helpers", "helper", "common", "misc"}
# spelled apart, for this file follows the rule too
MARKS = ("TO" + "DO", "FIX" + "ME", "X" * 3, "HA" + "CK")
MUST_COME_FROM_THE_CATALOGUE = {
    "Exception",
    "IndexError",
    "NotImplementedError",
    "RuntimeError",
    "TypeError",
    "ValueError",
}


@dataclass(frozen=True)
class Module:
    """A source file: its path below the root, its text and its syntax tree."""

    path: Path
    text: str

    @functools.cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @property
    def folder(self) -> str:
        return self.path.parts[0]

    def functions(self) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
        for node in ast.walk(self.tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield node


Rule = Callable[[Module], Iterator[str]]


def file_size(module: Module) -> Iterator[str]:
    lines = module.text.count("\n")
    limit = MAX_LINES.get(module.folder, MAX_LINES_ELSEWHERE)
    if lines > limit:
        yield f"{lines} lines, at most {limit}"


def function_size(module: Module) -> Iterator[str]:
    limit = 150 if module.folder in DEVICE_FOLDERS else 80
    for function in module.functions():
        assert function.end_lineno is not None
        lines = function.end_lineno - function.lineno + 1
        if lines > limit:
            yield f"line {function.lineno}: {function.name} has {lines} lines, at most {limit}"


def parameter_count(module: Module) -> Iterator[str]:
    for function in module.functions():
        a = function.args
        names = [each.arg for each in (*a.posonlyargs, *a.args, *a.kwonlyargs)]
        count = len(names) - (names[:1] in (["self"], ["cls"]))  # which no caller passes
        name = f"{module.path.as_posix()}: {function.name}"
        most, _ = MORE_PARAMETERS.get(name, (MAX_PARAMETERS, ""))
        if count > most:
            yield f"line {function.lineno}: {function.name} takes {count} parameters"


def module_docstring(module: Module) -> Iterator[str]:
    if not ast.get_docstring(module.tree):
        yield "no docstring that says what the module does"


def no_drawer(module: Module) -> Iterator[str]:
    if DRAWERS & set(module.path.with_suffix("").parts):
        yield "a name that says nothing: name the file after what it holds"


def environment_only_in_config(module: Module) -> Iterator[str]:
    if module.folder not in PACKAGES or module.path == Path("flexfa4/config.py"):
        return
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv", "putenv"):
            yield f"line {node.lineno}: os.{node.attr}; add a row to flexfa4/config.py"


def errors_from_the_catalogue(module: Module) -> Iterator[str]:
    if module.folder not in PACKAGES:
        return
    for node in ast.walk(module.tree):
        if not isinstance(node, ast.Raise) or node.exc is None:
            continue
        raised = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
        if isinstance(raised, ast.Name) and raised.id in MUST_COME_FROM_THE_CATALOGUE:
            yield f"line {node.lineno}: raise {raised.id}; add a class to flexfa4/errors.py"


def nothing_left_for_later(module: Module) -> Iterator[str]:
    marks = re.compile(rf"\b({'|'.join(MARKS)})\b")
    for number, line in enumerate(module.text.splitlines(), 1):
        if marks.search(line):
            yield f"line {number}: {line.strip()}"


TOLERANCES = {"rtol", "atol"}
# files of tests in which tolerances are written as numbers: in how many places, and what they are
WRITTEN_TOLERANCES = {
    "tests/test_user_reports_lse.py": (1, "half of bf16's epsilon: one rounding"),
    "tests/unit/flexfa4/test_torch_op_compiled.py": (1, "the same kernels, compiled around"),
    "tests/unit/flexfa4/test_torch_op_context.py": (1, "the same kernels, gradients summed twice"),
    "tests/unit/flexfa4/test_torch_op_transforms.py": (1, "the same kernels on folded axes"),
    "tests/unit/flexfa4/test_variants_biases.py": (5, "fp64, and fp32 where distances cancel"),
    "tests/unit/frontend/analysis/test_facts.py": (1, "fp64, the same terms in another order"),
    "tests/unit/frontend/test_derivative.py": (1, "fp64, a formula against torch's autograd"),
    "tests/unit/frontend/test_evaluate.py": (1, "epsilons of the score dtype"),
    "tests/unit/frontend/tracing/test_torch_functions.py": (2, "fp64, a formula against torch's"),
    "tests/unit/kernels/cpu/test_function.py": (1, "fp64, five orders below what fp32 would give"),
    "tests/unit/kernels/cpu/test_lowering.py": (1, "3 ulp, which docs/architecture.md promises"),
    "tests/unit/kernels/cpu/test_products.py": (4, "tiles and their gradients, by largest element"),
    "tests/unit/kernels/cpu/test_proofs.py": (2, "weights at the ends of the bound"),
    "tests/unit/kernels/cpu/test_score_form.py": (1, "a form against its mod, on one tile"),
    "tests/unit/kernels/cpu/test_scores.py": (1, "softmax in fp32 beside softmax in fp32"),
}


def no_written_tolerance(module: Module) -> Iterator[str]:
    """Numbers above zero; zero means exact, and torch's defaults go with the dtype."""
    if module.folder != "tests":
        return
    lines = {
        node.value.lineno
        for node in ast.walk(module.tree)
        if isinstance(node, ast.keyword)
        and node.arg in TOLERANCES
        and any(isinstance(n, ast.Constant) and n.value for n in ast.walk(node.value))
    }
    allowed, _ = WRITTEN_TOLERANCES.get(module.path.as_posix(), (0, ""))
    if len(lines) > allowed:
        yield (
            f"lines {sorted(lines)}, where {allowed} may be: take a budget from excess, Trial or"
            " agrees of flexfa4.testing"
        )


# rule, and a source with its path that breaks it
RULES: dict[Rule, tuple[str, str]] = {
    file_size: ("frontend/m.py", "\n" * 601),
    function_size: ("flexfa4/m.py", "def f():\n" + "    pass\n" * 80),
    parameter_count: ("flexfa4/m.py", f"def f({', '.join(f'a{i}' for i in range(13))}): pass"),
    module_docstring: ("examples/m.py", "x = 1"),
    no_drawer: ("kernels/utils/m.py", ""),
    environment_only_in_config: ("kernels/m.py", "import os\nos.environ['A']"),
    errors_from_the_catalogue: ("frontend/m.py", "raise ValueError('no')"),
    no_written_tolerance: ("tests/m.py", "close(a, b, rtol=1e-5, atol=0)"),
    nothing_left_for_later: ("emulator/m.py", f"# {MARKS[0]}: more"),
}


@functools.cache
def modules() -> tuple[Module, ...]:
    paths = [p for folder in FOLDERS for p in sorted((ROOT / folder).rglob("*.py"))]
    return tuple(Module(p.relative_to(ROOT), p.read_text(encoding="utf-8")) for p in paths)


def rule_name(rule: Rule) -> str:
    return getattr(rule, "__name__", "")


@pytest.mark.parametrize("rule", RULES, ids=rule_name)
def test_every_module_follows_the_rule(rule: Rule) -> None:
    complaints = [f"{m.path}: {complaint}" for m in modules() for complaint in rule(m)]
    assert not complaints, "\n".join(complaints)


@pytest.mark.parametrize("rule", RULES, ids=rule_name)
def test_the_rule_finds_what_breaks_it(rule: Rule) -> None:
    path, source = RULES[rule]
    assert list(rule(Module(Path(path), source)))


def mirrored_names(folder: str) -> set[str]:
    """Names that a test of this package may carry: its modules' paths, joined by underscores."""
    root = ROOT / folder
    names = {"_".join(p.relative_to(root).with_suffix("").parts) for p in root.rglob("*.py")}
    return {name.removesuffix("___init__").strip("_") or "init" for name in names}


def mirrors(test: Path, names: set[str]) -> bool:
    """Whether tests/unit/<package>/[<folder>/]test_<module>[_<aspect>].py names a module."""
    name = "_".join((*test.parts[3:-1], test.stem.removeprefix("test_")))
    words = name.split("_")
    return any("_".join(words[:n]) in names for n in range(len(words), 0, -1))


def test_every_unit_test_module_mirrors_a_module() -> None:
    tests = [m.path for m in modules() if m.path.parts[:2] == ("tests", "unit")]
    assert tests
    lost = [
        str(t)
        for t in tests
        if t.parts[2] not in PACKAGES or not mirrors(t, mirrored_names(t.parts[2]))
    ]
    assert not lost


@pytest.mark.parametrize(
    ("test", "mirrored"),
    [
        ("tests/unit/kernels/test_plan.py", True),
        ("tests/unit/kernels/test_plan_keys.py", True),
        ("tests/unit/kernels/cpu/test_forward.py", True),
        ("tests/unit/kernels/test_cpu_forward.py", True),
        ("tests/unit/kernels/test_planning.py", False),
    ],
)
def test_the_mirror_rule_accepts_an_aspect_but_no_other_name(test: str, mirrored: bool) -> None:
    assert mirrors(Path(test), {"plan", "cpu_forward"}) is mirrored


@pytest.mark.parametrize(
    "command",
    [
        ["ruff", "check", "."],
        ["ruff", "format", "--check", "."],
        ["mypy"],  # strict, tests and examples included: see pyproject.toml
    ],
    ids=" ".join,
)
def test_a_tool_has_no_complaint(command: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
