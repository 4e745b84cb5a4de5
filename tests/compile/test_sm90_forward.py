"""Every tiling of the Hopper forward kernel compiles as it is meant to; kernels ahead of time."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("cutlass")

import flexfa4
from flexfa4 import testing
from flexfa4.ahead_of_time import Call, plan_of
from flexfa4.errors import ArgumentError
from flexfa4.kernels.cache.entry import read_entry
from flexfa4.kernels.compile.cute import Compilation, compile_with_cute, example_of
from flexfa4.kernels.compile.errors import KernelCompileError
from flexfa4.kernels.sm90.forward import kernel as kernel_module
from flexfa4.kernels.sm90.forward.kernel import REGISTERS, ForwardKernel
from flexfa4.kernels.sm90.forward.plan import ForwardPlan
from flexfa4.kernels.sm90.forward.storage import SHARED_MEMORY
from flexfa4.kernels.sm90.forward.tilings import FORWARD
from flexfa4.primitives import wgmma
from tests.forward_trials import SIZES

ARCH = "sm_90a"
SPILLS = re.compile(r"(\d+) bytes spill (?:stores|loads)")
WARNINGS = re.compile(r"\(C7\d+\).*|Potential Performance Loss.*")


def planned(score_mod: Any = None, block_mask: Any = None, **call: Any) -> ForwardPlan:
    plan = plan_of(score_mod, block_mask, Call(**call), ARCH)
    assert isinstance(plan, ForwardPlan)
    return plan


def compilation(plan: ForwardPlan) -> Compilation:
    example, maps = example_of(plan.signature), len(plan.maps)
    arguments = (tuple(example[:maps]), tuple(example[maps:]))
    return compile_with_cute(ForwardKernel(plan), arguments, ARCH)


def complaints(made: Compilation) -> list[str]:
    """Return what ptxas says of registers that did not suffice and products that have to wait."""
    spills = [spilled for spilled in SPILLS.findall(made.report) if int(spilled)]
    assert SPILLS.search(made.report)
    return spills + WARNINGS.findall(made.report)


MASKS = {"none": None, "causal": "q >= kv"}
MODS = {
    "none": None,
    "softcap": "30 * tanh(score / 30)",
    "by position": "score + 0.5 * (kv - q)",
}


@pytest.mark.parametrize("head_dims", FORWARD, ids=str)
def test_no_tiling_spills_or_serialises_products(head_dims: tuple[int, int]) -> None:
    plan = planned(block_mask="q >= kv", head_dim=head_dims, heads=4, kv_heads=1, return_lse=True)
    assert not complaints(compilation(plan))
    assert plan.storage.bytes <= SHARED_MEMORY


@pytest.mark.full
@pytest.mark.parametrize(
    ("head_dims", "mod", "mask"), [*itertools.product(FORWARD, MODS, MASKS)], ids=str
)
def test_no_tiling_spills_with_any_kind_of_mod(
    head_dims: tuple[int, int], mod: str, mask: str
) -> None:
    plan = planned(MODS[mod], MASKS[mask], head_dim=head_dims, sink=True, dtype=torch.float16)
    assert not complaints(compilation(plan))


TIGHT = (96, 96)


@pytest.mark.parametrize(
    "head_dims",
    [TIGHT, *[pytest.param(dims, marks=pytest.mark.full) for dims in FORWARD if dims != TIGHT]],
    ids=str,
)
@pytest.mark.parametrize("kv_heads", [1, 4])
def test_lengths_that_are_read_from_a_table_take_no_registers_away(
    head_dims: tuple[int, int], kv_heads: int
) -> None:
    plan = planned(
        MODS["by position"], "q >= kv", head_dim=head_dims, heads=4, kv_heads=kv_heads, sink=True
    )
    assert not complaints(compilation(replace(plan, varlen=True)))


WIDER = [pytest.param(dims, marks=pytest.mark.full) for dims in FORWARD if dims != TIGHT]


@pytest.mark.parametrize("head_dims", [TIGHT, *WIDER], ids=str)
@pytest.mark.parametrize("masked", [False, True])
def test_mods_that_read_for_each_score_get_the_registers(
    head_dims: tuple[int, int], masked: bool
) -> None:
    table, bucket, group = torch.randn(32, 4), torch.arange(512) // 16, torch.arange(512) % 3

    def score_mod(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        return score + table[bucket[(q - kv).clamp(min=0)], h]

    def mask_mod(b: Any, h: Any, q: Any, kv: Any) -> Any:
        return group[q] == group[kv]

    call: dict[str, Any] = {"head_dim": head_dims, "heads": 4, "q_len": 512, "kv_len": 512}
    plan = planned(score_mod, mask_mod if masked else "q >= kv", return_lse=True, **call)
    assert (plan.mask is not None) == masked
    assert not complaints(compilation(plan))


# Variants of the case table that took most registers before their mods were evaluated in parts.
TIGHT_CASES = {
    ("neighborhood_tiled", (64, 64)), ("longnet", (128, 128)), ("rotary_part", (128, 128)),
    ("mla_rope_by_group", (96, 96)), ("deberta", (64, 64)), ("fire", (128, 128)),
    ("tree_attention", (256, 256)), ("shared_bias", (64, 64)),
}  # fmt: skip


@pytest.mark.parametrize(
    ("case", "head_dims"),
    [
        pytest.param(case, dims, marks=() if (case.name, dims) in TIGHT_CASES else pytest.mark.full)
        for case, dims in itertools.product(testing.CASES, FORWARD)
    ],
    ids=lambda choice: choice.name if isinstance(choice, testing.Case) else str(choice),
)
def test_no_variant_of_the_case_table_spills(
    case: testing.Case, head_dims: tuple[int, int]
) -> None:
    sizes = replace(SIZES["packed"], dim=head_dims[0], value_dim=head_dims[1])
    mods = case.make(sizes, testing.Draw(torch.Generator().manual_seed(0)))
    plan = planned(
        mods.score_mod, mods.mask, head_dim=head_dims, heads=sizes.heads, kv_heads=sizes.kv_heads,
        batch=sizes.batch, q_len=sizes.q_len, kv_len=sizes.kv_len, return_lse=True,
    )  # fmt: skip
    assert not complaints(compilation(plan))


# Head dims that were not measured: of the tilings that the model chooses, those that hold most
# registers, and the narrowest and widest ones.
UNMEASURED = [
    (16, 16), (48, 48), (80, 80), (112, 112), (176, 176), (192, 192), (224, 128), (16, 256),
    (256, 144), (256, 16),
]  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize(("head_dims", "mod"), [*itertools.product(UNMEASURED, MODS)], ids=str)
def test_a_tiling_that_the_model_chooses_does_not_spill(
    head_dims: tuple[int, int], mod: str
) -> None:
    assert head_dims not in FORWARD
    plan = planned(MODS[mod], "q >= kv", head_dim=head_dims, sink=True, return_lse=True)
    assert not complaints(compilation(plan))


def test_products_that_are_not_waited_for_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wgmma, "wait", lambda pending: None)
    assert complaints(compilation(planned(head_dim=64)))


# ---- ahead of time -------------------------------------------------------------------------------


def test_a_kernel_is_compiled_without_a_gpu_and_tells_what_it_takes(tmp_path: Path) -> None:
    made = flexfa4.compile(
        score_mod="score * 2", block_mask="q >= kv", head_dim=64, folder=tmp_path
    )
    assert made.ptx.startswith("//") and ".target sm_90a" in made.ptx
    assert made.cubin.startswith(b"\x7fELF")
    tiling = FORWARD[64, 64]
    assert tuple(made.registers.values()) == REGISTERS[tiling.warpgroups]
    assert made.spills == 0
    assert made.smem_bytes == made.plan.storage.bytes
    assert made.plan.tiling == tiling
    assert read_entry(made.path.read_bytes()).cubin == made.cubin
    for words in ("64 queries", "closed form", f"{made.smem_bytes} bytes", "three kernels"):
        assert words in str(made)


def test_a_folder_serves_a_machine_without_cute_dsl(tmp_path: Path) -> None:
    call: dict[str, Any] = {
        "score_mod": "score + 0.25 * (kv - q)", "block_mask": "q >= kv",
        "head_dim": 64, "heads": 4, "kv_heads": 2,
    }  # fmt: skip
    flexfa4.compile(**call, folder=tmp_path)
    program = f"""
