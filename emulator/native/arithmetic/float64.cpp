// Arithmetic of f64: sums, products, quotients, roots.
//
// Every result is the exact one rounded once.  Directed rounding sets the rounding mode of the
// processor for one instruction; operands and results pass through volatile objects, so that the
// compiler computes neither before nor after that.
//
// Deliberately leaves approximations to approximate.cpp, and signs, extremes and classes to
// float_bits.cpp and extremes.cpp.
#include <cfenv>

#include "arithmetic/dispatch.hpp"
#include "arithmetic/lane_loops.hpp"
#include "arithmetic/rounding.hpp"

namespace emu {

namespace {

struct Add {
  double operator()(double a, double b) const { return a + b; }
};
struct Sub {
  double operator()(double a, double b) const { return a - b; }
};
struct Mul {
  double operator()(double a, double b) const { return a * b; }
};
struct Fma {
  double operator()(double a, double b, double c) const { return std::fma(a, b, c); }
};
struct Div {
  double operator()(double a, double b) const { return a / b; }
};
struct Rcp {
  double operator()(double a) const { return 1 / a; }
};
struct Sqrt {
  double operator()(double a) const { return std::sqrt(a); }
};

// The rounding mode of this thread, for as long as the object lives.
class RoundingMode {
 public:
  explicit RoundingMode(Rounding rounding) : before_(std::fegetround()) {
    std::fesetround(rounding == Rounding::Zero   ? FE_TOWARDZERO
                    : rounding == Rounding::Down ? FE_DOWNWARD
                                                 : FE_UPWARD);
  }
  ~RoundingMode() { std::fesetround(before_); }
  RoundingMode(const RoundingMode&) = delete;
  RoundingMode& operator=(const RoundingMode&) = delete;

 private:
  int before_;
};

// ---- NaN
// An operand that is NaN is the result, not signalling any more; of several, hardware takes b
// before c before a, and a quotient takes a first (H200).  Otherwise there is one NaN.

template <class... Rest>
double first_nan(double number, Rest... rest) {
  if (number != number) return bits_as<double>(bits_as<uint64_t>(number) | QUIET<F64>);
  if constexpr (sizeof...(rest) > 0) return first_nan(rest...);
  return bits_as<double>(NAN_F64);
}

template <class Op>
double nan_of(double a) {
  return first_nan(a);
}
template <class Op>
double nan_of(double a, double b) {
  return std::is_same_v<Op, Div> ? first_nan(a, b) : first_nan(b, a);
}
template <class Op>
double nan_of(double a, double b, double c) {
  return first_nan(b, c, a);
}

// ---- in the processor's rounding mode, and in another

template <class Op>
struct Nearest {
  template <class... In>
  double operator()(In... in) const {
    const double result = Op{}(in...);
    return result != result ? nan_of<Op>(in...) : result;
  }
};

template <class Op>
struct InMode {
  template <class... In>
  double operator()(In... in) const {
    volatile double held[] = {in...};
    volatile double result = compute(held, std::index_sequence_for<In...>{});
    const double done = result;
    return done != done ? nan_of<Op>(in...) : done;
  }
  template <std::size_t... I>
  static double compute(const volatile double* held, std::index_sequence<I...>) {
    return Op{}(held[I]...);
  }
};

template <Rounding R, class Op, class... In>
Flow directed(Step& step) {
  const RoundingMode mode(R);
  return lanewise<InMode<Op>, double, In...>(step);
}

template <class Op, class... In>
Binding bind_f64(const Operation& op) {
  if (!op.type("d").is("f64") || op.has("approx")) return {};
  return with_rounding(op.get("rnd"), [](auto rounding) {
    if constexpr (rounding() == Rounding::Nearest) {
      return Binding{lanewise<Nearest<Op>, double, In...>};
    } else {
      return Binding{directed<rounding(), Op, In...>};
    }
  });
}

const Registration registration{
    {"add", bind_f64<Add, double, double>},
    {"sub", bind_f64<Sub, double, double>},
    {"mul", bind_f64<Mul, double, double>},
    {"fma", bind_f64<Fma, double, double, double>},
    {"mad", bind_f64<Fma, double, double, double>},
    {"div", bind_f64<Div, double, double>},
    {"rcp", bind_f64<Rcp, double>},
    {"sqrt", bind_f64<Sqrt, double>},
};

}  // namespace

}  // namespace emu
