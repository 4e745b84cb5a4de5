// Copies and reductions of consecutive bytes.  PTX ISA, "cp.async.bulk", "cp.reduce.async.bulk" and
// "cp.async.bulk.prefetch".
//
// What a copy reads it reads when it happens, not when it is issued; the bounds of global memory
// are checked at the issue.  The destinations of a multicast are reached one by one, in any order.
// A prefetch fetches nothing, and is checked for its alignment only.
#include <cstring>

#include "copies/bulk_groups.hpp"
#include "copies/bulk_issue.hpp"
#include "copies/bulk_reduction.hpp"
#include "copies/landing.hpp"
#include "machine/cluster.hpp"
#include "machine/machine.hpp"
#include "races/races.hpp"

namespace emu {

namespace {

constexpr uint32_t UNIT = 16;  // bytes, of which addresses and sizes are multiples

struct Extent {
  uint64_t global;  // address
  SharedPlace shared;
  uint32_t bytes;
};

void check(const Extent& extent) {
  check_multiple("the size", extent.bytes, UNIT);
  check_multiple("the global address", extent.global, UNIT);
  check_multiple("the shared address", extent.shared.offset, UNIT);
}

// What the bytes are is checked when they are read.
void check_inside(const SharedPlace& place, uint32_t bytes) {
  if (!place.cta->shared.holds(place.offset, bytes)) {
    reach_shared(*place.cta, place.offset, bytes, Touch::Read);  // which tells what is wrong
  }
}

const std::byte* read_source(const SharedPlace& from, uint32_t bytes) {
  if (!from.cta->threads_alive()) {
    throw Failure("ExitedSourceError").with("block", from.cta->name());
  }
  return reach_shared(*from.cta, from.offset, bytes, Touch::Read);
}

// d, a, size, barrier{, ctas}
template <Space space, bool multicast>
Flow load(Step& step) {
  Machine& machine = step.machine();
  Traffic& traffic = step.cluster().counters.traffic;
  for_each(step.active, [&](int lane) {
    const Extent extent{step.address(step.operand(1), lane),
                        shared_place(step, space, step.address(step.operand(0), lane)),
                        uint32_t(step.read(step.operand(2), lane))};
    check(extent);
    const SharedPlace barrier = shared_place(step, space, step.address(step.operand(3), lane));
    const Landings landings =
        multicast ? landings_in(step, extent.shared, barrier,
                                uint32_t(step.read(step.operand(4), lane)), Pairing::Same)
                  : landing_at(extent.shared, barrier, Pairing::Same);
    const uint32_t bytes = extent.bytes;
    const std::byte* from = reach_global(machine, extent.global, bytes, Touch::Read);
    traffic.bulk_loaded += bytes;
    traffic.multicast += bytes * (landings.size() - 1);
    for (const Landing& landing : landings) {
      const Races::Issued issued = announce(step, landing, bytes);
      if (Races* races = step.races()) {
        races->touch(issued, {}, extent.global, bytes, Touch::Read);
      }
      step.cluster().engines.defer(step, Engines::ANY, [landing, from, bytes]() {
        std::memcpy(landing.reach(bytes), from, bytes);
        landing.complete(bytes);
      });
    }
  });
  return Flow::Next;
}

// d, a, size, barrier: into another block of the cluster.  `reduce` is null for a copy.
Flow send(Step& step, Reduce reduce) {
  for_each(step.active, [&](int lane) {
    const auto place = [&](int operand, Space space) {
      return shared_place(step, space, step.address(step.operand(operand), lane));
    };
    const SharedPlace to = place(0, Space::SharedCluster);
    const SharedPlace from = place(1, Space::Shared);
    const uint32_t bytes = uint32_t(step.read(step.operand(2), lane));
    check({0, to, bytes});
    check({0, from, bytes});
    check_inside(from, bytes);
    if (to.cta == from.cta) throw Failure("SameBlockError").with("block", to.cta->name());
    const Landing landing = landing_at(to, place(3, Space::SharedCluster), Pairing::Same).front();
    const Races::Issued issued =
        announce(step, landing, bytes, reduce ? Meanwhile::Same : Meanwhile::Poison);
    if (Races* races = step.races()) {
      races->touch(issued, {Region::Is::Shared, from.cta}, from.offset, bytes, Touch::Read);
    }
    step.cluster().counters.traffic.cluster_written += bytes;
    step.cluster().engines.defer(step, Engines::ANY, [landing, from, bytes, reduce]() {
      const std::byte* source = read_source(from, bytes);
      if (reduce) {
        reduce(landing.reach(bytes, Touch::Atomic), source, bytes);
      } else {
        std::memcpy(landing.reach(bytes), source, bytes);
      }
      landing.complete(bytes);
    });
  });
  return Flow::Next;
}

Flow copy_to_block(Step& step) { return send(step, nullptr); }

template <class F, class T>
Flow reduce_to_block(Step& step) {
  return send(step, reduce_elements<F, T>);
}

// Of the bytes of a copy, those that .cp_mask names in each 16.
void copy_masked(std::byte* to, const std::byte* from, size_t bytes, uint32_t mask) {
  for (size_t i = 0; i < bytes; ++i) {
    if (mask >> i % UNIT & 1) to[i] = from[i];
  }
}

// d, a, size{, policy}{, mask}: to global memory
Flow store(Step& step, Reduce reduce, const Operand* mask_operand) {
  Machine& machine = step.machine();
  Traffic& traffic = step.cluster().counters.traffic;
  const BulkIssue issue(step);
  for_each(step.active, [&](int lane) {
    const Extent extent{step.address(step.operand(0), lane),
                        shared_place(step, Space::Shared, step.address(step.operand(1), lane)),
                        uint32_t(step.read(step.operand(2), lane))};
    check(extent);
    const uint32_t bytes = extent.bytes;
    const uint32_t mask = mask_operand ? uint32_t(step.read(*mask_operand, lane)) : 0xFFFF;
    std::byte* to = reach_global(machine, extent.global, bytes, Touch::Write);
    check_inside(extent.shared, bytes);
    (reduce ? traffic.bulk_reduced : traffic.bulk_stored) += bytes;
    if (Races* races = step.races()) {
      races->touch(issue.reads, {Region::Is::Shared, extent.shared.cta}, extent.shared.offset,
                   bytes, Touch::Read);
      races->touch(issue.writes, {}, extent.global, bytes, reduce ? Touch::Atomic : Touch::Write);
    }
    step.warp.bulk_groups.issue(
        step, lane,
        [from = extent.shared, bytes]() {
          const std::byte* source = reach_shared(*from.cta, from.offset, bytes, Touch::Read);
          return BulkGroups::Bytes(source, source + bytes);
        },
        [to, reduce, mask, &machine](const BulkGroups::Bytes& data) {
          if (reduce) {
            reduce_global(machine, reduce, to, data.data(), data.size());
          } else if (mask == 0xFFFF) {
            std::memcpy(to, data.data(), data.size());
          } else {
            copy_masked(to, data.data(), data.size(), mask);
          }
        });
  });
  return Flow::Next;
}

Flow copy_to_global(Step& step) { return store(step, nullptr, nullptr); }

template <class F, class T>
Flow reduce_to_global(Step& step) {
  return store(step, reduce_elements<F, T>, nullptr);
}

Flow copy_masked_to_global(Step& step) {
  return store(step, nullptr, &step.operand(int(step.operation().roles.size()) - 1));
}

Flow prefetch(Step& step) {
  for_each(step.active, [&](int lane) {
    check({step.address(step.operand(0), lane), {}, uint32_t(step.read(step.operand(1), lane))});
  });
  return Flow::Next;
}

Binding bind_copy(const Operation& op) {
  const bool multicast = op.has("multicast");
  const std::string& to = op.space("d");
  const std::string& from = op.space("a");
  if (to == "global") return {op.has("cp_mask") ? copy_masked_to_global : copy_to_global, true};
  if (from != "global") return {copy_to_block, true};
  if (to == "shared") return {load<Space::Shared, false>, true};
  return {multicast ? load<Space::SharedCluster, true> : load<Space::SharedCluster, false>, true};
}

Binding bind_reduce(const Operation& op) {
  const std::string_view type = op.first_of({"b32", "bits_word", "summed_int", "summed_bulk", "u32",
                                             "word", "ordered_bulk", "narrow"});
  op.implied({"noftz"});  // of f16 and bf16, which have it always
  const bool global = op.space("d") == "global";
  return {with_bulk_reduction(reduction_of(op), type,
                              [global](auto f, auto as) -> Execute {
                                using F = decltype(f);
                                using T = typename decltype(as)::type;
                                return global ? reduce_to_global<F, T> : reduce_to_block<F, T>;
                              }),
          true};
}

Binding bind_prefetch(const Operation& op) {
  op.implied({"L2"});  // where to
  return {prefetch};
}

const Registration registration{
    {"cp.async.bulk", bind_copy},
    {"cp.reduce.async.bulk", bind_reduce},
    {"cp.async.bulk.prefetch", bind_prefetch},
};

}  // namespace

}  // namespace emu
