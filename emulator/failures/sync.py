"""The chapter of errors of synchronisation: mbarriers, barriers of blocks and clusters, registers.

What this module deliberately does not do: report deadlocks, which the chapter of running warps
does.
"""

from __future__ import annotations

from flexfa4.emulator.errors import EmulationError


class SynchronisationError(EmulationError):
    """A use of a barrier, or of something like it, that the PTX ISA leaves undefined."""


# ---- where an mbarrier is -----------------------------------------------------------------------


class NotSharedAddressError(SynchronisationError):
    """A generic address of other memory than shared memory."""

    found = "{who}: the generic address {address} is not one of shared memory"
    allowed = "addresses of shared memory"
    instead = "convert the address with cvta.shared, or name the state space in the instruction"


class NotOwnBlockError(SynchronisationError):
    """An address of another block where only the own block's memory may be meant."""

    found = "{who}: the address {address} lies in shared memory of {owner}"
    allowed = "addresses in shared memory of {own}: the operation is for shared::cta only"
    instead = "the form for .shared::cluster, where there is one"


class MbarrierPlaceError(SynchronisationError):
    """An address at which no mbarrier can be."""

    found = "{who}: an mbarrier at the shared address {address} of {owner}"
    allowed = "multiples of 8 from {start} up to, and without, {stop}"
    instead = (
        ".align 8 where the mbarrier is declared; where it lies in dynamic shared memory, ask for"
        " more of that at the launch: a block's shared memory ends at {stop}"
    )


class NoMbarrierError(SynchronisationError):
    """An operation on an mbarrier that was not initialised."""

    found = "{who}: there is no mbarrier at the shared address {address} of {owner}"
    allowed = "mbarriers between their mbarrier.init and mbarrier.inval"
    instead = "initialise it, and let all threads wait for that at a barrier before they use it"


class MbarrierExistsError(SynchronisationError):
    """An mbarrier initialised where one is."""

    found = "{who}: initialises an mbarrier where there is one: {barrier}"
    allowed = "one mbarrier.init for an mbarrier, by one thread"
    instead = "mbarrier.inval first, or leave the second mbarrier.init out"


class MbarrierInFlightError(SynchronisationError):
    """An mbarrier initialised where a copy is still to write."""

    found = "{who}: initialises an mbarrier at {address}, where a copy in flight will write"
    allowed = "memory that nothing else writes"
    instead = "wait for the copy, or place the mbarrier elsewhere"


class RemoteStateError(SynchronisationError):
    """The state of another block's mbarrier asked for."""

    found = "{who}: wants the state of an mbarrier of another block: {barrier}"
    allowed = "states of mbarriers of the own block"
    instead = "the sink `_` as the first operand"


# ---- counts of an mbarrier ----------------------------------------------------------------------


class MbarrierCountError(SynchronisationError, ValueError):
    """A number of arrivals that no mbarrier can expect."""

    found = "{who}: initialises an mbarrier for {count} arrivals"
    allowed = "1 to {limit} arrivals"
    instead = "the number of threads and commits that arrive in a phase"


class ArrivalCountError(SynchronisationError, ValueError):
    """A number of arrivals that one instruction cannot make."""

    found = "{who}: arrives {count} times at an mbarrier"
    allowed = "1 to {limit} arrivals"
    instead = "leave the instruction out where nothing arrives"


class OverArrivalError(SynchronisationError):
    """More arrivals in a phase than the mbarrier expects."""

    found = "{who}: arrives {count} times too often, or too early: {barrier}"
    allowed = "as many arrivals in a phase as the mbarrier was initialised for"
    instead = "initialise it for more arrivals, or wait for the phase before arriving in the next"


class DroppedAllError(SynchronisationError):
    """An mbarrier for which no arrivals are left."""

    found = "{who}: drops {count} arrivals, which leaves none to expect: {barrier}"
    allowed = "arrive_drop while later phases still expect somebody"
    instead = "mbarrier.arrive for the last one, and mbarrier.inval afterwards"


class CompletedError(SynchronisationError):
    """A phase completed by an arrival that promised not to."""

    found = "{who}: completes a phase with .noComplete: {barrier}"
    allowed = ".noComplete for arrivals that are not the last of their phase"
    instead = "mbarrier.arrive without .noComplete"


class TransactionLimitError(SynchronisationError, ValueError):
    """More bytes expected or completed than an mbarrier counts."""

    found = "{who}: adds {bytes} to the bytes that are pending: {barrier}"
    allowed = "at most {limit} bytes expected, or copied ahead of that"
    instead = "split the copies into several phases, or between several mbarriers"


