#include "races/races.hpp"

#include <string>
#include <unordered_map>
#include <vector>

#include "machine/cluster.hpp"
#include "machine/machine.hpp"
#include "races/global_races.hpp"
#include "races/shadow.hpp"

namespace emu {

namespace {

constexpr uint32_t STREAMS = 6;  // of a warp
constexpr uint32_t PER_WARP = 1 + STREAMS;

const char* const STREAM_NAMES[STREAMS] = {
    "a bulk copy out of shared memory", "a bulk copy to global memory", "cp.async",
    "wgmma.mma_async",                  "the tensor core",              "tcgen05.st",
};

// Who makes an access, and what is known to whom it must not conflict with.
struct Accessor {
  Stamp stamp;
  const Clock* knows;
  bool in_order;      // all accesses of the agent happen one after another
  bool numbered;      // a time is one operation of the agent, which does not race with itself
  bool proxies;       // the proxies differ in this memory: not so in tensor memory
  Touch touch;
  const Rewriting* values = nullptr;
};

bool happened(const Stamp& earlier, const Accessor& now) {
  const bool near = earlier.cluster == now.stamp.cluster;
  if (near && earlier.agent == now.stamp.agent) {
    if (now.in_order || (now.numbered && earlier.time == now.stamp.time)) return true;
  }
  if (near) return now.knows->happened.of(earlier.agent) >= earlier.time;
  const auto times = now.knows->others.find(earlier.cluster);
  return times != now.knows->others.end() && times->second.of(earlier.agent) >= earlier.time;
}

// Whether what the generic proxy wrote can be seen by the accessor.  Fences of other clusters are
// not followed.
bool visible(const Stamp& write, const Accessor& now) {
  if (!now.proxies || !write.generic || now.stamp.generic) return true;
  if (write.cluster != now.stamp.cluster) return true;
  return now.knows->visible.of(write.agent) >= write.time;
}

bool conflicts(const Stamp& earlier, const Stamp& now) {
  return !earlier.none() && (earlier.bytes & now.bytes) && !(earlier.atomic && now.atomic);
}

enum class Problem { None, Unordered, Unfenced };

Problem against_write(const History& cell, const Accessor& now) {
  if (!conflicts(cell.write, now.stamp)) return Problem::None;
  if (!happened(cell.write, now)) return Problem::Unordered;
  return visible(cell.write, now) ? Problem::None : Problem::Unfenced;
}

// The read that a write conflicts with, or null.
const Stamp* against_reads(const History& cell, const ReaderSets& sets, const Accessor& now) {
  const auto bad = [&now](const Stamp& read) {
    return conflicts(read, now.stamp) && !happened(read, now);
  };
  if (!cell.readers) return bad(cell.read) ? &cell.read : nullptr;
  for (const Stamp& read : sets.at(cell.readers)) {
    if (bad(read)) return &read;
  }
  return nullptr;
}

void note_read(History& cell, ReaderSets& sets, const Accessor& now) {
  if (cell.readers) {
    cell.readers = sets.with(cell, now.stamp);
    return;
  }
  const bool covers = (cell.read.bytes & ~now.stamp.bytes) == 0;
  if (cell.read.none() || (covers && happened(cell.read, now))) {
    cell.read = now.stamp;
  } else {
    cell.readers = sets.with(cell, now.stamp);
  }
}

void note_write(History& cell, const Accessor& now) {
  cell.write = now.stamp;
  cell.read = Stamp();
  cell.readers = 0;
}

}  // namespace

struct Races::State {
  explicit State(Cluster& cluster) : cluster(cluster) {}

  Cluster& cluster;
  std::vector<Clock> clocks;                // by warp
  // What each warp has read last by a strong access: polling it again tells nothing new.
  struct Look {
    const Location* at = nullptr;
    uint64_t releases = 0;
    bool acquired = false;
  };
  std::vector<Look> looks;
  std::vector<uint32_t> streamed;           // operations so far, by warp and stream
  uint32_t agents = 0;
  std::vector<Shadow> shared, tensor;       // by rank
  ReaderSets sets;
  std::unordered_map<uint64_t, Location> locations;  // of shared memory, by cluster address

