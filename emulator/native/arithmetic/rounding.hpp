// Rounding of f32 in any direction, and what PTX adds to IEEE 754: flushing subnormal numbers to
// zero, saturation, one NaN.
//
// To round in a direction one has to know on which side of a number the exact result lies.  Sums,
// products and quotients of f32 are known exactly as the sum of two f64, so no rounding mode of the
// processor is needed: everything here is branch-free and vectorises.  It relies on the compiler
// for IEEE 754 arithmetic in round-to-nearest without contraction (-ffp-contract=off).
//
// Deliberately knows no instruction and no register.
#pragma once

#include <cmath>
#include <cstdint>

#include "arithmetic/formats.hpp"

namespace emu {

// ---- what PTX adds

inline float flush(float number) {
  return bits_as<float>(flush_bits<F32>(bits_as<uint32_t>(number)));
}
inline double flush(double number) {
  return bits_as<double>(flush_bits<F64>(bits_as<uint64_t>(number)));
}
template <bool FTZ>
inline float flush_if(float number) {
  return FTZ ? flush(number) : number;
}

// Into the range from 0 to 1, NaN to 0 (.sat).
template <class T>
inline T saturate(T number) {
  const T at_least = number > 0 ? number : T(0);
  return at_least < 1 ? at_least : T(1);
}

// Negative numbers become zero, NaN stays (.relu).
inline float relu(float number) { return number <= 0 ? 0.0f : number; }

// Every NaN that arithmetic of f32 produces has the same bits.
inline float canonical(float number) {
  return number != number ? bits_as<float>(NAN_F32) : number;
}

template <bool SAT>
inline float finish(float result) {
  return SAT ? saturate(result) : canonical(result);
}

// ---- rounding

// What a sum of two f64 lost: a + b is exactly sum + lost (Knuth, "The Art of Computer
// Programming", volume 2, 4.2.2, theorem B).  NaN when something is infinite.
inline double lost_in_sum(double a, double b, double sum) {
  const double rest = sum - a;
  return (a - (sum - rest)) + (b - rest);
}

// The number next to `number` in a direction, if the exact result lies on that side of it: `less`
// and `more` tell.  The neighbour of infinity is the greatest number, and zero has the sign of the
// exact result.
template <Rounding R>
inline float step_towards(float number, bool less, bool more) {
  if constexpr (R == Rounding::Nearest) return number;
  const uint32_t bits = bits_as<uint32_t>(number);
  const uint32_t negative = bits >> 31, positive = negative ^ 1;
  const uint32_t is_less = less, is_more = more;  // as numbers: no branches
  uint32_t inwards = 0, outwards = 0;             // towards zero, away from it
  if constexpr (R != Rounding::Up) inwards |= is_less & positive;
  if constexpr (R != Rounding::Down) inwards |= is_more & negative;
  if constexpr (R == Rounding::Down) outwards |= is_less & negative;
  if constexpr (R == Rounding::Up) outwards |= is_more & positive;
  return bits_as<float>(bits + outwards - inwards);
}

// To an integer, which stays a float.
template <Rounding R, class T>
inline T round_to_integer(T number) {
  if constexpr (R == Rounding::Zero) return std::trunc(number);
  if constexpr (R == Rounding::Down) return std::floor(number);
  if constexpr (R == Rounding::Up) return std::ceil(number);
  return std::rint(number);
}

// Round sum + lost to odd: what is not exact gets the neighbour whose last bit is 1.  Rounding that
// again to two bits less, or fewer, is as good as rounding the exact value (Boldo and Melquiond,
// "Emulation of a FMA and correctly rounded sums: proved algorithms using rounding to odd", 2008).
inline float round_to_odd(double sum, double lost) {
  const float nearest = float(sum);
  const double rest = (sum - double(nearest)) + lost;
  const uint32_t bits = bits_as<uint32_t>(nearest);
  const bool negative = bits >> 31;
  const uint32_t step = (rest < 0) == negative ? 1u : ~0u;
  const bool move = (rest < 0 || rest > 0) && (bits & 1) == 0;
  return bits_as<float>(bits + (move ? step : 0u));
}
inline double round_to_odd_f64(double sum, double lost) {
  const uint64_t bits = bits_as<uint64_t>(sum);
  const bool negative = bits >> 63;
  const uint64_t step = (lost < 0) == negative ? uint64_t(1) : ~uint64_t(0);
  const bool move = (lost < 0 || lost > 0) && (bits & 1) == 0;
  return bits_as<double>(bits + (move ? step : 0));
}

// Round sum + lost to f32 once, where `lost` is at most half a unit in the last place of `sum`.
template <Rounding R>
inline float round_sum(double sum, double lost) {
  if constexpr (R == Rounding::Nearest) return float(round_to_odd_f64(sum, lost));
  const float nearest = float(sum);
  const double rest = (sum - double(nearest)) + lost;  // its sign is exact
  return step_towards<R>(nearest, rest < 0, rest > 0);
}

// Whether sum + lost counts as subnormal for .ftz: it is below 2^-126 after rounding as if
// exponents had no end.  So hardware decides (H200).
template <Rounding R>
inline bool is_tiny(double sum, double lost) {
  return std::fabs(round_sum<R>(sum * 0x1p64, lost * 0x1p64)) < 0x1p-62f;
}

// A sum whose exact value is zero is -0 when rounding down, unless both addends are positive;
// `signs` has a sign bit if one of them is negative.
template <Rounding R>
inline float sign_zero_sum(float result, double sum, uint32_t signs) {
  if constexpr (R != Rounding::Down) return result;
  return sum == 0 ? bits_as<float>(signs & SIGN_OF<F32>) : result;
}

// ---- operations on f32, rounded once
// `tiny` tells whether .ftz makes zero of a result that is not subnormal once it is rounded.

template <Rounding R>
struct AddF32 {
  float operator()(float a, float b) const {
    if constexpr (R == Rounding::Nearest) return a + b;
    const double sum = double(a) + double(b);
    const float result = round_sum<R>(sum, lost_in_sum(a, b, sum));
    return sign_zero_sum<R>(result, sum, bits_as<uint32_t>(a) | bits_as<uint32_t>(b));
  }
  static bool tiny(float, float) { return false; }  // subnormal sums are exact
};

template <Rounding R>
struct SubF32 {
  float operator()(float a, float b) const { return AddF32<R>{}(a, -b); }
  static bool tiny(float, float) { return false; }
};

template <Rounding R>
struct MulF32 {
  float operator()(float a, float b) const {
    if constexpr (R == Rounding::Nearest) return a * b;
    return round_sum<R>(double(a) * double(b), 0);  // the product is exact
  }
  static bool tiny(float a, float b) { return is_tiny<R>(double(a) * double(b), 0); }
};

#if defined(__FMA__) || defined(__aarch64__)
#define EMU_HAS_FMA 1
#else
#define EMU_HAS_FMA 0
#endif

template <Rounding R>
struct FmaF32 {
  float operator()(float a, float b, float c) const {
    if constexpr (R == Rounding::Nearest && EMU_HAS_FMA) return std::fma(a, b, c);
    const double product = double(a) * double(b);  // exact
    const double sum = product + double(c);
    const double lost = lost_in_sum(product, c, sum);
    const uint32_t sign_of_product = bits_as<uint32_t>(a) ^ bits_as<uint32_t>(b);
    return sign_zero_sum<R>(round_sum<R>(sum, lost), sum, sign_of_product | bits_as<uint32_t>(c));
  }
  static bool tiny(float a, float b, float c) {
    const double product = double(a) * double(b);
    const double sum = product + double(c);
    return is_tiny<R>(sum, lost_in_sum(product, c, sum));
  }
};

template <Rounding R>
struct DivF32 {
  float operator()(float a, float b) const {
    const float nearest = a / b;
    if constexpr (R == Rounding::Nearest) return nearest;
    // The product is exact, and rounding the difference keeps its sign.
    const double rest = double(a) - double(nearest) * double(b);
    const bool swap = std::signbit(b);
    return step_towards<R>(nearest, swap ? rest > 0 : rest < 0, swap ? rest < 0 : rest > 0);
  }
  // A quotient below a power of two is so by more than rounding could make up for.
  static bool tiny(float a, float b) {
    return std::fabs(double(a)) < std::fabs(double(b)) * 0x1p-126;
  }
};

template <Rounding R>
struct RcpF32 {
  float operator()(float a) const { return DivF32<R>{}(1.0f, a); }
  static bool tiny(float a) { return DivF32<R>::tiny(1.0f, a); }
};

template <Rounding R>
struct SqrtF32 {
  float operator()(float a) const {
    const float nearest = std::sqrt(a);
    if constexpr (R == Rounding::Nearest) return nearest;
    const double rest = double(a) - double(nearest) * double(nearest);
    return step_towards<R>(nearest, rest < 0, rest > 0);
  }
  static bool tiny(float) { return false; }
};

}  // namespace emu
