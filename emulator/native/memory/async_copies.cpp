// cp.async and its groups.  PTX ISA, "Data Movement and Conversion Instructions: Asynchronous
// copy", the non-bulk ones.
//
// What a copy reads it reads when it happens.  Its destination is poison from when it is issued
// until then, and nobody may touch it.  The part of the destination beyond the source's size is
// filled with zeros; a source of no bytes may have any address.
//
// Deliberately does not do bulk copies (`copies/`).
#include "memory/async_copies.hpp"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "machine/cluster.hpp"
#include "machine/machine.hpp"
#include "machine/step.hpp"
#include "memory/access.hpp"
#include "memory/locate.hpp"
#include "program/operation.hpp"
#include "races/races.hpp"
#include "sync/shared_place.hpp"

namespace emu {

// ---- the sequence of copies

void AsyncCopies::issue(Lanes lanes) {
  ++issued_;
  for_each(lanes, [this](int lane) { last_[size_t(lane)] = issued_; });
}

uint64_t AsyncCopies::last_of(Lanes lanes) const {
  uint64_t last = 0;
  for_each(lanes, [&](int lane) { last = std::max(last, last_[size_t(lane)]); });
  return last;
}

void AsyncCopies::commit(Lanes lanes, uint32_t mark) {
  groups_.push_back({lanes, {last_of(lanes), mark}});
}

AsyncCopies::Point AsyncCopies::before_latest(Lanes lanes, uint64_t left) const {
  Point point;
  std::array<uint64_t, WARP> skipped{};
  for (size_t i = groups_.size(); i--;) {
    const Group& group = groups_[i];
    bool counts = false;
    for_each(group.lanes & lanes, [&](int lane) { counts |= skipped[size_t(lane)]++ >= left; });
    if (!counts) continue;
    point.number = std::max(point.number, group.last.number);
    point.mark = std::max(point.mark, group.last.mark);
  }
  return point;
}

void AsyncCopies::forget(Lanes lanes, uint64_t number) {
  for (Group& group : groups_) {
    if (group.last.number <= number) group.lanes &= ~lanes;
  }
  groups_.erase(std::remove_if(groups_.begin(), groups_.end(),
                               [](const Group& group) { return group.lanes == 0; }),
                groups_.end());
}

namespace {

// ---- cp.async [d], [a], size, src_size

// What one lane copies.
struct Piece {
  uint64_t from = 0;
  uint32_t to = 0;  // offset in shared memory
  uint32_t bytes = 0;
};
using Pieces = std::array<Piece, WARP>;

constexpr int SIZE = 2, SOURCE_SIZE = 3;

void report(const Step& step, const Pieces& pieces, uint32_t size) {
  Races& races = *step.races();
  const Races::Issued by = races.issue(step, Races::Stream::AsyncCopy, false);
  const Region global{Region::Is::Global, nullptr}, shared{Region::Is::Shared, &step.cta()};
  for_each(step.active, [&](int lane) {
    const Piece& piece = pieces[size_t(lane)];
    if (piece.bytes) races.touch(by, global, piece.from, piece.bytes, Touch::Read);
    races.touch(by, shared, piece.to, size, Touch::Write);
  });
}

// Where the lanes read from; a lane that reads fewer bytes than the size is checked by itself.
void find_sources(const Step& step, uint32_t size, Pieces& pieces) {
  bool whole = true;
  for_each(step.active, [&](int lane) { whole &= pieces[size_t(lane)].bytes == size; });
  const Access access{Space::Global, size, Touch::Read, nullptr};
  Reached reached;
  if (whole) {
    locate_lanes(step, access, step.operand(1), reached);
  } else {
    read_addresses(step, step.operand(1), reached.at);
  }
  for_each(step.active, [&](int lane) {
    Piece& piece = pieces[size_t(lane)];
    piece.from = reached.at[lane];
    if (piece.bytes > size) {
      throw Failure("CopySizeError")
          .with("size", size)
          .with("source", int64_t(piece.bytes))
          .with("sizes", "4, 8 and 16");
    }
    if (whole || piece.bytes == 0) return;
    if (piece.from % size) locate(step, access, piece.from, lane);  // throws
    reach_global(step.machine(), piece.from, piece.bytes, Touch::Read);
  });
}

// Where they write to, which is poison from now on.
void find_destinations(const Step& step, uint32_t size, Pieces& pieces) {
  Reached reached;
  locate_lanes(step, {Space::Shared, size, Touch::Write, nullptr}, step.operand(0), reached);
  SharedMemory& shared = step.cta().shared;
  for_each(step.active, [&](int lane) {
    const uint32_t offset = uint32_t(reached[lane] - shared.at(0));
    pieces[size_t(lane)].to = offset;
    shared.poison(offset, size, Known::InFlight);
  });
}

void copy(Cta& cta, const Pieces& pieces, Lanes lanes, uint32_t size) {
  for_each(lanes, [&](int lane) {
    const Piece& piece = pieces[size_t(lane)];
    std::byte* to = reach_shared(cta, piece.to, size, Touch::Write);
    if (piece.bytes) std::memcpy(to, reinterpret_cast<const void*>(piece.from), piece.bytes);
    std::memset(to + piece.bytes, 0, size - piece.bytes);
  });
}

Engines::Queue queue_of(const Warp& warp) {
  return Engines::queue(Engines::Kind::AsyncCopy, warp.cta.rank, warp.index);
}

template <bool SIZED>
Flow issue_copy(Step& step) {
  const uint32_t size = uint32_t(step.operand(SIZE).value);
  const uint32_t* source_size =
      SIZED && step.given(SOURCE_SIZE) ? step.lanes<uint32_t>(SOURCE_SIZE) : nullptr;
  Pieces pieces;
  for_each(step.active, [&](int lane) {
    pieces[size_t(lane)].bytes = source_size ? source_size[lane] : size;
  });
  find_sources(step, size, pieces);
  find_destinations(step, size, pieces);
  if (step.races()) report(step, pieces, size);
  step.cluster().counters.traffic.copied_in += uint64_t(size) * uint64_t(count(step.active));
  Warp& warp = step.warp;
  warp.copies.issue(step.active);
  step.cluster().engines.defer(step, queue_of(warp), [&warp, pieces, size, lanes = step.active] {
    copy(warp.cta, pieces, lanes, size);
    warp.copies.finish();
    ++warp.cta.cluster.version;
  });
  return Flow::Next;
}

Binding bind_copy(const Operation& op) {
  return {op.find("src_size") < 0 ? issue_copy<false> : issue_copy<true>, true};
}

// ---- groups

uint32_t mark(const Step& step) {
  return step.races() ? step.races()->mark(step, Races::Stream::AsyncCopy) : 0;
}

Flow commit(Step& step) {
  step.warp.copies.commit(step.active, mark(step));
  return Flow::Next;
}

std::string describe(const Waiting& waiting) {
  return "cp.async, of which " + std::to_string(waiting.object) + " of the warp have not copied";
}

Flow wait_until(Step& step, AsyncCopies::Point point) {
  AsyncCopies& copies = step.warp.copies;
  if (!copies.reached(point.number)) {
    return step.wait_for({describe, &step.cta(), copies.unfinished(), point.number, false});
  }
  copies.forget(step.active, point.number);
  if (step.races()) step.races()->complete(step, Races::Stream::AsyncCopy, point.mark);
  return Flow::Next;
}

Flow wait_group(Step& step) {
  const uint64_t left = uint64_t(step.operand(0).value);
  return wait_until(step, step.warp.copies.before_latest(step.active, left));
}

// Of copies in groups and of others.
Flow wait_all(Step& step) {
  return wait_until(step, {step.warp.copies.last_of(step.active), mark(step)});
}

// ---- arrival at an mbarrier

// The lanes arrive when all copies that they issued before have happened.  Without `.noinc` the
// phase that runs expects an arrival more of each, so that these leave its count as it is.
template <Space SPACE, bool INCREMENTS>
Flow arrive(Step& step) {
  uint64_t addresses[WARP];
  read_addresses(step, step.operand(0), addresses);
  std::array<uint32_t, WARP> offsets{};
  Cta& cta = step.cta();
  for_each(step.active, [&](int lane) {
    const SharedPlace place = shared_place(step, SPACE, addresses[lane]);
    Mbarrier& barrier = cta.mbarriers.at(place.offset);
    offsets[size_t(lane)] = place.offset;
    if (!INCREMENTS) return;
    if (barrier.pending >= Mbarrier::LIMIT) {
      throw Failure("PendingLimitError")
          .with("barrier", cta.mbarriers.describe(place.offset))
          .with("limit", Mbarrier::LIMIT);
    }
    ++barrier.pending;
  });
  Clock clock;
  if (step.races()) clock = step.races()->committed(step, Races::Stream::AsyncCopy);
  Warp& warp = step.warp;
  step.cluster().engines.defer(
      step, queue_of(warp),
      [&warp, offsets, lanes = step.active, clock = std::move(clock),
       races = step.races() != nullptr] {
        for_each(lanes, [&](int lane) {
          warp.cta.mbarriers.arrive(offsets[size_t(lane)], 1, races ? &clock : nullptr);
        });
        ++warp.cta.cluster.version;
      });
  return Flow::Next;
}

template <Space SPACE>
Execute arrive_in(bool increments) {
  return increments ? arrive<SPACE, true> : arrive<SPACE, false>;
}

Binding bind_arrive(const Operation& op) {
  const bool increments = !op.has("noinc");
  const bool generic = space_named(op.space("a")) == Space::Generic;
  return {generic ? arrive_in<Space::Generic>(increments) : arrive_in<Space::Shared>(increments),
          true};
}

Binding bind_commit(const Operation&) { return {commit}; }
Binding bind_wait_group(const Operation&) { return {wait_group, true}; }
Binding bind_wait_all(const Operation&) { return {wait_all, true}; }

const Registration registration{
    {"cp.async.ca", bind_copy},
    {"cp.async.cg", bind_copy},
    {"cp.async.commit_group", bind_commit},
    {"cp.async.wait_group", bind_wait_group},
    {"cp.async.wait_all", bind_wait_all},
    {"cp.async.mbarrier.arrive", bind_arrive},
};

}  // namespace

}  // namespace emu
