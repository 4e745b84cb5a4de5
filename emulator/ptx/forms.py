"""What a row of the table of instructions means, and which row an opcode's text belongs to.

A row is written in the notation of the PTX ISA's synopses: a name, the modifiers that may follow
it, and its operands.  `Form` is a row as read; `Operation` is a form with the modifiers that one
text chose, its operands typed.  All instructions of one text share one `Operation`, so an
execution core prepares its work once for each.

Modifiers, in their order: ``.rnd`` is required, ``{.ftz}`` is optional, of ``{.sem.scope}`` there
are both or none.  A name of the table of slots stands for any of the slot's modifiers; any other
name stands for itself.  A text may have them in any order, as ptxas allows, but for types and state
spaces, whose order says which is which.

Operands, separated by ``", "``:

=====================  =========================================================================
``d=f32``              written;  ``a:f32`` read;  ``d+=f32`` both;  ``n#u32`` a number only
``d=type``             the type is the modifier that stands in the slot ``type``
``d=wide(int)``        the integer of twice the size
``d=type+``            the register may be wider
``d=type*4``           a vector of 4 elements; `COUNTS` has names for other numbers
``{d}=b64``            a vector of 2 or 4 elements that have the type's size together
``c:!pred``            a predicate that may be negated
``[a@space]``          an address, in the space that the slot names, or generic without; or in the
                       space named
``[t@generic,c*dim]``  a tensor map with coordinates
``t->label``           the target of a branch; ``->labels`` the name of a list of these;
                       ``->function`` and ``->variables``, what a call takes
``_``                  only the sink
``d=b32|p=pred``       a pair; with ``|?p`` the second may be missing
``... or _``           the sink too; ``or special``, ``or symbol`` likewise
``... if slot``        there only with a modifier in this slot; ``if given``: may be missing
=====================  =========================================================================

What this module deliberately does not do: hold the rows (`flexfa4.emulator.ptx.table`), or read
operands.
"""

from __future__ import annotations

import enum
import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from flexfa4.emulator.ptx.types import TYPES, ScalarType, bits_type

Row = tuple[str, str, str] | tuple[str, str, str, frozenset[str]]
"""A row as written: names, modifiers, operands, and the architectures; all without."""


class Access(enum.Enum):
    """What an instruction does with an operand."""

    READ = "read"
    WRITE = "written"
    UPDATE = "read and written"
    NUMBER = "a number"
    ADDRESS = "an address"
    LABEL = "a label"
    LABELS = "the name of a list of labels"
    FUNCTION = "a function"
    VARIABLES = "variables in parentheses"
    SINK = "the sink `_`"


@dataclass(frozen=True)
class Slot:
    """Modifiers of which one may stand in a place.

    Attributes:
        values: the modifiers, without the dot.
        no_effect: why none of them changes a result, or empty when they do.
    """

    values: tuple[str, ...]
    no_effect: str = ""


@dataclass(frozen=True)
class Spec:
    """An operand as the notation writes it; see the module's docstring."""

    name: str
    access: Access
    type: str = ""
    count: str = ""
    space: str = ""
    rank: str = ""
    condition: str = ""
    split: bool = False
    wider: bool = False
    negatable: bool = False
    paired: bool = False
    optional: bool = False
    others: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Form:
    """A row of the table.

    Attributes:
        name: the instruction, without modifiers that can differ.
        modifiers: the places of modifiers in their order: names of slots that are filled together,
            and whether they have to be.
        operands: the operands in their order.
        targets: the architectures that have it.
    """

    name: str
    modifiers: tuple[tuple[tuple[str, ...], bool], ...]
    operands: tuple[Spec, ...]
    targets: frozenset[str]

    @property
    def slots(self) -> list[str]:
        """The names of all places."""
        return [slot for group, _ in self.modifiers for slot in group]


