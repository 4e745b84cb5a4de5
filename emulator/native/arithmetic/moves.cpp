// Moves: of registers, numbers, special registers and addresses, which all are registers here, and
// between one wide register and the narrower ones that make it up, the first of them lowest.
//
// Time is not modelled.  Each read of a clock or timer finds it a fixed step on, so that loops
// which wait for time to pass end.
//
// Deliberately leaves conversions between types to convert_*.cpp.
#include <cstring>

#include "arithmetic/lane_loops.hpp"
#include "machine/cluster.hpp"

namespace emu {

namespace {

struct Copy {
  template <class T>
  T operator()(T a) const {
    return a;
  }
};

struct Bits128 {
  uint64_t low, high;
};

bool is_vector(const Operand& operand) { return operand.is == Operand::Is::Vector; }

Flow move_predicate(Step& step) {
  step.set_predicate(0, step.predicate(1));
  return Flow::Next;
}

// What holds an element; a byte lies in a register of 16 bits.
template <class Part>
using Held = std::conditional_t<sizeof(Part) == 1, uint16_t, Part>;

template <class Whole, class Part>
constexpr uint32_t PARTS = sizeof(Whole) / sizeof(Part);

template <class Whole, class Part>
Flow pack(Step& step, const Operand& parts) {
  std::byte* d = step.registers + step.operand(0).place;
  for (uint32_t i = 0; i < PARTS<Whole, Part>; ++i) {
    const auto* part = step.lanes<Held<Part>>(step.element(parts, i));
    each_lane(step.active, [=](int lane) {
      const Part value = Part(part[lane]);
      std::memcpy(d + sizeof(Whole) * lane + sizeof(Part) * i, &value, sizeof(Part));
    });
  }
  return Flow::Next;
}

template <class Whole, class Part>
Flow unpack(Step& step, const Operand& parts) {
  const Whole* a = step.lanes<Whole>(1);
  for (uint32_t i = 0; i < PARTS<Whole, Part>; ++i) {
    const Operand& element = step.element(parts, i);
    if (element.is == Operand::Is::Sink) continue;
    auto* part = step.lanes<Held<Part>>(element);
    each_lane(step.active, [=](int lane) {
      if constexpr (std::is_integral_v<Whole>) {
        part[lane] = Part(a[lane] >> 8 * sizeof(Part) * i);
      } else {
        Part value;
        std::memcpy(&value, reinterpret_cast<const Part*>(a + lane) + i, sizeof value);
        part[lane] = value;
      }
    });
  }
  return Flow::Next;
}

// The two halves at once, the form that kernels use most.
template <class Whole, class Half>
Flow pack_halves(Step& step, const Operand& parts) {
  Whole* d = step.lanes<Whole>(0);
  const Half* low = step.lanes<Half>(step.element(parts, 0));
  const Half* high = step.lanes<Half>(step.element(parts, 1));
  each_lane(step.active, [=](int lane) {
    d[lane] = Whole(Whole(high[lane]) << 8 * sizeof(Half)) | low[lane];
  });
  return Flow::Next;
}

// A register of `Whole`, or, in braces, as many elements as one of `Parts` makes.
template <class Whole, class... Parts>
struct Move {
  template <class F>
  static Flow by_count(uint32_t count, F&& f) {
    Flow flow = Flow::Next;
    (void)((count == PARTS<Whole, Parts> && (flow = f(Parts{}), true)) || ...);
    return flow;
  }

  static Flow execute(Step& step) {
    const Operand& d = step.operand(0);
    const Operand& a = step.operand(1);
    if (is_vector(d)) {
      return by_count(d.count, [&](auto part) { return unpack<Whole, decltype(part)>(step, d); });
    }
    if (!is_vector(a)) return lanewise<Copy, Whole, Whole>(step);
    return by_count(a.count, [&](auto part) {
      using Part = decltype(part);
      if constexpr (sizeof(Part) * 2 == sizeof(Whole) && sizeof(Whole) <= 8) {
        return pack_halves<Whole, Part>(step, a);
      } else {
        return pack<Whole, Part>(step, a);
      }
    });
  }
};

Binding bind_mov(const Operation& op) {
  const Type& type = op.type("d");
  if (type.kind == Kind::Predicate) return {move_predicate};
  switch (type.bits) {
    case 16: return {Move<uint16_t, uint8_t>::execute};
    case 32: return {Move<uint32_t, uint16_t, uint8_t>::execute};
    case 64: return {Move<uint64_t, uint32_t, uint16_t>::execute};
    case 128: return {Move<Bits128, uint64_t, uint32_t>::execute};
    default: return {};
  }
}

// ---- clocks and timers

constexpr uint64_t TIME_STEP = 1000;  // cycles, or nanoseconds

template <class T, int SHIFT>
Flow read_time(Step& step) {
  const uint64_t time = step.cluster().time += TIME_STEP;
  T* d = step.lanes<T>(0);
  each_lane(step.active, [=](int lane) { d[lane] = T(time >> SHIFT); });
  return Flow::Yield;
}

// The decoder's own instruction, for a mov whose source changes: its name is the source's space.
Binding bind_counter(const Operation& op) {
  const std::string& name = op.space("a");
  if (op.type("d").bits == 64) return {read_time<uint64_t, 0>, true};
  const bool high = name == "clock_hi" || name == "globaltimer_hi";
  return {high ? read_time<uint32_t, 32> : read_time<uint32_t, 0>, true};
}

const Registration registration{{"mov", bind_mov}, {"mov.counter", bind_counter}};

}  // namespace

}  // namespace emu
