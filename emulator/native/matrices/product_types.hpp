// Which types mma.sync and wgmma multiply, by the modifiers of the operation.
#pragma once

#include <cstdint>
#include <optional>

#include "matrices/accumulators.hpp"
#include "matrices/elements.hpp"
#include "program/operation.hpp"

namespace emu {

// Of D = A * B + C, where C is of the type of D.
struct ProductTypes {
  Element a, b;
  Result d;
  bool saturate;  // integers
};

// Nothing for types that have no code.
std::optional<ProductTypes> product_types(const Operation& op);

}  // namespace emu
