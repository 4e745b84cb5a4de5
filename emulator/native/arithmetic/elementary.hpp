// Elementary functions in f64, for arguments that come from f32: 2^x, log2 x, tanh x.
//
// Polynomials without branches and without calls, so that loops over them vectorise.  Their
// relative error is at most 2^-49, with fused operations and without; rounded to f32 they give the
// number nearest to the exact value, which was tried for every f32.
//
// Deliberately does not treat what PTX fixes: flushing, NaN, infinities where noted.
#pragma once

#include <cmath>
#include <cstdint>

#include "arithmetic/rounding.hpp"

namespace emu {

namespace elementary {

constexpr double LN2 = 0.693147180559945309417232121458;

// Coefficients of a power series, c[0] + c[1] x + ...
template <int COUNT>
struct Series {
  double c[COUNT];
};
inline double multiply_add(double a, double b, double c) {
  if constexpr (EMU_HAS_FMA) return std::fma(a, b, c);
  return a * b + c;
}
// The sum from a term on; without a loop, which would keep loops over lanes from being vectorised.
template <int FROM = 0, int COUNT>
inline double evaluate(const Series<COUNT>& series, double x) {
  if constexpr (FROM == COUNT - 1) return series.c[FROM];
  else return multiply_add(evaluate<FROM + 1>(series, x), x, series.c[FROM]);
}

// 2^x: (ln 2)^n / n!.
constexpr Series<14> exp2_series() {
  Series<14> series{};
  double term = 1;
  for (int n = 0; n < 14; ++n) {
    series.c[n] = term;
    term = term * LN2 / (n + 1);
  }
  return series;
}
// artanh(x) / x in x^2: 1 / (2n + 1).
constexpr Series<12> artanh_series() {
  Series<12> series{};
  for (int n = 0; n < 12; ++n) series.c[n] = 1.0 / (2 * n + 1);
  return series;
}
constexpr Series<14> EXP2 = exp2_series();
constexpr Series<12> ARTANH = artanh_series();
// tanh(x) / x in x^2 (Abramowitz and Stegun, 4.5.64).
constexpr Series<6> TANH = {
    {1.0, -1.0 / 3, 2.0 / 15, -17.0 / 315, 62.0 / 2835, -1382.0 / 155925}};

}  // namespace elementary

// 2^x: beyond -200 and 200 as there, which is zero or infinite as f32.  NaN for NaN.
inline double exp2_of(double x) {
  x = x < -200 ? -200 : x;
  x = x > 200 ? 200 : x;
  constexpr double TO_INTEGER = 0x1.8p52;  // adding it rounds to an integer, in the low bits
  const double shifted = x + TO_INTEGER;
  const double fraction = x - (shifted - TO_INTEGER);  // from -1/2 to 1/2
  const double scale = bits_as<double>((bits_as<uint64_t>(shifted) + 1023) << 52);
  return elementary::evaluate(elementary::EXP2, fraction) * scale;
}

// log2 x for finite x > 0, and anything for others.
inline double log2_of(double x) {
  // x = 2^exponent * m, with m from sqrt(1/2) to sqrt(2).
  constexpr uint64_t SQRT_HALF = 0x3FE6'A09E'667F'3BCD;
  constexpr uint64_t ONE = 0x3FF0'0000'0000'0000;
  const uint64_t bits = bits_as<uint64_t>(x) + (ONE - SQRT_HALF);
  const double m = bits_as<double>((bits & 0x000F'FFFF'FFFF'FFFF) + SQRT_HALF);
  // The biased exponent as the low bits of a number near 2^52, to make f64 of it.
  const double exponent = bits_as<double>((bits >> 52) | 0x4330'0000'0000'0000) - (0x1p52 + 1023);
  const double s = (m - 1) / (m + 1);
  constexpr double TWICE_LOG2_E = 2 / elementary::LN2;
  return exponent + TWICE_LOG2_E * s * elementary::evaluate(elementary::ARTANH, s * s);
}

// tanh x; NaN for NaN.
inline double tanh_of(double x) {
  const double magnitude = std::fabs(x);
  const double power = exp2_of(magnitude * (-2 / elementary::LN2));
  const double far = (1 - power) / (1 + power);
  const double near = magnitude * elementary::evaluate(elementary::TANH, x * x);
  return std::copysign(magnitude < 0.0625 ? near : far, x);
}

}  // namespace emu
