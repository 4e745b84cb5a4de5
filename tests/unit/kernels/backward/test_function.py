"""The backward pass as launches: how many, what serves a call, and what does not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch

from flexfa4.frontend.tracing.trace import resolve
from flexfa4.kernels.backward import function
from flexfa4.kernels.backward.call import PlannedBackward
from flexfa4.kernels.backward.compiled import Kernels
from flexfa4.kernels.backward.function import Backwards
from flexfa4.kernels.compile.errors import MissingCompilerPackageError
from flexfa4.kernels.launch.target import Target
from flexfa4.kernels.refusal import BackendWarning
from flexfa4.kernels.request import Choices, Inputs, Request, Results
from flexfa4.kernels.sm90.backward.architecture import HOPPER_BACKWARD


class Recorder:
    """Launches nothing; a kernel is its plan."""

    def __init__(self) -> None:
        self.launches: list[tuple[Any, Any, Sequence[Any]]] = []

    def load(self, kernel: Any) -> None:
        pass

    def launch(self, kernel: Any, grid: Any, values: Sequence[Any], **_: Any) -> None:
        self.launches.append((kernel, grid, values))


class Main:
    """Stands for the compiled main kernel of a plan."""

    cluster = (1, 1, 1)

    def __init__(self, plan: Any) -> None:
        self.plan = plan

    def __getattr__(self, name: str) -> Any:
        return getattr(self.plan, name)


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    def kernels(call: PlannedBackward, name: str) -> Kernels:
        made.append(call)
        main = Main(call.main)
        return Kernels(call.preprocess, main, call.postprocess)  # type: ignore[arg-type]

    made: list[PlannedBackward] = []
    monkeypatch.setattr(function, "kernels_for", kernels)
    found = Recorder()
    found.made = made  # type: ignore[attr-defined]
    yield found


def inputs(dim: int = 64) -> Inputs:
    def empty(heads: int, n: int) -> torch.Tensor:
        return torch.zeros(2, heads, n, dim, dtype=torch.bfloat16)

    return Inputs(empty(4, 200), empty(2, 300), empty(2, 300), None)


def results(given: Inputs, grad_out: torch.Tensor | None = None) -> Results:
    lse = torch.zeros(given.q.shape[:3])
    return Results(torch.zeros_like(given.q), lse, grad_out, None)


PLAIN = Request(None, None, 0.125, frozenset(), False)
ALL = (True, True, True, False)


def backwards(recorder: Recorder) -> Backwards:
    return Backwards(HOPPER_BACKWARD, Target(recorder, (9, 0), 3), "sm_90a")


def test_three_kernels_follow_each_other_and_are_made_once(recorder: Recorder) -> None:
    given, serving = inputs(), backwards(recorder)
    for _ in range(3):
        dq, dk, dv, sink = serving.gradients(PLAIN, given, results(given), ALL)
        assert dq is not None and dk is not None and dv is not None and sink is None
        assert (dq.shape, dk.shape, dv.shape) == (given.q.shape, given.k.shape, given.v.shape)
        assert dq.dtype is dk.dtype is dv.dtype is torch.bfloat16
    assert len(recorder.launches) == 9 and len(recorder.made) == 1  # type: ignore[attr-defined]
    tiles = recorder.launches[0][1]
    assert tiles == recorder.launches[2][1] and tiles[1:] == (4, 2)
    assert recorder.launches[1][1] == (3, 1, 1)  # no more blocks than multiprocessors
    for kernel, _, values in recorder.launches:
        assert len(values) == len(kernel.signature)


def test_what_is_not_wanted_is_none(recorder: Recorder) -> None:
    given = inputs()
    found = backwards(recorder).gradients(PLAIN, given, results(given), (False, True, False, False))
    assert [g is None for g in found] == [True, False, True, True]


def test_gradients_that_lie_otherwise_are_another_form(recorder: Recorder) -> None:
    given, serving = inputs(), backwards(recorder)
    transposed = torch.zeros(2, 200, 4, 64, dtype=torch.bfloat16).transpose(1, 2)
    for grad in (torch.zeros_like(given.q), transposed):
        serving.gradients(PLAIN, given, results(given, grad), ALL)
    assert len(recorder.made) == 2  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", ["expanded", "one off"])
def test_gradients_that_tma_cannot_read_are_copied(recorder: Recorder, kind: str) -> None:
    given = inputs()
    grad = torch.zeros(2, 4, 200, 65, dtype=torch.bfloat16)[..., 1:]
    if kind == "expanded":
        grad = torch.zeros(1, 1, 1, 1, dtype=torch.bfloat16).expand(given.q.shape)
    backwards(recorder).gradients(PLAIN, given, results(given, grad), ALL)
    kernel, _, values = recorder.launches[1]
    named = dict(zip([p.name for p in kernel.signature], values, strict=True))
    address, _, strides = named["do"]
    assert address != grad.data_ptr() and address % 16 == 0 and strides[0] == 2 * 64


def test_head_dims_without_a_kernel_are_served_by_torch(recorder: Recorder) -> None:
    given = inputs(dim=80)
    found = backwards(recorder).gradients(PLAIN, given, results(given), ALL)
    assert not recorder.launches and found[0] is not None and found[0].shape == given.q.shape


def test_without_the_compiler_torch_serves_unless_the_kernels_were_named(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(call: PlannedBackward, name: str) -> Kernels:
        raise MissingCompilerPackageError(arch="sm_90a", reason="none")

    monkeypatch.setattr(function, "kernels_for", missing)
    given = inputs()
    with pytest.warns(BackendWarning, match="pip install"):
        found = backwards(recorder).gradients(PLAIN, given, results(given), ALL)
    assert found[2] is not None and not recorder.launches
    named = Request(None, None, 0.125, frozenset(), False, Choices("sm90"))
    with pytest.raises(MissingCompilerPackageError):
        backwards(recorder).gradients(named, given, results(given), ALL)


def test_turns_are_taken_where_the_same_bits_are_asked_for(recorder: Recorder) -> None:
    given, serving = inputs(), backwards(recorder)
    asked = Request(None, None, 0.125, frozenset(), False, Choices(deterministic=True))
    for request in (PLAIN, asked):
        serving.gradients(request, given, results(given), ALL)
    plans = [kernel for kernel, _, _ in recorder.launches[1::3]]
    assert [plan.ordered for plan in plans] == [False, True]


def test_gradients_of_captured_tensors_come_from_sums_or_from_torch(recorder: Recorder) -> None:
    bias, weights = torch.zeros(4, 300, dtype=torch.bfloat16), torch.zeros(4, 8)
    score = resolve(
        lambda s, b, h, q, kv: s + bias[h, kv] + (weights[h] * (q - kv)).sum(-1), "score"
    )
    needs = frozenset(score.graph.buffers)
    given, request = inputs(), Request(score, None, 0.125, needs, False)
    tensors = (*given, *score.tensors)
    found = backwards(recorder).gradients(
        request.with_tensors(()), tensors, results(given), (*ALL, True, True)
    )
    assert [(g.shape, g.dtype) for g in found[4:] if g is not None] == [
        (t.shape, t.dtype) for t in score.tensors
    ]
    main = recorder.launches[1][0]
    assert [share.load.attr.name for share in main.score.shares] == ["bias"]
