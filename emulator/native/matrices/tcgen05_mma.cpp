// tcgen05.mma: issued by one thread, done by the tensor core of its block or of its pair of blocks,
// in the order of issue.
//
// Deliberately leaves out sparse matrices (.sp) and weights that stay (.ws), which the table of
// instructions refuses.
#include <memory>
#include <optional>
#include <string_view>

#include "machine/machine.hpp"
#include "matrices/tcgen05_product.hpp"
#include "program/operation.hpp"

namespace emu {

namespace {

constexpr uint32_t MOST_SCALE_D = 15;  // PTX ISA, "tcgen05.mma": scale-input-d

Cell cell_at(const Step& step, const char* role, int lane) {
  const Operand& operand = step.operand(step.operation().position(role));
  return Cell::at(uint32_t(step.address(operand, lane)));
}

// CUTLASS puts the first byte of the scales, which the instruction descriptor has too, into the
// upper bits of their address.
Cell scales_at(const Step& step, const char* role, int lane) {
  constexpr uint32_t LANE_BITS = 0x3FFF;
  Cell cell = cell_at(step, role, lane);
  cell.lane &= LANE_BITS;
  return cell;
}

uint64_t value_of(const Step& step, const char* role, int lane) {
  return step.read(step.operand(step.operation().position(role)), lane);
}

void read_disabled(const Step& step, int lane, Tcgen05Product& product) {
  const int index = step.operation().find("disabled_lanes");
  if (index < 0) return;
  const Operand& masks = step.operand(index);
  for (uint32_t i = 0; i < masks.count; ++i) {
    product.disabled[i] = uint32_t(step.read(step.element(masks, i), lane));
  }
}

Tcgen05Product read_product(const Step& step, const MmaModifiers& modifiers, int lane) {
  const Operation& op = step.operation();
  const uint32_t descriptor = uint32_t(value_of(step, "idesc", lane));
  const bool has_k96 = step.machine().program.target == "sm_103a";
  Tcgen05Product product(read_instruction_descriptor(modifiers, has_k96, descriptor),
                         Blocks(step.cta(), modifiers.group));
  product.d = cell_at(step, "d", lane);
  product.a_in_tensor = op.find("a") >= 0;
  if (product.a_in_tensor) {
    product.a_cell = cell_at(step, "a", lane);
  } else {
    product.a = read_descriptor_sm100(value_of(step, "a_desc", lane), "a_desc");
  }
  product.b = read_descriptor_sm100(value_of(step, "b_desc", lane), "b_desc");
  if (product.form.scales) {
    product.scale_a = scales_at(step, "scale_a", lane);
    product.scale_b = scales_at(step, "scale_b", lane);
  }
  product.accumulate = step.predicate(op.position("accumulate")) >> lane & 1;
  product.shift_a = modifiers.shift_a;
  if (const int index = op.find("scale_d"); index >= 0) {
    product.scale_d = uint32_t(step.operand(index).value);
    if (product.scale_d > MOST_SCALE_D) throw Failure("ScaleDError").with("scale", product.scale_d);
  }
  read_disabled(step, lane, product);
  return product;
}

Flow issue(Step& step) {
  const auto modifiers = from_detail<MmaModifiers>(step.code.detail);
  const int lane = issuing_lane(step);
  Tensors::of(step.cta()).check_group(modifiers.group);
  const auto product =
      std::make_shared<const Tcgen05Product>(read_product(step, modifiers, lane));
  product->check();
  Cluster& cluster = step.cluster();
  ++cluster.counters.matrices["tcgen05.mma cta_group::" + std::to_string(modifiers.group) + " " +
                              product->form.name()];
  if (Races* races = step.races()) {
    product->report(*races, races->issue(step, Races::Stream::TensorCore));
  }
  cluster.engines.defer(step, product->blocks.queue(), [product] { product->happen(); });
  return Flow::Next;
}

// ---- binding

std::optional<MmaKind> kind_of(const Operation& op) {
  const std::string_view name = op.first_of({"mma_kind", "scaling_kind", "kind::i8",
                                             "kind::mxf8f6f4", "kind::mxf4", "kind::mxf4nvf4"});
  for (const MmaKind kind : MMA_KINDS) {
    if (name == name_of(kind)) return kind;
  }
  return {};
}

// Numbers along K for each scale.  Which of these a kind can have, the table of instructions says;
// without any of them it is 32.
uint8_t block_of(const Operation& op) {
  const std::string_view scales = op.first_of({"mx8_scales", "mx4_scales", "nvf4_scales"});
  return scales == "scale_vec::4X" || scales == "block16" ? 16 : 32;
}

Binding bind_mma(const Operation& op) {
  const auto kind = kind_of(op);
  if (!kind) return {};
  op.implied({"block_scale"});  // the kind says it
  const uint8_t block = block_scaled(*kind) ? block_of(op) : 0;
  return {issue, true, to_detail(MmaModifiers{*kind, group_of(op), block, op.has("ashift")})};
}

const Registration registration{{"tcgen05.mma", bind_mma}};

}  // namespace

}  // namespace emu
