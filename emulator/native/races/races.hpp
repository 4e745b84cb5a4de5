// The race detector of a cluster: conflicting accesses must be ordered by happens-before.
//
// Every access is checked when its instruction is issued, whatever the schedule: those of an
// asynchronous operation too, which count as made by an agent of its own from then until the object
// that completes it is waited for.  So a missing wait is found even where everything happens to be
// in time.  docs/emulator.md has the rules as a table.
//
// Calls are made only when races are checked (`Step::races()` is not null).
#pragma once

#include <cstdint>
#include <memory>

#include "machine/engines.hpp"
#include "machine/step.hpp"
#include "memory/access.hpp"
#include "races/clock.hpp"

namespace emu {

struct Mbarrier;

// What the clusters of a grid share: accesses to global memory, and what strong ones pass on.
class GlobalRaces;

// A memory that accesses may race in.
struct Region {
  enum class Is : uint8_t { Shared, Tensor, Global };
  Is is = Is::Global;
  Cta* owner = nullptr;  // of shared and tensor memory
};

// What a store is about to write.
class Rewriting {
 public:
  // Whether these bytes of global memory have the values already that they are given.
  virtual bool same(uint64_t address, uint32_t bytes) const = 0;

 protected:
  ~Rewriting() = default;
};

class Races {
 public:
  explicit Races(Cluster& cluster);
  ~Races();
  void begin();  // the blocks and warps of the cluster are there

  // Streams of asynchronous operations, one of each kind for each warp.
  enum class Stream : uint8_t {
    BulkRead,    // what bulk copies to global memory read, until wait_group.read
    BulkWrite,   // what they write, until wait_group
    AsyncCopy,   // cp.async
    Wgmma,
    TensorCore,  // tcgen05.mma, cp, shift: they happen in the order in which they are issued
    TensorStore, // tcgen05.st
  };

  // An asynchronous operation: who it is, and what its warp knew when it was issued.  It is used
  // within the step that issues it.
  struct Issued {
    uint32_t agent = 0, time = 0, line = 0;
    const Clock* knows = nullptr;
    bool async_proxy = true;  // cp.async is of the generic proxy
  };

  // ---- accesses
  // By the warp itself, in an ordinary instruction.  Atomic accesses, and those that `strong` is
  // told of, do not conflict with each other.  Nor do stores to global memory that leave the
  // `values` as the earlier one made them, whoever of the two comes first.
  void touch(const Step& step, const Region& region, uint64_t offset, uint64_t bytes, Touch touch,
             const Rewriting* values = nullptr);
  // By an asynchronous operation that completes on an mbarrier, in its phase of now.
  Issued issue(const Step& step, const Mbarrier& barrier);
  // By the next operation of a stream of this warp.
  Issued issue(const Step& step, Stream stream, bool async_proxy = true);
  void touch(const Issued& by, const Region& region, uint64_t offset, uint64_t bytes, Touch touch);

  // ---- synchronisation
  // Everything that this warp knows goes into an object, or comes out of it.
  void release(const Step& step, Clock& into);
  // A relaxed arrival passes on what came before the warp's last fence for all of the cluster.
  void release_fenced(const Step& step, Clock& into);
  void acquire(const Step& step, const Clock& from);
  // A strong access (relaxed, acquire, release, volatile) or an atomic one, at most 16 bytes, which
  // may synchronise with others at the same place: it is touched, and clocks go both ways, between
  // threads that are in each other's scopes.
  struct Order {
    Scope scope = Scope::Gpu;
    bool reads = false, writes = false;       // what it does
    bool acquires = false, releases = false;  // by itself; else a fence before or after it can
  };
  void strong(const Step& step, const Region& region, uint64_t offset, uint64_t bytes, Order order);
  // A fence within the generic proxy.  One that releases: relaxed accesses behind it release what
  // came before it.  One that acquires: it makes known what relaxed accesses before it have seen.
  struct Fence {
    Scope scope = Scope::Gpu;
    bool acquires = true, releases = true;
  };
  void fence(const Step& step, Fence fence);
  // The fence of which relaxed accesses behind it release the initialisations of mbarriers alone.
  void fence_mbarrier_init(const Step& step);
  // A fence between the proxies: what the warp knows becomes visible to the async proxy.
  void fence_async(const Step& step, ProxySpace space);
  // How far a stream of this warp has come; `complete` makes all up to there known.
  uint32_t mark(const Step& step, Stream stream);
  void complete(const Step& step, Stream stream, uint32_t mark);
  // The same for a stream of another warp of the cluster.
  void complete(const Step& step, Stream stream, uint32_t mark, const Warp& of);
  // What an object gets to which a stream's completion is committed: the warp's clock, with
  // everything that the stream was given so far.
  Clock committed(const Step& step, Stream stream);
  // An mbarrier is initialised; a phase of it ends.
  void made(const Step& step, Cta& owner, uint32_t offset, Mbarrier& barrier);
  void phase_completed(Mbarrier& barrier);
  // A warp arrives at it, has seen one of its phases, or issues what completes on it: before it
  // gets to know what that phase passes on, it has to know of the initialisation.
  void use(const Step& step, Cta& owner, uint32_t offset, const Mbarrier& barrier);

  // A block has ended.  Throws where what others have done with its shared memory, or copies into
  // it, need not have happened by then.
  void check_end(const Cta& cta) const;

  // An allocation of tensor memory is given back: what follows is unrelated.
  void forget(const Region& region, uint64_t offset, uint64_t bytes);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace emu