  uint32_t warp_agent(const Warp& warp) const { return warp.agent; }
  uint32_t stream_agent(const Warp& warp, Stream stream) const {
    return uint32_t(clocks.size()) + warp.agent * STREAMS + uint32_t(stream);
  }
  uint32_t& count(const Warp& warp, Stream stream) {
    return streamed[warp.agent * STREAMS + uint32_t(stream)];
  }
  bool is_barrier(uint32_t agent) const { return agent >= clocks.size() * PER_WARP; }
  bool in_order(uint32_t agent) const {
    const uint32_t warps = uint32_t(clocks.size());
    if (agent < warps) return true;
    if (is_barrier(agent)) return false;
    const Stream stream = Stream((agent - warps) % STREAMS);
    return stream == Stream::TensorCore || stream == Stream::TensorStore;
  }
  // Later accesses of the warp are not covered by what it has released.
  void tick(const Warp& warp) {
    Times& own = clocks[warp.agent].happened;
    own.raise(warp.agent, own.of(warp.agent) + 1);
  }

  // An access of a warp in an ordinary instruction.
  Accessor ordinary(const Step& step, const Region& region, Touch touch) const;
  std::string who(const Stamp& stamp) const;
  [[noreturn]] void report(const Region& region, uint64_t at, const Stamp& first, bool first_writes,
                           const Accessor& now, Problem problem) const;
  void touch(const Region& region, uint64_t offset, uint64_t bytes, const Accessor& now);
  void touch(Shadow& shadow, ReaderSets& sets, const Region& region, uint64_t offset,
             uint64_t bytes, const Accessor& now);
};

Accessor Races::State::ordinary(const Step& step, const Region& region, Touch touch) const {
  const Clock& clock = clocks[step.warp.agent];
  Stamp stamp;
  stamp.agent = step.warp.agent;
  stamp.cluster = cluster.number;
  stamp.time = clock.happened.of(stamp.agent);
  stamp.line = step.code.line;
  stamp.atomic = touch == Touch::Atomic;
  stamp.generic = 1;
  return {stamp, &clock, true, false, region.is != Region::Is::Tensor, touch};
}

std::string Races::State::who(const Stamp& stamp) const {
  if (stamp.cluster != cluster.number) return "a warp of cluster " + std::to_string(stamp.cluster);
  const uint32_t warps = uint32_t(clocks.size());
  if (is_barrier(stamp.agent)) return "a copy that completes on an mbarrier";
  const bool stream = stamp.agent >= warps;
  const Warp& warp = *cluster.all_warps[stream ? (stamp.agent - warps) / STREAMS : stamp.agent];
  const std::string name = warp.cta.name() + ", warp " + std::to_string(warp.index);
  if (!stream) return name;
  return STREAM_NAMES[(stamp.agent - warps) % STREAMS] + (" issued by " + name);
}

void Races::State::report(const Region& region, uint64_t at, const Stamp& first, bool first_writes,
                          const Accessor& now, Problem problem) const {
  const bool shared = region.is == Region::Is::Shared;
  std::string place = hexadecimal(at);
  if (region.is == Region::Is::Tensor) {
    place = "tensor memory of " + region.owner->name() + ", lane " +
            std::to_string(at / GRANULE % 128) + " column " + std::to_string(at / GRANULE / 128);
  } else if (shared) {
    place = "shared memory of " + region.owner->name() + ", offset " + place;
  } else {
    place = "global memory at " + place;
  }
  const bool fence = problem == Problem::Unfenced;
  Failure failure = Failure(fence ? "MissingProxyFenceError" : "RaceError")
                        .with("place", place)
                        .with("first", who(first))
                        .with("first_line", first.line)
                        .with("first_access", first_writes ? "written" : "read")
                        .with("second", who(now.stamp))
                        .with("second_access", now.touch == Touch::Read ? "reads" : "writes");
  failure.line = now.stamp.line;
  throw failure;
}

void Races::State::touch(Shadow& shadow, ReaderSets& sets, const Region& region, uint64_t offset,
                         uint64_t bytes, const Accessor& by) {
  Accessor now = by;
  shadow.visit(offset, bytes, [&](History& cell, uint32_t mask, uint64_t at, uint32_t size) {
    now.stamp.bytes = mask;
    const Problem problem = against_write(cell, now);
    if (problem != Problem::None) {
      const bool same = now.values && now.values->same(at, size);
      if (!same) report(region, at, cell.write, true, now, problem);
    }
    if (now.touch == Touch::Read) {
      note_read(cell, sets, now);
      return;
    }
    if (const Stamp* read = against_reads(cell, sets, now)) {
      report(region, at, *read, false, now, Problem::Unordered);
    }
    note_write(cell, now);
  });
}

void Races::State::touch(const Region& region, uint64_t offset, uint64_t bytes,
                         const Accessor& now) {
  switch (region.is) {
    case Region::Is::Shared:
      touch(shared[region.owner->rank], sets, region, offset, bytes, now);
      return;
    case Region::Is::Tensor:
      touch(tensor[region.owner->rank], sets, region, offset, bytes, now);
      return;
    case Region::Is::Global: {
      GlobalRaces& all = *cluster.machine.global_races;
      const std::lock_guard<std::mutex> lock(all.mutex);
      touch(all.shadow, all.sets, region, offset, bytes, now);
    }
  }
}

Races::Races(Cluster& cluster) : state_(std::make_unique<State>(cluster)) {}

Races::~Races() = default;

void Races::begin() {
  State& s = *state_;
  const uint32_t warps = uint32_t(s.cluster.all_warps.size());
  s.clocks.resize(warps);
  s.looks.resize(warps);
  s.streamed.resize(warps * STREAMS);
  s.agents = warps * PER_WARP;
  s.shared.resize(s.cluster.ctas.size());
  while (s.tensor.size() < s.cluster.ctas.size()) s.tensor.emplace_back(Shadow::LANES);
  for (const Warp* warp : s.cluster.all_warps) s.tick(*warp);
}

void Races::touch(const Step& step, const Region& region, uint64_t offset, uint64_t bytes,
                  Touch touch, const Rewriting* values) {
  Accessor now = state_->ordinary(step, region, touch);
  if (region.is == Region::Is::Global) now.values = values;
  state_->touch(region, offset, bytes, now);
}

Races::Issued Races::issue(const Step& step, const Mbarrier& barrier) {
  return {barrier.agent, uint32_t(barrier.phase + 1), step.code.line,
          &state_->clocks[step.warp.agent], true};
}

Races::Issued Races::issue(const Step& step, Stream stream, bool async_proxy) {
  State& s = *state_;
  return {s.stream_agent(step.warp, stream), ++s.count(step.warp, stream), step.code.line,
          &s.clocks[step.warp.agent], async_proxy};
}

void Races::touch(const Issued& by, const Region& region, uint64_t offset, uint64_t bytes,
                  Touch touch) {
  Stamp stamp;
  stamp.agent = by.agent;
  stamp.cluster = state_->cluster.number;
  stamp.time = by.time;
  stamp.line = by.line;
  stamp.atomic = touch == Touch::Atomic;
  stamp.generic = !by.async_proxy;
  state_->touch(region, offset, bytes,
                {stamp, by.knows, state_->in_order(by.agent), !state_->is_barrier(by.agent),
                 region.is != Region::Is::Tensor, touch});
}

void Races::release(const Step& step, Clock& into) {
  into.join(state_->clocks[step.warp.agent]);
  state_->tick(step.warp);
}

void Races::release_fenced(const Step& step, Clock& into) {
  into.join(state_->clocks[step.warp.agent].fenced);
}

void Races::acquire(const Step& step, const Clock& from) {
  state_->clocks[step.warp.agent].join(from);
}

void Races::strong(const Step& step, const Region& region, uint64_t offset, uint64_t bytes,
                   Order order) {
  touch(step, region, offset, bytes, Touch::Atomic);
  State& s = *state_;
  const uint32_t warp = step.warp.agent;
  const bool global = region.is == Region::Is::Global;
  const uint32_t number = s.cluster.number;
  GlobalRaces& all = *s.cluster.machine.global_races;
  std::unique_lock<std::mutex> lock(all.mutex, std::defer_lock);
  if (global) lock.lock();
  Location& place = global ? all.locations[offset]
                           : s.locations[uint64_t(region.owner->rank) << 32 | offset];
  Clock& location = place.clock;
  State::Look& look = s.looks[warp];
  const bool known = look.at == &place && look.releases == place.releases &&
                     (look.acquired || !order.acquires);
  if (order.reads && !known) {
    look = {&place, place.releases, order.acquires};
    Knowledge& into = order.acquires ? s.clocks[warp] : s.clocks[warp].seen;
    into.happened.join(location.happened);
    into.visible.join(location.visible);
    for (const auto& [cluster, times] : location.others) {
      (cluster == number ? into.happened : into.others[cluster]).join(times);
    }
  }
  if (order.writes) {
    ++place.releases;
    const Knowledge& from = order.releases ? s.clocks[warp] : s.clocks[warp].fenced;
    if (global) {
      location.others[number].join(from.happened);
      for (const auto& [cluster, times] : from.others) location.others[cluster].join(times);
    } else {
      location.join(from);
    }
    if (order.releases) s.tick(step.warp);
  }
}

void Races::fence(const Step& step) {
  State& s = *state_;
  const uint32_t warp = step.warp.agent;
  Clock& clock = s.clocks[warp];
  static_cast<Knowledge&>(clock).join(clock.seen);
  clock.seen.clear();
  clock.fenced = clock;
  s.tick(step.warp);
}

void Races::fence_async(const Step& step) {
  Clock& clock = state_->clocks[step.warp.agent];
  clock.visible.join(clock.happened);
  state_->tick(step.warp);
}

uint32_t Races::mark(const Step& step, Stream stream) { return state_->count(step.warp, stream); }

void Races::complete(const Step& step, Stream stream, uint32_t mark) {
  complete(step, stream, mark, step.warp);
}

void Races::complete(const Step& step, Stream stream, uint32_t mark, const Warp& of) {
  State& s = *state_;
  s.clocks[step.warp.agent].happened.raise(s.stream_agent(of, stream), mark);
}

Clock Races::committed(const Step& step, Stream stream) {
  State& s = *state_;
  Clock clock = s.clocks[step.warp.agent];
  clock.happened.raise(s.stream_agent(step.warp, stream), s.count(step.warp, stream));
  s.tick(step.warp);
  return clock;
}

void Races::made(const Step& step, Cta& owner, uint32_t offset, Mbarrier& barrier) {
  touch(step, {Region::Is::Shared, &owner}, offset, Mbarrier::BYTES, Touch::Write);
  barrier.agent = state_->agents++;
  barrier.made_by = step.warp.agent;
  barrier.made_at = state_->clocks[step.warp.agent].happened.of(step.warp.agent);
  barrier.made_in_line = step.code.line;
}

void Races::use(const Step& step, Cta& owner, uint32_t offset, const Mbarrier& barrier) {
  const Region region{Region::Is::Shared, &owner};
  const Accessor now = state_->ordinary(step, region, Touch::Atomic);
  if (now.knows->happened.of(barrier.made_by) < barrier.made_at) {
    Stamp made;
    made.agent = barrier.made_by;
    made.cluster = now.stamp.cluster;
    made.time = barrier.made_at;
    made.line = barrier.made_in_line;
    state_->report(region, offset, made, true, now, Problem::Unordered);
  }
  state_->touch(region, offset, Mbarrier::BYTES, now);
}

void Races::phase_completed(Mbarrier& barrier) {
  barrier.completed.happened.raise(barrier.agent, uint32_t(barrier.phase));
}

void Races::forget(const Region& region, uint64_t offset, uint64_t bytes) {
  State& s = *state_;
  if (region.is == Region::Is::Global) return;
  (region.is == Region::Is::Shared ? s.shared : s.tensor)[region.owner->rank].clear(offset, bytes);
}

}  // namespace emu