import importlib.metadata, sys
sys.modules["cutlass"] = None
found = importlib.metadata.version
def version(name):
    if name == "nvidia-cutlass-dsl":
        raise importlib.metadata.PackageNotFoundError(name)
    return found(name)
importlib.metadata.version = version
import flexfa4
made = flexfa4.compile(**{call!r})
print(len(made.cubin), flexfa4.stats().compiles)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"FLEXFA4_CACHE_DIR": str(tmp_path), "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    assert re.fullmatch(r"\d+ 0\n", done.stdout)


def test_the_tensors_of_a_block_mask_say_for_which_call() -> None:
    ids = torch.arange(200) // 50
    mask = flexfa4.create_block_mask(lambda b, h, q, kv: ids[q] == ids[kv], q_len=200, kv_len=200)
    assert planned(None, mask).walk.source == "closed"
    with pytest.raises(flexfa4.errors.OutOfRangeError, match="8191"):
        planned(None, mask.mask)


def test_a_mod_that_cannot_be_compiled_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> Any:
        raise ValueError("nobody knows")

    monkeypatch.setattr(kernel_module, "make_operands", broken)
    with pytest.raises(KernelCompileError, match=r"score \* 3\.0") as caught:
        flexfa4.compile(score_mod="score * 3.0", block_mask="q > kv", folder=tmp_path)
    assert "nobody knows" in str(caught.value) and "kv < q" in str(caught.value)
    assert not list(tmp_path.rglob("*.kernel"))


def test_an_architecture_without_kernels_is_refused() -> None:
    with pytest.raises(ArgumentError, match="sm_90a"):
        flexfa4.compile(arch="sm_80")
