// The objects that synchronise the threads of a cluster: mbarriers, named barriers, and the
// cluster's barrier.
//
// Instructions on them are in sync/*.cpp; engines arrive and complete transactions here too.  Each
// object carries the clocks of the race detector, which stay empty when races are not checked.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "machine/lanes.hpp"
#include "races/clock.hpp"

namespace emu {

class Cluster;
class Cta;
class Step;

// PTX ISA, "Contents of the mbarrier object".  A phase completes when neither arrivals nor
// transactions are pending.
struct Mbarrier {
  uint32_t expected = 0;      // arrivals of a phase
  uint32_t pending = 0;       // of them, those that have not come
  int64_t transactions = 0;   // bytes expected and not copied; negative while copies are ahead
  uint64_t phase = 0;         // number of phases that have completed
  uint32_t agent = 0;         // of the race detector
  uint32_t made_by = 0, made_at = 0, made_in_line = 0;  // who initialised it, for that
  Clock arriving, completed;  // of the phase that runs, and of all before it

  static constexpr uint32_t LIMIT = (1 << 20) - 1;  // of each of the three counts
  static constexpr uint32_t BYTES = 8;              // of shared memory, aligned to as much
};

class Mbarriers {
 public:
  explicit Mbarriers(Cta& cta) : cta_(cta) {}

  // Throws MbarrierCountError, MbarrierExistsError, and what `place` does.
  void init(const Step& step, uint32_t offset, uint32_t count);
  void inval(const Step& step, uint32_t offset);
  // Throws NoMbarrierError where none was initialised, MbarrierPlaceError for an offset that none
  // can have.
  Mbarrier& at(uint32_t offset);
  bool exists(uint32_t offset) const { return objects_.count(offset) != 0; }

  // Throws OverArrivalError, and UnexpectedBytesError if more was copied than is expected.  With
  // `drop` this and later phases expect as many less; throws DroppedAllError if that leaves none.
  void arrive(uint32_t offset, uint32_t count, const Clock* clock, bool drop = false);
  // Throws TransactionLimitError, `complete` UnexpectedBytesError too.
  void expect(uint32_t offset, uint32_t bytes);
  void complete(uint32_t offset, uint32_t bytes);
  std::string describe(uint32_t offset) const;  // its place and its state, for a report

  const std::map<uint32_t, Mbarrier>& all() const { return objects_; }

 private:
  Cta& cta_;
  std::map<uint32_t, Mbarrier> objects_;  // by offset in the block's shared memory
  void check_place(uint32_t offset) const;
  void advance(uint32_t offset, Mbarrier& barrier);
};

// One of the 16 barriers of a block.  It counts warps as 32 threads each: a warp comes when all of
// its threads that have not exited are here.
class NamedBarrier {
 public:
  enum class Use : uint8_t { Plain, And, Or, Count };  // which of bar.red, or none

  // What a group of lanes brings.
  struct Arrival {
    uint32_t threads = 0;  // that are to come; 0 for all of the block
    Use use = Use::Plain;
    bool waits = true;     // bar.arrive does not
    Lanes predicate = 0;   // of bar.red
  };

  // Lanes of a warp are here; those that came before and wait may come again.  True once all of
  // them may go on.  Throws what is wrong with the arrival.
  bool come(const Step& step, uint32_t number, const Arrival& arrival);
  // Of the generation whose lanes go on: what bar.red gives.
  uint32_t result(uint32_t warp) const { return results_[warp]; }
  std::string describe(const Cta& cta, uint32_t number) const;

  Clock arriving, completed;  // of the generation that runs, and of those before it

 private:
  static constexpr int WARPS = 32;  // of a block, at most
  // By warp: lanes that came and stay until the warp, or the barrier, is complete; those of them
  // that only arrive; lanes that may go on and have not yet.
  std::array<Lanes, WARPS> here_{}, arriving_{}, released_{};
  std::array<uint32_t, WARPS> results_{};
  uint32_t counted_ = 0;   // warps that have come, a bit for each
  uint32_t before_ = 0;    // those that arrived, and then came a second time to wait
  uint32_t expected_ = 0;  // threads; 0: nobody has come
  bool all_ = false;       // some came without a number of threads
  Use use_ = Use::Plain;
  uint32_t set_ = 0, cleared_ = 0;  // threads whose predicate is true, and is false

  void check(const Step& step, uint32_t number, const Arrival& arrival, Lanes fresh) const;
  uint32_t came() const;  // threads
  bool complete(const Cta& cta) const;
  void release();
};

// barrier.cluster: all threads of all blocks of the cluster that have not exited.
class ClusterBarrier {
 public:
  // Throws ClusterArrivalError for lanes that have not waited since their last arrival.
  void arrive(const Step& step);
  // Whether all have arrived; the lanes may then arrive again.  Throws ClusterWaitError for lanes
  // that have not arrived.
  bool wait(const Step& step);
  std::string describe(const Cluster& cluster) const;

  Clock arriving, completed;

 private:
  // By warp of the cluster: lanes that arrived in the phase that runs, and lanes that arrived in
  // one that is complete and have not waited for it.
  std::vector<Lanes> arrived_, complete_;

  void check_complete(const Cluster& cluster);
};

}  // namespace emu
