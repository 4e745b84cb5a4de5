// Counting, finding and moving bits: popc, clz, brev, bfind, fns, bfe, bfi, bmsk, szext.
//
// The PTX ISA's pseudo code for each of them goes bit by bit; positions and lengths past the end
// of a register are part of it.  Two things differ from it, as an H200 does: bfe and bfi of 64 bits
// take starts and lengths above 255 as they are, and fns with the smallest offset gives 0.
#include <algorithm>
#include <limits>

#include "arithmetic/dispatch.hpp"
#include "arithmetic/lane_loops.hpp"

namespace emu {

namespace {

constexpr uint32_t NOT_FOUND = 0xFFFF'FFFF;

// The `length` lowest bits; all from the size of the register on.
template <class U>
U low_bits(uint32_t length) {
  return length >= BITS<U> ? ~U(0) : (U(1) << length) - 1;
}

// ---- counting and finding

struct Popc {
  template <class U>
  uint32_t operator()(U a) const {
    return uint32_t(__builtin_popcountll(a));
  }
};

struct Clz {
  template <class U>
  uint32_t operator()(U a) const {
    return a ? uint32_t(__builtin_clzll(a)) - (64 - BITS<U>) : BITS<U>;
  }
};

struct Brev {
  template <class U>
  U operator()(U a) const {
    constexpr U every_second = ~U(0) / 3, pairs = ~U(0) / 5, nibbles = ~U(0) / 17;
    a = (a >> 1 & every_second) | (a & every_second) << 1;
    a = (a >> 2 & pairs) | (a & pairs) << 2;
    a = (a >> 4 & nibbles) | (a & nibbles) << 4;
    if constexpr (sizeof(U) == 8) {
      return __builtin_bswap64(a);
    } else {
      return __builtin_bswap32(a);
    }
  }
};

// The highest bit that differs from the sign: its position, or with SHIFT how far it is from the
// top.
template <bool SHIFT>
struct Bfind {
  template <class T>
  uint32_t operator()(T a) const {
    using U = std::make_unsigned_t<T>;
    const U bits = a < 0 ? U(~a) : U(a);
    if (!bits) return NOT_FOUND;
    return SHIFT ? Clz{}(bits) : BITS<U> - 1 - Clz{}(bits);
  }
};

// The offset-th bit of the mask that is set, counted from the base, up or, negative, down.
struct Fns {
  uint32_t operator()(uint32_t mask, uint32_t base, int32_t offset) const {
    if (offset == std::numeric_limits<int32_t>::min()) return 0;
    if (base >= WARP) return NOT_FOUND;
    if (!offset) return mask >> base & 1 ? base : NOT_FOUND;
    const int32_t step = offset > 0 ? 1 : -1;
    int32_t left = offset > 0 ? offset : -offset;
    for (int32_t at = int32_t(base); at >= 0 && at < WARP; at += step) {
      if ((mask >> at & 1) && --left == 0) return uint32_t(at);
    }
    return NOT_FOUND;
  }
};

// ---- fields

// What counts of a start or a length: 8 bits of it for registers of 32 bits.
template <class U>
uint32_t counted(uint32_t position) {
  return sizeof(U) == 4 ? position & 0xFF : position;
}

struct Bfe {
  template <class T>
  T operator()(T a, uint32_t start, uint32_t length) const {
    using U = std::make_unsigned_t<T>;
    start = counted<U>(start);
    length = counted<U>(length);
    if (!length) return 0;
    const bool outside = start >= BITS<U>;
    const uint32_t width = outside ? 0 : std::min(length, BITS<U> - start);
    const U field = outside ? 0 : U(a) >> start & low_bits<U>(width);
    const uint32_t last = outside ? BITS<U> - 1 : start + width - 1;
    const bool sign = std::is_signed_v<T> && (U(a) >> last & 1);
    return T(sign ? field | ~low_bits<U>(width) : field);
  }
};

struct Bfi {
  template <class U>
  U operator()(U a, U b, uint32_t start, uint32_t length) const {
    start = counted<U>(start);
    if (start >= BITS<U>) return b;
    const U field = low_bits<U>(counted<U>(length)) << start;
    return (b & ~field) | (a << start & field);
  }
};

template <bool CLAMP>
struct Bmsk {
  uint32_t operator()(uint32_t start, uint32_t length) const {
    if (CLAMP && start >= 32) return 0;
    const uint32_t from = start & 31;
    const uint32_t bits = CLAMP ? length : length & 31;
    return low_bits<uint32_t>(bits) << from;
  }
};

template <bool CLAMP>
struct Szext {
  template <class T>
  T operator()(T a, uint32_t length) const {
    if (CLAMP && length >= 32) return a;
    const uint32_t mask = low_bits<uint32_t>(length & 31);
    const bool sign = std::is_signed_v<T> && (uint32_t(a) & (mask ^ mask >> 1));
    return T((uint32_t(a) & mask) | (sign ? ~mask : 0));
  }
};

// ---- binding

// Op from 32 or 64 bits to a number of 32 or, where D is void, to as many bits.
template <class Op, class D>
Binding bind_bits(const Operation& op) {
  return choose_size<uint32_t, uint64_t>(op.type("a").bits, [](auto t) {
    using T = decltype(t);
    return Binding{lanewise<Op, std::conditional_t<std::is_void_v<D>, T, D>, T>};
  });
}

Binding bind_bfind(const Operation& op) {
  return choose<uint32_t, int32_t, uint64_t, int64_t>(op.type("a"), [&](auto t) {
    return with_flag(op.has("shiftamt"), [](auto shift) {
      return Binding{lanewise<Bfind<shift()>, uint32_t, decltype(t)>};
    });
  });
}

Binding bind_fns(const Operation&) {
  return {lanewise<Fns, uint32_t, uint32_t, uint32_t, int32_t>};
}

Binding bind_bfe(const Operation& op) {
  return choose<uint32_t, int32_t, uint64_t, int64_t>(op.type("d"), [](auto t) {
    using T = decltype(t);
    return Binding{lanewise<Bfe, T, T, uint32_t, uint32_t>};
  });
}

Binding bind_bfi(const Operation& op) {
  return choose_size<uint32_t, uint64_t>(op.type("d").bits, [](auto t) {
    using T = decltype(t);
    return Binding{lanewise<Bfi, T, T, T, uint32_t, uint32_t>};
  });
}

Binding bind_bmsk(const Operation& op) {
  return with_flag(op.get("wrap") == "clamp", [](auto clamp) {
    return Binding{lanewise<Bmsk<clamp()>, uint32_t, uint32_t, uint32_t>};
  });
}

Binding bind_szext(const Operation& op) {
  return choose<uint32_t, int32_t>(op.type("d"), [&](auto t) {
    return with_flag(op.get("wrap") == "clamp", [](auto clamp) {
      using T = decltype(t);
      return Binding{lanewise<Szext<clamp()>, T, T, uint32_t>};
    });
  });
}

const Registration registration{
    {"popc", bind_bits<Popc, uint32_t>},
    {"clz", bind_bits<Clz, uint32_t>},
    {"brev", bind_bits<Brev, void>},
    {"bfind", bind_bfind},
    {"fns", bind_fns},
    {"bfe", bind_bfe},
    {"bfi", bind_bfi},
    {"bmsk", bind_bmsk},
    {"szext", bind_szext},
};

}  // namespace

}  // namespace emu
