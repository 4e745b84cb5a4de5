// What the race detectors of all clusters share: the shadow of global memory, and the clocks that
// strong accesses leave at its addresses.
#pragma once

#include <cstdint>
#include <mutex>
#include <unordered_map>

#include "races/clock.hpp"
#include "races/shadow.hpp"

namespace emu {

class GlobalRaces {
 public:
  // What strong accesses for all of the device have left for those that read the place.
  struct Location {
    TimesBy<uint32_t> happened;  // by cluster
    uint64_t releases = 0;
  };

  std::mutex mutex;
  Shadow shadow{Shadow::Of::Global};
  Recorder recorder;
  std::unordered_map<uint64_t, Location> locations;
};

}  // namespace emu
