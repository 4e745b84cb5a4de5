#include "matrices/instruction_descriptor.hpp"

#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>

#include "machine/failure.hpp"

namespace emu {

namespace {

// ---- kinds

struct Code {
  uint32_t code;
  Element element;
};

constexpr Code FLOATS16[] = {{0, Element::F16}, {1, Element::BF16}};
constexpr Code FLOATS32[] = {{2, Element::TF32}};
constexpr Code FLOATS8[] = {{0, Element::E4M3},
                            {1, Element::E5M2},
                            {3, Element::E2M3Padded},
                            {4, Element::E3M2Padded},
                            {5, Element::E2M1Padded}};
constexpr Code INTEGERS8[] = {{0, Element::U8}, {1, Element::S8}};
constexpr Code FLOATS4[] = {{1, Element::E2M1Pair}};

// What the kind says: K, and the codes of types that A and B can have.
struct KindRow {
  const char* name;
  uint32_t k;
  const Code* begin;
  const Code* end;
};

template <size_t COUNT>
constexpr KindRow kind_row(const char* name, uint32_t k, const Code (&codes)[COUNT]) {
  return {name, k, codes, codes + COUNT};
}

// In the order of MmaKind.
constexpr KindRow KINDS[] = {
    kind_row("kind::f16", 16, FLOATS16),     kind_row("kind::tf32", 8, FLOATS32),
    kind_row("kind::f8f6f4", 32, FLOATS8),   kind_row("kind::i8", 32, INTEGERS8),
    kind_row("kind::mxf8f6f4", 32, FLOATS8), kind_row("kind::mxf4", 64, FLOATS4),
    kind_row("kind::mxf4nvf4", 64, FLOATS4)};

const KindRow& row_of(MmaKind kind) { return KINDS[size_t(kind)]; }

// ---- fields

// Some bits of the descriptor, and what they mean in messages.
struct Field {
  int low, size;
  const char* meaning;
};

// Of all kinds.
constexpr Field SPARSITY{0, 3, "sparsity, which tcgen05.mma.sp has"};
constexpr Field RESERVED_6{6, 1, "reserved"};
constexpr Field TYPE_A{7, 3, "the type of A"};
constexpr Field TYPE_B{10, 3, "the type of B"};
constexpr Field NEGATE_A{13, 1, "the negation of A"};
constexpr Field NEGATE_B{14, 1, "the negation of B"};
constexpr Field NEGATE_BOTH{13, 2, "the negation of integers"};
constexpr Field MAJOR_A{15, 1, "the transposition of A: 1 is M-major"};
constexpr Field MAJOR_B{16, 1, "the transposition of B: 1 is N-major"};
constexpr Field SIZE_N{17, 6, "N / 8"};
constexpr Field SIZE_M{24, 5, "M / 16"};
// Of kinds without block scales.
constexpr Field SATURATION{3, 1, "saturation of integers"};
constexpr Field TYPE_D{4, 2, "the type of D: 0 is f16, 1 f32, 2 s32"};
constexpr Field RESERVED_23{23, 1, "reserved"};
constexpr Field RESERVED_29{29, 1, "reserved"};
constexpr Field SHIFT_B{30, 2, "the shift of B, which tcgen05.mma.ws has"};
// Of kinds with block scales.
constexpr Field RESERVED_3{3, 1, "reserved"};
constexpr Field SCALES_B{4, 2, "the first byte of the scales"};
constexpr Field TYPE_SCALES{23, 1, "the type of the scales: 0 is ue4m3, 1 ue8m0"};
constexpr Field SCALES_A{29, 2, "the first byte of the scales"};
constexpr Field SIZE_K{31, 1, "the size of K: 1 is 96, for 4-bit types on sm_103a"};

// Reads fields and reports them.
class Fields {
 public:
  Fields(MmaKind kind, uint32_t bits) : kind_(kind), bits_(bits) {}

  uint32_t read(const Field& field) const {
    return bits_ >> field.low & ((1u << field.size) - 1);
  }

  // A field that has to be one of some values.
  uint32_t one_of(const Field& field, std::initializer_list<uint32_t> values) const {
    for (const uint32_t value : values) {
      if (read(field) == value) return value;
    }
    std::string allowed;
    for (const uint32_t value : values) add_alternative(allowed, value);
    throw bad(field, allowed);
  }

  // A type of the kind.
  Element element(const Field& field) const {
    const KindRow& row = row_of(kind_);
    for (const Code* code = row.begin; code != row.end; ++code) {
      if (read(field) == code->code) return code->element;
    }
    std::string allowed;
    for (const Code* code = row.begin; code != row.end; ++code) {
      add_alternative(allowed, code->code);
    }
    throw bad(field, allowed);
  }

  Failure bad(const Field& field, std::string_view allowed) const {
    const std::string first = std::to_string(field.low);
    const std::string last = std::to_string(field.low + field.size - 1);
    return Failure("InstructionDescriptorError")
        .hex("descriptor", bits_)
        .with("kind", name_of(kind_))
        .with("field", field.size == 1 ? first : first + "-" + last)
        .with("meaning", field.meaning)
        .with("value", read(field))
        .with("allowed", allowed);
  }

