"""Compiled host code bound to this process: its CUDA calls to Python, its machine code to PTX.

CuTe-DSL lowers a function to one module in LLVM's dialect: host code that calls the CUDA runtime
by name, and a constant with the kernels' machine code.  `bind` edits that module before it is
linked.  Each declaration of a CUDA function becomes a definition that calls the address of a
Python callback, and the constant becomes the PTX that the machine code was made from.  So one edit
serves both ways on which functions are called, CuTe-DSL's own and TVM-FFI's, which link in
different ways; it takes no shared library, and so no compiler; it does not matter which runtime
libraries are loaded already; and a compiled function carries its PTX along.  It takes 2 to 6 ms
(November 2026, x86-64), where the shortest compilation takes 60.

The other ways, and what is wrong with them: a library in place of ``libcute_dsl_runtime.so`` is
passed over as soon as the real one is in the process's global scope, and has to be compiled or
written as an ELF file; ``raw_register_runtime`` exists in one of the two linkers only.

Such a module holds addresses of this process: it must not be written to a file.  What is called
and what it answers is in `cuda_calls.py`; when modules are bound is decided in `installation.py`.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any, Final

from flexfa4.emulator.host.cuda_calls import (
    CALLS,
    FROM_THE_LIBRARY,
    Call,
    address_of,
    address_of_refusal,
)
from flexfa4.emulator.host.errors import UnfittingCutlassError

BY_NAME: Final = {call.name: call for call in CALLS}
_OURS: Final = re.compile(r"_cu|cuda_dialect_|CuteDSLRT_")  # functions of the runtime library
_TYPE: Final = re.compile(r"!llvm\.func<(?P<result>\w+) \((?P<arguments>[^()]*)\)>")
_DUMP: Final = re.compile(r"\bdump-ptx-path='([^']*)'")
_CHIP: Final = re.compile(r"\bcubin-chip=(\w+)")
_BINARY: Final = re.compile(r"_binary$")


def with_ptx_dump(pipeline: str, stem: Path) -> tuple[str, Path]:
    """Return a pass pipeline that writes the PTX to a file, and the path of that file.

    Args:
        pipeline: text of the pipeline; one that writes the PTX anyway stays as it is.
        stem: of the file, which gets the architecture and ``.ptx`` appended.

    Raises:
        UnfittingCutlassError: when the pipeline does not end in the options of its last pass.
    """
    chip = _CHIP.search(pipeline)
    if chip is None or not pipeline.endswith("})"):
        raise unfitting(f"the pipeline {pipeline}")
    dump = _DUMP.search(pipeline)
    if dump is None:
        pipeline = pipeline.removesuffix("})") + f" dump-ptx-path='{stem}'}})"
    return pipeline, Path(f"{dump[1] if dump else stem}.{chip[1]}.ptx")


def bind(module: Any, ptx: str) -> None:
    """Edit a lowered module in place.

    Args:
        module: of type ``cutlass._mlir.ir.Module``, in LLVM's dialect.
        ptx: text of its kernels; empty where it has none.

    Raises:
        UnfittingCutlassError: when it is not built as the emulator knows it.
    """
    from cutlass._mlir import ir

    binaries = 0
    with module.context, ir.Location.unknown():
        for view in list(module.body.operations):
            op = view.operation
            if op.name == "llvm.mlir.global" and _BINARY.search(_symbol(op)):
                binaries += 1
                _replace_image(op, ptx.encode() + b"\0")
            elif op.name == "llvm.func" and not op.regions[0].blocks and _OURS.match(_symbol(op)):
                _define(op)
    if binaries > 1 or (binaries == 1 and not ptx):
        what = f"a module with {binaries} constants of machine code and {len(ptx)} bytes of PTX"
        raise unfitting(what)


def _symbol(op: Any) -> str:
    return str(op.attributes["sym_name"]).strip('"')


def _replace_image(op: Any, image: bytes) -> None:
    from cutlass._mlir import ir

    op.attributes["value"] = ir.StringAttr.get(image)
    kind = ir.Type.parse(f"!llvm.array<{len(image)} x i8>")
    op.attributes["global_type"] = ir.TypeAttr.get(kind)


def _define(op: Any) -> None:
    """Put a definition in the place of a declaration."""
    from cutlass._mlir import ir

    name = _symbol(op)
    if name in FROM_THE_LIBRARY:
        return
    match = _TYPE.fullmatch(str(ir.TypeAttr(op.attributes["function_type"]).value))
    if match is None:
        raise unfitting(f"the function {name}")
    arguments = match["arguments"].replace(",", "")
    text = definition(name, arguments, match["result"])
    ir.InsertionPoint(op).insert(ir.Operation.parse(text))
    op.erase()


def definition(name: str, arguments: str, result: str) -> str:
    """Return the text of a function in LLVM's dialect that calls into Python.

    Args:
        name: of the function.
        arguments: types as the module declares them, such as ``ptr i32``.
        result: type, ``void`` for none.

    Raises:
        UnfittingCutlassError: when the module declares other arguments than the table has.
    """
    call = BY_NAME.get(name)
    if call is not None and call.arguments != arguments:
        what = f"the function {name} of ({arguments})"
        raise unfitting(what)
    types = [_full(kind) for kind in arguments.split()]
    names = [f"%a{position}" for position in range(len(types))]
    head = ", ".join(f"{n}: {t}" for n, t in zip(names, types, strict=True))
    returns = "" if result == "void" else f" -> {_full(result)}"
    lines = [f"llvm.func internal @{name}({head}){returns} {{"]
    if call is None or call.answer is not None:
        passed = (names, types) if call else ([], [])
        lines += _calling(_address(call, name), *passed)
    value = "%status" if result == "i32" and (call is None or call.answer) else "%zero"
    if value == "%zero" and result != "void":
        lines.append(f"  %zero = llvm.mlir.zero : {_full(result)}")
    lines.append(
        "  llvm.return" if result == "void" else f"  llvm.return {value} : {_full(result)}"
    )
    return "\n".join([*lines, "}"])


def _address(call: Call | None, name: str) -> int:
    return address_of(call) if call else address_of_refusal(name)


def _calling(address: int, names: list[str], types: list[str]) -> list[str]:
    return [
        f"  %address = llvm.mlir.constant({address} : i64) : i64",
        "  %function = llvm.inttoptr %address : i64 to !llvm.ptr",
        f"  %status = llvm.call %function({', '.join(names)}) :"
        f" !llvm.ptr, ({', '.join(types)}) -> i32",
    ]


def _full(kind: str) -> str:
    return "!llvm.ptr" if kind == "ptr" else kind


def unfitting(what: str) -> UnfittingCutlassError:
    """Return the error for something of CuTe-DSL that is not as it is known."""
    version = getattr(sys.modules.get("cutlass"), "__version__", "?")
    return UnfittingCutlassError(what=what, version=version)
