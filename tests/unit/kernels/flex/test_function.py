"""torch's FlexAttention as a backend: the meaning of every other one, or a refusal.

Most tests run what torch traces without its compiler, which is the same on all devices and has
gradients; those marked `cxx` compile it for the CPU.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.attention.flex_attention as torch_flex
from torch._dynamo import register_backend
from torch._dynamo.utils import counters

import flexfa4
from flexfa4.kernels.emit.errors import KernelLimitError
from flexfa4.kernels.errors import UnservedCallError
from flexfa4.kernels.flex.compiled import compiled, compiling_with
from flexfa4.kernels.flex.errors import FlexCompileError
from flexfa4.testing import CASES, Attend, Sizes, Trial, agrees, excess

# torch silences it where it asks, but not where warnings are errors
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")

CASE = {case.name: case for case in CASES}
GROUPED = Sizes(batch=2, heads=4, kv_heads=2, q_len=67, kv_len=83, dim=16, value_dim=24)
SHARED = Sizes(batch=3, heads=2, kv_heads=2, q_len=140, kv_len=53, kv_batch=1)

# One of each way in which a mod is written for torch, sizes and sinks in turn.
TRIALS = {
    "learned_slopes": Trial(CASE["learned_slopes"], GROUPED),
    "one tensor learned in two places": Trial(CASE["shared_bias"], SHARED, sink=True),
    "learned tensor without dimensions": Trial(CASE["learned_temperature"], GROUPED),
    "mod without the score": Trial(CASE["score_free"], SHARED),
    "vectors": Trial(CASE["rotary_part"], GROUPED, sink=True),
    "rows without keys": Trial(CASE["rows_without_keys"], SHARED, sink=True),
    "rows that the score masks": Trial(CASE["masked_by_score"], GROUPED, sink=True),
    "block mask by batch": Trial(CASE["document"], GROUPED, torch.bfloat16),
    "text, table by distance": Trial(CASE["text"], SHARED, torch.float16, sink=True),
}


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What torch traces, run as it is; torch refuses gradients on the CPU for want of a kernel."""
    monkeypatch.setattr(torch_flex, "_validate_device", lambda *tensors: None)
    with compiling_with("aot_eager"):
        yield


def attend(**chosen: Any) -> Attend:
    def run(inputs: Any, mods: Any) -> tuple[torch.Tensor, torch.Tensor]:
        q, k, v, sink = vars(inputs).values()
        out, lse = flexfa4.attention(
            q, k, v, score_mod=mods.score_mod, block_mask=mods.mask, sink=sink, return_lse=True,
            backend="flex", **chosen,
        )  # fmt: skip
        return out, lse

    return run


def drawn(*shape: int, **how: Any) -> tuple[Any, Any, Any]:
    q, k, v = (torch.randn(shape or (1, 2, 40, 16), **how) for _ in range(3))
    return q, k, v


def flex(q: Any, k: Any, v: Any, **chosen: Any) -> Any:
    return flexfa4.attention(q, k, v, backend="flex", **chosen)


def near(found: torch.Tensor, q: Any, k: Any, v: Any, **mods: Any) -> bool:
    exact = flexfa4.attention(q.double(), k.double(), v.double(), backend="cpu", **mods)
    ours = flexfa4.attention(q, k, v, backend="cpu", **mods)
    return agrees(found, exact, ours, terms=max(q.shape[3], k.shape[2]))


# ---- meaning -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("name", TRIALS)
def test_results_and_gradients_agree_with_the_dense_reference(name: str) -> None:
    assert not excess(TRIALS[name], attend())


@pytest.mark.full
@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_variant_agrees_with_the_dense_reference(case: Any) -> None:
    assert not excess(Trial(case, sink=True), attend())


@pytest.mark.usefixtures("uncompiled")
def test_masked_scores_may_read_out_of_range_and_negative_places_count_from_the_end() -> None:
    q, k, v = drawn()
    table = torch.randn(2, 40)
    for mod, mask in (
        (lambda s, b, h, i, j: s + table[h, i - j], "q >= kv"),
        (lambda s, b, h, i, j: s + table[-1 - h, j - i], None),
    ):
        mods = {"score_mod": mod, "block_mask": mask}
        assert near(flex(q, k, v, **mods), q, k, v, **mods)


