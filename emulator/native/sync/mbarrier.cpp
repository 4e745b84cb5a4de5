// mbarriers: the objects, and the instructions on them.  PTX ISA, "mbarrier".
//
// A state token, which the PTX ISA leaves open, holds the number of the phase and the arrivals that
// were pending, so that a token of another phase than it may have is found out.  On hardware, which
// keeps less, such a token gives a wrong answer.
//
// An arrival makes what its thread knows known to those that wait, unless it is `.relaxed`; waiting
// gets it, unless that is `.relaxed`.  Scopes have no effect: all threads see all of memory.
#include <string>

#include "machine/cluster.hpp"
#include "races/races.hpp"
#include "sync/shared_place.hpp"

namespace emu {

// ---- objects

void Mbarriers::check_place(uint32_t offset) const {
  if (offset % Mbarrier::BYTES == 0 && cta_.shared.holds(offset, Mbarrier::BYTES)) return;
  throw Failure("MbarrierPlaceError")
      .hex("address", cta_.window() | offset)
      .with("owner", cta_.name())
      .hex("start", cta_.window() | SHARED_START)
      .hex("stop", cta_.window() | cta_.shared.size());
}

Mbarrier& Mbarriers::at(uint32_t offset) {
  const auto found = objects_.find(offset);
  if (found != objects_.end()) return found->second;
  check_place(offset);
  throw Failure("NoMbarrierError")
      .hex("address", cta_.window() | offset)
      .with("owner", cta_.name());
}

void Mbarriers::init(const Step& step, uint32_t offset, uint32_t count) {
  check_place(offset);
  if (count < 1 || count > Mbarrier::LIMIT) {
    throw Failure("MbarrierCountError").with("count", count).with("limit", Mbarrier::LIMIT);
  }
  // Objects may not overlap, and both begin at multiples of their size.
  if (exists(offset)) throw Failure("MbarrierExistsError").with("barrier", describe(offset));
  for (uint32_t i = 0; i < Mbarrier::BYTES; ++i) {
    if (*cta_.shared.known(offset + i) == Known::InFlight) {
      throw Failure("MbarrierInFlightError").hex("address", cta_.window() | offset);
    }
  }
  Mbarrier& barrier = objects_[offset];
  barrier.expected = barrier.pending = count;
  cta_.shared.poison(offset, Mbarrier::BYTES, Known::Barrier);
  if (Races* races = step.races()) {
    races->made(step, cta_, offset, barrier);
  }
  step.effect();
}

void Mbarriers::inval(const Step& step, uint32_t offset) {
  at(offset);
  if (Races* races = step.races()) {
    races->touch(step, {Region::Is::Shared, &cta_}, offset, Mbarrier::BYTES, Touch::Write);
  }
  objects_.erase(offset);
  cta_.shared.mark(offset, Mbarrier::BYTES, Known::Unwritten);
  step.effect();
}

void Mbarriers::advance(uint32_t offset, Mbarrier& barrier) {
  if (barrier.pending == 0 && barrier.transactions < 0) {
    throw Failure("UnexpectedBytesError")
        .with("barrier", describe(offset))
        .with("bytes", -barrier.transactions);
  }
  ++cta_.cluster.version;
  if (barrier.pending || barrier.transactions) return;
  ++barrier.phase;
  if (Races* races = cta_.cluster.races.get()) {
    barrier.completed.join(barrier.arriving);
    barrier.arriving.clear();
    races->phase_completed(barrier);
  }
  barrier.pending = barrier.expected;
}

void Mbarriers::arrive(uint32_t offset, uint32_t count, const Clock* clock, bool drop) {
  Mbarrier& barrier = at(offset);
  if (count < 1 || count > Mbarrier::LIMIT) {
    throw Failure("ArrivalCountError").with("count", count).with("limit", Mbarrier::LIMIT);
  }
  if (count > barrier.pending) {
    throw Failure("OverArrivalError").with("barrier", describe(offset)).with("count", count);
  }
  if (drop) {
    if (count >= barrier.expected) {
      throw Failure("DroppedAllError").with("barrier", describe(offset)).with("count", count);
    }
    barrier.expected -= count;
  }
  barrier.pending -= count;
  if (clock) barrier.arriving.join(*clock);
  advance(offset, barrier);
}

void Mbarriers::expect(uint32_t offset, uint32_t bytes) {
  Mbarrier& barrier = at(offset);
  if (barrier.transactions + int64_t(bytes) > int64_t(Mbarrier::LIMIT)) {
    throw Failure("TransactionLimitError")
        .with("barrier", describe(offset))
        .with("bytes", bytes)
        .with("limit", Mbarrier::LIMIT);
  }
  barrier.transactions += bytes;
  advance(offset, barrier);
}

void Mbarriers::complete(uint32_t offset, uint32_t bytes) {
  Mbarrier& barrier = at(offset);
  if (barrier.transactions - int64_t(bytes) < -int64_t(Mbarrier::LIMIT)) {
    throw Failure("TransactionLimitError")
        .with("barrier", describe(offset))
        .with("bytes", -int64_t(bytes))
        .with("limit", Mbarrier::LIMIT);
  }
  barrier.transactions -= bytes;
  advance(offset, barrier);
}

std::string Mbarriers::describe(uint32_t offset) const {
  std::string text = "mbarrier " + hexadecimal(cta_.window() | offset) + " of " + cta_.name();
  const auto found = objects_.find(offset);
  if (found == objects_.end()) return text + ", which is not initialised";
  const Mbarrier& barrier = found->second;
  return text + " (phase " + std::to_string(barrier.phase) + "; " +
         std::to_string(barrier.pending) + " of " + std::to_string(barrier.expected) +
         " arrivals and " + std::to_string(barrier.transactions) + " bytes pending)";
}

// ---- instructions

namespace {

// What mbarrier.arrive returns.
struct State {
  static constexpr int PENDING_BITS = 20, PHASE_BITS = 43;
  uint64_t phase = 0;
  uint32_t pending = 0;  // arrivals, before that one
  bool incomplete = false;  // from .noComplete

