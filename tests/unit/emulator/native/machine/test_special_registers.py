"""Special registers: where a thread is in its warp, block, cluster and grid."""

from __future__ import annotations

import pytest

from flexfa4.emulator import load
from tests.ptx_programs import run_instruction

LANES = list(range(32))


def special(name: str, **setting: object) -> list[int]:
    return run_instruction(f"mov.u32 d, %{name};", {}, "d:u32", **setting)["d"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("laneid", LANES),
        ("tid.x", LANES),
        ("tid.y", [0] * 32),
        ("ntid.x", [32] * 32),
        ("warpid", [0] * 32),
        ("nwarpid", [1] * 32),
        ("lanemask_eq", [1 << lane for lane in LANES]),
        ("lanemask_lt", [(1 << lane) - 1 for lane in LANES]),
        ("lanemask_le", [(2 << lane) - 1 for lane in LANES]),
        ("lanemask_gt", [(1 << 32) - (2 << lane) for lane in LANES]),
        ("lanemask_ge", [(1 << 32) - (1 << lane) for lane in LANES]),
        ("cluster_ctarank", [0] * 32),
        ("cluster_nctarank", [1] * 32),
        ("dynamic_smem_size", [0] * 32),
    ],
)
def test_a_thread_alone(name: str, expected: list[int]) -> None:
    assert special(name) == expected


def test_blocks_and_clusters_of_a_grid() -> None:
    grid = {"grid": 6, "cluster": 2}
    blocks = [block for block in range(6) for _ in range(32)]
    assert special("ctaid.x", **grid) == blocks
    assert special("nctaid.x", **grid) == [6] * 192
    assert special("clusterid.x", **grid) == [block // 2 for block in blocks]
    assert special("nclusterid.x", **grid) == [3] * 192
    assert special("cluster_ctaid.x", **grid) == [block % 2 for block in blocks]
    assert special("cluster_ctarank", **grid) == [block % 2 for block in blocks]
    assert special("cluster_nctarank", **grid) == [2] * 192


def test_threads_are_numbered_along_x_then_y_then_z() -> None:
    import torch

    ptx = """
    .version 8.8
    .target sm_100a
    .address_size 64
    .visible .entry where(.param .u64 out) {
        .reg .b32 x, y, z, n, m, t;
        .reg .b64 out_, at;
        ld.param.u64 out_, [out];
        mov.u32 x, %tid.x; mov.u32 y, %tid.y; mov.u32 z, %tid.z;
        mov.u32 n, %ntid.x; mov.u32 m, %ntid.y;
        mad.lo.u32 t, z, m, y;
        mad.lo.u32 t, t, n, x;
        mul.wide.u32 at, t, 4;
        add.u64 at, at, out_;
        mov.u32 n, %laneid; mov.u32 m, %warpid;
        mad.lo.u32 n, m, 32, n;
        st.global.u32 [at], n;
        ret;
    }
    """
    out = torch.full((5 * 3 * 4,), -1, dtype=torch.int32)
    load(ptx).run(grid=1, block=(5, 3, 4), args=[out])
    assert out.tolist() == list(range(60))
