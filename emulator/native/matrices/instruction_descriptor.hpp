// The instruction descriptor of tcgen05.mma: types, shape and transpositions.
//
// Sources: PTX ISA, "Instruction Descriptor" and the tables of shapes of tcgen05.mma; CUTLASS
// include/cute/arch/mma_sm100_desc.hpp and mma_sm100_umma.hpp.
#pragma once

#include <cstdint>
#include <string>

#include "matrices/accumulators.hpp"
#include "matrices/descriptors.hpp"
#include "matrices/elements.hpp"

namespace emu {

enum class MmaKind : uint8_t { F16, TF32, F8F6F4, I8, MXF8F6F4, MXF4, MXF4NVF4 };

constexpr MmaKind MMA_KINDS[] = {
    MmaKind::F16,      MmaKind::TF32, MmaKind::F8F6F4,   MmaKind::I8,
    MmaKind::MXF8F6F4, MmaKind::MXF4, MmaKind::MXF4NVF4,
};

const char* name_of(MmaKind kind);  // "kind::f16"

constexpr bool block_scaled(MmaKind kind) { return kind >= MmaKind::MXF8F6F4; }

// What a product is of.
struct MatrixForm {
  MmaKind kind = MmaKind::F16;
  uint32_t m = 0, n = 0, k = 0;  // of both blocks of a pair together
  Element a = Element::F16, b = Element::F16;  // as they lie in shared memory
  Result d = Result::F32;
  Major a_major = Major::K, b_major = Major::K;
  bool negate = false;    // one of A and B
  bool saturate = false;  // integers

  uint32_t scales = 0;    // of a row of A or a column of B, for block scaling
  uint32_t block = 0;     // numbers along K for each of them
  bool ue8m0 = false;     // their type, else ue4m3
  uint32_t scale_a = 0, scale_b = 0;  // first byte of a cell that holds them

  // Bytes of a row of A and of a column of B, as they are read.
  uint32_t row_bytes() const { return k == 96 ? 48 : 32; }
  std::string name() const;  // "kind::f16 m128n128k16"
};

// What the modifiers say of a product, beside its descriptor.
struct MmaModifiers {
  MmaKind kind;
  uint8_t group;  // of cta_group
  uint8_t block;  // numbers along K for each scale, of kinds with block scales
  bool shift_a;
};

// Reads a descriptor, `has_k96` for an architecture where K may be 96.  Throws
// InstructionDescriptorError for what the emulator does not know.
MatrixForm read_instruction_descriptor(const MmaModifiers& modifiers, bool has_k96, uint32_t bits);

}  // namespace emu
