"""A graph with its captured values as plain data: what pickle and deepcopy keep of a mod.

The data are strings, numbers and tensors: the graph is its text form, which is read by the grammar
and checked like any text.  So a mod of any origin can be stored, a lambda too; another process
reads it without the user's code, and ``torch.load(weights_only=True)`` can.  What is read back is a
snapshot: it holds the values of the moment and no longer follows what the function captured.

Does not know what is stored around a mod (`flexfa4.block_mask`), nor pickle itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from flexfa4.errors import DamagedPickleError, PickleFormatError, describe
from flexfa4.frontend.binding import BoundGraph
from flexfa4.frontend.text.printing import bind_values, parse_graph, to_text

# Of the state of a mod; raised when the meaning of a key changes, another number is refused.
FORMAT: Final = 1


def state_of(bound: BoundGraph) -> dict[str, Any]:
    """Return the data of a mod: its text, and the captured values by the names in it."""
    graph = bound.graph
    tensors = zip(graph.buffers, bound.tensors, strict=True)
    scalars = zip(graph.scalars, bound.scalars, strict=True)
    return {
        "format": FORMAT,
        "text": to_text(graph),
        "tensors": {buffer.name: tensor for buffer, tensor in tensors},
        "scalars": {scalar.name: number for scalar, number in scalars},
    }


def restored(state: Any) -> BoundGraph:
    """Return the mod that `state_of` gave the data of; it holds the tensors of `state` itself.

    Raises:
        PickleFormatError: another release wrote the data in another format.
        DamagedPickleError: they do not go together.
    """
    with reading("Mod", state):
        values = {**state["tensors"], **state["scalars"]}
        return bind_values(parse_graph(state["text"], values).graph, values)


@contextmanager
def reading(what: str, state: Any, format: int = FORMAT) -> Iterator[None]:
    """Read the state of a pickled `what`: refuse another format, and whatever fails inside.

    Raises:
        PickleFormatError: the state has another format.
        DamagedPickleError: it is no state, or reading it raised an error.
    """
    found = state.get("format") if isinstance(state, dict) else None
    if found is None:
        raise DamagedPickleError(what=what, problem="its format is not given")
    if not isinstance(found, (int, str)):
        raise DamagedPickleError(what=what, problem=f"its format is {describe(found)}")
    if found != format:
        raise PickleFormatError(what=what, found_format=repr(found), format=format)
    try:
        yield
    except (DamagedPickleError, PickleFormatError):
        raise
    # the data come from elsewhere: any error on them is damage, whatever its kind
    except Exception as error:
        problem = str(error).partition("\n")[0] or type(error).__name__
        if isinstance(error, KeyError):
            problem = f"{problem} is missing"
        raise DamagedPickleError(what=what, problem=problem) from error
