// Addresses as values: conversion between state spaces and generic ones, ranks of blocks, and hints
// about addresses.  PTX ISA, "cvta", "isspacep", "mapa", "getctarank", "prefetch", "createpolicy".
//
// cvta of a generic address to a space that it does not lie in is undefined in the ISA; compilers
// may hoist it above the test that guards it.  So it is no error, and gives an address that no
// space has: using that is one.  In the same way mapa gives an address for a rank that the cluster
// does not have (CUTLASS maps the lane's number, and arrives in those lanes that have a block).
#include <algorithm>
#include <cstring>
#include <string_view>
#include <type_traits>

#include "machine/cluster.hpp"
#include "machine/step.hpp"
#include "memory/access.hpp"
#include "memory/locate.hpp"
#include "program/operation.hpp"

namespace emu {

namespace {

constexpr uint64_t NO_ADDRESS = ~uint64_t{0};
constexpr uint32_t NO_RANK = 0xFF;  // the greatest that an address has room for; no block has it

constexpr uint64_t window_bits(Space space) {
  switch (space) {
    case Space::Shared:
    case Space::SharedCluster: return SHARED_WINDOW;
    case Space::Local: return LOCAL_WINDOW;
    case Space::Param: return PARAM_WINDOW;
    case Space::Const: return CONST_WINDOW;
    default: return 0;
  }
}

template <uint64_t BITS>
Flow to_generic(Step& step) {
  uint64_t* d = step.lanes<uint64_t>(0);
  const uint64_t* a = step.lanes<uint64_t>(1);
  for_each(step.active, [=](int lane) { d[lane] = a[lane] | BITS; });
  return Flow::Next;
}

template <uint64_t BITS>
Flow from_generic(Step& step) {
  uint64_t* d = step.lanes<uint64_t>(0);
  const uint64_t* a = step.lanes<uint64_t>(1);
  for_each(step.active, [=](int lane) {
    d[lane] = (a[lane] & WINDOW) == BITS ? a[lane] & ~WINDOW : NO_ADDRESS;
  });
  return Flow::Next;
}

// f(the window's bits as a constant) for the space that a modifier names.
template <class F>
Binding with_window(const Operation& op, F&& f) {
  if (op.type("d").bits != 64) return {};  // generic addresses have 64 bits
  switch (window_bits(space_named(std::string(op.get("space"))))) {
    case SHARED_WINDOW: return f(std::integral_constant<uint64_t, SHARED_WINDOW>{});
    case LOCAL_WINDOW: return f(std::integral_constant<uint64_t, LOCAL_WINDOW>{});
    case PARAM_WINDOW: return f(std::integral_constant<uint64_t, PARAM_WINDOW>{});
    case CONST_WINDOW: return f(std::integral_constant<uint64_t, CONST_WINDOW>{});
    default: return f(std::integral_constant<uint64_t, 0>{});
  }
}

Binding bind_to_generic(const Operation& op) {
  return with_window(op, [](auto bits) { return Binding{to_generic<bits()>}; });
}

Binding bind_from_generic(const Operation& op) {
  return with_window(op, [](auto bits) { return Binding{from_generic<bits()>}; });
}

// ---- tests

// The window of a kernel's parameters is part of that of global memory.
template <Space SPACE>
Flow is_in_space(Step& step) {
  const uint64_t* a = step.lanes<uint64_t>(1);
  const uint64_t own = SHARED_WINDOW | step.cta().window();
  Lanes result = 0;
  for_each(step.active, [&](int lane) {
    const uint64_t address = a[lane];
    const Space found = window_of(address).space;
    bool is = found == SPACE;
    if (SPACE == Space::Global) is = is || found == Space::Param;
    if (SPACE == Space::Shared) is = (address & ~uint64_t{SHARED_OFFSET}) == own;
    if (SPACE == Space::SharedCluster) {
      is = is && (address & ~WINDOW) >> 24 < step.cluster().ctas.size();
    }
    result |= Lanes(is) << lane;
  });
  step.set_predicate(0, result);
  return Flow::Next;
}

Binding bind_is_in_space(const Operation& op) {
  switch (space_named(std::string(op.get("space")))) {
    case Space::Global: return {is_in_space<Space::Global>};
    case Space::Shared: return {is_in_space<Space::Shared>};
    case Space::SharedCluster: return {is_in_space<Space::SharedCluster>};
    case Space::Local: return {is_in_space<Space::Local>};
    case Space::Const: return {is_in_space<Space::Const>};
    case Space::Param: return {is_in_space<Space::Param>};
    default: return {};
  }
}

// ---- ranks

// The address in the window of shared memory that an operand means.
template <bool GENERIC>
uint64_t shared_address(uint64_t address, int lane) {
  if (GENERIC && (address & WINDOW) != SHARED_WINDOW) {
    throw Failure("GenericAddressError").hex("address", address).with("lane", lane);
  }
  return GENERIC ? address & ~WINDOW : address;
}

template <class T, bool GENERIC>
Flow map_to_rank(Step& step) {
  T* d = step.lanes<T>(0);
  const T* a = step.lanes<T>(1);
  const uint32_t* rank = step.lanes<uint32_t>(2);
  for_each(step.active, [&](int lane) {
    const uint64_t offset = shared_address<GENERIC>(a[lane], lane) & SHARED_OFFSET;
    const uint64_t bits = std::min(rank[lane], NO_RANK);
    d[lane] = T((GENERIC ? SHARED_WINDOW : 0) | bits << 24 | offset);
  });
  return Flow::Next;
}

template <class T, bool GENERIC>
Flow rank_of(Step& step) {
  uint32_t* d = step.lanes<uint32_t>(0);
  const T* a = step.lanes<T>(1);
  for_each(step.active, [&](int lane) {
    const uint64_t rank = shared_address<GENERIC>(a[lane], lane) >> 24;
    if (rank >= step.cluster().ctas.size()) {
      throw Failure("NoSuchBlockError")
          .hex("address", a[lane])
          .with("rank", int64_t(rank))
          .with("size", int64_t(step.cluster().ctas.size()));
    }
    d[lane] = uint32_t(rank);
  });
  return Flow::Next;
}

Binding bind_map_to_rank(const Operation& op) {
  const bool generic = !op.has("cluster_space");
  if (op.type("a").bits == 32) {
    return {generic ? map_to_rank<uint32_t, true> : map_to_rank<uint32_t, false>};
  }
  return {generic ? map_to_rank<uint64_t, true> : map_to_rank<uint64_t, false>};
}

Binding bind_rank_of(const Operation& op) {
  const bool generic = !op.has("cluster_space");
  if (op.type("a").bits == 32) {
    return {generic ? rank_of<uint32_t, true> : rank_of<uint32_t, false>};
  }
  return {generic ? rank_of<uint64_t, true> : rank_of<uint64_t, false>};
}

// ---- hints

// Prefetching moves nothing that is seen, and an address without memory is no error for it.
Flow prefetch(Step&) { return Flow::Next; }

Binding bind_prefetch(const Operation& op) {
  op.implied({"tensormap"});  // what it is for
  return {prefetch};
}

// A policy is opaque and only handed to hints; these are the bits of "evict normal".
constexpr uint64_t POLICY = 0x1000'0000'0000'0000;

Flow create_policy(Step& step) {
  uint64_t* policy = step.lanes<uint64_t>(0);
  for_each(step.active, [&](int lane) {
    if (step.given(1)) {
      const float fraction = step.lanes<float>(1)[lane];
      if (!(fraction > 0 && fraction <= 1)) {
        throw Failure("PolicyFractionError")
            .with("fraction", std::to_string(fraction))
            .with("lane", lane);
      }
    }
    policy[lane] = POLICY;
  });
  return Flow::Next;
}

Binding bind_policy(const Operation&) { return {create_policy}; }

const Registration registration{
    {"cvta", bind_to_generic},      {"cvta.to", bind_from_generic},
    {"isspacep", bind_is_in_space}, {"mapa", bind_map_to_rank},
    {"getctarank", bind_rank_of},   {"prefetch", bind_prefetch},
    {"createpolicy.fractional", bind_policy},
};

}  // namespace

}  // namespace emu
