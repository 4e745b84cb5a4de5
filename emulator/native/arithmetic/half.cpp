// Arithmetic of f16, bf16, f16x2 and bf16x2.
//
// Every result is the exact one rounded once, to nearest.  Where f32 does not hold the exact
// result, it holds one that rounds to the same number: a sum of two f16 or bf16 rounded to f32 does
// (f32 has more than twice as many bits, and sums in the subnormal range are exact), and otherwise
// f32 rounded to odd does.  NaN results are 0x7FFF.
//
// Deliberately leaves approximations to approximate.cpp, and signs and extremes to float_bits.cpp
// and extremes.cpp.
#include "arithmetic/dispatch.hpp"
#include "arithmetic/packed_loops.hpp"
#include "arithmetic/rounding.hpp"

namespace emu {

namespace {

template <class Format>
struct Add {
  static float compute(float a, float b) { return a + b; }
};
template <class Format>
struct Sub {
  static float compute(float a, float b) { return a - b; }
};
// A product of f16 is exact in f32; one of bf16 may be too small for that.
template <class Format>
struct Mul {
  static float compute(float a, float b) {
    if constexpr (std::is_same_v<Format, F16>) return a * b;
    return round_to_odd(double(a) * double(b), 0);
  }
};
template <class Format>
struct Fma {
  static float compute(float a, float b, float c) {
    const double product = double(a) * double(b);  // exact
    const double sum = product + double(c);
    return round_to_odd(sum, lost_in_sum(product, c, sum));
  }
};

// What happens to a result: nothing, .sat, .relu.
enum class Clamp { None, Saturate, Relu };

template <template <class> class Op, class Format, bool FTZ, Clamp CLAMP>
struct Half {
  static float read(uint16_t bits) { return widen<Format>(FTZ ? flush_bits<Format>(bits) : bits); }

  template <class... In>
  uint16_t operator()(In... in) const {
    float result = Op<Format>::compute(read(in)...);
    if constexpr (CLAMP == Clamp::Saturate) result = saturate(result);
    if constexpr (CLAMP == Clamp::Relu) result = relu(result);
    const uint16_t bits = uint16_t(narrow<Format>(result));
    return FTZ && is_tiny(result) ? uint16_t(bits & SIGN_OF<Format>) : bits;
  }

  // Whether a result counts as subnormal for .ftz: as if exponents had no end, see rounding.hpp.
  static bool is_tiny(float result) {
    constexpr int ROOM = 2 * Format::MANTISSA;
    constexpr uint32_t LEAST = (1u + ROOM) << Format::MANTISSA;  // the least normal number, scaled
    return (narrow<Format>(result * float(1 << ROOM)) & MAGNITUDE_OF<Format>) < LEAST;
  }
};

template <template <class> class Op, class Format, bool FTZ, Clamp CLAMP, class... In>
Binding bind_loop(bool packed) {
  using Compute = Half<Op, Format, FTZ, CLAMP>;
  return {packed ? elementwise<2, Compute, uint16_t, In...> : lanewise<Compute, uint16_t, In...>};
}

template <template <class> class Op, class... In>
Binding bind_half(const Operation& op) {
  const Type& type = op.type("d");
  const bool f16 = type.is("f16") || type.is("f16x2");
  if (!f16 && !type.is("bf16") && !type.is("bf16x2")) return {};
  op.implied({"rn"});  // the only rounding
  const bool packed = type.bits == 32;
  const bool relu = op.has("relu");
  if (!f16) {
    return relu ? bind_loop<Op, BF16, false, Clamp::Relu, In...>(packed)
                : bind_loop<Op, BF16, false, Clamp::None, In...>(packed);
  }
  const bool sat = op.has("sat");
  return with_flag(op.has("ftz"), [&](auto ftz) {
    return relu  ? bind_loop<Op, F16, ftz(), Clamp::Relu, In...>(packed)
           : sat ? bind_loop<Op, F16, ftz(), Clamp::Saturate, In...>(packed)
                 : bind_loop<Op, F16, ftz(), Clamp::None, In...>(packed);
  });
}

const Registration registration{
    {"add", bind_half<Add, uint16_t, uint16_t>},
    {"sub", bind_half<Sub, uint16_t, uint16_t>},
    {"mul", bind_half<Mul, uint16_t, uint16_t>},
    {"fma", bind_half<Fma, uint16_t, uint16_t, uint16_t>},
};

}  // namespace

}  // namespace emu