 private:
  MmaKind kind_;
  uint32_t bits_;

  static void add_alternative(std::string& text, uint32_t value) {
    text += (text.empty() ? "" : " or ") + std::to_string(value);
  }
};

Result read_result(const Fields& fields, const MatrixForm& form) {
  switch (form.kind) {
    case MmaKind::TF32: fields.one_of(TYPE_D, {1}); return Result::F32;
    case MmaKind::I8: fields.one_of(TYPE_D, {2}); return Result::S32;
    default: break;
  }
  if (form.a == Element::BF16) fields.one_of(TYPE_D, {1});
  return fields.one_of(TYPE_D, {0, 1}) == 0 ? Result::F16 : Result::F32;
}

Major read_major(const Fields& fields, const Field& field, Element element) {
  if (can_be_mn_major(element)) return fields.read(field) ? Major::MN : Major::K;
  fields.one_of(field, {0});
  return Major::K;
}

void read_scales(const Fields& fields, MatrixForm& form) {
  form.ue8m0 = form.block == 16 ? fields.one_of(TYPE_SCALES, {0, 1})
                                : fields.one_of(TYPE_SCALES, {1});
  const auto first_byte = [&](const Field& field) {
    if (form.scales % 2 == 1) return fields.read(field);
    return form.scales == 4 ? fields.one_of(field, {0}) : fields.one_of(field, {0, 2});
  };
  form.scale_b = first_byte(SCALES_B);
  form.scale_a = first_byte(SCALES_A);
}

// PTX ISA, tables of shapes: M, and the steps of N.
void check_shape(const Fields& fields, const MatrixForm& form, uint32_t group) {
  if (form.k == 96) {
    // With M = 128 of a pair, where the second scales of a cell go on is not known.
    fields.one_of(SIZE_M, {8 * group});
  } else if (group == 2) {
    fields.one_of(SIZE_M, {8, 16});
  } else if (block_scaled(form.kind)) {
    fields.one_of(SIZE_M, {8});
  } else {
    fields.one_of(SIZE_M, {4, 8});
  }
  const bool integers = form.kind == MmaKind::I8;
  uint32_t step = 16;
  if (group == 2 && integers) step = 32;
  if (group == 1 && (form.m == 64 || block_scaled(form.kind)) && !integers) step = 8;
  bool small = integers && group == 1;  // 8 and 24 are allowed too
  std::string which;
  // A block's columns of an N-major B have to fill pieces: how else they lie, no source says.
  const uint32_t filled = per_piece(form.b) * group;
  if (form.b_major == Major::MN && (filled > step || small)) {
    step = std::max(step, filled);
    small = false;
    which = " for an N-major B";
  }
  const bool is_small = small && (form.n == 8 || form.n == 24);
  if (form.n == 0 || form.n > 256 || (form.n % step != 0 && !is_small)) {
    throw fields.bad(SIZE_N, "N a multiple of " + std::to_string(step) + " up to 256, and not 0" +
                                 (small ? ", or 8 or 24" : "") + which);
  }
}

}  // namespace

const char* name_of(MmaKind kind) { return row_of(kind).name; }

std::string MatrixForm::name() const {
  return std::string(name_of(kind)) + " m" + std::to_string(m) + "n" + std::to_string(n) + "k" +
         std::to_string(k);
}

MatrixForm read_instruction_descriptor(const MmaModifiers& modifiers, bool has_k96, uint32_t bits) {
  const MmaKind kind = modifiers.kind;
  const Fields fields(kind, bits);
  MatrixForm form;
  form.kind = kind;
  form.k = row_of(kind).k;
  form.m = fields.read(SIZE_M) * 16;
  form.n = fields.read(SIZE_N) * 8;
  fields.one_of(SPARSITY, {0});
  fields.one_of(RESERVED_6, {0});
  form.a = fields.element(TYPE_A);
  form.b = fields.element(TYPE_B);
  if (kind == MmaKind::F16 && form.a != form.b) throw fields.bad(TYPE_B, "the type of A");
  if (kind == MmaKind::I8) fields.one_of(NEGATE_BOTH, {0});
  form.negate = fields.read(NEGATE_A) != fields.read(NEGATE_B);
  form.a_major = read_major(fields, MAJOR_A, form.a);
  form.b_major = read_major(fields, MAJOR_B, form.b);
  if (block_scaled(kind)) {
    fields.one_of(RESERVED_3, {0});
    if (has_k96 && form.k == 64) {
      form.k = fields.read(SIZE_K) ? 96 : 64;
    } else {
      fields.one_of(SIZE_K, {0});
    }
    form.block = modifiers.block;
    form.scales = form.k / form.block;
    read_scales(fields, form);
  } else {
    form.saturate = kind == MmaKind::I8 ? fields.read(SATURATION) : fields.one_of(SATURATION, {0});
    form.d = read_result(fields, form);
    fields.one_of(RESERVED_23, {0});
    fields.one_of(RESERVED_29, {0});
    fields.one_of(SHIFT_B, {0});
  }
  check_shape(fields, form, modifiers.group);
  return form;
}

}  // namespace emu
