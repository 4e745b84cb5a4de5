// atom and red.  PTX ISA, "Parallel Synchronization and Communication Instructions: atom, red".
//
// Lanes act one after another, the lowest first: on a device the order is not defined.  Elements of
// packed and vector types are combined each by itself.  When several workers run clusters, those of
// an instruction hold the lock of global memory.
//
// Deliberately does not do red.async, which is a copy's business (`copies/`).
#include <cstring>
#include <mutex>

#include "machine/cluster.hpp"
#include "machine/machine.hpp"
#include "machine/step.hpp"
#include "memory/access.hpp"
#include "memory/elements.hpp"
#include "memory/locate.hpp"
#include "memory/reductions.hpp"
#include "memory/strength.hpp"
#include "program/operation.hpp"

namespace emu {

namespace {

constexpr uint32_t LARGEST = 16;  // bytes of an operand

// ---- operands: a register or a vector of them, as the bytes that they are in memory

void gather(const Step& step, const Operand& operand, int lane, std::byte* bytes) {
  const uint32_t size = operand.bits / 8;
  each_element(step, operand, [&](const Operand& element, uint32_t index) {
    std::memcpy(bytes + index * size, step.registers + element.place + size * uint32_t(lane), size);
  });
}

void scatter(const Step& step, const Operand& operand, int lane, const std::byte* bytes) {
  if (operand.is == Operand::Is::Sink) return;
  const uint32_t size = operand.bits / 8;
  each_element(step, operand, [&](const Operand& element, uint32_t index) {
    if (element.is == Operand::Is::Sink) return;
    std::memcpy(step.registers + element.place + size * uint32_t(lane), bytes + index * size,
                size);
  });
}

template <class T>
T read_as(const std::byte* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

// ---- instructions
// atom: d, [a], b; red: [a], b.  cas has c behind b.

// f(lane, the operand's bytes, the memory's bytes) for each lane; before it the old value is kept.
template <bool RETURNS, class F>
Flow each_atomic(Step& step, F&& f) {
  constexpr int ADDRESS = RETURNS ? 1 : 0;
  const Operand& operand = step.operand(ADDRESS + 1);
  const Strength strength = unpacked_strength(step.code.detail);
  const uint32_t bytes = elements_of(operand) * operand.bits / 8;
  Reached reached;
  reach_lanes(step, {unpacked_space(step.code.detail), bytes, Touch::Atomic, &strength},
              step.operand(ADDRESS), reached);
  Machine& machine = step.machine();
  std::unique_lock<std::mutex> lock;
  if (machine.options.workers > 1) lock = std::unique_lock<std::mutex>(machine.global_mutex);
  for_each(step.active, [&](int lane) {
    alignas(8) std::byte given[LARGEST], old[LARGEST];
    gather(step, operand, lane, given);
    std::byte* memory = reached[lane];
    if (RETURNS) std::memcpy(old, memory, bytes);
    f(lane, given, memory, bytes);
    if (RETURNS) scatter(step, step.operand(0), lane, old);
  });
  step.effect();
  // Spin locks and queues are made of these: others get their turn.
  return RETURNS ? Flow::Yield : Flow::Next;
}

template <class Op, class T>
void combine(const std::byte* given, std::byte* memory, uint32_t bytes) {
  for (uint32_t at = 0; at < bytes; at += uint32_t(sizeof(T))) {
    const T result = Op{}(read_as<T>(memory + at), read_as<T>(given + at));
    std::memcpy(memory + at, &result, sizeof result);
  }
}

template <bool RETURNS, class Op, class T>
Flow reduce(Step& step) {
  return each_atomic<RETURNS>(
      step, [](int, const std::byte* given, std::byte* memory, uint32_t bytes) {
        combine<Op, T>(given, memory, bytes);
      });
}

// Sums of f32 depend on where they are formed.
template <bool RETURNS>
Flow add_floats(Step& step) {
  const Space space = unpacked_space(step.code.detail);
  const Operand& address = step.operand(RETURNS ? 1 : 0);
  return each_atomic<RETURNS>(
      step, [&](int lane, const std::byte* given, std::byte* memory, uint32_t bytes) {
        const bool global = space == Space::Global ||
                            (space == Space::Generic &&
                             window_of(step.address(address, lane)).space == Space::Global);
        if (global) {
          combine<reductions::AddFlushing, float>(given, memory, bytes);
        } else {
          combine<reductions::Add, float>(given, memory, bytes);
        }
      });
}

Flow exchange(Step& step) {
  return each_atomic<true>(step,
                           [](int, const std::byte* given, std::byte* memory, uint32_t bytes) {
                             std::memcpy(memory, given, bytes);
                           });
}

// d = memory; if (d == b) memory = c
template <class T>
Flow compare_and_swap(Step& step) {
  return each_atomic<true>(
      step, [&](int lane, const std::byte* given, std::byte* memory, uint32_t) {
        if (!(read_as<T>(memory) == read_as<T>(given))) return;
        alignas(8) std::byte wanted[LARGEST];
        gather(step, step.operand(3), lane, wanted);
        std::memcpy(memory, wanted, sizeof(T));
      });
}

// ---- binding

template <bool RETURNS>
Execute reducing(const Operation& op) {
  const Type& type = op.type("b");
  if (op.has("add") && type.is("f32")) return add_floats<RETURNS>;
  return with_reduction(reduction_of(op), type, [](auto operation, auto as) -> Execute {
    return reduce<RETURNS, decltype(operation), typename decltype(as)::type>;
  });
}

Execute swapping(const Operation& op) {
  if (op.has("exch")) return exchange;
  switch (op.type("b").bits) {
    case 16: return compare_and_swap<uint16_t>;
    case 32: return compare_and_swap<uint32_t>;
    case 64: return compare_and_swap<uint64_t>;
    case 128: return compare_and_swap<Wide>;
    default: return nullptr;
  }
}

template <bool RETURNS>
Binding bind_atomic(const Operation& op) {
  op.implied({"v2", "v4", "v8", "noftz"});
  names_strength(op);
  const bool swaps = RETURNS && (op.has("exch") || op.has("cas"));
  const Execute execute = swaps ? swapping(op) : reducing<RETURNS>(op);
  const Strength strength = strength_of(op, {Strength::Order::Relaxed, Scope::Gpu});
  return {execute, true, packed(strength, space_named(op.space("a")))};
}

const Registration registration{{"atom", bind_atomic<true>}, {"red", bind_atomic<false>}};

}  // namespace

}  // namespace emu
