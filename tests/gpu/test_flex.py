"""torch's FlexAttention as a backend on this machine's GPU, whichever it is.

``-m "gpu and full"`` runs the whole case table.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

import flexfa4
from flexfa4.kernels.emit.errors import KernelLimitError
from flexfa4.testing import CASES, Attend, Inputs, Mods, Sizes, Trial, agrees, excess
from tests.forward_trials import moved

torch.backends.cuda.matmul.allow_tf32 = False  # which FlexAttention follows

CASE = {case.name: case for case in CASES}
SIZES = Sizes(batch=2, heads=4, kv_heads=2, q_len=300, kv_len=260, dim=64, value_dim=32)
SHARED = Sizes(batch=3, heads=2, kv_heads=2, q_len=67, kv_len=260, dim=64, value_dim=64, kv_batch=1)
SAMPLE = (
    ("learned_slopes", SIZES, False), ("shared_bias", SHARED, True), ("score_free", SIZES, True),
    ("learned_temperature", SHARED, False), ("rotary_part", SIZES, False),
    ("rows_without_keys", SHARED, True), ("masked_by_score", SIZES, True),
    ("document", SIZES, False), ("text", SHARED, False), ("pair_bias", SIZES, False),
)  # fmt: skip


def attend(inputs: Inputs, mods: Mods) -> tuple[torch.Tensor, torch.Tensor]:
    q, k, v, sink = (None if t is None else t.cuda() for t in vars(inputs).values())
    out, lse = flexfa4.attention(
        q,  # type: ignore[arg-type]
        k,  # type: ignore[arg-type]
        v,  # type: ignore[arg-type]
        score_mod=moved(mods.score_mod, "score", "cuda"),
        block_mask=moved(mods.mask, "mask", "cuda"),
        sink=sink,
        return_lse=True,
        backend="flex",
    )
    return out.cpu(), lse.cpu()


FLEX: Attend = attend


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("row", SAMPLE, ids=lambda row: row[0])
def test_results_and_gradients_agree_with_the_dense_reference(
    row: tuple[str, Sizes, bool], dtype: torch.dtype
) -> None:
    name, sizes, sink = row
    assert not excess(Trial(CASE[name], sizes, dtype, sink), FLEX)


@pytest.mark.full
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_variant_agrees_or_is_refused(case: Any) -> None:
    try:
        assert not excess(Trial(case, SIZES, torch.bfloat16), FLEX)
    except KernelLimitError as error:
        assert 'backend="cpu"' in str(error)


def test_a_compiled_program_gets_its_gradients() -> None:
    shapes = ((1, 2, 300, 64),) * 3 + ((300,),)
    leaves = [torch.randn(shape, device="cuda", requires_grad=True) for shape in shapes]

    def loss(backend: str, q: Any, k: Any, v: Any, bias: Any) -> torch.Tensor:
        mod = lambda s, b, h, i, j: s + bias[i] * bias[j]  # noqa: E731
        out = flexfa4.attention(q, k, v, score_mod=mod, block_mask="q >= kv", backend=backend)
        return out.square().sum()

    def gradients(run: Any, backend: str, given: list[torch.Tensor]) -> Any:
        return torch.autograd.grad(run(backend, *given), given)

    found = gradients(torch.compile(loss, fullgraph=True), "flex", leaves)
    exact = gradients(loss, "cpu", [x.detach().double().requires_grad_() for x in leaves])
    ours = gradients(loss, "cpu", leaves)
    for gradient in zip(found, exact, ours, strict=True):
        assert agrees(*gradient, terms=2 * 300 * 300)


def test_new_lengths_and_numbers_compile_nothing_anew_after_the_second() -> None:
    from torch._dynamo.utils import counters

    def call(length: int, slope: float) -> None:
        q = torch.randn(1, 2, length, 64, device="cuda")
        mod = lambda s, b, h, i, j: s + slope * (j - i)  # noqa: E731
        mods: Any = {"score_mod": mod, "block_mask": "q >= kv"}
        wide = q.double()
        out = flexfa4.attention(q, q, q, backend="flex", **mods)
        exact = flexfa4.attention(wide, wide, wide, backend="cpu", **mods)
        ours = flexfa4.attention(q, q, q, backend="cpu", **mods)
        assert agrees(out, exact, ours, terms=length)

    call(300, 0.5)
    call(420, 0.25)
    graphs = counters["stats"]["unique_graphs"]
    for length, slope in ((555, 0.125), (1024, 1.0), (1100, -1.0)):
        call(length, slope)
    assert counters["stats"]["unique_graphs"] == graphs
