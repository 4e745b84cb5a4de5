// setmaxnreg: warps give registers back to their block and take them.  PTX ISA, "setmaxnreg".
//
// A block has the registers that it was launched with: those per thread that the text names
// (.maxnreg), or as many as fit the SM's 64K with all of its threads, in steps of 8.  What warps
// give back is the pool that others wait for.  Warps that exit give nothing back.  What fits is
// only the most that a kernel can have been compiled for: where the text names no number, the first
// setmaxnreg.inc of a warp may be to fewer (NVIDIA's GEMMs for sm_90 with 256 threads ask for 232).
//
// Deliberately not checked: that all warps of a warpgroup execute the same setmaxnreg, as the PTX
// ISA asks.  Kernels that run on hardware give the warps of one group different numbers, each in
// its own branch (flash-attn-4's forward).
#include <algorithm>
#include <string>

#include "machine/cluster.hpp"
#include "machine/machine.hpp"

namespace emu {

namespace {

constexpr uint32_t OF_AN_SM = 1 << 16;  // 32-bit registers, on sm_90 and sm_100
constexpr uint32_t LEAST = 24, MOST = 256, UNIT = 8;  // of a thread

uint32_t as_compiled(const Step& step) {
  if (const uint32_t named = step.machine().shape.registers) return named;
  const uint32_t threads = uint32_t(step.cta().warps.size()) * WARP;
  return std::min(MOST, OF_AN_SM / threads / UNIT * UNIT);
}

std::string describe_wait(const Waiting& waiting) {
  return std::to_string(waiting.object) + " registers from the pool of " + waiting.cta->name() +
         ", which has " + std::to_string(waiting.cta->registers_free);
}

template <bool gives>
Flow set_registers(Step& step) {
  if (!step.aligned()) return step.wait_for_lanes(ALL_LANES);
  const uint32_t wanted = uint32_t(step.operand(0).value);
  if (wanted < LEAST || wanted > MOST || wanted % UNIT) {
    throw Failure("RegisterCountError")
        .with("count", wanted)
        .with("least", LEAST)
        .with("most", MOST)
        .with("unit", UNIT);
  }
  uint32_t& own = step.warp.registers_per_thread;
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
  own = wanted;
  return Flow::Next;
}

Binding bind_set_registers(const Operation& op) {
  op.has("sync"), op.has("aligned");  // which it always is
  return {op.get("inc_dec") == "dec" ? set_registers<true> : set_registers<false>, true};
}

const Registration registration{{"setmaxnreg", bind_set_registers}};

}  // namespace

}  // namespace emu
