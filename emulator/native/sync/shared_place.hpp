// Where an object of shared memory lies that an instruction names: its block, and its offset there.
//
// Deliberately does not check what is there: mbarriers and copies do.
#pragma once

#include <cstdint>

#include "memory/access.hpp"

namespace emu {

struct SharedPlace {
  Cta* cta = nullptr;
  uint32_t offset = 0;
};

// Resolve an address of state space shared, shared::cluster, or a generic one of shared memory.
// Throws NotSharedAddressError for a generic address of other memory, NotOwnBlockError for an
// address of space shared that lies in another block, and what `shared_owner` throws.
SharedPlace shared_place(const Step& step, Space space, uint64_t address);
// The same, of the block itself: generic addresses of other blocks throw NotOwnBlockError too.
SharedPlace own_place(const Step& step, Space space, uint64_t address);

// The code for the space that an operand has, among three; null for other spaces.
struct BySpace {
  Execute generic, own, cluster;

  Execute of(const std::string& space) const {
    if (space == "generic") return generic;
    if (space == "shared") return own;
    return space == "shared::cluster" ? cluster : nullptr;
  }
};

}  // namespace emu
