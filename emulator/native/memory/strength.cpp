#include "memory/strength.hpp"

#include <string_view>

namespace emu {

namespace {

std::string_view order_named(const Operation& op) {
  for (const char* slot : {"sem_ld", "sem_st", "sem_atom"}) {
    if (op.has(slot)) return op.get(slot);
  }
  return {};
}

}  // namespace

bool names_strength(const Operation& op) {
  op.has("scope");
  return !order_named(op).empty();
}

Strength strength_of(const Operation& op, Strength::Scope scope) {
  using Order = Strength::Order;
  using Scope = Strength::Scope;
  const std::string_view order = order_named(op);
  const std::string_view named = op.get("scope");
  Strength strength;
  strength.order = order == "acquire"   ? Order::Acquire
                   : order == "release" ? Order::Release
                   : order == "acq_rel" ? Order::AcquireRelease
                                        : Order::Relaxed;
  strength.scope = named == "cta"       ? Scope::Cta
                   : named == "cluster" ? Scope::Cluster
                   : named == "gpu"     ? Scope::Gpu
                   : named == "sys"     ? Scope::System
                                        : scope;
  return strength;
}

uint32_t packed(const Strength& strength, Space space) {
  return uint32_t(strength.order) | uint32_t(strength.scope) << 8 | uint32_t(space) << 16;
}

Strength unpacked_strength(uint32_t detail) {
  return {Strength::Order(detail & 0xFF), Strength::Scope(detail >> 8 & 0xFF)};
}

Space unpacked_space(uint32_t detail) { return Space(detail >> 16); }

}  // namespace emu
