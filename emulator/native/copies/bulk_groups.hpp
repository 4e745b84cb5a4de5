// Bulk async-groups: the copies from shared to global memory that a thread has issued, and how far
// they have come.  PTX ISA, "cp.async.bulk.commit_group" and "cp.async.bulk.wait_group".
//
// What a block has committed has to be read before the block ends.  What was never committed nobody
// can wait for, and it may be read later: so flash-attn-4's backward stores the last of dK and dV.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "machine/engines.hpp"
#include "machine/lanes.hpp"

namespace emu {

class Step;
class Warp;

// The groups of the threads of one warp.
class BulkGroups {
 public:
  // Issue an operation of a thread, which happens in two steps: reading what it copies, and then
  // writing that.
  using Bytes = std::vector<std::byte>;
  void issue(const Step& step, int lane, std::function<Bytes()> read,
             std::function<void(const Bytes&)> write);
  void commit(const Step& step, int lane);
  // Whether all but the `count` most recent groups of a thread are complete, or have been read;
  // then the race detector is told.
  bool complete(const Step& step, int lane, uint32_t count, bool read_only);
  // At the end of the block: throws where a thread has not waited until what it committed is read.
  // That it happens to have been read by then does not matter.
  void check_read(const Warp& warp) const;
  std::string describe(int lane) const;

 private:
  // What has not happened of a group's operations.
  struct Left {
    uint32_t reading = 0;  // operations whose source has not been read
    uint32_t writing = 0;  // operations whose destination has not been written
    bool committed = false;
  };
  struct Group {
    std::shared_ptr<Left> left;
    uint32_t line = 0;  // of its last copy; 0: it has none
    uint32_t read_mark = 0, write_mark = 0;  // of the race detector's streams, at its commit
  };
  struct OfThread {
    std::shared_ptr<Left> open;
    uint32_t line = 0;  // of the last copy of the open group
    std::deque<Group> committed;  // the oldest first
    size_t read = 0;              // of them, those that were waited for with .read
  };
  std::map<int, OfThread> threads_;
  uint32_t operations_ = 0;
};

}  // namespace emu
