// What touches only the sign of a float, or asks what kind of number it is: abs, neg, copysign,
// testp.
//
// The PTX ISA leaves open which NaN abs and neg give.  Here as on an H200: the canonical NaN of the
// type, but for f64, where a NaN stays as it is and no longer signals.
#include "arithmetic/packed_loops.hpp"
#include "arithmetic/rounding.hpp"

namespace emu {

namespace {

// ---- signs

template <class U>
constexpr U NEGATIVE = U(U(1) << (8 * sizeof(U) - 1));

// The bits of a type: an unsigned integer, infinity, and the canonical NaN.
template <class F>
struct BitsOf {
  using Unsigned = uint16_t;
  static constexpr Unsigned INFINITE = F::INFINITE, NOT_A_NUMBER = F::NOT_A_NUMBER;
};
template <>
struct BitsOf<float> {
  using Unsigned = uint32_t;
  static constexpr Unsigned INFINITE = 0x7F80'0000, NOT_A_NUMBER = NAN_F32;
};

struct Abs {
  template <class U>
  static U apply(U bits) {
    return U(bits & ~NEGATIVE<U>);
  }
};
struct Neg {
  template <class U>
  static U apply(U bits) {
    return U(bits ^ NEGATIVE<U>);
  }
};

template <class Op, class F, bool FTZ>
struct Signed {
  using Bits = BitsOf<F>;
  using U = typename Bits::Unsigned;
  U operator()(U bits) const {
    constexpr U LEAST_NORMAL = U(Bits::INFINITE & (~Bits::INFINITE + 1));
    const U magnitude = U(bits & ~NEGATIVE<U>);
    if (FTZ) bits = magnitude < LEAST_NORMAL ? U(bits & NEGATIVE<U>) : bits;
    return magnitude > Bits::INFINITE ? Bits::NOT_A_NUMBER : Op::apply(bits);
  }
};

template <class Op>
struct SignedF64 {
  uint64_t operator()(uint64_t bits) const {
    constexpr uint64_t INFINITE = 0x7FF0'0000'0000'0000, QUIET = 0x0008'0000'0000'0000;
    return (bits & ~NEGATIVE<uint64_t>) > INFINITE ? bits | QUIET : Op::apply(bits);
  }
};

template <class Op>
Binding bind_sign(const Operation& op) {
  const Type& type = op.type("d");
  if (type.is("f64")) return {lanewise<SignedF64<Op>, uint64_t, uint64_t>};
  return with_flag(op.has("ftz"), [&](auto ftz) -> Binding {
    using F32Op = Signed<Op, float, ftz()>;
    using F16Op = Signed<Op, F16, ftz()>;
    using BF16Op = Signed<Op, BF16, false>;
    if (type.is("f32")) return {lanewise<F32Op, uint32_t, uint32_t>};
    if (type.is("f16")) return {lanewise<F16Op, uint16_t, uint16_t>};
    if (type.is("bf16")) return {lanewise<BF16Op, uint16_t, uint16_t>};
    if (type.is("f16x2")) return {elementwise<2, F16Op, uint16_t, uint16_t>};
    if (type.is("bf16x2")) return {elementwise<2, BF16Op, uint16_t, uint16_t>};
    return {};
  });
}

// The sign of the first operand, the rest of the second.
template <class U>
struct CopySign {
  U operator()(U sign, U rest) const {
    return U((sign & NEGATIVE<U>) | (rest & ~NEGATIVE<U>));
  }
};

Binding bind_copysign(const Operation& op) {
  if (op.type("d").is("f32")) return {lanewise<CopySign<uint32_t>, uint32_t, uint32_t, uint32_t>};
  return {lanewise<CopySign<uint64_t>, uint64_t, uint64_t, uint64_t>};
}

// ---- classes (PTX ISA, "testp": zero counts as normal)

enum class Class { Finite, Infinite, Number, NotANumber, Normal, Subnormal };

template <class U, int MANTISSA, Class CLASS>
struct Is {
  bool operator()(U bits) const {
    constexpr U INFINITE = U(~NEGATIVE<U> >> MANTISSA << MANTISSA);
    constexpr U LEAST_NORMAL = U(1) << MANTISSA;
    const U magnitude = bits & ~NEGATIVE<U>;
    const bool subnormal = magnitude != 0 && magnitude < LEAST_NORMAL;
    switch (CLASS) {
      case Class::Finite: return magnitude < INFINITE;
      case Class::Infinite: return magnitude == INFINITE;
      case Class::Number: return magnitude <= INFINITE;
      case Class::NotANumber: return magnitude > INFINITE;
      case Class::Normal: return magnitude < INFINITE && !subnormal;
      default: return subnormal;
    }
  }
};

template <class U, int MANTISSA>
Binding bind_class(std::string_view word) {
  struct Row {
    std::string_view word;
    Execute execute;
  };
  static constexpr Row ROWS[] = {
      {"finite", lanewise_test<Is<U, MANTISSA, Class::Finite>, U>},
      {"infinite", lanewise_test<Is<U, MANTISSA, Class::Infinite>, U>},
      {"number", lanewise_test<Is<U, MANTISSA, Class::Number>, U>},
      {"notanumber", lanewise_test<Is<U, MANTISSA, Class::NotANumber>, U>},
      {"normal", lanewise_test<Is<U, MANTISSA, Class::Normal>, U>},
      {"subnormal", lanewise_test<Is<U, MANTISSA, Class::Subnormal>, U>},
  };
  for (const Row& row : ROWS) {
    if (row.word == word) return {row.execute};
  }
  return {};
}

Binding bind_testp(const Operation& op) {
  if (op.type("a").is("f32")) return bind_class<uint32_t, 23>(op.get("test"));
  return bind_class<uint64_t, 52>(op.get("test"));
}

const Registration registration{
    {"abs", bind_sign<Abs>},
    {"neg", bind_sign<Neg>},
    {"copysign", bind_copysign},
    {"testp", bind_testp},
};

}  // namespace

}  // namespace emu
