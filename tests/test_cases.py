"""Every case of the table against the dense fp64 reference: out, lse and all gradients.

The default run takes a sample in which every pair of (case, sizes, dtype, sink) occurs; ``-m full``
runs all combinations.
"""

from __future__ import annotations

import itertools
from typing import Final

import pytest
import torch

from flexfa4.testing import CASES, Case, Sizes, Trial, excess

DTYPES: Final = (torch.float32, torch.bfloat16, torch.float64, torch.float16)
SIZES: Final = {
    "grouped": Sizes(),
    "one query": Sizes(q_len=1),
    "one key": Sizes(q_len=45, kv_len=1, kv_heads=4),
    "whole blocks": Sizes(batch=1, heads=2, kv_heads=2, q_len=256, kv_len=128),
    "ragged blocks, one key head": Sizes(heads=6, kv_heads=1, q_len=130, kv_len=129, value_dim=24),
    "shared keys": Sizes(batch=3, heads=3, kv_heads=1, q_len=70, kv_len=41, kv_batch=1),
    "odd dimensions": Sizes(heads=7, kv_heads=7, q_len=33, kv_len=64, dim=3, value_dim=5),
    "several runs": Sizes(batch=1, heads=2, kv_heads=1, q_len=290, kv_len=1100, dim=8),
    "no queries": Sizes(q_len=0),
    "no keys": Sizes(kv_len=0),
    "no batch": Sizes(batch=0),
}
SINKS: Final = (False, True)
Combination = tuple[Case, str, torch.dtype, bool]

ALL: Final[list[Combination]] = list(itertools.product(CASES, SIZES, DTYPES, SINKS))
# Case i meets sizes j with choice (i + j) mod 8 of dtype and sink: as there are at least 8 cases
# and 8 sizes, each of them meets every dtype and sink.
_CHOICES: Final = list(itertools.product(SINKS, DTYPES))
SAMPLE: Final[list[Combination]] = [
    (case, size, _CHOICES[(i + j) % 8][1], _CHOICES[(i + j) % 8][0])
    for (i, case), (j, size) in itertools.product(enumerate(CASES), enumerate(SIZES))
]


def trial_id(value: object) -> str:
    if isinstance(value, Case):
        return value.name
    return {True: "sink", False: "no sink"}.get(value, str(value).removeprefix("torch."))  # type: ignore[call-overload]


def check(case: Case, size: str, dtype: torch.dtype, sink: bool) -> None:
    assert not excess(Trial(case, SIZES[size], dtype, sink))


@pytest.mark.parametrize(("case", "size", "dtype", "sink"), SAMPLE, ids=trial_id)
def test_a_case_agrees_with_the_dense_reference(
    case: Case, size: str, dtype: torch.dtype, sink: bool
) -> None:
    check(case, size, dtype, sink)


@pytest.mark.full
@pytest.mark.parametrize(("case", "size", "dtype", "sink"), ALL, ids=trial_id)
def test_every_combination_agrees_with_the_dense_reference(
    case: Case, size: str, dtype: torch.dtype, sink: bool
) -> None:
    check(case, size, dtype, sink)


def test_the_sample_holds_every_pair_of_choices() -> None:
    for i, j in itertools.combinations(range(4), 2):
        assert {(c[i], c[j]) for c in SAMPLE} == {(c[i], c[j]) for c in ALL}
