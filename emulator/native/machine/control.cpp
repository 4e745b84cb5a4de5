// Control flow: branches, calls, the end of threads.  PTX ISA, "Control Flow Instructions".
//
// Every branch may diverge; `.uni` promises that it does not and changes nothing.
#include <cstring>

#include "machine/cluster.hpp"
#include "machine/machine.hpp"
#include "machine/warp.hpp"
#include "memory/host_calls.hpp"

namespace emu {

namespace {

Flow branch(Step& step) {
  step.warp.branch(step.active, uint32_t(step.operand(0).value));
  return Flow::Jump;
}

// Lanes with different indices part; each turn takes those with the index of the first lane left.
Flow branch_indexed(Step& step) {
  const Operand& targets = step.operand(1);
  const uint32_t first = uint32_t(step.read(step.operand(0), lowest(step.active)));
  Lanes alike = 0;
  for_each(step.active, [&](int lane) {
    const uint64_t index = step.read(step.operand(0), lane);
    if (index >= targets.count) {
      throw Failure("BranchIndexError").with("index", int64_t(index)).with("count", targets.count);
    }
    if (index == first) alike |= 1u << lane;
  });
  Warp& warp = step.warp;
  const uint32_t at = warp.groups[warp.current].at;
  const bool partial = alike != step.active;
  warp.branch(alike, uint32_t(step.element(targets, first).value));
  if (partial) warp.groups[warp.current].at = at;  // the others take their turn at this instruction
  return Flow::Jump;
}

// Move what is passed between a call's variables and those of the function, for each lane.
void pass(Step& step, const std::vector<Operand>& declared, const Operand& given, bool back) {
  for (uint32_t i = 0; i < declared.size(); ++i) {
    const Operand& outer = step.element(given, i);
    for_each(step.active, [&](int lane) {
      std::byte* call = step.warp.call(lane);
      std::byte* inside = call + declared[i].value;
      std::byte* outside = call + outer.value;
      std::memcpy(back ? outside : inside, back ? inside : outside, outer.size);
    });
  }
}

const Function& called(const Step& step) {
  return step.machine().program.functions[step.operand(1).value];
}

Flow call(Step& step) {
  const Function& function = called(step);
  if (function.host) {
    call_host(step, function);
    return Flow::Next;
  }
  pass(step, function.parameters, step.operand(2), false);
  Warp& warp = step.warp;
  const uint32_t back = warp.groups[warp.current].at;
  const bool partial = step.active != warp.groups[warp.current].lanes;
  warp.branch(step.active, function.first);
  Group& entered = partial ? warp.groups.back() : warp.groups[warp.current];
  entered.returns.push_back(back);
  return Flow::Jump;
}

Flow leave(Step& step) {
  Warp& warp = step.warp;
  if (warp.groups[warp.current].returns.empty()) {
    warp.exit(step.active);
    return Flow::Jump;
  }
  const uint32_t back = warp.groups[warp.current].returns.back();
  const Program& program = step.machine().program;
  const Instruction& site = program.at(back);
  const Operand* operands = program.operands.data() + site.operands;
  pass(step, program.functions[operands[1].value].returns, operands[0], true);
  const bool partial = step.active != warp.groups[warp.current].lanes;
  warp.branch(step.active, back + 1);
  Group& returned = partial ? warp.groups.back() : warp.groups[warp.current];
  returned.returns.pop_back();
  return Flow::Jump;
}

Flow end(Step& step) {
  step.warp.exit(step.active);
  return Flow::Jump;
}

Flow trap(Step& step) {
  throw Failure("TrapError").with("instruction", step.operation().name);
}

// Time does not pass here, but others get their turn.
Flow sleep(Step&) { return Flow::Yield; }

Binding bind_branch(const Operation&) { return {branch}; }
Binding bind_indexed(const Operation&) { return {branch_indexed}; }
Binding bind_call(const Operation&) { return {call}; }
Binding bind_return(const Operation&) { return {leave}; }
Binding bind_exit(const Operation&) { return {end, true}; }
Binding bind_trap(const Operation&) { return {trap}; }
Binding bind_sleep(const Operation&) { return {sleep, true}; }

const Registration registration{
    {"bra", bind_branch},  {"brx.idx", bind_indexed}, {"call", bind_call},
    {"ret", bind_return},  {"exit", bind_exit},       {"trap", bind_trap},
    {"brkpt", bind_trap},  {"nanosleep", bind_sleep},
};

}  // namespace

}  // namespace emu
