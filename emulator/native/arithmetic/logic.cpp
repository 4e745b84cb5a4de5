// Logic, shifts and permutations of bits: and, or, xor, not, cnot, lop3, shl, shr, shf, prmt.
//
// Shifts by the size of a register or more move every bit out, but where a form wraps the amount.
#include <algorithm>
#include <string_view>

#include "arithmetic/dispatch.hpp"
#include "arithmetic/lane_loops.hpp"

namespace emu {

namespace {

// ---- logic

struct And {
  template <class U>
  U operator()(U a, U b) const {
    return a & b;
  }
};

struct Or {
  template <class U>
  U operator()(U a, U b) const {
    return a | b;
  }
};

struct Xor {
  template <class U>
  U operator()(U a, U b) const {
    return a ^ b;
  }
};

struct Not {
  template <class U>
  U operator()(U a) const {
    return U(~a);
  }
};

struct Cnot {
  template <class U>
  U operator()(U a) const {
    return a == 0;
  }
};

template <class Op>
Flow binary_predicate(Step& step) {
  step.set_predicate(0, Op{}(step.predicate(1), step.predicate(2)));
  return Flow::Next;
}

Flow not_predicate(Step& step) {
  step.set_predicate(0, ~step.predicate(1));
  return Flow::Next;
}

// Bit `c << 0 | b << 1 | a << 2` of the table says what becomes of bits a, b and c.
template <class Combine>
Flow lop3(Step& step, int a_at, Combine&& combine) {
  uint32_t* d = step.lanes<uint32_t>(0);
  const uint32_t* a = step.lanes<uint32_t>(a_at);
  const uint32_t* b = step.lanes<uint32_t>(a_at + 1);
  const uint32_t* c = step.lanes<uint32_t>(a_at + 2);
  const uint32_t table = uint32_t(step.operand(a_at + 3).value);
  uint32_t selected[8];
  for (int i = 0; i < 8; ++i) selected[i] = table >> i & 1 ? 0xFFFF'FFFF : 0;
  each_lane(step.active, [&](int lane) {
    const uint32_t x = a[lane], y = b[lane], z = c[lane];
    const uint32_t result = (~x & ((~y & ((~z & selected[0]) | (z & selected[1]))) |
                                   (y & ((~z & selected[2]) | (z & selected[3]))))) |
                            (x & ((~y & ((~z & selected[4]) | (z & selected[5]))) |
                                  (y & ((~z & selected[6]) | (z & selected[7])))));
    d[lane] = result;
    combine(lane, result);
  });
  return Flow::Next;
}

Flow lop3_plain(Step& step) {
  return lop3(step, 1, [](int, uint32_t) {});
}

// The form d|p, a, b, c, table, q: p = (d != 0) op q.
template <class Op>
Flow lop3_predicate(Step& step) {
  const Lanes q = step.predicate(6);
  Lanes some = 0;
  lop3(step, 2, [&](int lane, uint32_t d) { some |= Lanes(d != 0) << lane; });
  step.set_predicate(1, Op{}(some, q));
  return Flow::Next;
}

// ---- shifts

struct Shl {
  template <class U>
  U operator()(U a, uint32_t n) const {
    return n < BITS<U> ? U(a << n) : U(0);
  }
};

struct Shr {
  template <class T>
  T operator()(T a, uint32_t n) const {
    if constexpr (std::is_signed_v<T>) {
      return T(a >> std::min(n, BITS<T> - 1));
    } else {
      return n < BITS<T> ? T(a >> n) : T(0);
    }
  }
};

// 64 bits, b above a, shifted: the upper half of a shift to the left, the lower of one to the
// right.
template <bool LEFT, bool CLAMP>
struct Funnel {
  uint32_t operator()(uint32_t a, uint32_t b, uint32_t c) const {
    const uint32_t n = CLAMP ? std::min(c, 32u) : c & 31;
    const uint64_t both = uint64_t(b) << 32 | a;
    return LEFT ? uint32_t(both << n >> 32) : uint32_t(both >> n);
  }
};

// ---- prmt: bytes of the pair b, a, where byte 0 is the lowest of a

// Each hexadecimal digit of the selector is the number of a byte; its bit 3 spreads the sign.
struct Permute {
  uint32_t operator()(uint32_t a, uint32_t b, uint32_t selector) const {
    return byte_of(a, b, selector) | byte_of(a, b, selector >> 4) << 8 |
           byte_of(a, b, selector >> 8) << 16 | byte_of(a, b, selector >> 12) << 24;
  }

