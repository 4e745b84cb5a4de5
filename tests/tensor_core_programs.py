"""PTX programs for one product of the Blackwell tensor core, and matrices as bytes of its layouts.

A program copies images of A, B and the block scales from global to shared memory, gives the tensor
memory the old D (and A, where it lies there), issues one `tcgen05.mma`, waits, and writes tensor
memory back: all 128 lanes of as many columns as it has.  Blocks of a pair work on images of their
own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from flexfa4.emulator.kernel import Kernel, load
from flexfa4.emulator.results import Run

LANES = 128
COLUMNS = 512
HEADER = """
.version 8.7
.target {target}
.address_size 64
.visible .entry program(
    .param .u64 shared_image, .param .u64 tensor_image, .param .u64 result)
{clusters}.reqntid 128, 1, 1
{{
    .reg .pred %p<8>;
    .reg .b16 %h<4>;
    .reg .b32 %r<32>;
    .reg .b32 %v<{registers}>;
    .reg .b64 %d<16>;
    .shared .align 1024 .b8 window[65536];
    .shared .align 8 .b64 barrier;
    .shared .align 4 .b32 address;

    mov.u32 %r0, %tid.x;
    mov.u32 %r1, %cluster_ctarank;
    shr.u32 %r2, %r0, 5;
    ld.param.u64 %d0, [shared_image];
    ld.param.u64 %d1, [tensor_image];
    ld.param.u64 %d2, [result];
    // images of this block
    mul.wide.u32 %d3, %r1, 65536;
    add.u64 %d0, %d0, %d3;
    mul.wide.u32 %d3, %r1, {tensor_bytes};
    add.u64 %d1, %d1, %d3;
    add.u64 %d2, %d2, %d3;
    mov.u32 %r3, window;
    setp.ne.u32 %p0, %r0, 0;
    @%p0 bra READY;
    mbarrier.init.shared::cta.b64 [barrier], 1;
    fence.mbarrier_init.release.cluster;
READY:
    setp.ne.u32 %p1, %r2, 0;
    @%p1 bra ALLOCATED;
    mov.u32 %r4, {columns};
    tcgen05.alloc.cta_group::{group}.sync.aligned.shared::cta.b32 [address], %r4;
    tcgen05.relinquish_alloc_permit.cta_group::{group}.sync.aligned;
ALLOCATED:
    mov.u32 %r5, %r0;
COPY:
    mul.wide.u32 %d4, %r5, 4;
    add.u64 %d5, %d0, %d4;
    ld.global.b32 %r6, [%d5];
    shl.b32 %r7, %r5, 2;
    add.u32 %r7, %r7, %r3;
    st.shared.b32 [%r7], %r6;
    add.u32 %r5, %r5, 128;
    setp.lt.u32 %p2, %r5, 16384;
    @%p2 bra COPY;
    fence.proxy.async.shared::cta;
    barrier.sync 0;
    ld.shared.b32 %r8, [address];
    // lane r0, from this warp's part of tensor memory on
    shl.b32 %r9, %r2, 21;
    add.u32 %r10, %r8, %r9;
    mul.wide.u32 %d6, %r0, {row_bytes};
    add.u64 %d7, %d1, %d6;
    add.u64 %d8, %d2, %d6;
"""

STORE_COLUMN = """
    ld.global.b32 %v{i}, [%d7+{offset}];
    tcgen05.st.sync.aligned.32x32b.x1.b32 [%r10+{i}], {{%v{i}}};
"""

ISSUE = """
    tcgen05.wait::st.sync.aligned;
    barrier.cluster.arrive.aligned;
    barrier.cluster.wait.aligned;
    tcgen05.fence::after_thread_sync;
{leader}
    @%p0 bra WAIT;
{body}
    tcgen05.commit.cta_group::{group}.mbarrier::arrive::one.shared::cluster{multicast}.b64
        [barrier]{mask};
WAIT:
{wait}
    tcgen05.fence::after_thread_sync;
"""

AWAIT = """
{label}:
    mbarrier.try_wait.parity.shared::cta.b64 %p3, [barrier], 0;
    @!%p3 bra {label};
"""

LOAD_COLUMN = """
    tcgen05.ld.sync.aligned.32x32b.x1.b32 {{%v{i}}}, [%r10+{i}];
    tcgen05.wait::ld.sync.aligned;
    st.global.b32 [%d8+{offset}], %v{i};
"""

END = """
    barrier.cluster.arrive.aligned;
    barrier.cluster.wait.aligned;
    @%p1 bra DONE;
    tcgen05.dealloc.cta_group::{group}.sync.aligned.b32 %r8, {columns};
DONE:
    ret;
}}
"""


@dataclass(frozen=True)
class Program:
    """One program.

    Attributes:
        body: the instructions of the thread that issues; %r8 is the address of tensor memory, %r3
            the one of the window of shared memory.
        columns: of tensor memory that are allocated.
        stored: those columns that get the old values, before `body`.
        loaded: as many columns are written to the result, from the first on.
        group: of `cta_group`.
        target: the architecture.
        leader: sets %p0 in the threads that do not issue.
        waits: whether threads wait for the tensor core before they read, rather than behind that.
    """

    body: str
    columns: int = 32
    stored: tuple[int, ...] = ()
    loaded: int = 32
    group: int = 1
    target: str = "sm_100a"
    waits: bool = True
    leader: str = "    or.b32 %r11, %r0, %r1;\n    setp.ne.u32 %p0, %r11, 0;"

    def kernel(self) -> Kernel:
        row_bytes = 4 * self.columns
        names = {
            "group": self.group,
            "columns": self.columns,
            "registers": self.columns,
            "row_bytes": row_bytes,
            "tensor_bytes": LANES * row_bytes,
            "target": self.target,
            "clusters": f".reqnctapercluster {self.group}, 1, 1\n",
            "body": self.body,
            "wait": AWAIT.format(label="LOOK") if self.waits else "",
            "leader": self.leader,
            "multicast": ".multicast::cluster" if self.group == 2 else "",
            "mask": ", %h0" if self.group == 2 else "",
        }
        text = HEADER.format(**names)
        text += "    mov.b16 %h0, 3;\n"
        text += "".join(STORE_COLUMN.format(i=i, offset=4 * i) for i in self.stored)
        text += ISSUE.format(**names)
        text += "".join(LOAD_COLUMN.format(i=i, offset=4 * i) for i in range(self.loaded))
        if not self.waits:
            text += AWAIT.format(label="LOOK")
        return load(text + END.format(**names))

    def run(
        self, window: torch.Tensor, cells: torch.Tensor | None = None, **options: Any
    ) -> tuple[torch.Tensor, Run]:
        """Run it.

        Args:
            window: uint8 [group, 65536], the images of shared memory.
            cells: int32 [group, 128, columns], tensor memory beforehand.
            options: of `Kernel.run`.

        Returns:
            int32 [group, 128, columns], tensor memory afterwards; and what the run did.
        """
        shape = (self.group, LANES, self.columns)
        if cells is None:
            cells = torch.zeros(shape, dtype=torch.int32)
        result = torch.zeros(shape, dtype=torch.int32)
        assert window.shape == (self.group, 65536)
        assert cells.shape == shape
        run = self.kernel().run(
            grid=self.group,
            block=128,
            cluster=self.group,
            args=[window.contiguous(), cells.contiguous(), result],
            **options,
        )
        return result, run


# ---- layouts of matrices in shared memory -------------------------------------------------------

WIDTH = {0: 16, 6: 32, 4: 64, 2: 128, 1: 128}
"""Bytes of a swizzled line, by the code of the swizzle in a descriptor."""


@dataclass(frozen=True)
class Layout:
    """How a matrix lies in shared memory: a canonical layout of the PTX ISA.

    Attributes:
        swizzle: its code in a descriptor.
        leading: leading byte offset.
        stride: stride byte offset.
        mn: whether it is M- or N-major.
    """

    swizzle: int
    leading: int
    stride: int
    mn: bool = False

    @classmethod
    def compact(cls, swizzle: int, mn: bool, rows: int, size: int) -> Layout:
        """Return the layout of `rows` rows of elements of `size` bytes, without gaps."""
        width = WIDTH[swizzle]
        atom = width * (4 if swizzle == 1 else 8)
        if not mn:
            return cls(swizzle, atom, atom * (1 if swizzle else 2))
        whole = atom * -(-rows * size // width)
        return cls(swizzle, atom, whole, True) if swizzle else cls(0, whole, atom, True)

    @property
    def bits(self) -> int:
        """A descriptor of a matrix at address 0."""
        strides = (self.stride >> 4) << 32 | (self.leading >> 4) << 16
        return self.swizzle << 61 | 1 << 46 | strides

    def address(self, start: int, row: int, k: int, size: int) -> int:
        """Return where an element of `size` bytes lies in a matrix that begins at `start`."""
        width = WIDTH[self.swizzle]
        group = 4 if self.swizzle == 1 else 8
        along, across = (row, k) if self.mn else (k, row)
        leading, stride = self.leading, self.stride
        if self.mn and not self.swizzle:
            leading, stride = stride, leading
        at = start + across % group * width + across // group * stride
        at += along * size % width + along * size // width * leading
        bits = {0: 0, 6: 1, 4: 3, 2: 7, 1: 3}[self.swizzle]
        return at ^ (at >> 7 & bits) << (5 if self.swizzle == 1 else 4)


def put(window: torch.Tensor, start: int, layout: Layout, matrix: torch.Tensor) -> None:
    """Write a matrix [rows, k] of whole bytes into an image of shared memory, uint8 [65536]."""
    size = matrix.element_size()
    raw = matrix.contiguous().view(torch.uint8).reshape(*matrix.shape, size)
    rows, depth = matrix.shape
    at = [layout.address(start, row, k, size) for row in range(rows) for k in range(depth)]
    places = torch.tensor(at)[:, None] + torch.arange(size)
    window[places] = raw.reshape(-1, size)


def descriptor(register: str, layout: Layout, start: int) -> str:
    """Return PTX that sets a register to a descriptor."""
    return f"""
    add.u32 %r12, %r3, {start};
    shr.u32 %r12, %r12, 4;
    cvt.u64.u32 {register}, %r12;
    or.b64 {register}, {register}, {layout.bits};"""


def instruction_descriptor(
    m: int,
    n: int,
    a: int = 0,
    b: int = 0,
    d: int = 1,
    a_mn: bool = False,
    b_mn: bool = False,
    other: int = 0,
) -> int:
    """Return an instruction descriptor; a, b and d are the codes of the types."""
    shape = (m >> 4) << 24 | (n >> 3) << 17
    return shape | b_mn << 16 | a_mn << 15 | b << 10 | a << 7 | d << 4 | other


def product(
    opcode: str,
    idesc: int,
    a: tuple[Layout, int] | int,
    b: tuple[Layout, int],
    accumulate: bool = True,
    after: str = "",
    d: int = 0,
    between: str = "",
) -> str:
    """Return PTX that issues a product.

    Args:
        opcode: of the instruction.
        idesc: the instruction descriptor.
        a: layout of A and where it begins in the window, or its first column in tensor memory.
        b: the same for B, which is in shared memory.
        accumulate: whether the old D is added.
        after: further operands, behind that.
        d: what is added to the address of tensor memory for D.
        between: operands before that.
    """
    if isinstance(a, int):
        first = f"    add.u32 %r14, %r8, {a};"
        operand = "[%r14]"
    else:
        first = descriptor("%d10", *a)
        operand = "%d10"
    return f"""
{first}
{descriptor("%d9", *b)}
    mov.b32 %r13, {idesc};
    add.u32 %r15, %r8, {d};
    setp.ne.u32 %p4, {int(accumulate)}, 0;
    {opcode} [%r15], {operand}, %d9, %r13{between}, %p4{after};
