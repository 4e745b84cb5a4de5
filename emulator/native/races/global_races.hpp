// What the race detectors of all clusters share: the shadow of global memory, and the clocks that
// strong accesses leave at their addresses.
#pragma once

#include <cstdint>
#include <mutex>
#include <unordered_map>

#include "races/clock.hpp"
#include "races/shadow.hpp"

namespace emu {

class GlobalRaces {
 public:
  std::mutex mutex;
  Shadow shadow;
  ReaderSets sets;
  std::unordered_map<uint64_t, Location> locations;  // of their clocks, `others` alone is used
};

}  // namespace emu
