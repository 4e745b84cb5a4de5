// The special registers that count: %clock, %clock64, %globaltimer and their halves.
//
// Time is not modelled.  What a warp reads is how many instructions it has executed, and more than
// it has read before: so that loops that wait for time to pass end, under every schedule.  All
// clocks are this one; those of different warps have nothing to do with each other.
#include <algorithm>

#include "machine/step.hpp"
#include "machine/warp.hpp"
#include "program/operation.hpp"

namespace emu {

namespace {

template <class T, int SHIFT>
Flow read_clock(Step& step) {
  uint64_t& clock = step.warp.clock;
  clock = std::max(clock, step.warp.executed) + 1;
  const T value = T(clock >> SHIFT);
  T* d = step.lanes<T>(0);
  for_each(step.active, [&](int lane) { d[lane] = value; });
  return Flow::Yield;
}

// Python's decoder makes this operation of `mov` from such a register, and has the register's name
// where an operand has its space.
Binding bind_counter(const Operation& operation) {
  const std::string& name = operation.space("a");
  const bool upper = name == "clock_hi" || name == "globaltimer_hi";
  if (operation.type("d").bits == 64) return {read_clock<uint64_t, 0>, true};
  return {upper ? read_clock<uint32_t, 32> : read_clock<uint32_t, 0>, true};
}

const Registration registration{{"mov.counter", bind_counter}};

}  // namespace

}  // namespace emu
