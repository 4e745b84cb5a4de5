// The barrier of a cluster: arriving and waiting are instructions of their own.  PTX ISA,
// "barrier.cluster".
//
// Every thread that has not exited arrives once and then waits; what the PTX ISA leaves undefined,
// arriving twice or waiting without having arrived, is an error.
#include <string>

#include "machine/cluster.hpp"
#include "machine/roster.hpp"
#include "races/races.hpp"

namespace emu {

// ---- the object

void ClusterBarrier::arrive(const Step& step) {
  const size_t warps = step.cluster().all_warps.size();
  if (arrived_.size() < warps) {
    arrived_.resize(warps);
    complete_.resize(warps);
  }
  const uint32_t warp = step.warp.agent;
  if (const Lanes again = step.active & (arrived_[warp] | complete_[warp])) {
    throw Failure("ClusterArrivalError").hex("lanes", again);
  }
  arrived_[warp] |= step.active;
  step.effect();
}

void ClusterBarrier::check_complete(const Cluster& cluster) {
  for (const Warp* warp : cluster.all_warps) {
    if (warp->alive() & ~arrived_[warp->agent]) return;
  }
  for (size_t i = 0; i < arrived_.size(); ++i) {
    complete_[i] |= arrived_[i];
    arrived_[i] = 0;
  }
  completed.join(arriving);
  arriving.clear();
}

bool ClusterBarrier::wait(const Step& step) {
  const uint32_t warp = step.warp.agent;
  const Lanes here = warp < arrived_.size() ? arrived_[warp] | complete_[warp] : 0;
  if (const Lanes missing = step.active & ~here) {
    throw Failure("ClusterWaitError").hex("lanes", missing);
  }
  // Threads that were missing may have exited since.
  if (step.active & arrived_[warp]) check_complete(step.cluster());
  if (step.active & ~complete_[warp]) return false;
  complete_[warp] &= ~step.active;
  step.effect();
  return true;
}

std::string ClusterBarrier::describe(const Cluster& cluster) const {
  Roster missing;
  for (const Warp* warp : cluster.all_warps) {
    const Lanes lanes = warp->alive() & ~arrived_[warp->agent];
    if (lanes) missing.add(*warp, lanes);
  }
  return "the cluster's barrier; not there: " + missing.text("; ");
}

// ---- instructions

namespace {

std::string describe_wait(const Waiting& waiting) {
  return waiting.cta->cluster.barrier.describe(waiting.cta->cluster);
}

template <bool aligned, bool relaxed>
Flow arrive(Step& step) {
  if (aligned && !step.aligned()) return step.wait_for_lanes(ALL_LANES);
  ClusterBarrier& barrier = step.cluster().barrier;
  barrier.arrive(step);
  if (Races* races = step.races()) {
    relaxed ? races->release_fenced(step, barrier.arriving)
            : races->release(step, barrier.arriving);
  }
  return Flow::Next;
}

template <bool aligned>
Flow wait(Step& step) {
  if (aligned && !step.aligned()) return step.wait_for_lanes(ALL_LANES);
  ClusterBarrier& barrier = step.cluster().barrier;
  if (!barrier.wait(step)) {
    return step.wait_for({describe_wait, &step.cta(), 0, 0, false});
  }
  if (step.races()) step.races()->acquire(step, barrier.completed);
  return Flow::Next;
}

Binding bind_arrive(const Operation& op) {
  const bool relaxed = op.get("sem_st") == "relaxed";
  if (op.has("aligned")) return {relaxed ? arrive<true, true> : arrive<true, false>, true};
  return {relaxed ? arrive<false, true> : arrive<false, false>, true};
}

Binding bind_wait(const Operation& op) {
  op.implied({"acquire"});  // which it is without, too
  return {op.has("aligned") ? wait<true> : wait<false>, true};
}

const Registration registration{
    {"barrier.cluster.arrive", bind_arrive},
    {"barrier.cluster.wait", bind_wait},
};

}  // namespace

}  // namespace emu
