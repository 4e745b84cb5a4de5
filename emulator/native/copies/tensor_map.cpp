#include "copies/tensor_map.hpp"

#include <cstring>
#include <string>

#include "memory/locate.hpp"
#include "races/races.hpp"

namespace emu {

namespace {

struct Words {
  uint64_t word[TENSOR_MAP_BYTES / 8];

  uint64_t bits(uint32_t index, uint32_t shift, uint32_t count) const {
    return word[index] >> shift & ((uint64_t(1) << count) - 1);
  }
};

enum class Kind : uint8_t { Integer, Float, Flushed, Packed };

struct ElementType {
  std::string_view name;
  uint32_t bits;
  Kind kind = Kind::Integer;
  uint32_t packed = 16;
};

// By the code of a map, which is that of tensormap.replace.elemtype up to 10, and 2 less from there
// on: tf32 has a bit of its own beside the code of f32.
constexpr ElementType TYPES[] = {
    {"u8", 8},
    {"u16", 16},
    {"u32", 32},
    {"s32", 32},
    {"u64", 64},
    {"s64", 64},
    {"f16", 16, Kind::Float},
    {"f32", 32, Kind::Float},
    {"f32", 32, Kind::Flushed},
    {"f64", 64, Kind::Float},
    {"bf16", 16, Kind::Float},
    {"b4x16", 4, Kind::Packed},
    {"b4x16_p64", 4, Kind::Packed, 8},
    {"b6x16_p32", 6, Kind::Packed, 12},
};

// By the value of the swizzle's atomicity.
constexpr struct {
  uint32_t bytes;
  bool flips;
} ATOMS[] = {{16, false}, {32, false}, {32, true}, {64, false}};

[[noreturn]] void refuse(std::string_view found, std::string_view allowed) {
  throw Failure("TensorMapFieldError").with("field", found).with("allowed", allowed);
}

void check(bool holds, const std::string& found, std::string_view allowed) {
  if (!holds) refuse(found, allowed);
}

void decode_type(const Words& words, TensorMap& map) {
  const uint64_t code = words.bits(1, 7, 4);
  const bool tf32 = words.bits(1, 16, 1);
  check(code < std::size(TYPES), "element type " + std::to_string(code), "element types 0 to 13");
  const ElementType& type = TYPES[code];
  check(!tf32 || type.name == "f32", "tf32 of elements of type " + std::string(type.name),
        "tf32 of f32 only");
  map.type = type.name;
  map.element_bits = type.bits;
  map.packed = type.packed;
  map.flushes = type.kind == Kind::Flushed;
  map.rounds = tf32;
  map.fills_nan = words.bits(1, 15, 1);
  const bool is_float = type.kind == Kind::Float || type.kind == Kind::Flushed;
  check(!map.fills_nan || is_float, "NaN as fill of elements of type " + std::string(type.name),
        "NaN for floating-point types");
}

void decode_swizzle(const Words& words, TensorMap& map) {
  const auto& atom = ATOMS[words.bits(1, 19, 2)];
  map.swizzle = words.bits(1, 13, 2) ? 16u << words.bits(1, 13, 2) : 0;
  map.atom = atom.bytes;
  map.flips = atom.flips;
  check(map.swizzle == 128 || map.atom == 16,
        "a swizzle of " + std::to_string(map.swizzle) + " in pieces of " +
            std::to_string(map.atom) + " bytes",
        "pieces of 16 bytes, or a swizzle of 128");
}

void decode_axes(const Words& words, TensorMap& map) {
  const uint64_t low[] = {words.bits(1, 32, 32), words.bits(2, 0, 32), words.bits(2, 32, 32),
                          words.bits(3, 0, 32)};
  for (uint32_t axis = 0; axis < map.rank; ++axis) {
    map.sizes[axis] = int64_t(words.bits(4 + axis / 2, axis % 2 * 32, 32)) + 1;
    map.box[axis] =
        uint32_t(axis ? words.bits(7, 8 * (axis - 1), 8) : words.bits(6, 56, 8)) + 1;
    map.steps[axis] = uint32_t(words.bits(6, 32 + 3 * axis, 3)) + 1;
    if (axis) {
      const uint64_t high = words.bits(3, 32 + 4 * (axis - 1), 4);
      map.strides[axis] = int64_t((high << 32 | low[axis - 1]) << 4);
    }
  }
}

// Throws what keeps boxes of these types from being copied.
void check_packed(const TensorMap& map) {
  const std::string type(map.type);
  const auto check_multiple = [&](const char* what, uint64_t value, uint32_t unit) {
    check(value % unit == 0,
          std::string(what) + " " + hexadecimal(value) + " with elements of type " + type,
          "multiples of " + std::to_string(unit));
  };
  check_multiple("size", uint64_t(map.sizes[0]), map.padded() ? TensorMap::PADDED : 2);
  if (!map.padded()) return;
  check(map.box[0] == TensorMap::PADDED,
        "a box of " + std::to_string(map.box[0]) + " elements of type " + type + " along axis 0",
        "128 of them");
  check_multiple("address", map.address, 32);
  for (uint32_t axis = 1; axis < map.rank; ++axis) {
    check_multiple("stride", uint64_t(map.strides[axis]), 32);
  }
  check(!map.flips && (!map.swizzle || map.swizzle == 128),
        std::string("a swizzle of ") + std::to_string(map.swizzle) +
            (map.flips ? " that swaps halves" : "") + " with elements of type " + type,
        "no swizzle, or one of 128 that does not swap halves");
}

}  // namespace

TensorMap decode_tensor_map(const std::byte* bytes) {
  Words words;
  std::memcpy(words.word, bytes, sizeof words);
  TensorMap map;
  map.address = words.word[0];
  map.rank = uint32_t(words.bits(1, 4, 3)) + 1;
  check(map.rank <= TensorMap::MAX_RANK, "rank " + std::to_string(map.rank), "ranks 1 to 5");
  // [3:0] is 0 as the driver writes it, and 2 as CuTe-DSL does.  [18:17] and [21] are hints for
  // caches: the size of what is fetched, and that the tensor is large.
  const uint64_t start = words.bits(1, 0, 4);
  check(start == 0 || start == 2, "bits [3:0] of word 1 of " + std::to_string(start), "0 or 2");
  check(!words.bits(1, 11, 2), "an interleaved layout", "no interleave");
  check(!words.bits(1, 22, 10), "control bits " + hexadecimal(words.bits(1, 0, 32)),
        "zeros in [31:22]");
  check(!words.bits(3, 48, 16) && !words.bits(6, 47, 9) && !words.bits(7, 32, 32),
        "bits in unused places of words 3, 6 or 7", "zeros there");
  decode_swizzle(words, map);
  decode_type(words, map);
  decode_axes(words, map);
  if (map.element_bits < 8) check_packed(map);
  const uint32_t inner = map.box[0] * map.element_bits / 8;
  const uint32_t room = inner / map.packed * 16;  // in shared memory
  check(map.address && map.address % 16 == 0, "address " + hexadecimal(map.address),
        "an address that is a multiple of 16, and not 0");
  check(inner % 16 == 0, "a box of " + std::to_string(inner) + " bytes along axis 0",
        "a multiple of 16 bytes");
  check(!map.swizzle || room <= map.swizzle,
        "a box of " + std::to_string(room) + " bytes along axis 0 with a swizzle of " +
            std::to_string(map.swizzle),
        "a box no wider than the swizzle");
  return map;
}

TensorMapBytes tensor_map_bytes(const Step& step, uint64_t address, int lane) {
  constexpr uint32_t alignment = 64;
  const Space space = window_of(address).space;
  const bool allowed = space == Space::Global || space == Space::Const || space == Space::Param;
  if (!allowed || address % alignment) {
    throw Failure("TensorMapPlaceError").hex("address", address).with("space", name_of(space));
  }
  TensorMapBytes map;
  for (uint32_t part = 0; part < TENSOR_MAP_BYTES; part += alignment) {
    const Place place =
        locate(step, {Space::Generic, alignment, Touch::Read, nullptr}, address + part, lane);
    std::memcpy(map.bytes + part, place.bytes, alignment);
  }
  // The warp's own read: it has to come after what another one wrote there.
  if (step.races() && space == Space::Global) {
    step.races()->touch(step, {}, address, TENSOR_MAP_BYTES, Touch::Read);
  }
  return map;
}

TensorMap read_tensor_map(const Step& step, uint64_t address, int lane) {
  return decode_tensor_map(tensor_map_bytes(step, address, lane).bytes);
}

}  // namespace emu
