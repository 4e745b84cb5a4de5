"""Find a broken barrier in a GPU kernel, with no GPU.

The emulator runs PTX on the CPU.  The kernel below sums numbers that a bulk copy brings into shared
memory: one thread starts the copy and names the mbarrier that it completes on, and all threads wait
at that mbarrier before they read.  Three versions of it run:

- as it should be;
- without the wait, which gives the right sum on hardware whenever the copy happens to be in time:
  the race detector reports the two accesses that nothing orders;
- with a barrier that expects one arrival too many: the emulator tells who waits for what.

docs/emulator.md tells more.  Takes a second, and minutes the first time, when the core is built.
"""

import torch

from flexfa4 import emulator

WAIT = """
WAIT:
    mbarrier.try_wait.parity.shared.b64 done, [full], 0;
    @!done bra WAIT;
"""
KERNEL = """
.version 8.8
.target sm_90a
.address_size 64
.visible .entry sum_tiles(.param .u64 numbers, .param .u64 sums) {
    .shared .align 16 .b8 tile[512]; .shared .align 8 .b64 full;
    .reg .pred first, done;
    .reg .b32 thread, block, place, offset, number;
    .reg .b64 from, to, bytes;
    ld.param.b64 from, [numbers]; ld.param.b64 to, [sums];
    mov.u32 thread, %tid.x; mov.u32 block, %ctaid.x;
    setp.eq.u32 first, thread, 0;
    @first mbarrier.init.shared.b64 [full], 1; bar.sync 0;
    mul.wide.u32 bytes, block, 512; add.u64 from, from, bytes;
    @first mbarrier.arrive.expect_tx.shared.b64 _, [full], 512;
    @first cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes
        [tile], [from], 512, [full];
WAIT:
    mbarrier.try_wait.parity.shared.b64 done, [full], 0;
    @!done bra WAIT;
    mov.u32 place, tile; shl.b32 offset, thread, 2; add.u32 place, place, offset;
    ld.shared.u32 number, [place];
    mul.wide.u32 bytes, block, 4; add.u64 to, to, bytes;
    red.global.add.u32 [to], number; ret;
}
"""


def run(ptx: str, numbers: torch.Tensor) -> torch.Tensor:
    """Run the kernel, a block for each row of 128 numbers; returns the sums of the rows."""
    sums = torch.zeros(len(numbers), dtype=torch.int32)
    # Without `check`, reads of bytes that nobody has written are errors too, and would come first.
    emulator.load(ptx).run(grid=len(numbers), block=128, args=[numbers, sums], check="races")
    return sums


def main() -> None:
    """Run the kernel as it should be, and two broken ones."""
    numbers = torch.arange(4 * 128, dtype=torch.int32).view(4, 128)
    sums = run(KERNEL, numbers)
    assert torch.equal(sums, numbers.sum(1, dtype=torch.int32))
    print(f"as it should be: sums {sums.tolist()}\n")

    broken = {
        "without the wait": KERNEL.replace(WAIT, "\n"),
        "with one arrival too many": KERNEL.replace("[full], 1;", "[full], 2;"),
    }
    for name, ptx in broken.items():
        try:
            run(ptx, numbers)
        except emulator.EmulationError as error:
            print(f"{name}: {type(error).__name__}\n{error}\n")


if __name__ == "__main__":
    main()
