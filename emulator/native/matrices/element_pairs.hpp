// Which code multiplies the types that an operation names, for mma.sync and wgmma.
//
// Code is a template of the types of A, B and D, and of whether integers saturate; its member `run`
// executes.
#pragma once

#include <string_view>

#include "matrices/fragments.hpp"
#include "program/operation.hpp"

namespace emu {

namespace element_pairs {

template <template <Element, Element, Result, bool> class Code, Element A, Element B>
Execute of_floats(const Operation&, bool half) {
  return half ? Code<A, B, Result::F16, false>::run : Code<A, B, Result::F32, false>::run;
}

template <template <Element, Element, Result, bool> class Code, Element A, Element B>
Execute of_integers(const Operation& op, bool) {
  const bool saturate = op.has("satfinite");
  return saturate ? Code<A, B, Result::S32, true>::run : Code<A, B, Result::S32, false>::run;
}

struct Row {
  std::string_view a, b;
  Execute (*of)(const Operation&, bool half);
};

// The type that rows of the table name without a slot of its own, for A and B alike.  f16 comes
// last, since it may be that of D only.
inline std::string_view plain_type(const Operation& op) {
  std::string_view found;
  for (const char* type : {"f16", "tf32", "bf16"}) {
    if (op.has(type)) found = type;
  }
  return found;
}

}  // namespace element_pairs

// The code, where D is f16 (`half`), or f32 or s32; null for types that have none.  Each file's
// `Code` needs a name of its own: g++ takes two of one name in anonymous namespaces for the same.
template <template <Element, Element, Result, bool> class Code>
Execute code_for(const Operation& op, bool half) {
  using namespace element_pairs;
  using E = Element;
  static const Row rows[] = {
      {"f16", "f16", of_floats<Code, E::F16, E::F16>},
      {"bf16", "bf16", of_floats<Code, E::BF16, E::BF16>},
      {"tf32", "tf32", of_floats<Code, E::TF32, E::TF32>},
      {"e4m3", "e4m3", of_floats<Code, E::E4M3, E::E4M3>},
      {"e4m3", "e5m2", of_floats<Code, E::E4M3, E::E5M2>},
      {"e5m2", "e4m3", of_floats<Code, E::E5M2, E::E4M3>},
      {"e5m2", "e5m2", of_floats<Code, E::E5M2, E::E5M2>},
      {"s8", "s8", of_integers<Code, E::S8, E::S8>},
      {"s8", "u8", of_integers<Code, E::S8, E::U8>},
      {"u8", "s8", of_integers<Code, E::U8, E::S8>},
      {"u8", "u8", of_integers<Code, E::U8, E::U8>},
  };
  std::string_view a = op.get("a_fp8"), b = op.get("b_fp8");
  if (a.empty()) a = op.get("a_int8"), b = op.get("b_int8");
  if (a.empty()) a = b = plain_type(op);
  for (const Row& row : rows) {
    if (row.a == a && row.b == b) return row.of(op, half);
  }
  return nullptr;
}

}  // namespace emu
