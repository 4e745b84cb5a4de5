// The wgmma groups of a warp, and how far its products have come.  PTX ISA, "wgmma.commit_group"
// and "wgmma.wait_group".  The products of a warp happen in the order in which they are issued.
#pragma once

#include <cstdint>
#include <vector>

namespace emu {

class WgmmaGroups {
 public:
  bool fenced = false;  // the warp has executed wgmma.fence

  // A group of all products since the last one; `mark` is the race detector's.
  void commit(uint32_t mark) { marks_.push_back(mark); }
  void finish() { ++finished_; }  // the oldest that is not
  // How many groups, from the first on, a wait for all but the last `left` is for.
  uint64_t but(uint64_t left) const { return marks_.size() > left ? marks_.size() - left : 0; }
  bool done(uint64_t groups) const { return finished_ >= groups; }
  // The mark of the last of so many groups; 0 if there is none.
  uint32_t mark(uint64_t groups) const { return groups ? marks_[groups - 1] : 0; }
  uint64_t pending() const { return marks_.size() - finished_; }

 private:
  std::vector<uint32_t> marks_;  // of all groups
  uint64_t finished_ = 0;
};

}  // namespace emu
