"""Which tilings of Hopper's kernels are measured, and which of them goes into the tables.

A search is a pass at head dims.  Its first candidates are cut in different ways, and the second
ones, of the forward pass, are those of the first that were near the best, with other orders and
shares of exponentials.  The one that takes least is chosen; one that takes hardly less than the
present one, or takes more memory, is not worth it.

The forward pass has two tables: for calls with a mask, by the mean of causal attention and a
window, and for those without one, by full attention.  More warpgroups do more at once where all
tiles are full, and compute more masked scores where many are not.  The backward pass has one, by
the mean of full and causal attention.
"""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from hopper.timing import ratios

from flexfa4.kernels.blocks.walk import WalkPlan
from flexfa4.kernels.sm90 import model
from flexfa4.kernels.sm90.backward import storage as backward
from flexfa4.kernels.sm90.backward.tilings import BACKWARD
from flexfa4.kernels.sm90.forward import plan as forward
from flexfa4.kernels.sm90.forward.storage import SHARED_MEMORY, plan_storage
from flexfa4.kernels.sm90.forward.tilings import FORWARD, UNMASKED
from flexfa4.kernels.sm90.tuning import feasible
from flexfa4.primitives.exponentials import NONE_EMULATED, EmulatedFraction
from flexfa4.primitives.tile_walk import TileShape

HeadDims = tuple[int, int]
Tiling = forward.Tiling | backward.Tiling

Tables = dict[str, dict[HeadDims, Tiling]]

VARIANTS: Final = {"forward": ("full", "causal", "window-1024"), "backward": ("full", "causal")}
"""What is measured, by pass."""

DECIDING: Final = {
    "forward": ("causal", "window-1024"),
    "unmasked": ("full",),
    "backward": ("full", "causal"),
}
"""Whose times decide on the rows of a table, by table."""

PRESENT: Final[Tables] = {
    "forward": {**FORWARD},
    "unmasked": {**UNMASKED},
    "backward": {**BACKWARD},
}
"""The tables: by pass, and the rows that are others in forward passes without a mask."""

ALIKE: Final = 1.01
"""Tilings whose times are no further apart are as good as each other."""


@dataclass(frozen=True)
class Search:
    """See the module.

    Attributes:
        way: "forward" or "backward".
        head_dims: of q and k, and of v.
    """

    way: str
    head_dims: HeadDims

    @property
    def name(self) -> str:
        """What it is called on the command line and in results."""
        return f"{self.way}-{self.head_dims[0]}-{self.head_dims[1]}"

    @property
    def present(self) -> Tiling:
        """The tiling of the table."""
        return PRESENT[self.way][self.head_dims]

    @property
    def presents(self) -> Tables:
        """The tilings of all tables for the head dims: one each."""
        return {
            name: {self.head_dims: PRESENT[name].get(self.head_dims, self.present)}
            for name in _NAMES[self.way]
        }

    @property
    def variants(self) -> tuple[str, ...]:
        """What is measured."""
        return VARIANTS[self.way]

    def first(self) -> list[Tiling]:
        """Return the candidates that are measured at first: the present one before all others."""
        found = _forward if self.way == "forward" else _backward
        present = [tiling for table in self.presents.values() for tiling in table.values()]
        return list(dict.fromkeys([*present, *found(self.head_dims)]))

    def second(self, times: dict[Tiling, float]) -> list[Tiling]:
        """Return those that are measured then: none where the first ones were all.

        Args:
            times: of the first ones that may be taken, relative to each other.
        """
        if self.way == "backward" or not times:
            return []
        near = [t for t, time in times.items() if time <= _NEAR * min(times.values())]
        near = sorted(near, key=times.__getitem__)[:_MOST_NEAR]
        again = [t for t in times if t == self.present or t in near]
        varied = [
            replace(tiling, early=early, emulated=emulated)
            for tiling in near
            if isinstance(tiling, forward.Tiling)
            for early, emulated in itertools.product(_EARLY, _EMULATED)
        ]
        return list(dict.fromkeys([*again, *varied]))

    def nbytes(self, tiling: Tiling) -> int:
        """Return the bytes of shared memory that a block takes."""
        if isinstance(tiling, forward.Tiling):
            storage = plan_storage(tiling.rows, tiling.keys, self.head_dims, tiling.stages)
            return storage.bytes
        return backward.plan_storage(tiling, self.head_dims).bytes


