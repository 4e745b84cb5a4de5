// From what an operation says to template parameters: the type of an operand, a rounding, a flag.
//
//     Binding bind_add(const Operation& op) {
//       return choose<uint32_t, int32_t>(op.type("d"), [](auto t) {
//         using T = decltype(t);
//         return Binding{lanewise<Add, T, T, T>};
//       });
//     }
//
// Each function calls one that takes a value whose type or constant is the parameter, and returns a
// null binding where the operation says what is not among the choices.
//
// Deliberately knows no instruction.
#pragma once

#include <cstdint>
#include <string_view>
#include <type_traits>

#include "arithmetic/formats.hpp"
#include "program/operation.hpp"

namespace emu {

// Whether T holds the values of a PTX type: integers by their sign, bits unsigned, f32 and f64.
template <class T>
inline bool holds(const Type& type) {
  if (type.bits != 8 * sizeof(T)) return false;
  if constexpr (std::is_floating_point_v<T>) return type.kind == Kind::Float;
  if (type.kind == Kind::Bits) return std::is_unsigned_v<T>;
  return type.kind == Kind::Integer && type.is_signed() == std::is_signed_v<T>;
}

// f(T{}) for the one of the types that holds values of a PTX type.
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

// f(std::true_type{}) or f(std::false_type{}).
template <class F>
inline Binding with_flag(bool given, F&& f) {
  return given ? f(std::true_type{}) : f(std::false_type{});
}

// f(std::integral_constant<Rounding, R>{}) for a rounding that an opcode names; without a name it
// is to nearest.
template <class F>
inline Binding with_rounding(std::string_view word, F&& f) {
  if (word.empty() || word == "rn" || word == "rni") {
    return f(std::integral_constant<Rounding, Rounding::Nearest>{});
  }
  if (word == "rz" || word == "rzi") return f(std::integral_constant<Rounding, Rounding::Zero>{});
  if (word == "rm" || word == "rmi") return f(std::integral_constant<Rounding, Rounding::Down>{});
  if (word == "rp" || word == "rpi") return f(std::integral_constant<Rounding, Rounding::Up>{});
  return {};
}

}  // namespace emu
