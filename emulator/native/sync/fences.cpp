// Fences.  PTX ISA, "membar, fence".
//
// There is one memory, which every access reaches at once and in program order: fences change no
// value.  They matter to the race detector, which is told of each: of a fence within the generic
// proxy, and of one between it and the async proxy.  Scopes and state spaces do not narrow a fence
// here.  What a fence must be given is checked.
#include "copies/tensor_map.hpp"
#include "machine/cluster.hpp"
#include "races/races.hpp"

namespace emu {

namespace {

Flow fence_generic(Step& step) {
  if (Races* races = step.races()) races->fence(step);
  return Flow::Next;
}

Flow fence_async(Step& step) {
  if (Races* races = step.races()) races->fence_async(step);
  return Flow::Next;
}

// Orders what is ordered here anyway: two names of one address.
Flow fence_nothing(Step&) { return Flow::Next; }

Flow acquire_tensor_map(Step& step) {
  const uint64_t size = uint64_t(step.operand(1).value);
  if (size != TENSOR_MAP_BYTES) throw Failure("TensorMapSizeError").with("size", int64_t(size));
  for_each(step.active, [&](int lane) {
    const uint64_t address = step.address(step.operand(0), lane);
    tensor_map_bytes(step, address, lane);  // which checks that one can be there
  });
  return Flow::Next;
}

Binding bind_generic(const Operation& op) {
  op.get("sem_fence"), op.get("scope"), op.get("level_fence");  // none narrows it, see above
  return {fence_generic, true};
}

Binding bind_async(const Operation& op) {
  op.get("proxy_space");  // the same
  return {fence_async, true};
}

Binding bind_nothing(const Operation&) { return {fence_nothing, true}; }

Binding bind_tensor_map_release(const Operation& op) {
  op.get("scope");  // the same
  return {fence_generic, true};
}

Binding bind_tensor_map_acquire(const Operation& op) {
  op.get("scope");  // the same
  return {acquire_tensor_map, true};
}

const Registration registration{
    {"fence", bind_generic},
    {"membar", bind_generic},
    {"fence.mbarrier_init.release.cluster", bind_generic},
    {"fence.proxy.alias", bind_nothing},
    {"fence.proxy.async", bind_async},
    {"fence.proxy.async::generic.acquire.sync_restrict::shared::cluster.cluster", bind_async},
    {"fence.proxy.async::generic.release.sync_restrict::shared::cta.cluster", bind_async},
    {"fence.proxy.tensormap::generic.release", bind_tensor_map_release},
    {"fence.proxy.tensormap::generic.acquire", bind_tensor_map_acquire},
};

}  // namespace

}  // namespace emu