@dataclass(frozen=True)
class Role:
    """An operand of an operation.

    Attributes:
        name: as the PTX ISA calls it.
        access: what the instruction does with it.
        type: type of the operand, or of each element of a vector; None for addresses and labels.
        count: elements of the vector that it has to be; 0 for a scalar.
        space: state space of an address: ``generic``, ``global``, ``shared``, ``shared::cluster``,
            ``local``, ``const``, ``param``, ``call`` (variables of calls) or ``tensor``.
        rank: number of coordinates beside the address of a tensor map.
        split: the elements of a vector share the bits of `type`.
        wider: registers may be wider than `type`.
        negatable: a predicate may be negated.
        paired: the operand follows ``|``.
        optional: the operand may be missing.
        others: what else may stand here: ``_``, ``special``, ``symbol``.
    """

    name: str
    access: Access
    type: ScalarType | None = None
    count: int = 0
    space: str = ""
    rank: int = 0
    split: bool = False
    wider: bool = False
    negatable: bool = False
    paired: bool = False
    optional: bool = False
    others: frozenset[str] = frozenset()


@dataclass(frozen=True, eq=False)
class Operation:
    """An opcode with its modifiers, as a row of the table reads it; shared by all its instructions.

    Attributes:
        text: as the PTX writes it.
        form: the row.
        modifiers: the modifier that stands in each slot; slots without one are missing.
        hints: those of the slots whose modifiers change no result; the table of slots says why.
        roles: the operands, in the order of an instruction's `operands`.
    """

    text: str
    form: Form
    modifiers: Mapping[str, str]
    hints: frozenset[str]
    roles: tuple[Role, ...]

    @property
    def name(self) -> str:
        """The instruction, without modifiers that can differ."""
        return self.form.name

    @functools.cached_property
    def positions(self) -> dict[str, int]:
        """Where each operand stands in an instruction's `operands`."""
        return {role.name: position for position, role in enumerate(self.roles)}


# ---- reading rows -------------------------------------------------------------------------------

_MODIFIER = re.compile(r"\{(?P<optional>(?:\.[\w:]+)+)\}|\.(?P<required>[\w:]+)")
_OPERAND = re.compile(
    r"""
    (?P<pair> \|\?? )?
    (?: (?P<sink> _ )
      | \[ (?P<address> \w+ ) @ (?P<space> [\w:]+ ) (?: , \w+ \* (?P<rank> \w+ ) )? \]
      | (?P<plain> \w+ ) -> (?P<what> labels? | function | variables )
      | (?P<split> \{ )? (?P<name> \w+ ) \}?
        (?P<access> \+= | [=:#] ) (?P<not> ! )? (?P<type> \w+ (?: \(\w+\) )? )
        (?P<wider> \+ )? (?: \* (?P<count> \w+ ) )?
    )
    (?P<others> (?: [ ]or[ ] (?: _ | special | symbol ) )* )
    (?: [ ]if[ ] (?P<condition> \w+ ) )?
    """,
    re.VERBOSE,
)
_ACCESS = {"=": Access.WRITE, ":": Access.READ, "+=": Access.UPDATE, "#": Access.NUMBER}


def form_of(name: str, modifiers: str, operands: str, targets: frozenset[str]) -> Form:
    """Read a row of the table, whose notation the module's docstring explains."""
    places = []
    end = 0
    for match in _MODIFIER.finditer(modifiers):
        assert match.start() == end, f"{name}: modifiers {modifiers!r}"
        end = match.end()
        group = (match["optional"] or match[0]).removeprefix(".").split(".")
        places.append((tuple(group), match["required"] is not None))
    assert end == len(modifiers), f"{name}: modifiers {modifiers!r}"
    items = operands.replace("|", ", |").split(", ") if operands else []
    return Form(name, tuple(places), tuple(_spec(item) for item in items), targets)


