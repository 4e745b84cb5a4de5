"""What the library of variants holds, read from the variants themselves.

For every default instance: its class, its parameters, and the parts of its docstring (formula,
remarks, source, meaning of each parameter).  The command line lists them, makes variants with other
parameters from them, and docs/variants.md is written from them; so a variant is described in one
place, its own file.

Knows the form of the docstrings, which CONTRIBUTING.md describes, and no variant by name.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from flexfa4 import variants
from flexfa4.combine import MaskMod
from flexfa4.errors import ArgumentError
from flexfa4.frontend.tracing.trace import trace


@dataclass(frozen=True)
class Parameter:
    """A parameter of a variant.

    Attributes:
        name: in the constructor.
        annotation: its type, as written there.
        default: of the constructor.
        meaning: from the docstring.
    """

    name: str
    annotation: str
    default: Any
    meaning: str

    def takes(self, kind: str) -> bool:
        """Whether a type is one of those in the annotation, such as ``"Tensor"`` or ``"str"``."""
        return re.search(rf"\b{kind}\b", self.annotation) is not None

    def __str__(self) -> str:
        """Return the parameter with its default; a mod as default by its name."""
        known = {id(getattr(variants, name)): name for name in variants.__all__}
        default = known.get(id(self.default)) or getattr(self.default, "__name__", None)
        return f"{self.name}={default or repr(self.default)}"


@dataclass(frozen=True)
class Entry:
    """A variant of the library.

    Attributes:
        name: of the default instance, such as ``sliding_window``.
        kind: what it is.
        variant: the class.
        parameters: of the class, in order.
        paragraphs: the docstring without its source and parameters; the first one has the formula,
            or leads to it.
        source: where the variant comes from.
    """

    name: str
    kind: Literal["mask", "score"]
    variant: type[Any]
    parameters: tuple[Parameter, ...]
    paragraphs: tuple[str, ...]
    source: str

    @property
    def summary(self) -> str:
        """The first sentence or two, on one line: paragraphs up to one that ends a sentence."""
        text = ""
        for paragraph in self.paragraphs:
            text = f"{text} {' '.join(paragraph.split())}".strip()
            if text.endswith("."):
                break
        return text

    @property
    def signature(self) -> str:
        """The class with its parameters and defaults, such as ``SlidingWindow(window=1024)``."""
        return f"{self.variant.__name__}({', '.join(map(str, self.parameters))})"

    def missing(self, mod: Any = None) -> ArgumentError | None:
        """Return which data a variant lacks, as the error of its use; None where it lacks none.

        Args:
            mod: an instance; None takes the default one.
        """
        try:
            trace(getattr(variants, self.name) if mod is None else mod, self.kind).bind()
        except ArgumentError as error:
            return error
        return None


@functools.cache
def entries() -> dict[str, Entry]:
    """Return every variant of `flexfa4.variants`, by the name of its default instance."""
    named = ((name, getattr(variants, name)) for name in variants.__all__)
    return {name: _entry(name, value) for name, value in named if not isinstance(value, type)}


def find(name: str) -> Entry | None:
    """Return the variant of this name, that of the instance or that of the class."""
    for entry in entries().values():
        if name in (entry.name, entry.variant.__name__):
            return entry
    return None


def _entry(name: str, instance: Any) -> Entry:
    kind = type(instance)
    text, _, attributes = inspect.cleandoc(kind.__doc__ or "").partition("\n\nAttributes:\n")
    paragraphs = text.split("\n\n")
    sources = [p for p in paragraphs if p.startswith("Source:")]
    meanings = dict(_meanings(attributes))
    return Entry(
        name=name,
        kind="mask" if issubclass(kind, MaskMod) else "score",
        variant=kind,
        parameters=tuple(
            Parameter(field.name, str(field.type), field.default, meanings.get(field.name, ""))
            for field in dataclasses.fields(kind)
            if field.init
        ),
        paragraphs=tuple(p for p in paragraphs if p not in sources),
        source=" ".join(" ".join(p.removeprefix("Source:").split()) for p in sources),
    )


def _meanings(attributes: str) -> Iterator[tuple[str, str]]:
    """Yield each parameter of an ``Attributes:`` section with its meaning, on one line."""
    for item in re.split(r"\n(?=\S)", textwrap.dedent(attributes)):
        names, _, meaning = item.partition(":")
        for name in names.split(","):
            yield name.strip(), " ".join(meaning.split())
