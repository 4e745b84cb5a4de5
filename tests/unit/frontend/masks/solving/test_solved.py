"""Closed forms for the values of a call: their intervals are the mask, or they do not hold."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import flexfa4
from flexfa4.errors import FlexFA4Error
from flexfa4.frontend.evaluate import Program, Values, mask_tile
from flexfa4.frontend.ir import Graph
from flexfa4.frontend.masks.grid import MaskSize
from flexfa4.frontend.masks.solving import solved as solved_module
from flexfa4.frontend.masks.solving.solve import ClosedForm, Index, NotClosed, closed_form
from flexfa4.frontend.masks.solving.solved import Solved, ends_of, ends_of_each, solved
from flexfa4.frontend.sizes import Sizes

CPU = torch.device("cpu")
BATCH = HEADS = 2


@dataclass(frozen=True)
class Call:
    """A mask with the values of a call."""

    graph: Graph
    values: Values
    size: MaskSize

    def dense(self, index: Index) -> torch.Tensor:
        """Return the mask by brute force, bool ``(b, h, positions, length of the index)``."""
        mask = mask_tile(Program((self.graph.root,)), self.values, self.size.lanes())
        size = self.size
        mask = mask.expand(size.b, size.h, size.q_len, size.kv_len)
        return mask if index == "kv" else mask.transpose(2, 3)

    def solved(self, index: Index = "kv") -> Solved | NotClosed:
        form = closed_form(self.graph, index)
        return form if isinstance(form, NotClosed) else solved(form, self.values, self.size)


def call(text: str, q_len: int = 9, kv_len: int = 11, /, **bindings: Any) -> Call:
    bound = flexfa4.parse(text, **bindings).bind()
    sizes = Sizes(BATCH, HEADS, HEADS, q_len, kv_len)
    values = Values.of(bound, sizes, device=CPU)
    return Call(bound.graph, values, MaskSize(BATCH, HEADS, q_len, kv_len))


def check(form: Solved, dense: torch.Tensor) -> None:
    """Check the intervals of every position against the mask, in order and scattered."""
    count, length = dense.shape[2:]
    at = torch.arange(length)
    for b in range(BATCH):
        for h in range(HEADS):
            for positions in (range(count), range(count // 2, count), torch.randperm(count)):
                ends = ends_of(form, b, h, positions)
                assert ends.shape == (2, len(form.form.spans), len(positions))
                assert bool(((ends >= 0) & (ends <= length)).all())
                start, stop = ends
                seen = (at >= start[..., None]) & (at < stop[..., None])
                expected = dense[b, h, torch.as_tensor(positions, dtype=torch.int64)]
                assert torch.equal(seen.any(0), expected)
                if form.form.ordered:
                    check_order(start, stop)
    members = [(b, h) for b in range(BATCH) for h in range(HEADS)]
    alone = [ends_of(form, *member, range(count // 2, count)) for member in members]
    together = ends_of_each(form, members, range(count // 2, count))
    assert torch.equal(together, torch.cat(alone, 2))


def check_order(start: torch.Tensor, stop: torch.Tensor) -> None:
    for starts, stops in zip(start.T.tolist(), stop.T.tolist(), strict=True):
        ends = [
            end for pair in zip(starts, stops, strict=True) if pair[0] < pair[1] for end in pair
        ]
        assert ends == sorted(ends)


# ---- random masks --------------------------------------------------------------------------------

POSITIONS = ("q", "kv", "q", "kv", "(q - kv)", "(kv + w)")
NUMBERS = ("0", "1", "3", "-4", "w", "c", "lens[b]", "width[h]", "q_len", "(kv_len - q_len)")
ELEMENTS = ("doc[q]", "doc[kv]", "text[b, kv]", "text[b, q]", "doc[kv // 2]", "off[doc[kv]]")
DIVISORS = ("2", "3", "c", "w", "-2", "width[h]")
CONDITIONS = (
    "(doc[q] == doc[kv])", "(text[b, kv] == text[b, q])", "(q // c == kv // c)", "shown[kv]",
    "shown[q]", "(level[kv] < level[q])", "(level[kv] >= f)", "(kv < f)", "(q - kv <= 2.5)",
    "(level[kv] != level[q])", "(text[b, kv] != 1)", "(w < c)",
)  # fmt: skip

leaf = st.sampled_from((*POSITIONS, *POSITIONS, *NUMBERS, *ELEMENTS))
comparison = st.sampled_from(("<", "<=", ">", ">=", "==", "!="))


def joined(form: str, **parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.fixed_dictionaries(parts).map(lambda made: form.format(**made))


def larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    divisor, factor = st.sampled_from(DIVISORS), st.sampled_from(("2", "-3", "c", "width[h]"))
    condition = joined("{a} {op} {b}", a=leaf, op=comparison, b=st.sampled_from(NUMBERS))
    return st.one_of(
        joined("({a} + {b})", a=inner, b=inner),
        joined("({a} - {b})", a=inner, b=inner),
        joined("(-{a})", a=inner),
        joined("({a} * {b})", a=inner, b=factor),
        joined("({a} // {b})", a=inner, b=divisor),
        joined("({a} % {b})", a=inner, b=divisor),
        joined("abs({a})", a=inner),
        joined("min({a}, {b})", a=inner, b=inner),
        joined("max({a}, {b})", a=inner, b=inner),
        joined("where({c}, {a}, {b})", a=inner, b=inner, c=condition),
        joined("i32({c})", c=condition),
    )


integer = st.one_of(leaf, st.recursive(leaf, larger, max_leaves=3))
atom = st.one_of(
    joined("({a} {op} {b})", a=integer, op=comparison, b=integer),
    joined("({a} {op} {b})", a=integer, op=comparison, b=integer),
    st.sampled_from(CONDITIONS),
)


def joint(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    infix = st.sampled_from(("&", "|", "&", "|", "^", "=="))
    return st.one_of(
        joined("({a} {op} {b})", a=inner, op=infix, b=inner),
        joined("({a} {op} {b})", a=inner, op=infix, b=inner),
        joined("~{a}", a=inner),
        joined("where({a}, {b}, {c})", a=atom, b=inner, c=inner),
    )


masks = st.recursive(atom, joint, max_leaves=4)


@st.composite
def bindings(draw: st.DrawFn) -> dict[str, Any]:
    """Draw values for all names; tensors are ascending, grouped or neither."""
    length = 12
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1 << 16)))
    order = draw(st.sampled_from(("ascending", "ascending", "grouped", "none")))

    def ids(*shape: int) -> torch.Tensor:
        drawn = torch.randint(0, 4, shape, generator=generator)
        if order == "none":
            return drawn
        ascending = drawn.sort(-1).values
        return torch.tensor([3, 1, 0, 2])[ascending] if order == "grouped" else ascending

    level = torch.randn(length, generator=generator)
    if order == "ascending":
        level = level.sort().values
    if draw(st.integers(0, 9)) == 0:
        level[3] = float("nan")
    begin, end = sorted(draw(st.tuples(st.integers(0, length), st.integers(0, length))))
    place = torch.arange(length)
    return {
        "w": draw(st.sampled_from((0, 1, 3, -2, 5, 2**62))),
        "c": draw(st.sampled_from((1, 2, 3, 4, 4, 0, -1))),
        "f": draw(st.sampled_from((2.5, -1.0, 3.0, float("inf"), float("nan")))),
        "lens": torch.randint(0, 13, (BATCH,), generator=generator),
        "width": torch.randint(-1, 5, (HEADS,), generator=generator).to(torch.int32),
        "doc": ids(length),
        "text": ids(BATCH, length),
        "off": torch.tensor([0, 3, 5, 8]),
        "level": level,
        "shown": ((place >= begin) & (place < end)) ^ (order == "none"),
    }


@settings(max_examples=150)
@given(masks, bindings(), st.sampled_from((0, 1, 2, 9)), st.sampled_from((0, 1, 7, 12)))
def test_intervals_of_random_masks_are_the_masks(
    text: str, values: dict[str, Any], q_len: int, kv_len: int
) -> None:
    read = set(re.findall(r"\w+", text))
    names = {name: value for name, value in values.items() if name in read}
    try:
        made = call(text, q_len, kv_len, **names)
        dense: dict[Index, torch.Tensor] = {"kv": made.dense("kv"), "q": made.dense("q")}
    except (FlexFA4Error, RuntimeError):  # a division by zero
        assume(False)
    for index, mask in dense.items():
        form = made.solved(index)
        if isinstance(form, Solved):
            check(form, mask)
        else:
            assert form.reason


# ---- premises ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "numbers", "reason"),
    [
        (
            "kv // off[b] < q",
            {"off": torch.tensor([0, 2])},
            "it does not hold that `off[b]` is at least 1",
        ),
        ("kv // c == q // c", {"c": -2}, "it does not hold that `c` is at least 1"),
        ("c * kv <= q", {"c": -2}, "it does not hold that `c` is at least 1"),
        ("q + w >= kv", {"w": 2**63 - 1}, "`q + w` may not fit 64 bits"),
        ("kv < f", {"f": float("nan")}, "it does not hold that `f` is not NaN"),
    ],
)
def test_numbers_for_which_a_form_does_not_hold_are_named(
    text: str, numbers: dict[str, Any], reason: str
) -> None:
    form = call(text, **numbers).solved()
    assert isinstance(form, NotClosed)
    assert form.reason == f"for these values {reason}"


@pytest.mark.parametrize(
    ("elements", "holds"),
    [
        ([0, 0, 1, 2, 2], True),
        ([2, 2, 0, 1, 1], True),  # in any order, as long as equal ones stand together
        ([0, 1, 1, 0, 2], False),
        ([5, 5, -1, -1, -1], True),
    ],
)
def test_documents_need_to_stand_together(elements: list[int], holds: bool) -> None:
    made = call("doc[q] == doc[kv]", 5, 5, doc=torch.tensor(elements))
    for index in ("kv", "q"):
        form = made.solved(index)
        assert isinstance(form, Solved) is holds
        if isinstance(form, Solved):
            check(form, made.dense(index))


def test_the_content_of_a_tensor_proves_that_sums_fit() -> None:
    small, huge = torch.tensor([3, -4]), torch.tensor([3, 2**63 - 1])
    assert isinstance(call("kv <= q + off[b]", off=small).solved(), Solved)
    form = call("kv <= q + off[b]", off=huge).solved()
    assert form == NotClosed("for these values `q + off[b]` may not fit 64 bits")


def test_what_is_put_in_the_place_of_an_index_must_be_in_range() -> None:
    text = "(doc[kv] == doc[q]) & (kv - off[doc[kv]] < 2)"
    off = torch.tensor([0, 2])
    inside = torch.tensor([0, 0, 1, 1, 1])
    form = call(text, 5, 3, doc=inside, off=off).solved()
    assert isinstance(form, Solved)
    # no key has the document 7, so the mask never reads off[7]; the intervals of a query would
    form = call(text, 5, 3, doc=torch.tensor([0, 0, 1, 1, 7]), off=off).solved()
    assert form == NotClosed("for these values `off[doc[q]]` may be out of range")
    table = torch.ones(3, 5, dtype=torch.bool)
    picked = "(doc[kv] == lens[b]) & text[doc[kv], kv]"
    for lens, holds in (([0, -3], True), ([0, 3], False), ([0, -4], False)):
        given = {"doc": inside, "lens": torch.tensor(lens), "text": table}
        assert isinstance(call(picked, 5, 5, **given).solved(), Solved) is holds


def test_floats_compare_exactly_up_to_two_to_the_24() -> None:
    assert isinstance(call("kv < f", 4, 2**24, f=8.0).solved(), Solved)
    assert isinstance(call("kv < f", 4, 2**24 + 9, f=8.0).solved(), NotClosed)


# ---- work ----------------------------------------------------------------------------------------


class Watched(dict[Any, Any]):
    """Captured tensors that count how often one is looked at."""

    reads = 0

    def __getitem__(self, key: Any) -> Any:
        self.reads += 1
        return super().__getitem__(key)


def test_nothing_is_read_of_tensors_of_which_nothing_must_be_known() -> None:
    made = call("kv <= q + off[b]", off=torch.tensor([3, -4], dtype=torch.int32))
    tensors = Watched(made.values.tensors)
    with torch.utils._python_dispatch._disable_current_modes():
        form = closed_form(made.graph, "kv")
        assert isinstance(form, ClosedForm)
        assert isinstance(solved(form, replace(made.values, tensors=tensors), made.size), Solved)
    assert not solved(form, made.values, made.size).values.value_runs  # type: ignore[union-attr]


def test_changed_lengths_numbers_and_contents_are_not_solved_anew() -> None:
    text = "(doc[kv] == doc[q]) & (kv <= q + w) & (kv > 4321)"
    doc = torch.tensor([0, 0, 1, 1])
    call(text, 4, 4, doc=doc, w=1).solved()
    before = flexfa4.stats()
    for length, w in ((3, 5), (4, 0), (2, -1)):
        call(text, length, length, doc=doc + length, w=w).solved()
    assert (flexfa4.stats() - before).closed_forms == 0


def test_value_runs_are_made_once_for_both_indices() -> None:
    made = call("doc[kv] == doc[q]", 4, 4, doc=torch.tensor([0, 0, 1, 1]))
    first = made.solved("kv")
    assert isinstance(first, Solved)
    second = replace(made, values=first.values).solved("q")
    assert isinstance(second, Solved)
    assert list(second.values.value_runs.values()) == list(first.values.value_runs.values())
    assert len(first.values.value_runs) == 1


def test_at_sixteen_million_tokens_no_tensor_as_long_is_made() -> None:
    length = 1 << 24
    made = call("(kv <= q) & (q - kv < w)", length, length, w=1024)
    form = made.solved()
    assert isinstance(form, Solved)
    start, stop = ends_of(form, 0, 0, torch.tensor([0, 5000, length - 1]))
    assert start.tolist() == [[0, 5000 - 1023, length - 1024]]
    assert stop.tolist() == [[1, 5001, length]]


def test_no_keys_or_no_queries_have_no_intervals() -> None:
    for q_len, kv_len in ((0, 5), (5, 0), (0, 0)):
        made = call("kv <= q + lens[b]", q_len, kv_len, lens=torch.tensor([1, 2]))
        for index in ("kv", "q"):
            form = made.solved(index)
            assert isinstance(form, Solved)
            check(form, made.dense(index))


def test_a_form_is_proved_once_for_all_small_numbers_and_lengths(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    proofs = []

    def proved(form: ClosedForm, known: Any) -> NotClosed | None:
        proofs.append(form)
        return broken(form, known)

    broken = solved_module._broken
    monkeypatch.setattr(solved_module, "_broken", proved)
    text = "q + 3 >= kv and q - kv <= reach_of_this_test"
    for reach, length in ((0, 9), (5, 40), (-7, 1 << 29), (1 << 30, 9)):
        assert isinstance(call(text, length, length, reach_of_this_test=reach).solved(), Solved)
    assert len(proofs) == 1
    large = call(text, reach_of_this_test=(1 << 30) + 1).solved()
    assert isinstance(large, Solved) and len(proofs) == 2
    beyond = call("q * 4 >= kv + w", w=(1 << 62) * 2 - 1).solved()
    assert not isinstance(beyond, Solved) and len(proofs) == 3


def test_what_does_not_hold_for_all_small_numbers_is_proved_for_those_of_the_call() -> None:
    text = "q // n == kv // n"  # premise: n is positive
    assert isinstance(call(text, n=3).solved(), Solved)
    assert isinstance(call(text, n=-3).solved(), NotClosed)
