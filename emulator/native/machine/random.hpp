// Random numbers that are the same on every machine (splitmix64, Steele et al., OOPSLA 2014).
#pragma once

#include <cstdint>

namespace emu {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    uint64_t z = (state_ += 0x9E37'79B9'7F4A'7C15);
    z = (z ^ (z >> 30)) * 0xBF58'476D'1CE4'E5B9;
    z = (z ^ (z >> 27)) * 0x94D0'49BB'1331'11EB;
    return z ^ (z >> 31);
  }
  // A number from 0 up to, and without, `limit`.
  uint32_t below(uint32_t limit) { return uint32_t((next() >> 32) * limit >> 32); }
  bool coin() { return next() >> 63; }

 private:
  uint64_t state_;
};

}  // namespace emu
