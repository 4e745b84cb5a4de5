"""Packed sequences on the Hopper kernels, in the emulator: tiles that hold ends of sequences."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("cutlass")

import flexfa4
from flexfa4.emulator.options import SCHEDULES
from flexfa4.testing import Inputs, Mods, agrees, dense_reference
from tests.emulated_executor import emulated_gpu
from tests.forward_trials import poisoned_memory

Q_LENGTHS, KV_LENGTHS = [5, 0, 70, 130, 1, 9], [7, 3, 70, 0, 200, 3]
SLOPES = torch.tensor([0.5, 0.25, 0.125, 0.0625, 1.0, 2.0])
WINDOWS = torch.tensor([20, 50, 100, 300, 10, 60])
SEEN = torch.tensor([7, 1, 65, 0, 150, 2])  # keys of each sequence
BIAS = torch.randn(6, 130, 200, generator=torch.Generator().manual_seed(3))

# launches of a call: of the table of work and of attention, or of attention with known lengths
ON_DEVICE, READ = 2, 1


@dataclass(frozen=True)
class Row:
    """A variant: mods as they are for one sequence, of which b is the number.

    Attributes:
        score_mod, mask: the mods; one with a last argument gets the lengths of the sequence by it.
        heads, kv_heads, dims: of the tensors.
        sink: there is one.
        launches: `ON_DEVICE` or `READ`.
    """

    score_mod: Any = None
    mask: Any = None
    heads: int = 4
    kv_heads: int = 2
    dims: tuple[int, int] = (64, 64)
    sink: bool = False
    launches: int = ON_DEVICE


def causal(b: Any, h: Any, q: Any, kv: Any) -> Any:
    return q >= kv


ROWS = {
    "sequences alone": Row(),
    "with sinks, of odd groups": Row(heads=6, sink=True),
    "biased by sequence, causal": Row(lambda s, b, h, q, kv: s + SLOPES[h] * (b + kv - q), causal),
    "window at the end, with sinks": Row(
        mask=lambda b, h, q, kv, n: (q + n.kv_len - n.q_len >= kv)
        & (q + n.kv_len - n.q_len - kv < 50),
        dims=(192, 128),
        sink=True,
    ),
    "windows by head": Row(mask=lambda b, h, q, kv: (q >= kv) & (q - kv < WINDOWS[h])),
    "keys of each sequence": Row(
        lambda s, b, h, q, kv: 20 * torch.tanh(s / 20),
        lambda b, h, q, kv: kv < SEEN[b],
        kv_heads=4,
    ),
    "a bias for each score, causal": Row(
        lambda s, b, h, q, kv: s + BIAS[h, q, kv], causal, dims=(128, 128)
    ),
    "relative to the length": Row(
        lambda s, b, h, q, kv, n: s - 0.01 * (n.kv_len - kv), causal, kv_heads=1
    ),
    "output in the place of queries": Row(mask=causal, dims=(256, 256)),
    "lists of tiles": Row(
        mask=lambda b, h, q, kv: (q >= kv) & ((q - kv < 20) | (kv < 4)), launches=READ
    ),
}  # fmt: skip


@dataclass
class Packed:
    """Sequences one behind the other.

    Attributes:
        row: what they are for.
        q_lengths, kv_lengths: of them.
    """

    row: Row
    q_lengths: list[int]
    kv_lengths: list[int]
    tensors: tuple[torch.Tensor, ...] = field(init=False)
    ends: tuple[torch.Tensor, ...] = field(init=False)
    sink: torch.Tensor | None = field(init=False)

    def __post_init__(self) -> None:
        g, row = torch.Generator().manual_seed(0), self.row
        shapes = (
            (sum(self.q_lengths), row.heads, row.dims[0]),
            (sum(self.kv_lengths), row.kv_heads, row.dims[0]),
            (sum(self.kv_lengths), row.kv_heads, row.dims[1]),
        )
        self.tensors = tuple(torch.randn(*shape, generator=g).bfloat16() for shape in shapes)
        self.ends = tuple(
            torch.tensor([0, *n]).cumsum(0).int() for n in (self.q_lengths, self.kv_lengths)
        )
        self.sink = torch.randn(row.heads, generator=g) if row.sink else None

    def attend(self, backend: str = "sm90") -> tuple[torch.Tensor, torch.Tensor]:
        """Call the kernels."""
        with poisoned_memory():
            return flexfa4.attention_varlen(
                *self.tensors,
                *self.ends,
                score_mod=told(self.row.score_mod, flexfa4, 5),
                block_mask=told(self.row.mask, flexfa4, 4),
                sink=self.sink,
                return_lse=True,
                backend=backend,
            )

    def _mods(self, number: int, q_len: int, kv_len: int) -> Mods:
        """Return the mods of a sequence alone."""
        n = SimpleNamespace(q_len=q_len, kv_len=kv_len)
        score_mod, mask = told(self.row.score_mod, n, 5), told(self.row.mask, n, 4)
        return Mods(
            score_mod and (lambda s, b, *place: score_mod(s, b + number, *place)),
            mask and (lambda b, *place: mask(b + number, *place)),
        )

    def check(self, out: torch.Tensor, lse: torch.Tensor) -> None:
        """Hold what was found against the reference, sequence by sequence."""
        lengths = (self.q_lengths, self.kv_lengths, self.kv_lengths, *[self.q_lengths] * 2)
        parts = zip(
            *(x.split(n) for x, n in zip((*self.tensors, out, lse), lengths, strict=True)),
            strict=True,
        )
        for number, (*tensors, found, found_lse) in enumerate(parts):
            mods = self._mods(number, tensors[0].shape[0], tensors[1].shape[0])
            q, k, v = (x.transpose(0, 1)[None] for x in tensors)
            one = Inputs(q, k, v, self.sink)
            if not tensors[1].shape[0]:
                nothing = -torch.inf if self.sink is None else self.sink.expand_as(found_lse)
                assert not found.any() and bool((found_lse == nothing).all())
                continue
            exact, rounded, single = (
                dense_reference(one, mods, dtype=t)
                for t in (torch.float64, torch.bfloat16, torch.float32)
            )
            terms = max(*self.row.dims, tensors[1].shape[0])
            for one_found, at in ((found, 0), (found_lse, 1)):
                eager = (rounded, single)[at][at]
                assert agrees(one_found.transpose(0, 1)[None], exact[at], eager, terms=terms), (
                    number
                )


def told(mod: Any, lengths: Any, arguments: int) -> Any:
    """Return a mod of so many arguments that knows the lengths."""
    if mod is None or mod.__code__.co_argcount == arguments:
        return mod
    if arguments == 4:
        return lambda b, h, q, kv: mod(b, h, q, kv, lengths)
    return lambda s, b, h, q, kv: mod(s, b, h, q, kv, lengths)


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_each_sequence_gets_what_it_gets_alone(row: Row) -> None:
    packed = Packed(row, Q_LENGTHS, KV_LENGTHS)
    with emulated_gpu() as executor:
        out, lse = packed.attend()
    assert len(executor.runs) == row.launches
    assert out.is_contiguous() and not out.isnan().any()
    packed.check(out, lse)


def test_one_set_of_lengths_serves_queries_and_keys() -> None:
    row = Row(mask=causal)
    packed = Packed(row, Q_LENGTHS, Q_LENGTHS)
    packed.ends = packed.ends[:1]
    with emulated_gpu():
        packed.check(*packed.attend())


@pytest.mark.parametrize("name", ["sequences alone", "window at the end, with sinks"])
def test_every_schedule_gives_the_same_bits(name: str) -> None:
    packed = Packed(ROWS[name], Q_LENGTHS, KV_LENGTHS)
    found = []
    for schedule in SCHEDULES:
        with emulated_gpu(schedule=schedule, seed=5):
            found.append(packed.attend())
    assert all(torch.equal(a, b) for one in found[1:] for a, b in zip(one, found[0], strict=True))


def test_lengths_may_change_in_place_and_no_kernel_is_compiled_again() -> None:
    packed = Packed(Row(mask=causal), [40, 90, 1, 69], [40, 90, 1, 69])
    with emulated_gpu():
        packed.check(*packed.attend())
        before = flexfa4.stats()
        for lengths in ([100, 0, 100, 0], [1, 1, 1, 197]):
            for ends in packed.ends:
                ends.copy_(torch.tensor([0, *lengths]).cumsum(0))
            packed.q_lengths = packed.kv_lengths = lengths
            packed.check(*packed.attend())
        done = flexfa4.stats() - before
    assert not done.compiles and not done.plans and not done.closed_forms


def test_values_that_are_not_finite_stay_in_their_sequence() -> None:
    packed = Packed(Row(mask=causal), [30, 50, 40], [30, 50, 40])
    _, k, v = packed.tensors
    k[30:80], v[30:80] = torch.inf, torch.nan
    with emulated_gpu():
        out, lse = packed.attend()
    others = torch.cat((torch.arange(30), torch.arange(80, 120)))
    assert out[others].isfinite().all() and lse[others].isfinite().all()
    assert out[30:80].isnan().all()


def test_queries_behind_the_last_sequence_are_not_written() -> None:
    packed = Packed(Row(mask=causal), [30, 50, 220], [30, 50, 220])
    with emulated_gpu():
        whole, _ = packed.attend()
        packed.ends = tuple(ends[:3].clone() for ends in packed.ends)
        out, lse = packed.attend()
    assert torch.equal(out[:80], whole[:80])
    assert out[80:].isnan().all() and lse[80:].isnan().all()  # as the memory was


@pytest.mark.parametrize(
    ("layout", "dtype"),
    [
        ("heads first", torch.int64),
        ("every second token", torch.int32),
        ("odd strides", torch.int64),
    ],
)
def test_any_strides_and_both_kinds_of_lengths_are_taken(layout: str, dtype: torch.dtype) -> None:
    packed = Packed(Row(sink=True), [3, 60, 1], [9, 1, 40])
    packed.ends = tuple(ends.to(dtype) for ends in packed.ends)
    ways = {
        "heads first": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
        "every second token": lambda x: x.repeat_interleave(2, 0)[::2],
        "odd strides": lambda x: torch.nn.functional.pad(x, (0, 1))[..., :-1],
    }
    packed.tensors = tuple(ways[layout](x) for x in packed.tensors)
    with emulated_gpu():
        packed.check(*packed.attend())


def test_the_backend_that_emulates_hopper_finds_the_lengths_too() -> None:
    packed = Packed(Row(mask=causal), [20, 0, 5], [20, 0, 5])
    found = packed.attend("emulator:sm_90a")
    packed.check(*found)
    with emulated_gpu():
        assert all(torch.equal(*both) for both in zip(found, packed.attend(), strict=True))


def test_a_single_token_is_a_sequence() -> None:
    packed = Packed(Row(mask=causal), [1], [1])
    with emulated_gpu() as executor:
        out, lse = packed.attend()
    assert len(executor.runs) == ON_DEVICE
    packed.check(out, lse)
