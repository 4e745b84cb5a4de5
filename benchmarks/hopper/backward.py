"""The backward pass beside its peers: all gradients of a call whose forward pass is done.

A provider's forward pass runs once, and what is timed is ``torch.autograd.grad`` of its output; the
gradient that comes in lies as the output does.  Gradients are compared with those of attention in
fp64 before: dq of some queries, dk and dv of some keys of all queries, and those of what a mod
learns, for the first and the last head.

A case is one of the forward's variants at a shape.  It may learn tensors of its mod, of which there
is a gradient, too; and it may ask for the same bits on every run, beside our own without.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Final

import torch
from hopper.cases import EVERY_PEER, Case
from hopper.gradients import expected_gradients, gradients_of, verdict
from hopper.providers import (
    OURS,
    PROVIDERS,
    Prepared,
    Problem,
    first_of,
    flex_attention,
    ours,
    provider,
)
from hopper.speed import Bench, in_a_line
from hopper.timing import Call, interleaved, synchronize
from hopper.variants import Shape


@dataclass(frozen=True)
class BackwardCase:
    """A backward pass that is timed.

    Attributes:
        case: the call, with what is asked for.
        learned: tensors of its mod are learned.
        deterministic: ours is timed with the same bits on every run beside ours without, and that
            is the peer.
    """

    case: Case
    learned: bool = False
    deterministic: bool = False

    @property
    def tflop(self) -> float:
        """Floating point operations of the backward pass, in units of 10^12."""
        return self.case.shape.backward_flops(self.case.visible) / 1e12


_LONG: Final = Shape(4, 16, 16, 8192, 128, 128)
_SHAPES: Final = {
    "": _LONG,
    "-2k": Shape(16, 16, 16, 2048, 128, 128),
    "-32k": Shape(1, 16, 16, 32768, 128, 128),
    "-gqa": Shape(2, 64, 8, 8192, 128, 128),
    "-d64": Shape(4, 32, 32, 8192, 64, 64),
}


def cases() -> dict[str, BackwardCase]:
    """Return all cases by name, in the order in which they are run."""
    rows = [
        (f"{variant}{suffix}", variant, shape, 0.95, 1.05)
        for suffix, shape in _SHAPES.items()
        for variant in ("full", "causal")
    ]
    rows += [
        ("causal-d192-128", "causal", Shape(4, 16, 16, 8192, 192, 128), 0.95, 1.10),
        ("causal-d256", "causal", Shape(4, 16, 16, 8192, 256, 256), 0.95, 1.10),
        ("window-1024", "window-1024", _LONG, 1.05, 1.15),
        ("window-128", "window-128", _LONG, 1.05, 1.15),
        ("window-4096", "window-4096", _LONG, 1.05, 1.15),
        ("prefix-2048", "prefix-2048", _LONG, 1.05, 1.15),
        ("alibi", "alibi", _LONG, 1.05, 1.20),
        ("softcap-30", "softcap-30", _LONG, 1.05, 1.20),
        ("documents", "documents", _LONG, 0.95, 1.05),
    ]
    made = {name: BackwardCase(_case(name, *rest)) for name, *rest in rows}
    for name, variant, must, aim in (
        ("key-bias-learned", "key-bias", 1.8, 2.3),
        ("alibi-learned", "alibi", None, None),
        ("t5-table-learned", "t5-table", 60.0, 120.0),
    ):
        made[name] = BackwardCase(_case(name, variant, _LONG, must, aim), learned=True)
    for variant, must in (("causal", 0.90), ("window-1024", 0.85), ("documents", 0.85)):
        name = f"{variant}-deterministic"
        case = _case(name, variant, _LONG, must, 0.95)
        made[name] = BackwardCase(case, deterministic=True)
    return made


def _case(name: str, variant: str, shape: Shape, must: float | None, aim: float | None) -> Case:
    return Case(f"backward-{name}", "backward", variant, shape, must, aim, EVERY_PEER)


_WITH_LESS: Final = {"Flex Triton": provider(flex_attention({"bwd_num_stages": 1}))}
"""Who is tried where a provider's own choice takes more shared memory than there is."""


