// Floating-point formats narrower than f32, and the conversions between their bits and numbers.
//
// A format is a struct of constants; `widen` makes f32 of its bits, which is exact, and `narrow`
// rounds f32 or f64 once, in any direction.  Both are plain integer arithmetic without branches, so
// that loops over them vectorise; `widen_all` and `narrow_all` are such loops, for operands of
// matrices.
//
// Formats: PTX ISA, "Alternate Floating-Point Data Formats"; OCP, "Microscaling Formats (MX)
// Specification" v1.0.
//
// Deliberately knows no instruction and no register.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace emu {

template <class To, class From>
inline To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

// Where a result goes that lies between two numbers of a format.
enum class Rounding : uint8_t {
  Nearest,      // .rn: ties to even
  Zero,         // .rz
  Down,         // .rm
  Up,           // .rp
  NearestAway,  // .rna: ties away from zero
  Stochastic,   // .rs: away from zero when random bits carry
};

// ---- formats
// `INFINITE` is 0 where there is no infinity.  `NOT_A_NUMBER` is what NaN becomes: the canonical
// NaN of the format, or its greatest number where it has no NaN.

struct F16 {
  using Bits = uint16_t;
  static constexpr int EXPONENT = 5, MANTISSA = 10, BIAS = 15;
  static constexpr uint32_t GREATEST = 0x7BFF, INFINITE = 0x7C00, NOT_A_NUMBER = 0x7FFF;
};
struct BF16 {
  using Bits = uint16_t;
  static constexpr int EXPONENT = 8, MANTISSA = 7, BIAS = 127;
  static constexpr uint32_t GREATEST = 0x7F7F, INFINITE = 0x7F80, NOT_A_NUMBER = 0x7FFF;
};
// As 19 bits; registers and memory hold it in the upper bits of 32, see `widen_tf32`.
struct TF32 {
  using Bits = uint32_t;
  static constexpr int EXPONENT = 8, MANTISSA = 10, BIAS = 127;
  static constexpr uint32_t GREATEST = 0x3FBFF, INFINITE = 0x3FC00, NOT_A_NUMBER = 0x3FFFF;
};
struct E4M3 {
  using Bits = uint8_t;
  static constexpr int EXPONENT = 4, MANTISSA = 3, BIAS = 7;
  static constexpr uint32_t GREATEST = 0x7E, INFINITE = 0, NOT_A_NUMBER = 0x7F;
};
struct E5M2 {
  using Bits = uint8_t;
  static constexpr int EXPONENT = 5, MANTISSA = 2, BIAS = 15;
  static constexpr uint32_t GREATEST = 0x7B, INFINITE = 0x7C, NOT_A_NUMBER = 0x7F;
};
struct E2M3 {
  using Bits = uint8_t;
  static constexpr int EXPONENT = 2, MANTISSA = 3, BIAS = 1;
  static constexpr uint32_t GREATEST = 0x1F, INFINITE = 0, NOT_A_NUMBER = 0x1F;
};
struct E3M2 {
  using Bits = uint8_t;
  static constexpr int EXPONENT = 3, MANTISSA = 2, BIAS = 3;
  static constexpr uint32_t GREATEST = 0x1F, INFINITE = 0, NOT_A_NUMBER = 0x1F;
};
struct E2M1 {
  using Bits = uint8_t;
  static constexpr int EXPONENT = 2, MANTISSA = 1, BIAS = 1;
  static constexpr uint32_t GREATEST = 0x7, INFINITE = 0, NOT_A_NUMBER = 0x7;
};

template <class F>
inline constexpr uint32_t SIGN_OF = 1u << (F::EXPONENT + F::MANTISSA);

constexpr uint32_t NAN_F32 = 0x7FFF'FFFF;  // what arithmetic makes of any NaN
constexpr uint64_t NAN_F64 = 0xFFF8'0000'0000'0000;  // what an invalid operation gives

