// Loops over registers that hold several numbers: f16x2, bf16x2, f32x2.
//
// The first number is in the low bits, so a register of 32 lanes is an array of its numbers, and a
// full warp one loop over all of them.
//
// Deliberately knows no instruction.
#pragma once

#include <cstddef>
#include <tuple>
#include <utility>

#include "arithmetic/lane_loops.hpp"

namespace emu {

// Call f(index) for each of the COUNT elements of each lane.
template <int COUNT, class F>
inline void each_element(Lanes lanes, F&& f) {
  if (lanes == ALL_LANES) {
    EMU_INDEPENDENT
    for (int index = 0; index < COUNT * WARP; ++index) f(index);
    return;
  }
  for (; lanes; lanes &= lanes - 1) {
    EMU_INDEPENDENT
    for (int part = 0; part < COUNT; ++part) f(COUNT * lowest(lanes) + part);
  }
}

namespace lane_loops {

template <int COUNT, class Op, class D, class... In, std::size_t... I>
inline Flow elementwise(Step& step, std::index_sequence<I...>) {
  D* d = step.lanes<D>(0);
  const std::tuple<const In*...> in{step.lanes<In>(1 + int(I))...};
  each_element<COUNT>(step.active,
                      [=](int index) { d[index] = Op{}(std::get<I>(in)[index]...); });
  return Flow::Next;
}

}  // namespace lane_loops

// Operand 0 = Op(operand 1, operand 2, ...), for each of COUNT numbers of types D and In.
template <int COUNT, class Op, class D, class... In>
[[gnu::flatten]] Flow elementwise(Step& step) {
  return lane_loops::elementwise<COUNT, Op, D, In...>(step, std::index_sequence_for<In...>{});
}

}  // namespace emu
