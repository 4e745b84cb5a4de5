// Comparisons: setp, which writes predicates, and set, which writes all ones or zero.
//
// A comparison is a test of two numbers, or the opposite of a test.  Orders of floats are false
// when a number is NaN; those with `u`, which are true then, are opposites: `ltu` is not `ge`.  The
// tests, one loop over the lanes each, are shared by all forms.
//
// Deliberately leaves arithmetic on what was compared to the other files.
#include <string_view>

#include "arithmetic/dispatch.hpp"
#include "arithmetic/formats.hpp"
#include "arithmetic/lane_loops.hpp"
#include "arithmetic/rounding.hpp"

namespace emu {

namespace {

// The lanes for which a test holds of the operands `first` and `first` + 1.
using Test = Lanes (*)(const Step&, int first);

// ---- tests of two numbers

struct Equal {
  template <class T>
  bool operator()(T a, T b) const {
    return a == b;
  }
};

struct Less {
  template <class T>
  bool operator()(T a, T b) const {
    return a < b;
  }
};

struct LessEqual {
  template <class T>
  bool operator()(T a, T b) const {
    return a <= b;
  }
};

struct Greater {
  template <class T>
  bool operator()(T a, T b) const {
    return a > b;
  }
};

struct GreaterEqual {
  template <class T>
  bool operator()(T a, T b) const {
    return a >= b;
  }
};

struct OrderedUnequal {
  template <class T>
  bool operator()(T a, T b) const {
    return (a < b) | (a > b);
  }
};

struct Ordered {
  template <class T>
  bool operator()(T a, T b) const {
    return (a == a) & (b == b);
  }
};

// ---- numbers in registers

// With .ftz, subnormal numbers count as zero.
template <bool FTZ>
struct Single {
  using Bits = uint32_t;
  static float number(Bits bits) { return flush_if<FTZ>(bits_as<float>(bits)); }
};

struct Double {
  using Bits = uint64_t;
  static double number(Bits bits) { return bits_as<double>(bits); }
};

// `HALF` is which half of a register of `Register` bits it is.
template <class Format, bool FTZ, class Register = uint16_t, int HALF = 0>
struct Narrow {
  using Bits = Register;
  static float number(Bits bits) {
    const uint16_t number = uint16_t(bits >> 16 * HALF);
    return widen<Format>(FTZ ? flush_bits<Format>(number) : number);
  }
};

template <class Op, class Number>
struct OfNumbers {
  bool operator()(typename Number::Bits a, typename Number::Bits b) const {
    return Op{}(Number::number(a), Number::number(b));
  }
};

// Not inlined, since many forms share it.
template <class Op, class T>
[[gnu::noinline]] Lanes test(const Step& step, int first) {
  return test_lanes<Op, T, T>(step, first);
}

template <class Op, class T>
constexpr Test TEST = test<Op, T>;

template <class Op, class Number>
constexpr Test TEST_NUMBERS = TEST<OfNumbers<Op, Number>, typename Number::Bits>;

// ---- what a comparison does with a test

enum class Boolean : uint8_t { None, And, Or, Xor };

template <Boolean BOOLEAN>
Lanes combine(Lanes lanes, Lanes other) {
  switch (BOOLEAN) {
    case Boolean::And: return lanes & other;
    case Boolean::Or: return lanes | other;
    case Boolean::Xor: return lanes ^ other;
    default: return lanes;
  }
}

// p|q, a, b, c: p is the comparison combined with c, q its opposite combined with c.  Numbers of 16
// bits have the form without q only.
template <Test TEST, bool PAIR, bool OPPOSITE, Boolean BOOLEAN>
Flow setp(Step& step) {
  constexpr int A = PAIR ? 2 : 1, C = A + 2;
  const Lanes test = TEST(step, A);
  const Lanes holds = OPPOSITE ? ~test : test;
  const Lanes c = BOOLEAN == Boolean::None ? 0 : step.predicate(C);
  step.set_predicate(0, combine<BOOLEAN>(holds, c));
  if (PAIR) step.set_predicate(1, combine<BOOLEAN>(~holds, c));
  return Flow::Next;
}

// p|q, a, b: p compares the low halves, q the high ones.
template <Test LOW, Test HIGH, bool OPPOSITE>
Flow setp_packed(Step& step) {
  const Lanes low = LOW(step, 2), high = HIGH(step, 2);
  step.set_predicate(0, OPPOSITE ? ~low : low);
  step.set_predicate(1, OPPOSITE ? ~high : high);
  return Flow::Next;
}

template <Test TEST, bool OPPOSITE>
Flow set(Step& step) {
  const Lanes test = TEST(step, 1);
  const Lanes holds = OPPOSITE ? ~test : test;
  uint32_t* d = step.lanes<uint32_t>(0);
  each_lane(step.active, [=](int lane) { d[lane] = 0 - (holds >> lane & 1); });
  return Flow::Next;
}

// ---- binding

// How an order is made: of which test, and whether of its opposite.
struct Order {
  enum class Is : uint8_t { Equal, Less, LessEqual, Greater, GreaterEqual, Unequal, Ordered };
  std::string_view name;
  Is test;
  bool opposite;
};

constexpr Order INTEGER_ORDERS[] = {
    {"eq", Order::Is::Equal, false},     {"ne", Order::Is::Equal, true},
    {"lt", Order::Is::Less, false},      {"lo", Order::Is::Less, false},
    {"le", Order::Is::LessEqual, false}, {"ls", Order::Is::LessEqual, false},
    {"gt", Order::Is::LessEqual, true},  {"hi", Order::Is::LessEqual, true},
    {"ge", Order::Is::Less, true},       {"hs", Order::Is::Less, true},
};

constexpr Order FLOAT_ORDERS[] = {
    {"eq", Order::Is::Equal, false},        {"neu", Order::Is::Equal, true},
    {"lt", Order::Is::Less, false},         {"geu", Order::Is::Less, true},
    {"le", Order::Is::LessEqual, false},    {"gtu", Order::Is::LessEqual, true},
    {"gt", Order::Is::Greater, false},      {"leu", Order::Is::Greater, true},
    {"ge", Order::Is::GreaterEqual, false}, {"ltu", Order::Is::GreaterEqual, true},
    {"ne", Order::Is::Unequal, false},      {"equ", Order::Is::Unequal, true},
    {"num", Order::Is::Ordered, false},     {"nan", Order::Is::Ordered, true},
};

// What is made of an operation once its test is known.
struct Wanted {
  bool set = false;
  bool opposite = false;
  Boolean boolean = Boolean::None;
};

template <Test TEST, bool PAIR, bool OPPOSITE>
Binding setp_of(Boolean boolean) {
  switch (boolean) {
    case Boolean::And: return {setp<TEST, PAIR, OPPOSITE, Boolean::And>};
    case Boolean::Or: return {setp<TEST, PAIR, OPPOSITE, Boolean::Or>};
    case Boolean::Xor: return {setp<TEST, PAIR, OPPOSITE, Boolean::Xor>};
    default: return {setp<TEST, PAIR, OPPOSITE, Boolean::None>};
  }
}

template <Test TEST, bool PAIR>
Binding compare(const Wanted& wanted) {
  if (wanted.set) return {wanted.opposite ? set<TEST, true> : set<TEST, false>};
  return wanted.opposite ? setp_of<TEST, PAIR, true>(wanted.boolean)
                         : setp_of<TEST, PAIR, false>(wanted.boolean);
}

template <class T>
Binding compare_integers(Order::Is test, const Wanted& wanted) {
  switch (test) {
    case Order::Is::Equal: return compare<TEST<Equal, T>, true>(wanted);
    case Order::Is::Less: return compare<TEST<Less, T>, true>(wanted);
    default: return compare<TEST<LessEqual, T>, true>(wanted);
  }
}

// f(Op{}) for the test.
template <class F>
Binding choose_test(Order::Is test, F&& f) {
  switch (test) {
    case Order::Is::Equal: return f(Equal{});
    case Order::Is::Less: return f(Less{});
    case Order::Is::LessEqual: return f(LessEqual{});
    case Order::Is::Greater: return f(Greater{});
    case Order::Is::GreaterEqual: return f(GreaterEqual{});
    case Order::Is::Unequal: return f(OrderedUnequal{});
    default: return f(Ordered{});
  }
}

template <class Number>
Binding compare_floats(Order::Is test, const Wanted& wanted) {
  return choose_test(test, [&](auto op) {
    constexpr bool pair = sizeof(typename Number::Bits) > 2;
    return compare<TEST_NUMBERS<decltype(op), Number>, pair>(wanted);
  });
}

template <class Format, bool FTZ>
Binding compare_packed(Order::Is test, const Wanted& wanted) {
  return choose_test(test, [&](auto op) {
    using Op = decltype(op);
    constexpr Test low = TEST_NUMBERS<Op, Narrow<Format, FTZ, uint32_t, 0>>;
    constexpr Test high = TEST_NUMBERS<Op, Narrow<Format, FTZ, uint32_t, 1>>;
    return Binding{wanted.opposite ? setp_packed<low, high, true> : setp_packed<low, high, false>};
  });
}

Boolean boolean_of(std::string_view name) {
  if (name == "and") return Boolean::And;
  if (name == "or") return Boolean::Or;
  return name == "xor" ? Boolean::Xor : Boolean::None;
}

template <std::size_t N>
const Order* find(const Order (&orders)[N], std::string_view name) {
  for (const Order& order : orders) {
    if (order.name == name) return &order;
  }
  return nullptr;
}

Binding bind_integers(const Operation& op, const Type& type, Wanted wanted) {
  const Order* order = find(INTEGER_ORDERS, op.first_of({"same", "order", "order_unsigned"}));
  if (!order) return {};
  wanted.opposite = order->opposite;
  return choose<uint16_t, uint32_t, uint64_t, int16_t, int32_t, int64_t>(type, [&](auto t) {
    return compare_integers<decltype(t)>(order->test, wanted);
  });
}

Binding bind_floats(const Operation& op, const Type& type, Wanted wanted) {
  using Compare = Binding (*)(Order::Is, const Wanted&);
  static constexpr struct {
    std::string_view type;
    Compare plain, ftz;
  } rows[] = {
      {"f32", compare_floats<Single<false>>, compare_floats<Single<true>>},
      {"f64", compare_floats<Double>, nullptr},
      {"f16", compare_floats<Narrow<F16, false>>, compare_floats<Narrow<F16, true>>},
      {"bf16", compare_floats<Narrow<BF16, false>>, nullptr},
      {"f16x2", compare_packed<F16, false>, compare_packed<F16, true>},
      {"bf16x2", compare_packed<BF16, false>, nullptr},
  };
  const Order* order = find(FLOAT_ORDERS, op.get("order_float"));
  if (!order) return {};
  wanted.opposite = order->opposite;
  for (const auto& row : rows) {
    if (!type.is(row.type)) continue;
    const Compare compare = op.has("ftz") ? row.ftz : row.plain;
    return compare ? compare(order->test, wanted) : Binding{};
  }
  return {};
}

template <bool SET>
Binding bind_comparison(const Operation& op) {
  const Type& type = op.type("a");
  Wanted wanted;
  wanted.set = SET;
  wanted.boolean = boolean_of(op.get("boolean"));
  return op.has("order_float") ? bind_floats(op, type, wanted) : bind_integers(op, type, wanted);
}

const Registration registration{
    {"setp", bind_comparison<false>},
    {"set", bind_comparison<true>},
};

}  // namespace

}  // namespace emu