"""


# ---- a product of two matrices in shared memory -------------------------------------------------

B_AT = 32768
"""Where B begins in the window."""

ALL = tuple(range(32))


def mma(kind: str, group: int = 1) -> str:
    """Return an opcode."""
    return f"tcgen05.mma.cta_group::{group}.kind::{kind}"


def integers(*shape: int, low: int = -4, high: int = 5, seed: int = 0) -> torch.Tensor:
    """Return random numbers from low up to, and without, high."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(low, high, shape, generator=generator)


def window(group: int = 1) -> torch.Tensor:
    """Return empty images."""
    return torch.zeros(group, 65536, dtype=torch.uint8)


def float_cells(cells: torch.Tensor) -> torch.Tensor:
    """Return cells as f32."""
    return cells.view(torch.float32)


def old_d(group: int = 1, columns: int = 32) -> torch.Tensor:
    """Return random small integers as f32 [group, 128, columns]."""
    return integers(group, 128, columns, low=-50, high=50, seed=7).float()


def check_sum(
    a: torch.Tensor,
    b: torch.Tensor,
    layouts: tuple[Layout, Layout],
    idesc: int,
    kind: str,
) -> None:
    """Check D + A B in one block, M = 128, N = 32, which is exact."""
    image = window()
    put(image[0], 0, layouts[0], a)
    put(image[0], B_AT, layouts[1], b)
    body = product(mma(kind), idesc, (layouts[0], 0), (layouts[1], B_AT))
    d = old_d()
    out, _ = Program(body, stored=ALL).run(image, d.view(torch.int32))
    assert torch.equal(float_cells(out)[0], d[0] + a.float() @ b.float().T)