// ---- to f32
// The number that the low bits stand for; bits above the format's are ignored.  NaN becomes
// NAN_F32, unless it is to keep its sign and its bits.
template <class F, bool KEEP_NAN = false>
inline float widen(uint32_t bits) {
  constexpr int SHIFT = 23 - F::MANTISSA;
  const uint32_t magnitude = bits & (SIGN_OF<F> - 1);
  const uint32_t sign = (bits & SIGN_OF<F>) << (31 - F::EXPONENT - F::MANTISSA);
  uint32_t result = magnitude << SHIFT;
  if constexpr (F::BIAS == 127) {
    result = result > 0x7F80'0000 && !KEEP_NAN ? NAN_F32 : result | sign;
  } else {
    // The weight of the last bit of a subnormal number is 2 to the power 1 - BIAS - MANTISSA.
    const float last = bits_as<float>(uint32_t(128 - F::BIAS - F::MANTISSA) << 23);
    const uint32_t subnormal = bits_as<uint32_t>(float(int32_t(magnitude)) * last);
    result = magnitude >> F::MANTISSA ? result + (uint32_t(127 - F::BIAS) << 23) : subnormal;
    if constexpr (F::INFINITE != 0) result = magnitude == F::INFINITE ? 0x7F80'0000 : result;
    result |= sign;
    if constexpr (F::NOT_A_NUMBER > F::GREATEST) {
      constexpr uint32_t LAST_NUMBER = F::INFINITE != 0 ? F::INFINITE : F::GREATEST;
      const uint32_t nan = KEEP_NAN ? sign | magnitude << SHIFT | 0x7F80'0000 : NAN_F32;
      result = magnitude > LAST_NUMBER ? nan : result;
    }
  }
  return bits_as<float>(result);
}

