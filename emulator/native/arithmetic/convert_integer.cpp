// Conversions between integers, and between integers and floats (cvt).
//
// Rules of the PTX ISA, "cvt".  Between integers a result is cut off, or with .sat clamped.  From
// floats results are always clamped, and NaN becomes 0, or the bit pattern 100...0 when f64 or an
// integer of 64 bits is involved.
#include <cmath>
#include <limits>

#include "arithmetic/convert.hpp"
#include "arithmetic/dispatch.hpp"
#include "arithmetic/rounding.hpp"

namespace emu {

namespace {

#define EMU_INTEGERS uint32_t, int32_t, uint64_t, int64_t, uint16_t, int16_t, uint8_t, int8_t

// ---- between integers

template <class D, class S>
struct Cut {
  D operator()(S value) const { return D(value); }
};

template <class D, class S>
struct Clamp {
  D operator()(S value) const {
    using Limits = std::numeric_limits<D>;
    if (value < 0) {
      if (!Limits::is_signed) return 0;
      return int64_t(value) < int64_t(Limits::min()) ? Limits::min() : D(value);
    }
    return uint64_t(value) > uint64_t(Limits::max()) ? Limits::max() : D(value);
  }
};

Binding bind_between_integers(const Operation& op) {
  const bool sat = op.has("sat");
  return choose<EMU_INTEGERS>(op.type("d"), [&](auto d) {
    return choose<EMU_INTEGERS>(op.type("a"), [&](auto s) {
      using D = decltype(d);
      using S = decltype(s);
      return sat ? Binding{convert<Clamp<D, S>, D, S, false>}
                 : Binding{convert<Cut<D, S>, D, S, true>};
    });
  });
}

// ---- from integers

// An integer as f64; one of 64 bits rounded to odd, so that it can be rounded again.
template <class S>
double to_odd(S value) {
  if constexpr (sizeof(S) < 8) return double(value);
  const bool negative = value < 0;
  uint64_t magnitude = negative ? 0 - uint64_t(value) : uint64_t(value);
  constexpr uint64_t LOST = 0x7FF;  // bits that f64 does not hold, when there are 64
  if (magnitude >> (F64::MANTISSA + 1)) {
    magnitude = (magnitude & ~LOST) | ((magnitude & LOST) != 0 ? LOST + 1 : 0);
  }
  const double result = double(magnitude);
  return negative ? -result : result;
}

template <Rounding R, class S>
double round_f64(S value) {
  const double nearest = double(value);
  if constexpr (R == Rounding::Nearest || sizeof(S) < 8) return nearest;
  const __int128 rest = __int128(value) - __int128(nearest);
  const bool down = R == Rounding::Down || (R == Rounding::Zero && value > 0);
  if (down) return rest < 0 ? std::nextafter(nearest, -HUGE_VAL) : nearest;
  return rest > 0 ? std::nextafter(nearest, HUGE_VAL) : nearest;
}

template <class F, Rounding R, bool SAT, class S>
struct FromInteger {
  RegisterOf<F> operator()(S value) const {
    if constexpr (std::is_same_v<F, double>) {
      const double result = round_f64<R>(value);
      return SAT ? saturate(result) : result;
    } else if constexpr (std::is_same_v<F, float>) {
      const float result = R == Rounding::Nearest && sizeof(S) < 8
                               ? float(value)
                               : round_sum<R>(to_odd(value), 0);
      return SAT ? saturate(result) : result;
    } else {
      const double exact = to_odd(value);
      return uint16_t(narrow<F, R>(SAT ? saturate(exact) : exact));
    }
  }
};

template <class F, Rounding R>
constexpr bool F32_NEAREST = std::is_same_v<F, float> && R == Rounding::Nearest;

Binding bind_from_integer(const Operation& op) {
  return choose<EMU_INTEGERS>(op.type("a"), [&](auto s) {
    using S = decltype(s);
    return with_format(op.type("d"), [&](auto format) {
      using F = typename decltype(format)::type;
      return with_rounding(op.get("rnd"), [&](auto rounding) {
        return with_flag(op.has("sat"), [&](auto sat) {
          constexpr bool FAST = F32_NEAREST<F, rounding()> && !sat();
          return Binding{convert<FromInteger<F, rounding(), sat(), S>, RegisterOf<F>, S, FAST>};
        });
      });
    });
  });
}

// ---- to integers

template <class D, class F, Rounding R, bool FTZ>
struct ToInteger {
  D operator()(RegisterOf<F> source) const {
    auto number = InRegister<F>::read(source);
    if constexpr (FTZ) number = flush(number);
    const double rounded = round_to_integer<R>(double(number));
    using Limits = std::numeric_limits<D>;
    constexpr bool WIDE = sizeof(D) == 8 || std::is_same_v<F, double>;
    constexpr D OF_NAN = WIDE ? D(uint64_t(1) << (8 * sizeof(D) - 1)) : D(0);
    // The first number above the range is a power of two, the last one in it may not be an f64.
    constexpr double ABOVE = 2.0 * double(uint64_t(Limits::max()) / 2 + 1);
    constexpr double LEAST = double(Limits::min());
    const bool inside = rounded >= LEAST && rounded < ABOVE;
    D result = D(inside ? rounded : 0);
    result = rounded < LEAST ? Limits::min() : result;
    result = rounded >= ABOVE ? Limits::max() : result;
    return rounded != rounded ? OF_NAN : result;
  }
};

Binding bind_to_integer(const Operation& op) {
  op.implied({"sat"});  // results are clamped without it too
  return choose<EMU_INTEGERS>(op.type("d"), [&](auto d) {
    using D = decltype(d);
    return with_format(op.type("a"), [&](auto format) {
      using F = typename decltype(format)::type;
      return with_rounding(op.get("to_nearest_int"), [&](auto rounding) {
        if constexpr (std::is_same_v<F, float>) {
          return with_flag(op.has("ftz"), [&](auto ftz) {
            using Op = ToInteger<D, F, rounding(), ftz()>;
            return Binding{convert<Op, D, RegisterOf<F>, sizeof(D) == 4>};
          });
        } else {
          return Binding{convert<ToInteger<D, F, rounding(), false>, D, RegisterOf<F>, false>};
        }
      });
    });
  });
}

Binding bind_cvt(const Operation& op) {
  const bool to = op.type("d").kind == Kind::Integer, from = op.type("a").kind == Kind::Integer;
  if (to && from) return bind_between_integers(op);
  if (from) return bind_from_integer(op);
  return to ? bind_to_integer(op) : Binding{};
}

const Registration registration{{"cvt", bind_cvt}};

}  // namespace

}  // namespace emu
