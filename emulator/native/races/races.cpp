#include "races/races.hpp"

#include <algorithm>
#include <array>
#include <string>
#include <unordered_map>
#include <vector>

#include "machine/cluster.hpp"
#include "machine/machine.hpp"
#include "matrices/tensor_memory.hpp"
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

// Who makes an access, where, and what is known to whom it must not conflict with.
struct Accessor {
  Stamp stamp;
  const Clock& knows;
  const Region& region;
  bool in_order;  // all accesses of the agent happen one after another
  bool numbered;  // a time is one operation of the agent, which does not race with itself
  const Rewriting* values = nullptr;
  bool of_phase = false;  // a use of an mbarrier, which those know of who wait for its phase
};

inline bool by_same(const Stamp& a, const Stamp& b) {
  return a.agent == b.agent && a.cluster == b.cluster;
}

inline bool happened(const Stamp& earlier, const Accessor& now) {
  if (earlier.cluster == now.stamp.cluster) {
    if (now.knows.happened.of(earlier.agent) >= earlier.time) return true;
    return earlier.agent == now.stamp.agent &&
           (now.in_order || (now.numbered && earlier.time == now.stamp.time));
  }
  const Times* times = now.knows.others.find(earlier.cluster);
  return times && times->of(earlier.agent) >= earlier.time;
}

// Whether a fence has made visible to the async proxy what the generic proxy wrote.
bool fenced(const Stamp& earlier, const Accessor& now) {
  const auto in = [&](ProxySpace space) {
    const Times* times = now.knows.visible.find(space);
    return times && times->of(earlier.agent) >= earlier.time;
  };
  if (in(ProxySpace::all())) return true;
  if (now.region.is == Region::Is::Global) return in(ProxySpace::global());
  return in(ProxySpace::shared_of(now.region.owner->rank)) || in(ProxySpace::shared_of_cluster());
}

// Whether the accessor sees what was written.  Fences of other clusters are not followed, and in
// tensor memory the proxies do not differ.
inline bool visible(const Stamp& earlier, const Accessor& now) {
  return now.stamp.generic || !earlier.generic || !earlier.writes ||
         now.region.is == Region::Is::Tensor || earlier.cluster != now.stamp.cluster ||
         fenced(earlier, now);
}

// Of a strong access, as stamps have it.
constexpr uint32_t strength(Scope scope) { return 1 + uint32_t(std::min(scope, Scope::Gpu)); }

constexpr uint32_t NO_BLOCK = ~0u;  // of the copies that complete on an mbarrier

enum class Problem { Unordered, Unfenced };

}  // namespace

struct Races::State {
  explicit State(Cluster& cluster) : cluster(cluster) {}

  // What strong accesses to a place have left for those of the cluster's threads that read it: for
  // threads of each block from that block (if there are several), and for all from all.
  struct Location {
    std::vector<Knowledge> blocks;
    Knowledge cluster;
    uint64_t releases = 0;
  };
  // What each warp has read last by a strong access: polling it again tells nothing new.
  struct Look {
    const Location* at = nullptr;
    uint64_t releases = 0, far_releases = 0;
    Scope scope = Scope::Cta;
    bool acquired = false;
  };

  Cluster& cluster;
  std::vector<Clock> clocks;           // by warp
  std::vector<Look> looks;             // by warp
  std::vector<uint32_t> streamed;      // operations so far, by warp and stream
  uint32_t agents = 0;
  std::vector<Shadow> shared, tensor;  // by rank
  // The last access to each block's shared memory by each agent that is no part of the block: warps
  // of others with their streams, and copies that complete on mbarriers.  By rank and agent.
  struct Foreign {
    Stamp access;
    uint32_t time = 0;  // of the agent by which it is kept
  };
  std::vector<std::vector<Foreign>> foreign;
  // The last use of each mbarrier by a warp of another block, and the phase that it is a part of.
  std::vector<std::vector<Foreign>> uses;
  Recorder recorder;
  // By address: a rank above an offset, or a global one.
  std::unordered_map<uint64_t, Location> shared_locations, global_locations;

