// Blocks and clusters while they run, and the loop that runs them.
//
// A cluster is what runs by itself: its blocks see each other's shared memory, and the engines, the
// race detector and the schedule are the cluster's.  Clusters meet in global memory only.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "machine/counters.hpp"
#include "machine/engines.hpp"
#include "machine/random.hpp"
#include "machine/warp.hpp"
#include "memory/memory.hpp"
#include "sync/barriers.hpp"

namespace emu {

class Agenda;
class Machine;
class Races;
class Tensors;  // the tensor memory of a block, see matrices/tensor_memory.hpp

struct Dim3 {
  uint32_t x = 1, y = 1, z = 1;
  uint32_t count() const { return x * y * z; }
};

class Cta {
 public:
  Cta(Cluster& cluster, uint32_t rank, Dim3 index);
  ~Cta();

  Cluster& cluster;
  uint32_t rank;   // in its cluster
  Dim3 index;      // %ctaid
  SharedMemory shared;
  Mbarriers mbarriers;
  std::array<NamedBarrier, 16> barriers;
  std::unique_ptr<Tensors> tensors;  // made at the first tcgen05.alloc
  std::vector<std::unique_ptr<Warp>> warps;
  uint32_t registers_free = 0;  // given back by setmaxnreg.dec, for setmaxnreg.inc

  // First address of this block's shared memory in state space shared::cluster.
  uint32_t window() const { return rank << 24; }
  uint32_t threads_alive() const;
  std::string name() const;  // "block (0, 0, 0)"
  // "block (0, 0, 0), warps 4-7, lanes 0-31"; warps are a bit for each.
  std::string name(uint32_t warps, Lanes lanes) const;
};

class Cluster {
 public:
  Cluster(Machine& machine, uint32_t number, Counters& counters);
  ~Cluster();

  Machine& machine;
  uint32_t number;  // in the grid
  Dim3 index;       // %clusterid
  Counters& counters;
  Engines engines;
  Random random;
  ClusterBarrier barrier;
  std::unique_ptr<Races> races;  // null when races are not checked
  std::vector<std::unique_ptr<Cta>> ctas;
  std::vector<Warp*> all_warps;  // of all blocks
  uint64_t version = 1;  // counts effects: changes that somebody may wait for
  uint64_t executed = 0;  // instructions of its warps, and pieces of asynchronous work
  uint64_t time = 0;     // that %clock and %globaltimer show: it passes when they are read

  enum class State : uint8_t {
    Done,
    Stuck,     // every warp waits, and no engine has work
    Spinning,  // warps run, but nothing has changed for long
    Ready,     // the budget is used up
  };
  // Run up to about `budget` instructions.
  State run(uint64_t budget);
  // Throws DeadlockError, which says where each warp is and what it waits for.
  [[noreturn]] void report_deadlock();
  // Throws InstructionLimitError, which says where each warp is.
  [[noreturn]] void report_limit();

 private:
  // Instructions without any effect after which it counts as spinning.
  static constexpr uint64_t SPINNING = 4'000;

  std::unique_ptr<Agenda> agenda_;
  uint64_t unchanged_ = 0;                 // instructions since the last effect
  uint64_t granted_at_ = 0;                // version when timeouts were last granted
  uint32_t timeouts_ = 0;                  // granted since then
  [[noreturn]] void report(Failure failure, const char* not_waiting) const;
  bool grant_timeouts();
  bool finished() const;
  void finish();
};

}  // namespace emu
