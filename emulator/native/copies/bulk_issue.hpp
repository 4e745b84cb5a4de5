// What the race detector is told of a copy out of shared memory: its two parts, reading and
// writing.
//
// Those of all lanes of an instruction count as one, as with stores: kernels let a whole warp issue
// the same copy.
#pragma once

#include "machine/step.hpp"
#include "races/races.hpp"

namespace emu {

struct BulkIssue {
  explicit BulkIssue(const Step& step) {
    Races* races = step.races();
    if (!races) return;
    reads = races->issue(step, Races::Stream::BulkRead);
    writes = races->issue(step, Races::Stream::BulkWrite);
  }

  Races::Issued reads, writes;
};

}  // namespace emu