  uint64_t token() const {
    return pending | (phase & ((1ull << PHASE_BITS) - 1)) << PENDING_BITS |
           uint64_t(incomplete) << 63;
  }
  static State of(uint64_t token) {
    return {token >> PENDING_BITS & ((1ull << PHASE_BITS) - 1),
            uint32_t(token & ((1u << PENDING_BITS) - 1)), bool(token >> 63)};
  }
};

void touch(const Step& step, const SharedPlace& place) {
  if (Races* races = step.races()) {
    races->use(step, *place.cta, place.offset, place.cta->mbarriers.at(place.offset));
  }
}

// Call f(lane, place) for each active lane, with the mbarrier that operand `index` names; those of
// other blocks are only for arrivals and counts.
enum class Of : uint8_t { OwnBlock, AnyBlock };

template <Space space, Of of, class F>
void for_each_barrier(const Step& step, int index, F&& f) {
  const Operand& operand = step.operand(index);
  for_each(step.active, [&](int lane) {
    const uint64_t address = step.address(operand, lane);
    f(lane, of == Of::OwnBlock ? own_place(step, space, address)
                               : shared_place(step, space, address));
  });
}

// Lanes that name one mbarrier initialise it once: kernels let a whole warp do it.
template <Space space>
Flow init(Step& step) {
  const Operand& count = step.operand(1);
  SharedPlace before;
  uint64_t first = 0;
  for_each_barrier<space, Of::OwnBlock>(step, 0, [&](int lane, const SharedPlace& place) {
    const uint64_t value = step.read(count, lane);
    const bool same = before.cta == place.cta && before.offset == place.offset;
    if (same && value == first) return;
    place.cta->mbarriers.init(step, place.offset, uint32_t(value));
    before = place;
    first = value;
  });
  return Flow::Next;
}

template <Space space>
Flow inval(Step& step) {
  SharedPlace before;
  for_each_barrier<space, Of::OwnBlock>(step, 0, [&](int, const SharedPlace& place) {
    if (before.cta == place.cta && before.offset == place.offset) return;
    place.cta->mbarriers.inval(step, place.offset);
    before = place;
  });
  return Flow::Next;
}

template <Space space, bool completes>
Flow transact(Step& step) {
  const Operand& bytes = step.operand(1);
  for_each_barrier<space, Of::AnyBlock>(step, 0, [&](int lane, const SharedPlace& place) {
    const uint32_t count = uint32_t(step.read(bytes, lane));
    touch(step, place);
    if (completes) {
      place.cta->mbarriers.complete(place.offset, count);
    } else {
      place.cta->mbarriers.expect(place.offset, count);
    }
  });
  return Flow::Next;
}

enum class Form : uint8_t { Plain, Expect, NoComplete };

template <Space space, Form form, bool drop, bool relaxed>
Flow arrive(Step& step) {
  const Operand& state = step.operand(0);
  const Operand& number = step.operand(2);
  const bool wanted = state.is == Operand::Is::Register;
  for_each_barrier<space, Of::AnyBlock>(step, 1, [&](int lane, const SharedPlace& place) {
    Mbarriers& barriers = place.cta->mbarriers;
    Mbarrier& barrier = barriers.at(place.offset);
    if (wanted && place.cta != &step.cta()) {
      throw Failure("RemoteStateError").with("barrier", barriers.describe(place.offset));
    }
    const uint32_t value =
        number.is == Operand::Is::Missing ? 1 : uint32_t(step.read(number, lane));
    const State before{barrier.phase, barrier.pending, form == Form::NoComplete};
    touch(step, place);
    if (!relaxed && step.races()) step.races()->release(step, barrier.arriving);
    if (form == Form::Expect) barriers.expect(place.offset, value);
    barriers.arrive(place.offset, form == Form::Expect ? 1 : value, nullptr, drop);
    if (form == Form::NoComplete && barrier.phase != before.phase) {
      throw Failure("CompletedError").with("barrier", barriers.describe(place.offset));
    }
    if (wanted) step.write(state, lane, before.token());
  });
  return Flow::Next;
}

Flow pending_count(Step& step) {
  for_each(step.active, [&](int lane) {
    const State state = State::of(step.read(step.operand(1), lane));
    if (!state.incomplete) {
      throw Failure("PendingStateError").hex("token", step.read(step.operand(1), lane));
    }
    step.write(step.operand(0), lane, state.pending);
  });
  return Flow::Next;
}

// Whether the phase is complete that a parity, or a token, stands for.
template <bool parity>
bool is_complete(const Mbarriers& barriers, uint32_t offset, const Mbarrier& barrier,
                 uint64_t value) {
  if (parity) {
    if (value > 1) throw Failure("ParityError").with("parity", int64_t(value));
    return (barrier.phase & 1) != value;
  }
  const State state = State::of(value);
  if (state.phase == barrier.phase) return false;
  if (state.phase + 1 == barrier.phase) return true;
  throw Failure("StaleStateError")
      .with("barrier", barriers.describe(offset))
      .with("phase", int64_t(state.phase));
}

std::string describe_wait(const Waiting& waiting) {
  return waiting.cta->mbarriers.describe(uint32_t(waiting.object)) + ", its phase " +
         std::to_string(waiting.detail) + " to complete";
}

// test_wait looks; try_wait waits as long as there is nothing to tell, until it times out.
template <Space space, bool parity, bool waits, bool relaxed>
Flow wait(Step& step) {
  const Operand& wanted = step.operand(2);
  Lanes done = 0;
  SharedPlace first, acquired;
  for_each_barrier<space, Of::OwnBlock>(step, 1, [&](int lane, const SharedPlace& place) {
    if (!first.cta) first = place;
    const Mbarrier& barrier = place.cta->mbarriers.at(place.offset);
    if (!is_complete<parity>(place.cta->mbarriers, place.offset, barrier,
                             step.read(wanted, lane))) {
      return;
    }
    done |= 1u << lane;
    if (!step.races() || (acquired.cta && acquired.offset == place.offset)) return;
    touch(step, place);
    if (!relaxed) step.races()->acquire(step, barrier.completed);
    acquired = place;
  });
  if (waits && !done && !step.timed_out) {
    const Mbarrier& barrier = first.cta->mbarriers.at(first.offset);
    return step.wait_for({describe_wait, first.cta, first.offset, barrier.phase, true});
  }
  step.set_predicate(0, done);
  return done == step.active ? Flow::Next : Flow::Yield;
}

// ---- binding

Binding bind_init(const Operation& op) {
  return {BySpace{init<Space::Generic>, init<Space::Shared>, nullptr}.of(op.space("a")), true};
}

Binding bind_inval(const Operation& op) {
  return {BySpace{inval<Space::Generic>, inval<Space::Shared>, nullptr}.of(op.space("a")), true};
}

template <bool completes>
Binding bind_transact(const Operation& op) {
  op.implied({"relaxed"});  // the only one there is: with or without it, no thread is synchronised
  return {BySpace{transact<Space::Generic, completes>, transact<Space::Shared, completes>,
                  transact<Space::SharedCluster, completes>}
              .of(op.space("a")),
          true};
}

template <Form form, bool drop, bool relaxed>
Execute arrive_at(const Operation& op) {
  return BySpace{arrive<Space::Generic, form, drop, relaxed>,
                 arrive<Space::Shared, form, drop, relaxed>,
                 arrive<Space::SharedCluster, form, drop, relaxed>}
      .of(op.space("a"));
}

template <Form form, bool drop>
Binding bind_arrive(const Operation& op) {
  op.implied({"release", "cta"});  // of .noComplete, which has no others
  const bool relaxed = op.get("sem_st") == "relaxed";
  return {relaxed ? arrive_at<form, drop, true>(op) : arrive_at<form, drop, false>(op), true};
}

template <bool parity, bool waits>
Binding bind_wait(const Operation& op) {
  const bool relaxed = op.get("sem_ld") == "relaxed";
  const BySpace strong{wait<Space::Generic, parity, waits, false>,
                       wait<Space::Shared, parity, waits, false>, nullptr};
  const BySpace weak{wait<Space::Generic, parity, waits, true>,
                     wait<Space::Shared, parity, waits, true>, nullptr};
  return {(relaxed ? weak : strong).of(op.space("a")), true};
}

Binding bind_pending_count(const Operation&) { return {pending_count}; }

const Registration registration{
    {"mbarrier.init", bind_init},
    {"mbarrier.inval", bind_inval},
    {"mbarrier.expect_tx", bind_transact<false>},
    {"mbarrier.complete_tx", bind_transact<true>},
    {"mbarrier.arrive", bind_arrive<Form::Plain, false>},
    {"mbarrier.arrive.expect_tx", bind_arrive<Form::Expect, false>},
    {"mbarrier.arrive.noComplete", bind_arrive<Form::NoComplete, false>},
    {"mbarrier.arrive_drop", bind_arrive<Form::Plain, true>},
    {"mbarrier.arrive_drop.expect_tx", bind_arrive<Form::Expect, true>},
    {"mbarrier.arrive_drop.noComplete", bind_arrive<Form::NoComplete, true>},
    {"mbarrier.pending_count", bind_pending_count},
    {"mbarrier.test_wait", bind_wait<false, false>},
    {"mbarrier.test_wait.parity", bind_wait<true, false>},
    {"mbarrier.try_wait", bind_wait<false, true>},
    {"mbarrier.try_wait.parity", bind_wait<true, true>},
};

}  // namespace

}  // namespace emu
