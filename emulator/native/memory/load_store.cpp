// ld and st in all spaces, of scalars and vectors.  PTX ISA, "Data Movement and Conversion
// Instructions: ld, ld.global.nc, st".
//
// Loads extend to wider registers with the sign for signed integers, else with zeros; stores of
// wider registers take their low bits.  Cache operators and eviction priorities change no value.
// `.nc` promises that nobody writes the memory while the kernel runs: it is a weak load here.
//
// Deliberately knows no bounds or alignment: `memory/access.hpp` has them.
#include <cstring>
#include <type_traits>

#include "machine/step.hpp"
#include "memory/access.hpp"
#include "memory/elements.hpp"
#include "memory/strength.hpp"
#include "program/operation.hpp"
#include "races/races.hpp"

namespace emu {

namespace {

// A value as a register of R's size holds it: with T's sign above it.
template <class R, class T>
R extended(T value) {
  if constexpr (std::is_same_v<R, T>) {
    return value;
  } else if constexpr (std::is_same_v<R, Wide>) {
    const uint64_t low = extended<uint64_t>(value);
    return {low, std::is_signed_v<T> && value < 0 ? ~uint64_t{0} : 0};
  } else {
    return R(std::conditional_t<std::is_signed_v<T>, std::make_signed_t<R>, R>(value));
  }
}

template <class T, class R>
T truncated(R value) {
  if constexpr (std::is_same_v<R, T>) {
    return value;
  } else if constexpr (std::is_same_v<R, Wide>) {
    return T(value.low);
  } else {
    return T(value);
  }
}

// f(a value of the type that a register holds), for registers that are not narrower than T.
template <class T, class F>
void with_register(uint32_t bits, F&& f) {
  if constexpr (sizeof(T) <= 2) {
    if (bits == 16) return f(uint16_t{});
  }
  if constexpr (sizeof(T) <= 4) {
    if (bits == 32) return f(uint32_t{});
  }
  if constexpr (sizeof(T) <= 8) {
    if (bits == 64) return f(uint64_t{});
  }
  f(Wide{});
}

template <class T>
void load_element(const Step& step, const Reached& from, uint64_t offset, const Operand& into) {
  if (into.is == Operand::Is::Sink) return;
  with_register<T>(into.bits, [&](auto type) {
    using R = decltype(type);
    R* registers = step.lanes<R>(into);
    for_each(step.active, [&](int lane) {
      T value;
      std::memcpy(&value, reinterpret_cast<const void*>(from.at[lane] + offset), sizeof value);
      registers[lane] = extended<R>(value);
    });
  });
}

template <class T>
void store_element(const Step& step, const Reached& to, uint64_t offset, const Operand& from) {
  with_register<T>(from.bits, [&](auto type) {
    using R = decltype(type);
    const R* registers = step.lanes<R>(from);
    for_each(step.active, [&](int lane) {
      const T value = truncated<T>(registers[lane]);
      std::memcpy(reinterpret_cast<void*>(to.at[lane] + offset), &value, sizeof value);
    });
  });
}

// ld.param reads a kernel's parameters, and variables of calls.
Space space_at(Space space, const Operand& address) {
  return space == Space::Param && address.size ? Space::Call : space;
}

// ---- instructions

template <class T>
void load(const Step& step, Access access) {
  const Operand& into = step.operand(0);
  access.bytes = elements_of(into) * uint32_t(sizeof(T));
  Reached reached;
  reach_lanes(step, access, step.operand(1), reached);
  each_element(step, into, [&](const Operand& element, uint32_t index) {
    load_element<T>(step, reached, index * sizeof(T), element);
  });
}

// The values of a store, compared with memory where the race detector asks.
template <class T>
class Stored : public Rewriting {
 public:
  Stored(const Step& step, const Reached& to) : step_(step), to_(to) {}

  bool same(uint64_t address, uint32_t bytes) const override {
    bool same = true;
    each_element(step_, step_.operand(1), [&](const Operand& element, uint32_t index) {
      with_register<T>(element.bits, [&](auto type) {
        using R = decltype(type);
        for_each(step_.active, [&](int lane) {
          const uint64_t at = to_.at[lane] + index * sizeof(T);
          if (at >= address + bytes || address >= at + sizeof(T)) return;
          const T value = truncated<T>(step_.lanes<R>(element)[lane]);
          same = same && !std::memcmp(reinterpret_cast<const void*>(at), &value, sizeof value);
        });
      });
    });
    return same;
  }

