// Copies and reductions of boxes of tensors.  PTX ISA, "cp.async.bulk.tensor",
// "cp.reduce.async.bulk.tensor" and "cp.async.bulk.prefetch.tensor".
//
// Elements of a box that are outside of the tensor are filled in loads, and count among the bytes
// that complete; stores leave them out.  The map is read at the issue.  What a copy reads it reads
// when it happens; the bounds of global memory are checked at the issue.  The destinations of a
// multicast are reached one by one, in any order.  A prefetch fetches nothing.  Padding behind
// packed elements is written, with poison: what a GPU leaves there is nowhere said.
#include <cstring>
#include <string>

#include "copies/bulk_groups.hpp"
#include "copies/bulk_issue.hpp"
#include "copies/bulk_reduction.hpp"
#include "copies/landing.hpp"
#include "copies/tensor_box.hpp"
#include "machine/cluster.hpp"
#include "machine/machine.hpp"
#include "memory/locate.hpp"
#include "races/races.hpp"

namespace emu {

namespace {

constexpr uint32_t MAX_ROW = 256 * 8;  // bytes: elements of a box along an axis, of f64
constexpr uint16_t NAN_FILL = 0x7FF7;  // in every two bytes, whatever the type; seen on an H200

// Reductions, and the types of elements that the PTX ISA has them for.  Those of f32 flush
// subnormal numbers only where the map's type says so: an H200 does not flush others, though the
// PTX ISA says that sums do.
constexpr struct {
  std::string_view name, types;
} REDUCTIONS[] = {
    {"add", "u32 s32 u64 f32 f16 bf16"}, {"min", "u32 s32 u64 s64 f16 bf16"},
    {"max", "u32 s32 u64 s64 f16 bf16"}, {"inc", "u32"},
    {"dec", "u32"},                      {"and", "u32 s32 u64"},
    {"or", "u32 s32 u64"},               {"xor", "u32 s32 u64"},
};
constexpr int NO_REDUCTION = -1;

TensorBox box_of(const Step& step, const Operand& operand, int lane, bool stores) {
  const TensorMap map = read_tensor_map(step, step.address(operand, lane), lane);
  if (operand.count != map.rank) {
    throw Failure("TensorRankError").with("rank", map.rank).with("dimensions", operand.count);
  }
  TensorBox::Coordinates first{};
  for (uint32_t axis = 0; axis < map.rank; ++axis) {
    first[axis] = int32_t(step.read(step.element(operand, axis), lane));
  }
  return {map, first, stores};
}

// Check what of a box is inside of the tensor, and tell the race detector.
void reach_tensor(const Step& step, const TensorBox& box, Touch touch,
                  const Races::Issued* issued) {
  Machine& machine = step.machine();
  const TensorBox::Span span = box.span();
  const bool inside = in_global(machine, span.address, span.bytes);
  if (!span.bytes || (inside && !issued)) return;
  TensorBox::Span joined;  // rows that lie one behind the other
  const auto tell = [&]() {
    if (issued && joined.bytes) {
      step.races()->touch(*issued, {}, joined.address, joined.bytes, touch);
    }
  };
  box.for_each_row([&](const TensorBox::Row& row) {
    const uint32_t bytes = row.stop - row.start;
    if (!bytes) return;
    if (!inside) reach_global(machine, row.address, bytes, touch);
    if (joined.address + joined.bytes == row.address) {
      joined.bytes += bytes;
    } else {
      tell();
      joined = {row.address, bytes};
    }
  });
  tell();
}

// ---- loads

// f32 to the 19 bits of tf32, to nearest even; NaN is that of an H200.
void round_to_tf32(std::byte* at, uint32_t bytes) {
  for (uint32_t i = 0; i < bytes; i += 4) {
    uint32_t value;
    std::memcpy(&value, at + i, 4);
    if ((value & 0x7FFF'FFFF) > 0x7F80'0000) {
      value = 0x7FFF'E000;
    } else {
      value = (value + 0xFFF + (value >> 13 & 1)) & 0xFFFF'E000;
    }
    std::memcpy(at + i, &value, 4);
  }
}

// A row of the box as it is in shared memory, but for the order of its pieces.
void make_row(const TensorBox& box, const TensorBox::Row& row, std::byte* to) {
  const uint16_t filled = box.map().fills_nan ? NAN_FILL : 0;
  if (row.stop - row.start < box.row_bytes()) {
    for (uint32_t i = 0; i < box.row_bytes(); i += sizeof filled) {
      std::memcpy(to + i, &filled, sizeof filled);
    }
  }
  if (row.start == row.stop) return;
  const uint32_t bytes = row.stop - row.start;
  std::memcpy(to + row.start, reinterpret_cast<const std::byte*>(row.address), bytes);
  if (box.map().rounds) round_to_tf32(to + row.start, bytes);
}

// `from`, a piece of a row, to its place.
void put_piece(const TensorBox& box, const std::byte* from, uint32_t place, std::byte* to) {
  constexpr uint32_t half = TensorBox::PIECE / 2;
  const uint32_t packed = box.map().packed;
  if (packed == TensorBox::PIECE && !box.flipped(place)) {
    std::memcpy(to, from, TensorBox::PIECE);
  } else if (packed == TensorBox::PIECE) {
    std::memcpy(to, from + half, half);
    std::memcpy(to + half, from, half);
  } else {
    std::memcpy(to, from, packed);
    std::memset(to + packed, POISON, TensorBox::PIECE - packed);
  }
}

void load_box(const TensorBox& box, const Landing& landing) {
  SharedMemory& shared = landing.to.cta->shared;
  std::byte made[MAX_ROW];
  if (box.dense()) landing.reach(box.shared_bytes());
  box.for_each_row([&](const TensorBox::Row& row) {
    make_row(box, row, made);
    for (uint32_t piece = 0; piece < box.row_pieces(); ++piece) {
      const uint32_t at = box.place(landing.to.offset, row.index, piece * TensorBox::PIECE);
      std::byte* to = box.dense() ? shared.at(at) : landing.at(at).reach(TensorBox::PIECE);
      put_piece(box, made + piece * box.map().packed, at, to);
    }
  });
  landing.complete(box.bytes());
}

void announce_box(const Step& step, const TensorBox& box, const Landing& landing) {
  const Races::Issued issued = begin(step, landing);
  if (box.dense()) {
    occupy(step, issued, landing.to, box.shared_bytes());
  } else {  // between the rows the memory stays what it is
    box.for_each_row([&](const TensorBox::Row& row) {
      for (uint32_t piece = 0; piece < box.row_pieces(); ++piece) {
        const uint32_t at = box.place(landing.to.offset, row.index, piece * TensorBox::PIECE);
        occupy(step, issued, {landing.to.cta, at}, TensorBox::PIECE);
      }
    });
  }
  reach_tensor(step, box, Touch::Read, step.races() ? &issued : nullptr);
}

// d, tensor, barrier{, ctas}
template <Space space, bool multicast, Pairing pairing>
Flow load(Step& step) {
  // A pair's mbarrier may be in the other block of the pair, whatever the space is called.
  constexpr Space barrier_space = pairing == Pairing::Pair ? Space::SharedCluster : space;
  Cluster& cluster = step.cluster();
  for_each(step.active, [&](int lane) {
    const TensorBox box = box_of(step, step.operand(1), lane, false);
    const SharedPlace to = shared_place(step, space, step.address(step.operand(0), lane));
    check_multiple("the shared address of a box", to.offset, TensorBox::ALIGNMENT);
    const SharedPlace barrier =
        shared_place(step, barrier_space, step.address(step.operand(2), lane));
    const Landings landings =
        multicast ? landings_in(step, to, barrier, uint32_t(step.read(step.operand(3), lane)),
                                pairing)
                  : landing_at(to, barrier, pairing);
    cluster.counters.traffic.tensor_loaded += box.bytes();
    cluster.counters.traffic.multicast += box.bytes() * (landings.size() - 1);
    for (const Landing& landing : landings) announce_box(step, box, landing);
    for (const Landing& landing : landings) {
      cluster.engines.defer(step, Engines::ANY, [box, landing]() { load_box(box, landing); });
    }
  });
  return Flow::Next;
}

// ---- stores and reductions

// The bytes of a box that are inside of the tensor, in their rows, from shared memory.
BulkGroups::Bytes read_box(const TensorBox& box, const SharedPlace& from) {
  Cta& cta = *from.cta;
  const bool known =
      box.dense() && cta.shared.all(from.offset, box.shared_bytes(), Known::Written);
  BulkGroups::Bytes bytes(box.bytes());
  box.for_each_row([&](const TensorBox::Row& row) {
    for (uint32_t at = row.start; at < row.stop;) {
      const uint32_t next = std::min(at / TensorBox::PIECE * TensorBox::PIECE + TensorBox::PIECE,
                                     row.stop);
      const uint32_t place = box.place(from.offset, row.index, at);
      const std::byte* piece = known ? cta.shared.at(place)
                                     : reach_shared(cta, place, next - at, Touch::Read);
      std::memcpy(bytes.data() + row.index * box.row_bytes() + at, piece, next - at);
      at = next;
    }
  });
  return bytes;
}

void write_box(Machine& machine, const TensorBox& box, Reduce reduce,
               const BulkGroups::Bytes& bytes) {
  box.for_each_row([&](const TensorBox::Row& row) {
    if (row.start == row.stop) return;
    std::byte* to = reinterpret_cast<std::byte*>(row.address);
    const std::byte* from = bytes.data() + row.index * box.row_bytes() + row.start;
    if (reduce) {
      reduce_global(machine, reduce, to, from, row.stop - row.start);
    } else {
      std::memcpy(to, from, row.stop - row.start);
    }
  });
}

bool has_word(std::string_view words, std::string_view word) {
  const size_t at = words.find(word);
  if (at == std::string_view::npos || (at && words[at - 1] != ' ')) return false;
  return at + word.size() == words.size() || words[at + word.size()] == ' ';
}

// A reduction, as an index of the table, for elements of a map's type.
Reduce reduction_for(int index, const TensorMap& map) {
  if (index == NO_REDUCTION) return nullptr;
  const auto& [name, types] = REDUCTIONS[index];
  if (!has_word(types, map.type)) {
    throw Failure("ReductionTypeError")
        .with("reduction", name)
        .with("type", map.type)
        .with("allowed", types);
  }
  if (map.flushes) return reduce_elements<reductions::AddFlushing, float>;
  return reduction_named(name, map.type);
}

// tensor, a
Flow store(Step& step, int reduction) {
  Machine& machine = step.machine();
  Traffic& traffic = step.cluster().counters.traffic;
  const BulkIssue issue(step);
  for_each(step.active, [&](int lane) {
    const TensorBox box = box_of(step, step.operand(0), lane, true);
    const SharedPlace from = shared_place(step, Space::Shared, step.address(step.operand(1), lane));
    check_multiple("the shared address of a box", from.offset, TensorBox::ALIGNMENT);
    if (!from.cta->shared.holds(from.offset, box.shared_bytes())) {
      reach_shared(*from.cta, from.offset, box.shared_bytes(), Touch::Read);  // tells what is wrong
    }
    const Reduce reduce = reduction_for(reduction, box.map());
    (reduce ? traffic.tensor_reduced : traffic.tensor_stored) += box.bytes();
    const Touch touch = reduce ? Touch::Atomic : Touch::Write;
    if (Races* races = step.races()) {
      races->touch(issue.reads, {Region::Is::Shared, from.cta}, from.offset, box.shared_bytes(),
                   Touch::Read);
      reach_tensor(step, box, touch, &issue.writes);
    } else {
      reach_tensor(step, box, touch, nullptr);
    }
    step.warp.bulk_groups.issue(
        step, lane, [box, from]() { return read_box(box, from); },
        [box, reduce, &machine](const BulkGroups::Bytes& bytes) {
          write_box(machine, box, reduce, bytes);
        });
  });
  return Flow::Next;
}

Flow copy_to_tensor(Step& step) { return store(step, NO_REDUCTION); }

template <int index>
Flow reduce_to_tensor(Step& step) {
  return store(step, index);
}

Flow prefetch(Step& step) {
  for_each(step.active, [&](int lane) { box_of(step, step.operand(0), lane, false); });
  return Flow::Next;
}

// ---- binding

template <Space space, bool multicast>
Execute loading(bool pair) {
  return pair ? load<space, multicast, Pairing::Pair> : load<space, multicast, Pairing::Same>;
}

Binding bind_copy(const Operation& op) {
  op.implied({"dim"});  // that many coordinates
  if (op.find("d") < 0) return {copy_to_tensor, true};
  const bool pair = op.get("cta_group") == "cta_group::2";
  if (op.space("d") == "shared") return {loading<Space::Shared, false>(pair), true};
  if (op.has("multicast")) return {loading<Space::SharedCluster, true>(pair), true};
  return {loading<Space::SharedCluster, false>(pair), true};
}

Binding bind_reduce(const Operation& op) {
  constexpr Execute table[] = {
      reduce_to_tensor<0>, reduce_to_tensor<1>, reduce_to_tensor<2>, reduce_to_tensor<3>,
      reduce_to_tensor<4>, reduce_to_tensor<5>, reduce_to_tensor<6>, reduce_to_tensor<7>,
  };
  op.implied({"dim"});
  const std::string_view name = op.get("red_op");
  for (size_t i = 0; i < std::size(table); ++i) {
    if (name == REDUCTIONS[i].name) return {table[i], true};
  }
  return {};
}

Binding bind_prefetch(const Operation& op) {
  op.implied({"dim", "L2"});  // that many coordinates; where to
  return {prefetch};
}

const Registration registration{
    {"cp.async.bulk.tensor", bind_copy},
    {"cp.reduce.async.bulk.tensor", bind_reduce},
    {"cp.async.bulk.prefetch.tensor", bind_prefetch},
};

}  // namespace

}  // namespace emu
