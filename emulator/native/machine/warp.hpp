// A warp: its registers, and where each of its lanes is in the program.
//
// Lanes at one place form a group that executes together.  Groups split at branches, and join when
// they meet at one instruction; the group that is furthest behind runs first, since the others may
// wait for it further down.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "copies/bulk_groups.hpp"
#include "machine/step.hpp"
#include "matrices/wgmma_groups.hpp"
#include "memory/async_copies.hpp"
#include "memory/memory.hpp"
#include "sync/register_budget.hpp"

namespace emu {

struct Group {
  uint32_t at = 0;  // index of the next instruction
  Lanes lanes = 0;
  std::vector<uint32_t> returns;  // where the calls that it is in go back to
  bool waits = false;
  uint64_t since = 0;      // Cluster::version when it began to wait
  bool timed_out = false;  // gives up waiting, where its instruction can
  bool yielded = false;    // other groups of the warp come first
  Waiting waiting;
};

class Warp {
 public:
  Warp(Cta& cta, uint32_t index, Lanes present);

  Cta& cta;
  uint32_t index;        // in its block
  uint32_t agent = 0;    // among the cluster's warps, and for the race detector
  Lanes present;         // lanes that are threads of the block
  Lanes exited = 0;
  Lanes carry = 0;       // CC.CF, which add.cc and its relatives write and read
  Lanes released = 0;    // by lanes that met them at another bar.warp.sync
  uint64_t executed = 0; // instructions
  uint64_t clock = 0;    // what it last read of one
  uint64_t polled = 0;   // Cluster::version when it last yielded
  RegisterBudget register_budget;
  BulkGroups bulk_groups;  // copies from shared to global memory
  std::byte* registers = nullptr;
  std::vector<Group> groups;
  uint32_t current = 0;  // the group that runs
  AsyncCopies copies;    // of cp.async
  WgmmaGroups wgmma;

  // Local memory and variables of space call, of one thread; the sizes are the program's.
  std::byte* local(int lane);
  Known* local_known(int lane);
  std::byte* call(int lane);

  bool done() const { return groups.empty(); }
  Lanes alive() const { return present & ~exited; }
  // Whether some group can go on, given what changed since it began to wait.
  bool runnable() const;
  // Run up to `budget` instructions; stops behind one that yields, at one that waits, and, with
  // `preempt`, before one that synchronises.  Returns how many were executed.
  uint32_t run(uint32_t budget, bool preempt);

  // For control flow: some lanes of the group that runs go on elsewhere, the others behind the
  // instruction.
  void branch(Lanes taken, uint32_t target);
  void exit(Lanes lanes);
  // "block (0, 0, 0), warp 3, lanes 0-31", for reports.
  std::string name(Lanes lanes) const;

 private:
  std::unique_ptr<std::byte[]> file_, local_, call_;

  void fill_registers();
  void join();
  int choose();
  uint32_t run_groups(uint32_t budget, bool preempt);
};

}  // namespace emu
