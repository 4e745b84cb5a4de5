// tcgen05.commit, by which an mbarrier tells when the tensor core has done what it was given; and
// the fences of tcgen05.
//
// The fences order tcgen05 instructions of threads that synchronise.  Here warps execute one
// instruction after another, and the race detector takes synchronisation itself for such an order
// (correct kernels by compilers have no fences there), so that the fences have no effect.
#include "machine/machine.hpp"
#include "matrices/tensor_access.hpp"
#include "program/operation.hpp"
#include "sync/barriers.hpp"
#include "sync/shared_place.hpp"

namespace emu {

namespace {

// The blocks of a mask; throws MulticastMaskError for those that the cluster has not.
std::vector<Cta*> blocks_of(const Step& step, uint32_t mask) {
  auto& all = step.cluster().ctas;
  if (mask >> all.size()) {
    throw Failure("MulticastMaskError").hex("mask", mask).with("blocks", all.size());
  }
  std::vector<Cta*> blocks;
  for (uint32_t rank = 0; rank < all.size(); ++rank) {
    if (mask >> rank & 1) blocks.push_back(all[rank].get());
  }
  return blocks;
}

Flow commit(Step& step) {
  const uint32_t group = step.code.detail;
  Tensors::of(step.cta()).check_group(group);
  const Engines::Queue queue = Blocks(step.cta(), group).queue();
  const Space space = space_named(step.operation().roles[0].space);
  const bool multicast = step.operation().roles.size() > 1;
  Clock clock;
  const bool races = step.races() != nullptr;
  if (races) clock = step.races()->committed(step, Races::Stream::TensorCore);
  for_each(step.active, [&](int lane) {
    const SharedPlace place = shared_place(step, space, step.address(step.operand(0), lane));
    const std::vector<Cta*> blocks =
        multicast ? blocks_of(step, uint32_t(step.read(step.operand(1), lane)))
                  : std::vector<Cta*>{place.cta};
    for (Cta* block : blocks) {
      const Mbarrier& barrier = block->mbarriers.at(place.offset);  // throws if there is none
      if (races) step.races()->use(step, *block, place.offset, barrier);
    }
    step.cluster().engines.defer(
        step, queue, [blocks, offset = place.offset, clock, races, cluster = &step.cluster()] {
          for (Cta* block : blocks) {
            block->mbarriers.arrive(offset, 1, races ? &clock : nullptr);
          }
          ++cluster->version;
        });
  });
  return Flow::Next;
}

Flow fence(Step&) { return Flow::Next; }

Binding bind_commit(const Operation& op) {
  op.implied({"mbarrier::arrive::one"});  // the only way to arrive
  op.implied({"multicast"});              // seen by the operand that it brings
  return with_group(op, commit);
}

Binding bind_fence(const Operation&) { return {fence, true}; }

const Registration registration{
    {"tcgen05.commit", bind_commit},
    {"tcgen05.fence::before_thread_sync", bind_fence},
    {"tcgen05.fence::after_thread_sync", bind_fence},
};

}  // namespace

}  // namespace emu
