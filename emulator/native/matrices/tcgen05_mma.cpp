// tcgen05.mma: issued by one thread, done by the tensor core of its block or of its pair of blocks,
// in the order of issue.
//
// Deliberately leaves out sparse matrices (.sp) and weights that stay (.ws), which the table of
// instructions refuses.
#include <memory>

#include "machine/machine.hpp"
#include "matrices/tcgen05_product.hpp"
#include "program/operation.hpp"

namespace emu {

namespace {

Cell cell_at(const Step& step, const char* role, int lane) {
  const Operand& operand = step.operand(step.operation().position(role));
  return Cell::at(uint32_t(step.address(operand, lane)));
}

// CUTLASS puts the first byte of the scales, which the instruction descriptor has too, into the
// upper bits of their address.
Cell scales_at(const Step& step, const char* role, int lane) {
  const Operand& operand = step.operand(step.operation().position(role));
  return Cell::at(uint32_t(step.address(operand, lane)) & 0x3FFF'FFFF);
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
  const Operation& operation = step.operation();
  const uint32_t descriptor = uint32_t(value_of(step, "idesc", lane));
  const bool has_k96 = step.machine().program.target == "sm_103a";
  Tcgen05Product product(read_instruction_descriptor(modifiers, has_k96, descriptor),
                         Blocks(step.cta(), modifiers.group));
  product.d = cell_at(step, "d", lane);
  product.a_in_tensor = operation.find("a") >= 0;
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
  product.accumulate = step.predicate(operation.position("accumulate")) >> lane & 1;
  product.shift_a = modifiers.shift_a;
  if (const int index = operation.find("scale_d"); index >= 0) {
    product.scale_d = uint32_t(step.operand(index).value);
    if (product.scale_d > 15) throw Failure("ScaleDError").with("scale", int64_t(product.scale_d));
  }
  read_disabled(step, lane, product);
  return product;
}

Flow issue(Step& step, const MmaModifiers& modifiers) {
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

// ---- binders

template <MmaKind KIND, uint32_t GROUP, uint32_t BLOCK, bool SHIFT>
Flow execute(Step& step) {
  return issue(step, {KIND, GROUP, BLOCK, SHIFT});
}

template <MmaKind KIND, uint32_t BLOCK, bool SHIFT>
Execute for_group(uint32_t group) {
  return group == 1 ? execute<KIND, 1, BLOCK, SHIFT> : execute<KIND, 2, BLOCK, SHIFT>;
}

struct KindRow {
  const char* kind;
  Execute (*plain)(uint32_t group);
  Execute (*shifted)(uint32_t group);
};

template <MmaKind KIND>
constexpr KindRow kind_row(const char* kind) {
  return {kind, for_group<KIND, 0, false>, for_group<KIND, 0, true>};
}

constexpr KindRow KINDS[] = {
    kind_row<MmaKind::F16>("kind::f16"), kind_row<MmaKind::TF32>("kind::tf32"),
    kind_row<MmaKind::F8F6F4>("kind::f8f6f4"), kind_row<MmaKind::I8>("kind::i8")};

struct ScaledRow {
  const char* kind;
  const char* scales;  // as the modifier says; the first row of a kind is what it means without
  Execute (*execute)(uint32_t group);
};

constexpr ScaledRow SCALED[] = {
    {"kind::mxf8f6f4", "scale_vec::1X", for_group<MmaKind::MXF8F6F4, 32, false>},
    {"kind::mxf8f6f4", "block32", for_group<MmaKind::MXF8F6F4, 32, false>},
    {"kind::mxf4", "scale_vec::2X", for_group<MmaKind::MXF4, 32, false>},
    {"kind::mxf4", "block32", for_group<MmaKind::MXF4, 32, false>},
    {"kind::mxf4nvf4", "scale_vec::2X", for_group<MmaKind::MXF4NVF4, 32, false>},
    {"kind::mxf4nvf4", "block32", for_group<MmaKind::MXF4NVF4, 32, false>},
    {"kind::mxf4nvf4", "scale_vec::4X", for_group<MmaKind::MXF4NVF4, 16, false>},
    {"kind::mxf4nvf4", "block16", for_group<MmaKind::MXF4NVF4, 16, false>},
};

// The kind is the only modifier of a place in some rows of the table, and one of several in others.
bool is_of(const Operation& operation, const char* kind) {
  return operation.get("mma_kind") == kind || operation.get("scaling_kind") == kind ||
         operation.has(kind);
}

std::string_view scales_in(const Operation& operation) {
  std::string_view found;
  for (const char* slot : {"mx8_scales", "mx4_scales", "nvf4_scales"}) {
    if (operation.has(slot)) found = operation.get(slot);
  }
  return found;
}

Binding bind_mma(const Operation& operation) {
  const uint32_t group = group_of(operation);
  if (operation.has("block_scale")) {
    const std::string_view scales = scales_in(operation);
    for (const ScaledRow& row : SCALED) {
      if (!is_of(operation, row.kind) || (!scales.empty() && scales != row.scales)) continue;
      return {row.execute(group), true};
    }
    return {};
  }
  for (const KindRow& row : KINDS) {
    if (!is_of(operation, row.kind)) continue;
    return {(operation.has("ashift") ? row.shifted : row.plain)(group), true};
  }
  return {};
}

const Registration registration{{"tcgen05.mma", bind_mma}};

}  // namespace

}  // namespace emu
