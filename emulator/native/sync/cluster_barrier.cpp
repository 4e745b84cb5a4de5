// The barrier of a cluster: arriving and waiting are instructions of their own.  PTX ISA,
// "barrier.cluster".
//
// Every thread that has not exited arrives once and then waits; what the PTX ISA leaves undefined,
// arriving twice or waiting without having arrived, is an error.
#include <string>

#include "machine/cluster.hpp"
#include "races/races.hpp"

namespace emu {

// ---- the object

namespace {

// Of a warp, among all of the cluster.
size_t position(const Warp& warp) {
  return warp.cta.rank * warp.cta.warps.size() + warp.index;
}

}  // namespace

void ClusterBarrier::arrive(const Step& step) {
  const size_t warps = step.cluster().all_warps.size();
  if (arrived_.size() < warps) {
    arrived_.resize(warps);
    complete_.resize(warps);
  }
  const size_t warp = position(step.warp);
  if (const Lanes again = step.active & (arrived_[warp] | complete_[warp])) {
    throw Failure("ClusterArrivalError").hex("lanes", again);
  }
  arrived_[warp] |= step.active;
  step.effect();
}

void ClusterBarrier::check_complete(const Cluster& cluster) {
  for (const Warp* warp : cluster.all_warps) {
    if (warp->alive() & ~arrived_[position(*warp)]) return;
  }
  for (size_t i = 0; i < arrived_.size(); ++i) {
    complete_[i] |= arrived_[i];
    arrived_[i] = 0;
  }
  completed.join(arriving);
  arriving.clear();
}

bool ClusterBarrier::wait(const Step& step) {
  const size_t warp = position(step.warp);
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
  std::string text = "the cluster's barrier; not there: ";
  const char* separator = "";
  for (const Warp* warp : cluster.all_warps) {
    const Lanes missing = warp->alive() & ~arrived_[position(*warp)];
    if (!missing) continue;
    text += separator + warp->name(missing);
    separator = "; ";
  }
  return text;
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
  op.has("acquire");  // which it is without, too
  return {op.has("aligned") ? wait<true> : wait<false>, true};
}

const Registration registration{
    {"barrier.cluster.arrive", bind_arrive},
    {"barrier.cluster.wait", bind_wait},
};

}  // namespace

}  // namespace emu
