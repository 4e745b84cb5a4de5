#include "machine/schedules.hpp"

#include <algorithm>
#include <vector>

#include "machine/cluster.hpp"
#include "machine/machine.hpp"

namespace emu {

namespace {

constexpr uint32_t LONG = 1 << 16;

// A warp that can go on, and that has not just looked in vain whether something has changed.
bool eager_to_run(const Warp& warp, const Cluster& cluster) {
  return !warp.done() && warp.polled != cluster.version && warp.runnable();
}

bool can_run(const Warp& warp) { return !warp.done() && warp.runnable(); }

// Each warp runs until it waits, and then the next one.  Asynchronous work has happened at once
// ("eager", which the engines see to), or happens when no warp can go on ("late").
class InTurn : public Agenda {
 public:
  uint64_t turn(Cluster& cluster) override {
    const auto& warps = cluster.all_warps;
    for (size_t tried = 0; tried < warps.size(); ++tried) {
      Warp& warp = *warps[next_];
      next_ = (next_ + 1) % warps.size();
      if (!eager_to_run(warp, cluster)) continue;
      const uint64_t ran = warp.run(LONG, false);
      if (ran) return ran;
    }
    if (!cluster.engines.idle()) {
      cluster.engines.run_one();
      return 1;
    }
    for (Warp* warp : warps) {
      if (!can_run(*warp)) continue;
      const uint64_t ran = warp->run(LONG, false);
      if (ran) return ran;
    }
    return 0;
  }

 private:
  size_t next_ = 0;
};

// Any warp, up to its next synchronising instruction, or any work.  Warps that have looked in vain
// for a change have their turn when no other does anything.
class AtRandom : public Agenda {
 public:
  uint64_t turn(Cluster& cluster) override {
    for (const bool polling : {false, true}) {
      able_.clear();
      for (Warp* warp : cluster.all_warps) {
        if (polling ? can_run(*warp) : eager_to_run(*warp, cluster)) able_.push_back(warp);
      }
      const bool work = !cluster.engines.idle();
      while (!able_.empty() || work) {
        const uint32_t choices = uint32_t(able_.size()) + work;
        const uint32_t chosen = cluster.random.below(choices);
        if (chosen == able_.size()) {
          cluster.engines.run_one(&cluster.random);
          return 1;
        }
        const uint64_t ran = able_[chosen]->run(LONG, true);
        if (ran) return ran;
        able_.erase(able_.begin() + chosen);
      }
    }
    return 0;
  }

 private:
  std::vector<Warp*> able_;
};

// Strict priorities, drawn at random and lowered at random moments, in slices of few instructions
// (after Burckhardt et al., "A Randomized Scheduler with Probabilistic Guarantees of Finding Bugs",
// ASPLOS 2010): the warp with the highest priority runs as long as it can.  The engines take part
// as if they were a warp.
class ByPriority : public Agenda {
 public:
  uint64_t turn(Cluster& cluster) override {
    const auto& warps = cluster.all_warps;
    if (order_.empty()) draw(uint32_t(warps.size()) + 1, cluster.random);
    if (cluster.random.below(CHANGE) == 0) demote(cluster.random);
    for (const bool polling : {false, true}) {
      for (const uint32_t agent : order_) {
        if (agent == warps.size()) {
          if (cluster.engines.idle()) continue;
          cluster.engines.run_one(&cluster.random);
          return 1;
        }
        Warp& warp = *warps[agent];
        if (polling ? !can_run(warp) : !eager_to_run(warp, cluster)) continue;
        const uint64_t ran = warp.run(SLICE, true);
        if (ran) return ran;
      }
    }
    return 0;
  }

 private:
  static constexpr uint32_t SLICE = 5;     // instructions; longer ones miss narrow races
  static constexpr uint32_t CHANGE = 512;  // turns between two changes, on average
  std::vector<uint32_t> order_;            // warps, and the engines as the last number

  void draw(uint32_t agents, Random& random) {
    for (uint32_t i = 0; i < agents; ++i) order_.push_back(i);
    for (uint32_t i = agents; i > 1; --i) std::swap(order_[i - 1], order_[random.below(i)]);
  }
  // One of the first agents becomes the last one.
  void demote(Random& random) {
    const uint32_t some = std::min<uint32_t>(4, uint32_t(order_.size()));
    const auto at = order_.begin() + random.below(some);
    std::rotate(at, at + 1, order_.end());
  }
};

}  // namespace

std::unique_ptr<Agenda> make_agenda(Schedule schedule) {
  switch (schedule) {
    case Schedule::Random: return std::make_unique<AtRandom>();
    case Schedule::Priority: return std::make_unique<ByPriority>();
    default: return std::make_unique<InTurn>();
  }
}

}  // namespace emu