class UnexpectedBytesError(SynchronisationError):
    """More bytes copied in a phase than were expected."""

    found = "{who}: {bytes} bytes more were copied than all arrivals expect: {barrier}"
    allowed = "as many bytes as the phase expects by the time of its last arrival"
    instead = "add the bytes of every copy, of those outside of the tensor too, to expect_tx"


# ---- waiting ------------------------------------------------------------------------------------


class ParityError(SynchronisationError, ValueError):
    """A parity that is none."""

    found = "{who}: waits for a phase with parity {parity}"
    allowed = "0 and 1"
    instead = "take the number of the phase modulo 2"


class StaleStateError(SynchronisationError):
    """A state of an arrival that is too old, or that is none."""

    found = "{who}: waits for phase {phase} by its state: {barrier}"
    allowed = "states of the phase that runs and of the one before it, from mbarrier.arrive"
    instead = "wait for each phase before arriving in the next"


class PendingStateError(SynchronisationError):
    """The pending arrivals of a state that does not tell them."""

    found = "{who}: the state {token} is not of an arrival with .noComplete"
    allowed = "states that mbarrier.arrive.noComplete or arrive_drop.noComplete returned"
    instead = "mbarrier.arrive.noComplete for the arrival"


# ---- barriers of a block ------------------------------------------------------------------------


class BarrierNumberError(SynchronisationError, ValueError):
    """A barrier that no block has."""

    found = "{who}: barrier {number}"
    allowed = "barriers 0 to 15"
    instead = "an mbarrier, of which there can be more"


class BarrierThreadsError(SynchronisationError, ValueError):
    """A number of threads that cannot meet at a barrier."""

    found = "{who}: {threads} threads at barrier {number}"
    allowed = "multiples of 32, up to twice the {all} threads of the block's warps"
    instead = "32 for each warp that takes part, which counts as a whole; twice if it arrives first"


class DifferentThreadsError(SynchronisationError):
    """Warps that meet at one barrier with different numbers of threads."""

    found = "{who}: comes for {threads} threads, others for {expected}: {barrier}"
    allowed = "one number for all that meet at a barrier"
    instead = "the sum of the warps that wait and of those that only arrive, in all of them"


class MixedUseError(SynchronisationError):
    """A reduction that meets other uses of its barrier."""

    found = "{who}: comes with another operation than the others: {barrier}"
    allowed = "one reduction, or only sync and arrive, until the barrier is complete"
    instead = "another barrier"


class SecondArrivalError(SynchronisationError):
    """A warp that comes to a barrier twice before it is complete."""

    found = "{who}: is there already: {barrier}"
    allowed = "a warp once until the barrier is complete, or once to arrive and then once to wait"
    instead = "another barrier for the second arrival, or a sync in between"


# ---- the barrier of a cluster -------------------------------------------------------------------


class ClusterArrivalError(SynchronisationError):
    """Threads that arrive at the cluster's barrier again without having waited."""

    found = "{who}: the lanes {lanes} arrive again, and have not waited since they arrived"
    allowed = "barrier.cluster.arrive and barrier.cluster.wait in turn, in each thread"
    instead = "a barrier.cluster.wait before it"


class ClusterWaitError(SynchronisationError):
    """Threads that wait at the cluster's barrier without having arrived."""

    found = "{who}: the lanes {lanes} wait, and have not arrived"
    allowed = "barrier.cluster.arrive and barrier.cluster.wait in turn, in each thread"
    instead = "a barrier.cluster.arrive before it, in the same threads"


# ---- registers ----------------------------------------------------------------------------------


class RegisterCountError(SynchronisationError, ValueError):
    """A number of registers that no thread can have."""

    found = "{who}: setmaxnreg to {count} registers"
    allowed = "multiples of {unit} from {least} to {most}"
    instead = "the next such number"


class RegisterGiveError(SynchronisationError):
    """A setmaxnreg.dec to more registers than the warp has."""

    found = "{who}: setmaxnreg.dec to {count} registers; the warp has {own} a thread"
    allowed = "numbers up to {own}"
    instead = "setmaxnreg.inc, or another number; blocks with more threads have fewer registers"


class RegisterTakeError(SynchronisationError):
    """A setmaxnreg.inc to fewer registers than the warp has."""

    found = "{who}: setmaxnreg.inc to {count} registers; the warp has {own} a thread"
    allowed = "numbers from {own}"
    instead = "setmaxnreg.dec, or another number; blocks with more threads have fewer registers"


class WarpgroupRegistersError(SynchronisationError):
    """Warps of one warpgroup that do not execute setmaxnreg alike."""

    found = "{warp} {does}, where {other} of the same warpgroup executes {other_does}"
    allowed = "as many setmaxnreg in each of the four warps of a warpgroup, .dec and .inc alike"
    instead = "the same setmaxnreg in the branches of all warps of the warpgroup"