def measured(given: BackwardCase, bench: Bench) -> dict[str, Any]:
    """Return the row of a case."""
    torch._dynamo.reset()
    torch._functorch.config.donated_buffer = False  # gradients are asked for again and again
    case, problem = given.case, Problem.of(given.case, bench.device)
    learned = problem.mods.learnable if given.learned else ()
    for tensor in learned:
        tensor.requires_grad_()
    draw = torch.Generator(bench.device).manual_seed(1)
    shape = (*problem.q.shape[:3], problem.v.shape[3])
    do = torch.randn(shape, device=bench.device, dtype=problem.q.dtype, generator=draw)
    right = expected_gradients(problem, do, learned)
    calls: dict[str, Call] = {}
    found: dict[str, dict[str, Any]] = {}
    for name, prepare in _providers(given).items():
        if not bench.tries(name):
            continue
        row, call = _tried(prepare, problem, do, learned, right)
        if name in _WITH_LESS and "out of resource" in row.get("failed", ""):
            row, call = _tried(_WITH_LESS[name], problem, do, learned, right)
        if row:
            found[name] = row
        if call is not None:
            calls[name] = call
    before = bench.ceiling.tflops(bench.clock)
    for name, times in interleaved(calls, bench.clock, bench.rounds).items():
        found[name]["ms"] = times
    return {
        "case": case.name,
        "group": case.group,
        "variant": case.variant,
        "shape": asdict(case.shape),
        "visible": case.visible,
        "tflop": given.tflop,
        "must": case.must,
        "aim": case.aim,
        "ceiling_tflops": [before, bench.ceiling.tflops(bench.clock)],
        "providers": found,
    }


def _providers(given: BackwardCase) -> dict[str, Callable[[Problem], Prepared | None]]:
    """Return who is timed, by name; the first one is ours."""
    if given.deterministic:  # in the place of ours, which becomes the peer
        return {OURS: functools.partial(ours, deterministic=True), "not deterministic": ours}
    return {name: PROVIDERS[name] for name in (OURS, *given.case.peers)}


def _tried(
    prepare: Callable[[Problem], Prepared | None],
    problem: Problem,
    do: torch.Tensor,
    learned: tuple[torch.Tensor, ...],
    right: Any,
) -> tuple[dict[str, Any], Call | None]:
    """Return what is to be said of a provider's first backward pass, and what to time, if any."""
    try:
        prepared = prepare(problem.apart())
        if prepared is None:
            return {}, None
        call = gradient_call(prepared, learned, do)
        start = time.perf_counter()
        result = call()
        synchronize(do.device)
        seconds = time.perf_counter() - start
        said = verdict(gradients_of(prepared, result), right)
    except Exception as error:  # of whatever kind: peers are not ours
        return {"failed": in_a_line(error)}, None
    row = {"first_s": seconds, "error": said.error}
    if not said.right:
        return {**row, "failed": f"wrong: {said.worst} off by {said.error:.2g}"}, None
    return row, call


def gradient_call(prepared: Prepared, learned: tuple[torch.Tensor, ...], do: torch.Tensor) -> Call:
    """Return the backward pass of a provider, whose forward pass runs now.

    Args:
        prepared: the provider's call, whose inputs nothing is recorded of yet.
        learned: what is learned beside q, k and v.
        do: the gradient that comes in, ``(B, H, S, Dv)``.
    """
    for tensor in prepared.inputs:
        tensor.requires_grad_()
    out = first_of(prepared.call())
    (own,) = torch.autograd.grad(prepared.view(out), out, do, retain_graph=True)
    own = own.contiguous() if out.is_contiguous() else own
    wanted = (*prepared.inputs, *learned)
    return lambda: torch.autograd.grad(out, wanted, own, retain_graph=True)
