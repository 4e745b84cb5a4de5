// What registers hold before the first instruction: numbers, addresses and special registers.
#pragma once

#include <cstdint>

#include "program/program.hpp"

namespace emu {

class Warp;

// The value of one lane.  Throws UnknownSpecialRegisterError.
uint64_t initial_value(const Initial& initial, const Warp& warp, int lane);

}  // namespace emu
