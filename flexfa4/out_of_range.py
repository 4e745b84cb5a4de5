"""What a captured tensor that was read outside its bounds is called, and what to do about it.

The evaluator knows the tensor, the axis and the index.  This module adds where the mod reads it,
what the index counts (batch entries, heads, queries, keys), and, where the library's own variant
reads it, which parameter of the variant that is: then the user's tensor does not fit the call, and
a line of the library is no place to point at.

Works only when an error is to be raised.  Knows no variant by name: a parameter is found by the
file that reads it.
"""

from __future__ import annotations

import dataclasses
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Final, TypeVar

from flexfa4.errors import MaskOutOfRangeError, OutOfRangeError, Where
from flexfa4.frontend.binding import BoundGraph
from flexfa4.frontend.ir import Node
from flexfa4.frontend.places import TEXT_FILE
from flexfa4.frontend.sizes import Sizes

E = TypeVar("E", bound=OutOfRangeError)

_READ_DOCSTRING: Final = (
    "make the parameters of the variant fit each other and the call: its docstring says which"
    " shapes and values they may have"
)
_VARIANTS: Final = Path(__file__).resolve().parent / "variants"
# an index -> one of what it counts, several, and its name in mods
_COUNTED: Final = {
    "b": ("batch entry", "batch entries", "b"),
    "h": ("query head", "query heads", "h"),
    "q": ("query", "queries", "q_idx"),
    "kv": ("key", "keys", "kv_idx"),
}


def explained(
    error: OutOfRangeError, bound: BoundGraph | None, sizes: Sizes, kind: type[E]
) -> E | OutOfRangeError:
    """Return an error about a read with its place and with advice.

    Args:
        error: what the evaluator raised.
        bound: the mod that ran, None for none.
        sizes: of the call.
        kind: of the new error.

    Returns:
        The new error; `error` itself where it has a place already or none is known.
    """
    if bound is None or error.where is not None or error.load is None:
        return error
    where = bound.places.where(error.load)
    if where is not None and _VARIANTS in Path(where.file).resolve().parents:
        where, changed = _of_variant(error, where, sizes)
    else:
        is_text = where is not None and where.file == TEXT_FILE
        advice = _advice(error, sizes, is_text=is_text)
        if not issubclass(kind, MaskOutOfRangeError):
            advice += ", or mask these scores"
        changed = {"rewrite": advice}
    new = kind(where=where, **{**error.fields, **changed})
    new.load = error.load
    return new


def _index(error: OutOfRangeError) -> Node:
    """Return the index that was out of bounds."""
    index: Node = error.load.args[error.fields["dim"]]
    return index


def _of_variant(
    error: OutOfRangeError, where: Where, sizes: Sizes
) -> tuple[Where | None, dict[str, str]]:
    """Return the place and the changed fields of an error about a variant of the library."""
    name = _parameter(where, error.load.attr.name)
    if name is None:
        return where, {"rewrite": _READ_DOCSTRING}
    return None, {"tensor": name, "rewrite": _fit(name, error, sizes)}


def _counts(sizes: Sizes) -> dict[str, int]:
    return {"b": sizes.batch, "h": sizes.heads, "q": sizes.q_len, "kv": sizes.kv_len}


def _counted(index: Node) -> str | None:
    """Return which of b, h, q and kv an index is, None for anything computed."""
    return index.attr if index.op == "input" and index.attr in _COUNTED else None


def _parameter(where: Where, buffer: str) -> str | None:
    """Return the parameter of a variant that a buffer holds, such as ``Document.ids``.

    None for what a variant computed from several of its parameters.
    """
    field = re.sub(r"_\d+$", "", buffer)  # a second one of a name has a number
    here = sys.modules.get(f"flexfa4.variants.{Path(where.file).stem}")
    owners = _owners(here, field) or _owners(sys.modules.get("flexfa4.variants"), field)
    return f"{owners[0]}.{field}" if len(owners) == 1 else None


def _owners(module: ModuleType | None, field: str) -> list[str]:
    """Return the classes of a module with a parameter of this name."""
    return [
        name
        for name, kind in vars(module).items()
        if isinstance(kind, type)
        and dataclasses.is_dataclass(kind)
        and field in kind.__dataclass_fields__
    ]


def _fit(name: str, error: OutOfRangeError, sizes: Sizes) -> str:
    """Return how a parameter of a variant comes to fit the call."""
    dim, index = error.fields["dim"], _index(error)
    counted = _counted(index)
    if counted is None:
        counts = _counts(sizes)
        there = [f"{counts[a]} {_COUNTED[a][1]}" for a in _COUNTED if a in index.depends]
        return f"make {name} fit the call: {' and '.join(there) or 'it has such an index'}"
    one, count = _COUNTED[counted][0], _counts(sizes)[counted]
    return f"give {name} a size of {count} in dimension {dim}: one for each {one} of the call"


def _advice(error: OutOfRangeError, sizes: Sizes, *, is_text: bool) -> str:
    """Return how a read of the user's own comes into bounds."""
    index, fields = _index(error), error.fields
    counted, size, high = _counted(index), fields["size"], fields["high"]
    if counted in ("b", "h"):
        one, _, name = _COUNTED[counted]
        count = _counts(sizes)[counted]
        advice = f"a tensor with one element for each {one}, {count} in dimension {fields['dim']}"
        if size == 1:
            return f"{advice}; or 0 in place of {name}, where one serves all"
        if counted == "h" and size and count % size == 0:
            return f"{advice}; or h // {count // size} in place of h, for groups of heads"
        return advice
    depends = [axis for axis in _COUNTED if axis in index.depends]
    name = "index" if len(depends) != 1 else depends[0] if is_text else _COUNTED[depends[0]][2]
    bound = f"max={high}" if fields["index"] >= 0 else "min=0"
    clamped = f"clamp({name}, 0, {high})" if is_text else f"{name}.clamp({bound})"
    advice = "make the tensor long enough"
    return f"{advice}, or clamp the index, such as {clamped}" if high >= 0 else advice
