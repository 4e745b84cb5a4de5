// Floating-point formats: what their bits say, and the conversions between bits and numbers.
//
// A format is a struct of constants.  `widen` makes f32 of the bits of a narrower format, which is
// exact, and `narrow` rounds f32 or f64 to one once, in any direction.  All is plain integer
// arithmetic without branches, so that loops over it vectorise.
//
// Formats: IEEE 754; PTX ISA, "Alternate Floating-Point Data Formats"; OCP, "Microscaling Formats
// (MX) Specification" v1.0.
//
// Deliberately knows no instruction and no register.
#pragma once

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
// NaN of the format (of f64 what an invalid operation gives), or its greatest number where it has
// no NaN.

struct F64 {
  using Bits = uint64_t;
  static constexpr int EXPONENT = 11, MANTISSA = 52, BIAS = 1023;
  static constexpr Bits INFINITE = 0x7FF0'0000'0000'0000, NOT_A_NUMBER = 0xFFF8'0000'0000'0000;
};
struct F32 {
  using Bits = uint32_t;
  static constexpr int EXPONENT = 8, MANTISSA = 23, BIAS = 127;
  static constexpr Bits INFINITE = 0x7F80'0000, NOT_A_NUMBER = 0x7FFF'FFFF;
};
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

constexpr uint32_t NAN_F32 = F32::NOT_A_NUMBER;
constexpr uint64_t NAN_F64 = F64::NOT_A_NUMBER;

// ---- bits

template <class F>
inline constexpr typename F::Bits SIGN_OF = typename F::Bits(1) << (F::EXPONENT + F::MANTISSA);
// All bits below the sign.
template <class F>
inline constexpr typename F::Bits MAGNITUDE_OF = SIGN_OF<F> - 1;
template <class F>
inline constexpr typename F::Bits LEAST_NORMAL = typename F::Bits(1) << F::MANTISSA;
// The bit that a NaN has which does not signal.
template <class F>
inline constexpr typename F::Bits QUIET = typename F::Bits(1) << (F::MANTISSA - 1);

template <class F>
inline bool is_nan(typename F::Bits bits) {
  static_assert(F::INFINITE != 0);
  return typename F::Bits(bits & MAGNITUDE_OF<F>) > F::INFINITE;
}

// Subnormal numbers become zero of the same sign (.ftz).
template <class F>
inline typename F::Bits flush_bits(typename F::Bits bits) {
  using Bits = typename F::Bits;
  return Bits(bits & MAGNITUDE_OF<F>) < LEAST_NORMAL<F> ? Bits(bits & SIGN_OF<F>) : bits;
}

// An integer for each number, in the order of the numbers, -0 below +0.  For formats that fill
// their bits; NaN has no place among them.
template <class F>
inline std::make_signed_t<typename F::Bits> order_of(typename F::Bits bits) {
  using Bits = typename F::Bits;
  return std::make_signed_t<Bits>(bits & SIGN_OF<F> ? Bits(bits ^ MAGNITUDE_OF<F>) : bits);
}

// ---- to f32
// The number that the low bits stand for; bits above the format's are ignored.  NaN becomes
// NAN_F32, unless it is to keep its sign and its bits.
template <class F, bool KEEP_NAN = false>
inline float widen(uint32_t bits) {
  constexpr int SHIFT = F32::MANTISSA - F::MANTISSA;
  const uint32_t magnitude = bits & MAGNITUDE_OF<F>;
  const uint32_t sign = (bits & SIGN_OF<F>) << (31 - F::EXPONENT - F::MANTISSA);
  uint32_t result = magnitude << SHIFT;
  if constexpr (F::BIAS == 127) {
    result = result > F32::INFINITE && !KEEP_NAN ? NAN_F32 : result | sign;
  } else {
    // The weight of the last bit of a subnormal number is 2 to the power 1 - BIAS - MANTISSA.
    const float last = bits_as<float>(uint32_t(128 - F::BIAS - F::MANTISSA) << 23);
    const uint32_t subnormal = bits_as<uint32_t>(float(int32_t(magnitude)) * last);
    result = magnitude >> F::MANTISSA ? result + (uint32_t(127 - F::BIAS) << 23) : subnormal;
    if constexpr (F::INFINITE != 0) result = magnitude == F::INFINITE ? F32::INFINITE : result;
    result |= sign;
    if constexpr (F::NOT_A_NUMBER > F::GREATEST) {
      constexpr uint32_t LAST_NUMBER = F::INFINITE != 0 ? F::INFINITE : F::GREATEST;
      const uint32_t nan = KEEP_NAN ? sign | magnitude << SHIFT | F32::INFINITE : NAN_F32;
      result = magnitude > LAST_NUMBER ? nan : result;
    }
  }
  return bits_as<float>(result);
}

