// What instructions ask of the step that they are in.
#include "machine/step.hpp"

#include "machine/cluster.hpp"
#include "machine/machine.hpp"
#include "machine/warp.hpp"

namespace emu {

namespace {

std::string describe_lanes(const Waiting& waiting) {
  return "lanes of its own warp, mask " + hexadecimal(waiting.object);
}

}  // namespace

const Operand& Step::element(const Operand& of, uint32_t index) const {
  const uint32_t first = of.is == Operand::Is::Tensor ? of.elements : of.place;
  return machine().program.operands[first + index];
}

uint64_t Step::read(const Operand& operand, int lane) const {
  switch (operand.bits) {
    case 1: return predicate(operand) >> lane & 1;
    case 16: return lanes<uint16_t>(operand)[lane];
    case 32: return lanes<uint32_t>(operand)[lane];
    default: return lanes<uint64_t>(operand)[lane];
  }
}

void Step::write(const Operand& operand, int lane, uint64_t value) const {
  switch (operand.bits) {
    case 16: lanes<uint16_t>(operand)[lane] = uint16_t(value); break;
    case 32: lanes<uint32_t>(operand)[lane] = uint32_t(value); break;
    default: lanes<uint64_t>(operand)[lane] = value; break;
  }
}

uint64_t Step::uniform(const Operand& operand) const {
  const bool is_address = operand.is == Operand::Is::Address;
  const auto value_in = [&](int lane) {
    return is_address ? address(operand, lane) : read(operand, lane);
  };
  const int first = lowest(active);
  const uint64_t value = value_in(first);
  for_each(active, [&](int lane) {
    const uint64_t other = value_in(lane);
    if (other == value) return;
    throw Failure("NotUniformError")
        .hex("first", value)
        .with("first_lane", first)
        .hex("other", other)
        .with("other_lane", lane);
  });
  return value;
}

uint64_t Step::address(const Operand& operand, int lane) const {
  if (operand.place == NOWHERE) return uint64_t(operand.value);
  const uint64_t base = read(operand, lane);
  const uint64_t sum = base + uint64_t(operand.value);
  return operand.bits == 32 ? uint32_t(sum) : sum;
}

Cta& Step::cta() const { return warp.cta; }
Cluster& Step::cluster() const { return warp.cta.cluster; }
Machine& Step::machine() const { return warp.cta.cluster.machine; }
Races* Step::races() const { return warp.cta.cluster.races.get(); }

bool Step::together(Lanes members) const { return (members & warp.alive() & ~active) == 0; }

Flow Step::wait_for_lanes(Lanes members) const {
  return wait_for({describe_lanes, &warp.cta, members & warp.alive() & ~active, 0, false});
}

bool Step::aligned() const {
  if (active == warp.alive()) return true;
  if (warp.groups[warp.current].lanes != warp.alive()) return false;
  throw Failure("NotAlignedError").hex("lanes", active).hex("missing", warp.alive() & ~active);
}

Flow Step::wait_for(const Waiting& waiting) const {
  warp.groups[warp.current].waiting = waiting;
  return Flow::Wait;
}

void Step::effect() const { ++cluster().version; }

}  // namespace emu
