"""The functions that a kernel reaches."""

from __future__ import annotations

import pytest

from flexfa4.emulator.decode.reachable import reachable
from flexfa4.emulator.failures.program import RecursionFoundError
from flexfa4.emulator.ptx import Module, parse


def module(**calls: str) -> Module:
    """Return a module with a kernel and functions that call what is said, by name."""
    heads = {name: f".func {name}()" for name in calls} | {"kernel": ".entry kernel()"}
    declared = "\n".join(f"{head};" for name, head in heads.items() if name != "kernel")
    bodies = "\n".join(
        f"{heads[name]} {{ {' '.join(f'call {other};' for other in called.split())} ret; }}"
        for name, called in calls.items()
    )
    return parse(f".version 8.8\n.target sm_100a\n.address_size 64\n{declared}\n{bodies}\n")


def names(found: Module) -> list[str]:
    return [function.name for function in reachable(found, found.kernel())]


def test_the_kernel_comes_first_and_each_function_once() -> None:
    found = names(module(a="c", b="c", c="", kernel="a b a"))
    assert found[0] == "kernel"
    assert sorted(found) == ["a", "b", "c", "kernel"]


def test_functions_that_nothing_calls_are_left_out() -> None:
    assert names(module(a="b", b="", kernel="b")) == ["kernel", "b"]


def test_a_function_that_calls_itself_by_way_of_another_is_an_error_that_shows_the_way() -> None:
    with pytest.raises(RecursionFoundError, match="a calls itself: a -> b -> a"):
        names(module(a="b", b="a", kernel="a"))


def test_a_function_that_calls_itself_is_an_error() -> None:
    with pytest.raises(RecursionFoundError, match="c -> c"):
        names(module(c="c", kernel="c"))
