// What touches only the sign of a float, or asks what kind of number it is: abs, neg, copysign,
// testp.
//
// The PTX ISA leaves open which NaN abs and neg give.  Here as on an H200: the canonical NaN of the
// type, but for f64, where a NaN stays as it is and no longer signals.
#include <string_view>
#include <type_traits>

#include "arithmetic/dispatch.hpp"
#include "arithmetic/formats.hpp"
#include "arithmetic/packed_loops.hpp"

namespace emu {

namespace {

// ---- signs

struct Abs {
  template <class F>
  static typename F::Bits apply(typename F::Bits bits) {
    return bits & MAGNITUDE_OF<F>;
  }
};
struct Neg {
  template <class F>
  static typename F::Bits apply(typename F::Bits bits) {
    return bits ^ SIGN_OF<F>;
  }
};

template <class Op, class F, bool FTZ>
struct WithSign {
  using Bits = typename F::Bits;
  Bits operator()(Bits bits) const {
    if (is_nan<F>(bits)) return std::is_same_v<F, F64> ? bits | QUIET<F> : Bits(F::NOT_A_NUMBER);
    return Op::template apply<F>(FTZ ? flush_bits<F>(bits) : bits);
  }
};

template <class Op>
Binding bind_sign(const Operation& op) {
  const Type& type = op.type("d");
  return with_flag(op.has("ftz"), [&](auto ftz) -> Binding {
    using OfF32 = WithSign<Op, F32, ftz()>;
    using OfF16 = WithSign<Op, F16, ftz()>;
    if (type.is("f32")) return {lanewise<OfF32, uint32_t, uint32_t>};
    if (type.is("f16")) return {lanewise<OfF16, uint16_t, uint16_t>};
    if (type.is("f16x2")) return {elementwise<2, OfF16, uint16_t, uint16_t>};
    // The others have no .ftz.
    using OfF64 = WithSign<Op, F64, false>;
    using OfBF16 = WithSign<Op, BF16, false>;
    if (ftz()) return {};
    if (type.is("f64")) return {lanewise<OfF64, uint64_t, uint64_t>};
    if (type.is("bf16")) return {lanewise<OfBF16, uint16_t, uint16_t>};
    if (type.is("bf16x2")) return {elementwise<2, OfBF16, uint16_t, uint16_t>};
    return {};
  });
}

// The sign of the first operand, the rest of the second.
template <class F>
struct CopySign {
  using Bits = typename F::Bits;
  Bits operator()(Bits sign, Bits rest) const {
    return (sign & SIGN_OF<F>) | (rest & MAGNITUDE_OF<F>);
  }
};

Binding bind_copysign(const Operation& op) {
  if (op.type("d").is("f32")) return {lanewise<CopySign<F32>, uint32_t, uint32_t, uint32_t>};
  return {lanewise<CopySign<F64>, uint64_t, uint64_t, uint64_t>};
}

// ---- classes (PTX ISA, "testp": zero counts as normal)

enum class Class { Finite, Infinite, Number, NotANumber, Normal, Subnormal };

template <class F, Class CLASS>
struct Is {
  bool operator()(typename F::Bits bits) const {
    const typename F::Bits magnitude = bits & MAGNITUDE_OF<F>;
    const bool subnormal = magnitude != 0 && magnitude < LEAST_NORMAL<F>;
    switch (CLASS) {
      case Class::Finite: return magnitude < F::INFINITE;
      case Class::Infinite: return magnitude == F::INFINITE;
      case Class::Number: return magnitude <= F::INFINITE;
      case Class::NotANumber: return magnitude > F::INFINITE;
      case Class::Normal: return magnitude < F::INFINITE && !subnormal;
      default: return subnormal;
    }
  }
};

template <class F>
Binding bind_class(std::string_view word) {
  using Bits = typename F::Bits;
  static constexpr struct {
    std::string_view word;
    Execute execute;
  } rows[] = {
      {"finite", lanewise_test<Is<F, Class::Finite>, Bits>},
      {"infinite", lanewise_test<Is<F, Class::Infinite>, Bits>},
      {"number", lanewise_test<Is<F, Class::Number>, Bits>},
      {"notanumber", lanewise_test<Is<F, Class::NotANumber>, Bits>},
      {"normal", lanewise_test<Is<F, Class::Normal>, Bits>},
      {"subnormal", lanewise_test<Is<F, Class::Subnormal>, Bits>},
  };
  for (const auto& row : rows) {
    if (row.word == word) return {row.execute};
  }
  return {};
}

Binding bind_testp(const Operation& op) {
  if (op.type("a").is("f32")) return bind_class<F32>(op.get("test"));
  return bind_class<F64>(op.get("test"));
}

const Registration registration{
    {"abs", bind_sign<Abs>},
    {"neg", bind_sign<Neg>},
    {"copysign", bind_copysign},
    {"testp", bind_testp},
};

}  // namespace

}  // namespace emu
