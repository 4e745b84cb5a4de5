// Where asynchronous writes to shared memory land, and the mbarriers on which they complete.
//
// Copies, remote stores and the responses of cluster launch control all end in the same way: bytes
// arrive in the shared memory of one block or several, and as many bytes are completed on an
// mbarrier of each.  From its issue until then a destination holds poison.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "races/races.hpp"
#include "sync/shared_place.hpp"

namespace emu {

struct Landing {
  SharedPlace to, barrier;

  // When bytes arrive: where they go.  Throws ExitedDestinationError, and what `reach_shared` does.
  std::byte* reach(uint32_t bytes, Touch touch = Touch::Write) const;
  void complete(uint32_t bytes) const;
  // The same operation, at another offset of the same block.
  Landing at(uint32_t offset) const { return {{to.cta, offset}, barrier}; }
};

using Landings = std::vector<Landing>;

// Which mbarrier goes with a destination.
enum class Pairing : uint8_t {
  Same,  // one in the same block
  Pair,  // cta_group::2: one in the same pair of blocks, of all pairs the even or the odd one
};

// The landing of an operation at one place; throws CopyBarrierError for an mbarrier in another
// block than `pairing` allows.
Landings landing_at(const SharedPlace& to, const SharedPlace& barrier, Pairing pairing);
// Landings at the same offsets in each block of a mask of ranks; throws MulticastError for blocks
// that the cluster has not, or whose threads have exited.
Landings landings_in(const Step& step, const SharedPlace& to, const SharedPlace& barrier,
                     uint32_t blocks, Pairing pairing);

// What is in the memory that an operation writes, until it does.
enum class Meanwhile : uint8_t {
  Poison,
  Same,  // what was there: the operation updates it
};

// At the issue of an operation: check the mbarrier.  Returns who the operation is for the race
// detector; nothing of use without one.
Races::Issued begin(const Step& step, const Landing& landing);
// At its issue: check a destination, fill it, and tell the race detector.
void occupy(const Step& step, const Races::Issued& issued, const SharedPlace& to, uint32_t bytes,
            Meanwhile meanwhile = Meanwhile::Poison);
// Both, for the destination of the landing.
Races::Issued announce(const Step& step, const Landing& landing, uint32_t bytes,
                       Meanwhile meanwhile = Meanwhile::Poison);

// Throws CopyAlignmentError unless a value is a multiple of `unit`; `what` names it.
void check_multiple(const char* what, uint64_t value, uint32_t unit);

}  // namespace emu
