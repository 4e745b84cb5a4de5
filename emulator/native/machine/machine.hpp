// A launch: the grid, what it was launched with, and the workers that run its clusters.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <vector>

#include "machine/cluster.hpp"
#include "machine/counters.hpp"
#include "memory/memory.hpp"
#include "program/program.hpp"

namespace emu {

class GlobalRaces;

enum class Schedule : uint8_t { Eager, Late, Random, Priority };

struct Options {
  Schedule schedule = Schedule::Eager;
  uint64_t seed = 0;
  uint32_t sms = 1;           // blocks that are resident at once
  uint32_t workers = 1;       // threads of the host
  uint64_t max_instructions = ~uint64_t{0};  // of all warps, after which a run is given up
  bool races = false;         // check for races
  bool uninitialised = true;  // reading bytes that nobody wrote is an error
};

struct LaunchShape {
  Dim3 grid, block, cluster;
  uint32_t dynamic_shared = 0;
  uint32_t max_shared = 0;     // of a block on this architecture
  uint32_t registers = 0;      // per thread as compiled, where the text says; else 0
};

class Machine {
 public:
  Machine(const Program& program, LaunchShape shape, std::vector<std::byte> parameters,
          GlobalMemory& global, Options options);
  ~Machine();

  const Program& program;
  LaunchShape shape;
  std::vector<std::byte> parameters;
  GlobalMemory& global;
  std::vector<std::byte> module_global;  // variables of the module in space global
  Options options;
  std::unique_ptr<GlobalRaces> global_races;  // null when races are not checked

  uint32_t clusters() const;  // in the grid
  // The number of a cluster that has not begun, which begins now (or, by cluster launch control,
  // never will); NOWHERE when there is none.
  uint32_t take_cluster();
  // Position of a block of a cluster in the grid.
  Dim3 cluster_index(uint32_t number) const;

  // Run to the end.  Throws Failure.
  void run();
  // Let a run end early, from another thread; what it has done stays done.
  void stop() { stop_ = true; }
  Counters counters;
  std::mutex global_mutex;  // atomic operations of several workers
  std::vector<std::string> printed;  // by vprintf
  std::mutex printed_mutex;

 private:
  // Instructions of a cluster's turn; short where clusters are to meet in many ways.
  static constexpr uint64_t TURN = 1 << 18, MIXED_TURN = 256;
  // Turns of Cluster::SPINNING instructions in which nothing changed: after how many other clusters
  // begin, and after how many nothing ever will (of one cluster; of many, a tenth is enough).
  static constexpr uint64_t PATIENCE = 25, VAIN_TURNS = 2500;

  std::atomic<uint32_t> next_{0};                 // the first cluster that has not begun
  std::atomic<uint64_t> changes_{0};              // turns that changed something, of all workers
  std::atomic<uint64_t> executed_{0};             // instructions, of all workers
  std::atomic<bool> stop_{false};
  std::mutex failed_mutex_;
  std::exception_ptr failed_;

  void work(Counters& counted);
  uint64_t turn(bool mixed) const;  // instructions of a cluster's next turn
  bool begin_cluster(std::vector<std::unique_ptr<Cluster>>& resident, Counters& counted);
};

}  // namespace emu
