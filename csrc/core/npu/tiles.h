// Matrix products of float32 by tiles of bfloat16, on AMX's tile registers or on AVX512-BF16's vector registers.
//
// A float is the sum of up to three bfloat16 terms of 8 bits each: v = t0 + t1 + t2, each the rounded remainder of the
// ones before it. The product of two such sums without the terms of order 3 and above (a + b < 3: six products of
// terms) is as good as float32; two terms (three products) leave some 2^-17, one term 2^-9. What is exactly 0 or 1
// needs one term.
//
//   A tile   16 rows x 32 bfloat16 of the inner dimension k
//   B tile   16 pairs of k x 16 columns x 2
//   C tile   16 rows x 16 columns of float
//   panel    the tiles of 16 rows (columns): [k tiles][terms][a tile]
//
// A term below the least normal number counts as zero, and so does a product: an absolute error below 2^-125 per
// product of two operands, if neither is above 1. It reaches the last bit of a value from 2^-102 down.
#pragma once

#include <atomic>
#include <new>

#include "npu/side_work.h"
#include "panel.h"

namespace npu {
namespace NPU_ISA {

using Bf16 = uint16_t;

constexpr int kTile = 16;                          // rows of A and C, columns of B and C
constexpr int64_t kTilePair = 2 * kTile;           // rows, or columns, of two tiles
constexpr int kTileDepth = 32;                     // k
constexpr int64_t kTileSize = kTile * kTileDepth;  // bfloat16 of an A or B tile
constexpr int64_t kBlockSize = 4 * kTile * kTile;  // floats of the C block of an Engine: [2][2] tiles

namespace tiles {

using S = Simd<float>;
using Reg = S::Reg;
static_assert(S::width == kTile, "a register is a row of a C tile");

// Stores the terms of the 32 values a, b of one row, k in order: the row at `to` of one A tile for each term.
template <int terms>
NPU_INLINE void split_row(Reg a, Reg b, Bf16* to) {
  const auto wide = [](__m256i half) { return (Reg)_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16); };
  for (int z = 0; z < terms; ++z) {
    const __m512i row = (__m512i)_mm512_cvtne2ps_pbh((__m512)b, (__m512)a);
    _mm512_store_si512(to + z * kTileSize, row);
    if (z + 1 == terms) break;
    a = a - wide(_mm512_castsi512_si256(row));
    b = b - wide(_mm512_maskz_extracti64x4_epi64(0xf, row, 1));
  }
}

// Stores the terms of the 16 columns of a k (a) and of the next k (b): the pair at `to` of one B tile for each term.
template <int terms>
NPU_INLINE void split_pair(Reg a, Reg b, Bf16* to) {
  alignas(64) static constexpr uint16_t kZip[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                                    8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const __m512i zip = _mm512_load_si512(kZip);
  for (int z = 0; z < terms; ++z) {
    const __m512i pair = _mm512_permutexvar_epi16(zip, (__m512i)_mm512_cvtne2ps_pbh((__m512)b, (__m512)a));
    _mm512_store_si512(to + (terms - 1 - z) * kTileSize, pair);
    if (z + 1 == terms) break;
    a = a - (Reg)_mm512_slli_epi32(pair, 16);
    b = b - (Reg)_mm512_and_si512(pair, _mm512_set1_epi32(int(0xffff0000u)));
  }
}

// v in its first `count` lanes, 0 behind them.
NPU_INLINE Reg first_lanes(Reg v, int count) {
  return count >= kTile ? v : (Reg)_mm512_maskz_mov_ps(__mmask16(count > 0 ? (1u << count) - 1 : 0), (__m512)v);
}

// Stores the terms of two neighbouring rows of 32 values. Each row is a k: they are a pair of k of two B tiles, at
// `first` and at `second`. If `row` is not null, k runs along them too: they are rows of A tiles, at `row` and
// kTileDepth behind it.
template <int terms>
NPU_INLINE void split_rows(const Reg (&a)[2], const Reg (&b)[2], Bf16* row, Bf16* first, Bf16* second) {
  alignas(64) static constexpr uint16_t kZipLow[32] = {0, 32, 1, 33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
                                                       8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
  const __m512i low = _mm512_load_si512(kZipLow), high = _mm512_add_epi16(low, _mm512_set1_epi16(kTile));
  const auto wide = [](__m256i half) { return (Reg)_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16); };
  const auto subtract = [&](Reg(&v)[2], __m512i term) {
    v[0] = v[0] - wide(_mm512_castsi512_si256(term));
    v[1] = v[1] - wide(_mm512_maskz_extracti64x4_epi64(0xf, term, 1));
  };
  Reg rest_a[2] = {a[0], a[1]}, rest_b[2] = {b[0], b[1]};
  for (int z = 0; z < terms; ++z) {
    const __m512i term_a = (__m512i)_mm512_cvtne2ps_pbh((__m512)rest_a[1], (__m512)rest_a[0]);
    const __m512i term_b = (__m512i)_mm512_cvtne2ps_pbh((__m512)rest_b[1], (__m512)rest_b[0]);
    if (row != nullptr) {
      _mm512_store_si512(row + z * kTileSize, term_a);
      _mm512_store_si512(row + z * kTileSize + kTileDepth, term_b);
    }
    if (first != nullptr) {
      const int64_t at = (terms - 1 - z) * kTileSize;
      _mm512_store_si512(first + at, _mm512_permutex2var_epi16(term_a, low, term_b));
      _mm512_store_si512(second + at, _mm512_permutex2var_epi16(term_a, high, term_b));
    }
    if (z + 1 == terms) break;
    subtract(rest_a, term_a);
    subtract(rest_b, term_b);
  }
}

constexpr int kOne = 0x3f80;  // bfloat16 1

// The same of masks as of split_row: 1 in their lanes, 0 in the others.
NPU_INLINE void mask_row(S::Mask a, S::Mask b, Bf16* to) {
  _mm512_store_si512(to, _mm512_maskz_set1_epi16(__mmask32(a) | __mmask32(b) << 16, kOne));
}

// Infinities and nan have no terms, products and sums of large numbers overflow in other places than float32's: a model
// with an operand from 2^60 on is left to the ordinary kernels. So is one whose gradients are all below 2^-90, for the
// bits that their terms would lose. Sizes are compared as bits: those of nan are the largest.
class Ranges {
 public:
  // The largest of what passes by.
  class Largest {
   public:
    NPU_INLINE void see(Reg v) {
      const Sizes size = (Sizes)S::abs(v);
      sizes_ = size > sizes_ ? size : sizes_;
    }
    uint32_t bits() const {
      uint32_t most_bits = 0;
      for (int l = 0; l < S::width; ++l) most_bits = max(most_bits, uint32_t(sizes_[l]));
      return most_bits;
    }

   private:
    using Sizes = S::UnsignedBits;
    Sizes sizes_ = {};
  };

  explicit Ranges(int64_t models) : models_(models), all_(2 * models) {
    for (int64_t n = 0; n < 2 * models; ++n) new (all_ + n) std::atomic<uint32_t>(0);
  }

  void operand(int64_t model, const Largest& largest) const { raise(all_[model], largest.bits()); }
  void gradient(int64_t model, const Largest& largest) const { raise(all_[models_ + model], largest.bits()); }

  bool tame(int64_t model) const {
    const uint32_t gradient = all_[models_ + model];
    return all_[model] < exponent(60) && gradient < exponent(60) && (gradient == 0 || gradient >= exponent(-90));
  }

 private:
  static constexpr uint32_t exponent(int n) { return uint32_t(127 + n) << 23; }
  static void raise(std::atomic<uint32_t>& to, uint32_t bits) {
    uint32_t now = to.load(std::memory_order_relaxed);
    while (now < bits && !to.compare_exchange_weak(now, bits, std::memory_order_relaxed)) {
    }
  }

  const int64_t models_;
  Scratch<std::atomic<uint32_t>> all_;
};

// Sums of products in a C block of 2 x 2 tiles: begin, any number of add, end. The tile registers belong to the block
// in between.
//
// add() adds, over the k tiles and the pairs of terms (za, zb) with za + zb below the more terms of A and B, A[r] B[c]:
// two panels of A with a_terms each, two of B. The smaller terms come first. What waits in `side` is done meanwhile: an
// add over a k tile calls step() `steps` times.
#if defined(__AMX_BF16__)
class Engine {
  static constexpr int64_t kC = kTile * kTile;

 public:
  // The tile registers are this thread's while an Engine lives.
  Engine() {
    struct alignas(64) Config {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    };
    static constexpr Config config;
    _tile_loadconfig(&config);
  }
  ~Engine() { _tile_release(); }
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  template <int a_terms, int b_terms>
  static constexpr int steps = a_terms == 3 && b_terms == 3   ? 6
                               : a_terms == 2 && b_terms == 2 ? 3
                                                              : b_terms;

  // `resume` adds to what C holds.
  void begin(bool resume, const float* c) const {
    // Compilers do not know that the tile loads read memory.
    __asm__ volatile("" ::: "memory");
    if (resume) {
      _tile_loadd(0, c, 64);
      _tile_loadd(1, c + kC, 64);
      _tile_loadd(2, c + 2 * kC, 64);
      _tile_loadd(3, c + 3 * kC, 64);
    } else {
      _tile_zero(0);
      _tile_zero(1);
      _tile_zero(2);
      _tile_zero(3);
    }
  }

  void end(float* c) const {
    _tile_stored(0, c, 64);
    _tile_stored(1, c + kC, 64);
    _tile_stored(2, c + 2 * kC, 64);
    _tile_stored(3, c + 3 * kC, 64);
  }

  template <int a_terms, int b_terms>
  NPU_NOINLINE void add(const Bf16* const (&a)[2], const Bf16* const (&b)[2], int64_t k_tiles, float*,
                        SideWork& side) const {
    constexpr int orders = a_terms < b_terms ? b_terms : a_terms;
    for (int64_t k = 0; k < k_tiles; ++k) {
      const Bf16 *a0 = a[0] + k * a_terms * kTileSize, *a1 = a[1] + k * a_terms * kTileSize;
      const Bf16 *b0 = b[0] + k * b_terms * kTileSize, *b1 = b[1] + k * b_terms * kTileSize;
      if constexpr (a_terms == 3 && b_terms == 3) {
        // From one pair of terms to the next one side is loaded: 14 tiles for 24 products.
        load_a(a0, a1, 0);
        load_b(b0, b1, 0);
        add_products(side);
        load_b(b0, b1, 1);
        add_products(side);
        load_a(a0, a1, 1);
        add_products(side);
        load_b(b0, b1, 2);
        add_products(side);
        load_a(a0, a1, 2);
        add_products(side);
        load_a(a0, a1, 0);
        add_products(side);
      } else {
        for (int za = a_terms - 1; za >= 0; --za) {
          load_a(a0, a1, za);
          for (int zb = min(b_terms, orders - za) - 1; zb >= 0; --zb) {
            load_b(b0, b1, b_terms - 1 - zb);
            add_products(side);
          }
        }
      }
      if (k % (kAwakeSteps / steps<a_terms, b_terms>) == 0) stay_awake();
    }
  }

 private:
  // A tile store takes some 300 ns more if there was none for some 700 ns (measured on Granite Rapids, whatever the
  // code in between): so there is one after every 48 products, of any tile, to a line that nobody reads.
  static constexpr int kAwakeSteps = 12;  // of four products each
  NPU_INLINE void stay_awake() const { _tile_stored(4, unread_, 0); }
  static NPU_INLINE void load_a(const Bf16* a0, const Bf16* a1, int term) {
    _tile_loadd(4, a0 + term * kTileSize, 64);
    _tile_loadd(5, a1 + term * kTileSize, 64);
  }
  static NPU_INLINE void load_b(const Bf16* b0, const Bf16* b1, int term) {
    _tile_loadd(6, b0 + term * kTileSize, 64);
    _tile_loadd(7, b1 + term * kTileSize, 64);
  }
  static NPU_INLINE void add_products(SideWork& side) {
    side.step();  // tiles that are being loaded come first, so that no product waits for both
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }

  alignas(64) mutable char unread_[64];
};
#else
class Engine {
  static constexpr int kRows = 8;  // of A, by two columns of B: 16 accumulators

 public:
  // Products and side work share the vector units: there is nothing to gain by doing both at once.
  template <int a_terms, int b_terms>
  static constexpr int steps = 0;

  void begin(bool resume, float* c) const {
    if (!resume) std::memset(c, 0, size_t(kBlockSize) * sizeof(float));
  }
  void end(float*) const {}

  template <int a_terms, int b_terms>
  void add(const Bf16* const (&a)[2], const Bf16* const (&b)[2], int64_t k_tiles, float* c, SideWork&) const {
    for (int r = 0; r < 2 * kTile; r += kRows)
      rows<a_terms, b_terms>(a[r / kTile] + r % kTile * kTileDepth, b[0], b[1], k_tiles,
                             c + r / kTile * 2 * kTile * kTile + r % kTile * kTile);
  }

 private:
  // Each vdpbf16ps adds to its accumulator. Where more than one term is wanted, an accumulator's run ends with the k
  // tile: rounding errors grow with its length.
  template <int a_terms, int b_terms>
  static void rows(const Bf16* a, const Bf16* b0, const Bf16* b1, int64_t k_tiles, float* c) {
    constexpr int orders = a_terms < b_terms ? b_terms : a_terms;
    constexpr int64_t tile = kTile * kTile;
    for (int64_t k = 0; k < k_tiles;) {
      __m512 sum[kRows][2] = {};
      for (const int64_t end = orders > 1 ? k + 1 : k_tiles; k < end; ++k) {
        for (int za = a_terms - 1; za >= 0; --za) {
          const Bf16* a_tile = a + (k * a_terms + za) * kTileSize;
          for (int zb = min(b_terms, orders - za) - 1; zb >= 0; --zb) {
            const Bf16* b0_tile = b0 + (k * b_terms + b_terms - 1 - zb) * kTileSize;
            const Bf16* b1_tile = b1 + (k * b_terms + b_terms - 1 - zb) * kTileSize;
            for (int j = 0; j < kTileDepth; j += 2) {
              const __m512bh right0 = (__m512bh)_mm512_load_si512(b0_tile + j * kTile);
              const __m512bh right1 = (__m512bh)_mm512_load_si512(b1_tile + j * kTile);
              for (int r = 0; r < kRows; ++r) {
                int32_t pair;
                std::memcpy(&pair, a_tile + r * kTileDepth + j, sizeof pair);
                const __m512bh left = (__m512bh)_mm512_set1_epi32(pair);
                sum[r][0] = _mm512_dpbf16_ps(sum[r][0], left, right0);
                sum[r][1] = _mm512_dpbf16_ps(sum[r][1], left, right1);
              }
            }
          }
        }
      }
      // Or GCC loads C before the products, and two of the sums have no register left.
      __asm__ volatile("" ::: "memory");
      for (int r = 0; r < kRows; ++r)
        for (int n = 0; n < 2; ++n)
          S::store(c + n * tile + r * kTile, S::load(c + n * tile + r * kTile) + (Reg)sum[r][n]);
    }
  }
};
#endif

}  // namespace tiles
}  // namespace NPU_ISA
}  // namespace npu
