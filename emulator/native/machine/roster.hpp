// Lanes of warps, as reports name them: the same lanes of several warps of a block, of which the
// same is told, together.
//
// Deliberately does not know what is told.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "machine/cluster.hpp"

namespace emu {

class Roster {
 public:
  // `told` is what a report says of them.
  void add(const Warp& warp, Lanes lanes, const std::string& told = {}) {
    for (Entry& entry : entries_) {
      if (entry.cta == &warp.cta && entry.lanes == lanes && entry.told == told) {
        entry.warps |= 1u << warp.index;
        return;
      }
    }
    entries_.push_back({&warp.cta, 1u << warp.index, lanes, told});
  }
  // "block (0, 0, 0), warps 4-7, lanes 0-31", and what is told of them; one behind the other.
  std::string text(const char* separator) const {
    std::string text;
    for (const Entry& entry : entries_) {
      if (!text.empty()) text += separator;
      text += entry.cta->name(entry.warps, entry.lanes) + entry.told;
    }
    return text;
  }

 private:
  struct Entry {
    const Cta* cta;
    uint32_t warps;
    Lanes lanes;
    std::string told;
  };
  std::vector<Entry> entries_;
};

}  // namespace emu
