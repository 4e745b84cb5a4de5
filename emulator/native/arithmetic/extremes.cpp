// min and max of floats of all types.
//
// Deliberately leaves integers to integer.cpp and packed_integer.cpp.
#include "arithmetic/extremes.hpp"

#include "arithmetic/dispatch.hpp"
#include "arithmetic/packed_loops.hpp"

namespace emu {

namespace {

template <class F, bool MAX, bool FTZ, bool NAN_WINS, ExtremeSign SIGN>
Binding bind_loop(const Operation& op) {
  using Op = FloatExtreme<F, MAX, FTZ, NAN_WINS, SIGN>;
  using Bits = typename F::Bits;
  if constexpr (std::is_same_v<F, F32>) {
    if (op.find("c") >= 0) return {lanewise<Op, Bits, Bits, Bits, Bits>};
  }
  if (op.type("d").bits != BITS<Bits>) return {elementwise<2, Op, Bits, Bits, Bits>};
  return {lanewise<Op, Bits, Bits, Bits>};
}

template <class F, bool MAX>
Binding bind_format(const Operation& op) {
  const bool absolute = op.has("abs"), product = op.has("xorsign");
  return with_flag(op.has("ftz"), [&](auto ftz) {
    return with_flag(op.has("NaN"), [&](auto nan) {
      return product    ? bind_loop<F, MAX, ftz(), nan(), ExtremeSign::Product>(op)
             : absolute ? bind_loop<F, MAX, ftz(), nan(), ExtremeSign::Absolute>(op)
                        : bind_loop<F, MAX, ftz(), nan(), ExtremeSign::Kept>(op);
    });
  });
}

template <bool MAX>
Binding bind_extreme(const Operation& op) {
  const Type& type = op.type("d");
  if (type.is("f32")) return bind_format<F32, MAX>(op);
  if (type.is("f64")) return bind_loop<F64, MAX, false, false, ExtremeSign::Kept>(op);
  if (type.is("f16") || type.is("f16x2")) return bind_format<F16, MAX>(op);
  if (type.is("bf16") || type.is("bf16x2")) return bind_format<BF16, MAX>(op);
  return {};
}

const Registration registration{{"min", bind_extreme<false>}, {"max", bind_extreme<true>}};

}  // namespace

}  // namespace emu
