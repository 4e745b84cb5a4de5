// The accesses of a whole warp: at once where the lanes' addresses lie in one range of one memory,
// else lane by lane.
//
// The first way only says yes: whatever it cannot grant goes the second way, which finds the lane
// that is wrong and says what is.
#include <algorithm>
#include <cstring>
#include <type_traits>

#include "machine/cluster.hpp"
#include "machine/machine.hpp"
#include "memory/access.hpp"
#include "memory/locate.hpp"
#include "races/races.hpp"

namespace emu {

namespace {

constexpr uint64_t EACH = 0x0101'0101'0101'0101;  // a one in each byte
constexpr uint64_t ALL_WRITTEN = EACH * uint64_t(Known::Written);

// `Known` has InFlight and Barrier in bit 1, which stops reads and writes alike.
constexpr uint64_t UNTOUCHABLE = EACH * 2;
static_assert((uint8_t(Known::InFlight) & 2) != 0 && (uint8_t(Known::Barrier) & 2) != 0);
static_assert(!(uint8_t(Known::Unwritten) & 2) && uint8_t(Known::Written) == 1);

// How the bytes that the lanes reach differ from written ones: the union over lanes and bytes.
template <class Word, int WORDS>
uint64_t differences(const Reached& reached, uint64_t known) {
  uint64_t result = 0;
  for (int lane = 0; lane < WARP; ++lane) {
    Word words[WORDS];
    std::memcpy(words, reinterpret_cast<const void*>(reached.at[lane] + known), sizeof words);
    for (Word word : words) result |= word ^ Word(ALL_WRITTEN);
  }
  return result;
}

uint64_t differences(const Reached& reached, uint64_t known, uint32_t bytes) {
  switch (bytes) {
    case 1: return differences<uint8_t, 1>(reached, known);
    case 2: return differences<uint16_t, 1>(reached, known);
    case 4: return differences<uint32_t, 1>(reached, known);
    case 8: return differences<uint64_t, 1>(reached, known);
    case 16: return differences<uint64_t, 2>(reached, known);
    default: return differences<uint64_t, 4>(reached, known);
  }
}

// Whether what is known of the bytes allows the access; `known` is added to their addresses.
bool check_known(const Step& step, const Access& access, const Reached& reached, uint64_t known) {
  const uint64_t differ = differences(reached, known, access.bytes);
  if (differ == 0) return true;
  if (differ & UNTOUCHABLE) return false;
  if (access.touch != Touch::Write && step.machine().options.uninitialised) return false;
  if (access.touch != Touch::Read) {
    for_each(step.active, [&](int lane) {
      std::memset(reinterpret_cast<void*>(reached.at[lane] + known), int(Known::Written),
                  access.bytes);
    });
  }
  return true;
}

void shift(Reached& reached, uint64_t by) {
  for (uint64_t& address : reached.at) address += by;
}

// Each lane has memory of its own, `stride` bytes behind the lane before.
void shift_lanes(Reached& reached, const void* first, uint64_t stride, uint64_t window) {
  const uint64_t start = reinterpret_cast<uintptr_t>(first) - window;
  for (int lane = 0; lane < WARP; ++lane) reached.at[lane] += start + stride * uint64_t(lane);
}

bool holds(uint64_t size, uint64_t low, uint64_t span) {
  return span <= size && low <= size - span;
}

uint64_t distance(const void* from, const void* to) {
  return reinterpret_cast<uintptr_t>(to) - reinterpret_cast<uintptr_t>(from);
}

// Resolve addresses between `low` and `high` at once, if they lie in one range; says where the
// lowest lies.
bool reach_range(const Step& step, const Access& access, Reached& reached, uint64_t low,
                 uint64_t high, Place& place) {
  Space space = access.space;
  uint64_t window = 0;
  if (space == Space::Generic) {
    if ((low ^ high) & WINDOW) return false;
    const Window found = window_of(low);
    space = found.space;
    window = found.bits;
    low -= window;
    high -= window;
  }
  if (high - low > SHARED_OFFSET || !allowed(access, space)) return false;
  const uint64_t span = high - low + access.bytes;
  place.space = space;
  place.offset = low;
  switch (space) {
    case Space::Shared:
    case Space::SharedCluster: {
      Cta* owner = &step.cta();
      if (low >> 24 != high >> 24) return false;
      if (low >> 24 != owner->rank) {
        if (space == Space::Shared) return false;
        owner = &shared_owner(step, low);
      }
      SharedMemory& shared = owner->shared;
      if (!shared.holds(low & SHARED_OFFSET, span)) return false;
      const uint64_t start = reinterpret_cast<uintptr_t>(shared.at(0));
      shift(reached, start - window - owner->window());
      place.owner = owner;
      place.offset = low & SHARED_OFFSET;
      place.space = owner == &step.cta() ? Space::Shared : Space::SharedCluster;
      return check_known(step, access, reached, distance(shared.at(0), shared.known(0)));
    }
    case Space::Local: {
      const uint64_t size = step.machine().program.local_bytes;
      if (!holds(size, low, span)) return false;
      shift_lanes(reached, step.warp.local(0), size, window);
      return check_known(step, access, reached,
                         distance(step.warp.local(0), step.warp.local_known(0)));
    }
    case Space::Call: {
      const uint64_t size = step.machine().program.call_bytes;
      if (!holds(size, low, span)) return false;
      shift_lanes(reached, step.warp.call(0), size, 0);
      return true;
    }
    case Space::Const:
    case Space::Param: {
      const auto& bytes =
          space == Space::Const ? step.machine().program.constant.bytes : step.machine().parameters;
      if (!holds(bytes.size(), low, span)) return false;
      shift(reached, reinterpret_cast<uintptr_t>(bytes.data()) - window);
      return true;
    }
    default: return in_global(step.machine(), low, span);
  }
}

void locate_each(const Step& step, const Access& access, Reached& reached) {
  uint64_t some = 0;
  for_each(step.active, [&](int lane) {
    const Place place = locate(step, access, reached.at[lane], lane);
    reached.at[lane] = some = reinterpret_cast<uintptr_t>(place.bytes);
  });
  for_each(~step.active, [&](int lane) { reached.at[lane] = some; });
}

// Tell the race detector what the lanes touch: neighbours in one piece.
void report_range(const Step& step, const Access& access, const Reached& reached, uint64_t low,
                  Place place) {
  const uint64_t origin = place.offset - low;
  uint64_t start = 0, stop = 0;
  const auto flush = [&] {
    if (start == stop) return;
    place.offset = origin + start;
    report_to_races(step, access, place, stop - start);
  };
  for_each(step.active, [&](int lane) {
    const uint64_t at = reached.at[lane];
    if (at != stop || start == stop || access.strong) {  // strong accesses are each by themselves
      if (at == start && at + access.bytes == stop && !access.strong) return;  // as the lane before
      flush();
      start = at;
    }
    stop = at + access.bytes;
  });
  flush();
}

// The least and greatest of the addresses, by their sign as integers: what is below zero is outside
// of every range.  And all their bits together.
struct Extent {
  uint64_t low, high, bits;
};

template <class T>
Extent read_base(const Step& step, const T* base, T plus, uint64_t* addresses) {
  using Signed = std::conditional_t<sizeof(T) == 8, int64_t, uint32_t>;
  T values[WARP];
  if (step.active == ALL_LANES) {
    for (int lane = 0; lane < WARP; ++lane) values[lane] = base[lane] + plus;
  } else {
    const T some = base[lowest(step.active)];
    for (int lane = 0; lane < WARP; ++lane) {
      values[lane] = (step.active >> lane & 1 ? base[lane] : some) + plus;
    }
  }
  Signed low = Signed(values[0]), high = low;
  T bits = 0;
  for (int lane = 0; lane < WARP; ++lane) {
    const Signed value = Signed(values[lane]);
    low = value < low ? value : low;
    high = value > high ? value : high;
    bits |= values[lane];
  }
  for (int lane = 0; lane < WARP; ++lane) addresses[lane] = values[lane];
  return {uint64_t(low), uint64_t(high), bits};
}

Extent read_extent(const Step& step, const Operand& address, uint64_t* addresses) {
  const uint64_t plus = uint64_t(address.value);
  if (address.place == NOWHERE) {
    std::fill_n(addresses, WARP, plus);
    return {plus, plus, plus};
  }
  if (address.bits == 32) {
    return read_base(step, step.lanes<uint32_t>(address), uint32_t(plus), addresses);
  }
  return read_base(step, step.lanes<uint64_t>(address), plus, addresses);
}

}  // namespace

void read_addresses(const Step& step, const Operand& address, uint64_t* addresses) {
  read_extent(step, address, addresses);
}

Place locate_lanes(const Step& step, const Access& access, const Operand& address,
                   Reached& reached) {
  const Extent extent = read_extent(step, address, reached.at);
  const uint64_t first = reached.at[0];
  Place place;
  if (extent.bits & (access.bytes - 1) ||
      !reach_range(step, access, reached, extent.low, extent.high, place)) {
    read_addresses(step, address, reached.at);
    locate_each(step, access, reached);
    return {};
  }
  // All moved by the same distance, but for memory of a thread's own.
  place.bytes = reinterpret_cast<std::byte*>(reached.at[0] - first + extent.low);
  return place;
}

void reach_lanes(const Step& step, const Access& access, const Operand& address, Reached& reached) {
  const Place place = locate_lanes(step, access, address, reached);
  if (!place.bytes) {
    uint64_t addresses[WARP];
    read_addresses(step, address, addresses);
    for_each(step.active, [&](int lane) { reach(step, access, addresses[lane], lane); });
    return;
  }
  count_traffic(step, access, place, uint64_t(count(step.active)));
  if (step.races() && place.space != Space::Local && place.space != Space::Call) {
    report_range(step, access, reached, reinterpret_cast<uintptr_t>(place.bytes), place);
  }
}

}  // namespace emu
