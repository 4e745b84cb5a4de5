// Arithmetic of f32 and f32x2, and of f32 with f16 or bf16: sums, products, quotients, roots.
//
// Every result is the exact one rounded once, as the modifier says.  With .ftz subnormal inputs and
// results become zero, else they are kept; NaN results are 0x7FFFFFFF (PTX ISA, "Floating Point
// Instructions").
//
// Deliberately leaves approximations to approximate.cpp, though div.full and div.approx are here no
// less exact than div.rn; and signs, extremes and classes to float_bits.cpp and extremes.cpp.
#include "arithmetic/dispatch.hpp"
#include "arithmetic/packed_loops.hpp"
#include "arithmetic/rounding.hpp"

namespace emu {

namespace {

// An operation with what its modifiers do to inputs and results.
template <class Op, bool FTZ, bool SAT>
struct Float {
  template <class... In>
  float operator()(In... in) const {
    if constexpr (!FTZ) return finish<SAT>(Op{}(in...));
    const float result = Op{}(flush(in)...);
    return finish<SAT>(Op::tiny(flush(in)...) ? std::copysign(0.0f, result) : flush(result));
  }
};

// The same with inputs in a narrower format, which is exact.
template <class Op, class Format, bool SAT>
struct Mixed {
  static float read(uint16_t bits) { return widen<Format>(bits); }
  static float read(float number) { return number; }
  template <class... In>
  float operator()(In... in) const {
    return finish<SAT>(Op{}(read(in)...));
  }
};

// f32 and f32x2; `In...` are float for each input.
template <template <Rounding> class Op, class... In>
Binding bind_same(const Operation& op) {
  return with_rounding(op.get("rnd"), [&](auto rounding) {
    return with_flag(op.has("ftz"), [&](auto ftz) {
      using Round = Op<rounding()>;
      if (op.type("d").is("f32x2")) {
        return Binding{elementwise<2, Float<Round, ftz(), false>, float, In...>};
      }
      return with_flag(op.has("sat"), [&](auto sat) {
        return Binding{lanewise<Float<Round, ftz(), sat()>, float, In...>};
      });
    });
  });
}

template <template <Rounding> class Op, class Format, class... In>
Binding bind_mixed(const Operation& op) {
  return with_rounding(op.get("rnd"), [&](auto rounding) {
    return with_flag(op.has("sat"), [&](auto sat) {
      return Binding{lanewise<Mixed<Op<rounding()>, Format, sat()>, float, In...>};
    });
  });
}

bool is_f32(const Operation& op) { return op.type("d").is("f32") || op.type("d").is("f32x2"); }

template <template <Rounding> class Op>
Binding bind_sum(const Operation& op) {
  if (!is_f32(op)) return {};
  if (op.type("a").is("f16")) return bind_mixed<Op, F16, uint16_t, float>(op);
  if (op.type("a").is("bf16")) return bind_mixed<Op, BF16, uint16_t, float>(op);
  return bind_same<Op, float, float>(op);
}

Binding bind_mul(const Operation& op) {
  if (!is_f32(op)) return {};
  return bind_same<MulF32, float, float>(op);
}

// mad is fma since sm_20.
Binding bind_fma(const Operation& op) {
  if (!is_f32(op)) return {};
  if (op.type("a").is("f16")) return bind_mixed<FmaF32, F16, uint16_t, uint16_t, float>(op);
  if (op.type("a").is("bf16")) return bind_mixed<FmaF32, BF16, uint16_t, uint16_t, float>(op);
  return bind_same<FmaF32, float, float, float>(op);
}

// d = a * (1 / b), whose second factor is lost when b is great: "for 2^126 < |b| < 2^128, if a is
// infinity, NaN, otherwise 0" (PTX ISA, "div").
struct DivApprox {
  float operator()(float a, float b) const {
    const float magnitude = std::fabs(b);
    const bool lost = magnitude > 0x1p126f && magnitude <= 0x1.FFFFFEp127f;
    return lost ? a * std::copysign(0.0f, b) : a / b;
  }
  static bool tiny(float a, float b) { return DivF32<Rounding::Nearest>::tiny(a, b); }
};

Binding bind_div(const Operation& op) {
  if (!is_f32(op)) return {};
  if (op.has("approx")) {
    return with_flag(op.has("ftz"), [](auto ftz) {
      return Binding{lanewise<Float<DivApprox, ftz(), false>, float, float, float>};
    });
  }
  op.implied({"full"});  // div.rn is exact enough for it
  return bind_same<DivF32, float, float>(op);
}

template <template <Rounding> class Op>
Binding bind_root(const Operation& op) {
  if (!is_f32(op) || op.has("approx")) return {};
  return bind_same<Op, float>(op);
}

const Registration registration{
    {"add", bind_sum<AddF32>}, {"sub", bind_sum<SubF32>},    {"mul", bind_mul},
    {"fma", bind_fma},         {"mad", bind_fma},            {"div", bind_div},
    {"rcp", bind_root<RcpF32>}, {"sqrt", bind_root<SqrtF32>},
};

}  // namespace

}  // namespace emu
