// Reductions of whole arrays, which copies do in place of writing.  PTX ISA,
// "cp.reduce.async.bulk".
//
// Sums of f32 keep subnormal numbers.  The PTX ISA says that they are flushed to zero "in the
// current implementation"; an H200 keeps them.
#pragma once

#include <cstddef>
#include <cstring>
#include <string_view>

#include "memory/reductions.hpp"

namespace emu {

class Machine;

// Combine `bytes` bytes of elements with those that are there.
using Reduce = void (*)(std::byte* to, const std::byte* from, size_t bytes);

template <class F, class T>
void reduce_elements(std::byte* to, const std::byte* from, size_t bytes) {
  for (size_t at = 0; at < bytes; at += sizeof(T)) {
    T a, b;
    std::memcpy(&a, to + at, sizeof a);
    std::memcpy(&b, from + at, sizeof b);
    a = F{}(a, b);
    std::memcpy(to + at, &a, sizeof a);
  }
}

// f(operation, As<type>) for names such as "add" and "bf16"; an empty result where they do not go
// together.
template <class F>
auto with_bulk_reduction(std::string_view operation, std::string_view type, F&& f)
    -> decltype(f(reductions::And{}, reductions::As<uint32_t>{})) {
  const bool wide = type.size() > 2 && type.substr(type.size() - 2) == "64";
  const bool narrow = type == "f16" || type == "bf16";
  const Type of{std::string(type), Kind::Bits, wide ? 64u : narrow ? 16u : 32u};
  return with_reduction(operation, of, f);
}

Reduce reduction_named(std::string_view operation, std::string_view type);

// The same in global memory, where other workers may do it too.
void reduce_global(Machine& machine, Reduce reduce, std::byte* to, const std::byte* from,
                   size_t bytes);

}  // namespace emu
