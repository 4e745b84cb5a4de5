// wgmma: the products of a warpgroup, which read shared memory and happen later.  PTX ISA,
// "Asynchronous Warpgroup Level Matrix Instructions".
//
// Each of the four warps executes the instruction and computes its 16 rows of D, in the order of
// issue.  Registers are read and written when the product happens: one that is changed before the
// group is waited for, or read too early, has another value in some schedules.  That there
// is a wgmma.fence before a warp's first product is checked here; which registers it orders,
// `flexfa4.emulator.decode.wgmma_registers` looks at.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>

#include "machine/cluster.hpp"
#include "machine/machine.hpp"
#include "machine/warp.hpp"
#include "matrices/descriptors.hpp"
#include "matrices/fragments.hpp"
#include "matrices/product_types.hpp"
#include "program/operation.hpp"
#include "races/races.hpp"

namespace emu {

namespace {

constexpr uint32_t M = 64;  // of a warpgroup
constexpr uint32_t WARPS = 4;
constexpr uint32_t ROW_PIECES = FRAGMENT_BYTES / Pieces::SIZE;  // of A and B along K
constexpr uint32_t MOST_COLUMNS = 256;
constexpr uint32_t MOST_DEPTH = 32;

// One product of one warp, as its instruction says.
struct Product {
  Product(const Step& step, const ProductTypes& types);

  Cta* cta;
  uint32_t warp;  // of the warpgroup
  ProductTypes types;
  Fragment d;
  uint32_t n, depth;
  std::optional<Fragment> a;  // none: A is in shared memory
  SharedMatrix a_shared, b_shared;
  Major a_major = Major::K, b_major = Major::K;
  double sign = 1;  // of A times that of B
  Accumulator how;

