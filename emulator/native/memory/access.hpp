// What instructions touch, checked: bounds, alignment, what is known of the bytes, and races.
//
// One door for all memories.  `reach_lanes` is for instructions in which each lane has an address:
// it resolves those of a whole warp at once where they lie in one range, else lane by lane.
// `reach` is for one address of one lane.  Engines come through `reach_shared` and `reach_global`,
// which check all but races (an asynchronous operation reports what it touches when it is issued,
// see `races/races.hpp`).
//
// Two lanes of one instruction that write the same bytes are no error: one of them wins, here the
// highest.  Whether they are a race is for the race detector, which is told of both.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "machine/step.hpp"
#include "memory/memory.hpp"

namespace emu {

struct Strength;  // memory/strength.hpp
class Rewriting;  // races/races.hpp

enum class Space : uint8_t { Generic, Global, Shared, SharedCluster, Local, Const, Param, Call };

// The space that a role or a modifier names; `shared` is that of the block itself.
Space space_named(const std::string& name);
// Its name in messages.
const char* name_of(Space space);

// Where an access lands.
struct Place {
  std::byte* bytes = nullptr;
  Space space = Space::Global;  // never Generic; SharedCluster in another block
  Cta* owner = nullptr;         // of shared memory
  uint64_t offset = 0;          // in that memory; the address for global memory
};

// What is done at an address.
struct Access {
  Space space = Space::Generic;
  uint32_t bytes = 0;  // a power of 2: addresses have to be multiples of it
  Touch touch = Touch::Read;
  const Strength* strong = nullptr;  // null for weak accesses; atomic ones are strong
  const Rewriting* values = nullptr;  // what a weak store writes, for the race detector
};

// Where the lanes of an instruction land: an address in this process for each.  That of a lane that
// is not active is that of one that is, so that loops may load from all of them.
struct Reached {
  uint64_t at[WARP];

  std::byte* operator[](int lane) const { return reinterpret_cast<std::byte*>(at[lane]); }
};

// Resolve and check an access of each active lane at the addresses of an operand, count it, and
// tell the race detector; throws Failure.  Marks what is written as known.
void reach_lanes(const Step& step, const Access& access, const Operand& address, Reached& reached);

// The same for one address of one lane.
Place reach(const Step& step, const Access& access, uint64_t address, int lane);
inline Place reach(const Step& step, Space space, uint64_t address, uint32_t bytes, Touch touch,
                   int lane) {
  return reach(step, {space, bytes, touch, nullptr}, address, lane);
}

// The addresses of an operand, for all 32 lanes; of lanes that are not active as in `Reached`.
void read_addresses(const Step& step, const Operand& address, uint64_t* addresses);

// Resolve a shared address of the cluster to a block and an offset; throws if the cluster has no
// such block, or its threads have exited.
Cta& shared_owner(const Step& step, uint64_t address);

// For engines: `bytes` bytes from an offset of a block's shared memory.  Reading bytes that are not
// known throws; writing marks them Written.  `cta` need not be that of the step.
std::byte* reach_shared(Cta& cta, uint32_t offset, uint32_t bytes, Touch touch);
// For engines: bytes of global memory.
std::byte* reach_global(Machine& machine, uint64_t address, uint64_t bytes, Touch touch);

}  // namespace emu