 private:
  const Step& step_;
  const Reached& to_;
};

template <class T>
void store(const Step& step, Access access) {
  const Operand& from = step.operand(1);
  access.bytes = elements_of(from) * uint32_t(sizeof(T));
  access.touch = Touch::Write;
  Reached reached;
  const Stored<T> values(step, reached);
  if (!access.strong) access.values = &values;
  reach_lanes(step, access, step.operand(0), reached);
  each_element(step, from, [&](const Operand& element, uint32_t index) {
    store_element<T>(step, reached, index * sizeof(T), element);
  });
  step.effect();
}

template <Space SPACE, class T>
Flow load_weak(Step& step) {
  load<T>(step, {space_at(SPACE, step.operand(1)), 0, Touch::Read, nullptr});
  return Flow::Next;
}

template <Space SPACE, class T>
Flow store_weak(Step& step) {
  store<T>(step, {SPACE, 0, Touch::Write, nullptr});
  return Flow::Next;
}

// Strong loads are what threads poll with, so others come first after them.
template <class T>
Flow load_strong(Step& step) {
  const Strength strength = unpacked_strength(step.code.detail);
  load<T>(step, {unpacked_space(step.code.detail), 0, Touch::Read, &strength});
  return Flow::Yield;
}

template <class T>
Flow store_strong(Step& step) {
  const Strength strength = unpacked_strength(step.code.detail);
  store<T>(step, {unpacked_space(step.code.detail), 0, Touch::Write, &strength});
  return Flow::Next;
}

// ---- binding

template <class T>
struct As {
  using type = T;
};

// f(As<T>) for the type that has the size and sign of values in memory.
template <class F>
Binding with_memory_type(const Type& type, F&& f) {
  switch (type.bits * 2 + (type.is_signed() ? 1 : 0)) {
    case 16: return f(As<uint8_t>{});
    case 17: return f(As<int8_t>{});
    case 32: return f(As<uint16_t>{});
    case 33: return f(As<int16_t>{});
    case 64: return f(As<uint32_t>{});
    case 65: return f(As<int32_t>{});
    case 128: return f(As<uint64_t>{});
    case 129: return f(As<int64_t>{});
    case 256: return f(As<Wide>{});
    default: return {};
  }
}

template <class T>
Execute load_in(Space space) {
  switch (space) {
    case Space::Generic: return load_weak<Space::Generic, T>;
    case Space::Global: return load_weak<Space::Global, T>;
    case Space::Shared: return load_weak<Space::Shared, T>;
    case Space::SharedCluster: return load_weak<Space::SharedCluster, T>;
    case Space::Local: return load_weak<Space::Local, T>;
    case Space::Const: return load_weak<Space::Const, T>;
    case Space::Param: return load_weak<Space::Param, T>;
    case Space::Call: return load_weak<Space::Call, T>;
  }
  return nullptr;
}

template <class T>
Execute store_in(Space space) {
  switch (space) {
    case Space::Generic: return store_weak<Space::Generic, T>;
    case Space::Global: return store_weak<Space::Global, T>;
    case Space::Shared: return store_weak<Space::Shared, T>;
    case Space::SharedCluster: return store_weak<Space::SharedCluster, T>;
    case Space::Local: return store_weak<Space::Local, T>;
    case Space::Call: return store_weak<Space::Call, T>;
    default: return nullptr;
  }
}

constexpr Strength VOLATILE = {Strength::Order::Relaxed, Scope::System};

// The number of elements is that of the operand, and `.weak` is what is neither of the others.
bool is_strong(const Operation& op) {
  op.implied({"v2", "v4", "v8", "weak", "nc"});
  const bool is_volatile = op.has("volatile");
  return names_strength(op) || is_volatile;
}

Binding bind_load(const Operation& op) {
  const bool strong = is_strong(op);
  const Space space = space_named(op.space("a"));
  return with_memory_type(op.type("d"), [&](auto as) -> Binding {
    using T = typename decltype(as)::type;
    if (!strong) return {load_in<T>(space)};
    return {load_strong<T>, true, packed(strength_of(op, VOLATILE), space)};
  });
}

Binding bind_store(const Operation& op) {
  const bool strong = is_strong(op);
  const Space space = space_named(op.space("a"));
  return with_memory_type(op.type("b"), [&](auto as) -> Binding {
    using T = typename decltype(as)::type;
    if (!strong) return {store_in<T>(space)};
    return {store_strong<T>, true, packed(strength_of(op, VOLATILE), space)};
  });
}

const Registration registration{{"ld", bind_load}, {"st", bind_store}};

}  // namespace

}  // namespace emu
