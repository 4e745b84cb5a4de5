// Matrices that a warp holds in its registers, for mma.sync and wgmma.
//
// PTX ISA, "Matrix Fragments for mma.m16n8k16" and its relatives, "Register Fragments for wgmma":
// lane l has, of rows l/4 and l/4 + 8, four bytes of every 16 along K of the factor A; of D, two
// neighbouring columns of every eight.  B has its columns where A has its rows, l/4 alone.
//
// Deliberately does not multiply.
#pragma once

#include <cstddef>
#include <cstdint>

#include "machine/step.hpp"
#include "matrices/accumulators.hpp"
#include "matrices/products.hpp"

namespace emu {

constexpr uint32_t FRAGMENT_ROWS = 16;   // of A and D
constexpr uint32_t FRAGMENT_BYTES = 32;  // of a row of A, at most

// Registers of a vector operand, at any time after its instruction was issued.
class Fragment {
 public:
  Fragment(const Step& step, const Operand& vector)
      : registers_(step.registers), elements_(&step.element(vector, 0)), count_(vector.count) {}

  uint32_t count() const { return count_; }
  uint32_t* operator[](uint32_t index) const {
    return reinterpret_cast<uint32_t*>(registers_ + elements_[index].place);
  }

 private:
  std::byte* registers_;
  const Operand* elements_;
  uint32_t count_;
};

// Read A, [row][byte along K], with `bytes` of each row: 16 or 32.
void read_rows(const Fragment& a, uint32_t bytes, std::byte* to);
// Read B of eight columns, [column][byte along K].
void read_columns(const Fragment& b, uint32_t bytes, std::byte* to);

// D = A * B + C, or D = A * B: with the products of 16 rows, into the registers of D.  Those of C
// may be the same, each in its place.
void add_fragment(const Factors& factors, const Accumulator& how, Result type,
                  const uint32_t* const* c, const Fragment& d);

// Turn rows of numbers, [row][k], into the order that `Factors` has for A, [k][row].
void turn(const double* rows, uint32_t count, uint32_t depth, double* to);

}  // namespace emu
