// Arithmetic of integers: sums, products, quotients, extremes.
//
// Results wrap around unless the form saturates.  Where the PTX ISA leaves a quotient open this
// does what an H200 does: dividing by zero gives all ones, as quotient and as remainder; the
// smallest number divided by -1 gives itself, its remainder zero.
//
// Deliberately leaves the forms that use the carry flag to carry.cpp, and packed integers to
// packed_integer.cpp.
#include <limits>

#include "arithmetic/dispatch.hpp"
#include "arithmetic/lane_loops.hpp"

namespace emu {

namespace {

// ---- sums

struct Add {
  template <class T>
  T operator()(T a, T b) const {
    return T(Modular<T>(a) + Modular<T>(b));
  }
};

struct Sub {
  template <class T>
  T operator()(T a, T b) const {
    return T(Modular<T>(a) - Modular<T>(b));
  }
};

int32_t saturate(int64_t value) {
  using Limits = std::numeric_limits<int32_t>;
  if (value > Limits::max()) return Limits::max();
  return value < Limits::min() ? Limits::min() : int32_t(value);
}

struct AddSaturating {
  int32_t operator()(int32_t a, int32_t b) const { return saturate(int64_t(a) + b); }
};

struct SubSaturating {
  int32_t operator()(int32_t a, int32_t b) const { return saturate(int64_t(a) - b); }
};

struct Neg {
  template <class T>
  T operator()(T a) const {
    return T(0 - Modular<T>(a));
  }
};

struct Abs {
  template <class T>
  T operator()(T a) const {
    return a < 0 ? Neg{}(a) : a;
  }
};

struct Sad {
  template <class T>
  T operator()(T a, T b, T c) const {
    return Add{}(c, a < b ? Sub{}(b, a) : Sub{}(a, b));
  }
};

// ---- products

struct MulLow {
  template <class T>
  T operator()(T a, T b) const {
    return T(Modular<T>(a) * Modular<T>(b));
  }
};

struct MulHigh {
  template <class T>
  T operator()(T a, T b) const {
    return T(Wide<T>(a) * Wide<T>(b) >> BITS<T>);
  }
};

struct MulWide {
  template <class T>
  Wide<T> operator()(T a, T b) const {
    return Wide<T>(a) * Wide<T>(b);
  }
};

// The 24 low bits of a number, extended by their sign for signed types.
template <class T>
Wide<T> low24(T a) {
  return Wide<T>(T(Modular<T>(a) << 8) >> 8);
}

struct Mul24Low {
  template <class T>
  T operator()(T a, T b) const {
    return T(low24(a) * low24(b));
  }
};

struct Mul24High {  // bits 16 to 47 of the product
  template <class T>
  T operator()(T a, T b) const {
    return T(low24(a) * low24(b) >> 16);
  }
};

// A product and a sum that wraps.
template <class Product>
struct ThenAdd {
  template <class T, class Sum>
  Sum operator()(T a, T b, Sum c) const {
    return Add{}(Product{}(a, b), c);
  }
};

// ---- quotients

struct Div {
  template <class T>
  T operator()(T a, T b) const {
    if (b == 0) return T(-1);
    if (std::is_signed_v<T> && b == T(-1)) return Neg{}(a);
    return T(a / b);
  }
};

struct Rem {
  template <class T>
  T operator()(T a, T b) const {
    if (b == 0) return T(-1);
    if (std::is_signed_v<T> && b == T(-1)) return 0;
    return T(a % b);
  }
};

// ---- extremes

struct Min {
  template <class T>
  T operator()(T a, T b) const {
    return a < b ? a : b;
  }
};

struct Max {
  template <class T>
  T operator()(T a, T b) const {
    return a < b ? b : a;
  }
};

template <class Extreme>
struct ThenRelu {
  int32_t operator()(int32_t a, int32_t b) const { return Max{}(Extreme{}(a, b), 0); }
};

// ---- binding

template <class F>
Binding choose_integer(const Type& type, F&& f) {
  return choose<uint16_t, uint32_t, uint64_t, int16_t, int32_t, int64_t>(type, f);
}

bool is_integer(const Operation& op) { return op.type("a").kind == Kind::Integer; }

template <class Op>
Binding bind_unary(const Operation& op) {
  return choose<int16_t, int32_t, int64_t>(op.type("d"), [](auto t) {
    using T = decltype(t);
    return Binding{lanewise<Op, T, T>};
  });
}

template <class Op>
Binding bind_binary(const Operation& op) {
  return choose_integer(op.type("d"), [](auto t) {
    using T = decltype(t);
    return Binding{lanewise<Op, T, T, T>};
  });
}

template <class Op, class Saturating>
Binding bind_sum(const Operation& op) {
  if (!is_integer(op) || op.has("cc")) return {};
  if (op.has("sat")) return {lanewise<Saturating, int32_t, int32_t, int32_t>};
  return bind_binary<Op>(op);
}

template <class Op>
Binding bind_extreme(const Operation& op) {
  if (!is_integer(op)) return {};
  if (op.has("relu")) return {lanewise<ThenRelu<Op>, int32_t, int32_t, int32_t>};
  return bind_binary<Op>(op);
}

Binding bind_mul(const Operation& op) {
  if (!is_integer(op)) return {};
  if (op.has("wide")) {
    return choose<uint16_t, uint32_t, int16_t, int32_t>(op.type("a"), [](auto t) {
      using T = decltype(t);
      return Binding{lanewise<MulWide, Wide<T>, T, T>};
    });
  }
  return op.get("lohi") == "lo" ? bind_binary<MulLow>(op) : bind_binary<MulHigh>(op);
}

template <class Op>
Binding bind_ternary(const Operation& op) {
  return choose_integer(op.type("d"), [](auto t) {
    using T = decltype(t);
    return Binding{lanewise<Op, T, T, T, T>};
  });
}

Binding bind_mad(const Operation& op) {
  if (!is_integer(op) || op.has("cc")) return {};
  if (op.has("wide")) {
    return choose<uint16_t, uint32_t, int16_t, int32_t>(op.type("a"), [](auto t) {
      using T = decltype(t);
      return Binding{lanewise<ThenAdd<MulWide>, Wide<T>, T, T, Wide<T>>};
    });
  }
  return op.get("lohi") == "lo" ? bind_ternary<ThenAdd<MulLow>>(op)
                                : bind_ternary<ThenAdd<MulHigh>>(op);
}

Binding bind_mul24(const Operation& op) {
  const bool low = op.get("lohi") == "lo";
  return choose<uint32_t, int32_t>(op.type("d"), [low](auto t) {
    using T = decltype(t);
    return Binding{low ? lanewise<Mul24Low, T, T, T> : lanewise<Mul24High, T, T, T>};
  });
}

Binding bind_mad24(const Operation& op) {
  const bool low = op.get("lohi") == "lo";
  return choose<uint32_t, int32_t>(op.type("d"), [low](auto t) {
    using T = decltype(t);
    return Binding{low ? lanewise<ThenAdd<Mul24Low>, T, T, T, T>
                       : lanewise<ThenAdd<Mul24High>, T, T, T, T>};
  });
}

const Registration registration{
    {"add", bind_sum<Add, AddSaturating>},
    {"sub", bind_sum<Sub, SubSaturating>},
    {"mul", bind_mul},
    {"mad", bind_mad},
    {"mul24", bind_mul24},
    {"mad24", bind_mad24},
    {"sad", bind_ternary<Sad>},
    {"div", bind_binary<Div>},
    {"rem", bind_binary<Rem>},
    {"abs", bind_unary<Abs>},
    {"neg", bind_unary<Neg>},
    {"min", bind_extreme<Min>},
    {"max", bind_extreme<Max>},
};

}  // namespace

}  // namespace emu
