// How far the cp.async operations of a warp have come, and the groups that lanes commit them to.
//
// The copies of a warp happen in the order in which they were issued, all lanes of an instruction
// together; so an instruction's number says what has happened before it.  A device promises no
// order; whoever waits for a group cannot tell, since waiting for one waits for all before it.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "machine/lanes.hpp"

namespace emu {

class AsyncCopies {
 public:
  // A point in the sequence of copies: the number of an instruction, and the race detector's mark.
  struct Point {
    uint64_t number = 0;
    uint32_t mark = 0;
  };

  void issue(Lanes lanes);
  void finish() { ++finished_; }  // of the oldest that has not
  void commit(Lanes lanes, uint32_t mark);

  // What has to have happened for all but the latest `left` groups of each lane to be complete.
  Point before_latest(Lanes lanes, uint64_t left) const;
  // What has to have happened for all copies of these lanes, in groups or not.
  uint64_t last_of(Lanes lanes) const;
  bool reached(uint64_t number) const { return finished_ >= number; }
  uint64_t unfinished() const { return issued_ - finished_; }
  // These lanes have waited for what is up to here.
  void forget(Lanes lanes, uint64_t number);

 private:
  struct Group {
    Lanes lanes;
    Point last;
  };
  uint64_t issued_ = 0, finished_ = 0;
  std::array<uint64_t, WARP> last_{};  // number of each lane's latest copy
  std::vector<Group> groups_;          // that somebody may wait for, the oldest first
};

}  // namespace emu
