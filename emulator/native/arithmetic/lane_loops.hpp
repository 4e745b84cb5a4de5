// Loops over the lanes of a warp for instructions whose lanes do not see each other, and the choice
// of the C++ type that holds values of a PTX type.
//
//     struct Add {
//       template <class T>
//       T operator()(T a, T b) const { return T(Modular<T>(a) + Modular<T>(b)); }
//     };
//     Binding bind_add(const Operation& op) {
//       return choose<uint32_t, int32_t>(op.type("d"), [](auto t) {
//         using T = decltype(t);
//         return Binding{lanewise<Add, T, T, T>};
//       });
//     }
//
// Operations are stateless functors, so that a full warp becomes a loop of known length that
// compilers vectorise.  They rely on registers being either the same place or disjoint places.
//
// Deliberately knows no instruction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <tuple>
#include <type_traits>
#include <utility>

#include "machine/lanes.hpp"
#include "machine/step.hpp"
#include "program/operation.hpp"

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

// ---- types

// Whether T holds the values of a PTX type: integers by their sign, bits unsigned, f32 and f64.
template <class T>
inline bool holds(const Type& type) {
  if (type.bits != 8 * sizeof(T)) return false;
  if constexpr (std::is_floating_point_v<T>) return type.kind == Kind::Float;
  if (type.kind == Kind::Bits) return std::is_unsigned_v<T>;
  return type.kind == Kind::Integer && type.is_signed() == std::is_signed_v<T>;
}

// f(T{}) for the one of the types that holds values of a PTX type, a null binding if none does.
template <class... Ts, class F>
inline Binding choose(const Type& type, F&& f) {
  Binding found;
  (void)((holds<Ts>(type) && (found = f(Ts{}), true)) || ...);
  return found;
}

// The same by size alone, for code that only moves bits: T is one of the unsigned types given.
template <class... Ts, class F>
inline Binding choose_size(uint32_t bits, F&& f) {
  Binding found;
  (void)((bits == 8 * sizeof(Ts) && (found = f(Ts{}), true)) || ...);
  return found;
}

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
