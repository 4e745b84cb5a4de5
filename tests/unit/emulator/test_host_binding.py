"""Texts with which compiled modules are bound: pipelines and definitions."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from flexfa4.emulator.host.binding import definition, with_ptx_dump
from flexfa4.emulator.host.cuda_calls import CALLS
from flexfa4.emulator.host.errors import UnfittingCutlassError

PIPELINE = "builtin.module(cute-to-nvvm{opt-level=3 cubin-chip=sm_100a  enable=true})"


def test_a_pipeline_is_made_to_write_its_ptx() -> None:
    text, path = with_ptx_dump(PIPELINE, Path("folder/kernel"))
    assert text == PIPELINE[:-2] + " dump-ptx-path='folder/kernel'})"
    assert path == Path("folder/kernel.sm_100a.ptx")


def test_a_pipeline_that_writes_it_anyway_stays_as_it_is() -> None:
    keeping = PIPELINE.replace("enable", "dump-ptx-path='mine/add' enable")
    assert with_ptx_dump(keeping, Path("kernel")) == (keeping, Path("mine/add.sm_100a.ptx"))


@pytest.mark.parametrize("other", ["builtin.module()", PIPELINE + " ", PIPELINE[:20]])
def test_another_pipeline_is_an_error(other: str) -> None:
    with pytest.raises(UnfittingCutlassError, match="pipeline"):
        with_ptx_dump(other, Path("kernel"))


def test_a_function_with_an_answer_calls_its_address() -> None:
    text = definition("_cudaGetDevice", "ptr", "i32")
    assert text.startswith("llvm.func internal @_cudaGetDevice(%a0: !llvm.ptr) -> i32 {")
    assert re.search(r"constant\([1-9]\d+ : i64\)", text)
    assert "llvm.call %function(%a0) : !llvm.ptr, (!llvm.ptr) -> i32" in text
    assert text.endswith("llvm.return %status : i32\n}")


def test_a_function_that_does_nothing_calls_nothing() -> None:
    text = definition("_cudaSetDevice", "i32", "i32")
    assert "call" not in text
    assert text.endswith("%zero = llvm.mlir.zero : i32\n  llvm.return %zero : i32\n}")
    assert "call" not in definition("cuda_dialect_unload_library_once", "ptr", "void")


@pytest.mark.parametrize(
    ("result", "returned"),
    [("i32", "%status : i32"), ("ptr", "%zero : !llvm.ptr"), ("void", "")],
)
def test_a_function_without_a_row_calls_its_refusal(result: str, returned: str) -> None:
    text = definition("_cudaMalloc", "ptr i64", result)
    assert "llvm.call %function() : !llvm.ptr, () -> i32" in text
    assert text.endswith(f"llvm.return {returned}".rstrip() + "\n}")


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.name)
def test_other_arguments_than_the_tables_are_an_error(call: object) -> None:
    row = next(row for row in CALLS if row is call)
    assert definition(row.name, row.arguments, "i32")
    with pytest.raises(UnfittingCutlassError, match=row.name):
        definition(row.name, f"{row.arguments} i64".strip(), "i32")
