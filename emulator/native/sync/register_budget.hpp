// setmaxnreg: warps give registers back to their block and take them.  PTX ISA, "setmaxnreg".
//
// A block has the registers that it was launched with: those per thread that the text names
// (.maxnreg), or as many as fit the SM's 64K with all of its threads, in steps of 8.  What warps
// give back is the pool that others wait for.  Warps that exit give nothing back.  What fits is
// only the most that a kernel can have been compiled for: where the text names no number, the first
// setmaxnreg.inc of a warp may be to fewer (NVIDIA's GEMMs for sm_90 with 256 threads ask for 232).
//
// All warps of a warpgroup have to execute the same ones, says the PTX ISA.  Kernels that run on
// hardware give the warps of one group different numbers, each in its own branch (flash-attn-4's
// forward).  So the numbers are left to them; that each warp executes as many, and gives where the
// others give, is checked.
#pragma once

#include <cstdint>
#include <vector>

namespace emu {

class Cta;

// The registers of a warp's threads.
struct RegisterBudget {
  uint32_t per_thread = 0;  // 0: as compiled
  std::vector<bool> gave;   // for each setmaxnreg so far: whether it was a dec, else an inc
};

// At the end of a block: throws WarpgroupRegistersError.
void check_warpgroups(const Cta& cta);

}  // namespace emu