def searches() -> dict[str, Search]:
    """Return all searches by name, in the order in which they are run."""
    found = [Search(way, head_dims) for way in VARIANTS for head_dims in PRESENT[way]]
    return {search.name: search for search in found}


# ---- forward -------------------------------------------------------------------------------------

_BY_MODEL: Final = 1.03
"""A tiling that the model finds slower than its best one by more is not measured."""
_MOST: Final = 8  # tilings that are
_NEAR: Final = 1.03  # of the least time that was measured
_MOST_NEAR: Final = 2
_EARLY: Final = (0.0, 0.25, 0.5)
_EMULATED: Final = (NONE_EMULATED, EmulatedFraction(1, 8))


def _forward(head_dims: HeadDims) -> list[Tiling]:
    """Return the tilings that the model finds best, the best first."""

    def cycles(tiling: forward.Tiling) -> float:
        walk = WalkPlan("dense", TileShape(tiling.rows, tiling.keys))
        return model.cycles_per_score(
            forward.ForwardPlan(element="bf16", head_dims=head_dims, tiling=tiling, walk=walk)
        )

    known = {tiling: cycles(tiling) for tiling in feasible(head_dims)}
    most = _BY_MODEL * min(known.values())
    found = sorted((t for t in known if known[t] <= most), key=known.__getitem__)
    return [*found[:_MOST]]


# ---- backward ------------------------------------------------------------------------------------

_WAYS: Final[tuple[dict[str, Any], ...]] = (
    {"staged": True, "lagged": True, "finishes": True},
    {"staged": True, "lagged": True},
    {"staged": True},
    {"staged": True, "early": False},
    {"staged": False},
    {"staged": False, "early": False},
)
"""How a tile of dQ goes to its sums and to dq, and when the product for dV begins."""

_WHOLE: Final[tuple[dict[str, Any], ...]] = ({},)
_PARTS: Final[tuple[dict[str, Any], ...]] = (
    {"in_registers": False, "dp_parts": 2},
    {"by_keys": False, "in_registers": False},
)
"""What a thread holds of results: those of its keys, or less where these are too many."""

_RESULTS: Final = 240
"""Registers of a thread that may hold results: it has so many.  With more, ptxas spills, and takes
minutes; that it has none left for addresses is no matter, for not all are held at once."""


def _backward(head_dims: HeadDims) -> list[Tiling]:
    """Return the tilings that fit: of each kind the one with the most stages."""
    whole = held_registers(_backward_tiling(64, 1, {}), head_dims) <= _RESULTS
    kinds = itertools.product((64, 128), (2, 1), _WAYS, _WHOLE if whole else _PARTS)
    found = []
    for queries, kv_stages, way, held in kinds:
        if way.get("lagged") and held:
            continue  # no tiling, see there
        for do_stages, ds_stages in itertools.product((2, 1), (2,) if "lagged" in way else (2, 1)):
            stages = {"do_stages": do_stages, "ds_stages": ds_stages}
            tiling = _backward_tiling(queries, kv_stages, {**way, **held, **stages})
            nbytes = backward.plan_storage(tiling, head_dims).bytes
            if held_registers(tiling, head_dims) <= _RESULTS and nbytes <= SHARED_MEMORY:
                found.append(tiling)
                break
    # of full and causal attention no block finishes dQ: this is for masks, wherever there is room
    return [
        t for t in found if not t.lagged or t.finishes or replace(t, finishes=True) not in found
    ]


def _backward_tiling(queries: int, kv_stages: int, fields: dict[str, Any]) -> backward.Tiling:
    keys = 128 if fields.get("by_keys", True) else 64  # of two warpgroups, or of both of them
    return backward.Tiling(queries, keys, kv_stages=kv_stages, **fields)


def held_registers(tiling: backward.Tiling, head_dims: HeadDims) -> int:
    """Return the registers of a thread that hold results of products, and operands, about."""
    own = sum(map(tiling.gradient_columns, head_dims)) // 2  # 64 rows by 128 threads
    scores = tiling.score_columns // 2
    change = scores // tiling.dp_parts
    dq = tiling.queries * head_dims[0] // (128 * tiling.warpgroups)
    if not tiling.in_registers:
        return own + max(scores + change, dq)
    probabilities = scores // 2 if tiling.early else 0  # read while dS is computed
    return own + scores + change + dq + probabilities