 private:
  static uint32_t byte_of(uint32_t a, uint32_t b, uint32_t digit) {
    const uint32_t byte = (digit & 4 ? b : a) >> 8 * (digit & 3) & 0xFF;
    const uint32_t sign = 0xFF * (byte >> 7);
    return digit & 8 ? sign : byte;
  }
};

// Modes have selectors of their own, chosen by the two low bits of c.
struct Forward4 {
  static constexpr uint32_t SELECTORS[4] = {0x3210, 0x4321, 0x5432, 0x6543};
};
struct Backward4 {
  static constexpr uint32_t SELECTORS[4] = {0x5670, 0x6701, 0x7012, 0x0123};
};
struct Replicate8 {
  static constexpr uint32_t SELECTORS[4] = {0x0000, 0x1111, 0x2222, 0x3333};
};
struct ClampLeft {
  static constexpr uint32_t SELECTORS[4] = {0x3210, 0x3211, 0x3222, 0x3333};
};
struct ClampRight {
  static constexpr uint32_t SELECTORS[4] = {0x0000, 0x1110, 0x2210, 0x3210};
};
struct Replicate16 {
  static constexpr uint32_t SELECTORS[4] = {0x1010, 0x3232, 0x1010, 0x3232};
};

template <class Mode>
struct PermuteBy {
  uint32_t operator()(uint32_t a, uint32_t b, uint32_t c) const {
    return Permute{}(a, b, Mode::SELECTORS[c & 3]);
  }
};

// ---- binding

template <class Op>
Binding bind_binary(const Operation& op) {
  const Type& type = op.type("d");
  if (type.kind == Kind::Predicate) return {binary_predicate<Op>};
  return choose_size<uint16_t, uint32_t, uint64_t>(type.bits, [](auto t) {
    using T = decltype(t);
    return Binding{lanewise<Op, T, T, T>};
  });
}

template <class Op>
Binding bind_unary(const Operation& op) {
  const Type& type = op.type("d");
  if (type.kind == Kind::Predicate) return {not_predicate};
  return choose_size<uint16_t, uint32_t, uint64_t>(type.bits, [](auto t) {
    using T = decltype(t);
    return Binding{lanewise<Op, T, T>};
  });
}

Binding bind_lop3(const Operation& op) {
  const std::string_view with = op.get("and_or");
  if (with.empty()) return {lop3_plain};
  return {with == "or" ? lop3_predicate<Or> : lop3_predicate<And>};
}

template <class Op>
Binding bind_shift(const Operation& op) {
  return choose<uint16_t, uint32_t, uint64_t, int16_t, int32_t, int64_t>(
      op.type("d"), [](auto t) {
        using T = decltype(t);
        return Binding{lanewise<Op, T, T, uint32_t>};
      });
}

template <bool LEFT>
Binding bind_funnel(const Operation& op) {
  return with_flag(op.get("wrap") == "clamp", [](auto clamp) {
    return Binding{lanewise<Funnel<LEFT, clamp()>, uint32_t, uint32_t, uint32_t, uint32_t>};
  });
}

template <class Op>
constexpr Execute PERMUTE = lanewise<Op, uint32_t, uint32_t, uint32_t, uint32_t>;

Binding bind_prmt(const Operation& op) {
  static constexpr struct {
    std::string_view mode;
    Execute execute;
  } rows[] = {
      {"", PERMUTE<Permute>},
      {"f4e", PERMUTE<PermuteBy<Forward4>>},
      {"b4e", PERMUTE<PermuteBy<Backward4>>},
      {"rc8", PERMUTE<PermuteBy<Replicate8>>},
      {"ecl", PERMUTE<PermuteBy<ClampLeft>>},
      {"ecr", PERMUTE<PermuteBy<ClampRight>>},
      {"rc16", PERMUTE<PermuteBy<Replicate16>>},
  };
  const std::string_view mode = op.get("prmt_mode");
  for (const auto& row : rows) {
    if (row.mode == mode) return {row.execute};
  }
  return {};
}

const Registration registration{
    {"and", bind_binary<And>},      {"or", bind_binary<Or>},
    {"xor", bind_binary<Xor>},      {"not", bind_unary<Not>},
    {"cnot", bind_unary<Cnot>},     {"lop3", bind_lop3},
    {"shl", bind_shift<Shl>},       {"shr", bind_shift<Shr>},
    {"shf.l", bind_funnel<true>},   {"shf.r", bind_funnel<false>},
    {"prmt", bind_prmt},
};

}  // namespace

}  // namespace emu
