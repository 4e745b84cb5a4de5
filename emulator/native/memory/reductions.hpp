// What atomic operations and reductions make of two values.  PTX ISA, "atom", "red", and the
// reductions among asynchronous copies.
//
// Values are elements as they lie in memory; packed types are two elements.  Floating-point sums
// round to nearest and keep subnormal numbers, but for `AddFlushing`.  Minima and maxima of floats
// are those of `min` and `max`: a number before NaN, -0 before +0.
//
// Deliberately knows no address.
#pragma once

#include <cstdint>
#include <string_view>
#include <type_traits>

#include "arithmetic/formats.hpp"
#include "arithmetic/rounding.hpp"
#include "program/operation.hpp"

namespace emu {

// An element of a floating-point format of 16 bits.
template <class Format>
struct Narrow {
  uint16_t bits;

  float number() const { return widen<Format>(bits); }
  bool is_nan() const { return number() != number(); }
  // As integers these have the order of the numbers, -0 below +0.
  int32_t order() const { return bits & 0x8000 ? -1 - (bits & 0x7FFF) : bits; }
};

namespace reductions {

struct And {
  template <class T>
  T operator()(T a, T b) const {
    return T(a & b);
  }
};
struct Or {
  template <class T>
  T operator()(T a, T b) const {
    return T(a | b);
  }
};
struct Xor {
  template <class T>
  T operator()(T a, T b) const {
    return T(a ^ b);
  }
};

constexpr uint64_t QUIET_F64 = uint64_t{1} << 51;

struct Add {
  template <class T>
  T operator()(T a, T b) const {
    return T(std::make_unsigned_t<T>(a) + std::make_unsigned_t<T>(b));
  }
  float operator()(float a, float b) const { return canonical(a + b); }
  // NaN keeps its bits, of two the second one's, as in add.f64 (H200).
  double operator()(double a, double b) const {
    const double sum = a + b;
    if (sum == sum) return sum;
    const double nan = b != b ? b : a;
    return bits_as<double>(nan == nan ? NAN_F64 : bits_as<uint64_t>(nan) | QUIET_F64);
  }
  // The sum as f32 has more than twice the bits of the format, so rounding it again is harmless.
  template <class Format>
  Narrow<Format> operator()(Narrow<Format> a, Narrow<Format> b) const {
    return {uint16_t(narrow<Format>(a.number() + b.number()))};
  }
};
// f32 in global memory: "flushes subnormal inputs and results to sign-preserving zero".
struct AddFlushing {
  float operator()(float a, float b) const { return flush(canonical(flush(a) + flush(b))); }
};

template <bool GREATER>
struct Extreme {
  template <class T>
  T operator()(T a, T b) const {
    return (a < b) == GREATER ? b : a;
  }
  template <class Format>
  Narrow<Format> operator()(Narrow<Format> a, Narrow<Format> b) const {
    if (a.is_nan()) return b.is_nan() ? Narrow<Format>{uint16_t(Format::NOT_A_NUMBER)} : b;
    if (b.is_nan()) return a;
    return (a.order() < b.order()) == GREATER ? b : a;
  }
};
using Min = Extreme<false>;
using Max = Extreme<true>;

struct Increment {
  uint32_t operator()(uint32_t a, uint32_t b) const { return a >= b ? 0 : a + 1; }
};
struct Decrement {
  uint32_t operator()(uint32_t a, uint32_t b) const { return a == 0 || a > b ? b : a - 1; }
};

template <class T>
struct As {
  using type = T;
};

}  // namespace reductions

// The name of the reduction that a modifier is, for `with_reduction`; empty without one.
inline std::string_view reduction_of(const Operation& op) {
  return op.first_of({"boolean", "add", "inc_dec", "min_max"});
}

// f(operation, As<type>) for the name of an operation and the type of its operands; what f returns,
// or an empty result where they do not go together.
template <class F>
auto with_reduction(std::string_view name, const Type& type, F&& f)
    -> decltype(f(reductions::And{}, reductions::As<uint32_t>{})) {
  namespace r = reductions;
  const bool wide = type.bits == 64;
  const auto bitwise = [&](auto op) {
    return wide ? f(op, r::As<uint64_t>{}) : f(op, r::As<uint32_t>{});
  };
  const auto narrow_float = [&](auto op) -> decltype(bitwise(r::And{})) {
    if (type.is("f16") || type.is("f16x2")) return f(op, r::As<Narrow<F16>>{});
    if (type.is("bf16") || type.is("bf16x2")) return f(op, r::As<Narrow<BF16>>{});
    return {};
  };
  const auto ordered = [&](auto op) -> decltype(bitwise(r::And{})) {
    if (type.is("s32")) return f(op, r::As<int32_t>{});
    if (type.is("s64")) return f(op, r::As<int64_t>{});
    if (type.is("u32") || type.is("u64")) return bitwise(op);
    return narrow_float(op);
  };
  if (name == "and") return bitwise(r::And{});
  if (name == "or") return bitwise(r::Or{});
  if (name == "xor") return bitwise(r::Xor{});
  if (name == "inc") return f(r::Increment{}, r::As<uint32_t>{});
  if (name == "dec") return f(r::Decrement{}, r::As<uint32_t>{});
  if (name == "min") return ordered(r::Min{});
  if (name == "max") return ordered(r::Max{});
  if (name != "add") return {};
  if (type.is("f32")) return f(r::Add{}, r::As<float>{});
  if (type.is("f64")) return f(r::Add{}, r::As<double>{});
  return ordered(r::Add{});
}

}  // namespace emu
