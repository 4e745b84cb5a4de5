// Fences.  PTX ISA, "membar, fence".
//
// There is one memory, which every access reaches at once and in program order: fences change no
// value.  They matter to the race detector, which is told of each: of a fence within the generic
// proxy with its scope, and of one between it and the async proxy with its state space.  What a
// fence must be given is checked.
#include "copies/tensor_map.hpp"
#include "machine/cluster.hpp"
#include "memory/strength.hpp"
#include "races/races.hpp"

namespace emu {

namespace {

// ---- within the generic proxy

void fence(const Step& step) {
  const Strength strength = unpacked_strength(step.code.detail);
  if (Races* races = step.races()) {
    races->fence(step, {strength.scope, strength.acquires(), strength.releases()});
  }
}

Flow fence_generic(Step& step) {
  fence(step);
  return Flow::Next;
}

Flow fence_mbarrier_init(Step& step) {
  if (Races* races = step.races()) races->fence_mbarrier_init(step);
  return Flow::Next;
}

Flow acquire_tensor_map(Step& step) {
  const uint64_t size = uint64_t(step.operand(1).value);
  if (size != TENSOR_MAP_BYTES) throw Failure("TensorMapSizeError").with("size", int64_t(size));
  fence(step);
  for_each(step.active, [&](int lane) {
    const uint64_t address = step.address(step.operand(0), lane);
    tensor_map_bytes(step, address, lane);  // which checks that one can be there
  });
  return Flow::Next;
}

// ---- between the proxies

enum class Of : uint8_t { All, Global, Block, Cluster };

template <Of of>
Flow fence_async(Step& step) {
  Races* races = step.races();
  if (!races) return Flow::Next;
  races->fence_async(step, of == Of::Global    ? ProxySpace::global()
                           : of == Of::Block   ? ProxySpace::shared_of(step.cta().rank)
                           : of == Of::Cluster ? ProxySpace::shared_of_cluster()
                                               : ProxySpace::all());
  return Flow::Next;
}

// Orders what is ordered here anyway: two names of one address.
Flow fence_nothing(Step&) { return Flow::Next; }

// ---- binding

template <Execute execute, Strength::Order order>
Binding bind_generic(const Operation& op) {
  return {execute, true, packed(strength_of(op, {order, Scope::Gpu}), Space::Generic)};
}

template <Execute execute>
Binding bind_plain(const Operation&) {
  return {execute, true};
}

Binding bind_async(const Operation& op) {
  const std::string_view space = op.get("proxy_space");
  if (space == "global") return {fence_async<Of::Global>, true};
  if (space == "shared::cta") return {fence_async<Of::Block>, true};
  if (space == "shared::cluster") return {fence_async<Of::Cluster>, true};
  return {fence_async<Of::All>, true};
}

using Order = Strength::Order;

const Registration registration{
    {"fence", bind_generic<fence_generic, Order::AcquireRelease>},
    {"membar", bind_generic<fence_generic, Order::AcquireRelease>},
    {"fence.mbarrier_init.release.cluster", bind_plain<fence_mbarrier_init>},
    {"fence.proxy.alias", bind_plain<fence_nothing>},
    {"fence.proxy.async", bind_async},
    {"fence.proxy.async::generic.acquire.sync_restrict::shared::cluster.cluster",
     bind_plain<fence_async<Of::Cluster>>},
    {"fence.proxy.async::generic.release.sync_restrict::shared::cta.cluster",
     bind_plain<fence_async<Of::Block>>},
    {"fence.proxy.tensormap::generic.release", bind_generic<fence_generic, Order::Release>},
    {"fence.proxy.tensormap::generic.acquire", bind_generic<acquire_tensor_map, Order::Acquire>},
};

}  // namespace

}  // namespace emu
