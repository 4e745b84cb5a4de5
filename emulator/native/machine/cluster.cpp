// Making the blocks of a cluster, ending them, and the report when none of them can go on.
#include "machine/cluster.hpp"

#include <utility>

#include "machine/machine.hpp"
#include "machine/roster.hpp"
#include "machine/schedules.hpp"
#include "matrices/tensor_memory.hpp"
#include "races/races.hpp"
#include "sync/register_budget.hpp"

namespace emu {

Cta::Cta(Cluster& cluster, uint32_t rank, Dim3 index)
    : cluster(cluster),
      rank(rank),
      index(index),
      shared(SHARED_START + cluster.machine.program.shared_bytes +
             cluster.machine.shape.dynamic_shared),
      mbarriers(*this) {}

Cta::~Cta() = default;

uint32_t Cta::threads_alive() const {
  uint32_t threads = 0;
  for (const auto& warp : warps) threads += uint32_t(count(warp->alive()));
  return threads;
}

std::string Cta::name(uint32_t warps, Lanes lanes) const {
  return name() + ", " + numbered("warp", warps) + ", " + numbered("lane", lanes);
}

std::string Cta::name() const {
  return "block (" + std::to_string(index.x) + ", " + std::to_string(index.y) + ", " +
         std::to_string(index.z) + ")";
}

Cluster::Cluster(Machine& machine, uint32_t number, Counters& counters)
    : machine(machine),
      number(number),
      index(machine.cluster_index(number)),
      counters(counters),
      engines(machine.options.schedule == Schedule::Eager),
      random(machine.options.seed * 0x1'0000'0001 + number) {
  if (machine.options.races) races = std::make_unique<Races>(*this);
  const Dim3 size = machine.shape.cluster;
  const uint32_t threads = machine.shape.block.count();
  counters.executed.resize((threads + WARP - 1) / WARP);
  for (auto& row : counters.executed) row.resize(machine.program.operations.size());
  for (uint32_t rank = 0; rank < size.count(); ++rank) {
    const Dim3 block{index.x * size.x + rank % size.x,
                     index.y * size.y + rank / size.x % size.y,
                     index.z * size.z + rank / (size.x * size.y)};
    ctas.push_back(std::make_unique<Cta>(*this, rank, block));
    Cta& cta = *ctas.back();
    for (uint32_t warp = 0; warp * WARP < threads; ++warp) {
      const uint32_t present = threads - warp * WARP;
      const Lanes lanes = present >= WARP ? ALL_LANES : (1u << present) - 1;
      cta.warps.push_back(std::make_unique<Warp>(cta, warp, lanes));
      all_warps.push_back(cta.warps.back().get());
      all_warps.back()->agent = uint32_t(all_warps.size() - 1);
    }
  }
  if (races) races->begin();
  agenda_ = make_agenda(machine.options.schedule);
}

Cluster::~Cluster() = default;

Cluster::State Cluster::run(uint64_t budget) {
  while (budget) {
    const uint64_t before = version;
    const uint64_t ran = agenda_->turn(*this);
    executed += ran;
    unchanged_ = version == before ? unchanged_ + ran : 0;
    budget -= ran < budget ? ran : budget;
    if (ran) {
      if (unchanged_ <= SPINNING) continue;
      unchanged_ = 0;
      return State::Spinning;
    }
    if (finished()) {
      finish();
      return State::Done;
    }
    if (!grant_timeouts()) return State::Stuck;
  }
  return State::Ready;
}

bool Cluster::finished() const {
  for (const Warp* warp : all_warps) {
    if (!warp->done()) return false;
  }
  return engines.idle();
}

// Let instructions that wait give up, when nothing else can happen.  If that changes nothing for
// several times, it never will.
bool Cluster::grant_timeouts() {
  constexpr uint32_t enough = 16;
  timeouts_ = version == granted_at_ ? timeouts_ + 1 : 0;
  granted_at_ = version;
  if (timeouts_ == enough) return false;
  bool granted = false;
  for (Warp* warp : all_warps) {
    for (Group& group : warp->groups) {
      if (!group.waits || !group.waiting.times_out) continue;
      group.waits = false;
      group.timed_out = granted = true;
    }
  }
  return granted;
}

void Cluster::report_deadlock() { report(Failure("DeadlockError"), "going round in a loop"); }

void Cluster::report_limit() {
  report(Failure("InstructionLimitError").with("limit", int64_t(machine.options.max_instructions)),
         "running");
}

// Throw a failure, with where each group of lanes is and what it waits for, if it does; those of
// several warps of which the same is told together.
void Cluster::report(Failure failure, const char* not_waiting) const {
  Roster roster;
  int64_t groups = 0;
  for (const Warp* warp : all_warps) {
    for (const Group& group : warp->groups) {
      ++groups;
      const Instruction& code = machine.program.at(group.at);
      if (!failure.line) failure.line = code.line;
      const Waiting& awaited = group.waiting;
      roster.add(*warp, group.lanes,
                 " at line " + std::to_string(code.line) + " (" + code.operation->name + "): " +
                     (group.waits ? "waiting for " + awaited.describe(awaited) : not_waiting));
    }
  }
  throw std::move(failure).with("waiting", roster.text("\n")).with("number", groups);
}

void Cluster::finish() {
  for (const auto& cta : ctas) {
    if (cta->tensors) cta->tensors->check_freed();
    check_warpgroups(*cta);
    for (const auto& warp : cta->warps) warp->bulk_groups.check_read(*warp);
    if (races) races->check_end(*cta);
  }
}

}  // namespace emu
