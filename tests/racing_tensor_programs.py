"""Small kernels of tensor cores that are free of races, and edits that seed one.

See `tests.racing_programs`, which these are more of.
"""

from __future__ import annotations

from tests.racing_programs import INIT, Program, Seed, wait

# Descriptors of 128 rows of 64 bytes with the 64-byte swizzle; f16 times f16 to f32, 128 x 64.
ALLOCATE = """
    @w0 tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [tensors], 64;
    bar.sync 0;
    ld.shared.u32 cell, [tensors];
    shl.b32 x, warp, 21;
    add.u32 y, cell, x;
"""
FREE = "bar.sync 0; @w0 tcgen05.dealloc.cta_group::1.sync.aligned.b32 cell, 64;"
ZERO_ROOM = (
    "mov.u32 x, t; ZERO: shl.b32 far, x, 2; add.u32 far, a, far; st.shared.u32 [far], 0;"
    " add.u32 x, x, 128; setp.lt.u32 more, x, 4096; @more bra ZERO; fence.proxy.async; bar.sync 0;"
)
# start >> 4, strides of 512 bytes, version 1, the swizzle of 64 bytes
DESCRIPTOR = (
    "shr.u32 x, a, 4; and.b32 x, x, 16383; cvt.u64.u32 desc, x; or.b64 desc, desc,"
    f" {32 << 32 | 1 << 46 | 4 << 61:#x};"
)
IDESC = 1 << 4 | (64 >> 3) << 17 | (128 >> 4) << 24
MMA = f"@one tcgen05.mma.cta_group::1.kind::f16 [cell], desc, desc, {IDESC}, 0;"
TENSOR_COMMIT = "@one tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [f];"
TENSOR_LOAD = "tcgen05.ld.sync.aligned.32x32b.x1.b32 {r0}, [y];"
TENSOR_STORE = "tcgen05.st.sync.aligned.32x32b.x1.b32 [y], {t};"

TENSOR_PROGRAMS = (
    Program(
        "a product and its result",
        ALLOCATE
        + INIT
        + ZERO_ROOM
        + DESCRIPTOR
        + f"{MMA} {TENSOR_COMMIT} {wait('full', 0, 'WAIT')} {TENSOR_LOAD}"
        " @w0 st.shared.u32 [at], r0;" + FREE,
        (
            Seed("no wait before the result is read", wait("full", 0, "WAIT")),
            Seed(
                "the commit comes before the product",
                f"{MMA} {TENSOR_COMMIT}",
                f"{TENSOR_COMMIT} {MMA}",
            ),
            Seed(
                "no fence between stores and the product",
                "fence.proxy.async;",
                "",
                "MissingProxyFenceError",
            ),
            Seed(
                "the factors are overwritten",
                f"{TENSOR_COMMIT} {wait('full', 0, 'WAIT')}",
                f"{TENSOR_COMMIT} st.shared.u32 [at], 1; {wait('full', 0, 'WAIT')}",
            ),
        ),
        threads=128,
    ),
    Program(
        "a product over what warps have read and stored",
        ALLOCATE
        + INIT
        + ZERO_ROOM
        + DESCRIPTOR
        + f"{TENSOR_STORE} tcgen05.wait::st.sync.aligned; {TENSOR_LOAD} bar.sync 0;"
        f" {MMA} {TENSOR_COMMIT} {wait('full', 0, 'WAIT')}" + FREE,
        (
            Seed("the store is not waited for", "tcgen05.wait::st.sync.aligned;"),
            Seed("no barrier before the product", TENSOR_LOAD + " bar.sync 0;", TENSOR_LOAD),
        ),
        threads=128,
    ),
    Program(
        "wgmma and its factors",
        ZERO_ROOM
        + DESCRIPTOR.replace(hex(32 << 32 | 1 << 46 | 4 << 61), hex(32 << 32 | 2 << 62))
        + " wgmma.fence.sync.aligned; wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16"
        " {r0, r1, r2, r3}, desc, desc, yes, 1, 1, 0, 0; wgmma.commit_group.sync.aligned;"
        " wgmma.wait_group.sync.aligned 0; bar.sync 0; @w0 st.shared.u32 [at], t;",
        (
            Seed("no fence", "wgmma.fence.sync.aligned;", "", "WgmmaFenceError"),
            Seed("no wait", "wgmma.wait_group.sync.aligned 0;"),
            Seed("the group is still open", "wgmma.commit_group.sync.aligned;"),
            Seed(
                "a wait for all but one", "wait_group.sync.aligned 0", "wait_group.sync.aligned 1"
            ),
        ),
        target="sm_90a",
        threads=128,
    ),
)
