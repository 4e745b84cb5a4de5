// Vector clocks: how much of what each agent did is known to have happened.
//
// An agent is whatever has a history of its own: a warp, an mbarrier (whose phases complete one
// after another), or the stream of one kind of asynchronous operations that a warp issues.
// Objects that synchronise carry a clock from those who release it to those who acquire it.  With
// it goes a second one: what is known to have happened and to be visible to the async proxy.
// (Lamport 1978; Flanagan and Freund, "FastTrack", PLDI 2009, for the use in race detection.)
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

namespace emu {

// Times by agent; those of agents beyond the end are 0.
class Times {
 public:
  uint32_t of(uint32_t agent) const { return agent < times_.size() ? times_[agent] : 0; }
  void raise(uint32_t agent, uint32_t time) {
    if (agent >= times_.size()) times_.resize(agent + 1);
    times_[agent] = std::max(times_[agent], time);
  }
  void join(const Times& other) {
    if (times_.size() < other.times_.size()) times_.resize(other.times_.size());
    for (size_t i = 0; i < other.times_.size(); ++i) {
      times_[i] = std::max(times_[i], other.times_[i]);
    }
  }
  void clear() { times_.clear(); }

 private:
  std::vector<uint32_t> times_;
};

struct Knowledge {
  Times happened;
  Times visible;                     // to the async proxy
  std::map<uint32_t, Times> others;  // what has happened in other clusters, by their numbers

  void join(const Knowledge& other) {
    happened.join(other.happened);
    visible.join(other.visible);
    for (const auto& [cluster, times] : other.others) others[cluster].join(times);
  }
  void clear() {
    happened.clear();
    visible.clear();
    others.clear();
  }
};

// What is known; and, for relaxed accesses, what came before the last fence, and what was read
// since then, which the next fence makes known.  Barriers pass these on, too: a fence is as good
// before a barrier as behind it (in the idiom of "the last block adds up" all threads fence, meet
// at a barrier, and one of them counts).
struct Clock : Knowledge {
  Knowledge fenced, seen;

  using Knowledge::join;
  void join(const Clock& other) {
    Knowledge::join(other);
    fenced.join(other.fenced);
    seen.join(other.seen);
  }
  void clear() {
    Knowledge::clear();
    fenced.clear();
    seen.clear();
  }
};

// A place of strong accesses, and what those that wrote there have left for those that read.
struct Location {
  Clock clock;
  uint64_t releases = 0;
};

}  // namespace emu
