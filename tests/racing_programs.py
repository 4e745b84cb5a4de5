"""Small kernels that are free of races, and edits that seed one: the bench of the race detector.

Each program is a kernel of two warps or more; each `Seed` replaces a part of its text.  Warps are
told apart by predicates: ``w0`` holds in warp 0, ``w1`` in warp 1, ``one`` in thread 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from flexfa4.emulator import Run, load

HEADER = """
.version 8.8
.target {target}
.address_size 64
.visible .entry program(.param .u64 in, .param .u64 out) {{
    .shared .align 1024 .b8 room[16384];
    .shared .align 8 .b64 full;
    .shared .align 8 .b64 empty;
    .shared .align 4 .b32 tensors;
    .reg .pred w0, w1, one, done, more, yes;
    .reg .b32 t, warp, rank, block, x, y, at, a, f, e, cell, far, r<8>;
    .reg .b64 source, sink, wide, desc;
    ld.param.u64 source, [in];
    ld.param.u64 sink, [out];
    mov.u32 t, %tid.x;
    mov.u32 block, %ctaid.x;
    mov.u32 rank, %cluster_ctarank;
    shr.u32 warp, t, 5;
    setp.eq.u32 w0, warp, 0;
    setp.eq.u32 w1, warp, 1;
    setp.eq.u32 one, t, 0;
    setp.eq.u32 yes, 0, 0;
    mov.u32 a, room;
    mov.u32 f, full;
    mov.u32 e, empty;
    and.b32 at, t, 31;
    shl.b32 at, at, 2;
    add.u32 at, at, a;
"""
FOOTER = """
    ret;
}
"""


CONSEQUENCES = frozenset(
    {
        "InFlightError",
        "ExitedBlockError",
        "ExitedDestinationError",
        "ExitedSourceError",
        "NoMbarrierError",
    }
)
"""Errors that tell of a race by what came of it."""


@dataclass(frozen=True)
class Seed:
    """An edit that seeds a race.

    Attributes:
        name: what is wrong then.
        old: text that is replaced, wherever it stands.
        new: what stands there instead.
        error: name of the class of errors that is reported; where a schedule lets the race happen,
            one of `CONSEQUENCES` may be.
    """

    name: str
    old: str
    new: str = ""
    error: str = "RaceError"


@dataclass(frozen=True)
class Program:
    """A kernel without races, and how to break it.

    Attributes:
        name: what it does.
        body: its instructions.
        seeds: edits.
        target: architecture.
        threads: of a block.
        grid: blocks.
        cluster: blocks of a cluster.
        size: numbers in the buffers.
    """

    name: str
    body: str
    seeds: tuple[Seed, ...]
    target: str = "sm_100a"
    threads: int = 64
    grid: int = 1
    cluster: int = 1
    size: int = 4096

    def run(self, seed: Seed | None = None, schedule: str = "eager", number: int = 0) -> Run:
        """Run it, or what the edit makes of it."""
        text = HEADER.format(target=self.target) + self.body + FOOTER
        if seed is not None:
            assert seed.old in text, f"{self.name}: {seed.old!r} is not there"
            text = text.replace(seed.old, seed.new)
        numbers = torch.arange(self.size, dtype=torch.int32)
        return load(text).run(
            grid=self.grid,
            block=self.threads,
            cluster=self.cluster,
            args=[numbers, torch.zeros_like(numbers)],
            schedule=schedule,
            seed=number,
            check="races",
        )


def wait(barrier: str, parity: int, label: str) -> str:
    """Instructions that wait for a phase of an mbarrier."""
    return (
        f"{label}: mbarrier.try_wait.parity.shared.b64 done, [{barrier}], {parity};"
        f" @!done bra {label};"
    )


INIT = """
    @one mbarrier.init.shared.b64 [full], 1;
    @one mbarrier.init.shared.b64 [empty], 1;
    bar.sync 0;
"""
COPY = (
    "@one cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [room], [source], 512,"
    " [full];"
)
EXPECT = "@one mbarrier.arrive.expect_tx.shared.b64 _, [full], 512;"
CLUSTER_MEETS = "barrier.cluster.arrive; barrier.cluster.wait;"
STORE_OUT = "@one cp.async.bulk.global.shared::cta.bulk_group [sink], [room], 512;"
COMMIT = "@one cp.async.bulk.commit_group;"

PROGRAMS = (
    Program(
        "a store, a named barrier and a load",
        "@w0 st.shared.u32 [at], t; bar.sync 1, 64; @w1 ld.shared.u32 x, [at];",
        (
            Seed("no barrier", "bar.sync 1, 64;"),
            Seed(
                "another barrier for each warp",
                "bar.sync 1, 64;",
                "add.u32 x, warp, 1; bar.sync x, 32;",
            ),
            Seed(
                "the store comes after the barrier",
                "@w0 st.shared.u32 [at], t; bar.sync 1, 64;",
                "bar.sync 1, 64; @w0 st.shared.u32 [at], t;",
            ),
            Seed(
                "the other warp writes what is read",
                "@w1 ld.shared.u32 x, [at];",
                "@w1 ld.shared.u32 x, [at]; @w0 st.shared.u32 [at], warp;",
            ),
        ),
    ),
    Program(
        "two warps add to one word",
        "@one st.shared.u32 [room], 0; bar.sync 0; red.shared.add.u32 [room], 1; bar.sync 0;"
        " ld.shared.u32 x, [room];",
        (
            Seed(
                "one of them stores",
                "red.shared.add.u32 [room], 1;",
                "@w0 red.shared.add.u32 [room], 1; @w1 st.shared.u32 [room], 1;",
            ),
            Seed("it is read without a barrier", "bar.sync 0; ld.shared.u32", "ld.shared.u32"),
            Seed(
                "one of them reads it without a barrier",
                "bar.sync 0; ld.shared.u32",
                "@w1 ld.shared.u32",
            ),
        ),
    ),
    Program(
        "the last warp that adds to a word reads it",
        "@one st.shared.u32 [room], 0; bar.sync 0; and.b32 x, t, 31; setp.ne.u32 more, x, 0;"
        " @more bra END; atom.acq_rel.cta.shared.add.u32 x, [room], 1; setp.ne.u32 more, x, 3;"
        " @more bra END; ld.shared.u32 y, [room]; END:",
        (
            Seed("the sum is relaxed", "acq_rel", "relaxed"),
            Seed("the sum does not acquire", "acq_rel", "release"),
            Seed("the sum does not release", "acq_rel", "acquire"),
            Seed("it is not cleared in time", "[room], 0; bar.sync 0;", "[room], 0;"),
        ),
        threads=128,
    ),
    Program(
        "what several warps have read is written",
        "ld.shared.u32 x, [at]; bar.sync 0; @w1 st.shared.u32 [at], t;",
        (
            Seed("no barrier", "bar.sync 0;"),
            Seed(
                "a barrier of two of them",
                "bar.sync 0;",
                "setp.lt.u32 more, t, 64; @more bar.sync 1, 64;",
            ),
            Seed(
                "they read bytes of it",
                "ld.shared.u32 x, [at]; bar.sync 0;",
                "add.u32 f, at, warp; ld.shared.u8 x, [f];",
            ),
        ),
        threads=128,
    ),
    Program(
        "strong and weak loads of a word that nobody writes meanwhile",
        "@one st.shared.u32 [room], 1; bar.sync 0; @w0 ld.volatile.shared.u32 x, [room];"
        " @w1 ld.shared.u32 y, [room];",
        (
            Seed("a weak store", "@w1 ld.shared.u32 y, [room]", "@w1 st.shared.u32 [room], y"),
            Seed(
                "a strong store", "ld.volatile.shared.u32 x, [room]", "red.shared.add.u32 [room], 1"
            ),
        ),
    ),
    Program(
        "warps write the bytes of a word",
        "add.u32 e, at, warp; st.shared.u8 [e], t; bar.sync 0; @w1 ld.shared.u32 x, [at];",
        (
            Seed("no barrier", "bar.sync 0;"),
            Seed("a byte is read too early", "bar.sync 0; @w1 ld.shared.u32", "@w1 ld.shared.u8"),
            Seed("a byte is written again", "bar.sync 0;", "@w1 st.shared.u8 [at], t; bar.sync 0;"),
        ),
        threads=128,
    ),
    Program(
        "warps store one value to a word of global memory",
        "and.b32 x, t, 31; setp.ne.u32 more, x, 0; @more bra MEET; st.global.u32 [sink], 7;"
        " MEET: bar.sync 0; @one st.global.u32 [sink], 8;",
        (
            Seed("another value before the barrier", "bar.sync 0; @one", "@w1"),
            Seed("no barrier", "bar.sync 0;"),
        ),
    ),
    Program(
        "a store handed over by an mbarrier",
        INIT + "@!w0 bra READ; st.shared.u32 [at], t; bar.warp.sync -1;"
        " @one mbarrier.arrive.shared.b64 _, [full]; bra END;"
        f" READ: {wait('full', 0, 'WAIT')} ld.shared.u32 x, [at]; END:",
        (
            Seed("no wait", wait("full", 0, "WAIT")),
            Seed("a wait for the phase before", wait("full", 0, "WAIT"), wait("full", 1, "WAIT")),
            Seed(
                "the arrival comes first",
                "st.shared.u32 [at], t; bar.warp.sync -1;"
                " @one mbarrier.arrive.shared.b64 _, [full];",
                "@one mbarrier.arrive.shared.b64 _, [full]; st.shared.u32 [at], t;",
            ),
            Seed(
                "a relaxed arrival",
                "@one mbarrier.arrive.shared.b64",
                "@one mbarrier.arrive.relaxed.cta.shared::cta.b64",
            ),
            Seed("barriers used before their initialisation is known", "bar.sync 0;"),
        ),
    ),
    Program(
        "cp.async and a named barrier",
        "mul.wide.u32 wide, t, 16; add.u64 wide, source, wide; shl.b32 x, t, 4; add.u32 x, a, x;"
        " cp.async.cg.shared.global [x], [wide], 16; cp.async.commit_group;"
        " cp.async.wait_group 0; bar.sync 0; xor.b32 y, x, 512; ld.shared.u32 r0, [y];",
        (
            Seed("no wait", "cp.async.wait_group 0;"),
            Seed("a wait for all but one group", "wait_group 0", "wait_group 1"),
            Seed("no barrier", "bar.sync 0;"),
        ),
    ),
    Program(
        "a bulk copy into shared memory, used twice",
        INIT + f"{EXPECT} {COPY} {wait('full', 0, 'FIRST')} ld.shared.u32 x, [at]; bar.sync 0;"
        f" {EXPECT} {COPY} {wait('full', 1, 'SECOND')} ld.shared.u32 x, [at];",
        (
            Seed("no wait for the first", wait("full", 0, "FIRST")),
            Seed("no wait for the second", wait("full", 1, "SECOND")),
            Seed(
                "the block may end before the second",
                f"{wait('full', 1, 'SECOND')} ld.shared.u32 x, [at];",
                "",
                "BlockEndError",
            ),
            Seed(
                "the room is not free yet",
                f"ld.shared.u32 x, [at]; bar.sync 0; {EXPECT} {COPY}",
                f"bar.sync 0; {EXPECT} {COPY} ld.shared.u32 x, [at];",
            ),
            Seed(
                "two copies to one place",
                COPY,
                COPY
                + COPY.replace("source", "source+512")
                + EXPECT.replace("arrive.expect_tx", "expect_tx").replace(" _,", ""),
            ),
        ),
    ),
    Program(
        "a bulk copy out of shared memory",
        "@w1 st.shared.u32 [at], t; fence.proxy.async;"
        f" bar.sync 0; {STORE_OUT} {COMMIT} @one cp.async.bulk.wait_group.read 0;"
        " bar.sync 0; @w1 st.shared.u32 [at], 0;",
        (
            Seed("no fence", "fence.proxy.async;", "", "MissingProxyFenceError"),
            Seed(
                "the fence comes before the stores",
                "@w1 st.shared.u32 [at], t; fence.proxy.async;",
                "fence.proxy.async; @w1 st.shared.u32 [at], t;",
                "MissingProxyFenceError",
            ),
            Seed("no barrier before", "fence.proxy.async; bar.sync 0;", "fence.proxy.async;"),
            Seed("no wait after", "@one cp.async.bulk.wait_group.read 0;"),
            Seed("no group to wait for", COMMIT),
            Seed(
                "no barrier after",
                "@one cp.async.bulk.wait_group.read 0; bar.sync 0;",
                "@one cp.async.bulk.wait_group.read 0;",
            ),
        ),
    ),
    Program(
        "a bulk copy to global memory that is read again",
        "@w0 st.shared.u32 [at], t; fence.proxy.async; bar.sync 0;"
        f" {STORE_OUT.replace('512', '128')} {COMMIT}"
        " @one cp.async.bulk.wait_group 0; @one ld.global.u32 x, [sink];",
        (
            Seed("the wait is for reads only", "wait_group 0", "wait_group.read 0"),
            Seed("no wait", "@one cp.async.bulk.wait_group 0;"),
            Seed(
                "the block may end before it is read",
                "@one cp.async.bulk.wait_group 0; @one ld.global.u32 x, [sink];",
                "",
                "ExitedSourceError",
            ),
        ),
    ),
    Program(
        "a flag in global memory between blocks",
        "setp.ne.u32 more, block, 0; @more bra GET; @one st.global.u32 [sink+64], 7;"
        " @one red.release.gpu.global.add.u32 [sink], 1; bra END;"
        " GET: ld.acquire.gpu.global.u32 x, [sink]; setp.eq.u32 done, x, 0; @done bra GET;"
        " ld.global.u32 y, [sink+64]; END:",
        (
            Seed(
                "the flag is raised first",
                "@one st.global.u32 [sink+64], 7; @one red.release.gpu.global.add.u32 [sink], 1;",
                "@one red.release.gpu.global.add.u32 [sink], 1; @one st.global.u32 [sink+64], 7;",
            ),
            Seed("the flag is raised relaxed", "red.release", "red.relaxed"),
            Seed("the flag is read relaxed", "ld.acquire", "ld.relaxed"),
            Seed("the flag is raised for its block", "red.release.gpu", "red.release.cta"),
            Seed("the flag is raised for its cluster", "red.release.gpu", "red.release.cluster"),
            Seed("the flag is read for its block", "ld.acquire.gpu", "ld.acquire.cta"),
            Seed(
                "the flag is read weakly",
                "ld.acquire.gpu.global.u32 x, [sink]",
                "ld.global.u32 x, [sink]",
            ),
        ),
        grid=2,
    ),
    Program(
        "a flag with fences around relaxed accesses",
        "setp.ne.u32 more, block, 0; @more bra GET; @one st.global.u32 [sink+64], 7;"
        " fence.acq_rel.gpu; @one red.relaxed.gpu.global.add.u32 [sink], 1; bra END;"
        " GET: ld.relaxed.gpu.global.u32 x, [sink]; setp.eq.u32 done, x, 0; @done bra GET;"
        " membar.gl; ld.global.u32 y, [sink+64]; END:",
        (
            Seed("no fence before", "fence.acq_rel.gpu;"),
            Seed("no fence after", "membar.gl;"),
            Seed("a fence for the block before", "fence.acq_rel.gpu", "fence.acq_rel.cta"),
            Seed("a fence for the cluster before", "fence.acq_rel.gpu", "fence.acq_rel.cluster"),
            Seed("a fence that only acquires before", "fence.acq_rel.gpu", "fence.acquire.gpu"),
            Seed("a fence for the block after", "membar.gl", "membar.cta"),
            Seed("a fence that only releases after", "membar.gl", "fence.release.gpu"),
            Seed(
                "a fence for mbarriers", "fence.acq_rel.gpu", "fence.mbarrier_init.release.cluster"
            ),
            Seed("a proxy fence", "fence.acq_rel.gpu", "fence.proxy.async"),
        ),
        grid=2,
    ),
    Program(
        "the last of the blocks adds up what all have written",
        "mul.lo.u32 x, block, 256; mad.lo.u32 x, t, 4, x; cvt.u64.u32 wide, x;"
        " add.u64 wide, sink, wide; st.global.u32 [wide+256], t; membar.gl; bar.sync 0;"
        " @one atom.global.add.u32 x, [sink], 1; @one st.shared.u32 [room], x; bar.sync 1;"
        " ld.shared.u32 x, [room]; setp.ne.u32 done, x, 1; @done bra END;"
        " fence.acq_rel.gpu; mul.wide.u32 wide, t, 4; add.u64 wide, sink, wide;"
        " ld.global.u32 x, [wide+256]; END:",
        (
            Seed("no fence before the count", "membar.gl;"),
            Seed("no fence behind it", "fence.acq_rel.gpu;"),
            Seed("a fence for the block before the count", "membar.gl", "membar.cta"),
            Seed("a fence for the block behind it", "fence.acq_rel.gpu", "fence.acq_rel.cta"),
            Seed("the count is for the block", "atom.global.add", "atom.relaxed.cta.global.add"),
        ),
        grid=2,
    ),
    Program(
        "blocks write to places of their own",
        "shl.b32 x, block, 8; add.u32 x, x, t; mul.wide.u32 wide, x, 4; add.u64 wide, sink, wide;"
        " st.global.u32 [wide], block;",
        (Seed("to the same places", "shl.b32 x, block, 8;", "mov.u32 x, 0;"),),
        grid=2,
    ),
    Program(
        "a store to the other block of a cluster",
        f"{CLUSTER_MEETS} mapa.shared::cluster.u32 far, a, 1; setp.ne.u32 more, rank, 0;"
        " @more bra MEET; @one st.shared::cluster.u32 [far], 5; MEET: fence.acq_rel.cluster;"
        " barrier.cluster.arrive.relaxed; barrier.cluster.wait;"
        " @more ld.shared.u32 x, [room];",
        (
            Seed("no barrier", "barrier.cluster.arrive.relaxed; barrier.cluster.wait;"),
            Seed("the other need not have begun", CLUSTER_MEETS, "", "BlockStartError"),
            Seed("no fence before a relaxed arrival", "fence.acq_rel.cluster;"),
            Seed("a fence for the block", "fence.acq_rel.cluster", "fence.acq_rel.cta"),
            Seed("a fence that only acquires", "fence.acq_rel.cluster", "fence.acquire.cluster"),
            Seed(
                "a fence for mbarriers",
                "fence.acq_rel.cluster",
                "fence.mbarrier_init.release.cluster",
            ),
        ),
        grid=2,
        cluster=2,
    ),
    Program(
        "st.async to the other block of a cluster",
        "@one mbarrier.init.shared.b64 [full], 1; fence.mbarrier_init.release.cluster;"
        " barrier.cluster.arrive.relaxed; barrier.cluster.wait;"
        " @one mbarrier.arrive.expect_tx.shared.b64 _, [full], 4;"
        " xor.b32 x, rank, 1; mapa.shared::cluster.u32 far, a, x; mapa.shared::cluster.u32 y, f, x;"
        " @one st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [far], t, [y];"
        f" {wait('full', 0, 'WAIT')} ld.shared.u32 r0, [room]; barrier.cluster.arrive;"
        " barrier.cluster.wait;",
        (
            Seed("no wait", wait("full", 0, "WAIT")),
            Seed(
                "the other may have ended before the bytes arrive",
                f"{wait('full', 0, 'WAIT')} ld.shared.u32 r0, [room];",
                "",
                "BlockEndError",
            ),
            Seed(
                "the other's barrier may not be there yet", "fence.mbarrier_init.release.cluster;"
            ),
        ),
        grid=2,
        cluster=2,
    ),
)

FLAGS = (
    Program(
        "a flag in shared memory, with fences for the block",
        "@one st.shared.u32 [room+1024], 0; bar.sync 0; @w1 bra GET; st.shared.u32 [at], t;"
        " bar.warp.sync -1; fence.acq_rel.cta; @one st.relaxed.cta.shared.u32 [room+1024], 1;"
        " bra END; GET: ld.relaxed.cta.shared.u32 x, [room+1024]; setp.eq.u32 done, x, 0;"
        " @done bra GET; fence.acquire.cta; ld.shared.u32 y, [at]; END:",
        (
            Seed("no fence before", "fence.acq_rel.cta;"),
            Seed("no fence after", "fence.acquire.cta;"),
            Seed("a weak flag", "st.relaxed.cta", "st"),
        ),
    ),
    Program(
        "a flag in shared memory of another block",
        "mapa.shared::cluster.u32 far, a, 0; @one st.shared.u32 [room], 0;"
        f" {CLUSTER_MEETS} setp.ne.u32 more, rank, 0; @more bra GET;"
        " @one st.shared.u32 [room+4], 7;"
        " @one st.release.cluster.shared::cluster.u32 [far], 1; bra END;"
        " GET: ld.acquire.cluster.shared::cluster.u32 x, [far]; setp.eq.u32 done, x, 0;"
        f" @done bra GET; ld.shared::cluster.u32 y, [far+4]; END: {CLUSTER_MEETS}",
        (
            Seed("the flag is raised for its block", "st.release.cluster", "st.release.cta"),
            Seed("the flag is read for its block", "ld.acquire.cluster", "ld.acquire.cta"),
            Seed("the flag is raised relaxed", "st.release", "st.relaxed"),
            Seed("the flag is read relaxed", "ld.acquire", "ld.relaxed"),
        ),
        grid=2,
        cluster=2,
    ),
    Program(
        "a flag that is read for the GPU and then for the block",
        INIT + "@w1 bra RAISE; GET: ld.acquire.gpu.global.u32 x, [sink]; setp.eq.u32 done, x, 0;"
        f" @done bra GET; bar.arrive 1, 64; {wait('full', 0, 'WAIT')}"
        " ld.acquire.cta.global.u32 x, [sink]; ld.shared.u32 y, [room]; bra END;"
        " RAISE: setp.eq.u32 one, at, a; @one red.release.gpu.global.add.u32 [sink], 1;"
        " bar.sync 1, 64; @one st.shared.u32 [room], 1;"
        " @one red.release.cta.global.add.u32 [sink], 1;"
        " @one mbarrier.arrive.relaxed.cta.shared::cta.b64 _, [full]; END:",
        (
            Seed("the second time relaxed", "ld.acquire.cta", "ld.relaxed.cta"),
            Seed("raised relaxed the second time", "red.release.cta", "red.relaxed.cta"),
        ),
    ),
    Program(
        "a flag that one block raises for its own warps and for others",
        "@one st.global.u32 [sink+64], 7; @one st.release.gpu.global.u32 [sink], 1;"
        " GET: ld.acquire.cta.global.u32 x, [sink]; setp.eq.u32 done, x, 0; @done bra GET;"
        " ld.global.u32 y, [sink+64];",
        (
            Seed("it is read relaxed", "ld.acquire", "ld.relaxed"),
            Seed("it is raised relaxed", "st.release", "st.relaxed"),
        ),
    ),
    Program(
        "a bulk copy out of shared memory of the block, with the fence for that",
        "@w1 st.shared.u32 [at], t; fence.proxy.async.shared::cta;"
        f" bar.sync 0; {STORE_OUT.replace('512', '128')} {COMMIT}"
        " @one cp.async.bulk.wait_group.read 0;",
        (
            Seed("no fence", "fence.proxy.async.shared::cta;", "", "MissingProxyFenceError"),
            Seed("a fence for global memory", "shared::cta;", "global;", "MissingProxyFenceError"),
        ),
    ),
    Program(
        "a bulk copy of what a warp stored to global memory",
        INIT + f"@w1 st.global.u32 [source], 5; fence.proxy.async.global; bar.sync 0; {EXPECT}"
        f" {COPY} {wait('full', 0, 'WAIT')} ld.shared.u32 x, [at];",
        (
            Seed("no fence", "fence.proxy.async.global;", "", "MissingProxyFenceError"),
            Seed(
                "a fence for shared memory",
                "fence.proxy.async.global",
                "fence.proxy.async.shared::cluster",
                "MissingProxyFenceError",
            ),
        ),
    ),
    Program(
        "a bulk copy of what another block of the cluster stored",
        "barrier.cluster.arrive.relaxed; barrier.cluster.wait;"
        " mapa.shared::cluster.u32 far, at, 1; setp.ne.u32 more, rank, 0; @more bra MEET;"
        " st.shared::cluster.u32 [far], t; fence.proxy.async.shared::cluster;"
        f" MEET: {CLUSTER_MEETS} @!more bra END; {STORE_OUT.replace('512', '128')} {COMMIT}"
        " @one cp.async.bulk.wait_group.read 0; END:",
        (
            Seed("no fence", "fence.proxy.async.shared::cluster;", "", "MissingProxyFenceError"),
            Seed(
                "a fence for the own block",
                "fence.proxy.async.shared::cluster",
                "fence.proxy.async.shared::cta",
                "MissingProxyFenceError",
            ),
        ),
        threads=32,
        grid=2,
        cluster=2,
    ),
)