// A tf32 operand in a 32-bit register: its low 13 bits are ignored.
inline float widen_tf32(uint32_t bits) { return bits_as<float>(bits & 0xFFFF'E000); }

// A scale: powers of two from 2^-127 to 2^127, and NaN.
inline float widen_ue8m0(uint32_t bits) {
  const uint32_t exponent = bits & 0xFF;
  const uint32_t scale = exponent == 0 ? 0x0040'0000 : exponent << 23;
  return bits_as<float>(exponent == 0xFF ? NAN_F32 : scale);
}

// ---- from f32 and f64

template <class Source>
struct SourceFormat;
template <>
struct SourceFormat<float> {
  using Bits = uint32_t;
  static constexpr int MANTISSA = 23, BIAS = 127;
};
template <>
struct SourceFormat<double> {
  using Bits = uint64_t;
  static constexpr int MANTISSA = 52, BIAS = 1023;
};

// The bits of a number, rounded.  What is too great becomes infinity or the greatest number, as the
// rounding says; with FINITE always the greatest number, infinity too.  Random bits (stochastic
// rounding only) are `RANDOM` many, added to the first ones that are cut off.
template <class F, Rounding R = Rounding::Nearest, bool FINITE = false, int RANDOM = 16,
          class Source>
inline uint32_t narrow(Source number, uint32_t random = 0) {
  static_assert(FINITE || F::INFINITE != 0, "a format without infinity saturates");
  using From = SourceFormat<Source>;
  constexpr bool AT_RANDOM = R == Rounding::Stochastic;
  using Bits = std::conditional_t<AT_RANDOM, uint64_t, typename From::Bits>;
  constexpr int SIGN_AT = 8 * sizeof(Source) - 1;
  constexpr int CUT = From::MANTISSA - F::MANTISSA;
  // How far subnormal numbers are shifted: what is less than that is cut off without a trace.
  constexpr Bits FARTHEST = F::MANTISSA + 2 + (AT_RANDOM ? RANDOM : 0);
  constexpr Bits ONE = Bits(1) << From::MANTISSA;  // a step of the exponent
  constexpr Bits INFINITE = Bits(2 * From::BIAS + 1) << From::MANTISSA;
  // The exponent field in the source of the format's least normal number.
  constexpr Bits LEAST = Bits(From::BIAS - F::BIAS + 1);

  const Bits bits = bits_as<typename From::Bits>(number);
  const Bits sign = bits >> SIGN_AT;
  const Bits magnitude = bits & ((Bits(1) << SIGN_AT) - 1);

  // `value >> cut` are the format's bits before rounding: exponent and mantissa of a normal number,
  // where carries go into the exponent, or the shifted significand of a subnormal one.
  Bits value = magnitude;
  Bits cut = CUT;
  if constexpr (LEAST > 1) {
    const Bits exponent = magnitude >> From::MANTISSA;
    const Bits significand = (magnitude & (ONE - 1)) | (exponent != 0 ? ONE : 0);
    Bits below = exponent < LEAST ? LEAST - exponent : 0;
    below = below < FARTHEST ? below : FARTHEST;
    value = exponent < LEAST ? significand : magnitude - (LEAST - 1) * ONE;
    cut += below;
  }
  const Bits unit = Bits(1) << cut;
  Bits carry = 0;
  if constexpr (R == Rounding::Nearest) carry = unit / 2 - 1 + ((value >> cut) & 1);
  if constexpr (R == Rounding::NearestAway) carry = unit / 2;
  if constexpr (R == Rounding::Down) carry = sign ? unit - 1 : 0;
  if constexpr (R == Rounding::Up) carry = sign ? 0 : unit - 1;
  if constexpr (AT_RANDOM) carry = uint64_t(random) << cut >> RANDOM;
  const Bits rounded = (value + carry) >> cut;

  constexpr uint32_t OVER = FINITE ? F::GREATEST : F::INFINITE;
  uint32_t over = OVER;
  if constexpr (R == Rounding::Zero) over = F::GREATEST;
  if constexpr (R == Rounding::Down) over = sign ? OVER : F::GREATEST;
  if constexpr (R == Rounding::Up) over = sign ? F::GREATEST : OVER;
  uint32_t result = rounded > F::GREATEST ? over : uint32_t(rounded);
  result = magnitude == INFINITE ? OVER : result;
  result |= uint32_t(sign) << (F::EXPONENT + F::MANTISSA);
  return magnitude > INFINITE ? F::NOT_A_NUMBER : result;
}

// The bits of a format for a NaN of f64: its sign and its first bits, not signalling.
template <class F>
inline uint32_t narrow_nan(double nan) {
  const uint64_t bits = bits_as<uint64_t>(nan);
  constexpr uint32_t QUIET = 1u << (F::MANTISSA - 1), PAYLOAD = (1u << F::MANTISSA) - 1;
  return uint32_t(bits >> 63) << (F::EXPONENT + F::MANTISSA) | F::INFINITE | QUIET |
         (uint32_t(bits >> (52 - F::MANTISSA)) & PAYLOAD);
}

// The least power of two that is not less (Up), or the greatest that is not greater (Zero), of the
// absolute value; FINITE keeps what is above 2^127 there, without it that is NaN.
template <Rounding R, bool FINITE>
inline uint32_t narrow_ue8m0(float number) {
  static_assert(R == Rounding::Up || R == Rounding::Zero);
  const uint32_t magnitude = bits_as<uint32_t>(number) & 0x7FFF'FFFF;
  uint32_t exponent = magnitude >> 23;
  if (R == Rounding::Up && (magnitude & 0x007F'FFFF) != 0) {
    // 2^-127 is a subnormal number of f32, and has its own code.
    exponent += exponent != 0 || magnitude > 0x0040'0000;
  }
  if (magnitude > 0x7F80'0000) return 0xFF;
  return exponent > 0xFE ? (FINITE ? 0xFE : 0xFF) : exponent;
}

// ---- many at once
// `from` and `to` are disjoint.

template <class F>
inline void widen_all(const typename F::Bits* __restrict from, float* __restrict to, size_t count) {
  for (size_t i = 0; i < count; ++i) to[i] = widen<F>(from[i]);
}
template <class F>
inline void narrow_all(const float* __restrict from, typename F::Bits* __restrict to,
                       size_t count) {
  for (size_t i = 0; i < count; ++i) to[i] = typename F::Bits(narrow<F>(from[i]));
}
// Two numbers in each byte, the first in its low bits.
inline void widen_all_e2m1(const uint8_t* __restrict from, float* __restrict to, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) {
    to[2 * i] = widen<E2M1>(from[i]);
    to[2 * i + 1] = widen<E2M1>(from[i] >> 4);
  }
}

}  // namespace emu
