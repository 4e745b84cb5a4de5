// Choices between two values: selp by a predicate, slct by the sign of a number.
#include "arithmetic/dispatch.hpp"
#include "arithmetic/lane_loops.hpp"
#include "arithmetic/rounding.hpp"

namespace emu {

namespace {

// d = c ? a : b
template <class U>
Flow selp(Step& step) {
  U* d = step.lanes<U>(0);
  const U* a = step.lanes<U>(1);
  const U* b = step.lanes<U>(2);
  const Lanes c = step.predicate(3);
  each_lane(step.active, [=](int lane) { d[lane] = c >> lane & 1 ? a[lane] : b[lane]; });
  return Flow::Next;
}

// d = c >= 0 ? a : b; NaN chooses b, and a number that .ftz flushes, whatever its sign, a.
template <bool FTZ>
struct Slct {
  template <class U>
  U operator()(U a, U b, int32_t c) const {
    return c >= 0 ? a : b;
  }
  template <class U>
  U operator()(U a, U b, float c) const {
    return flush_if<FTZ>(c) >= 0 ? a : b;
  }
};

Binding bind_selp(const Operation& op) {
  return choose_size<uint16_t, uint32_t, uint64_t>(op.type("d").bits, [](auto t) {
    return Binding{selp<decltype(t)>};
  });
}

Binding bind_slct(const Operation& op) {
  return choose_size<uint16_t, uint32_t, uint64_t>(op.type("d").bits, [&](auto t) {
    return choose<int32_t, float>(op.type("c"), [&](auto c) {
      return with_flag(op.has("ftz"), [](auto ftz) {
        using T = decltype(t);
        return Binding{lanewise<Slct<ftz()>, T, T, T, decltype(c)>};
      });
    });
  });
}

const Registration registration{
    {"selp", bind_selp},
    {"slct", bind_slct},
};

}  // namespace

}  // namespace emu
