"""NVIDIA's examples of CuTe-DSL: they pass their own checks, without reports, in any order.

They are not part of the wheel: `--cutlass-examples FOLDER` names ``examples/python/CuTeDSL`` of a
checkout of CUTLASS.  A script runs as it is, with small sizes, and compares its results with
torch itself; here the memory that kernels see has to be the same at the end under every schedule.
"""

from __future__ import annotations

import ctypes
import hashlib
import runpy
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

pytest.importorskip("cutlass")

from flexfa4.emulator import Device
from flexfa4.emulator.failures.copies import ExitedSourceError
from flexfa4.emulator.failures.matrices import UnallocatedColumnsError
from tests.emulate.cuda_torch import cuda_torch

pytestmark = pytest.mark.filterwarnings("ignore")  # theirs


@dataclass(frozen=True)
class Example:
    """A script, its arguments, and the device that it runs on."""

    script: str
    arguments: str = ""
    name: str = "sm_100a"


HOPPER, BLACKWELL, TUTORIAL = (
    "cute/hopper/kernel",
    "cute/blackwell/kernel",
    "cute/blackwell/tutorial",
)
DENSE = f"{BLACKWELL}/dense_gemm"
SMALL = "--mnkl 256,256,128,1"
FMHA = "--q_shape 1,256,2,128 --k_shape 1,256,2,128"

FEW = (
    Example(f"{TUTORIAL}/tutorial_gemm/fp16_gemm_0.py", "--mnk 256,256,128"),
    Example(f"{TUTORIAL}/tutorial_gemm/fp16_gemm_2.py", "--mnk 512,256,128"),
    Example(
        f"{DENSE}/dense_gemm.py",
        f"{SMALL} --use_2cta_instrs --mma_tiler_mn 128,128 --cluster_shape_mn 2,1 --use_tma_store",
    ),
    Example(f"{DENSE}/dense_gemm_persistent_dynamic.py", SMALL),
    Example(
        f"{HOPPER}/dense_gemm/dense_gemm.py",
        f"{SMALL} --cluster_shape_mn 2,1 --a_major m --b_major n",
        "sm_90a",
    ),
)
MANY = (
    *(
        Example(f"{TUTORIAL}/tutorial_gemm/fp16_gemm_{i}.py", "--mnk 512,512,256")
        for i in ("1", "2", "3", "3_1", "4", "5")
    ),
    *(Example(f"{TUTORIAL}/tutorial_tma/tma_v{i}.py") for i in range(3)),
    Example(
        f"{DENSE}/dense_gemm.py",
        "--mnkl 512,256,128,1 --use_2cta_instrs --mma_tiler_mn 256,128 --cluster_shape_mn 2,1"
        " --use_tma_store",
    ),
    Example(
        f"{DENSE}/dense_gemm.py",
        f"{SMALL} --mma_tiler_mn 64,128 --cluster_shape_mn 1,1 --use_tma_store",
    ),
    Example(f"{DENSE}/dense_gemm.py", f"{SMALL} --ab_dtype Float8E4M3FN --c_dtype Float16"),
    Example(f"{DENSE}/dense_gemm.py", f"{SMALL} --ab_dtype Int8 --c_dtype Int32 --acc_dtype Int32"),
    *(
        Example(
            f"{DENSE}/dense_gemm_persistent.py",
            "--mnkl 512,512,128,1 --use_2cta_instrs --mma_tiler_mn 256,128 --cluster_shape_mn 2,1"
            " --use_tma_store",
            name,
        )
        for name in ("sm_100a", "sm_103a")
    ),
    *(
        Example(f"{DENSE}/dense_gemm_{kind}.py", SMALL)
        for kind in ("persistent_prefetch", "alpha_beta_persistent", "software_pipeline")
    ),
    Example(f"{BLACKWELL}/attention/fmha/fmha.py", FMHA),
    Example(f"{BLACKWELL}/attention/fmha/fmha.py", f"{FMHA} --is_causal --is_persistent"),
    Example(f"{BLACKWELL}/attention/fmha/fmha.py", f"{FMHA} --in_dtype Float8E4M3FN"),
    *(
        Example(
            f"{BLACKWELL}/attention/mla/mla_decode_{dtype}.py", "--batch_size 1 --seq_len_k 256"
        )
        for dtype in ("fp16", "fp8")
    ),
    *(
        Example(f"{HOPPER}/dense_gemm/{kind}.py", SMALL, "sm_90a")
        for kind in ("dense_gemm_persistent", "dense_gemm_fp8_2xacc")
    ),
    Example(f"{BLACKWELL}/blockwise_gemm/blockwise_gemm.py", "--mnkl 256,256,256,1"),
    Example(
        f"{BLACKWELL}/grouped_gemm/grouped_gemm.py",
        "--num_groups 2 --problem_sizes_mnkl (128,128,64,1),(128,256,128,1)",
    ),
    Example(f"{HOPPER}/cta_norm/cta_norm.py", "--M 8 --N 1024", "sm_90a"),
    Example(
        f"{HOPPER}/grouped_gemm/grouped_gemm.py",
        "--num_groups 2 --problem_sizes_mnkl (128,128,64,1),(128,256,128,1)",
        "sm_90a",
    ),
)

