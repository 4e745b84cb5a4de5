"""``flexfa4 emulate``: a kernel of a PTX file, run on the CPU, and what it did as tables.

Only arguments and printing are here; `flexfa4.emulator` runs the kernel.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import torch
from rich.console import Console
from rich.table import Table

from flexfa4 import emulator
from flexfa4.emulator.failures.build import CoreBuildError
from flexfa4.emulator.failures.options import CallError
from flexfa4.emulator.host.errors import LaunchError, TensorPresentationError
from flexfa4.emulator.options import CHECKS, SCHEDULES
from flexfa4.emulator.ptx.errors import PtxError
from flexfa4.errors import ArgumentError

DESCRIPTION = """\
Run a kernel of a PTX file on the CPU, with everything checked, and print what it did.

Each argument of the kernel is written as a number (4096, 0.5), as bytes (bytes:00ff10), or as a
tensor with its contents, dtype and shape: zeros:f32:1024, ones:u8:16, arange:i32:64,
random:bf16:128x64.  --save keeps the tensors as the kernel left them, in a dictionary for
torch.load.  The file comes before --args:

  flexfa4 emulate kernel.ptx --grid 8 --block 128 --args random:f32:1024 zeros:f32:1024 1024

Exit codes: 0 it ran, 1 something is wrong in the kernel, 2 in the command, the launch, the PTX or
this machine.
"""
KERNEL_FAILED, USER_ERROR = 1, 2  # exit codes
# what is wrong before the kernel begins
OUTSIDE = (CallError, CoreBuildError, LaunchError, PtxError, TensorPresentationError)
SHOWN_OPCODES = 20

DTYPES: Final[Mapping[str, torch.dtype]] = {
    "f64": torch.float64,
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
    "i64": torch.int64,
    "i32": torch.int32,
    "i16": torch.int16,
    "i8": torch.int8,
    "u8": torch.uint8,
}


def _random(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    if dtype.is_floating_point:
        return torch.randn(shape).to(dtype)
    info = torch.iinfo(dtype)
    return torch.randint(info.min, info.max, shape, dtype=dtype)


def _counting(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.arange(torch.Size(shape).numel()).reshape(shape).to(dtype)


CONTENTS: Final[Mapping[str, Callable[[tuple[int, ...], torch.dtype], torch.Tensor]]] = {
    "zeros": lambda shape, dtype: torch.zeros(shape).to(dtype),
    "ones": lambda shape, dtype: torch.ones(shape).to(dtype),
    "arange": _counting,
    "random": _random,
}


def add_to(commands: Any) -> None:
    """Add the command to those of the parser."""
    command = commands.add_parser(
        "emulate",
        help="run a kernel of a PTX file on the CPU, with everything checked",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("ptx", type=Path, help="the file with the PTX")
    command.add_argument("--kernel", metavar="NAME", help="the kernel, where there are several")
    for name, default, what in (
        ("grid", (1, 1, 1), "blocks (1)"),
        ("block", (1, 1, 1), "threads of a block (1)"),
        ("cluster", (1, 1, 1), "blocks of a cluster (1, or what the PTX requires)"),
    ):
        command.add_argument(
            f"--{name}", type=sizes, default=default, metavar="X[,Y[,Z]]", help=what
        )
    command.add_argument(
        "--shared-memory", type=int, default=0, metavar="BYTES", help="dynamic shared memory (0)"
    )
    command.add_argument(
        "--args", nargs="*", default=[], metavar="VALUE", help="a value for each parameter"
    )
    command.add_argument("--seed", type=int, default=0, help="of schedules and of tensors (0)")
    command.add_argument(
        "--schedule", choices=SCHEDULES, default=SCHEDULES[0], help="order of events (eager)"
    )
    command.add_argument(
        "--check",
        nargs="*",
        choices=CHECKS,
        default=CHECKS,
        help="what is checked besides (both); nothing after it: neither",
    )
    command.add_argument(
        "--workers", type=int, default=1, metavar="N", help="threads of the host (1)"
    )
    command.add_argument(
        "--sms",
        type=int,
        metavar="N",
        help="blocks that are resident at once (one for each multiprocessor)",
    )
    command.add_argument(
        "--max-instructions",
        type=int,
        metavar="N",
        help="give up after so many, for loops that never end (no limit)",
    )
    command.add_argument(
        "--save",
        type=Path,
        metavar="FILE",
        help="save the tensors, by the number of their argument",
    )
    command.add_argument("--all", action="store_true", help="list all opcodes, not the most used")
    command.set_defaults(command=run)


def sizes(text: str) -> tuple[int, ...]:
    """Read ``4,2,1``.

    Raises:
        argparse.ArgumentTypeError: it is no list of up to three whole numbers.
    """
    words = text.split(",")
    if len(words) > 3 or not all(word.strip().isdecimal() for word in words):
        raise argparse.ArgumentTypeError(f"{text!r} is no number, or up to three: 4,2,1")
    return tuple(map(int, words))


def run(options: argparse.Namespace) -> int:
    """Run the command; return the exit code."""
    if options.save is not None:
        _check_folder_of(options.save)
    torch.manual_seed(options.seed)
    args = [argument(text) for text in options.args]
    console = Console()
    try:
        kernel = _loaded(options.ptx, options.kernel)
        done = kernel.run(
            grid=options.grid,
            block=options.block,
            cluster=options.cluster,
            shared_memory=options.shared_memory,
            args=args,
            schedule=options.schedule,
            seed=options.seed,
            check=options.check,
            workers=options.workers,
            sms=options.sms,
            max_instructions=options.max_instructions,
        )
    except emulator.EmulationError as error:
        if error.run is not None:
            sys.stdout.write("".join(error.run.printed))
        print(f"flexfa4: {error}", file=sys.stderr)
        return USER_ERROR if isinstance(error, OUTSIDE) else KERNEL_FAILED
    sys.stdout.write("".join(done.printed))
    show(kernel.name, done, console, None if options.all else SHOWN_OPCODES)
    if options.save is not None:
        tensors = {number: value for number, value in enumerate(args) if torch.is_tensor(value)}
        torch.save(tensors, options.save)
        console.print(f"saved: {options.save}, {len(tensors)} tensors")
    return 0


def argument(text: str) -> Any:
    """Return the value that a text stands for.

    Raises:
        ArgumentError: it stands for none.
    """
    kind, _, rest = text.partition(":")
    try:
        if kind == "bytes":
            return bytes.fromhex(rest)
        if kind in CONTENTS:
            dtype, _, shape = rest.partition(":")
            lengths = tuple(int(length) for length in shape.split("x"))
            return CONTENTS[kind](lengths, DTYPES[dtype])
        return float(text) if set(text.lower()) & set(".n") or "e" in text else int(text, 0)
    except (KeyError, ValueError, RuntimeError):
        raise ArgumentError(
            name="--args",
            found_value=repr(text),
            expected=f"a number, bytes:HEX, or {'|'.join(CONTENTS)}:DTYPE:SHAPE with a dtype of"
            f" {', '.join(DTYPES)}",
            rewrite="zeros:f32:128x64",
        ) from None


def _loaded(path: Path, name: str | None) -> emulator.Kernel:
    try:
        return emulator.load(path, name)
    except emulator.EmulationError:  # some of which are OSErrors, too
        raise
    except OSError as error:
        raise ArgumentError(
            name="ptx",
            found_value=str(path),
            expected="a file with PTX text",
            rewrite=f"another path: {error.strerror}",
        ) from None


def _check_folder_of(path: Path) -> None:
    """Refuse a file that cannot be written, before anything runs."""
    if not path.parent.is_dir():
        raise ArgumentError(
            name="--save",
            found_value=str(path),
            expected="a file in a folder that is there",
            rewrite=f"mkdir -p {path.parent}",
        )


def show(name: str, run: emulator.Run, console: Console, shown: int | None) -> None:
    """Print what a launch did.

    Args:
        name: of the kernel.
        run: what it did.
        console: where to.
        shown: number of opcodes that are listed; None for all.
    """
    speed = run.instructions / run.seconds / 1e6 if run.seconds else 0.0
    console.print(
        f"{name}: {run.instructions} instructions of {len(run.by_warp)} warps in"
        f" {run.seconds * 1e3:.1f} ms, {speed:.2f} million a second",
        highlight=False,
    )
    executed = list(run.executed.items())
    tables = (
        ("executed instructions", executed[:shown]),
        ("matrix products", list(run.matrices.items())),
        ("traffic", [(key.replace("_", " "), n) for key, n in asdict(run.traffic).items() if n]),
    )
    for title, rows in tables:
        if not rows:
            continue
        table = Table(title=title, title_justify="left", show_header=False)
        table.add_column(overflow="fold")
        table.add_column(justify="right")
        for key, number in rows:
            table.add_row(key, f"{number:,}")
        console.print(table)
    if shown is not None and len(executed) > shown:
        console.print(f"{len(executed) - shown} opcodes more; --all lists them", highlight=False)
