// The lesser and the greater of floats of all types.
//
// Rules of the PTX ISA, "min" and "max": -0 is less than +0; a NaN gives way to a number, or with
// .NaN wins over it; a NaN result has the canonical bits.  With .abs absolute values are compared,
// and with .xorsign the result gets the product of the signs.
//
// Numbers of a format are ordered as integers once negative ones are turned around, so all formats
// share the code.
//
// Deliberately leaves integers to integer.cpp.
#include <algorithm>

#include "arithmetic/packed_loops.hpp"
#include "arithmetic/rounding.hpp"

namespace emu {

namespace {

// The bits of a type: an unsigned and a signed integer, where infinity is, and the canonical NaN.
struct BitsF16 {
  using Unsigned = uint16_t;
  using Signed = int16_t;
  static constexpr Unsigned INFINITE = F16::INFINITE, NOT_A_NUMBER = F16::NOT_A_NUMBER;
};
struct BitsBF16 {
  using Unsigned = uint16_t;
  using Signed = int16_t;
  static constexpr Unsigned INFINITE = BF16::INFINITE, NOT_A_NUMBER = BF16::NOT_A_NUMBER;
};
struct BitsF32 {
  using Unsigned = uint32_t;
  using Signed = int32_t;
  static constexpr Unsigned INFINITE = 0x7F80'0000, NOT_A_NUMBER = NAN_F32;
};
struct BitsF64 {
  using Unsigned = uint64_t;
  using Signed = int64_t;
  static constexpr Unsigned INFINITE = 0x7FF0'0000'0000'0000;
  static constexpr Unsigned QUIET = 0x0008'0000'0000'0000;
};

enum class Sign { Kept, Absolute, Product };

template <class Type, bool MAX, bool FTZ, bool NAN_WINS, Sign SIGN>
struct Extreme {
  using U = typename Type::Unsigned;
  using S = typename Type::Signed;
  static constexpr U NEGATIVE = U(U(1) << (8 * sizeof(U) - 1));
  static constexpr U MAGNITUDE = U(NEGATIVE - 1);
  static constexpr U LEAST_NORMAL = U(Type::INFINITE & (~Type::INFINITE + 1));

  static U read(U bits) {
    if (FTZ) bits = (bits & MAGNITUDE) < LEAST_NORMAL ? U(bits & NEGATIVE) : bits;
    return SIGN == Sign::Kept ? bits : U(bits & MAGNITUDE);
  }
  static bool is_nan(U bits) { return U(bits & MAGNITUDE) > Type::INFINITE; }
  // Integers in the order of the numbers.
  static S order(U bits) {
    return S(bits & NEGATIVE ? U(bits ^ MAGNITUDE) : bits);
  }

  // One of two; a NaN gives way unless it wins in the end anyway.
  static U choose(U a, U b) {
    const bool first = MAX ? order(a) > order(b) : order(a) < order(b);
    U result = first ? a : b;
    if constexpr (NAN_WINS) return result;
    result = is_nan(a) ? b : result;
    if constexpr (std::is_same_v<Type, BitsF64>) {  // of two NaN the second, not signalling
      if (is_nan(a) && is_nan(b)) return b | Type::QUIET;
    }
    return is_nan(b) ? a : result;
  }
  // What was chosen, given the greatest magnitude of all inputs.
  static U finish(U chosen, U greatest) {
    if constexpr (std::is_same_v<Type, BitsF64>) return chosen;
    else return U(NAN_WINS ? greatest : chosen & MAGNITUDE) > Type::INFINITE ? Type::NOT_A_NUMBER
                                                                           : chosen;
  }

  U operator()(U a, U b) const {
    const U greatest = std::max(U(a & MAGNITUDE), U(b & MAGNITUDE));
    const U result = finish(choose(read(a), read(b)), greatest);
    if (SIGN != Sign::Product) return result;
    return is_nan(result) ? result : U(result | ((a ^ b) & NEGATIVE));
  }
  U operator()(U a, U b, U c) const {
    const U greatest = std::max({U(a & MAGNITUDE), U(b & MAGNITUDE), U(c & MAGNITUDE)});
    return finish(choose(choose(read(a), read(b)), read(c)), greatest);
  }
};

template <class Type, bool MAX, bool FTZ, bool NAN_WINS, Sign SIGN>
Binding bind_loop(const Operation& op) {
  using Op = Extreme<Type, MAX, FTZ, NAN_WINS, SIGN>;
  using U = typename Type::Unsigned;
  if constexpr (std::is_same_v<Type, BitsF32>) {
    if (op.find("c") >= 0) return {lanewise<Op, U, U, U, U>};
  }
  if (op.type("d").bits != 8 * sizeof(U)) return {elementwise<2, Op, U, U, U>};
  return {lanewise<Op, U, U, U>};
}

template <class Type, bool MAX>
Binding bind_type(const Operation& op) {
  const bool absolute = op.has("abs"), product = op.has("xorsign");
  return with_flag(op.has("ftz"), [&](auto ftz) {
    return with_flag(op.has("NaN"), [&](auto nan) {
      return product    ? bind_loop<Type, MAX, ftz(), nan(), Sign::Product>(op)
             : absolute ? bind_loop<Type, MAX, ftz(), nan(), Sign::Absolute>(op)
                        : bind_loop<Type, MAX, ftz(), nan(), Sign::Kept>(op);
    });
  });
}

template <bool MAX>
Binding bind_extreme(const Operation& op) {
  const Type& type = op.type("d");
  if (type.is("f32")) return bind_type<BitsF32, MAX>(op);
  if (type.is("f64")) return bind_loop<BitsF64, MAX, false, false, Sign::Kept>(op);
  if (type.is("f16") || type.is("f16x2")) return bind_type<BitsF16, MAX>(op);
  if (type.is("bf16") || type.is("bf16x2")) return bind_type<BitsBF16, MAX>(op);
  return {};
}

const Registration registration{{"min", bind_extreme<false>}, {"max", bind_extreme<true>}};

}  // namespace

}  // namespace emu