// A tf32 operand in a 32-bit register: its low 13 bits are ignored.
inline float widen_tf32(uint32_t bits) { return bits_as<float>(bits & 0xFFFF'E000); }

// 2^-127 as bits of f32, where it is subnormal.
constexpr uint32_t TO_THE_MINUS_127 = 0x0040'0000;

// A scale: powers of two from 2^-127 to 2^127, and NaN.
inline float widen_ue8m0(uint32_t bits) {
  const uint32_t exponent = bits & 0xFF;
  const uint32_t scale = exponent == 0 ? TO_THE_MINUS_127 : exponent << F32::MANTISSA;
  return bits_as<float>(exponent == 0xFF ? NAN_F32 : scale);
}

// ---- from f32 and f64

// The bits of a number, rounded.  What is too great becomes infinity or the greatest number, as the
// rounding says; with FINITE always the greatest number, infinity too.  Random bits (stochastic
// rounding only) are `RANDOM` many, added to the first ones that are cut off.
template <class F, Rounding R = Rounding::Nearest, bool FINITE = false, int RANDOM = 16,
          class Source>
inline uint32_t narrow(Source number, uint32_t random = 0) {
  static_assert(FINITE || F::INFINITE != 0, "a format without infinity saturates");
  using From = std::conditional_t<std::is_same_v<Source, float>, F32, F64>;
  constexpr bool AT_RANDOM = R == Rounding::Stochastic;
  using Bits = std::conditional_t<AT_RANDOM, uint64_t, typename From::Bits>;
  constexpr int SIGN_AT = 8 * sizeof(Source) - 1;
  constexpr int CUT = From::MANTISSA - F::MANTISSA;
  // How far subnormal numbers are shifted: what is less than that is cut off without a trace.
  constexpr Bits FARTHEST = F::MANTISSA + 2 + (AT_RANDOM ? RANDOM : 0);
  constexpr Bits ONE = Bits(1) << From::MANTISSA;  // a step of the exponent
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
  result = magnitude == From::INFINITE ? OVER : result;
  result |= uint32_t(sign) << (F::EXPONENT + F::MANTISSA);
  return magnitude > From::INFINITE ? F::NOT_A_NUMBER : result;
}

// The bits of a format for a NaN of f64: its sign and its first bits, not signalling.
template <class F>
inline uint32_t narrow_nan(double nan) {
  const uint64_t bits = bits_as<uint64_t>(nan);
  constexpr uint32_t PAYLOAD = LEAST_NORMAL<F> - 1;
  return uint32_t(bits >> 63) << (F::EXPONENT + F::MANTISSA) | F::INFINITE | QUIET<F> |
         (uint32_t(bits >> (F64::MANTISSA - F::MANTISSA)) & PAYLOAD);
}

// The least power of two that is not less (Up), or the greatest that is not greater (Zero), of the
// absolute value; FINITE keeps what is above 2^127 there, without it that is NaN.
template <Rounding R, bool FINITE>
inline uint32_t narrow_ue8m0(float number) {
  static_assert(R == Rounding::Up || R == Rounding::Zero);
  const uint32_t magnitude = bits_as<uint32_t>(number) & MAGNITUDE_OF<F32>;
  uint32_t exponent = magnitude >> F32::MANTISSA;
  if (R == Rounding::Up && (magnitude & (LEAST_NORMAL<F32> - 1)) != 0) {
    // Among subnormal numbers only what is above 2^-127, whose code is 0, is rounded to 2^-126.
    exponent += exponent != 0 || magnitude > TO_THE_MINUS_127;
  }
  if (magnitude > F32::INFINITE) return 0xFF;
  return exponent > 0xFE ? (FINITE ? 0xFE : 0xFF) : exponent;
}

}  // namespace emu
