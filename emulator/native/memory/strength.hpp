// How strong an access is, by its modifiers.  PTX ISA, "Memory Consistency Model".
#pragma once

#include <cstdint>

#include "memory/access.hpp"
#include "program/operation.hpp"
#include "races/clock.hpp"

namespace emu {

// What a strong access or a fence orders, and for whom: one of ld and st with .volatile (which
// stands for .relaxed.sys), .relaxed, .acquire or .release, one of atom and red, fence and membar.
struct Strength {
  enum class Order : uint8_t { Relaxed, Acquire, Release, AcquireRelease };
  Order order = Order::Relaxed;
  Scope scope = Scope::Gpu;

  bool acquires() const { return order == Order::Acquire || order == Order::AcquireRelease; }
  bool releases() const { return order == Order::Release || order == Order::AcquireRelease; }
};

// Whether modifiers name an order; marks them and the scope as read.
bool names_strength(const Operation& op);

// The order and the scope; those of `otherwise` where no modifier says what they are.
Strength strength_of(const Operation& op, Strength otherwise);

// A strength and the space of the address, as an instruction carries them.
uint32_t packed(const Strength& strength, Space space);
Strength unpacked_strength(uint32_t detail);
Space unpacked_space(uint32_t detail);

}  // namespace emu
