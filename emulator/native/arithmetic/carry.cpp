// Arithmetic with the carry flag: add.cc, addc, sub.cc, subc, mad.cc and madc, from which wider
// numbers are made.
//
// Each lane has one flag, CC.CF.  Additions leave the carry out of the highest bit in it,
// subtractions the borrow; carries do not depend on the sign of a type, high halves of products do.
#include "arithmetic/dispatch.hpp"
#include "arithmetic/lane_loops.hpp"
#include "machine/warp.hpp"

namespace emu {

namespace {

template <class T>
using Unsigned = std::make_unsigned_t<T>;

// d = x + y + carry; returns the carry out.
template <class U>
bool add(U x, U y, bool carry, U* d) {
  U sum;
  const bool first = __builtin_add_overflow(x, y, &sum);
  return first | __builtin_add_overflow(sum, U(carry), d);
}

struct Add {
  template <class T>
  bool operator()(bool carry, T* d, T a, T b) const {
    return add<T>(a, b, carry, d);
  }
};

struct Sub {
  template <class T>
  bool operator()(bool borrow, T* d, T a, T b) const {
    T difference;
    const bool first = __builtin_sub_overflow(a, b, &difference);
    return first | __builtin_sub_overflow(difference, T(borrow), d);
  }
};

struct MadLow {
  template <class T>
  bool operator()(bool carry, Unsigned<T>* d, T a, T b, T c) const {
    using U = Unsigned<T>;
    return add<U>(U(a) * U(b), U(c), carry, d);
  }
};

struct MadHigh {
  template <class T>
  bool operator()(bool carry, Unsigned<T>* d, T a, T b, T c) const {
    using U = Unsigned<T>;
    return add<U>(U(Wide<T>(a) * Wide<T>(b) >> BITS<T>), U(c), carry, d);
  }
};

template <class Op, bool READS, bool WRITES, class... In, std::size_t... I>
Flow execute(Step& step, std::index_sequence<I...>) {
  using D = Unsigned<std::common_type_t<In...>>;
  D* d = step.lanes<D>(0);
  const std::tuple<const In*...> in{step.lanes<In>(1 + int(I))...};
  Lanes& flags = step.warp.carry;
  const Lanes before = READS ? flags : 0;
  Lanes after = 0;
  each_lane(step.active, [&](int lane) {
    D result;
    const bool carry = Op{}(before >> lane & 1, &result, std::get<I>(in)[lane]...);
    d[lane] = result;
    after |= Lanes(carry) << lane;
  });
  if (WRITES) flags = (flags & ~step.active) | after;
  return Flow::Next;
}

template <class Op, bool READS, bool WRITES, class... In>
Flow with_carry(Step& step) {
  return execute<Op, READS, WRITES, In...>(step, std::index_sequence_for<In...>{});
}

// In a sum the sign makes no difference.
template <class Op, bool READS>
Binding bind_sum(const Operation& op) {
  const Type& type = op.type("d");
  if (type.kind != Kind::Integer) return {};
  if (!READS && !op.has("cc")) return {};  // integer.cpp has it
  return choose_size<uint32_t, uint64_t>(type.bits, [&](auto t) {
    return with_flag(op.has("cc"), [](auto writes) {
      using T = decltype(t);
      return Binding{with_carry<Op, READS, writes(), T, T>};
    });
  });
}

template <class Op, bool READS>
Binding bind_product(const Operation& op) {
  return choose<uint32_t, uint64_t, int32_t, int64_t>(op.type("d"), [&](auto t) {
    return with_flag(op.has("cc"), [](auto writes) {
      using T = decltype(t);
      return Binding{with_carry<Op, READS, writes(), T, T, T>};
    });
  });
}

template <bool READS>
Binding bind_mad(const Operation& op) {
  if (op.type("d").kind != Kind::Integer) return {};
  if (!READS && !op.has("cc")) return {};  // integer.cpp has it
  return op.get("lohi") == "lo" ? bind_product<MadLow, READS>(op)
                                : bind_product<MadHigh, READS>(op);
}

const Registration registration{
    {"add", bind_sum<Add, false>}, {"addc", bind_sum<Add, true>}, {"sub", bind_sum<Sub, false>},
    {"subc", bind_sum<Sub, true>}, {"mad", bind_mad<false>},      {"madc", bind_mad<true>},
};

}  // namespace

}  // namespace emu
