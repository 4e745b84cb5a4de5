// Instructions that write a range at once: st.bulk and discard.  PTX ISA, "Data Movement and
// Conversion Instructions: st.bulk, discard".
//
// Deliberately does not do bulk copies (`copies/`).
#include <algorithm>
#include <cstring>
#include <string>

#include "machine/cluster.hpp"
#include "machine/machine.hpp"
#include "machine/step.hpp"
#include "memory/access.hpp"
#include "memory/locate.hpp"
#include "program/operation.hpp"
#include "races/races.hpp"

namespace emu {

namespace {

[[noreturn]] void fail_size(uint64_t size, uint64_t address, int64_t value, const char* wanted) {
  throw Failure("FillSizeError")
      .with("size", int64_t(size))
      .hex("address", address)
      .with("value", value)
      .with("wanted", wanted);
}

// st.bulk [a], size, 0: zeros, 8 at a time, in the block's own shared memory.
template <Space SPACE>
Flow store_zeros(Step& step) {
  constexpr uint32_t UNIT = 8;
  const int64_t value = step.operand(2).value;
  uint64_t addresses[WARP];
  read_addresses(step, step.operand(0), addresses);
  Cta& cta = step.cta();
  for_each(step.active, [&](int lane) {
    const uint64_t size = step.lanes<uint64_t>(1)[lane];
    if (size % UNIT || size > cta.shared.size() || value) {
      fail_size(size, addresses[lane], value,
                "multiples of 8 bytes that shared memory has room for, and the value 0");
    }
    // The first 8 bytes are found and checked as those of a store; the others follow them.
    if (!size) return;
    const Place place = locate(step, {SPACE, UNIT, Touch::Write, nullptr}, addresses[lane], lane);
    if (place.owner != &cta) {
      locate(step, {Space::Shared, UNIT, Touch::Write, nullptr}, addresses[lane], lane);  // throws
    }
    const uint32_t offset = uint32_t(place.offset);
    for (uint32_t at = UNIT; at < size; at += UNIT) {
      locate(step, {Space::Shared, UNIT, Touch::Write, nullptr}, cta.window() + offset + at, lane);
    }
    std::memset(cta.shared.at(offset), 0, size);
    step.cluster().counters.traffic.shared_written += size;
    if (step.races()) {
      step.races()->touch(step, {Region::Is::Shared, &cta}, offset, size, Touch::Write);
    }
  });
  step.effect();
  return Flow::Next;
}

// discard.L2 [a], 128: the bytes have no value until they are written again; here they are poison.
template <Space SPACE>
Flow discard(Step& step) {
  constexpr uint32_t LINE = 128;
  const int64_t size = step.operand(1).value;
  uint64_t addresses[WARP];
  read_addresses(step, step.operand(0), addresses);
  for_each(step.active, [&](int lane) {
    if (size != LINE) fail_size(uint64_t(size), addresses[lane], 0, "128 bytes");
    const Place place = reach(step, SPACE, addresses[lane], LINE, Touch::Write, lane);
    std::memset(place.bytes, POISON, LINE);
  });
  step.effect();
  return Flow::Next;
}

Binding bind_store_zeros(const Operation& op) {
  op.implied({"weak"});
  const bool generic = space_named(op.space("a")) == Space::Generic;
  return {generic ? store_zeros<Space::Generic> : store_zeros<Space::Shared>};
}

Binding bind_discard(const Operation& op) {
  op.implied({"L2"});  // the level
  const bool generic = space_named(op.space("a")) == Space::Generic;
  return {generic ? discard<Space::Generic> : discard<Space::Global>};
}

const Registration registration{{"st.bulk", bind_store_zeros}, {"discard", bind_discard}};

}  // namespace

}  // namespace emu
