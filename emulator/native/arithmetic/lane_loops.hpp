// Loops over the lanes of a warp for instructions whose lanes do not see each other.
//
//     struct Add {
//       template <class T>
//       T operator()(T a, T b) const { return T(Modular<T>(a) + Modular<T>(b)); }
//     };
//     constexpr Execute ADD_U32 = lanewise<Add, uint32_t, uint32_t, uint32_t>;
//
// Operations are stateless functors, so that a full warp becomes a loop of known length that
// compilers vectorise.  They rely on registers being either the same place or disjoint places.
//
// Deliberately knows no instruction; `arithmetic/dispatch.hpp` finds the types of an operation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <tuple>
#include <type_traits>
#include <utility>

#include "machine/lanes.hpp"
#include "machine/step.hpp"

// No iteration of the loop that follows depends on another.
#if defined(__clang__)
#define EMU_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define EMU_INDEPENDENT _Pragma("GCC ivdep")
#else
#define EMU_INDEPENDENT
#endif

namespace emu {

// Call f(lane) for each lane, where f touches no other lane's elements than its own.
template <class F>
inline void each_lane(Lanes lanes, F&& f) {
  if (lanes == ALL_LANES) {
    EMU_INDEPENDENT
    for (int lane = 0; lane < WARP; ++lane) f(lane);
    return;
  }
  for (; lanes; lanes &= lanes - 1) f(lowest(lanes));
}

// ---- loops

namespace lane_loops {

template <class Op, class D, class... In, std::size_t... I>
inline Flow write(const Step& step, std::index_sequence<I...>) {
  D* d = step.lanes<D>(0);
  const std::tuple<const In*...> in{step.lanes<In>(1 + int(I))...};
  each_lane(step.active, [=](int lane) { d[lane] = Op{}(std::get<I>(in)[lane]...); });
  return Flow::Next;
}

template <class Op, class... In, std::size_t... I>
inline Lanes test(const Step& step, int first, std::index_sequence<I...>) {
  const std::tuple<const In*...> in{step.lanes<In>(first + int(I))...};
  Lanes result = 0;
  each_lane(step.active, [&](int lane) {
    result |= Lanes(bool(Op{}(std::get<I>(in)[lane]...))) << lane;
  });
  return result;
}

}  // namespace lane_loops

// Operand 0 = Op(operand 1, operand 2, ...), whose types are D and In.  Everything is inlined into
// the loop, whatever the compiler thinks of its size: with a call in it the loop is not vectorised.
template <class Op, class D, class... In>
[[gnu::flatten]] Flow lanewise(Step& step) {
  return lane_loops::write<Op, D, In...>(step, std::index_sequence_for<In...>{});
}

// The active lanes for which Op(operand `first`, operand `first` + 1, ...) holds.
template <class Op, class... In>
Lanes test_lanes(const Step& step, int first) {
  return lane_loops::test<Op, In...>(step, first, std::index_sequence_for<In...>{});
}

// Predicate 0 = Op(operand 1, operand 2, ...).
template <class Op, class... In>
Flow lanewise_test(Step& step) {
  step.set_predicate(0, test_lanes<Op, In...>(step, 1));
  return Flow::Next;
}

// ---- integer types

template <class T>
constexpr uint32_t BITS = 8 * sizeof(T);

// Where arithmetic wraps around: unsigned, and not promoted to int.
template <class T>
using Modular = std::conditional_t<(sizeof(T) < 4), uint32_t, std::make_unsigned_t<T>>;

// The integer of twice the size and the same sign.
template <class T>
struct WidenInteger;
template <> struct WidenInteger<uint16_t> { using type = uint32_t; };
template <> struct WidenInteger<int16_t> { using type = int32_t; };
template <> struct WidenInteger<uint32_t> { using type = uint64_t; };
template <> struct WidenInteger<int32_t> { using type = int64_t; };
template <> struct WidenInteger<uint64_t> { using type = unsigned __int128; };
template <> struct WidenInteger<int64_t> { using type = __int128; };
template <class T>
using Wide = typename WidenInteger<T>::type;

}  // namespace emu
