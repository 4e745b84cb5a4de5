"""`compile`: which call a kernel is planned for, and where it is kept."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import flexfa4
from flexfa4 import ahead_of_time
from flexfa4.ahead_of_time import Call, plan_of
from flexfa4.errors import ArgumentError, ShapeMismatchError
from flexfa4.kernels.architectures import BACKENDS
from flexfa4.kernels.backends import NAMES
from flexfa4.kernels.cache.store import KernelCache
from flexfa4.kernels.errors import UnservedCallError
from flexfa4.kernels.forward.plan import VariantPlan
from flexfa4.kernels.refusal import Refusal
from tests.compiled_kernels import compiled_kernel


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[VariantPlan]]:
    """The plans that were compiled, by something that does not."""
    plans: list[VariantPlan] = []

    def compile_plan(_: Any, plan: VariantPlan, name: str) -> Any:
        plans.append(plan)
        return compiled_kernel(signature=plan.signature)

    monkeypatch.setattr(ahead_of_time, "compile_plan", compile_plan)
    yield plans


def planned(score_mod: Any = None, block_mask: Any = None, **call: Any) -> VariantPlan:
    plan = plan_of(score_mod, block_mask, Call(**call), "sm_90a")
    assert not isinstance(plan, Refusal)
    return plan


def test_every_architecture_has_its_backend() -> None:
    assert set(BACKENDS.values()) <= set(NAMES)


@pytest.mark.parametrize("arch", BACKENDS)
def test_a_kernel_is_planned_for_the_architecture_that_is_named(
    arch: str, tmp_path: Path, compiled: list[VariantPlan]
) -> None:
    made = flexfa4.compile(block_mask="q >= kv", arch=arch, folder=tmp_path)
    (plan,) = compiled
    assert made.plan is plan and type(plan).__module__.split(".")[2] == BACKENDS[arch]
    assert KernelCache(tmp_path / "kernels").path(plan, arch) == made.path


def test_a_kernel_is_compiled_once_and_kept_in_its_folder(
    tmp_path: Path, compiled: list[VariantPlan]
) -> None:
    chosen: dict[str, Any] = {"score_mod": "score * 2", "head_dim": 64, "folder": tmp_path}
    first, again = flexfa4.compile(**chosen), flexfa4.compile(**chosen)
    assert len(compiled) == 1 and first.path == again.path
    assert first.path.parent == tmp_path / "kernels"
    assert KernelCache(tmp_path / "kernels").path(first.plan, "sm_90a") == first.path
    made = compiled_kernel()
    assert (first.ptx, first.cubin, first.arch) == (made.ptx, made.cubin, made.arch)
    assert (first.spills, first.smem_bytes) == (made.spills, made.smem_bytes)
    assert first.registers == {"producer": 24, "consumer": 240}
    assert "240 of a consumer thread; 8 bytes spilled" in str(first)


@pytest.mark.filterwarnings("ignore:compiled kernels cannot be kept")
def test_a_folder_that_cannot_be_written_is_an_error(
    tmp_path: Path, compiled: list[VariantPlan]
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ArgumentError, match="cannot be written"):
        flexfa4.compile(folder=tmp_path / "file")
    assert compiled


@pytest.mark.parametrize(
    "wrong",
    [{"heads": 0}, {"kv_heads": -2}, {"heads": True}, {"head_dim": 0}, {"head_dim": (64, 64, 64)},
     {"head_dim": (64, -8)}, {"head_dim": 64.0}, {"kv_heads": "2"}, {"dtype": "bf16"}],
    ids=str,
)  # fmt: skip
def test_sizes_that_are_none_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match=f"^{next(iter(wrong))} is "):
        flexfa4.compile(**wrong)


@pytest.mark.parametrize(("heads", "kv_heads", "fitting"), [(7, 2, 6), (2, 4, 4)])
def test_heads_that_do_not_divide_get_a_number_that_does(
    heads: int, kv_heads: int, fitting: int
) -> None:
    with pytest.raises(ShapeMismatchError, match=f"instead: heads={fitting}$"):
        flexfa4.compile(heads=heads, kv_heads=kv_heads)


def test_the_plan_is_that_of_a_call() -> None:
    plan = planned(
        "score + kv", "q >= kv", head_dim=(192, 128), heads=8, kv_heads=2, dtype=torch.float16,
        sink=True, return_lse=True, options=flexfa4.Options(tile=(64, 48), stages=1),
    )  # fmt: skip
    assert plan.head_dims == (192, 128) and plan.element == "f16" and plan.group == 4
    assert plan.sink and plan.lse and plan.walk.source == "closed"
    assert (plan.tiling.rows, plan.tiling.keys, plan.tiling.stages) == (64, 48, 1)
    usual = planned()
    assert usual.element == "bf16" and usual.group == 1 and not usual.sink and not usual.lse


def test_lengths_and_batches_make_no_other_plan() -> None:
    for mask in (None, "q >= kv", "(q + kv) % 5 < 2"):
        first = planned("score + (kv - q)", mask, q_len=300, heads=4)
        assert planned("score + (kv - q)", mask, q_len=1000, kv_len=500, batch=7, heads=4) == first


def test_a_block_mask_brings_its_sizes() -> None:
    starts = torch.tensor([[0, 100], [50, 70]])
    mask = flexfa4.create_block_mask(
        lambda b, h, q, kv: kv >= starts[b, h], batch=2, heads=2, q_len=200, kv_len=200
    )
    assert planned(None, mask).walk.interval is not None
    assert planned(None, mask).walk.classes or planned(None, mask).walk.source == "closed"
    with pytest.raises(flexfa4.errors.BlockMaskMismatchError):
        planned(None, mask, q_len=300)


def test_what_has_no_kernel_is_refused_with_the_nearest_that_has_one() -> None:
    with pytest.raises(UnservedCallError, match="multiples of 16"):
        flexfa4.compile(head_dim=72)
    with pytest.raises(UnservedCallError, match="bfloat16"):
        flexfa4.compile(dtype=torch.float32)
    with pytest.raises(ArgumentError, match="sm_90a"):
        flexfa4.compile(arch="sm_80")
    with pytest.raises(ShapeMismatchError, match="3"):
        flexfa4.compile(heads=4, kv_heads=3)
