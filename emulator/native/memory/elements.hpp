// The registers that an operand of a memory access names, one or those of a vector, and values of
// 128 bits in them.
//
// Deliberately knows no memory.
#pragma once

#include <cstdint>

#include "machine/step.hpp"

namespace emu {

struct Wide {
  uint64_t low, high;
  bool operator==(const Wide& other) const { return low == other.low && high == other.high; }
};

// Call f(register, its index).
template <class F>
void each_element(const Step& step, const Operand& operand, F&& f) {
  if (operand.is != Operand::Is::Vector) return f(operand, 0u);
  for (uint32_t i = 0; i < operand.count; ++i) f(step.element(operand, i), i);
}

inline uint32_t elements_of(const Operand& operand) {
  return operand.is == Operand::Is::Vector ? operand.count : 1;
}

}  // namespace emu
