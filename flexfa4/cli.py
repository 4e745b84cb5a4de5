"""The command line: ``flexfa4 demo``, ``explain``, ``plot``, ``variants`` and ``doctor``.

Only arguments are handled here; each command's work is done by the module of its subject.  What a
user can get wrong ends in the catalogue's message on stderr and exit code 2; a command whose result
is bad (the demo's losses differ) ends with exit code 1.  A reader that has seen enough (``flexfa4
explain alibi | head -1``) is no mistake and gets no message.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import flexfa4
from flexfa4.errors import ArgumentError, FlexFA4Error

USER_ERROR = 2  # what argparse uses too
# As shells report a process that a signal ended: 128 + its number.
INTERRUPTED = 130  # SIGINT
NOBODY_READS = 141  # SIGPIPE, which Python turns into an exception


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return the exit code.

    Args:
        arguments: what follows the program's name; None reads the process's own.
    """
    options = _parser().parse_args(arguments)
    try:
        code = int(options.command(options))
        sys.stdout.flush()  # here, where a closed pipe can be handled, not when Python ends
        return code
    except FlexFA4Error as error:
        print(f"flexfa4: {error}", file=sys.stderr)
        return USER_ERROR
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Python flushes once more when it ends; what is left goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return NOBODY_READS


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="flexfa4", description="A compiler for attention variants."
    )
    parser.add_argument("--version", action="version", version=f"flexfa4 {flexfa4.__version__}")
    commands = parser.add_subparsers(required=True, metavar="command")

    demo = commands.add_parser("demo", help="train a small model with flexfa4 beside plain torch")
    demo.add_argument("--steps", type=int, default=40, help="optimiser steps (default: 40)")
    demo.add_argument("--seq-len", type=int, default=2048, help="bytes in a sequence (2048)")
    demo.add_argument(
        "--out",
        type=Path,
        default=Path("flexfa4-demo"),
        help="folder of the picture (flexfa4-demo)",
    )
    demo.set_defaults(command=_demo)

    explain = commands.add_parser("explain", help="print what the compiler knows about a mod")
    _add_mod(explain)
    explain.set_defaults(command=_explain)

    plot = commands.add_parser("plot", help="draw a mask, or what a score mod adds to scores")
    _add_mod(plot)
    plot.add_argument("--q-len", type=int, default=512, metavar="N", help="queries (512)")
    plot.add_argument("--kv-len", type=int, metavar="N", help="keys (as many as queries)")
    plot.add_argument("--head", type=int, default=0, metavar="H", help="the head to draw (0)")
    plot.add_argument("--heads", type=int, default=8, metavar="N", help="heads of the call (8)")
    plot.add_argument(
        "--out", type=Path, default=Path("mod.png"), metavar="FILE", help="the picture (mod.png)"
    )
    plot.set_defaults(command=_plot)

    variants = commands.add_parser("variants", help="list the variants of the library")
    variants.set_defaults(command=_variants)

    doctor = commands.add_parser(
        "doctor", help="say what this machine can run, and why not the rest"
    )
    doctor.set_defaults(command=_doctor)
    return parser


def _add_mod(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "mod", help="a variant's name, module:function, or a text such as 'score + 0.5 * (kv - q)'"
    )
    command.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a parameter of a variant, or the value of a name in a text; may be repeated",
    )


def _demo(options: argparse.Namespace) -> int:
    from flexfa4 import demo

    chosen = demo.Options(steps=options.steps, length=options.seq_len, folder=options.out)
    return 0 if demo.run(chosen, Console()) else 1


def _doctor(options: argparse.Namespace) -> int:
    from flexfa4 import doctor

    doctor.show(doctor.examine(), Console())
    return 0


def _explain(options: argparse.Namespace) -> int:
    print(flexfa4.explain(_mod(options, "explain")))
    return 0


def _mod(options: argparse.Namespace, command: str) -> Any:
    from flexfa4.named_mods import Request, setting

    return Request(options.mod, dict(map(setting, options.set)), command).resolve()


def _plot(options: argparse.Namespace) -> int:
    mod = _mod(options, "plot")
    lengths = (options.q_len, options.kv_len)
    title = " ".join([options.mod, *options.set])
    if flexfa4.trace(mod).kind == "mask":
        figure = flexfa4.plot_mask(mod, *lengths, head_index=options.head, title=title)
    else:
        figure = flexfa4.plot_score_mod(
            mod, *lengths, num_heads=options.heads, head_index=options.head, title=title
        )
    try:
        figure.savefig(options.out)
    except (OSError, ValueError) as error:  # ValueError: a suffix that is no format
        raise ArgumentError(
            name="--out",
            found_value=str(options.out),
            expected="a file that can be written, of a format of matplotlib's such as .png",
            rewrite=f"another path: {error}",
        ) from None
    print(f"picture: {options.out}")
    return 0


def _variants(options: argparse.Namespace) -> int:
    from flexfa4.variant_index import entries

    table = Table("name", "parameters", "computes", pad_edge=False, row_styles=("", "dim"))
    for entry in entries().values():
        parameters = ", ".join(map(str, entry.parameters))
        table.add_row(entry.name, parameters, entry.summary.replace("``", ""))
    console = Console(markup=False, highlight=False)  # brackets are those of formulas
    console.print(table)
    console.print("flexfa4 explain NAME and flexfa4 plot NAME show more.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