  uint32_t stream_agent(const Warp& warp, Stream stream) const {
    return uint32_t(clocks.size()) + warp.agent * STREAMS + uint32_t(stream);
  }
  uint32_t& count(const Warp& warp, Stream stream) {
    return streamed[warp.agent * STREAMS + uint32_t(stream)];
  }
  bool is_barrier(uint32_t agent) const { return agent >= clocks.size() * PER_WARP; }
  // The warp that an agent is, or whose stream it is.
  const Warp& warp_of(uint32_t agent) const {
    const uint32_t warps = uint32_t(clocks.size());
    return *cluster.all_warps[agent < warps ? agent : (agent - warps) / STREAMS];
  }
  uint32_t block_of(const Stamp& stamp) const {
    return is_barrier(stamp.agent) ? NO_BLOCK : warp_of(stamp.agent).cta.rank;
  }
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
  // The block of a cluster of one is all of the cluster.
  Scope widened(Scope scope) const {
    return scope == Scope::Cta && cluster.ctas.size() == 1 ? Scope::Cluster : scope;
  }

  // An access of a warp in an ordinary instruction.
  Accessor ordinary(const Step& step, const Region& region, Touch touch, uint32_t strength) const;
  bool morally_strong(const Stamp& a, const Stamp& b) const;
  bool conflicts(const Stamp& earlier, const Stamp& now) const {
    if (!(earlier.bytes & now.bytes) || !(earlier.writes | now.writes)) return false;
    return !earlier.strength || !now.strength || !morally_strong(earlier, now);
  }
  // Whether an access that comes behind an earlier one conflicts with all that this conflicts with:
  // it is of the same bytes and no weaker in what it does.  Strong ones stand for others of their
  // own block only: those of another block may conflict with accesses that are for this block.
  bool stands_for(const Stamp& now, const Stamp& earlier) const {
    if (earlier.bytes & ~now.bytes || earlier.writes > now.writes) return false;
    if (!now.strength) return true;
    if (earlier.strength < now.strength || earlier.cluster != now.cluster) return false;
    return by_same(earlier, now) || block_of(earlier) == block_of(now);
  }
  std::string who(const Stamp& stamp) const;
  void check_begun(const Accessor& now) const;
  // Keep an access if it is one, by an agent and its time.
  void keep_foreign(std::vector<std::vector<Foreign>>& kept, const Accessor& now, uint32_t agent,
                    uint32_t time) const;
  [[noreturn]] void report(uint64_t at, const Stamp& first, const Accessor& now,
                           Problem problem) const;
  void touch(uint64_t offset, uint64_t bytes, Accessor now);
  void touch(Shadow& shadow, Recorder& recorder, uint64_t offset, uint64_t bytes, Accessor& now);

  // What a strong access does with the clocks at its place; `far` is null for narrower scopes.
  void take(const Warp& warp, const Location& near, const GlobalRaces::Location* far, Order order);
  void leave(const Warp& warp, Location& near, GlobalRaces::Location* far, Order order);
};

Accessor Races::State::ordinary(const Step& step, const Region& region, Touch touch,
                                uint32_t strength) const {
  const Clock& clock = clocks[step.warp.agent];
  Stamp stamp;
  stamp.agent = step.warp.agent;
  stamp.cluster = cluster.number;
  stamp.time = clock.happened.of(stamp.agent);
  stamp.line = step.code.line;
  stamp.writes = touch != Touch::Read;
  stamp.strength = strength;
  stamp.generic = 1;
  return {stamp, clock, region, true, false};
}

// Two strong accesses whose scopes include each other's threads.  PTX ISA, "Morally strong
// operations"; that they are of the same bytes is not asked for.
bool Races::State::morally_strong(const Stamp& a, const Stamp& b) const {
  const uint32_t narrower = std::min(a.strength, b.strength);
  if (narrower == strength(Scope::Gpu)) return true;
  if (a.cluster != b.cluster) return false;
  return narrower == strength(Scope::Cluster) || block_of(a) == block_of(b);
}

std::string Races::State::who(const Stamp& stamp) const {
  if (stamp.cluster != cluster.number) return "a warp of cluster " + std::to_string(stamp.cluster);
  if (is_barrier(stamp.agent)) return "a copy that completes on an mbarrier";
  const Warp& warp = warp_of(stamp.agent);
  const std::string name = warp.cta.name() + ", warp " + std::to_string(warp.index);
  const uint32_t warps = uint32_t(clocks.size());
  if (stamp.agent < warps) return name;
  return STREAM_NAMES[(stamp.agent - warps) % STREAMS] + (" issued by " + name);
}

