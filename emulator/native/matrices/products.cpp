#include "matrices/products.hpp"

#include <cstddef>
#include <cstring>

namespace emu {

namespace {

// Doubles in a register of the machine.
#ifdef __AVX__
typedef double Vector __attribute__((vector_size(32)));
#else
typedef double Vector __attribute__((vector_size(16)));
#endif

constexpr uint32_t WIDTH = sizeof(Vector) / sizeof(double);

}  // namespace

static_assert(PRODUCT_COLUMNS == 4, "the sums below are of four columns");

// A tile of two vectors of lanes and 4 columns stays in registers.  The loops over its sums are
// written out, so that no compiler keeps them in memory.
void multiply_columns(const Factors& factors, uint32_t first, double (*sums)[PRODUCT_LANES]) {
  const size_t next = factors.b_stride;
  const double* const columns = factors.b + first * next;
  for (uint32_t lane = 0; lane < factors.lanes; lane += 2 * WIDTH) {
    const double* a = factors.a + lane;
    const double* b = columns;
    Vector sum00{}, sum01{}, sum10{}, sum11{}, sum20{}, sum21{}, sum30{}, sum31{};
    for (uint32_t k = 0; k < factors.depth; ++k, a += factors.a_stride, ++b) {
      Vector a0, a1;
      std::memcpy(&a0, a, sizeof a0);
      std::memcpy(&a1, a + WIDTH, sizeof a1);
      sum00 += a0 * b[0];
      sum01 += a1 * b[0];
      sum10 += a0 * b[next];
      sum11 += a1 * b[next];
      sum20 += a0 * b[2 * next];
      sum21 += a1 * b[2 * next];
      sum30 += a0 * b[3 * next];
      sum31 += a1 * b[3 * next];
    }
    const Vector all[PRODUCT_COLUMNS][2] = {
        {sum00, sum01}, {sum10, sum11}, {sum20, sum21}, {sum30, sum31}};
    for (uint32_t column = 0; column < PRODUCT_COLUMNS; ++column) {
      std::memcpy(sums[column] + lane, all[column], sizeof all[column]);
    }
  }
}

}  // namespace emu
