"""The chapter of errors of memory: addresses that lead astray, and bytes that nobody may touch yet.

Also atomic operations, ``cp.async``, and functions of the device's run-time library.

What this module deliberately does not do: cover barriers as objects, bulk copies or matrices.
"""

from __future__ import annotations

from flexfa4.emulator.errors import EmulationError


class MemoryAccessError(EmulationError):
    """An access that a kernel must not make."""


# ---- where an access lands ----------------------------------------------------------------------


class MisalignedAccessError(MemoryAccessError):
    """An address that is no multiple of the access's size."""

    found = (
        "{who}: {does} {bytes} bytes at {space} address {address}, which is {excess} bytes"
        " behind a multiple of {bytes}"
    )
    allowed = "addresses that are multiples of the size of the access, a vector's as a whole"
    instead = "align the pointer, or access narrower elements"


class OutOfBoundsError(MemoryAccessError, IndexError):
    """An address outside of a block's or thread's memory."""

    found = "{who}: {does} {bytes} bytes at {space} address {address}"
    allowed = "{space} addresses from {start} up to, and without, {stop}"
    instead = "check the offset, or ask for more memory at the launch"


class GlobalBoundsError(MemoryAccessError, IndexError):
    """A global address outside of every allocation."""

    found = (
        "{who}: {does} {bytes} bytes at global address {address}, {away} the start of {which},"
        " which has {size} bytes"
    )
    allowed = "global addresses of one allocation; the nearest is {start} up to, without, {stop}"
    instead = (
        "guard the access by the extent of the tensor; if it is another tensor's, present that one:"
        " device.tensor(x), or allocations=[x] of Kernel.run"
    )


class NullPointerError(MemoryAccessError, IndexError):
    """A global address at or shortly behind 0."""

    found = "{who}: {does} {bytes} bytes at global address {address}: the pointer is null"
    allowed = "global addresses of an allocation"
    instead = (
        "a tensor with elements where the kernel expects a pointer: an empty one is address 0,"
        " and so is one whose storage was given back"
    )


class NoAllocationError(MemoryAccessError, IndexError):
    """A global address where there is no global memory at all."""

    found = "{who}: {does} {bytes} bytes at global address {address}, and nothing is allocated"
    allowed = "global addresses of an allocation"
    instead = (
        "present the tensors that the kernel touches: device.tensor(x), or args=[x] of Kernel.run"
    )


class ReadOnlyMemoryError(MemoryAccessError):
    """A write to memory that can only be read."""

    found = "{who}: {does} {bytes} bytes at {space} address {address}, which can only be read"
    allowed = "writes to global, shared and local memory"
    instead = "write to a tensor, or to memory of the block or thread"


class StrongAccessError(MemoryAccessError):
    """An atomic or ordered access outside of the memories that threads share."""

    found = "{who}: {does} {bytes} bytes at {space} address {address} in a strong operation"
    allowed = "atom, red, and ld and st with an order, in global and shared memory"
    instead = "a plain ld or st: nobody else sees this memory"


class OtherBlockError(MemoryAccessError):
    """An address of another block in state space shared::cta."""

    found = (
        "{who}: {does} {bytes} bytes at shared address {address} of the block with rank {rank},"
        " in a block with rank {own_rank}"
    )
    allowed = "addresses of the block itself, where the instruction says .shared"
    instead = "the same instruction with .shared::cluster"


class NoSuchBlockError(MemoryAccessError):
    """A rank that the cluster does not have."""

    found = "{who}: the shared address {address} belongs to the block with rank {rank}"
    allowed = "ranks below {size}, the number of blocks of the cluster"
    instead = "launch a larger cluster, or bound the rank given to mapa"


class ExitedBlockError(MemoryAccessError):
    """Shared memory of a block whose threads have all exited."""

    found = "{who}: the shared address {address} belongs to block {rank}, whose threads have exited"
    allowed = "shared memory of blocks that are still there"
    instead = "a barrier.cluster before the end of the kernel"


class GenericAddressError(MemoryAccessError):
    """A generic address that should lie in shared memory, and does not."""

    found = "{who}: lane {lane} gives the generic address {address}, which is not in shared memory"
    allowed = "generic addresses of shared memory, as cvta.shared makes them"
    instead = "`.shared::cluster` behind the opcode if the address is one of shared memory"


# ---- what is known of the bytes -----------------------------------------------------------------


class UninitialisedReadError(MemoryAccessError):
    """Bytes read that nobody has written."""

    found = (
        "{who}: {does} {bytes} bytes at {space} address {address}; nobody has written {unwritten}"
        " of them, the first at {first}"
    )
    allowed = "reading what was written before"
    instead = "initialise the memory, or wait for what writes it"


class InFlightError(MemoryAccessError):
    """Bytes touched that an asynchronous copy is going to write."""

    found = (
        "{who}: {does} {bytes} bytes at {space} address {address}, where a copy that was issued"
        " has not arrived"
    )
    allowed = "touching the destination of a copy after waiting for it"
    instead = "wait for the copy's mbarrier or group first"


class BarrierBytesError(MemoryAccessError):
    """Bytes of an mbarrier touched by a plain access."""

    found = "{who}: {does} {bytes} bytes at {space} address {address}, which is part of an mbarrier"
    allowed = "mbarrier instructions, until mbarrier.inval gives the bytes free"
    instead = "place the data elsewhere, or invalidate the mbarrier first"


# ---- other instructions -------------------------------------------------------------------------


class CopySizeError(MemoryAccessError, ValueError):
    """A size that cp.async does not copy."""

    found = "{who}: cp.async with a size of {size} and a source of {source} bytes"
    allowed = "sizes of {sizes} bytes, and a source of at most the size"
    instead = "bound the size of the source"


class PendingLimitError(MemoryAccessError):
    """More arrivals by cp.async than an mbarrier counts."""

    found = "{who}: cp.async.mbarrier.arrive makes {barrier} expect one arrival more"
    allowed = "at most {limit} pending arrivals"
    instead = "cp.async.mbarrier.arrive.noinc, with its arrivals in the count of mbarrier.init"


class FillSizeError(MemoryAccessError, ValueError):
    """A range that st.bulk or discard does not take."""

    found = "{who}: {size} bytes at {address}, with the value {value}"
    allowed = "{wanted}"
    instead = "split the range"


class PolicyFractionError(MemoryAccessError, ValueError):
    """A fraction of a cache policy that is none."""

    found = "{who}: the fraction of a cache policy is {fraction} in lane {lane}"
    allowed = "numbers above 0 and up to 1"
    instead = "1.0"


class KernelAssertionError(EmulationError, AssertionError):
    """An assertion of the kernel that does not hold."""

    found = "{who}: assertion `{condition}` failed in {function}, {file}:{number}"
    allowed = "conditions that hold"
    instead = "correct the kernel or what it is given"


class UnknownHostFunctionError(EmulationError, LookupError):
    """A function that no run-time library supplies."""

    found = "{who}: calls {name}, which has no body in the module"
    allowed = "{names}"
    instead = "link the function into the module"


class FormatError(EmulationError, ValueError):
    """A format of printf that cannot be followed."""

    found = "{who}: printf with {conversion!r} in {format!r}"
    allowed = (
        "conversions d i u o x X c s p f F e E g G a A %, with flags, width, precision, length"
    )
    instead = "a conversion of this list"
