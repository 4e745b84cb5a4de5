"""What all tests share: the `golden` fixture, the tiers and the settings of hypothesis.

Tiers are markers that a test gets from the folder it lies in, or from using `golden`; the default
run leaves out `full` and `gpu` (see pyproject.toml).  Where there is no C++ compiler, tests that
run the emulator's core, or are marked `cxx`, are skipped.  There are no other shared fixtures:
inputs and cases come from the case table of the package.

Any number of processes may share out the tests (``pytest -n``, of pytest-xdist): what they compile
is kept for all of them, with locks, and each of them computes in one thread.
"""

from __future__ import annotations

import difflib
import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

TESTS = Path(__file__).parent
GOLDEN = TESTS / "golden"
FOLDER_TIERS = ("unit", "compile", "emulate", "gpu")
LEFT_OUT_TIERS = ("full", "gpu")  # a default run does not see these tests
SUFFIX = ".txt"
MOST_PROCESSES = 16
OUTPUT = "golden-files"  # what a process says of them that has a part of the tests

# Every pass of the compiler verifies its result while the tests run.
os.environ["FLEXFA4_VERIFY"] = "1"

# Before torch is loaded: processes that run beside each other would wait for each other's threads.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

# Without a deadline: a shared machine may stall any example.  Derandomised: a failure on one
# machine is the same failure on the next.
settings.register_profile("quick", deadline=None, derandomize=True, max_examples=30)
settings.register_profile("thorough", deadline=None, max_examples=2000)
settings.load_profile("quick")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="rewrite the golden files that differ"
    )
    parser.addoption(
        "--cutlass-examples", metavar="FOLDER", help="examples/python/CuTeDSL of CUTLASS's sources"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(GoldenFiles(config), OUTPUT)
    reason = missing_compiler()
    if reason is not None:
        config.pluginmanager.register(NoCompiler(reason), "no-compiler")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Return how many processes ``-n auto`` means; each of them needs a gigabyte."""
    return min(os.cpu_count() or 1, MOST_PROCESSES)


def missing_compiler() -> str | None:
    """Return why nothing of C++ can be built here; None where it can."""
    if importlib.util.find_spec("flexfa4") is None:
        return None  # the tests of this module run it without the package
    from flexfa4.emulator.failures.build import MissingCompilerError
    from flexfa4.emulator.native.compiler import find_compiler

    try:
        find_compiler()
    except MissingCompilerError as error:
        return str(error).partition("\n")[0]
    return None


class NoCompiler:
    """Skips the tests that need a C++ compiler."""

    def __init__(self, reason: str) -> None:
        from flexfa4.emulator.native import build

        self.reason = reason
        # In whatever way a test comes to the core, it asks for the library, once it needs it.
        build.built_library = self.skip

    def skip(self) -> Path:
        """Skip the test that runs."""
        pytest.skip(self.reason)

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Skip tests that compile something themselves."""
        if item.get_closest_marker("cxx"):
            self.skip()


@pytest.hookimpl(tryfirst=True)  # before -m deselects by these markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if " at 0x" in item.nodeid:
            raise pytest.UsageError(f"{item.nodeid} has an address in its name: give it `ids`")
        tier = item.path.relative_to(TESTS).parts[0]
        if tier in FOLDER_TIERS:
            item.add_marker(tier)
        if "golden" in getattr(item, "fixturenames", ()):
            item.add_marker("golden")


class GoldenFiles:
    """Which golden files this run has used, and which ones no test uses any more.

    Where processes share out the tests, each of them knows what its own tests used, and hands that
    to the one that started them.
    """

    def __init__(self, config: pytest.Config) -> None:
        self.update: bool = config.getoption("--update-golden")
        self.used: set[Path] = set()
        self.collected: set[Path] = set()
        self.incomplete: set[str] = set()  # modules with a test that was skipped
        named = any("::" in argument for argument in config.args)
        self.partial = named or bool(config.getoption("collectonly"))
        self.unused: list[Path] = []

    def compare(self, test: pytest.Item, name: str, text: str) -> None:
        """Fail unless `text` is what the golden file of this test module and name holds."""
        left_out = [tier for tier in LEFT_OUT_TIERS if test.get_closest_marker(tier)]
        assert not left_out, f"tests marked {left_out} cannot use golden: a default run skips them"
        path = GOLDEN / test.path.stem.removeprefix("test_") / (name + SUFFIX)
        self.used.add(path)
        text = text.rstrip("\n") + "\n"
        expected = path.read_text(encoding="utf-8") if path.exists() else ""
        if text == expected:
            return
        if self.update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            return
        diff = difflib.unified_diff(
            expected.splitlines(), text.splitlines(), str(path.relative_to(TESTS)), "now", n=2
        )
        pytest.fail(
            "\n".join(diff).replace("\n\n", "\n") + "\n(pytest --update-golden accepts it)",
            pytrace=False,
        )

    def pytest_deselected(self, items: list[pytest.Item]) -> None:
        """A run is partial when more than the tiers of a default run is left out."""
        if any(not any(map(i.get_closest_marker, LEFT_OUT_TIERS)) for i in items):
            self.partial = True

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Note which test modules take part."""
        self.collected = {item.path for item in session.items}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note modules whose golden files a skipped test may have left unused."""
        if report.skipped:
            self.incomplete.add(Path(report.fspath).stem.removeprefix("test_"))

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """Take in what one of several processes has used."""
        used, collected, partial = getattr(node, "workeroutput", {}).get(OUTPUT, ((), (), True))
        self.used |= set(map(Path, used))
        self.collected |= set(map(Path, collected))
        self.partial = self.partial or partial

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Fail a full run that leaves golden files unused."""
        if hasattr(session.config, "workeroutput"):
            known = list(map(str, self.used)), list(map(str, self.collected)), self.partial
            session.config.workeroutput[OUTPUT] = known
            return
        modules = {p for tier in ("", "unit/**/") for p in TESTS.glob(f"{tier}test_*.py")}
        if exitstatus != pytest.ExitCode.OK or self.partial or not modules <= self.collected:
            return
        self.unused = sorted(
            path
            for path in GOLDEN.rglob("*")
            if path.is_file() and path not in self.used and path.parent.name not in self.incomplete
        )
        if self.unused:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Name the unused files."""
        for path in self.unused:
            terminalreporter.write_line(
                f"ERROR no test uses {path.relative_to(TESTS)}: remove it", red=True
            )


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Return ``golden(name, text)``: compare a text with tests/golden/<module>/<name>.txt."""
    files = request.config.pluginmanager.get_plugin(OUTPUT)
    assert isinstance(files, GoldenFiles)
    return lambda name, text: files.compare(request.node, name, text)
