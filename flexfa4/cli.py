"""The command line: ``flexfa4 demo``, ``flexfa4 explain`` and ``flexfa4 doctor``.

Only arguments are handled here; each command's work is done by the module of its name.  What a user
can get wrong ends in the catalogue's message on stderr and exit code 2; a command whose result is
bad (the demo's losses differ) ends with exit code 1.  A reader that has seen enough (``flexfa4
explain alibi | head -1``) is no mistake and gets no message.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

import flexfa4
from flexfa4.errors import ArgumentError, FlexFA4Error, TextError, UnknownNameError

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
    explain.add_argument(
        "mod", help="a text such as 'score + 0.5 * (kv - q)', module:function, or a variant's name"
    )
    explain.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=NUMBER",
        help="the value of a name in a text mod; may be repeated",
    )
    explain.set_defaults(command=_explain)

    doctor = commands.add_parser(
        "doctor", help="say what this machine can run, and why not the rest"
    )
    doctor.set_defaults(command=_doctor)
    return parser


def _demo(options: argparse.Namespace) -> int:
    from flexfa4 import demo

    chosen = demo.Options(steps=options.steps, length=options.seq_len, folder=options.out)
    return 0 if demo.run(chosen, Console()) else 1


def _doctor(options: argparse.Namespace) -> int:
    from flexfa4 import doctor

    doctor.show(doctor.examine(), Console())
    return 0


def _explain(options: argparse.Namespace) -> int:
    bindings = dict(_binding(text) for text in options.set)
    print(flexfa4.explain(_mod(options.mod, bindings)))
    return 0


def _binding(text: str) -> tuple[str, int | float]:
    """Read ``name=number``."""
    name, equals, value = text.partition("=")
    for kind in (int, float):
        try:
            number: int | float = kind(value)
        except ValueError:
            continue
        if equals and name.isidentifier():
            return name, number
    raise ArgumentError(
        name="--set",
        found_value=repr(text),
        expected="a name, an equals sign and a number",
        rewrite="--set slope=0.5",
    )


def _mod(text: str, bindings: dict[str, int | float]) -> Any:
    """Return the mod that the user named: a variant, an imported function or a parsed text."""
    from flexfa4 import variants

    if re.fullmatch(r"[\w.]+:[\w.]+", text):
        found: Any = _imported(*text.split(":"))
    elif text in variants.__all__:
        found = getattr(variants, text)
        if isinstance(found, type):  # a variant by its class: the instance with the defaults
            found = found()
    else:
        return _parsed(text, bindings)
    if bindings:
        raise ArgumentError(
            name="--set",
            found_value=", ".join(f"{n}={v}" for n, v in bindings.items()),
            expected="values for the names in a text mod; a function brings its own",
            rewrite="leave --set out, or write the mod as text",
        )
    return found


def _parsed(text: str, bindings: dict[str, int | float]) -> Any:
    """Parse a text.

    Raises:
        ArgumentError: it is no text, but a variant's name misspelt, or an expression of variants.
        TextError: the text cannot be read; the advice is one for the command line.
    """
    try:
        return flexfa4.parse(text, **bindings)
    except TextError as error:
        name = error.fields["name"] if isinstance(error, UnknownNameError) else ""
        _refuse_variants(text, name)
        if not name:
            raise
        rewrite = error.fields["rewrite"].replace(
            f"flexfa4.parse(text, {name}=...)", f"--set {name}=0.5"
        )
        fields = {**error.fields, "rewrite": rewrite}
        raise UnknownNameError(where=error.where, **fields) from None


def _refuse_variants(text: str, unknown: str) -> None:
    """Refuse a text that means variants, exactly named or by its `unknown` name nearly."""
    from flexfa4 import variants

    names = [word for word in re.findall(r"\w+", text) if word in variants.__all__]
    names += difflib.get_close_matches(unknown, variants.__all__, n=1, cutoff=0.75)
    if unknown and text.isidentifier():
        rewrite = f"flexfa4 explain {names[0] if names else 'causal'}"
    elif names:
        imported = ", ".join(dict.fromkeys(names))
        rewrite = (
            f"in my_masks.py: from flexfa4.variants import {imported}; mod = {text}\n"
            "and then: flexfa4 explain my_masks:mod"
        )
    else:
        return
    raise ArgumentError(
        name="mod",
        found_value=repr(text),
        expected=f"a text, module:function, or one of {', '.join(variants.__all__)}",
        rewrite=rewrite,
    ) from None


def _imported(module: str, path: str) -> Callable[..., Any]:
    """Return ``path`` of ``module``, looked for in the current folder too."""
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found: Any = importlib.import_module(module)
        for name in path.split("."):
            found = getattr(found, name)
    except (Exception, SystemExit) as error:  # the user's module may do anything when imported
        problem = f"{module}:{path}, which gives {type(error).__name__}: {error}"
    else:
        if callable(found):
            return found  # type: ignore[no-any-return]
        problem = f"{module}:{path}, {type(found).__name__!r} is not callable"
    raise ArgumentError(
        name="mod",
        found_value=problem,
        expected="module:function of a module that Python can import from here",
        rewrite="flexfa4 explain my_masks:window, where my_masks.py is in this folder",
    )


if __name__ == "__main__":
    sys.exit(main())