@pytest.mark.usefixtures("uncompiled")
def test_integers_do_not_wrap_around_at_32_bits() -> None:
    q, k, v = drawn()
    ids = torch.full((40,), 2**31 - 1, dtype=torch.int32)
    big = 2**40
    for mask in (
        lambda b, h, i, j: ids[i] + j > 2**31,
        lambda b, h, i, j: (i + big) * 3 - big * 3 > j,
    ):
        assert near(flex(q, k, v, block_mask=mask), q, k, v, block_mask=mask)


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("empty", ["batch", "queries", "keys"])
def test_nothing_to_compute_gives_zeros(empty: str) -> None:
    q, k, v = drawn()
    if empty == "keys":
        k, v = k[:, :, :0], v[:, :, :0]
    else:
        q = q[:0] if empty == "batch" else q[:, :, :0]
        k, v = (k[:0], v[:0]) if empty == "batch" else (k, v)
    out, lse = flexfa4.attention(q, k, v, return_lse=True, backend="flex")
    assert out.shape == q.shape and not out.any() and bool((lse == -math.inf).all())


@pytest.mark.usefixtures("uncompiled")
def test_an_op_is_differentiated_by_a_second_forward_pass() -> None:
    shapes = ((1, 2, 40, 16),) * 3 + ((40,), ())
    leaves = [torch.randn(shape, requires_grad=True) for shape in shapes]
    weights = torch.randn(1, 2, 40, 16)

    def loss(backend: str, q: Any, k: Any, v: Any, bias: Any, gate: Any) -> torch.Tensor:
        mods: Any = {
            "score_mod": lambda s, b, h, i, j: s * gate + bias[i] + bias[j],
            "block_mask": "q >= kv",
        }
        out, lse = flexfa4.attention(q, k, v, return_lse=True, backend=backend, **mods)
        return (out * weights).sum() + lse.square().sum()

    def gradients(run: Any, backend: str, given: list[torch.Tensor]) -> Any:
        return torch.autograd.grad(run(backend, *given), given)

    found = gradients(torch.compile(loss, backend="aot_eager", fullgraph=True), "flex", leaves)
    exact = gradients(loss, "cpu", [x.detach().double().requires_grad_() for x in leaves])
    ours = gradients(loss, "cpu", leaves)
    for gradient in zip(found, exact, ours, strict=True):
        assert agrees(*gradient, terms=2 * 40 * 40)


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("inference", [False, True])
def test_an_op_runs_where_nothing_is_differentiated(inference: bool) -> None:
    q, k, v = drawn()
    run = torch.compile(flexfa4.attention, backend="aot_eager", fullgraph=True)
    with torch.inference_mode() if inference else torch.no_grad():
        assert near(run(q, k, v, block_mask="q > kv", backend="flex"), q, k, v, block_mask="q > kv")


# ---- what is compiled anew -----------------------------------------------------------------------


@pytest.mark.usefixtures("uncompiled")
def test_new_numbers_and_contents_compile_nothing_anew() -> None:
    q, k, v = drawn()

    def call(slope: float, window: int) -> None:
        ids = torch.arange(40) // window
        mods = {
            "score_mod": lambda s, b, h, i, j: s + slope * (j - i),
            "block_mask": lambda b, h, i, j: (i - j < window) & (ids[i] == ids[j]),
        }
        assert near(flex(q, k, v, **mods), q, k, v, **mods)

    call(0.5, 7)
    plans, graphs = compiled.cache_info().misses, counters["stats"]["unique_graphs"]
    assert graphs > 0
    for slope, window in ((0.25, 9), (-1.0, 30)):
        call(slope, window)
    assert (compiled.cache_info().misses, counters["stats"]["unique_graphs"]) == (plans, graphs)


