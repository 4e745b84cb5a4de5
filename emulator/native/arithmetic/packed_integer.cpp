// Arithmetic of several small integers in one register: u16x2 and s16x2, dp2a and dp4a.
#include <algorithm>
#include <type_traits>

#include "arithmetic/lane_loops.hpp"

namespace emu {

namespace {

// Op on each half of 32 bits, read as T.
template <class Op, class T>
struct Halves {
  uint32_t operator()(uint32_t a, uint32_t b) const {
    const uint16_t low = uint16_t(Op{}(T(a), T(b)));
    const uint16_t high = uint16_t(Op{}(T(a >> 16), T(b >> 16)));
    return uint32_t(high) << 16 | low;
  }
};

struct Add {
  template <class T>
  T operator()(T a, T b) const {
    return T(a + b);
  }
};

struct Min {
  template <class T>
  T operator()(T a, T b) const {
    return std::min(a, b);
  }
};

struct Max {
  template <class T>
  T operator()(T a, T b) const {
    return std::max(a, b);
  }
};

template <class Extreme>
struct ThenRelu {
  int16_t operator()(int16_t a, int16_t b) const {
    return std::max<int16_t>(Extreme{}(a, b), 0);
  }
};

template <class Op, class T>
constexpr Execute HALVES = lanewise<Halves<Op, T>, uint32_t, uint32_t, uint32_t>;

Binding bind_add(const Operation& op) {
  const Type& type = op.type("d");
  if (!type.is("u16x2") && !type.is("s16x2")) return {};
  return {HALVES<Add, uint16_t>};
}

template <class Op>
Binding bind_extreme(const Operation& op) {
  const Type& type = op.type("d");
  if (type.is("u16x2")) return {HALVES<Op, uint16_t>};
  if (!type.is("s16x2")) return {};
  return {op.has("relu") ? HALVES<ThenRelu<Op>, int16_t> : HALVES<Op, int16_t>};
}

// c and the products of four bytes, each of A and B signed or not.
template <class A, class B>
struct Dp4a {
  uint32_t operator()(uint32_t a, uint32_t b, uint32_t c) const {
    return c + product(a, b) + product(a >> 8, b >> 8) + product(a >> 16, b >> 16) +
           product(a >> 24, b >> 24);
  }

 private:
  static uint32_t product(uint32_t a, uint32_t b) {
    return uint32_t(int32_t(A(a)) * int32_t(B(b)));
  }
};

// Two halves of a by two bytes of b, from a bit on.
template <int FIRST>
struct Dp2a {
  template <class A, class B>
  struct Of {
    uint32_t operator()(uint32_t a, uint32_t b, uint32_t c) const {
      return c + product(a, b >> FIRST) + product(a >> 16, b >> (FIRST + 8));
    }

   private:
    static uint32_t product(uint32_t a, uint32_t b) {
      return uint32_t(int32_t(A(a)) * int32_t(B(b)));
    }
  };
};

template <template <class, class> class Dot, class A, class U>
Execute dot(bool b_signed) {
  using S = std::make_signed_t<U>;
  return b_signed ? lanewise<Dot<A, S>, uint32_t, uint32_t, uint32_t, uint32_t>
                  : lanewise<Dot<A, U>, uint32_t, uint32_t, uint32_t, uint32_t>;
}

// A is the unsigned type of what a has several of.
template <template <class, class> class Dot, class A>
Binding bind_dot(const Operation& op) {
  const bool b_signed = op.get("b_word") == "s32";
  if (op.get("a_word") == "s32") return {dot<Dot, std::make_signed_t<A>, uint8_t>(b_signed)};
  return {dot<Dot, A, uint8_t>(b_signed)};
}

const Registration registration{
    {"add", bind_add},
    {"min", bind_extreme<Min>},
    {"max", bind_extreme<Max>},
    {"dp2a.lo", bind_dot<Dp2a<0>::Of, uint16_t>},
    {"dp2a.hi", bind_dot<Dp2a<16>::Of, uint16_t>},
    {"dp4a", bind_dot<Dp4a, uint8_t>},
};

}  // namespace

}  // namespace emu
