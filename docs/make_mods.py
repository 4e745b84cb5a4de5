"""Write the lists in docs/mods.md from the tables of the package.

    python docs/make_mods.py

The document is written by hand, but for what stands between ``<!-- name -->`` and ``<!-- end -->``:
the functions, operators and words that `flexfa4.frontend` knows.  A test compares the two and runs
the examples.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import torch

from flexfa4.frontend.analysis import in_words
from flexfa4.frontend.ir import INPUTS, SYMBOLS
from flexfa4.frontend.text.vocabulary import (
    ALIASES,
    DTYPES,
    FUNCTIONS,
    INFIX,
    LITERALS,
    PRECEDENCE,
    PREFIX,
    SHAPE_FUNCTIONS,
)
from flexfa4.frontend.tracing.torch_functions import FUNCTIONS as TORCH_FUNCTIONS
from flexfa4.frontend.tracing.torch_table import INSTEAD

DOCUMENT: Final = Path(__file__).resolve().parent / "mods.md"
_PART: Final = re.compile(r"(<!-- (?!end )(?P<name>[\w ]+) -->\n).*?(?=<!-- end -->)", re.DOTALL)

_NOTES: Final = {
    "<": "comparisons",
    "|": "or",
    "^": "exclusive or",
    "&": "and",
    "<<": "shifts of integers",
    "**": "power; `-a ** 2` is `-(a ** 2)`",
    "~": "negative, not",
}
# in the table for their error messages
_ASK_FOR_NUMBERS: Final = ("item", "tolist")
_WORDS: Final = {
    "score": "the score, in a score mod",
    "b": "batch entry",
    "h": "query head",
    "q": "position of the query",
    "kv": "position of the key",
}


def parts() -> dict[str, str]:
    """Return what belongs between the marks of each name."""
    return {
        "operators": _operators(),
        "functions": _functions(),
        "refused": _table(("torch's function", "instead"), _refused()),
        "words": _words(),
        "text functions": _text_functions(),
        "reads": _bullets(f'"{words}"' for words in in_words.SHAPES.values()),
        "pipes": _bullets(
            f"{words}: {meaning}"
            for words, meaning in zip(
                in_words.PIPES.values(),
                (
                    "exp, log, tanh, division and the like, which are slow",
                    "sums, products, and functions made of them",
                    "comparisons, logic, rounding, integers",
                ),
                strict=True,
            )
        ),
    }


def text(document: str) -> str:
    """Return the document with its parts as the package has them."""
    made = parts()
    return _PART.sub(lambda found: f"{found[1]}\n{made[found['name']]}\n\n", document)


def _table(head: tuple[str, str], rows: Iterable[tuple[str, str]]) -> str:
    cells = [head, ("---", "---"), *rows]
    return "\n".join(f"| {a} | {b} |" for a, b in cells)


def _bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _operators() -> str:
    rows = []
    for level in sorted(set(PRECEDENCE.values())):
        symbols = [s for table in (INFIX, PREFIX) for s, op in table.items()
                   if PRECEDENCE[op.name] == level]  # fmt: skip
        shown = ", ".join(f"`{s}`" for s in symbols).replace("|", "\\|")
        note = next((_NOTES[s] for s in symbols if s in _NOTES), "")
        rows.append((shown, note))
    return _table(("operators", ""), rows)


def _functions() -> str:
    left = sorted(
        n for n in TORCH_FUNCTIONS if n[0] != "_" and n not in (*INSTEAD, *_ASK_FOR_NUMBERS)
    )
    groups = []
    for home in (torch, torch.nn.functional, torch.Tensor):
        # torch.float is a dtype, and the method is meant
        groups.append([n for n in left if callable(getattr(home, n, None))])
        left = [n for n in left if n not in groups[-1]]
    torchs, functional, methods = groups
    return "\n\n".join((
        f"Of `torch`, and as methods where torch has them: {_names(torchs)}.",
        f"Of `torch.nn.functional`: {_names(functional)}.",
        f"As methods: {_names(methods)}.",
    ))  # fmt: skip


def _refused() -> Iterable[tuple[str, str]]:
    by_advice: dict[str, list[str]] = {}
    for name, advice in INSTEAD.items():
        by_advice.setdefault(advice, []).append(name)
    return [(_names(names), advice.replace("|", "\\|")) for advice, names in by_advice.items()]


def _words() -> str:
    aliases = {name: alias for alias, name in ALIASES.items()}
    rows = [(_names(filter(None, (n, aliases.get(n)))), _WORDS[n]) for n in INPUTS]
    rows.append((_names(SYMBOLS), "the sizes of the call"))
    rows.append((_names([*LITERALS, "True", "False"]), "themselves"))
    rows.append((_names(DTYPES), "types in declarations, and conversions: `f32(kv)`"))
    return _table(("words", "mean"), rows)


def _text_functions() -> str:
    usages = [*(f.usage for f in FUNCTIONS.values()), *SHAPE_FUNCTIONS.values()]
    usages = [form for usage in usages for form in usage.split(" or ")]
    return f"Functions: {_names(usages)}."


if __name__ == "__main__":
    DOCUMENT.write_text(text(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