@pytest.mark.usefixtures("uncompiled")
def test_a_second_length_compiles_for_all_lengths() -> None:
    def call(length: int) -> None:
        q, k, v = drawn(1, 2, length, 16)
        flexfa4.attention(q, k, v, block_mask="q >= kv + 3", backend="flex")

    call(150)
    call(170)
    graphs = counters["stats"]["unique_graphs"]
    for length in (181, 230, 300):
        call(length)
    assert counters["stats"]["unique_graphs"] == graphs


# ---- refusals ------------------------------------------------------------------------------------


def refusal(*inputs: Any, **chosen: Any) -> str:
    with pytest.raises((UnservedCallError, KernelLimitError)) as caught:
        flexfa4.attention(*(inputs or drawn()), backend="flex", **chosen)
    assert 'backend="cpu"' in str(caught.value)
    return str(caught.value)


@pytest.mark.usefixtures("uncompiled")
def test_what_torch_cannot_compute_is_refused_with_what_works() -> None:
    rows, empty = torch.zeros(40, 32), torch.zeros(0)
    assert "float64" in refusal(*drawn(dtype=torch.float64))
    told = refusal(score_mod=lambda s, b, h, i, j: s + (rows[i] * rows[j]).sum(-1))
    assert "32 elements" in told and "at most 16" in told
    assert "power of integers" in refusal(score_mod=lambda s, b, h, i, j: s + 2 ** (i - i % 3))
    reads_nothing = lambda s, b, h, i, j: s + empty[j]  # noqa: E731
    assert "no elements" in refusal(score_mod=reads_nothing, block_mask="kv < 0")


def test_the_cpu_has_the_output_alone() -> None:
    q, k, v = drawn()
    assert "returns lse" in refusal(q, k, v, return_lse=True)
    assert "has a sink" in refusal(q, k, v, sink=torch.zeros(2))
    assert "is differentiated" in refusal(q.requires_grad_(), k, v)


def fails(*args: Any) -> Any:
    raise ValueError("too many registers")


def test_what_torch_does_not_compile_is_told_with_the_mods() -> None:
    q, k, v = drawn(1, 1, 30, 16)
    register_backend(name="fails")(fails)
    with compiling_with("fails"), pytest.raises(FlexCompileError) as caught:
        flexfa4.attention(q, k, v, block_mask="q >= kv", backend="flex")
    assert "too many registers" in str(caught.value) and "q >= kv" in str(caught.value)


def test_a_mod_that_takes_too_much_shared_memory_gets_small_tiles() -> None:
    told = []

    @register_backend(name="narrow")
    def narrow(graph: torch.fx.GraphModule, examples: list[Any]) -> Any:
        (call,) = [node for node in graph.graph.nodes if "flex_attention" in str(node.target)]
        options = next(x for x in call.args if isinstance(x, dict))
        told.append(options.get("BLOCK_M"))
        if told[-1] is None:
            raise RuntimeError("out of resource: shared memory, Required: 786432")
        return graph.forward

    q, k, v = drawn(1, 1, 30, 16)
    with compiling_with("narrow"):
        outs = [flexfa4.attention(q, k, v, block_mask="q >= kv", backend="flex") for _ in range(2)]
    assert told[0] is None and set(told[1:]) == {32}
    expected = flexfa4.attention(q, k, v, block_mask="q >= kv", backend="cpu")
    for out in outs:
        torch.testing.assert_close(out, expected)


# ---- compiled ------------------------------------------------------------------------------------

# Each compiles for seconds.
COMPILED: dict[str, dict[str, Any]] = {
    "captures": {"case": "text", "sizes": SHARED},
    "rows without keys": {"case": "rows_without_keys", "sizes": GROUPED},
}


@pytest.mark.cxx
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # where inductor is imported
@pytest.mark.parametrize("name", COMPILED)
def test_what_torch_compiles_agrees_with_the_cpu_backend(name: str) -> None:
    row = COMPILED[name]
    trial = Trial(CASE[row["case"]], row["sizes"])
    inputs, mods = trial.build(torch.float32)
    chosen = {"score_mod": mods.score_mod, "block_mask": mods.mask}
    with torch.no_grad():
        out = flexfa4.attention(inputs.q, inputs.k, inputs.v, backend="flex", **chosen)
        assert near(out, inputs.q, inputs.k, inputs.v, **chosen)
