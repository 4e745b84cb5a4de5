// Edits of tensor maps in memory, and their way to where copies read them.  PTX ISA,
// "tensormap.replace" and "tensormap.cp_fenceproxy".
//
// Where the fields are, and in which form they are stored, was seen on an H200; what it has not
// (packed elements, the swizzle's atomicity) is where ptxas 13 writes it.  The second half of a map
// holds nothing, so it need not have been written before (CuTe-DSL copies the first half).
#include <cstring>
#include <iterator>
#include <string>

#include "copies/landing.hpp"
#include "copies/tensor_map.hpp"
#include "machine/cluster.hpp"
#include "memory/access.hpp"
#include "memory/strength.hpp"

namespace emu {

namespace {

constexpr uint32_t USED_BYTES = 64;  // of a map, from its start

// Some bits of a word of 64 bits.
struct Bits {
  uint8_t word, shift, count;
};

// A field of a map: the bits that take its lower bits, and those that take its upper ones.
struct Field {
  const char* name;
  Bits low[TensorMap::MAX_RANK];
  Bits high[TensorMap::MAX_RANK] = {};
  uint64_t least = 0, most = UINT64_MAX;  // values that it can have
  uint64_t unit = 1;                      // stored is the value divided by this, less `less`
  uint64_t less = 0;
  uint32_t axes = 1;
};

constexpr uint64_t WORD = 0xFFFF'FFFF;

constexpr Field FIELDS[] = {
    {"global_address", {{0, 0, 64}}, {}, 16, UINT64_MAX, 1, 0},
    {"rank", {{1, 4, 3}}, {}, 0, TensorMap::MAX_RANK - 1, 1, 0},
    {"box_dim", {{6, 56, 8}, {7, 0, 8}, {7, 8, 8}, {7, 16, 8}, {7, 24, 8}}, {}, 1, 256, 1, 1, 5},
    {"global_dim", {{4, 0, 32}, {4, 32, 32}, {5, 0, 32}, {5, 32, 32}, {6, 0, 32}},
     {}, 1, WORD, 1, 1, 5},
    {"global_stride", {{1, 32, 32}, {2, 0, 32}, {2, 32, 32}, {3, 0, 32}},
     {{3, 32, 4}, {3, 36, 4}, {3, 40, 4}, {3, 44, 4}}, 0, (uint64_t(1) << 40) - 16, 16, 0, 4},
    {"element_stride", {{6, 32, 3}, {6, 35, 3}, {6, 38, 3}, {6, 41, 3}, {6, 44, 3}},
     {}, 1, 8, 1, 1, 5},
    {"interleave_layout", {{1, 11, 2}}, {}, 0, 2},
    {"swizzle_mode", {{1, 13, 2}}, {}, 0, 3},
    {"swizzle_atomicity", {{1, 19, 2}}, {}, 0, 3},
    {"fill_mode", {{1, 15, 1}}, {}, 0, 1},
};

// What a map holds for the code of an element type: tf32, and tf32 that is flushed, are f32 with a
// bit, and packed types take their place.
constexpr uint8_t TF32 = 1 << 4;
constexpr uint8_t TYPES[] = {0, 1, 2,  3,        4,        5,  6,  7,
                             8, 9, 10, 7 | TF32, 8 | TF32, 11, 12, 13};
constexpr Field TYPE_FIELD = {"elemtype", {{1, 7, 4}}, {{1, 16, 1}}, 0, std::size(TYPES) - 1};

void put(std::byte* map, const Bits& bits, uint64_t value) {
  if (!bits.count) return;
  uint64_t word;
  std::memcpy(&word, map + 8 * bits.word, 8);
  const uint64_t mask = bits.count == 64 ? UINT64_MAX : (uint64_t(1) << bits.count) - 1;
  word = (word & ~(mask << bits.shift)) | (value & mask) << bits.shift;
  std::memcpy(map + 8 * bits.word, &word, 8);
}

void replace(std::byte* map, const Field& field, uint64_t axis, uint64_t value) {
  if (axis >= field.axes) {
    throw Failure("TensorMapAxisError")
        .with("field", field.name)
        .with("axis", int64_t(axis))
        .with("most", int64_t(field.axes) - 1);
  }
  if (value < field.least || value > field.most || value % field.unit) {
    throw Failure("TensorMapValueError")
        .with("field", field.name)
        .hex("value", value)
        .hex("least", field.least)
        .hex("most", field.most)
        .with("unit", int64_t(field.unit));
  }
  const uint64_t stored = value / field.unit - field.less;
  const Bits& low = field.low[axis];
  put(map, low, stored);
  put(map, field.high[axis], low.count < 64 ? stored >> low.count : 0);
}

void replace_type(std::byte* map, uint64_t code) {
  if (code > TYPE_FIELD.most) replace(map, TYPE_FIELD, 0, code);  // tells what is allowed
  put(map, TYPE_FIELD.low[0], TYPES[code]);
  put(map, TYPE_FIELD.high[0], TYPES[code] / TF32);
}

// Call f(the bytes of the map) for each lane, as one access of the whole map.
template <Space space, class F>
void for_each_map(const Step& step, F&& f) {
  const Operand& operand = step.operand(0);
  for_each(step.active, [&](int lane) {
    const uint64_t address = step.address(operand, lane);
    for (const Touch touch : {Touch::Read, Touch::Write}) {
      const uint32_t bytes = touch == Touch::Read ? USED_BYTES : TENSOR_MAP_BYTES;
      const Place place = reach(step, space, address, bytes, touch, lane);
      if (touch == Touch::Write) f(lane, place.bytes);
    }
  });
  step.effect();
}

template <Space space, int index>
Flow replace_field(Step& step) {
  constexpr const Field& field = FIELDS[index];
  for_each_map<space>(step, [&](int lane, std::byte* map) {
    const bool has_axis = field.axes > 1;
    const Operand& value = step.operand(has_axis ? 2 : 1);
    const uint64_t axis = has_axis ? uint64_t(step.operand(1).value) : 0;
    const bool number = value.is == Operand::Is::Number;
    replace(map, field, axis, number ? uint64_t(value.value) : step.read(value, lane));
  });
  return Flow::Next;
}

template <Space space>
Flow replace_element_type(Step& step) {
  for_each_map<space>(step, [&](int, std::byte* map) {
    replace_type(map, uint64_t(step.operand(1).value));
  });
  return Flow::Next;
}

// Of an operand, in all lanes: the warp copies one map.
uint64_t common_address(const Step& step, int index) {
  const Operand& operand = step.operand(index);
  const uint64_t address = step.address(operand, lowest(step.active));
  for_each(step.active, [&](int lane) {
    if (step.address(operand, lane) == address) return;
    throw Failure("NotUniformError")
        .hex("first", address)
        .with("first_lane", lowest(step.active))
        .hex("other", step.address(operand, lane))
        .with("other_lane", lane);
  });
  return address;
}

Flow copy_and_fence(Step& step) {
  if (!step.aligned()) return step.wait_for_lanes(ALL_LANES);
  const int64_t size = step.operand(2).value;
  if (size != TENSOR_MAP_BYTES) throw Failure("TensorMapSizeError").with("size", size);
  const int lane = lowest(step.active);
  const uint64_t to = common_address(step, 0);
  const uint64_t from = common_address(step, 1);
  const Place source = reach(step, Space::Shared, from, USED_BYTES, Touch::Read, lane);
  const Place target = reach(step, Space::Global, to, TENSOR_MAP_BYTES, Touch::Write, lane);
  std::memcpy(target.bytes, source.bytes, USED_BYTES);
  std::memset(target.bytes + USED_BYTES, 0, TENSOR_MAP_BYTES - USED_BYTES);
  if (Races* races = step.races()) {
    races->fence(step, {unpacked_strength(step.code.detail).scope, false, true});
  }
  step.effect();
  return Flow::Next;
}

// ---- binding

Execute in_space(const std::string& space, Execute generic, Execute global, Execute shared) {
  return space == "generic" ? generic : space == "global" ? global : shared;
}

template <int index>
Execute replacing(const std::string& space) {
  return in_space(space, replace_field<Space::Generic, index>, replace_field<Space::Global, index>,
                  replace_field<Space::Shared, index>);
}

Execute (*const REPLACING[])(const std::string&) = {
    replacing<0>, replacing<1>, replacing<2>, replacing<3>, replacing<4>,
    replacing<5>, replacing<6>, replacing<7>, replacing<8>, replacing<9>,
};

Binding bind_replace(const Operation& op) {
  op.implied({"b1024"});  // the size of every map
  const std::string& space = op.space("a");
  const std::string_view name = op.first_of({"global_address", "rank", "global_stride",
                                             "map_axis_word", "map_mode", "swizzle_atomicity"});
  if (name == TYPE_FIELD.name) {
    return {in_space(space, replace_element_type<Space::Generic>,
                     replace_element_type<Space::Global>, replace_element_type<Space::Shared>),
            true};
  }
  for (size_t i = 0; i < std::size(FIELDS); ++i) {
    if (name == FIELDS[i].name) return {REPLACING[i](space), true};
  }
  return {};
}

Binding bind_copy_and_fence(const Operation& op) {
  op.implied({"sync", "aligned"});  // which it always is
  return {copy_and_fence, true, packed(strength_of(op, {}), Space::Global)};
}

const Registration registration{
    {"tensormap.replace.tile", bind_replace},
    {"tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release", bind_copy_and_fence},
};

}  // namespace

}  // namespace emu
