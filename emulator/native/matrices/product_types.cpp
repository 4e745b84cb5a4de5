#include "matrices/product_types.hpp"

#include <string_view>

namespace emu {

namespace {

constexpr struct {
  std::string_view name;
  Element element;
} ELEMENTS[] = {
    {"f16", Element::F16},   {"bf16", Element::BF16}, {"tf32", Element::TF32},
    {"e4m3", Element::E4M3}, {"e5m2", Element::E5M2}, {"s8", Element::S8},
    {"u8", Element::U8},
};

std::optional<Element> element_named(std::string_view name) {
  for (const auto& row : ELEMENTS) {
    if (row.name == name) return row.element;
  }
  return {};
}

Result result_of(const Operation& op) {
  if (op.has("s32")) return Result::S32;
  return op.has("f32") ? Result::F32 : Result::F16;
}

}  // namespace

std::optional<ProductTypes> product_types(const Operation& op) {
  // A type that A and B always share stands in a slot of its own name.  f16 comes last, since it
  // may be that of D only.
  const auto a = element_named(op.first_of({"a_fp8", "a_int8", "tf32", "bf16", "f16"}));
  const auto b = element_named(op.first_of({"b_fp8", "b_int8", "tf32", "bf16", "f16"}));
  if (!a || !b) return {};
  return ProductTypes{*a, *b, result_of(op), op.has("satfinite")};
}

}  // namespace emu
