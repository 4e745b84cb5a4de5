#include "sync/register_budget.hpp"

#include <algorithm>
#include <string>

#include "machine/cluster.hpp"
#include "machine/machine.hpp"

namespace emu {

namespace {

constexpr uint32_t OF_AN_SM = 1 << 16;  // 32-bit registers, on sm_90 and sm_100
constexpr uint32_t LEAST = 24, MOST = 256, UNIT = 8;  // of a thread
constexpr uint32_t GROUP = 4;  // warps of a warpgroup

uint32_t as_compiled(const Step& step) {
  if (const uint32_t named = step.machine().shape.registers) return named;
  const uint32_t threads = uint32_t(step.cta().warps.size()) * WARP;
  return std::min(MOST, OF_AN_SM / threads / UNIT * UNIT);
}

std::string describe_wait(const Waiting& waiting) {
  return std::to_string(waiting.object) + " registers from the pool of " + waiting.cta->name() +
         ", which has " + std::to_string(waiting.cta->registers_free);
}

void check_count(uint32_t wanted) {
  if (wanted >= LEAST && wanted <= MOST && wanted % UNIT == 0) return;
  throw Failure("RegisterCountError")
      .with("count", wanted)
      .with("least", LEAST)
      .with("most", MOST)
      .with("unit", UNIT);
}

// Call f(warp) for the other warps of a warp's group.
template <class F>
void for_each_mate(const Warp& warp, F&& f) {
  for (const auto& other : warp.cta.warps) {
    if (other->index / GROUP == warp.index / GROUP && other->index != warp.index) f(*other);
  }
}

const char* verb(bool gives) { return gives ? "setmaxnreg.dec" : "setmaxnreg.inc"; }

// Another warp of the group has executed the other one, so far.
void check_mates(const Warp& warp, bool gives) {
  const size_t number = warp.register_budget.gave.size();
  for_each_mate(warp, [&](const Warp& mate) {
    const std::vector<bool>& gave = mate.register_budget.gave;
    if (gave.size() <= number || gave[number] == gives) return;
    throw Failure("WarpgroupRegistersError")
        .with("warp", warp.name(warp.alive()))
        .with("does", verb(gives))
        .with("other", mate.name(mate.present))
        .with("other_does", verb(!gives));
  });
}

template <bool gives>
Flow set_registers(Step& step) {
  if (!step.aligned()) return step.wait_for_lanes(ALL_LANES);
  const uint32_t wanted = uint32_t(step.operand(0).value);
  check_count(wanted);
  RegisterBudget& budget = step.warp.register_budget;
  uint32_t& own = budget.per_thread;
  if (!own) {
    own = as_compiled(step);
    const bool named = step.machine().shape.registers;
    if (!gives && !named) own = std::min(own, wanted);
  }
  if (gives && wanted > own) {
    throw Failure("RegisterGiveError").with("count", wanted).with("own", own);
  }
  if (!gives && wanted < own) {
    throw Failure("RegisterTakeError").with("count", wanted).with("own", own);
  }
  uint32_t& pool = step.cta().registers_free;
  if (gives) {
    pool += (own - wanted) * WARP;
    step.effect();
  } else {
    const uint32_t missing = (wanted - own) * WARP;
    if (missing > pool) return step.wait_for({describe_wait, &step.cta(), missing, 0, false});
    pool -= missing;
  }
  check_mates(step.warp, gives);
  budget.gave.push_back(gives);
  own = wanted;
  return Flow::Next;
}

Binding bind_set_registers(const Operation& op) {
  op.implied({"sync", "aligned"});  // which it always is
  return {op.get("inc_dec") == "dec" ? set_registers<true> : set_registers<false>, true};
}

const Registration registration{{"setmaxnreg", bind_set_registers}};

}  // namespace

void check_warpgroups(const Cta& cta) {
  for (const auto& warp : cta.warps) {
    const std::vector<bool>& gave = warp->register_budget.gave;
    for_each_mate(*warp, [&](const Warp& mate) {
      const std::vector<bool>& more = mate.register_budget.gave;
      if (gave.size() >= more.size()) return;
      throw Failure("WarpgroupRegistersError")
          .with("warp", warp->name(warp->present))
          .with("does", "exits")
          .with("other", mate.name(mate.present))
          .with("other_does", verb(more[gave.size()]));
    });
  }
}

}  // namespace emu
