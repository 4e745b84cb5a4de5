// Vector clocks: how much of what each agent did is known to have happened.
//
// An agent is whatever has a history of its own: a warp, an mbarrier (whose phases complete one
// after another), or the stream of one kind of asynchronous operations that a warp issues.
// Objects that synchronise carry a clock from those who release it to those who acquire it.  With
// it goes a second one: what is known to have happened and to be visible to the async proxy.
// (Lamport 1978; Flanagan and Freund, "FastTrack", PLDI 2009, for the use in race detection.)
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <vector>

namespace emu {

// The threads that a strong access or a fence is for.  PTX ISA, "Scope".
enum class Scope : uint8_t { Cta, Cluster, Gpu, System };

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
  bool empty() const { return times_.empty(); }
  void clear() { times_.clear(); }

 private:
  std::vector<uint32_t> times_;
};

// The memories in which a fence between the proxies makes writes visible.  PTX ISA, "membar,
// fence": `.proxykind`; without a space it is for all of them.
class ProxySpace {
 public:
  static ProxySpace all() { return ProxySpace(0); }
  static ProxySpace global() { return ProxySpace(1); }
  static ProxySpace shared_of_cluster() { return ProxySpace(2); }
  static ProxySpace shared_of(uint32_t rank) { return ProxySpace(3 + rank); }
  bool operator<(ProxySpace other) const { return number_ < other.number_; }

 private:
  explicit ProxySpace(uint32_t number) : number_(number) {}
  uint32_t number_;
};

// Several of them, by a cluster or by a memory.
template <class Key>
class TimesBy {
 public:
  Times& operator[](Key key) { return times_[key]; }
  // Null where nothing is known.
  const Times* find(Key key) const {
    const auto found = times_.find(key);
    return found == times_.end() ? nullptr : &found->second;
  }
  void join(const TimesBy& other) {
    for (const auto& [key, times] : other.times_) times_[key].join(times);
  }
  bool empty() const { return times_.empty(); }
  void clear() { times_.clear(); }
  auto begin() const { return times_.begin(); }
  auto end() const { return times_.end(); }

 private:
  std::map<Key, Times> times_;
};

struct Knowledge {
  Times happened;
  Times made;                   // of what has not, the initialisations of mbarriers that have
  TimesBy<ProxySpace> visible;  // to the async proxy
  TimesBy<uint32_t> others;     // what has happened in other clusters, by their numbers
  Times begun;                  // 1 by rank of blocks that run, where a cluster has several

  void join(const Knowledge& other) {
    happened.join(other.happened);
    made.join(other.made);
    visible.join(other.visible);
    others.join(other.others);
    begun.join(other.begun);
  }
  bool empty() const {
    return happened.empty() && made.empty() && visible.empty() && others.empty() &&
           begun.empty();
  }
  void clear() {
    happened.clear();
    made.clear();
    visible.clear();
    others.clear();
    begun.clear();
  }
};

// Knowledge by scope; to .sys there belongs what belongs to .gpu, as there is one device.
class Scoped {
 public:
  static constexpr Scope ALL[] = {Scope::Cta, Scope::Cluster, Scope::Gpu};

  Knowledge& operator[](Scope scope) { return knowledge_[index(scope)]; }
  const Knowledge& operator[](Scope scope) const { return knowledge_[index(scope)]; }
  void join(const Scoped& other) {
    for (size_t i = 0; i < knowledge_.size(); ++i) knowledge_[i].join(other.knowledge_[i]);
  }
  void clear() {
    for (Knowledge& each : knowledge_) each.clear();
  }

 private:
  std::array<Knowledge, std::size(ALL)> knowledge_;
  static size_t index(Scope scope) { return size_t(std::min(scope, Scope::Gpu)); }
};

// What is known; and, for relaxed accesses, what came before the last fence of each scope, and what
// was read since then of threads in each scope, which a fence that is as wide makes known.
// Barriers pass these on, too: a fence is as good before a barrier as behind it (in the idiom of
// "the last block adds up" all threads fence, meet at a barrier, and one of them counts).
struct Clock : Knowledge {
  Scoped fenced, seen;

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

}  // namespace emu
