// The 32 lanes of a warp.
#pragma once

#include <cstdint>

namespace emu {

using Lanes = uint32_t;  // a bit for each lane

constexpr int WARP = 32;
constexpr Lanes ALL_LANES = 0xFFFF'FFFF;

inline int count(Lanes lanes) { return __builtin_popcount(lanes); }
inline int lowest(Lanes lanes) { return __builtin_ctz(lanes); }
inline int highest(Lanes lanes) { return 31 - __builtin_clz(lanes); }

// Call f(lane) for each lane; the loop over all 32 is one that compilers vectorise.
template <class F>
inline void for_each(Lanes lanes, F&& f) {
  if (lanes == ALL_LANES) {
    for (int lane = 0; lane < WARP; ++lane) f(lane);
    return;
  }
  for (; lanes; lanes &= lanes - 1) f(lowest(lanes));
}

}  // namespace emu
