"""Record what a GPU computes, or run the unit tests' programs on it.

    python -m tests.calibration record     # writes tests/calibration/h200.json.gz
    python -m tests.calibration tests tests/unit/emulator/native/arithmetic

Both need a GPU of architecture sm_90; the first takes about a minute. `tests/test_calibration.py`
holds the emulator to the record.  The second runs the programs of unit tests on the GPU, so that
their expectations are tested (`tests.calibration.on_gpu`).
"""

from __future__ import annotations

import argparse
import datetime
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from tests import ptx_programs
from tests.calibration import cases, gpu, records, sweep


def main() -> int:
    """Run one of the two commands."""
    parser = argparse.ArgumentParser(prog="python -m tests.calibration", description=__doc__)
    parser.add_argument("command", choices=("record", "tests"))
    parser.add_argument("--out", default=str(records.PATH), help="file of the record")
    command, rest = parser.parse_known_args()
    if command.command == "tests":
        return int(pytest.main(["-p", "tests.calibration.on_gpu", *rest]))
    vars(ptx_programs)["load"] = gpu.DeviceKernel
    records.write(record(), Path(command.out))
    return 0


def record() -> dict[str, Any]:
    """Run all cases on the GPU."""
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    driver = subprocess.run(query, check=True, capture_output=True, text=True).stdout.split()[0]
    exact: dict[str, list[str]] = {}
    refused: list[str] = []
    for opcode in cases.exact_opcodes():
        try:
            exact[opcode] = cases.exact_checksums(opcode)
        except gpu.PtxRefusedError:
            refused.append(opcode)
    return {
        "device": torch.cuda.get_device_name(),
        "driver": driver,
        "date": datetime.date.today().isoformat(),
        "refused": refused,
        "exact": exact,
        "errors": {opcode: sweep.sweep(opcode) for opcode in sweep.INSTRUCTIONS},
        "approximated": {
            opcode: records.packed(cases.approximated(opcode), cases.rounded(opcode))
            for opcode in cases.APPROXIMATIONS
        },
        "products": {
            name: records.packed(result.found, result.exact.to(result.found.dtype))
            for name, product in cases.products().items()
            for result in [product()]
        },
        "programs": {name: program() for name, program in cases.programs().items()},
    }


if __name__ == "__main__":
    raise SystemExit(main())
