"""``flexfa4 compile``: the GPU kernel of a variant as a file, made without a GPU.

Only arguments and printing are here; `flexfa4.compile` compiles.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import flexfa4
from flexfa4.errors import ArgumentError

DESCRIPTION = """\
Compile the GPU kernel of a variant; takes CuTe-DSL, but no GPU.

The mod is a score mod or a mask, and --mask is the mask beside a score mod:

  flexfa4 compile alibi --mask causal --head-dim 128 --heads 32 --kv-heads 8 --out compiled

The folder may serve as FLEXFA4_CACHE_DIR on a machine that has a GPU and no CuTe-DSL; it takes the
same release of FlexFA4.  A kernel serves any batch and any lengths, but for a few exceptions, which
`flexfa4.compile` names.
"""

DTYPES: Final = {"bf16": torch.bfloat16, "fp16": torch.float16}


def add_to(commands: Any, add_mod: Callable[[argparse.ArgumentParser], None]) -> None:
    """Add the command to those of the parser; `add_mod` adds the arguments that name a mod."""
    command = commands.add_parser(
        "compile",
        help="compile the GPU kernel of a variant, without a GPU",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_mod(command)
    command.add_argument("--mask", metavar="MOD", help="a mask, named as a mod is")
    add_tensors(command)
    for name, what in (
        ("q-len", "queries that the mask is for (8192)"),
        ("kv-len", "its keys (as many as queries)"),
    ):
        command.add_argument(f"--{name}", type=int, metavar="N", help=what)
    command.add_argument("--scale", type=float, help="of scores (1/sqrt(head dimension))")
    command.add_argument("--sink", action="store_true", help="with a sink for each head")
    command.add_argument("--lse", action="store_true", help="with lse, which gradients need")
    command.add_argument("--arch", default="sm_90a", help="sm_90a (default), sm_100a or sm_103a")
    command.add_argument("--out", type=Path, metavar="FOLDER", help="where to keep it (the cache)")
    command.set_defaults(command=run)


def add_tensors(command: argparse.ArgumentParser) -> None:
    """Add arguments that say which tensors a kernel is for."""
    command.add_argument(
        "--head-dim",
        type=head_dims,
        default=(128, 128),
        metavar="D[,DV]",
        help="head dimension, and that of value where it is another (128)",
    )
    command.add_argument(
        "--dtype", choices=DTYPES, default="bf16", help="of query, key and value (bf16)"
    )
    command.add_argument("--kv-heads", type=int, metavar="N", help="key heads (as many as query's)")


def head_dims(text: str) -> tuple[int, int]:
    """Read ``128`` or ``192,128``.

    Raises:
        ValueError: it is something else.
    """
    first, *rest = map(int, text.split(","))
    (last,) = rest or (first,)
    return first, last


def run(options: argparse.Namespace) -> int:
    """Compile, and print what the kernel does and where it is."""
    from flexfa4.cli.named_mods import named

    mods: dict[str, Any] = {}
    chosen = named(options.mod, options.set, "compile")
    kind = "block_mask" if flexfa4.trace(chosen.mod).kind == "mask" else "score_mod"
    mods[kind] = chosen.mod
    if options.mask is not None:
        if kind == "block_mask":
            raise ArgumentError(
                name="--mask",
                found_value=f"{options.mask!r} beside the mask {options.mod!r}",
                expected="a mask beside a score mod",
                rewrite="the score mod first: flexfa4 compile SCORE_MOD --mask MASK",
            )
        mods["block_mask"] = named(options.mask, (), "compile").mod
    if options.q_len is not None and "block_mask" in mods:
        mods["block_mask"] = flexfa4.create_block_mask(
            mods["block_mask"],
            batch=1,
            heads=options.heads or options.kv_heads or 1,
            q_len=options.q_len,
            kv_len=options.q_len if options.kv_len is None else options.kv_len,
        )
    compiled = flexfa4.compile(
        **mods,
        head_dim=options.head_dim,
        dtype=DTYPES[options.dtype],
        heads=options.heads,
        kv_heads=options.kv_heads,
        scale=options.scale,
        sink=options.sink,
        return_lse=options.lse,
        arch=options.arch,
        folder=options.out,
    )
    table = Table(show_header=False, box=None)
    table.add_column()
    table.add_column(overflow="fold")  # paths are shown whole
    for label, text in compiled.rows():
        table.add_row(label, escape(text))
    table.add_row("file", escape(str(compiled.path)), style="bold")
    Console().print(table)
    if note := chosen.note():
        print(note)
    return 0
