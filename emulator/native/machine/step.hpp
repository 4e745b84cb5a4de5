// One instruction of one warp: what the code of an operation gets.
//
//     Flow execute(Step& step) {
//       uint32_t* d = step.lanes<uint32_t>(0);
//       const uint32_t* a = step.lanes<uint32_t>(1);
//       for_each(step.active, [&](int lane) { d[lane] = ~a[lane]; });
//       return Flow::Next;
//     }
//
// `active` are the lanes that execute it: those of the group that runs, without those whose guard
// is false.  It is never empty, but for operations that are bound to `.aligned` forms, which see
// their group through `warp` too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "machine/failure.hpp"
#include "machine/lanes.hpp"
#include "program/program.hpp"

namespace emu {

class Cluster;
class Cta;
class Machine;
class Races;
class Warp;

// For what a group of lanes waits; the deadlock report asks `describe`.
struct Waiting {
  using Describe = std::string (*)(const Waiting&);
  Describe describe = nullptr;
  Cta* cta = nullptr;       // of the object waited for
  uint64_t object = 0;      // which one: an address, a number
  uint64_t detail = 0;      // phase, parity, count, ...
  bool times_out = false;   // the instruction may give up: try_wait does, with `Step::timed_out`
};

class Step {
 public:
  Warp& warp;
  const Instruction& code;
  const Operand* operands;
  std::byte* registers;
  Lanes active;
  bool timed_out = false;  // nothing else can run any more: what times out does so now

  const Operation& operation() const { return *code.operation; }
  const Operand& operand(int index) const { return operands[index]; }
  bool given(int index) const { return operands[index].is != Operand::Is::Missing; }
  // An element of a vector, or a coordinate of a tensor address.
  const Operand& element(const Operand& of, uint32_t index) const;

  // The 32 lanes of a register; T has the register's size.
  template <class T>
  T* lanes(const Operand& operand) const {
    return reinterpret_cast<T*>(registers + operand.place);
  }
  template <class T>
  T* lanes(int index) const {
    return lanes<T>(operands[index]);
  }

  // A predicate as it is read, negated where the operand says so; bits of all lanes.
  Lanes predicate(const Operand& operand) const {
    const Lanes value = *reinterpret_cast<const Lanes*>(registers + operand.place);
    return operand.negated ? ~value : value;
  }
  Lanes predicate(int index) const { return predicate(operands[index]); }
  // Write the active lanes of a predicate; a sink and a missing operand take nothing.
  void set_predicate(const Operand& operand, Lanes value) const {
    if (operand.is != Operand::Is::Predicate) return;
    Lanes& old = *reinterpret_cast<Lanes*>(registers + operand.place);
    old = (old & ~active) | (value & active);
  }
  void set_predicate(int index, Lanes value) const { set_predicate(operands[index], value); }

  // A register of 16, 32 or 64 bits read as an unsigned number, for code off the fast path.
  uint64_t read(const Operand& operand, int lane) const;
  // Write a register of any size; upper bits of the value are cut off.
  void write(const Operand& operand, int lane, uint64_t value) const;
  // The value, or the address, that all active lanes have; throws NotUniformError if they differ.
  uint64_t uniform(const Operand& operand) const;
  // Base and offset of an Address (or of the tensor map of a Tensor).
  uint64_t address(const Operand& operand, int lane) const;

  Cta& cta() const;
  Cluster& cluster() const;
  Machine& machine() const;
  Races* races() const;  // null when races are not checked

  // Whether all of these lanes that have not exited are here; else the code has to
  // `return step.wait_for_lanes(members)`.
  bool together(Lanes members) const;
  Flow wait_for_lanes(Lanes members) const;
  // For forms with .aligned: throws NotAlignedError unless the whole warp is here; false while
  // other groups of the warp may still come, and then the code returns wait_for_lanes(ALL_LANES).
  bool aligned() const;

  Flow wait_for(const Waiting& waiting) const;
  // Something changed that others may wait for: stores, arrivals, completions.
  void effect() const;
};

}  // namespace emu
