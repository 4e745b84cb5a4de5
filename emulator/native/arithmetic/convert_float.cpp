// Conversions between f16, bf16, f32 and f64, and rounding to integers that stay floats (cvt).
//
// Rules of the PTX ISA, "cvt": a result is rounded once; .ftz flushes subnormal inputs and results
// of type f32; .sat clamps to the range from 0 to 1.  NaN results have the canonical bits, but see
// below.
//
// Deliberately leaves forms with .relu and .satfinite to convert_packed.cpp, and integers to
// convert_integer.cpp.
#include "arithmetic/convert.hpp"
#include "arithmetic/dispatch.hpp"
#include "arithmetic/rounding.hpp"

namespace emu {

namespace {

// A NaN from or to f64 keeps its sign and as many of its bits as there is room for, and moving bits
// is all that happens between f32, and from bf16 to f32, without modifiers (H200).
template <class D, class S>
constexpr bool KEEPS_NAN = std::is_same_v<D, double> || std::is_same_v<S, double>;
template <class D, class S, bool TO_INTEGER, bool FTZ, bool SAT>
constexpr bool MOVES = !TO_INTEGER && !FTZ && !SAT && std::is_same_v<D, float> &&
                       (std::is_same_v<S, float> || std::is_same_v<S, BF16>);

template <class S, bool KEEP_NAN>
auto read(RegisterOf<S> source) {
  if constexpr (std::is_same_v<RegisterOf<S>, uint16_t>) return widen<S, KEEP_NAN>(source);
  else return source;
}

template <class D, Rounding R, bool FTZ, class Number>
RegisterOf<D> write(Number number) {
  constexpr bool FROM_F64 = std::is_same_v<Number, double>;
  if constexpr (std::is_same_v<D, double>) {
    return double(number);
  } else if constexpr (std::is_same_v<D, float> && FROM_F64) {
    const float result = round_sum<R>(number, 0);
    return FTZ && is_tiny<R>(number, 0) ? std::copysign(0.0f, result) : result;
  } else if constexpr (std::is_same_v<D, float>) {
    return canonical(flush_if<FTZ>(number));
  } else if constexpr (FROM_F64) {
    return uint16_t(number != number ? narrow_nan<D>(number) : narrow<D, R>(number));
  } else {
    return uint16_t(narrow<D, R>(number));
  }
}

template <class D, class S, Rounding R, bool TO_INTEGER, bool FTZ, bool SAT>
struct Convert {
  RegisterOf<D> operator()(RegisterOf<S> source) const {
    if constexpr (MOVES<D, S, TO_INTEGER, FTZ, SAT>) {
      return read<S, true>(source);
    } else {
      auto number = read<S, KEEPS_NAN<D, S>>(source);
      if constexpr (FTZ && std::is_same_v<S, float>) number = canonical(flush(number));
      if constexpr (TO_INTEGER) number = round_to_integer<R>(number);
      if constexpr (SAT) number = saturate(number);
      return write<D, TO_INTEGER ? Rounding::Nearest : R, FTZ>(number);
    }
  }
};

// Only f32 is flushed; hardware does not when it makes f16 of it, whatever the PTX ISA says (H200).
template <class D, class S>
constexpr bool HAS_FTZ = (std::is_same_v<D, float> || std::is_same_v<S, float>) &&
                         !std::is_same_v<D, F16>;

// Whether the numbers of one format are all in the other, so that nothing is rounded.
template <class D, class S>
constexpr bool EXACT = std::is_same_v<D, double> ||
                       (std::is_same_v<D, float> && !std::is_same_v<S, double>);

template <class D, class S, Rounding R, bool TO_INTEGER>
Binding bind_flags(const Operation& op) {
  const auto with_ftz = [&](auto ftz) {
    return with_flag(op.has("sat"), [&](auto sat) {
      using Op = Convert<D, S, R, TO_INTEGER, ftz(), sat()>;
      constexpr bool FAST = R == Rounding::Nearest && !TO_INTEGER && !sat();
      return Binding{convert<Op, RegisterOf<D>, RegisterOf<S>, FAST>};
    });
  };
  if constexpr (HAS_FTZ<D, S>) return with_flag(op.has("ftz"), with_ftz);
  op.implied({"ftz"});
  return with_ftz(std::false_type{});
}

template <class D, class S>
Binding bind_formats(const Operation& op) {
  if constexpr (std::is_same_v<D, S>) {
    if (op.has("to_nearest_int")) {
      return with_rounding(op.get("to_nearest_int"), [&](auto rounding) {
        return bind_flags<D, S, rounding(), true>(op);
      });
    }
  }
  if constexpr (EXACT<D, S> || std::is_same_v<D, S>) {
    return bind_flags<D, S, Rounding::Nearest, false>(op);
  } else {
    return with_rounding(op.get("rnd"), [&](auto rounding) {
      return bind_flags<D, S, rounding(), false>(op);
    });
  }
}

Binding bind_cvt(const Operation& op) {
  if (op.has("rn_rz") || op.roles.size() != 2) return {};
  return with_format(op.type("d"), [&](auto to) {
    return with_format(op.type("a"), [&](auto from) {
      return bind_formats<typename decltype(to)::type, typename decltype(from)::type>(op);
    });
  });
}

const Registration registration{{"cvt", bind_cvt}};

}  // namespace

}  // namespace emu
