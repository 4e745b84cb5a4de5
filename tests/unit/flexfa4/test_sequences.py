"""Packed sequences: tables of each query's sequence, kept while nothing changes, and mistakes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flexfa4.errors import ArgumentError, DeviceError, MappedAxisError, UnsupportedDTypeError
from flexfa4.frontend.rewriting.packed import Table
from flexfa4.sequences import Sequences, sequences_of

CPU = torch.device("cpu")


def of(q: list[int], kv: list[int] | None = None) -> Sequences:
    numbers = [torch.tensor(ends) for ends in ((q,) if kv is None else (q, kv))]
    return sequences_of(numbers[0], numbers[1] if kv else None, (q[-1], (kv or q)[-1]), CPU)


def expected(q: list[int], kv: list[int], name: Table) -> list[int]:
    """Return a table, element by element as its definition says."""
    found = []
    for query in range(q[-1]):
        number = next(n for n in range(len(q) - 1) if q[n] <= query < q[n + 1])
        of_sequence: dict[Table, int] = {
            "sequence": number,
            "q_begin": q[number],
            "q_end": q[number + 1],
            "q_position": query - q[number],
            "q_length": q[number + 1] - q[number],
            "kv_begin": kv[number],
            "kv_end": kv[number + 1],
            "kv_length": kv[number + 1] - kv[number],
        }
        found.append(of_sequence[name])
    return found


TABLES: tuple[Table, ...] = (
    "sequence", "q_begin", "q_end", "q_position", "q_length", "kv_begin", "kv_end", "kv_length"
)  # fmt: skip


@given(pairs=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=7))
def test_tables_say_for_each_query_where_its_sequence_lies(pairs: list[tuple[int, int]]) -> None:
    q, kv = [0], [0]
    for more_q, more_kv in pairs:
        q.append(q[-1] + more_q)
        kv.append(kv[-1] + more_kv)
    sequences = of(q, kv)
    assert sequences.shared is (q == kv)
    for name in TABLES:
        table = sequences.table(name)
        assert table.dtype is torch.int32 and table.tolist() == expected(q, kv, name), name
        assert sequences.table(name) is table


def test_the_same_tensor_gives_the_same_sequences_and_is_not_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ends = torch.tensor([0, 3, 7])
    first = sequences_of(ends, None, (7, 7), CPU)
    monkeypatch.setattr(torch.Tensor, "tolist", None)
    assert sequences_of(ends, ends, (7, 7), CPU) is first


def test_equal_content_gives_the_same_sequences_and_other_content_others() -> None:
    ends = torch.tensor([0, 3, 7])
    first = sequences_of(ends, None, (7, 7), CPU)
    assert sequences_of(ends.int(), ends.clone(), (7, 7), CPU) is first
    ends[1] = 4
    assert sequences_of(ends, None, (7, 7), CPU).q_ends == (0, 4, 7)
    ends.numpy()[1] = 5
    assert sequences_of(ends, None, (7, 7), CPU).q_ends == (0, 5, 7)


def test_tables_made_in_inference_mode_serve_outside_of_it() -> None:
    with torch.inference_mode():
        ends = torch.tensor([0, 11, 12])
        table = sequences_of(ends, None, (12, 12), CPU).table("q_begin")
    assert not table.is_inference()
    assert sequences_of(torch.tensor([0, 11, 12]), None, (12, 12), CPU).table("q_begin") is table


# What is wrong -> cu_seqlens_q, cu_seqlens_k, the error, and what its message says.
MISTAKES: dict[str, tuple[Any, Any, type[Exception], str]] = {
    "a list": ([0, 7], None, ArgumentError, "cumsum(0)"),
    "two dimensions": (torch.zeros(2, 2).int(), None, ArgumentError, "(sequences + 1,)"),
    "no number": (torch.zeros(0).int(), None, ArgumentError, "cu_seqlens_q is"),
    "floats": (torch.tensor([0.0, 7.0]), None, UnsupportedDTypeError, "cu_seqlens_q.int()"),
    "short integers": (
        torch.tensor([0, 7], dtype=torch.int16), None, UnsupportedDTypeError, "int32, int64",
    ),
    "elsewhere": (torch.zeros(2, device="meta").int(), None, DeviceError, "is on meta"),
    "lengths": (torch.tensor([3, 4]), None, ArgumentError, "cu_seqlens_q is [3, 4]"),
    "falling": (torch.tensor([0, 9, 7]), None, ArgumentError, "never falling"),
    "padding": (torch.tensor([0, 5]), torch.tensor([0, 7]), ArgumentError, "query[:5]"),
    "too long": (torch.tensor([0, 9]), torch.tensor([0, 7]), ArgumentError, "beside 7 tokens"),
    "another number of sequences": (
        torch.tensor([0, 7]), torch.tensor([0, 3, 7]), ArgumentError, "2 sequences beside 1",
    ),
    "keys that end elsewhere": (
        torch.tensor([0, 7]), torch.tensor([0, 6]), ArgumentError, "cu_seqlens_k is [0, 6]",
    ),
    "many": (torch.arange(20), None, ArgumentError, "[0, 1, 2, 3, 4, 5, ..., 19]"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_told(name: str) -> None:
    q, kv, kind, said = MISTAKES[name]
    with pytest.raises(kind) as error:
        sequences_of(q, kv, (7, 7), CPU)
    assert said in str(error.value)


def test_keys_without_lengths_of_their_own_have_those_of_the_queries() -> None:
    with pytest.raises(ArgumentError) as error:
        sequences_of(torch.tensor([0, 7]), None, (7, 8), CPU)
    assert "instead: cu_seqlens_k=..." in str(error.value)


def test_lengths_cannot_be_mapped() -> None:
    with pytest.raises(MappedAxisError):
        torch.func.vmap(lambda ends: sequences_of(ends, None, (7, 7), CPU).table("sequence"))(
            torch.tensor([[0, 7], [0, 7]])
        )
