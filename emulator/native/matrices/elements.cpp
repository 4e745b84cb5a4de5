#include "matrices/elements.hpp"

#include <array>
#include <cstring>

#include "arithmetic/formats.hpp"
#include "matrices/descriptors.hpp"

namespace emu {

namespace {

constexpr uint32_t PIECE = Pieces::SIZE;

template <class Bits, class Widen>
void widen_each(const std::byte* from, uint32_t pieces, double* to, Widen&& widen_one) {
  const uint32_t count = pieces * uint32_t(PIECE / sizeof(Bits));
  for (uint32_t i = 0; i < count; ++i) {
    Bits bits;
    std::memcpy(&bits, from + i * sizeof(Bits), sizeof bits);
    to[i] = double(widen_one(bits));
  }
}

// Bits SHIFT and up of each byte.
template <class Format, int SHIFT = 0>
void widen_bytes(const std::byte* from, uint32_t pieces, double* to) {
  static const auto table = [] {
    std::array<double, 256> numbers{};
    for (uint32_t bits = 0; bits < 256; ++bits) numbers[bits] = widen<Format>(bits >> SHIFT);
    return numbers;
  }();
  widen_each<uint8_t>(from, pieces, to, [](uint8_t bits) { return table[bits]; });
}

// 16 numbers of BITS bits, and nothing up to the end of the piece.
template <class Format, int BITS>
void widen_padded(const std::byte* from, uint32_t pieces, double* to) {
  for (uint32_t piece = 0; piece < pieces; ++piece, from += PIECE) {
    for (uint32_t i = 0; i < 16; ++i) *to++ = widen<Format>(packed_number<BITS>(from, i));
  }
}

void widen_pairs(const std::byte* from, uint32_t pieces, double* to) {
  for (uint32_t i = 0; i < pieces * PIECE; ++i) {
    *to++ = widen<E2M1>(uint32_t(from[i]));
    *to++ = widen<E2M1>(uint32_t(from[i]) >> 4);
  }
}

}  // namespace

uint32_t per_piece(Element element) {
  switch (element) {
    case Element::TF32: return 4;
    case Element::F16:
    case Element::BF16: return 8;
    case Element::E2M1Pair: return 32;
    default: return 16;
  }
}

bool can_be_mn_major(Element element) { return element <= Element::S8; }

Element in_tensor_memory(Element element) {
  switch (element) {
    case Element::E2M3Padded: return Element::E2M3Byte;
    case Element::E3M2Padded: return Element::E3M2Byte;
    case Element::E2M1Padded: return Element::E2M1Byte;
    default: return element;
  }
}

void widen_pieces(Element element, const std::byte* from, uint32_t pieces, double* to) {
  switch (element) {
    case Element::F16: return widen_each<uint16_t>(from, pieces, to, widen<F16>);
    case Element::BF16: return widen_each<uint16_t>(from, pieces, to, widen<BF16>);
    case Element::TF32: return widen_each<uint32_t>(from, pieces, to, widen_tf32);
    case Element::E4M3: return widen_bytes<E4M3>(from, pieces, to);
    case Element::E5M2: return widen_bytes<E5M2>(from, pieces, to);
    case Element::U8: return widen_each<uint8_t>(from, pieces, to, [](uint8_t b) { return b; });
    case Element::S8: return widen_each<int8_t>(from, pieces, to, [](int8_t b) { return b; });
    case Element::E2M3Padded: return widen_padded<E2M3, 6>(from, pieces, to);
    case Element::E3M2Padded: return widen_padded<E3M2, 6>(from, pieces, to);
    case Element::E2M1Padded: return widen_padded<E2M1, 4>(from, pieces, to);
    case Element::E2M3Byte: return widen_bytes<E2M3>(from, pieces, to);
    case Element::E3M2Byte: return widen_bytes<E3M2>(from, pieces, to);
    case Element::E2M1Byte: return widen_bytes<E2M1, 2>(from, pieces, to);
    case Element::E2M1Pair: return widen_pairs(from, pieces, to);
  }
}

}  // namespace emu