# ---- the choice ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measured:
    """A candidate with its times.

    Attributes:
        tiling: of the kernel.
        nbytes: of shared memory.
        ms: of each round, by variant.
    """

    tiling: Tiling
    nbytes: int
    ms: dict[str, list[float]]


def relative_times(found: Sequence[Measured], variants: Sequence[str]) -> dict[Tiling, float]:
    """Return the times relative to the first candidate: the mean of those of some variants."""
    return {
        each.tiling: statistics.mean(
            statistics.median(ratios(each.ms[variant], found[0].ms[variant]))
            for variant in variants
        )
        for each in found
    }


def chosen(found: Sequence[Measured], present: Tiling, variants: Sequence[str]) -> Tiling:
    """Return what the table should have: the best, the present one, or the one with fewer bytes.

    Args:
        found: at least one candidate; all were measured in the same rounds.
        present: what the table has.
        variants: whose times decide.
    """
    times = relative_times(found, variants)
    alike = [each for each in found if times[each.tiling] <= ALIKE * min(times.values())]
    if any(each.tiling == present for each in alike):
        return present
    return min(alike, key=lambda each: (each.nbytes, times[each.tiling])).tiling


# ---- as text -------------------------------------------------------------------------------------


def fields_of(tiling: Tiling) -> dict[str, Any]:
    """Return the fields of a tiling that are not what they are by default."""
    return {
        field.name: getattr(tiling, field.name)
        for field in dataclasses.fields(tiling)
        if getattr(tiling, field.name) != field.default
    }


def as_json(tiling: Tiling) -> dict[str, Any]:
    """Return the same as JSON has it, which `tiling_of` reads."""
    return {
        name: dataclasses.asdict(value) if isinstance(value, EmulatedFraction) else value
        for name, value in fields_of(tiling).items()
    }


def tiling_of(way: str, fields: dict[str, Any]) -> Tiling:
    """Return the tiling of a pass that JSON says."""
    made = {**fields}
    if "emulated" in made:
        made["emulated"] = EmulatedFraction(**made["emulated"])
    return forward.Tiling(**made) if way == "forward" else backward.Tiling(**made)


def in_words(tiling: Tiling) -> str:
    """Return a tiling as the arguments that make it."""
    return ", ".join(f"{name}={value!r}" for name, value in fields_of(tiling).items())


def source(way: str, tables: Tables) -> str:
    """Return the module of the tables of a pass."""
    rows = [tiling for name in _NAMES[way] for tiling in tables[name].values()]
    emulated = any("emulated" in fields_of(tiling) for tiling in rows)
    fraction = "from flexfa4.primitives.exponentials import EmulatedFraction\n" if emulated else ""
    module = "forward.plan" if way == "forward" else "backward.storage"
    return _MODULE.format(
        way=way,
        imports=f"from flexfa4.kernels.sm90.{module} import Tiling\n{fraction}",
    ) + "".join(_table(name, tables[name]) for name in _NAMES[way])


_NAMES: Final = {"forward": ("forward", "unmasked"), "backward": ("backward",)}
_SAID: Final = {
    "forward": "By head dims of q and k, and of v.",
    "unmasked": "Those of calls without a mask, where they are others.",
    "backward": "By head dims of q and k, and of v.",
}

_MODULE: Final = '''\
"""The tilings of Hopper's {way} kernel, for the head dims that were measured on an H200.

`benchmarks/h200_tilings.py` writes them; `docs/notes/h200.md` says what they were measured by.
"""

from __future__ import annotations

from typing import Final

{imports}'''


def _table(name: str, table: dict[HeadDims, Tiling]) -> str:
    rows = "".join(_row(head_dims, tiling) for head_dims, tiling in table.items())
    return f'\n{name.upper()}: Final = {{\n{rows}}}\n"""{_SAID[name]}"""\n'


def _row(head_dims: HeadDims, tiling: Tiling) -> str:
    """Return a row: in one line, or a line for each field."""
    line = f"    {head_dims}: Tiling({in_words(tiling)}),\n"
    if len(line) <= _COLUMNS:
        return line
    fields = (f"        {name}={value!r},\n" for name, value in fields_of(tiling).items())
    return f"    {head_dims}: Tiling(\n{''.join(fields)}    ),\n"


_COLUMNS: Final = 101  # of a line and its end
