"""A pool lends memory that nobody else uses, and makes no more of it than is used at once."""

from __future__ import annotations

import torch

from flexfa4.frontend.pool import Pool

ROWS = 1000


def pool() -> Pool:
    return Pool(torch.float64, torch.device("cpu"))


def lend(p: Pool, columns: int) -> torch.Tensor:
    tensor = p.lend((ROWS, columns))
    assert tensor is not None
    return tensor


def test_memory_that_is_lent_is_not_lent_again() -> None:
    p = pool()
    a, b = lend(p, 100), lend(p, 100)
    assert a.data_ptr() != b.data_ptr() and a.shape == (ROWS, 100) and a.dtype is torch.float64


def test_small_tensors_are_not_lent() -> None:
    assert pool().lend((30, 40)) is None


def test_what_was_given_back_is_lent_to_the_next_that_it_fits() -> None:
    p = pool()
    large, small = lend(p, 300), lend(p, 100)
    places = large.data_ptr(), small.data_ptr()
    p.give_back(large)
    p.give_back(small.view(100, ROWS))
    assert lend(p, 90).data_ptr() == places[1]
    assert lend(p, 90).data_ptr() == places[0]
    assert lend(p, 90).data_ptr() not in places


def test_a_tensor_of_elsewhere_is_not_taken() -> None:
    p = pool()
    mine = torch.zeros(ROWS, 100, dtype=torch.float64)
    p.give_back(mine)
    assert lend(p, 100).data_ptr() != mine.data_ptr()


def test_reclaiming_takes_back_all_that_is_lent_once() -> None:
    p = pool()
    places = {lend(p, 100).data_ptr() for _ in range(3)}
    p.reclaim()
    again = [lend(p, 100) for _ in range(4)]
    assert {t.data_ptr() for t in again[:3]} == places and again[3].data_ptr() not in places


def test_growing_sizes_keep_no_more_tensors_than_are_used_at_once() -> None:
    p = pool()
    for columns in (70, 80, 90, 100):
        lend(p, columns)
        lend(p, columns)
        p.reclaim()
    assert sorted(t.numel() for t in p._free) == [100 * ROWS, 100 * ROWS]
