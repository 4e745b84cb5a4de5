#include "memory/strength.hpp"

#include <string_view>

namespace emu {

namespace {

std::string_view order_named(const Operation& op) {
  return op.first_of({"sem_ld", "sem_st", "sem_atom", "sem_fence"});
}

template <class T>
struct Row {
  std::string_view name;
  T value;
};

// fence.sc has an order of its own among all fences beyond that of acq_rel, which no rule of the
// race detector needs.
constexpr Row<Strength::Order> ORDERS[] = {
    {"relaxed", Strength::Order::Relaxed},        {"acquire", Strength::Order::Acquire},
    {"release", Strength::Order::Release},        {"acq_rel", Strength::Order::AcquireRelease},
    {"sc", Strength::Order::AcquireRelease},
};
constexpr Row<Scope> SCOPES[] = {
    {"cta", Scope::Cta},    {"cluster", Scope::Cluster}, {"gpu", Scope::Gpu},
    {"sys", Scope::System}, {"gl", Scope::Gpu},  // of membar
};

template <class T, std::size_t N>
T value_of(std::string_view name, const Row<T> (&rows)[N], T otherwise) {
  for (const Row<T>& row : rows) {
    if (row.name == name) return row.value;
  }
  return otherwise;
}

}  // namespace

bool names_strength(const Operation& op) {
  op.implied({"scope"});  // which `strength_of` reads
  return !order_named(op).empty();
}

Strength strength_of(const Operation& op, Strength otherwise) {
  return {value_of(order_named(op), ORDERS, otherwise.order),
          value_of(op.first_of({"scope", "level_fence"}), SCOPES, otherwise.scope)};
}

uint32_t packed(const Strength& strength, Space space) {
  return uint32_t(strength.order) | uint32_t(strength.scope) << 8 | uint32_t(space) << 16;
}

Strength unpacked_strength(uint32_t detail) {
  return {Strength::Order(detail & 0xFF), Scope(detail >> 8 & 0xFF)};
}

Space unpacked_space(uint32_t detail) { return Space(detail >> 16); }

}  // namespace emu
