// Running a grid: workers take clusters, run them in turns, and begin others when all of theirs
// wait for something that another cluster has to do.
#include "machine/machine.hpp"

#include <algorithm>
#include <functional>
#include <thread>
#include <utility>

#include "machine/schedules.hpp"
#include "matrices/tensor_memory.hpp"
#include "races/global_races.hpp"
#include "races/races.hpp"

namespace emu {

Machine::Machine(const Program& program, LaunchShape shape, std::vector<std::byte> parameters,
                 GlobalMemory& global, Options options)
    : program(program),
      shape(shape),
      parameters(std::move(parameters)),
      global(global),
      module_global(program.global.bytes),
      options(options) {
  if (options.races) global_races = std::make_unique<GlobalRaces>();
}

Machine::~Machine() = default;

uint32_t Machine::clusters() const { return shape.grid.count() / shape.cluster.count(); }

uint32_t Machine::take_cluster() {
  const uint32_t total = clusters();
  uint32_t number = next_.load();
  while (number < total && !next_.compare_exchange_weak(number, number + 1)) {
  }
  return number < total ? number : NOWHERE;
}

Dim3 Machine::cluster_index(uint32_t number) const {
  const uint32_t x = shape.grid.x / shape.cluster.x;
  const uint32_t y = shape.grid.y / shape.cluster.y;
  return {number % x, number / x % y, number / (x * y)};
}

void Machine::run() {
  const uint32_t workers = std::max(1u, std::min(options.workers, clusters()));
  std::vector<Counters> counted(workers);
  const auto worker = [this](Counters& own) {
    try {
      work(own);
    } catch (...) {  // what was counted up to here is told, too
      const std::lock_guard<std::mutex> lock(failed_mutex_);
      if (!failed_) failed_ = std::current_exception();
      stop_ = true;
    }
  };
  std::vector<std::thread> threads;
  for (uint32_t i = 1; i < workers; ++i) threads.emplace_back(worker, std::ref(counted[i]));
  worker(counted[0]);
  for (std::thread& thread : threads) thread.join();
  for (const Counters& each : counted) counters.add(each);
  if (failed_) std::rethrow_exception(failed_);
}

void Machine::work(Counters& counted) {
  const bool mixed = options.schedule == Schedule::Random || options.schedule == Schedule::Priority;
  const uint32_t room = std::max(1u, options.sms / shape.cluster.count() / options.workers);
  const uint32_t usual = std::min(mixed ? 2u : 1u, room);
  std::vector<std::unique_ptr<Cluster>> resident;
  // Which of them have only spun since anything changed: in short turns not all do in one round.
  std::vector<char> spun;
  uint64_t vain = 0;  // times that every cluster only spun, since anything changed anywhere
  uint64_t seen = 0;
  while (!stop_) {
    while (resident.size() < usual && begin_cluster(resident, counted)) {
    }
    if (resident.empty()) return;
    spun.resize(resident.size());
    bool changed = false;
    for (size_t i = 0; i < resident.size();) {
      const uint64_t before = resident[i]->version;
      const uint64_t executed = resident[i]->executed;
      const Cluster::State state = resident[i]->run(turn(mixed));
      if (state == Cluster::State::Stuck) resident[i]->report_deadlock();
      executed_ += resident[i]->executed - executed;
      if (state != Cluster::State::Done && executed_ > options.max_instructions) {
        resident[i]->report_limit();
      }
      changed |= resident[i]->version != before || state == Cluster::State::Done;
      if (state == Cluster::State::Spinning) spun[i] = true;
      if (state == Cluster::State::Done) {
        resident.erase(resident.begin() + long(i));
        spun.erase(spun.begin() + long(i));
      } else {
        ++i;
      }
    }
    if (changed) {
      ++changes_;
      std::fill(spun.begin(), spun.end(), false);
      continue;
    }
    if (std::find(spun.begin(), spun.end(), false) != spun.end()) continue;
    std::fill(spun.begin(), spun.end(), false);
    const uint64_t changes = changes_;
    if (changes != seen) vain = 0;
    seen = changes;
    if (++vain % PATIENCE == 0) {
      // They may wait for any other cluster, of a whole grid too: the number doubles.
      const size_t wanted = std::min<size_t>(room, 2 * resident.size());
      const size_t before = resident.size();
      while (resident.size() < wanted && begin_cluster(resident, counted)) {
      }
      if (resident.size() != before) vain = 0;
    }
    if (vain >= std::max(VAIN_TURNS / 10, VAIN_TURNS / resident.size())) {
      resident.front()->report_deadlock();
    }
    std::this_thread::yield();
  }
}

uint64_t Machine::turn(bool mixed) const {
  const uint64_t executed = executed_, limit = options.max_instructions;
  return std::min(mixed ? MIXED_TURN : TURN, limit > executed ? limit - executed : 1);
}

bool Machine::begin_cluster(std::vector<std::unique_ptr<Cluster>>& resident, Counters& counted) {
  const uint32_t number = take_cluster();
  if (number == NOWHERE) return false;
  resident.push_back(std::make_unique<Cluster>(*this, number, counted));
  return true;
}

}  // namespace emu
