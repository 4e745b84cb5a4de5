// How a warp runs: choosing a group of lanes, executing its instructions, joining groups again.
#include "machine/warp.hpp"

#include <algorithm>
#include <cstring>

#include "machine/cluster.hpp"
#include "machine/machine.hpp"
#include "machine/special_registers.hpp"

namespace emu {

Warp::Warp(Cta& cta, uint32_t index, Lanes present) : cta(cta), index(index), present(present) {
  const Program& program = cta.cluster.machine.program;
  // Aligned to cache lines, so that vector loads of 32 lanes do not cross more of them than needed.
  constexpr size_t line = 64;
  file_.reset(new std::byte[program.register_bytes + line]);
  registers = file_.get() + (line - reinterpret_cast<uintptr_t>(file_.get()) % line) % line;
  std::memset(registers, POISON, program.register_bytes);
  fill_registers();
  groups.push_back({0, present, {}, false, 0, false, false, {}});
}

void Warp::fill_registers() {
  for (const Initial& initial : cta.cluster.machine.program.initials) {
    for (int lane = 0; lane < WARP; ++lane) {
      const uint64_t value = initial_value(initial, *this, lane);
      std::byte* place = registers + initial.place;
      switch (initial.bits) {
        case 1: {
          Lanes& mask = *reinterpret_cast<Lanes*>(place);
          mask = (mask & ~(1u << lane)) | uint32_t(value & 1) << lane;
          break;
        }
        case 16: reinterpret_cast<uint16_t*>(place)[lane] = uint16_t(value); break;
        case 32: reinterpret_cast<uint32_t*>(place)[lane] = uint32_t(value); break;
        default: reinterpret_cast<uint64_t*>(place)[lane] = value; break;
      }
    }
  }
}

std::byte* Warp::local(int lane) {
  const uint32_t bytes = cta.cluster.machine.program.local_bytes;
  if (!local_) {  // what is known of the bytes lies behind them
    local_.reset(new std::byte[size_t(bytes) * WARP * 2]);
    std::memset(local_.get(), POISON, size_t(bytes) * WARP);
    std::memset(local_.get() + size_t(bytes) * WARP, int(Known::Unwritten), size_t(bytes) * WARP);
  }
  return local_.get() + size_t(bytes) * lane;
}

Known* Warp::local_known(int lane) {
  const size_t bytes = cta.cluster.machine.program.local_bytes;
  return reinterpret_cast<Known*>(local(WARP) + bytes * lane);
}

std::byte* Warp::call(int lane) {
  const uint32_t bytes = cta.cluster.machine.program.call_bytes;
  if (!call_) {
    call_.reset(new std::byte[size_t(bytes) * WARP]);
    std::memset(call_.get(), POISON, size_t(bytes) * WARP);
  }
  return call_.get() + size_t(bytes) * lane;
}

bool Warp::runnable() const {
  const uint64_t version = cta.cluster.version;
  return std::any_of(groups.begin(), groups.end(), [version](const Group& group) {
    return !group.waits || group.since != version;
  });
}

int Warp::choose() {
  const uint64_t version = cta.cluster.version;
  for (int round = 0; round < 2; ++round) {
    int best = -1;
    for (size_t i = 0; i < groups.size(); ++i) {
      const Group& group = groups[i];
      if ((group.waits && group.since == version) || group.yielded) continue;
      if (best < 0 || group.at < groups[best].at) best = int(i);
    }
    if (best >= 0) return best;
    for (Group& group : groups) group.yielded = false;
  }
  return -1;
}

void Warp::join() {
  for (size_t i = 0; i < groups.size(); ++i) {
    for (size_t j = i + 1; j < groups.size();) {
      if (groups[i].at != groups[j].at || groups[i].returns != groups[j].returns) {
        ++j;
        continue;
      }
      groups[i].lanes |= groups[j].lanes;
      groups[i].waits = groups[i].timed_out = groups[i].yielded = false;
      groups.erase(groups.begin() + long(j));
    }
  }
}

void Warp::branch(Lanes taken, uint32_t target) {
  Group& group = groups[current];
  const Lanes rest = group.lanes & ~taken;
  if (!rest) {
    group.at = target;
    return;
  }
  Group other = group;
  group.lanes = rest;
  ++group.at;
  other.lanes = taken;
  other.at = target;
  groups.push_back(std::move(other));
}

void Warp::exit(Lanes lanes) {
  exited |= lanes;
  ++cta.cluster.version;
  Group& group = groups[current];
  group.lanes &= ~lanes;
  if (group.lanes) {
    ++group.at;
  } else {
    groups.erase(groups.begin() + current);
  }
}

uint32_t Warp::run(uint32_t budget, bool preempt) {
  try {
    return run_groups(budget, preempt);
  } catch (Failure& failure) {
    const Group& group = groups[current];
    if (!failure.line) failure.line = cta.cluster.machine.program.at(group.at).line;
    failure.fields.emplace("who", name(group.lanes));
    throw;
  }
}

uint32_t Warp::run_groups(uint32_t budget, bool preempt) {
  const Program& program = cta.cluster.machine.program;
  Cluster& cluster = cta.cluster;
  uint64_t* counts = cluster.counters.executed[index].data();
  uint32_t done = 0;
  while (done < budget) {
    const int chosen = choose();
    if (chosen < 0) break;
    current = uint32_t(chosen);
    bool same = true;  // the groups are as they were when this one was chosen
    while (same && done < budget) {
      Group& group = groups[current];
      const Instruction& code = program.instructions[group.at];
      if (preempt && done && code.synchronises) {
        executed += done;
        return done;
      }
      Lanes active = group.lanes;
      if (code.guard != NOWHERE) {
        const Lanes guard = *reinterpret_cast<const Lanes*>(registers + code.guard);
        active &= code.guard_negated ? ~guard : guard;
      }
      const size_t before = groups.size();
      Flow flow = Flow::Next;
      if (active) {
        Step step{*this,     code,   program.operands.data() + code.operands,
                  registers, active, group.timed_out};
        flow = code.execute(step);
      }
      if (flow == Flow::Wait) {
        group.waits = true;
        group.timed_out = false;
        group.since = cluster.version;
        break;
      }
      ++done;
      ++counts[code.operation_index];
      if (flow == Flow::Next && groups.size() == 1) {  // the common case
        ++group.at;
        group.waits = group.timed_out = false;
        continue;
      }
      if (flow != Flow::Jump) {
        ++group.at;
        group.waits = group.timed_out = false;
        group.yielded = flow == Flow::Yield;
      }
      if (groups.size() > 1) join();
      // Groups that are behind, or that this one has caught up with, come first.
      same = before == 1 && groups.size() == 1;
      if (flow == Flow::Yield) {
        polled = cluster.version;
        executed += done;
        return done;
      }
    }
  }
  executed += done;
  return done;
}

std::string Warp::name(Lanes lanes) const { return cta.name(1u << index, lanes); }

}  // namespace emu
