// The products of small matrices, behind every matrix instruction.
//
// Numbers are doubles.  Products of two elements of any input type are exact in a double (their
// significands have at most 11 bits each, block scales included), and so are sums of integers; sums
// of floats are rounded to 53 bits, in the order of k.  Then the accumulator is added, and the
// result is rounded once to its type, to nearest.  Hardware instead aligns the products of one
// instruction to the greatest exponent among them and cuts off low bits; it differs from this in
// the last bits of f32, never where all sums are integers below 2**24.
//
// Deliberately does not know where matrices lie, or types.
#pragma once

#include <cstdint>

namespace emu {

// Factors of D = A * B, with `lanes` rows.
struct Factors {
  const double* a = nullptr;  // [depth][a_stride]: the rows of A lie side by side
  uint32_t a_stride = 0;
  const double* b = nullptr;  // [columns][b_stride]: K is contiguous
  uint32_t b_stride = 0;
  uint32_t lanes = 0;    // a multiple of 16, at most 128
  uint32_t columns = 0;  // a multiple of 4
  uint32_t depth = 0;
};

constexpr uint32_t PRODUCT_LANES = 128;  // most rows of `Factors`
constexpr uint32_t PRODUCT_COLUMNS = 4;  // that are computed together

// The sums of products of columns first, first + 1, ..., as many as are computed together.
void multiply_columns(const Factors& factors, uint32_t first, double (*sums)[PRODUCT_LANES]);

// Call take(column, sums) for each column of A * B, with the sums of all lanes.
template <class Take>
void multiply(const Factors& factors, Take&& take) {
  alignas(64) double sums[PRODUCT_COLUMNS][PRODUCT_LANES];
  for (uint32_t column = 0; column < factors.columns; column += PRODUCT_COLUMNS) {
    multiply_columns(factors, column, sums);
    for (uint32_t next = 0; next < PRODUCT_COLUMNS; ++next) take(column + next, sums[next]);
  }
}

}  // namespace emu