def _spec(item: str) -> Spec:
    match = _OPERAND.fullmatch(item)
    assert match, f"operand {item!r}"
    condition = match["condition"] or ""
    if match["sink"]:
        name, access = "_", Access.SINK
    elif match["plain"]:
        name, access = match["plain"], Access[match["what"].upper()]
    elif match["address"]:
        name, access = match["address"], Access.ADDRESS
    else:
        name, access = match["name"], _ACCESS[match["access"]]
    return Spec(
        name=name,
        access=access,
        type=match["type"] or "",
        count=match["count"] or "",
        space=match["space"] or "",
        rank=match["rank"] or "",
        condition="" if condition == "given" else condition,
        split=match["split"] is not None,
        wider=match["wider"] is not None,
        negatable=match["not"] is not None,
        paired=match["pair"] is not None,
        optional=condition == "given" or match["pair"] == "|?",
        others=frozenset(match["others"].replace(" or ", " ").split()),
    )


# ---- from the text of an opcode to operations ---------------------------------------------------

Modifiers = Mapping[str, str]


def _number(modifier: str) -> int:
    """The number in a modifier such as v4, x16, 3d."""
    return int(re.sub(r"\D", "", modifier))


def _wgmma_shape(modifiers: Modifiers) -> int:
    (shape,) = (value for slot, value in modifiers.items() if slot.startswith("wgmma_k"))
    return int(shape.split("n")[1].split("k")[0])


# 32-bit registers of a thread for each repetition of a shape (PTX ISA, "tcgen05.ld")
_TENSOR_REGISTERS = {"32x32b": 1, "16x64b": 1, "16x32bx2": 1, "16x128b": 2, "16x256b": 4}


def _tensor_registers(modifiers: Modifiers) -> int:
    shapes = [shape for shape in _TENSOR_REGISTERS if shape in modifiers]
    (times,) = (value for slot, value in modifiers.items() if slot.startswith("tmem_times"))
    return _TENSOR_REGISTERS[shapes[0] if shapes else "16x32bx2"] * _number(times)


COUNTS: dict[str, Callable[[Modifiers], int]] = {
    "times": lambda m: _number(m["times"]),
    "pairs": lambda m: 2 * _number(m["few_times"]),
    "dim": lambda m: _number(m["dim"]),
    "tmem": _tensor_registers,
    "lane_masks": lambda m: 4 * _number(m["cta_group"].split("::")[1]),
    "wgmma_f32": lambda m: _wgmma_shape(m) // 2,
    "wgmma_f16": lambda m: _wgmma_shape(m) // 4,
}
"""Numbers of elements that the modifiers say, by the names that rows give them."""

_SPACES = {"shared::cta": "shared", "param::entry": "param", "param::func": "param"}


# Modifiers whose order says which is which: of results and sources, of destinations and origins.
_ORDERED = (frozenset(TYPES), frozenset({"global", "shared", "shared::cta", "shared::cluster"}))


