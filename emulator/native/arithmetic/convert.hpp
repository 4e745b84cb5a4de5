// How conversions read and write registers, which may be wider than the types they convert.
//
// PTX ISA, "Operand Size Exceeding Instruction-Type Size": of a wider source the low bits count; a
// result is extended to a wider register, with its sign if it is a signed integer, else with zeros.
#pragma once

#include <cstdint>
#include <type_traits>

#include "arithmetic/formats.hpp"
#include "arithmetic/lane_loops.hpp"

namespace emu {

namespace conversion {

template <std::size_t SIZE>
struct BitsOfSize;
template <> struct BitsOfSize<1> { using type = uint8_t; };
template <> struct BitsOfSize<2> { using type = uint16_t; };
template <> struct BitsOfSize<4> { using type = uint32_t; };
template <> struct BitsOfSize<8> { using type = uint64_t; };
template <class T>
using BitsOf = typename BitsOfSize<sizeof(T)>::type;

// The value of a type in the low bits of a register.
template <class T>
inline T from_register(uint64_t bits) {
  return bits_as<T>(BitsOf<T>(bits));
}

// The bits of a register that gets a value.
template <class T>
inline uint64_t to_register(T value) {
  if constexpr (std::is_integral_v<T>) return uint64_t(int64_t(value));  // as the type's sign says
  else return bits_as<BitsOf<T>>(value);
}

}  // namespace conversion

// Operand 0 = f(operand 1), on the bits of registers of any size.
inline Flow convert_by_lane(Step& step, uint64_t (*f)(uint64_t)) {
  const Operand &to = step.operand(0), &from = step.operand(1);
  for_each(step.active, [&](int lane) { step.write(to, lane, f(step.read(from, lane))); });
  return Flow::Next;
}

// Operand 0 = Op(operand 1), types D and S, in registers of any size.  Conversions that kernels use
// much are FAST, where sizes agree: a vectorised loop for each of the others would take long to
// compile.
template <class Op, class D, class S, bool FAST>
Flow convert(Step& step) {
  if constexpr (FAST && sizeof(D) > 1 && sizeof(S) > 1) {  // no register has 8 bits
    if (step.operand(0).bits == 8 * sizeof(D) && step.operand(1).bits == 8 * sizeof(S)) {
      return lanewise<Op, D, S>(step);
    }
  }
  return convert_by_lane(step, [](uint64_t bits) {
    return conversion::to_register<D>(Op{}(conversion::from_register<S>(bits)));
  });
}

// ---- the types that conversions of one number are between

// A format in a register, as f32: f16 and bf16 in 16 bits.
template <class F>
struct InRegister {
  using Register = uint16_t;
  using Number = float;
  static Number read(Register bits) { return widen<F>(bits); }
};
template <>
struct InRegister<float> {
  using Register = float;
  using Number = float;
  static Number read(Register number) { return number; }
};
template <>
struct InRegister<double> {
  using Register = double;
  using Number = double;
  static Number read(Register number) { return number; }
};

template <class F>
using RegisterOf = typename InRegister<F>::Register;

// f(tag) with a tag whose `type` is F16, BF16, float or double; a null binding for other types.
template <class F>
struct FormatTag {
  using type = F;
};
template <class F>
inline Binding with_format(const Type& type, F&& f) {
  if (type.is("f32")) return f(FormatTag<float>{});
  if (type.is("f16")) return f(FormatTag<F16>{});
  if (type.is("bf16")) return f(FormatTag<BF16>{});
  if (type.is("f64")) return f(FormatTag<double>{});
  return {};
}

}  // namespace emu