void Races::State::report(uint64_t at, const Stamp& first, const Accessor& now,
                          Problem problem) const {
  const Region& region = now.region;
  std::string place = hexadecimal(at);
  switch (region.is) {
    case Region::Is::Tensor: {
      const uint64_t cell = at / sizeof(uint32_t);
      place = "tensor memory of " + region.owner->name() + ", lane " +
              std::to_string(cell % Tensors::LANES) + " column " +
              std::to_string(cell / Tensors::LANES);
      break;
    }
    case Region::Is::Shared:
      place = "shared memory of " + region.owner->name() + ", offset " + place;
      break;
    case Region::Is::Global: place = "global memory at " + place;
  }
  const bool fence = problem == Problem::Unfenced;
  Failure failure = Failure(fence ? "MissingProxyFenceError" : "RaceError")
                        .with("place", place)
                        .with("first", who(first))
                        .with("first_line", first.line)
                        .with("first_access", first.writes ? "written" : "read")
                        .with("second", who(now.stamp))
                        .with("second_access", now.stamp.writes ? "writes" : "reads");
  failure.line = now.stamp.line;
  throw failure;
}

void Races::State::touch(Shadow& shadow, Recorder& recorder, uint64_t offset, uint64_t bytes,
                         Accessor& now) {
  shadow.visit(offset, bytes, [&](History& cell, uint32_t mask, uint64_t at, uint32_t size) {
    // Not without need: copying a stamp that was just written in parts takes several times as long.
    if (now.stamp.bytes != mask) now.stamp.bytes = mask;
    bool excused = false;
    recorder.add(cell, now.stamp, [&](const Stamp& earlier) {
      const bool in_order = happened(earlier, now);
      const bool seen = visible(earlier, now);
      if (!(in_order && seen) && conflicts(earlier, now.stamp)) {
        excused = earlier.writes && now.values && now.values->same(at, size);
        if (!excused) report(at, earlier, now, in_order ? Problem::Unfenced : Problem::Unordered);
      }
      // The times of one agent are known in their order.
      return stands_for(now.stamp, earlier) && seen &&
             (in_order || by_same(earlier, now.stamp));
    });
    if (excused) recorder.forget();  // what goes for these bytes need not go for others
  });
}

// Blocks of a cluster need not begin together.
void Races::State::check_begun(const Accessor& now) const {
  const Cta& owner = *now.region.owner;
  if (cluster.ctas.size() == 1 || now.knows.begun.of(owner.rank)) return;
  Failure failure = Failure("BlockStartError")
                        .with("block", owner.name())
                        .with("second", who(now.stamp))
                        .with("second_access", now.stamp.writes ? "writes" : "reads");
  failure.line = now.stamp.line;
  throw failure;
}

void Races::State::keep_foreign(std::vector<std::vector<Foreign>>& kept, const Accessor& now,
                                uint32_t agent, uint32_t time) const {
  const uint32_t rank = now.region.owner->rank;
  if (block_of(now.stamp) == rank) return;
  std::vector<Foreign>& accesses = kept[rank];
  if (agent >= accesses.size()) accesses.resize(agent + 1);
  accesses[agent] = {now.stamp, time};
}

