#include "copies/landing.hpp"

#include "machine/cluster.hpp"

namespace emu {

namespace {

constexpr uint32_t BLOCKS = 16;  // of a cluster, at most: bits of a mask

// cta_group::2 signals that block of the destination's pair whose parity the named mbarrier has.
SharedPlace barrier_for(Cluster& cluster, const SharedPlace& named, uint32_t rank,
                        Pairing pairing) {
  const uint32_t at = pairing == Pairing::Same ? rank : (rank & ~1u) | (named.cta->rank & 1);
  if (at >= cluster.ctas.size()) {
    throw Failure("MulticastError").hex("blocks", 1u << at).with("size", cluster.ctas.size());
  }
  return {cluster.ctas[at].get(), named.offset};
}

void check_alive(const Cta& cta, const char* what) {
  if (cta.threads_alive()) return;
  throw Failure("ExitedDestinationError").with("what", what).with("block", cta.name());
}

}  // namespace

std::byte* Landing::reach(uint32_t bytes, Touch touch) const {
  check_alive(*to.cta, "bytes");
  return reach_shared(*to.cta, to.offset, bytes, touch);
}

void Landing::complete(uint32_t bytes) const {
  check_alive(*barrier.cta, "the completion");
  barrier.cta->mbarriers.complete(barrier.offset, bytes);
}

Landings landing_at(const SharedPlace& to, const SharedPlace& barrier, Pairing pairing) {
  const uint32_t apart = to.cta->rank ^ barrier.cta->rank;
  if (pairing == Pairing::Same ? apart != 0 : apart > 1) {
    throw Failure("CopyBarrierError")
        .with("to", to.cta->name())
        .with("barrier", barrier.cta->name())
        .with("allowed", pairing == Pairing::Same ? "the block of the destination"
                                                  : "the pair of blocks of the destination");
  }
  return {{to, barrier}};
}

Landings landings_in(const Step& step, const SharedPlace& to, const SharedPlace& barrier,
                     uint32_t blocks, Pairing pairing) {
  Cluster& cluster = step.cluster();
  const uint32_t size = uint32_t(cluster.ctas.size());
  if (!blocks || uint64_t(blocks) >> size) {
    throw Failure("MulticastError").hex("blocks", blocks).with("size", size);
  }
  Landings landings;
  for (uint32_t rank = 0; rank < size && rank < BLOCKS; ++rank) {
    if (!(blocks >> rank & 1)) continue;
    Cta& cta = *cluster.ctas[rank];
    check_alive(cta, "a multicast");
    landings.push_back({{&cta, to.offset}, barrier_for(cluster, barrier, rank, pairing)});
  }
  return landings;
}

Races::Issued begin(const Step& step, const Landing& landing) {
  const SharedPlace& barrier = landing.barrier;
  const Mbarrier& object = barrier.cta->mbarriers.at(barrier.offset);
  Races* races = step.races();
  if (!races) return {};
  races->use(step, *barrier.cta, barrier.offset, object);
  return races->issue(step, object);
}

void occupy(const Step& step, const Races::Issued& issued, const SharedPlace& to, uint32_t bytes,
            Meanwhile meanwhile) {
  const bool poison = meanwhile == Meanwhile::Poison;
  reach_shared(*to.cta, to.offset, bytes, poison ? Touch::Write : Touch::Read);
  if (poison) to.cta->shared.poison(to.offset, bytes, Known::InFlight);
  if (Races* races = step.races()) {
    races->touch(issued, {Region::Is::Shared, to.cta}, to.offset, bytes,
                 poison ? Touch::Write : Touch::Atomic);
  }
}

Races::Issued announce(const Step& step, const Landing& landing, uint32_t bytes,
                       Meanwhile meanwhile) {
  const Races::Issued issued = begin(step, landing);
  occupy(step, issued, landing.to, bytes, meanwhile);
  return issued;
}

void check_multiple(const char* what, uint64_t value, uint32_t unit) {
  if (value % unit == 0) return;
  throw Failure("CopyAlignmentError").with("what", what).hex("value", value).with("unit", unit);
}

}  // namespace emu
