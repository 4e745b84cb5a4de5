#include "matrices/fragments.hpp"

#include <cstring>

namespace emu {

void read_rows(const Fragment& a, uint32_t bytes, std::byte* to) {
  for (uint32_t index = 0; index < a.count(); ++index) {
    const uint32_t* from = a[index];
    for (uint32_t lane = 0; lane < WARP; ++lane) {
      const uint32_t row = lane / 4 + 8 * (index % 2);
      const uint32_t byte = 16 * (index / 2) + 4 * (lane % 4);
      std::memcpy(to + row * bytes + byte, from + lane, sizeof *from);
    }
  }
}

void read_columns(const Fragment& b, uint32_t bytes, std::byte* to) {
  for (uint32_t index = 0; index < b.count(); ++index) {
    const uint32_t* from = b[index];
    for (uint32_t lane = 0; lane < WARP; ++lane) {
      const uint32_t byte = 16 * index + 4 * (lane % 4);
      std::memcpy(to + lane / 4 * bytes + byte, from + lane, sizeof *from);
    }
  }
}

void turn(const double* rows, uint32_t count, uint32_t depth, double* to) {
  for (uint32_t k = 0; k < depth; ++k) {
    for (uint32_t row = 0; row < count; ++row) to[k * count + row] = rows[row * depth + k];
  }
}

namespace {

// Where a number of D is: the register of a vector, and the lane.
struct Home {
  uint32_t index, lane;
};

Home home_of(uint32_t row, uint32_t column, uint32_t per_pair) {
  const uint32_t pair = column / 8 * 2 + row / 8;
  return {pair * per_pair + column % 2 * (per_pair - 1), 4 * (row % 8) + column % 8 / 2};
}

template <class To>
void add_words(const Factors& factors, const Accumulator& how, const uint32_t* const* c,
               const Fragment& d) {
  multiply(factors, [&](uint32_t column, const double* sums) {
    for (uint32_t row = 0; row < factors.lanes; ++row) {
      const Home home = home_of(row, column, 2);
      d[home.index][home.lane] = To::sum(how, c[home.index][home.lane], sums[row]);
    }
  });
}

// Two columns share a register.
void add_halves(const Factors& factors, const Accumulator& how, const uint32_t* const* c,
                const Fragment& d) {
  multiply(factors, [&](uint32_t column, const double* sums) {
    const uint32_t shift = 16 * (column % 2);
    for (uint32_t row = 0; row < factors.lanes; ++row) {
      const Home home = home_of(row, column, 1);
      const uint32_t old = c[home.index][home.lane] >> shift & 0xFFFF;
      uint32_t& word = d[home.index][home.lane];
      word = (word & ~(0xFFFFu << shift)) | ToF16::sum(how, old, sums[row]) << shift;
    }
  });
}

}  // namespace

void add_fragment(const Factors& factors, const Accumulator& how, Result type,
                  const uint32_t* const* c, const Fragment& d) {
  switch (type) {
    case Result::F16: add_halves(factors, how, c, d); break;
    case Result::F32: add_words<ToF32>(factors, how, c, d); break;
    case Result::S32: add_words<ToS32>(factors, how, c, d); break;
  }
}

}  // namespace emu