void Races::State::touch(uint64_t offset, uint64_t bytes, Accessor now) {
  switch (now.region.is) {
    case Region::Is::Shared:
      check_begun(now);
      if (!now.of_phase) keep_foreign(foreign, now, now.stamp.agent, now.stamp.time);
      return touch(shared[now.region.owner->rank], recorder, offset, bytes, now);
    case Region::Is::Tensor:
      return touch(tensor[now.region.owner->rank], recorder, offset, bytes, now);
    case Region::Is::Global: {
      GlobalRaces& all = *cluster.machine.global_races;
      const std::lock_guard<std::mutex> lock(all.mutex);
      touch(all.shadow, all.recorder, offset, bytes, now);
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
  s.foreign.resize(s.cluster.ctas.size());
  s.uses.resize(s.cluster.ctas.size());
  for (size_t rank = 0; rank < s.cluster.ctas.size(); ++rank) {
    s.shared.emplace_back(Shadow::Of::Shared);
    s.tensor.emplace_back(Shadow::Of::Tensor);
  }
  for (const Warp* warp : s.cluster.all_warps) {
    s.tick(*warp);
    if (s.cluster.ctas.size() > 1) s.clocks[warp->agent].begun.raise(warp->cta.rank, 1);
  }
}

void Races::touch(const Step& step, const Region& region, uint64_t offset, uint64_t bytes,
                  Touch touch, const Rewriting* values) {
  const uint32_t of = touch == Touch::Atomic ? strength(Scope::Gpu) : 0;
  Accessor now = state_->ordinary(step, region, touch, of);
  if (region.is == Region::Is::Global) now.values = values;
  state_->touch(offset, bytes, now);
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
  stamp.writes = touch != Touch::Read;
  stamp.strength = touch == Touch::Atomic ? strength(Scope::Gpu) : 0;
  stamp.generic = !by.async_proxy;
  state_->touch(offset, bytes, {stamp, *by.knows, region, state_->in_order(by.agent),
                                !state_->is_barrier(by.agent)});
}

void Races::release(const Step& step, Clock& into) {
  into.join(state_->clocks[step.warp.agent]);
  state_->tick(step.warp);
}

void Races::release_fenced(const Step& step, Clock& into) {
  const Clock& clock = state_->clocks[step.warp.agent];
  into.join(clock.fenced[Scope::Cluster]);
  into.join(clock.fenced[Scope::Gpu]);
  into.begun.join(clock.begun);
}

void Races::acquire(const Step& step, const Clock& from) {
  state_->clocks[step.warp.agent].join(from);
}

void Races::strong(const Step& step, const Region& region, uint64_t offset, uint64_t bytes,
                   Order order) {
  State& s = *state_;
  const Touch touch = order.writes ? Touch::Write : Touch::Read;
  s.touch(offset, bytes, s.ordinary(step, region, touch, strength(order.scope)));
  order.scope = s.widened(order.scope);
  const bool global = region.is == Region::Is::Global;
  GlobalRaces::Location* far = nullptr;
  std::unique_lock<std::mutex> lock;
  if (global && order.scope >= Scope::Gpu) {
    GlobalRaces& all = *s.cluster.machine.global_races;
    lock = std::unique_lock<std::mutex>(all.mutex);
    far = &all.locations[offset];
  }
  State::Location& near = global
                              ? s.global_locations[offset]
                              : s.shared_locations[uint64_t(region.owner->rank) << 32 | offset];
  const size_t blocks = s.cluster.ctas.size();
  if (blocks > 1 && near.blocks.empty()) near.blocks.resize(blocks);
  if (order.reads) s.take(step.warp, near, far, order);
  if (!order.writes) return;
  s.leave(step.warp, near, far, order);
  if (order.releases) s.tick(step.warp);
}

void Races::State::take(const Warp& warp, const Location& near, const GlobalRaces::Location* far,
                        Order order) {
  Look& look = looks[warp.agent];
  const uint64_t far_releases = far ? far->releases : look.far_releases;
  if (look.at == &near && look.releases == near.releases && look.far_releases == far_releases &&
      look.scope >= order.scope && (look.acquired || !order.acquires)) {
    return;
  }
  look = {&near, near.releases, far_releases, order.scope, order.acquires};
  Clock& clock = clocks[warp.agent];
  const auto into = [&](Scope scope) -> Knowledge& {
    return order.acquires ? clock : clock.seen[scope];
  };
  if (!near.blocks.empty()) into(Scope::Cta).join(near.blocks[warp.cta.rank]);
  if (order.scope >= Scope::Cluster) into(Scope::Cluster).join(near.cluster);
  if (!far) return;
  Knowledge& known = into(Scope::Gpu);
  for (const auto& [number, times] : far->happened) {
    (number == cluster.number ? known.happened : known.others[number]).join(times);
  }
}

void Races::State::leave(const Warp& warp, Location& near, GlobalRaces::Location* far,
                         Order order) {
  const Clock& clock = clocks[warp.agent];
  // f(what is left for the threads of a scope)
  const auto each_left = [&](Scope scope, auto&& f) {
    if (order.releases) return f(static_cast<const Knowledge&>(clock));
    for (const Scope fenced : Scoped::ALL) {
      if (fenced >= scope) f(clock.fenced[fenced]);
    }
  };
  ++near.releases;
  if (!near.blocks.empty()) {
    each_left(Scope::Cta, [&](const Knowledge& left) { near.blocks[warp.cta.rank].join(left); });
  }
  if (order.scope < Scope::Cluster) return;
  each_left(Scope::Cluster, [&](const Knowledge& left) { near.cluster.join(left); });
  if (!far) return;
  ++far->releases;
  each_left(Scope::Gpu, [&](const Knowledge& left) {
    far->happened[cluster.number].join(left.happened);
    far->happened.join(left.others);
  });
}

void Races::fence(const Step& step, Fence fence) {
  State& s = *state_;
  Clock& clock = s.clocks[step.warp.agent];
  const Scope scope = s.widened(fence.scope);
  if (fence.acquires) {
    for (const Scope seen : Scoped::ALL) {
      if (seen > scope) continue;
      clock.Knowledge::join(clock.seen[seen]);
      clock.seen[seen].clear();
    }
  }
  if (fence.releases) {
    clock.fenced[scope] = clock;
    s.tick(step.warp);
  }
}

void Races::fence_mbarrier_init(const Step& step) {
  State& s = *state_;
  const uint32_t warp = step.warp.agent;
  Clock& clock = s.clocks[warp];
  clock.fenced[Scope::Cluster].made.raise(warp, clock.happened.of(warp));
  s.tick(step.warp);
}

void Races::fence_async(const Step& step, ProxySpace space) {
  Clock& clock = state_->clocks[step.warp.agent];
  clock.visible[space].join(clock.happened);
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
  State& s = *state_;
  const Region region{Region::Is::Shared, &owner};
  touch(step, region, offset, Mbarrier::BYTES, Touch::Write);
  // Whether those who use it know of this is for `use` to say.
  s.shared[owner.rank].clear(offset, Mbarrier::BYTES);
  touch(step, region, offset, Mbarrier::BYTES, Touch::Atomic);
  barrier.agent = s.agents++;
  barrier.made_by = step.warp.agent;
  barrier.made_at = s.clocks[step.warp.agent].happened.of(step.warp.agent);
  barrier.made_in_line = step.code.line;
}

void Races::use(const Step& step, Cta& owner, uint32_t offset, const Mbarrier& barrier) {
  State& s = *state_;
  const Region region{Region::Is::Shared, &owner};
  Accessor now = s.ordinary(step, region, Touch::Atomic, strength(Scope::Gpu));
  now.of_phase = true;
  if (now.knows.happened.of(barrier.made_by) < barrier.made_at &&
      now.knows.made.of(barrier.made_by) < barrier.made_at) {
    Stamp made;
    made.agent = barrier.made_by;
    made.cluster = now.stamp.cluster;
    made.time = barrier.made_at;
    made.line = barrier.made_in_line;
    made.writes = 1;
    s.report(offset, made, now, Problem::Unordered);
  }
  s.keep_foreign(s.uses, now, barrier.agent, uint32_t(barrier.phase + 1));
  s.touch(offset, Mbarrier::BYTES, now);
}

void Races::phase_completed(Mbarrier& barrier) {
  barrier.completed.happened.raise(barrier.agent, uint32_t(barrier.phase));
}

void Races::check_end(const Cta& cta) const {
  const State& s = *state_;
  Times known;
  for (const auto& warp : cta.warps) known.join(s.clocks[warp->agent].happened);
  for (const auto* kept : {&s.foreign[cta.rank], &s.uses[cta.rank]}) {
    for (uint32_t agent = 0; agent < kept->size(); ++agent) {
      const auto& [access, time] = (*kept)[agent];
      if (time <= known.of(agent) || access.time <= known.of(access.agent)) continue;
      Failure failure = Failure("BlockEndError")
                            .with("block", cta.name())
                            .with("first", s.who(access))
                            .with("first_access", access.writes ? "writes" : "reads");
      failure.line = access.line;
      throw failure;
    }
  }
}

void Races::forget(const Region& region, uint64_t offset, uint64_t bytes) {
  State& s = *state_;
  if (region.is == Region::Is::Global) return;
  (region.is == Region::Is::Shared ? s.shared : s.tensor)[region.owner->rank].clear(offset, bytes);
}

}  // namespace emu
