// One access of one lane, and what engines touch: every check, and the failure of each.
#include "memory/access.hpp"

#include <algorithm>
#include <string>

#include "machine/cluster.hpp"
#include "machine/machine.hpp"
#include "memory/locate.hpp"
#include "memory/strength.hpp"
#include "races/races.hpp"

namespace emu {

namespace {

constexpr struct {
  const char* name;
  Space space;
} SPACES[] = {
    {"generic", Space::Generic},       {"global", Space::Global},
    {"shared", Space::Shared},         {"shared::cta", Space::Shared},
    {"shared::cluster", Space::SharedCluster},
    {"local", Space::Local},           {"const", Space::Const},
    {"param", Space::Param},           {"param::entry", Space::Param},
    {"call", Space::Call},
};

constexpr uint64_t STRONG_BYTES = 16;  // that the race detector takes at once
constexpr uint64_t FIRST_PAGE = 4096;  // of addresses, in which no system has anything

const char* verb(Touch touch) {
  return touch == Touch::Read ? "reads" : touch == Touch::Write ? "writes" : "updates";
}

// The fields that all failures of an access have.
Failure failure(const char* name, const Access& access, Space space, uint64_t address) {
  return Failure(name)
      .with("does", verb(access.touch))
      .with("bytes", access.bytes)
      .with("space", name_of(space))
      .hex("address", address);
}

[[noreturn]] void fail_bounds(const Access& access, Space space, uint64_t address, uint64_t start,
                              uint64_t stop) {
  throw failure("OutOfBoundsError", access, space, address).hex("start", start).hex("stop", stop);
}

[[noreturn]] void fail_global(const Machine& machine, const Access& access, uint64_t address) {
  // Of the allocations and the module's variables, the nearest.
  const GlobalMemory::Range* range = machine.global.nearest(address);
  GlobalMemory::Range found{0, 0, NOWHERE};
  if (range) found = *range;
  const auto distance = [address](uint64_t start, uint64_t stop) {
    return address < start ? start - address : address >= stop ? address - stop + 1 : 0;
  };
  const uint64_t start = reinterpret_cast<uintptr_t>(machine.module_global.data());
  const uint64_t stop = start + machine.module_global.size();
  std::string which = range ? "allocation " + std::to_string(found.name) : "";
  if (stop > start && (!range || distance(start, stop) < distance(found.start, found.stop))) {
    found = {start, stop, NOWHERE};
    which = "the module's variables";
  }
  if (address < FIRST_PAGE) throw failure("NullPointerError", access, Space::Global, address);
  if (which.empty()) throw failure("NoAllocationError", access, Space::Global, address);
  const bool before = address < found.start;
  const uint64_t away = before ? found.start - address : address - found.start;
  throw failure("GlobalBoundsError", access, Space::Global, address)
      .with("allocation", found.name == NOWHERE ? int64_t(-1) : int64_t(found.name))
      .with("which", which)
      .with("away", std::to_string(away) + (before ? " bytes before" : " bytes behind"))
      .with("size", int64_t(found.stop - found.start))
      .hex("start", found.start)
      .hex("stop", found.stop);
}

void check_alignment(const Access& access, Space space, uint64_t address) {
  if (address & (access.bytes - 1)) {
    throw failure("MisalignedAccessError", access, space, address)
        .with("excess", int64_t(address & (access.bytes - 1)));
  }
}

// Check what is known of bytes, and mark those that are written.  `address` is for the message.
void check_known(Known* known, bool uninitialised, const Access& access, Space space,
                 uint64_t address) {
  Known* const stop = known + access.bytes;
  const auto at = [&](const Known* byte) { return address + uint64_t(byte - known); };
  for (const Known* byte = known; byte < stop; ++byte) {
    if (*byte == Known::Barrier) throw failure("BarrierBytesError", access, space, at(byte));
    if (*byte == Known::InFlight) throw failure("InFlightError", access, space, at(byte));
    if (*byte == Known::Unwritten && access.touch != Touch::Write && uninitialised) {
      throw failure("UninitialisedReadError", access, space, address)
          .hex("first", at(byte))
          .with("unwritten", std::count(known, stop, Known::Unwritten));
    }
  }
  if (access.touch != Touch::Read) std::fill(known, stop, Known::Written);
}

Place locate_shared(const Step& step, const Access& access, Space space, uint64_t address) {
  Cta* owner = &step.cta();
  if (space == Space::Shared && address >> 24 != owner->rank) {
    throw failure("OtherBlockError", access, space, address)
        .with("rank", int64_t(address >> 24))
        .with("own_rank", owner->rank);
  }
  owner = &shared_owner(step, address);
  const uint64_t offset = address & SHARED_OFFSET;
  const uint64_t window = owner->window();
  SharedMemory& shared = owner->shared;
  if (!shared.holds(offset, access.bytes)) {
    fail_bounds(access, space, address, window + SHARED_START, window + shared.size());
  }
  check_known(shared.known(uint32_t(offset)), step.machine().options.uninitialised, access, space,
              address);
  const bool own = owner == &step.cta();
  return {shared.at(uint32_t(offset)), own ? Space::Shared : Space::SharedCluster, owner, offset};
}

Place resolve(const Step& step, const Access& access, uint64_t address, int lane) {
  const Machine& machine = step.machine();
  Space space = access.space;
  check_alignment(access, space, address);
  if (space == Space::Generic) {
    const Window window = window_of(address);
    space = window.space;
    address &= ~window.bits;
  }
  if (!allowed(access, space)) {
    throw failure(access.touch == Touch::Write && !access.strong ? "ReadOnlyMemoryError"
                                                                 : "StrongAccessError",
                  access, space, address);
  }
  const auto holds = [&](uint64_t size) {
    if (access.bytes > size || address > size - access.bytes) {
      fail_bounds(access, space, address, 0, size);
    }
  };
  switch (space) {
    case Space::Shared:
    case Space::SharedCluster: return locate_shared(step, access, space, address);
    case Space::Local: {
      holds(machine.program.local_bytes);
      Known* known = step.warp.local_known(lane) + address;
      check_known(known, machine.options.uninitialised, access, space, address);
      return {step.warp.local(lane) + address, space, nullptr, address};
    }
    case Space::Call:
      holds(machine.program.call_bytes);
      return {step.warp.call(lane) + address, space, nullptr, address};
    case Space::Const: {
      const auto& bytes = machine.program.constant.bytes;
      holds(bytes.size());
      return {const_cast<std::byte*>(bytes.data()) + address, space, nullptr, address};
    }
    case Space::Param: {
      const auto& bytes = machine.parameters;
      holds(bytes.size());
      return {const_cast<std::byte*>(bytes.data()) + address, space, nullptr, address};
    }
    default: break;
  }
  if (!in_global(machine, address, access.bytes)) {
    fail_global(machine, access, address);
  }
  return {reinterpret_cast<std::byte*>(address), Space::Global, nullptr, address};
}

}  // namespace

Space space_named(const std::string& name) {
  for (const auto& row : SPACES) {
    if (name == row.name) return row.space;
  }
  throw Failure("UnknownSpaceError").with("space", name);
}

const char* name_of(Space space) {
  for (const auto& row : SPACES) {
    if (space == row.space) return row.name;
  }
  return "";
}

Window window_of(uint64_t address) {
  switch (address & WINDOW) {
    case SHARED_WINDOW: return {Space::SharedCluster, SHARED_WINDOW};
    case LOCAL_WINDOW: return {Space::Local, LOCAL_WINDOW};
    case PARAM_WINDOW: return {Space::Param, PARAM_WINDOW};
    case CONST_WINDOW: return {Space::Const, CONST_WINDOW};
    default: return {Space::Global, 0};
  }
}

bool in_global(const Machine& machine, uint64_t address, uint64_t bytes) {
  if (machine.global.find(address, bytes)) return true;
  const uint64_t start = reinterpret_cast<uintptr_t>(machine.module_global.data());
  const uint64_t size = machine.module_global.size();
  return address >= start && bytes <= size && address - start <= size - bytes;
}

bool allowed(const Access& access, Space space) {
  const bool shareable =
      space == Space::Global || space == Space::Shared || space == Space::SharedCluster;
  if (access.strong || access.touch == Touch::Atomic) return shareable;
  return access.touch == Touch::Read || shareable || space == Space::Local || space == Space::Call;
}

Cta& shared_owner(const Step& step, uint64_t address) {
  Cta& own = step.cta();
  const uint64_t rank = address >> 24;
  if (rank == own.rank) return own;
  const auto& ctas = step.cluster().ctas;
  if (rank >= ctas.size()) {
    throw Failure("NoSuchBlockError")
        .hex("address", address)
        .with("rank", int64_t(rank))
        .with("size", int64_t(ctas.size()));
  }
  if (!ctas[rank]->threads_alive()) {
    throw Failure("ExitedBlockError").hex("address", address).with("rank", int64_t(rank));
  }
  return *ctas[rank];
}

Place locate(const Step& step, const Access& access, uint64_t address, int lane) {
  try {
    return resolve(step, access, address, lane);
  } catch (Failure& failure) {
    failure.fields.emplace("who", step.warp.name(1u << lane));  // this lane, of those that are here
    throw;
  }
}

void count_traffic(const Step& step, const Access& access, const Place& place, uint64_t lanes) {
  Traffic& traffic = step.cluster().counters.traffic;
  if (access.touch == Touch::Atomic) {
    (place.space == Space::Global ? traffic.global_reductions : traffic.shared_reductions) += lanes;
    return;
  }
  const bool read = access.touch == Touch::Read;
  const uint64_t bytes = lanes * access.bytes;
  switch (place.space) {
    case Space::Global: (read ? traffic.global_read : traffic.global_written) += bytes; break;
    case Space::Shared: (read ? traffic.shared_read : traffic.shared_written) += bytes; break;
    case Space::SharedCluster:
      (read ? traffic.cluster_read : traffic.cluster_written) += bytes;
      break;
    case Space::Local: (read ? traffic.local_read : traffic.local_written) += bytes; break;
    default: break;  // parameters and constants
  }
}

void report_to_races(const Step& step, const Access& access, const Place& place, uint64_t bytes) {
  Region region;
  if (place.owner) {
    region = {Region::Is::Shared, place.owner};
  } else if (place.space != Space::Global) {
    return;  // a thread's own, or never written
  }
  if (!access.strong) {
    step.races()->touch(step, region, place.offset, bytes, access.touch, access.values);
    return;
  }
  const Races::Order order{access.strong->scope, access.touch != Touch::Write,
                           access.touch != Touch::Read, access.strong->acquires(),
                           access.strong->releases()};
  for (uint64_t done = 0; done < bytes; done += STRONG_BYTES) {
    step.races()->strong(step, region, place.offset + done, std::min(bytes - done, STRONG_BYTES),
                         order);
  }
}

Place reach(const Step& step, const Access& access, uint64_t address, int lane) {
  const Place place = locate(step, access, address, lane);
  count_traffic(step, access, place, 1);
  if (step.races()) report_to_races(step, access, place, access.bytes);
  return place;
}

std::byte* reach_shared(Cta& cta, uint32_t offset, uint32_t bytes, Touch touch) {
  const Access access{Space::Shared, bytes, touch, nullptr};
  const uint64_t address = cta.window() + offset;
  SharedMemory& shared = cta.shared;
  if (!shared.holds(offset, bytes)) {
    fail_bounds(access, Space::Shared, address, cta.window() + SHARED_START,
                cta.window() + shared.size());
  }
  Known* known = shared.known(offset);
  if (touch == Touch::Read) {
    check_known(known, cta.cluster.machine.options.uninitialised, access, Space::Shared, address);
  } else {
    const Known* barrier = std::find(known, known + bytes, Known::Barrier);
    if (barrier != known + bytes) {
      throw failure("BarrierBytesError", access, Space::Shared,
                    address + uint64_t(barrier - known));
    }
    shared.mark(offset, bytes, Known::Written);
  }
  return shared.at(offset);
}

std::byte* reach_global(Machine& machine, uint64_t address, uint64_t bytes, Touch touch) {
  if (!in_global(machine, address, bytes)) {
    fail_global(machine, {Space::Global, uint32_t(bytes), touch, nullptr}, address);
  }
  return reinterpret_cast<std::byte*>(address);
}

}  // namespace emu
