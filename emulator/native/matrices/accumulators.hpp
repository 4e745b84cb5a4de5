// The accumulators of matrix products: an old value, the sum of an instruction's products, and one
// rounding to the accumulator's type.
//
// Deliberately does not sum products: `matrices/products.hpp` does.
#pragma once

#include <algorithm>
#include <cstdint>

#include "arithmetic/formats.hpp"

namespace emu {

// The type of an accumulator.
enum class Result : uint8_t { F16, F32, S32 };

// What is done with the old value and the sum of products.
struct Accumulator {
  bool accumulate = true;
  double scale = 1.0;     // of the old value
  bool saturate = false;  // integers
};

struct ToF32 {
  static uint32_t sum(const Accumulator& how, uint32_t old, double products) {
    const double value =
        how.accumulate ? double(bits_as<float>(old)) * how.scale + products : products;
    const uint32_t bits = bits_as<uint32_t>(float(value));
    return value != value ? NAN_F32 : bits;
  }
};

struct ToF16 {
  static uint32_t sum(const Accumulator& how, uint32_t old, double products) {
    const double value = how.accumulate ? double(widen<F16>(old)) * how.scale + products : products;
    return narrow<F16>(value);
  }
};

struct ToS32 {
  static uint32_t sum(const Accumulator& how, uint32_t old, double products) {
    int64_t value = int64_t(products) + (how.accumulate ? int64_t(int32_t(old)) : 0);
    if (how.saturate) value = std::clamp<int64_t>(value, INT32_MIN, INT32_MAX);
    return uint32_t(value);
  }
};

}  // namespace emu
