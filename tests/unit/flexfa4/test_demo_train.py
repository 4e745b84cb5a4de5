"""Training is repeatable, is measured, and failures of its process reach the caller."""

from __future__ import annotations

import multiprocessing
import operator
from dataclasses import replace

import pytest
import torch

from flexfa4.demo import train as module
from flexfa4.demo.model import Shape
from flexfa4.demo.train import Job, Run, train, train_in_turn
from flexfa4.errors import ArgumentError, DemoProcessError

JOB = Job("flexfa4", 3, 1, 200, Shape(layers=1, heads=2, kv_heads=1, head_dim=8, window=32))


def test_both_sides_start_from_the_same_loss_and_learn() -> None:
    ours, dense = train(JOB, lambda: None), train(replace(JOB, attention="dense"), lambda: None)
    assert ours.losses[0] == pytest.approx(dense.losses[0], rel=8 * torch.finfo(torch.float32).eps)
    assert ours.losses[-1] < ours.losses[0] and dense.losses[-1] < dense.losses[0]


def test_processes_compute_what_this_one_does_and_take_their_steps_in_turn() -> None:
    turns: list[int] = []
    run, dense = train_in_turn([JOB, replace(JOB, attention="dense")], turns.append)
    assert turns == [0, 1] * JOB.steps
    assert len(run.seconds) == len(run.skipped) == len(dense.seconds) == JOB.steps
    # number of threads may differ, and with it the order of sums
    expected = train(replace(JOB, double=True), lambda: None)
    assert run.losses == pytest.approx(expected.losses, rel=1e-4)
    assert dense.losses == pytest.approx(expected.losses, rel=1e-4)
    assert run.peak_memory is None or run.peak_memory >= 0
    assert not multiprocessing.active_children()


def test_what_the_user_did_wrong_is_raised_here_when_it_shows_there() -> None:
    with pytest.raises(ArgumentError, match="bytes that the documents hold"):
        train_in_turn([JOB, replace(JOB, length=10**9)], lambda index: None)
    assert not multiprocessing.active_children()


def test_a_process_that_ends_without_a_result_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_child", operator.is_)  # importable there, and sends nothing
    with pytest.raises(DemoProcessError, match="without a result"):
        train_in_turn([JOB], lambda index: None)


def test_the_first_step_does_not_count_for_the_speed() -> None:
    run = Run(seconds=[100.0, 2.0, 1.0, 4.0])
    assert run.tokens_per_second(JOB) == 200 / 2.0
