// Conversions to and from packed and narrow formats (cvt): f16x2, bf16x2, tf32, e4m3, e5m2, e2m3,
// e3m2, e2m1, ue8m0; and those to f16 and bf16 with .relu or .satfinite.
//
// Rules of the PTX ISA, "cvt": the first operand becomes the upper part of the result.  With .relu
// negative numbers become zero; with .satfinite numbers that are too great, and infinities, become
// the greatest number.  NaN becomes the format's NaN, or its greatest number where it has none.
//
// Stochastic rounding adds random bits to the first bits that are cut off, so that a number is
// rounded away from zero as often as its fraction says.  Which of `random` they are: in f16x2 the
// low 13 bits of each half; in bf16x2 each half; for four numbers of 8 bits the upper half for a
// and b, the lower for the others; for four of 4 bits the upper byte of both halves for a and b,
// the lower ones for the others.  That a number's 16 random bits from two halves have the upper
// half's first is an assumption.
#include "arithmetic/convert.hpp"
#include "arithmetic/dispatch.hpp"
#include "arithmetic/packed_loops.hpp"
#include "arithmetic/rounding.hpp"

namespace emu {

namespace {

template <bool RELU>
float relu_if(float number) {
  return RELU ? relu(number) : number;
}

// ---- to f16, bf16 and tf32

template <class F, Rounding R, bool RELU, bool FINITE>
struct Narrow16 {
  uint16_t operator()(float a) const { return uint16_t(narrow<F, R, FINITE>(relu_if<RELU>(a))); }
};

template <Rounding R, bool RELU, bool FINITE>
struct NarrowTF32 {
  uint32_t operator()(float a) const { return narrow<TF32, R, FINITE>(relu_if<RELU>(a)) << 13; }
};

template <class F, Rounding R, bool RELU, bool FINITE>
struct Pair16 {
  uint32_t operator()(float a, float b) const {
    return narrow<F, R, FINITE>(relu_if<RELU>(a)) << 16 | narrow<F, R, FINITE>(relu_if<RELU>(b));
  }
};

template <class F, bool RELU, bool FINITE>
struct Pair16AtRandom {
  static constexpr int RANDOM = std::is_same_v<F, F16> ? 13 : 16;
  static uint32_t one(float number, uint32_t random) {
    const uint32_t used = random & ((1u << RANDOM) - 1);
    return narrow<F, Rounding::Stochastic, FINITE, RANDOM>(relu_if<RELU>(number), used);
  }
  uint32_t operator()(float a, float b, uint32_t random) const {
    return one(a, random >> 16) << 16 | one(b, random);
  }
};

// f(rounding, relu, satfinite) as constants.
template <class F>
Binding with_clamps(const Operation& op, F&& f) {
  return with_flag(op.has("relu"), [&](auto relu) {
    return with_flag(op.has("satfinite"), [&](auto finite) { return f(relu, finite); });
  });
}

template <class F>
Binding bind_pair16(const Operation& op) {
  return with_clamps(op, [&](auto relu, auto finite) {
    if (op.has("rs")) {
      using Op = Pair16AtRandom<F, relu(), finite()>;
      return Binding{lanewise<Op, uint32_t, float, float, uint32_t>};
    }
    return with_rounding(op.get("rn_rz"), [&](auto rounding) {
      using Op = Pair16<F, rounding(), relu(), finite()>;
      return Binding{lanewise<Op, uint32_t, float, float>};
    });
  });
}

template <class F>
Binding bind_narrow16(const Operation& op) {
  return with_clamps(op, [&](auto relu, auto finite) {
    return with_rounding(op.get("rn_rz"), [&](auto rounding) {
      return Binding{lanewise<Narrow16<F, rounding(), relu(), finite()>, uint16_t, float>};
    });
  });
}

Binding bind_tf32(const Operation& op) {
  return with_clamps(op, [&](auto relu, auto finite) {
    if (op.has("rna")) {
      using Op = NarrowTF32<Rounding::NearestAway, relu(), finite()>;
      return Binding{lanewise<Op, uint32_t, float>};
    }
    return with_rounding(op.get("rn_rz"), [&](auto rounding) {
      return Binding{lanewise<NarrowTF32<rounding(), relu(), finite()>, uint32_t, float>};
    });
  });
}

// ---- pairs of formats of 8 bits and less, and f16x2
// Numbers of 6 bits are padded to 8; two numbers of 4 bits share 8.

template <class F>
constexpr int PLACE = F::EXPONENT + F::MANTISSA < 4 ? 4 : 8;  // bits for a number in a pair

template <class F, bool RELU>
uint32_t narrow_small(float number) {
  return narrow<F, Rounding::Nearest, true>(relu_if<RELU>(number));
}

template <class F, bool RELU>
struct PairSmall {
  uint16_t operator()(float a, float b) const {
    return uint16_t(narrow_small<F, RELU>(a) << PLACE<F> | narrow_small<F, RELU>(b));
  }
  uint16_t operator()(uint32_t pair) const {
    return (*this)(widen<F16>(pair >> 16), widen<F16>(pair));
  }
};

template <class F, bool RELU>
struct PairF16 {
  static uint32_t one(uint32_t bits) { return narrow<F16>(relu_if<RELU>(widen<F>(bits))); }
  uint32_t operator()(uint16_t pair) const { return one(pair >> PLACE<F>) << 16 | one(pair); }
};

// Registers of a pair of 4-bit numbers have 8 bits or more, so they go by the operand's size.
template <class Op>
Flow narrow_byte(Step& step) {
  const float *a = step.lanes<float>(1), *b = step.lanes<float>(2);
  for_each(step.active,
           [&](int lane) { step.write(step.operand(0), lane, Op{}(a[lane], b[lane])); });
  return Flow::Next;
}
template <class Op>
Flow narrow_byte_of_pair(Step& step) {
  const uint32_t* a = step.lanes<uint32_t>(1);
  for_each(step.active, [&](int lane) { step.write(step.operand(0), lane, Op{}(a[lane])); });
  return Flow::Next;
}
template <class Op>
Flow widen_byte(Step& step) {
  uint32_t* d = step.lanes<uint32_t>(0);
  for_each(step.active,
           [&](int lane) { d[lane] = Op{}(uint16_t(step.read(step.operand(1), lane) & 0xFF)); });
  return Flow::Next;
}

template <class F>
Binding bind_to_small(const Operation& op) {
  op.implied({"rn", "satfinite"});  // there are no others
  return with_flag(op.has("relu"), [&](auto relu) -> Binding {
    using Op = PairSmall<F, relu()>;
    const bool from_pair = op.type("a").is("f16x2");
    if (PLACE<F> == 4) return {from_pair ? narrow_byte_of_pair<Op> : narrow_byte<Op>};
    if (from_pair) return {lanewise<Op, uint16_t, uint32_t>};
    return {lanewise<Op, uint16_t, float, float>};
  });
}

template <class F>
Binding bind_from_small(const Operation& op) {
  op.implied({"rn"});  // it is exact
  return with_flag(op.has("relu"), [&](auto relu) -> Binding {
    using Op = PairF16<F, relu()>;
    if (PLACE<F> == 4) return {widen_byte<Op>};
    return {lanewise<Op, uint32_t, uint16_t>};
  });
}

// ---- four numbers at random

template <class F, bool RELU>
struct QuadAtRandom {
  static uint32_t one(float number, uint32_t random) {
    return narrow<F, Rounding::Stochastic, true>(relu_if<RELU>(number), random);
  }
  // The first two numbers use `upper`, the others `lower`.
  static uint32_t four(const float (&numbers)[4], uint32_t upper, uint32_t lower) {
    uint32_t result = 0;
    for (int i = 0; i < 4; ++i) {
      result = result << PLACE<F> | one(numbers[i], i < 2 ? upper : lower);
    }
    return result;
  }
  static uint32_t compute(const float (&numbers)[4], uint32_t random) {
    if constexpr (PLACE<F> == 8) return four(numbers, random >> 16, random & 0xFFFF);
    return four(numbers, (random >> 16 & 0xFF00) | (random >> 8 & 0xFF),
                (random >> 8 & 0xFF00) | (random & 0xFF));
  }
};

template <class Op>
Flow quad(Step& step) {
  const float* numbers[4];
  for (uint32_t i = 0; i < 4; ++i) numbers[i] = step.lanes<float>(step.element(step.operand(1), i));
  const uint32_t* random = step.lanes<uint32_t>(2);
  for_each(step.active, [&](int lane) {
    const float four[4] = {numbers[0][lane], numbers[1][lane], numbers[2][lane], numbers[3][lane]};
    step.write(step.operand(0), lane, Op::compute(four, random[lane]));
  });
  return Flow::Next;
}

template <class F>
Binding bind_quad(const Operation& op) {
  op.implied({"rs", "satfinite"});  // there are no others
  return with_flag(op.has("relu"), [&](auto relu) {
    return Binding{quad<QuadAtRandom<F, relu()>>};
  });
}

// ---- scales

template <Rounding R, bool FINITE>
struct PairScale {
  static uint32_t one(float number) { return narrow_ue8m0<R, FINITE>(number); }
  uint16_t operator()(float a, float b) const { return uint16_t(one(a) << 8 | one(b)); }
  uint16_t operator()(uint32_t pair) const {
    return (*this)(widen<BF16>(pair >> 16), widen<BF16>(pair));
  }
};

struct PairOfScales {
  static uint32_t one(uint32_t bits) { return narrow<BF16>(widen_ue8m0(bits)); }
  uint32_t operator()(uint16_t pair) const { return one(pair >> 8) << 16 | one(pair); }
};

template <Rounding R>
Binding bind_scale(const Operation& op) {
  return with_flag(op.has("satfinite"), [&](auto finite) -> Binding {
    using Op = PairScale<R, finite()>;
    if (op.type("a").is("bf16x2")) return {lanewise<Op, uint16_t, uint32_t>};
    return {lanewise<Op, uint16_t, float, float>};
  });
}

Binding bind_to_scale(const Operation& op) {
  return op.get("rz_rp") == "rp" ? bind_scale<Rounding::Up>(op) : bind_scale<Rounding::Zero>(op);
}

Binding bind_from_scale(const Operation& op) {
  op.implied({"rn"});  // it is exact
  return {lanewise<PairOfScales, uint32_t, uint16_t>};
}

// ---- which is which

struct Row {
  std::string_view type;
  Bind bind;
};

constexpr Row BY_RESULT[] = {
    {"f16", bind_narrow16<F16>},    {"bf16", bind_narrow16<BF16>},
    {"f16x2", bind_pair16<F16>},    {"bf16x2", bind_pair16<BF16>},
    {"tf32", bind_tf32},            {"ue8m0x2", bind_to_scale},
    {"e4m3x2", bind_to_small<E4M3>}, {"e5m2x2", bind_to_small<E5M2>},
    {"e2m3x2", bind_to_small<E2M3>}, {"e3m2x2", bind_to_small<E3M2>},
    {"e2m1x2", bind_to_small<E2M1>}, {"e4m3x4", bind_quad<E4M3>},
    {"e5m2x4", bind_quad<E5M2>},    {"e2m3x4", bind_quad<E2M3>},
    {"e3m2x4", bind_quad<E3M2>},    {"e2m1x4", bind_quad<E2M1>},
};
constexpr Row BY_SOURCE[] = {
    {"e4m3x2", bind_from_small<E4M3>}, {"e5m2x2", bind_from_small<E5M2>},
    {"e2m3x2", bind_from_small<E2M3>}, {"e3m2x2", bind_from_small<E3M2>},
    {"e2m1x2", bind_from_small<E2M1>}, {"ue8m0x2", bind_from_scale},
};

Binding bind_cvt(const Operation& op) {
  const Type &to = op.type("d"), &from = op.type("a");
  for (const Row& row : BY_SOURCE) {
    if (from.is(row.type)) return row.bind(op);
  }
  // Of one f32 or f64 to f16 and bf16, only forms that clamp; convert_float.cpp has the others.
  const bool single = to.is("f16") || to.is("bf16");
  if (single && !op.has("rn_rz")) return {};
  for (const Row& row : BY_RESULT) {
    if (to.is(row.type)) return row.bind(op);
  }
  return {};
}

const Registration registration{{"cvt", bind_cvt}};

}  // namespace

}  // namespace emu