class Reader:
    """Reads opcodes by the rows of a table; `slots` are the places of modifiers by their names."""

    def __init__(self, forms: tuple[Form, ...], slots: Mapping[str, Slot]) -> None:
        self.forms = forms
        self.slots = slots
        self._by_head: dict[str, list[Form]] = {}
        self._known: dict[str, tuple[Operation, ...]] = {}
        for form in forms:
            named = [slot for slot in form.slots if slot in slots]
            assert len(named) == len(set(named)), f"{form.name}: a slot stands twice in {named}"
            self._by_head.setdefault(form.name.split(".")[0], []).append(form)

    def operations(self, text: str) -> tuple[Operation, ...]:
        """Return how the rows read an opcode with its modifiers; nothing if none does.

        There are several where rows differ in their operands only.
        """
        found = self._known.get(text)
        if found is None:
            words = text.split(".")
            found = tuple(
                self._operation(text, form, modifiers)
                for form in self._by_head.get(words[0], ())
                if (modifiers := self._modifiers(form, words)) is not None
            )
            self._known[text] = found
        return found

    def shortfall(self, text: str) -> tuple[int, set[str]]:
        """Tell why no row reads an opcode, for an error.

        Returns:
            How many words of the text some row reads before one that it does not, 0 for none; and
            the modifiers that rows would take there.
        """
        words = text.split(".")
        best = 0
        wanted: set[str] = set()
        for form in self._by_head.get(words[0], ()):
            read, takes = self._shortfall_of(form, words)
            if read >= best:
                wanted = takes if read > best else wanted | takes
                best = read
        return best, wanted

    def values(self, slot: str) -> tuple[str, ...]:
        """Return the modifiers that may stand in a place."""
        return self.slots[slot].values if slot in self.slots else (slot,)

    def _fill(self, form: Form, words: list[str]) -> tuple[list[str | None], int]:
        """Give each word the first free place that takes it, types and spaces in their order.

        Returns:
            What stands in each place; and how many words have one, up to the first that has none.
        """
        places = form.slots
        filled: list[str | None] = [None] * len(places)
        start = {kind: 0 for kind in _ORDERED}
        for read, word in enumerate(words):
            kind = next((kind for kind in _ORDERED if word in kind), None)
            for place in range(start[kind] if kind else 0, len(places)):
                if filled[place] is None and word in self.values(places[place]):
                    filled[place] = word
                    if kind:
                        start[kind] = place + 1
                    break
            else:
                return filled, read
        return filled, len(words)

    def _missing(self, form: Form, filled: list[str | None]) -> list[str]:
        """Return the places that are empty and must not be."""
        missing = []
        start = 0
        for group, required in form.modifiers:
            words = filled[start : start + len(group)]
            if None in words and (required or any(words)):
                missing += [slot for slot, word in zip(group, words, strict=True) if word is None]
            start += len(group)
        return missing

    def _modifiers(self, form: Form, words: list[str]) -> dict[str, str] | None:
        """Return what stands in each place of a form that reads all words, or None."""
        name = form.name.split(".")
        if words[: len(name)] != name:
            return None
        rest = words[len(name) :]
        filled, read = self._fill(form, rest)
        if read < len(rest) or self._missing(form, filled):
            return None
        return {s: word for s, word in zip(form.slots, filled, strict=True) if word is not None}

    def _shortfall_of(self, form: Form, words: list[str]) -> tuple[int, set[str]]:
        name = form.name.split(".")
        same = 0
        while same < min(len(name), len(words)) and words[same] == name[same]:
            same += 1
        if same < len(name):
            return same, {name[same]}
        filled, read = self._fill(form, words[len(name) :])
        free = [slot for slot, word in zip(form.slots, filled, strict=True) if word is None]
        slots = free if len(name) + read < len(words) else self._missing(form, filled)
        return len(name) + read, {value for slot in slots for value in self.values(slot)}

    def _operation(self, text: str, form: Form, modifiers: dict[str, str]) -> Operation:
        specs = (s for s in form.operands if not s.condition or s.condition in modifiers)
        slots = frozenset(form.slots)
        roles = tuple(_role(spec, modifiers, slots) for spec in specs)
        hints = frozenset(s for s in modifiers if s in self.slots and self.slots[s].no_effect)
        return Operation(text, form, modifiers, hints, roles)


def _role(spec: Spec, modifiers: Modifiers, slots: frozenset[str]) -> Role:
    space = modifiers.get(spec.space, "generic") if spec.space in slots else spec.space
    return Role(
        name=spec.name,
        access=spec.access,
        type=_type(spec.type, modifiers) if spec.type else None,
        count=_count(spec.count, modifiers),
        space=_SPACES.get(space, space),
        rank=_count(spec.rank, modifiers),
        split=spec.split,
        wider=spec.wider,
        negatable=spec.negatable,
        paired=spec.paired,
        optional=spec.optional,
        others=spec.others,
    )


def _type(name: str, modifiers: Modifiers) -> ScalarType:
    wide = re.fullmatch(r"wide\((\w+)\)", name)
    if wide:
        narrow = TYPES[modifiers.get(wide[1], wide[1])]
        return TYPES[f"{narrow.name[0]}{2 * narrow.bits}"]
    return TYPES[modifiers.get(name, name)]


def _count(name: str, modifiers: Modifiers) -> int:
    if not name:
        return 0
    return int(name) if name.isdigit() else COUNTS[name](modifiers)


def element_type(whole: ScalarType, count: int) -> ScalarType | None:
    """Return the type of each of `count` elements that share the bits of a type."""
    return bits_type(whole.bits // count)
