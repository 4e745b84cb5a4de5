"""Rows of the table of instructions for matrices and tensor memory.

`flexfa4.emulator.ptx.table` tells what a row is, and joins these to the others.

What this module deliberately does not do: say how an instruction is executed.
"""

from __future__ import annotations

from flexfa4.emulator.ptx.architectures import BLACKWELL, HOPPER
from flexfa4.emulator.ptx.forms import Row

_MMA = "[d@tensor], {a}, b_desc:b64, idesc:b32"
_A_SHARED, _A_REGISTERS, _A_TENSOR = "a_desc:b64", "a:b32*4", "[a@tensor]"
_WGMMA_TAIL = "b_desc:b64, scale_d:pred, scale_a#s32, scale_b#s32"

# shapes of loads and stores of tensor memory, and how often each may be repeated
_TENSOR_SHAPES = (
    ("32x32b", "tmem_times"),
    ("16x64b", "tmem_times"),
    ("16x128b", "tmem_times_64"),
    ("16x256b", "tmem_times_32"),
)

MATRIX_ROWS: tuple[Row, ...] = (
    # ---- matrices of a warp
    ("ldmatrix.sync.aligned.m8n8", ".times{.trans}{.cta_space}.b16", "d=b32*times, [a@cta_space]"),
    (
        "ldmatrix.sync.aligned.m16n16",
        ".few_times.trans{.cta_space}.b8",
        "d=b32*pairs, [a@cta_space]",
        BLACKWELL,
    ),
    (
        "ldmatrix.sync.aligned.m8n16",
        ".times{.cta_space}.b8x16.packed_source",
        "d=b32*times, [a@cta_space]",
        BLACKWELL,
    ),
    ("stmatrix.sync.aligned.m8n8", ".times{.trans}{.cta_space}.b16", "[a@cta_space], b:b32*times"),
    (
        "stmatrix.sync.aligned.m16n8",
        ".times.trans{.cta_space}.b8",
        "[a@cta_space], b:b32*times",
        BLACKWELL,
    ),
    ("movmatrix.sync.aligned.m8n8.trans", ".b16", "d=b32, a:b32"),
    *(
        (
            "mma.sync.aligned",
            f".m16n8k{k}.row.col{saturation}.{d}.{a}.{b}.{d}",
            f"d=b32*{2 if d == 'f16' else 4}, a:b32*{k * bits // 64}, b:b32*{k * bits // 128},"
            f" c:b32*{2 if d == 'f16' else 4}",
        )
        for a, b, bits, sizes, results, saturation in (
            ("f16", "f16", 16, (8, 16), ("f16", "f32"), ""),
            ("bf16", "bf16", 16, (8, 16), ("f32",), ""),
            ("tf32", "tf32", 32, (4, 8), ("f32",), ""),
            ("a_fp8", "b_fp8", 8, (16, 32), ("f16", "f32"), ""),
            ("a_int8", "b_int8", 8, (16, 32), ("s32",), "{.satfinite}"),
        )
        for k in sizes
        for d in results
    ),
    # ---- matrices of a warpgroup
    ("wgmma.fence.sync.aligned wgmma.commit_group.sync.aligned", "", "", HOPPER),
    ("wgmma.wait_group.sync.aligned", "", "n#u32", HOPPER),
    *(
        (
            "wgmma.mma_async.sync.aligned",
            f".{shape}.{result}.{a_type}.{b_type}",
            f"d+={register}*wgmma_{result}, {a}, {_WGMMA_TAIL}{', trans_a#s32' if trans_a else ''}"
            f"{', trans_b#s32' if shape == 'wgmma_k16' else ''}",
            HOPPER,
        )
        for shape, result, register, a_type, b_type in (
            ("wgmma_k16", "f32", "f32", "f16", "f16"),
            ("wgmma_k16", "f16", "b32", "f16", "f16"),
            ("wgmma_k16", "f32", "f32", "bf16", "bf16"),
            ("wgmma_k8", "f32", "f32", "tf32", "tf32"),
            ("wgmma_k32", "f32", "f32", "a_fp8", "b_fp8"),
            ("wgmma_k32", "f16", "b32", "a_fp8", "b_fp8"),
        )
        for a, trans_a in ((_A_SHARED, shape == "wgmma_k16"), (_A_REGISTERS, False))
    ),
    *(
        (
            "wgmma.mma_async.sync.aligned",
            ".wgmma_k32_int{.satfinite}.s32.a_int8.b_int8",
            f"d+=s32*wgmma_f32, {a}, b_desc:b64, scale_d:pred",
            HOPPER,
        )
        for a in (_A_SHARED, _A_REGISTERS)
    ),
    # ---- tensor memory
    (
        "tcgen05.alloc",
        ".cta_group.sync.aligned{.own_space}.b32",
        "[d@own_space], columns:u32",
        BLACKWELL,
    ),
    ("tcgen05.dealloc", ".cta_group.sync.aligned.b32", "a:b32, columns:u32", BLACKWELL),
    ("tcgen05.relinquish_alloc_permit", ".cta_group.sync.aligned", "", BLACKWELL),
    *(
        (
            "tcgen05.ld.sync.aligned",
            f".{shape}.{times}{{.pack::16b}}.b32",
            "d=b32*tmem, [a@tensor]",
            BLACKWELL,
        )
        for shape, times in _TENSOR_SHAPES
    ),
    (
        "tcgen05.ld.sync.aligned.16x32bx2",
        ".tmem_times{.pack::16b}.b32",
        "d=b32*tmem, [a@tensor], split#u32",
        BLACKWELL,
    ),
    (
        "tcgen05.ld.red.sync.aligned",
        ".32x32b.tmem_times_more.min_max{.abs}{.NaN}.f32",
        "d=f32*tmem, reduced=f32, [a@tensor]",
        frozenset({"sm_103a"}),
    ),
    (
        "tcgen05.ld.red.sync.aligned",
        ".32x32b.tmem_times_more.min_max.word",
        "d=word*tmem, reduced=word, [a@tensor]",
        frozenset({"sm_103a"}),
    ),
    *(
        (
            "tcgen05.st.sync.aligned",
            f".{shape}.{times}{{.unpack::16b}}.b32",
            "[a@tensor], b:b32*tmem",
            BLACKWELL,
        )
        for shape, times in _TENSOR_SHAPES
    ),
    (
        "tcgen05.st.sync.aligned.16x32bx2",
        ".tmem_times{.unpack::16b}.b32",
        "[a@tensor], split#u32, b:b32*tmem",
        BLACKWELL,
    ),
    ("tcgen05.wait::ld.sync.aligned tcgen05.wait::st.sync.aligned", "", "", BLACKWELL),
    ("tcgen05.fence::before_thread_sync tcgen05.fence::after_thread_sync", "", "", BLACKWELL),
    ("tcgen05.shift", ".cta_group.down", "[a@tensor]", BLACKWELL),
    (
        "tcgen05.cp",
        ".cta_group.cp_shape{.b8x16.packed_source}",
        "[d@tensor], s_desc:b64",
        BLACKWELL,
    ),
    (
        "tcgen05.cp",
        ".cta_group.64x128b.cp_64{.b8x16.packed_source}",
        "[d@tensor], s_desc:b64",
        BLACKWELL,
    ),
    (
        "tcgen05.cp",
        ".cta_group.32x128b.warpx4{.b8x16.packed_source}",
        "[d@tensor], s_desc:b64",
        BLACKWELL,
    ),
    (
        "tcgen05.commit",
        ".cta_group.mbarrier::arrive::one{.cluster_space}{.multicast}.b64",
        "[barrier@cluster_space], ctas:b16 if multicast",
        BLACKWELL,
    ),
    # ---- matrices in tensor memory
    *(
        (
            "tcgen05.mma",
            f".cta_group.{kind}{shift}{{.collector}}",
            f"{_MMA.format(a=a)}{lanes}, accumulate:pred{scale}",
            targets,
        )
        for kind, scale, targets in (
            ("mma_kind", "", BLACKWELL),
            ("scaling_kind", ", scale_d#u32", BLACKWELL),
            ("kind::i8", "", frozenset({"sm_100a"})),
        )
        for a, shift in ((_A_SHARED, ""), (_A_TENSOR, "{.ashift}"))
        for lanes in ("", ", disabled_lanes:b32*lane_masks")
    ),
    *(
        (
            "tcgen05.mma",
            f".cta_group.{kind}.block_scale{scales}{{.collector}}",
            f"{_MMA.format(a=a)}, [scale_a@tensor], [scale_b@tensor], accumulate:pred",
            BLACKWELL,
        )
        for kind, scales in (
            ("kind::mxf8f6f4", "{.mx8_scales}"),
            ("kind::mxf4", "{.mx4_scales}"),
            ("kind::mxf4nvf4", ".nvf4_scales"),
        )
        for a in (_A_SHARED, _A_TENSOR)
    ),
)
