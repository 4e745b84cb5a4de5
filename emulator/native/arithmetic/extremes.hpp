// The lesser and the greater of floats of all types, as functors on their bits.
//
// Rules of the PTX ISA, "min" and "max": -0 is less than +0; a NaN gives way to a number, or with
// .NaN wins over it; a NaN result has the canonical bits, but for f64, where the second of two NaN
// stays and no longer signals (H200).  With .abs absolute values are compared, and with .xorsign
// the result gets the product of the signs.
//
// Deliberately knows no instruction.
#pragma once

#include <algorithm>
#include <type_traits>

#include "arithmetic/formats.hpp"

namespace emu {

// The sign of what is compared, and of the result.
enum class ExtremeSign { Kept, Absolute, Product };

template <class F, bool MAX, bool FTZ = false, bool NAN_WINS = false,
          ExtremeSign SIGN = ExtremeSign::Kept>
struct FloatExtreme {
  using Bits = typename F::Bits;
  static constexpr bool KEEPS_NAN = std::is_same_v<F, F64>;

  static Bits read(Bits bits) {
    if (FTZ) bits = flush_bits<F>(bits);
    return SIGN == ExtremeSign::Kept ? bits : Bits(bits & MAGNITUDE_OF<F>);
  }

  // One of two; a NaN gives way unless it wins in the end anyway.
  static Bits choose(Bits a, Bits b) {
    const bool first = MAX ? order_of<F>(a) > order_of<F>(b) : order_of<F>(a) < order_of<F>(b);
    Bits result = first ? a : b;
    if constexpr (NAN_WINS) return result;
    result = is_nan<F>(a) ? b : result;
    if (KEEPS_NAN && is_nan<F>(a) && is_nan<F>(b)) return Bits(b | QUIET<F>);
    return is_nan<F>(b) ? a : result;
  }
  // What was chosen, given the greatest magnitude of all inputs: greater than infinity is a NaN.
  static Bits finish(Bits chosen, Bits greatest) {
    if constexpr (KEEPS_NAN) return chosen;
    return is_nan<F>(NAN_WINS ? greatest : chosen) ? Bits(F::NOT_A_NUMBER) : chosen;
  }
  static Bits magnitude(Bits bits) { return Bits(bits & MAGNITUDE_OF<F>); }

  Bits operator()(Bits a, Bits b) const {
    const Bits greatest = std::max(magnitude(a), magnitude(b));
    const Bits result = finish(choose(read(a), read(b)), greatest);
    if (SIGN != ExtremeSign::Product) return result;
    return is_nan<F>(result) ? result : Bits(result | ((a ^ b) & SIGN_OF<F>));
  }
  Bits operator()(Bits a, Bits b, Bits c) const {
    const Bits greatest = std::max({magnitude(a), magnitude(b), magnitude(c)});
    return finish(choose(choose(read(a), read(b)), read(c)), greatest);
  }
};

}  // namespace emu
