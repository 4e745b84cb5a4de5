#include "matrices/instruction_descriptor.hpp"

#include <initializer_list>

#include "machine/failure.hpp"

namespace emu {

namespace {

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

// Reads fields and reports them.
class Fields {
 public:
  Fields(MmaKind kind, uint32_t bits) : kind_(kind), bits_(bits) {}

  uint32_t read(int low, int size) const { return bits_ >> low & ((1u << size) - 1); }

  // A field that has to be one of some values.
  uint32_t one_of(int low, int size, std::initializer_list<uint32_t> values,
                  const char* meaning) const {
    for (const uint32_t value : values) {
      if (read(low, size) == value) return value;
    }
    std::string allowed;
    for (const uint32_t value : values) {
      allowed += (allowed.empty() ? "" : " or ") + std::to_string(value);
    }
    throw bad(low, size, meaning, allowed);
  }

  Element element(int low, const char* meaning) const {
    std::string allowed;
    const KindRow& row = row_of(kind_);
    for (const Code* code = row.begin; code != row.end; ++code) {
      if (read(low, 3) == code->code) return code->element;
      allowed += (allowed.empty() ? "" : " or ") + std::to_string(code->code);
    }
    throw bad(low, 3, meaning, allowed);
  }

  Failure bad(int low, int size, const char* meaning, std::string_view allowed) const {
    const std::string last = size == 1 ? "" : "-" + std::to_string(low + size - 1);
    return Failure("InstructionDescriptorError")
        .hex("descriptor", bits_)
        .with("kind", name_of(kind_))
        .with("field", std::to_string(low) + last)
        .with("meaning", meaning)
        .with("value", int64_t(read(low, size)))
        .with("allowed", allowed);
  }

 private:
  MmaKind kind_;
  uint32_t bits_;
};

using Result = MatrixForm::Result;

Result read_result(const Fields& fields, const MatrixForm& form) {
  constexpr const char* meaning = "the type of D: 0 is f16, 1 f32, 2 s32";
  switch (form.kind) {
    case MmaKind::TF32: fields.one_of(4, 2, {1}, meaning); return Result::F32;
    case MmaKind::I8: fields.one_of(4, 2, {2}, meaning); return Result::S32;
    default: break;
  }
  if (form.a == Element::BF16) fields.one_of(4, 2, {1}, meaning);
  return fields.one_of(4, 2, {0, 1}, meaning) == 0 ? Result::F16 : Result::F32;
}

Major read_major(const Fields& fields, int bit, Element element, const char* meaning) {
  if (can_be_mn_major(element)) return fields.read(bit, 1) ? Major::MN : Major::K;
  fields.one_of(bit, 1, {0}, meaning);
  return Major::K;
}

void read_scales(const Fields& fields, MatrixForm& form) {
  constexpr const char* meaning = "the type of the scales: 0 is ue4m3, 1 ue8m0";
  form.ue8m0 = form.block == 16 ? fields.one_of(23, 1, {0, 1}, meaning)
                                : fields.one_of(23, 1, {1}, meaning);
  constexpr const char* which = "the first byte of the scales";
  const auto read_id = [&](int low) {
    if (form.scales % 2 == 1) return fields.read(low, 2);
    return form.scales == 4 ? fields.one_of(low, 2, {0}, which)
                            : fields.one_of(low, 2, {0, 2}, which);
  };
  form.scale_b = read_id(4);
  form.scale_a = read_id(29);
}

// PTX ISA, tables of shapes: M, and the steps of N.
void check_shape(const Fields& fields, const MatrixForm& form, uint32_t group) {
  constexpr const char* meaning_m = "M / 16";
  if (form.k == 96) {
    // With M = 128 of a pair, where the second scales of a cell go on is not known.
    fields.one_of(24, 5, {8 * group}, meaning_m);
  } else if (group == 2) {
    fields.one_of(24, 5, {8, 16}, meaning_m);
  } else if (block_scaled(form.kind)) {
    fields.one_of(24, 5, {8}, meaning_m);
  } else {
    fields.one_of(24, 5, {4, 8}, meaning_m);
  }
  const bool integers = form.kind == MmaKind::I8;
  uint32_t step = 16;
  if (group == 2 && integers) step = 32;
  if (group == 1 && (form.m == 64 || block_scaled(form.kind)) && !integers) step = 8;
  const bool small = integers && group == 1 && (form.n == 8 || form.n == 24);
  if (form.n == 0 || form.n > 256 || (form.n % step != 0 && !small)) {
    throw fields.bad(17, 6, "N / 8",
                     "N a multiple of " + std::to_string(step) + " up to 256, and not 0" +
                         (integers && group == 1 ? ", or 8 or 24" : ""));
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
  form.m = fields.read(24, 5) * 16;
  form.n = fields.read(17, 6) * 8;
  fields.one_of(0, 3, {0}, "sparsity, which tcgen05.mma.sp has");
  fields.one_of(6, 1, {0}, "reserved");
  form.a = fields.element(7, "the type of A");
  form.b = fields.element(10, "the type of B");
  if (kind == MmaKind::F16 && form.a != form.b) {
    throw fields.bad(10, 3, "the type of B", "the type of A");
  }
  if (kind == MmaKind::I8) fields.one_of(13, 2, {0}, "the negation of integers");
  form.negate = fields.read(13, 1) != fields.read(14, 1);
  form.a_major = read_major(fields, 15, form.a, "the transposition of A: 1 is M-major");
  form.b_major = read_major(fields, 16, form.b, "the transposition of B: 1 is N-major");
  if (block_scaled(kind)) {
    fields.one_of(3, 1, {0}, "reserved");
    if (has_k96 && form.k == 64) {
      form.k = fields.read(31, 1) ? 96 : 64;
    } else {
      fields.one_of(31, 1, {0}, "the size of K: 1 is 96, for 4-bit types on sm_103a");
    }
    form.block = modifiers.block;
    form.scales = form.k / form.block;
    read_scales(fields, form);
  } else {
    form.saturate = kind == MmaKind::I8 ? fields.read(3, 1)
                                        : fields.one_of(3, 1, {0}, "saturation of integers");
    form.d = read_result(fields, form);
    fields.one_of(23, 1, {0}, "reserved");
    fields.one_of(29, 1, {0}, "reserved");
    fields.one_of(30, 2, {0}, "the shift of B, which tcgen05.mma.ws has");
  }
  check_shape(fields, form, modifiers.group);
  return form;
}

}  // namespace emu
