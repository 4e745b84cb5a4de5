// The checks behind `memory/access.hpp`: one access of one lane, neither counted nor reported to
// the race detector; and what the accesses of several lanes share.
#pragma once

#include <cstdint>

#include "machine/step.hpp"
#include "memory/access.hpp"

namespace emu {

class Machine;

Place locate(const Step& step, const Access& access, uint64_t address, int lane);

// The same for the addresses of all active lanes.  Where they lie in one range of one memory: where
// the lowest does.  Else the lanes were resolved one by one, and the place has no bytes.
Place locate_lanes(const Step& step, const Access& access, const Operand& address,
                   Reached& reached);

// A generic address: the space that it lies in, and which bits say so.
struct Window {
  Space space;
  uint64_t bits;
};
Window window_of(uint64_t address);

// Whether these bytes are part of one allocation, or of the module's variables.
bool in_global(const Machine& machine, uint64_t address, uint64_t bytes);

// Whether an access may go to a space at all: only some are written, or have atomic operations.
bool allowed(const Access& access, Space space);

void count_traffic(const Step& step, const Access& access, const Place& place, uint64_t lanes);
void report_to_races(const Step& step, const Access& access, const Place& place, uint64_t bytes);

}  // namespace emu
