"""Captured tensors indexed with traced values.

A `View` is a captured tensor with an entry for each axis: an index node, or an `Open` range that
later indexing fills in, so that ``bias[b][h][q, kv]``, ``t[..., kv]`` and ``t[h, :, q]`` compose.
Where a view meets arithmetic it becomes a load: of one element where no axis is open, of a vector
where one is.  Indexing with captured values alone does not come here (`hosts.evaluate`).
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from flexfa4.errors import IndexingError
from flexfa4.frontend import ir
from flexfa4.frontend.ir import I32, Node
from flexfa4.frontend.places import Place
from flexfa4.frontend.tracing import locate
from flexfa4.frontend.tracing.proxies import (
    TORCH_DTYPES,
    Operators,
    Traced,
    as_node,
    dtype_class,
    op,
    refuse_changed,
)
from flexfa4.frontend.tracing.sources import describe

if TYPE_CHECKING:
    from flexfa4.frontend.tracing.hosts import HostTensor


@dataclass(frozen=True)
class Open:
    """An axis not indexed yet: elements ``start + step * i``.

    Attributes:
        length: number of elements, None for the whole axis, whose size need not be known.
    """

    start: int = 0
    step: int = 1
    length: int | None = None


Entry = Node | Open


class View(Operators):
    """A captured tensor, indexed in part; see the module's docstring."""

    __slots__ = ("_change", "_entries", "_place", "_tensor")

    def __init__(
        self, tensor: HostTensor, entries: tuple[Entry, ...] | None, place: Place | None = None
    ) -> None:
        self._tensor = tensor
        self._entries = entries
        self._place = place
        self._change = ""

    @property
    def entries(self) -> tuple[Entry, ...]:
        """One entry for each axis of the tensor."""
        if self._entries is None:
            return (Open(),) * self._tensor.ndim
        return self._entries

    @property
    def node(self) -> Node:
        """The load of one element, or of a vector along the one open axis."""
        if self._change:
            refuse_changed(self._change)
        session, tensor = self._tensor.session, self._tensor
        indices: list[Node] = []
        vectors = 0
        for axis, entry in enumerate(self.entries):
            if isinstance(entry, Open):
                length = self._length(axis, entry)
                if length == 1:  # as torch broadcasts it: a number
                    entry = ir.const(entry.start)
                else:
                    vectors += 1
                    entry = _range(entry, length)
            else:
                vectors += entry.length is not None
            indices.append(entry)
        if vectors > 1:
            self._refuse(f"values for {len(indices) - vectors} of its axes only",
                         "one axis left at most, which is read as a vector",
                         "one index for each axis")  # fmt: skip
        load = ir.load(session.buffer(tensor.source, tensor.value), tuple(indices))
        return load if self._place is None else session.noted(load, self._place)

    def made_at(self, place: Place) -> None:
        """Note where the user's source makes it, where `locate` cannot see that."""
        self._place = place

    def note_change(self, change: str) -> None:
        """Make reading the value an error."""
        self._change = change

    def _length(self, axis: int, entry: Open) -> int:
        """Return the length of an open axis, which becomes part of the trace."""
        size = self._tensor.session.static_size(self._tensor.source, self._tensor.value, axis)
        return size if entry.length is None else entry.length

    def _open_axes(self) -> list[int]:
        return [axis for axis, entry in enumerate(self.entries) if isinstance(entry, Open)]

    def _refuse(self, index: str, expected: str, advice: str) -> NoReturn:
        axes = self._tensor.value.dim()
        raise IndexingError(
            where=locate.here(),
            name=f"`{describe(self._tensor.source)}` of {axes} {'axis' if axes == 1 else 'axes'}",
            index=index,
            expected=expected,
            rewrite=advice,
        )

    # ---- indexing -------------------------------------------------------------------------------

    def __getitem__(self, index: Any) -> Any:
        from flexfa4.frontend.tracing import hosts

        whole = type(self) is hosts.HostTensor
        if whole and not hosts.any_traced((index,)):
            try:
                return hosts.evaluate(operator.getitem, (self, index), {})
            except IndexError as error:
                self._refuse(f"[{index!r}]: {error}", "indices within the tensor",
                             "an index within the tensor, or a larger tensor")  # fmt: skip
        items = self._expanded(index if isinstance(index, tuple) else (index,))
        entries = list(self.entries)
        for axis, item in zip(self._open_axes(), items, strict=False):
            entries[axis] = self._compose(axis, entries[axis], item)
        return View(self._tensor, tuple(entries), locate.place())

    def _expanded(self, items: tuple[Any, ...]) -> tuple[Any, ...]:
        """Replace ``...`` by the slices that it stands for, and check the number of indices."""
        axes = len(self._open_axes())
        dots = [i for i, item in enumerate(items) if item is Ellipsis]
        if any(item is None for item in items):
            self._refuse("None", "indices and slices", "index the captured tensor with None "
                         "before indexing it with scores' positions")  # fmt: skip
        if len(dots) > 1 or len(items) - len(dots) > axes:
            self._refuse(f"{len(items) - len(dots)} indices", f"at most {axes} here",
                         "one index for each axis")  # fmt: skip
        if dots:
            fill = (slice(None),) * (axes - len(items) + 1)
            items = items[: dots[0]] + fill + items[dots[0] + 1 :]
        return items

    def _compose(self, axis: int, entry: Entry, item: Any) -> Entry:
        """Return the entry of `axis` after indexing its open range with `item`."""
        assert isinstance(entry, Open)
        if isinstance(item, slice):
            return self._slice(axis, entry, item)
        if isinstance(item, bool) or not isinstance(item, (int, Operators, torch.Tensor)):
            if not hasattr(item, "__index__") or isinstance(item, bool):
                self._bad_index(f"a {type(item).__name__}")
            item = item.__index__()
        index = as_node(item)
        if index.dtype is not I32:
            self._bad_index(f"a value of dtype {index.dtype.value}")
        if index.op == "const":
            self._check_range(axis, entry, index.attr)
        if entry == Open():
            return index
        # a range of a known length: negative indices count from its end
        length = self._length(axis, entry)
        if index.op == "const":
            return ir.const(entry.start + entry.step * (index.attr % length))
        counted = op(
            "where", op("lt", index, ir.const(0)), op("add", index, ir.const(length)), index
        )
        return op("add", op("mul", counted, ir.const(entry.step)), ir.const(entry.start))

    def _slice(self, axis: int, entry: Open, item: slice) -> Open:
        if item == slice(None):
            return entry
        from flexfa4.frontend.tracing import hosts

        if hosts.any_traced((item,)):
            advice = "torch.where on the values that it selects"
            self._bad_index("a slice with traced bounds", advice)
        length = self._length(axis, entry)
        chosen = range(*slice(item.start, item.stop, item.step).indices(length))
        if not chosen:
            self._refuse("an empty slice", "slices of one element or more", "a longer slice")
        return Open(entry.start + entry.step * chosen.start, entry.step * chosen.step, len(chosen))

    def _check_range(self, axis: int, entry: Open, index: int) -> None:
        size = self._tensor.value.shape[axis] if entry.length is None else entry.length
        if not -size <= index < size:
            self._refuse(
                f"{index} in dimension {axis}, which has size {size}",
                f"indices from {-size} to {size - 1}",
                "an index within the tensor, or a larger tensor",
            )

    def _bad_index(self, what: str, advice: str = "") -> NoReturn:
        is_condition = "bool" in what
        if not advice:
            advice = (
                "torch.where(condition, a, b)" if is_condition else "index.to(torch.int64), or //"
            )
        self._refuse(what, "integers: b, h, q_idx, kv_idx, and values computed of them", advice)

    # ---- what torch tensors have ----------------------------------------------------------------

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that stands for the element type once the view is read."""
        return TORCH_DTYPES[dtype_class(self._tensor.value.dtype)]

    @property
    def device(self) -> torch.device:
        """The captured tensor's device."""
        return self._tensor.device

    @property
    def shape(self) -> tuple[Any, ...]:
        """The sizes of the axes left."""
        whole = self._tensor.shape
        entries = self.entries
        return tuple(
            whole[a] if (n := getattr(entries[a], "length", None)) is None else n
            for a in self._open_axes()
        )

    @property
    def ndim(self) -> int:
        """The number of axes left."""
        return len(self._open_axes())

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getattr__(self, name: str) -> Any:
        return getattr(Traced(self.node), name)

    def __bool__(self) -> bool:
        return bool(Traced(self.node))

    def __int__(self) -> int:
        return int(Traced(self.node))

    def __float__(self) -> float:
        return float(Traced(self.node))

    def __index__(self) -> int:
        return operator.index(Traced(self.node))

    def __round__(self, digits: int = 0) -> Any:
        return round(Traced(self.node), digits)

    def __repr__(self) -> str:
        return f"view of {self._tensor!r}"


def _range(entry: Open, length: int) -> Node:
    index = ir.iota(length)
    if entry.step != 1:
        index = op("mul", index, ir.const(entry.step))
    return index if entry.start == 0 else op("add", index, ir.const(entry.start))
