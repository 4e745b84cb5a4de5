"""The command line: ``flexfa4 demo``, ``explain``, ``compile``, ``plot``, ``emulate`` and others.

Only arguments are handled here; each command's work is done by the module of its subject.  What a
user can get wrong ends in the catalogue's message on stderr and exit code 2; a command whose result
is bad (the demo's losses differ) ends with exit code 1.  A reader that has seen enough (``flexfa4
explain alibi | head -1``) is no mistake and gets no message.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

import flexfa4
from flexfa4.cli import compile, emulate
from flexfa4.errors import ArgumentError, FlexFA4Error, OutOfRangeError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from flexfa4.cli.named_mods import Named
    from flexfa4.variant_index import Entry

Q_LEN = 512  # of a picture
NUM_HEADS = 8
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
    demo.add_argument("--steps", type=int, default=40, help="optimiser steps (40)")
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
    explain.add_argument(
        "--q-len", type=int, metavar="N", help="queries, for the blocks that a mask leaves"
    )
    explain.add_argument("--kv-len", type=int, metavar="N", help="keys (as many as queries)")
    explain.add_argument(
        "--heads", type=int, default=NUM_HEADS, metavar="N", help="query heads (8)"
    )
    explain.add_argument("--arch", help="also explain its kernel for sm_90a, sm_100a or sm_103a")
    compile.add_tensors(explain)
    explain.set_defaults(command=_explain)

    compile.add_to(commands, _add_compiled)

    plot = commands.add_parser("plot", help="draw a mask, or what a score mod adds to scores")
    _add_mod(plot)
    plot.add_argument("--q-len", type=int, metavar="N", help="queries (512)")
    plot.add_argument("--kv-len", type=int, metavar="N", help="keys (as many as queries)")
    plot.add_argument("--head", type=int, default=0, metavar="H", help="the head to draw (0)")
    plot.add_argument("--heads", type=int, metavar="N", help="heads of the call (8)")
    plot.add_argument(
        "--out", type=Path, default=Path("mod.png"), metavar="FILE", help="the picture (mod.png)"
    )
    plot.set_defaults(command=_plot)

    variants = commands.add_parser("variants", help="list the variants of the library")
    variants.add_argument(
        "word", nargs="?", default="", help="list only those that have it in name or description"
    )
    variants.set_defaults(command=_variants)

    emulate.add_to(commands)

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


def _add_compiled(command: argparse.ArgumentParser) -> None:
    _add_mod(command)
    command.add_argument("--heads", type=int, metavar="N", help="query heads (as many as key's)")


def _demo(options: argparse.Namespace) -> int:
    from flexfa4 import demo

    chosen = demo.Options(steps=options.steps, length=options.seq_len, folder=options.out)
    return 0 if demo.run(chosen, Console()) else 1


def _doctor(options: argparse.Namespace) -> int:
    from flexfa4.cli import doctor

    doctor.show(doctor.examine(), Console())
    return 0


def _explain(options: argparse.Namespace) -> int:
    named = _named(options, "explain")
    mod, q_len = named.mod, options.q_len
    if q_len is not None:
        kv_len = q_len if options.kv_len is None else options.kv_len
        mod = flexfa4.create_block_mask(
            mod, batch=1, heads=options.heads, q_len=q_len, kv_len=kv_len
        )
    explanation = flexfa4.explain(
        mod,
        arch=options.arch,
        head_dim=options.head_dim,
        dtype=compile.DTYPES[options.dtype],
        heads=options.heads,
        kv_heads=options.kv_heads,
    )
    print(*filter(None, [named.note(), explanation]), sep="\n")
    return 0


def _named(options: argparse.Namespace, command: str) -> Named:
    from flexfa4.cli.named_mods import named

    return named(options.mod, options.set, command)


def _plot(options: argparse.Namespace) -> int:
    named, out = _named(options, "plot"), _picture(options.out)
    try:
        figure = _drawn(named, options)
    except OutOfRangeError as error:
        raise _smaller(error) from None
    try:
        figure.savefig(out)
    except (OSError, ValueError) as error:  # ValueError: a suffix that is no format
        raise ArgumentError(
            name="--out",
            found_value=str(options.out),
            expected="a file that can be written, of a format of matplotlib's such as .png",
            rewrite=f"another path: {error}",
        ) from None
    print(*filter(None, [f"picture: {out}", named.note()]), sep="\n")
    if named.example is not None and options.q_len is None and options.kv_len is None:
        q_len, kv_len = named.example.lengths
        print(f"of {q_len} queries and {kv_len} keys (--q-len and --kv-len give others)")
    return 0


def _drawn(named: Named, options: argparse.Namespace) -> Figure:
    """Return the picture of a mod; an example is drawn at its own sizes where none are given."""
    from flexfa4.variant_examples import HEADS

    q_len, kv_len, heads = options.q_len, options.kv_len, options.heads
    if named.example is not None and q_len is None and kv_len is None:
        q_len, kv_len = named.example.lengths
    q_len = Q_LEN if q_len is None else q_len
    title = named.example.example if named.example else " ".join([options.mod, *options.set])
    chosen = {"head_index": options.head, "title": title}
    if flexfa4.trace(named.mod).kind == "mask":
        return flexfa4.plot_mask(named.mod, q_len, kv_len, **chosen)
    if heads is None:
        heads = HEADS if named.example is not None else NUM_HEADS
    return flexfa4.plot_score_mod(named.mod, q_len, kv_len, num_heads=heads, **chosen)


def _smaller(error: OutOfRangeError) -> OutOfRangeError:
    """Return an error about a tensor that is too short for the picture, with the size that fits."""
    fields = dict(error.fields)
    read = error.load.args[fields["dim"]].depends if error.load is not None else frozenset()
    size = fields["size"]
    for axes, option in (({"q", "kv"}, "--q-len"), ({"h"}, "--heads")):
        if not read.isdisjoint(axes) and 0 < size <= fields["index"]:
            fields["rewrite"] += f"\nor a picture of fewer: {option} {size}"
            break
    return type(error)(where=error.where, **fields)


def _picture(out: Path) -> Path:
    """Return the file of a picture, a .png where nothing else is said.

    Raises:
        ArgumentError: it is a folder.
    """
    if not out.name or out.is_dir():
        raise ArgumentError(
            name="--out",
            found_value=f"the folder {str(out)!r}",
            expected="a file",
            rewrite=f"--out {out / 'mod.png'}",
        )
    return out if out.suffix else out.with_name(f"{out.name}.png")


def _variants(options: argparse.Namespace) -> int:
    from flexfa4.variant_examples import GALLERY
    from flexfa4.variant_index import entries

    groups = {title: [entries()[e.name] for e in group] for title, group in GALLERY.items()}
    found = {
        title: shown
        for title, group in groups.items()
        if (shown := [entry for entry in group if _mentions(entry, title, options.word)])
    }
    if not found:
        raise ArgumentError(
            name="word",
            found_value=f"{options.word!r}, which no variant's name or description has",
            expected="a part of a name, a parameter, a formula or a heading; nothing for all",
            rewrite="flexfa4 variants window",
        )
    for title, group in found.items():
        print(f"{title}\n", *map(_listed, group), "", sep="\n")
    print("flexfa4 explain NAME and flexfa4 plot NAME show more.")
    return 0


def _mentions(entry: Entry, title: str, word: str) -> bool:
    text = f"{title} {entry.name} {entry.signature} {entry.summary}"
    return word.lower() in text.lower()


def _listed(entry: Entry) -> str:
    """Return a variant with its parameters and what it computes, as wide as the terminal."""
    parameters = ", ".join(map(str, entry.parameters))
    lines = ("  ", f"{entry.name}  {parameters}"), (" " * 6, entry.summary.replace("``", ""))
    width = shutil.get_terminal_size().columns
    return "\n".join(
        textwrap.fill(text.rstrip(), width, initial_indent=indent, subsequent_indent=" " * 6)
        for indent, text in lines
    )
