// The elements of the factors of matrix products, and how they are packed into pieces of 16 bytes.
//
// PTX ISA, "Packing formats of elements in Shared Memory" and "... in Tensor Memory".  Types below
// 8 bits are packed in three ways: close together (kind::mxf4), 16 of them in the first bytes of
// each piece (kind::f8f6f4 in shared memory), or each in a byte of its own (kind::f8f6f4 in tensor
// memory).  In its byte a 6-bit number is in the low bits and a 4-bit one in bits 2 to 5, as for
// mma.sync; for tcgen05 the text leaves the place to a figure.
//
// Deliberately does not know where pieces lie.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace emu {

enum class Element : uint8_t {
  F16, BF16, TF32,
  E4M3, E5M2, U8, S8,
  E2M3Padded, E3M2Padded, E2M1Padded,  // 16 numbers of a piece, then nothing
  E2M3Byte, E3M2Byte, E2M1Byte,        // a number in each byte
  E2M1Pair,                            // two numbers in each byte
};

// Elements of a piece.
uint32_t per_piece(Element element);

// Whether the elements can lie side by side along M or N: those that fill their bytes.
bool can_be_mn_major(Element element);

// How the numbers lie in the bytes of tensor memory, given how they would in shared memory.
Element in_tensor_memory(Element element);

// Number `index` of those of BITS bits that lie close together; the byte behind it is read too.
template <int BITS>
inline uint32_t packed_number(const std::byte* from, uint32_t index) {
  const uint32_t bit = index * BITS;
  const uint32_t window = uint32_t(from[bit / 8]) | uint32_t(from[bit / 8 + 1]) << 8;
  return window >> bit % 8 & ((1u << BITS) - 1);
}

// Give each of the 16 numbers of BITS bits of a piece a byte, where it is in bits SHIFT and up.
template <int BITS, int SHIFT>
void spread_piece(std::byte* piece) {
  std::byte spread[16];
  for (uint32_t index = 0; index < 16; ++index) {
    spread[index] = std::byte(packed_number<BITS>(piece, index) << SHIFT);
  }
  std::memcpy(piece, spread, sizeof spread);
}

// Read the elements of many pieces: as doubles, one after another.
void widen_pieces(Element element, const std::byte* from, uint32_t pieces, double* to);

}  // namespace emu
