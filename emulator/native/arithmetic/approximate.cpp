// Approximations: ex2, lg2, sin, cos, tanh, rcp, rsqrt, sqrt with .approx.
//
// Error model.  Hardware approximates within bounds that the PTX ISA gives (2 ulp for ex2, 1 ulp
// for rcp, 2^-11 for tanh, ...), and differs between architectures.  Here the result is the exact
// value rounded to nearest, in f64 first: never further off than hardware may be, and the same
// everywhere.  So bits differ from a GPU's, within those bounds.  What the PTX ISA fixes holds
// exactly: values at zeros, infinities and NaN, and flushing of subnormal numbers.
//
// Deliberately leaves div.approx and div.full to float32.cpp.
#include <limits>

#include "arithmetic/dispatch.hpp"
#include "arithmetic/elementary.hpp"
#include "arithmetic/packed_loops.hpp"
#include "arithmetic/rounding.hpp"

namespace emu {

namespace {

// ---- functions in f64 of f32, f16 or bf16

struct Exp2 {
  static double compute(double x) { return exp2_of(x); }
};
struct Log2 {
  static double compute(double x) {
    constexpr double INFINITE = HUGE_VAL;
    double result = log2_of(x);
    result = x < INFINITE ? result : x;  // infinity and NaN
    result = x < 0 ? std::numeric_limits<double>::quiet_NaN() : result;
    return x == 0 ? -INFINITE : result;
  }
};
struct Sin {
  static double compute(double x) { return std::sin(x); }
};
struct Cos {
  static double compute(double x) { return std::cos(x); }
};
struct Tanh {
  static double compute(double x) { return tanh_of(x); }
};
struct Rcp {
  static double compute(double x) { return 1 / x; }
};
struct Sqrt {
  static double compute(double x) { return std::sqrt(x); }
};
struct Rsqrt {
  static double compute(double x) { return 1 / std::sqrt(x); }
};

template <class Function, bool FTZ>
struct OfF32 {
  float operator()(float x) const {
    return flush_if<FTZ>(canonical(float(Function::compute(flush_if<FTZ>(x)))));
  }
};

template <class Function, class Format, bool FTZ>
struct OfHalf {
  static uint16_t flushed(uint16_t bits) { return FTZ ? flush_bits<Format>(bits) : bits; }
  uint16_t operator()(uint16_t bits) const {
    const double result = Function::compute(widen<Format>(flushed(bits)));
    return flushed(uint16_t(narrow<Format>(round_to_odd(result, 0))));
  }
};

template <class Function, class Format, bool FTZ>
Binding bind_half(const Operation& op) {
  using Op = OfHalf<Function, Format, FTZ>;
  if (op.type("d").bits == 32) return {elementwise<2, Op, uint16_t, uint16_t>};
  return {lanewise<Op, uint16_t, uint16_t>};
}

template <class Function>
Binding bind_f32(const Operation& op) {
  if (!op.type("d").is("f32") || !op.has("approx")) return {};
  return with_flag(op.has("ftz"), [](auto ftz) {
    return Binding{lanewise<OfF32<Function, ftz()>, float, float>};
  });
}

// Functions that have forms in all three types.
template <class Function>
Binding bind_function(const Operation& op) {
  const Type& type = op.type("d");
  if (type.is("f32")) return bind_f32<Function>(op);
  op.implied({"approx"});  // there is no exact form
  return with_flag(op.has("ftz"), [&](auto ftz) {
    if (type.is("f16") || type.is("f16x2")) return bind_half<Function, F16, ftz()>(op);
    return bind_half<Function, BF16, ftz()>(op);
  });
}

// ---- rcp and rsqrt of f64

// They know the upper 32 bits of the input only, and give those of the result; the lower ones are
// zero (PTX ISA, "rcp.approx.ftz.f64").
template <class Function>
struct OfUpperHalf {
  double operator()(double x) const {
    constexpr uint64_t LOWER = 0xFFFF'FFFF;
    const double upper = flush(bits_as<double>(bits_as<uint64_t>(x) & ~LOWER));
    const double exact = Function::compute(upper);
    const uint64_t rounded = bits_as<uint64_t>(exact) + LOWER / 2 + 1;
    const double result = flush(bits_as<double>(rounded & ~LOWER));
    return exact != exact ? bits_as<double>(uint64_t(NAN_F32) << 32) : result;
  }
};

template <class Function>
Binding bind_reciprocal(const Operation& op) {
  if (!op.type("d").is("f64") || !op.has("approx")) return bind_f32<Function>(op);
  op.implied({"ftz"});  // there is no form without it
  return {lanewise<OfUpperHalf<Function>, double, double>};
}

const Registration registration{
    {"ex2", bind_function<Exp2>},   {"lg2", bind_f32<Log2>},          {"sin", bind_f32<Sin>},
    {"cos", bind_f32<Cos>},         {"tanh", bind_function<Tanh>},    {"sqrt", bind_f32<Sqrt>},
    {"rcp", bind_reciprocal<Rcp>},  {"rsqrt", bind_reciprocal<Rsqrt>},
};

}  // namespace

}  // namespace emu