  Pieces a_pieces() const;
  Pieces b_pieces() const;
  void happen() const;
};

Pieces Product::a_pieces() const {
  const uint32_t first = warp * FRAGMENT_ROWS;
  if (a_major == Major::K) {
    const Pieces all(a_shared, Major::K, M, ROW_PIECES);
    return Pieces(all, {ROW_PIECES, first, FRAGMENT_ROWS, 0, ROW_PIECES});
  }
  const uint32_t per_line = M / per_piece(types.a), own = FRAGMENT_ROWS / per_piece(types.a);
  const Pieces all(a_shared, Major::MN, depth, per_line);
  return Pieces(all, {per_line, 0, depth, warp * own, own});
}

Pieces Product::b_pieces() const {
  if (b_major == Major::K) return Pieces(b_shared, Major::K, n, ROW_PIECES);
  return Pieces(b_shared, Major::MN, depth, n / per_piece(types.b));
}

// Room for the matrices of one product, which each worker keeps.
struct Scratch {
  std::byte bytes[Pieces::MOST * Pieces::SIZE];
  alignas(64) double wide[MOST_COLUMNS * MOST_DEPTH];
  alignas(64) double a[FRAGMENT_ROWS * MOST_DEPTH];
  alignas(64) double b[MOST_COLUMNS * MOST_DEPTH];
};

Scratch& scratch() {
  static thread_local const std::unique_ptr<Scratch> own = std::make_unique<Scratch>();
  return *own;
}

void Product::happen() const {
  Scratch& room = scratch();
  if (a) {
    read_rows(*a, FRAGMENT_BYTES, room.bytes);
    widen_pieces(types.a, room.bytes, FRAGMENT_ROWS * ROW_PIECES, room.wide);
    turn(room.wide, FRAGMENT_ROWS, depth, room.a);
  } else {
    const Pieces pieces = a_pieces();
    pieces.gather(*cta, room.bytes);
    const bool by_rows = a_major == Major::K;
    widen_pieces(types.a, room.bytes, pieces.size(), by_rows ? room.wide : room.a);
    if (by_rows) turn(room.wide, FRAGMENT_ROWS, depth, room.a);
  }
  const Pieces pieces = b_pieces();
  pieces.gather(*cta, room.bytes);
  widen_pieces(types.b, room.bytes, pieces.size(), room.wide);
  const double* b = room.wide;
  if (b_major == Major::MN) {
    turn(room.wide, depth, n, room.b);
    b = room.b;
  }
  if (sign < 0) {
    for (uint32_t i = 0; i < FRAGMENT_ROWS * depth; ++i) room.a[i] = -room.a[i];
  }
  const uint32_t* old[MOST_COLUMNS / 2];
  for (uint32_t index = 0; index < d.count(); ++index) old[index] = d[index];
  add_fragment({room.a, FRAGMENT_ROWS, b, depth, FRAGMENT_ROWS, n, depth}, how, types.d, old, d);
}

double sign_of(const Step& step, const char* role) {
  const int index = step.operation().find(role);
  if (index < 0) return 1;
  const int64_t sign = int32_t(step.operand(index).value);
  if (sign != 1 && sign != -1) {
    throw Failure("WgmmaScaleError").with("operand", role).with("scale", sign);
  }
  return double(sign);
}

Major major_of(const Step& step, const char* role) {
  const int index = step.operation().find(role);
  if (index < 0) return Major::K;
  const int64_t transposed = step.operand(index).value;
  if (transposed != 0 && transposed != 1) {
    throw Failure("WgmmaTransposeError").with("operand", role).with("found_value", transposed);
  }
  return transposed ? Major::MN : Major::K;
}

SharedMatrix descriptor(const Step& step, const char* role) {
  const Operand& operand = step.operand(step.operation().position(role));
  return read_descriptor_sm90(step.uniform(operand), role);
}

bool accumulates(const Step& step) {
  return step.uniform(step.operand(step.operation().position("scale_d"))) != 0;
}

Product::Product(const Step& step, const ProductTypes& types)
    : cta(&step.cta()),
      warp(step.warp.index % WARPS),
      types(types),
      d(step, step.operand(step.operation().position("d"))),
      n(d.count() * (types.d == Result::F16 ? 4 : 2)),
      depth(ROW_PIECES * per_piece(types.a)) {
  if (const int index = step.operation().find("a"); index >= 0) {
    a.emplace(step, step.operand(index));
  } else {
    a_shared = descriptor(step, "a_desc");
    a_major = major_of(step, "trans_a");
  }
  b_shared = descriptor(step, "b_desc");
  b_major = major_of(step, "trans_b");
  sign = sign_of(step, "scale_a") * sign_of(step, "scale_b");
  how = {accumulates(step), 1.0, types.saturate};
}

// "wgmma m64n128k16 bf16.bf16", once for the four warps.
void count_product(const Step& step, const Product& product) {
  if (product.warp == 0) ++step.cluster().counters.matrices[step.operation().text];
}

// The products of a warp, and the ends of its groups among them, happen in order.
Engines::Queue queue_of(const Step& step) {
  return Engines::queue(Engines::Kind::Wgmma, step.cta().rank, step.warp.index);
}

Flow issue(Step& step) {
  if (!step.aligned()) return step.wait_for_lanes(ALL_LANES);
  if (!step.warp.wgmma.fenced) throw Failure("WgmmaFenceError");
  const uint64_t warps = step.cta().warps.size();
  if (warps < (step.warp.index / WARPS + 1) * WARPS) {
    throw Failure("WarpgroupError").with("warps", warps);
  }
  const auto product =
      std::make_shared<const Product>(step, from_detail<ProductTypes>(step.code.detail));
  count_product(step, *product);
  if (Races* races = step.races()) {
    const Races::Issued by = races->issue(step, Races::Stream::Wgmma);
    const auto read = [&](uint32_t offset, uint32_t bytes) {
      races->touch(by, {Region::Is::Shared, product->cta}, offset, bytes, Touch::Read);
    };
    if (!product->a) product->a_pieces().for_each_range(read);
    product->b_pieces().for_each_range(read);
  }
  step.cluster().engines.defer(step, queue_of(step), [product] { product->happen(); });
  return Flow::Next;
}

Binding bind_product(const Operation& op) {
  op.implied({"wgmma_k8", "wgmma_k16", "wgmma_k32", "wgmma_k32_int"});  // registers say the shape
  const auto types = product_types(op);
  if (!types) return {};
  return {issue, true, to_detail(*types)};
}

// ---- groups

Flow fence(Step& step) {
  if (!step.aligned()) return step.wait_for_lanes(ALL_LANES);
  step.warp.wgmma.fenced = true;
  return Flow::Next;
}

Flow commit(Step& step) {
  if (!step.aligned()) return step.wait_for_lanes(ALL_LANES);
  Races* races = step.races();
  step.warp.wgmma.commit(races ? races->mark(step, Races::Stream::Wgmma) : 0);
  WgmmaGroups* groups = &step.warp.wgmma;
  Cluster* cluster = &step.cluster();
  cluster->engines.defer(step, queue_of(step), [groups, cluster] {
    groups->finish();
    ++cluster->version;
  });
  return Flow::Next;
}

std::string describe_groups(const Waiting& waiting) {
  const Warp& warp = *waiting.cta->warps[waiting.object];
  return "all but " + std::to_string(waiting.detail) + " of its warpgroup's wgmma groups; warp " +
         std::to_string(waiting.object) + " has " + std::to_string(warp.wgmma.pending()) +
         " that are not complete";
}

// A product is the warpgroup's: it is done when the parts of all four warps are.
Flow wait(Step& step) {
  if (!step.aligned()) return step.wait_for_lanes(ALL_LANES);
  const uint64_t left = uint64_t(step.operand(0).value);
  const uint64_t groups = step.warp.wgmma.but(left);
  const auto& warps = step.cta().warps;
  const uint32_t first = step.warp.index / WARPS * WARPS;
  const uint32_t stop = std::min(first + WARPS, uint32_t(warps.size()));
  for (uint32_t index = first; index < stop; ++index) {
    const Warp& warp = *warps[index];
    if (!warp.wgmma.done(groups) && (warp.alive() || warp.wgmma.pending())) {
      return step.wait_for({describe_groups, &step.cta(), index, left, false});
    }
  }
  if (Races* races = step.races()) {
    for (uint32_t index = first; index < stop; ++index) {
      const Warp& warp = *warps[index];
      if (!warp.wgmma.done(groups)) continue;  // it has exited before
      races->complete(step, Races::Stream::Wgmma, warp.wgmma.mark(groups), warp);
    }
  }
  return Flow::Next;
}

Binding bind_fence(const Operation&) { return {fence, true}; }
Binding bind_commit(const Operation&) { return {commit, true}; }
Binding bind_wait(const Operation&) { return {wait, true}; }

const Registration registration{
    {"wgmma.mma_async.sync.aligned", bind_product},
    {"wgmma.fence.sync.aligned", bind_fence},
    {"wgmma.commit_group.sync.aligned", bind_commit},
    {"wgmma.wait_group.sync.aligned", bind_wait},
};

}  // namespace

}  // namespace emu
