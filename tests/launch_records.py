"""Recorded launches: what kernels of ours compile to, and their parameters, to run anywhere.

``python -m tests.launch_records`` compiles and runs the cases of `tests.emulated_cases`, which
needs CuTe-DSL, and writes ``tests/emulator_data/<case>.ptx.gz`` and ``<case>.json``.  A record
holds no address: pointers, and those in tensor maps, are places in the case's tensors.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from flexfa4.emulator import Kernel, Run, load
from flexfa4.emulator.host.launch import Launch, Parameter
from tests.emulated_cases import CASES, Case

FOLDER = Path(__file__).parent / "emulator_data"
POINTER = 8  # bytes; a tensor map starts with one
TENSOR_MAP = 128  # bytes, of which the first half is in use; the rest is whatever lay there


def cleaned(ptx: str, entry: str, name: str) -> str:
    """Return PTX without comments and places in source files, its kernel called `name`."""
    lines = (re.sub(r"\s*//.*", "", line) for line in ptx.replace(entry, name).splitlines())
    kept = (line for line in lines if line and not line.lstrip().startswith((".file", ".loc")))
    return "\n".join(kept) + "\n"


def recorded_parameter(parameter: Parameter, tensors: Sequence[Tensor]) -> dict[str, Any]:
    """Return a parameter: bytes, and the tensor and offset that the pointer in front leads to."""
    data = parameter.data
    if len(data) == TENSOR_MAP:
        data = data[: TENSOR_MAP // 2].ljust(TENSOR_MAP, b"\0")
    if len(data) not in (POINTER, TENSOR_MAP):
        return {"bytes": data.hex()}
    address = int.from_bytes(data[:POINTER], "little")
    for index, tensor in enumerate(tensors):
        offset = address - tensor.data_ptr()
        if 0 <= offset < tensor.nbytes:
            return {"tensor": index, "offset": offset, "bytes": data[POINTER:].hex()}
    raise AssertionError(f"{parameter.name} leads to no tensor")


def write(case: Case, launch: Launch, tensors: Sequence[Tensor]) -> None:
    """Write a record."""
    record = {
        "grid": launch.grid,
        "block": launch.block,
        "cluster": launch.cluster,
        "shared_memory": launch.shared_memory,
        "parameters": [recorded_parameter(each, tensors) for each in launch.parameters],
    }
    FOLDER.mkdir(exist_ok=True)
    ptx = cleaned(launch.ptx, launch.entry, case.name)
    (FOLDER / f"{case.name}.ptx.gz").write_bytes(gzip.compress(ptx.encode(), mtime=0))
    (FOLDER / f"{case.name}.json").write_text(json.dumps(record) + "\n", "utf-8")


def recorded_ptx(case: Case) -> str:
    """Return the PTX of a record."""
    return gzip.decompress((FOLDER / f"{case.name}.ptx.gz").read_bytes()).decode()


def run(case: Case, kernel: Kernel | None = None, **options: Any) -> tuple[Run, bool]:
    """Run a recorded launch, or an edited kernel as it was launched.

    Returns:
        What it did, and whether its results are right.
    """
    record = json.loads((FOLDER / f"{case.name}.json").read_text("utf-8"))
    tensors, checked = case.tensors()
    args = []
    for parameter in record["parameters"]:
        data = bytes.fromhex(parameter["bytes"])
        if "tensor" in parameter:
            address = tensors[parameter["tensor"]].data_ptr() + parameter["offset"]
            data = address.to_bytes(POINTER, "little") + data
        args.append(data)
    done = (kernel or load(recorded_ptx(case))).run(
        grid=record["grid"],
        block=record["block"],
        cluster=record["cluster"],
        shared_memory=record["shared_memory"],
        args=args,
        allocations=tensors,
        **options,
    )
    return done, all(found.equal(right) for found, right in checked)


def main() -> None:
    """Record all cases."""
    from flexfa4.emulator import Device  # with what needs CuTe-DSL
    from tests.compile.compiled_cases import compiled

    for case in CASES:
        with Device(case.target) as device:
            tensors, checked = case.tensors()
            compiled(case, device, tensors)()
            (launch,) = device.launches
        assert all(found.equal(right) for found, right in checked), case.name
        write(case, launch, tensors)


if __name__ == "__main__":
    main()
