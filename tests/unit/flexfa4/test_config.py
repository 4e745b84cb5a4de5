"""Environment variables: read when asked for, with the default of the table."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest

from flexfa4 import config
from flexfa4.config import VARIABLES, Variable, cache_folder

SWITCH = Variable("FLEXFA4_SWITCH", "0", "a switch of this test")


@pytest.mark.parametrize(
    ("text", "flag"),
    [("1", True), ("yes", True), ("On", True), ("0", False), ("OFF", False), ("no", False),
     ("False", False), ("", False)],
)  # fmt: skip
def test_a_flag_understands_the_usual_words(
    text: str, flag: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLEXFA4_SWITCH", text)
    assert SWITCH.flag() is flag and SWITCH.text() == text


def test_a_variable_that_is_not_set_has_its_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLEXFA4_SWITCH", raising=False)
    assert SWITCH.text() == "0"
    assert dataclasses.replace(SWITCH, default="yes").flag()


CONVENTIONS = {"CXX"}  # of compilers; everything else has a prefix


def test_the_table_lists_every_variable_with_its_prefix_and_meaning() -> None:
    assert set(VARIABLES) == {v for v in vars(config).values() if isinstance(v, Variable)}
    for variable in VARIABLES:
        assert variable.name.startswith("FLEXFA4_") != (variable.name in CONVENTIONS)
        assert variable.meaning
    assert len({v.name for v in VARIABLES}) == len(VARIABLES)


def test_the_tests_run_with_verified_passes() -> None:
    assert config.VERIFY.flag()


@pytest.mark.parametrize("variable", ["FLEXFA4_CACHE_DIR", "XDG_CACHE_HOME", "HOME"])
@pytest.mark.skipif(sys.platform != "linux", reason="each system has its own place for caches")
def test_what_is_compiled_goes_where_the_project_the_desktop_or_the_user_has_its_cache(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("FLEXFA4_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, str(tmp_path))
    below = {"FLEXFA4_CACHE_DIR": "", "XDG_CACHE_HOME": "flexfa4", "HOME": ".cache/flexfa4"}
    assert cache_folder() == tmp_path / below[variable]
    assert not list(tmp_path.iterdir())


def test_a_chosen_folder_may_begin_with_the_users_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEXFA4_CACHE_DIR", "~/compiled")
    assert cache_folder() == Path.home() / "compiled"