# What is wrong in some of them, by the schedule that shows it.  Results are right all the same: the
# memory is not given to others before it has been read.
MISTAKES = {
    # blocks end before their last stores of O have been read
    Example(f"{HOPPER}/attention/fmha.py", "--q_shape 1,256,2,64 --k_shape 1,256,2,64", "sm_90a"): (
        "late",
        ExitedSourceError,
    ),
    # tensor memory is given back by warps that do not wait for those that read dQ there
    Example(
        f"{BLACKWELL}/attention/fmha/fmha_bwd.py", "--s_q 256 --s_k 256 --h_q 2 --h_k 1 --b 1"
    ): ("eager", UnallocatedColumnsError),
}


@pytest.fixture
def folder(request: pytest.FixtureRequest) -> Path:
    given = request.config.getoption("cutlass_examples")
    if given is None:
        pytest.skip("needs --cutlass-examples")
    return Path(given)


def run(folder: Path, example: Example, schedule: str) -> set[str]:
    """Run a script, and return digests of the memory that it gave to the device, but addresses."""
    script = folder / example.script
    with (
        pytest.MonkeyPatch.context() as patch,
        Device(example.name, schedule=schedule, seed=1) as device,
        cuda_torch(device),
    ):
        patch.setattr("sys.argv", [str(script), *example.arguments.split()])
        patch.syspath_prepend(str(script.parent))
        torch.manual_seed(0)
        try:
            runpy.run_path(str(script), run_name="__main__")
        except SystemExit as end:
            assert not end.code
        assert device.launches and all(launch.run for launch in device.launches)
        return {
            hashlib.sha256(ctypes.string_at(a.start, a.stop - a.start)).hexdigest()
            for a in device.allocations
            if a.owner.dtype is not torch.int64
        }


def check(folder: Path, example: Example, schedules: list[str]) -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)  # which fills torch.empty, too
    try:
        results = [run(folder, example, schedule) for schedule in schedules]
    finally:
        torch.use_deterministic_algorithms(False)
    for other in results[1:]:
        assert other == results[0]


@pytest.mark.parametrize("example", FEW, ids=lambda e: f"{Path(e.script).stem}-{e.arguments}")
def test_an_example_passes_its_own_check(folder: Path, example: Example) -> None:
    check(folder, example, ["priority"])


@pytest.mark.full
@pytest.mark.parametrize(
    "example", (*FEW, *MANY), ids=lambda e: f"{e.name}-{Path(e.script).stem}-{e.arguments}"
)
def test_examples_give_the_same_in_any_order(folder: Path, example: Example) -> None:
    check(folder, example, ["eager", "late", "random", "priority"])


@pytest.mark.full
@pytest.mark.parametrize("example", MISTAKES, ids=lambda e: f"{e.name}-{Path(e.script).stem}")
def test_mistakes_of_examples_are_found(folder: Path, example: Example) -> None:
    schedule, error = MISTAKES[example]
    with pytest.raises(error):
        run(folder, example, schedule)
