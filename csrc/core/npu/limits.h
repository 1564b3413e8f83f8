// Which form of the NPU family's kernels takes a layer: all limits between the forms. Any form is right at any size
// that it can take (csrc/tests/kernels_test.cpp tries all of them around the limits), and the limits say which one is
// fastest: csrc/tests/limits_times.cpp times the forms on both sides.
#pragma once

#include "layers/npu.h"
#include "simd/registers.h"

namespace npu {

// Tiles of bfloat16 (npu/tiled.h): float32 only, in place of all the forms below.

// Large enough for tiles, whose work is padded to whole blocks of 32 rows, 32 inputs and 16 outputs (RealNPU: 32): at
// most `most_padding` times the work without.
NPU_INLINE bool fills_tiles(const NpuInputs<float>& in, double most_padding) {
  const auto padded = [](int64_t n, int64_t step) { return double((n + step - 1) / step * step); };
  const int64_t outputs = in.weight_im != nullptr ? 16 : 32;
  return in.rows >= 64 && in.in >= 32 && in.out >= 16 &&
         padded(in.rows, 32) * padded(in.in, 32) * padded(in.out, outputs) <=
             most_padding * double(in.rows) * double(in.in) * double(in.out);
}

// A vdpbf16ps does twice the work of a float32 multiply-add: one product of terms instead of a float32 product pays,
// three or six do not.
NPU_INLINE bool takes_avx512_bf16(const NpuInputs<float>& in) { return in.terms == 1 && fills_tiles(in, 1.3); }

// A tile instruction does 16 times the work of a multiply-add's cycle. A float32 product takes six of them: small
// layers gain nothing then, and what larger ones gain must not be lost in padding. Fewer terms always gain.
NPU_INLINE bool takes_amx(const NpuInputs<float>& in) {
  if (in.terms < 3) return fills_tiles(in, 2);
  const int64_t weights = in.in * in.out, large = 100 * 100;
  return weights >= (in.weight_im != nullptr ? 64 * 64 : large) && fills_tiles(in, weights >= large ? 1.5 : 1.3);
}

namespace NPU_ISA {

// Whether there is the form in which a register holds outputs, and mask products come from tables in memory.
#if defined(__AVX2__) && !defined(__AVX512F__)
constexpr bool kOutputsAsLanes = true;
#else
constexpr bool kOutputsAsLanes = false;
#endif

// The forms that have something in registers or on the stack for each out or product have room for so many.
constexpr int64_t kTinyProducts = 12;  // inputs times outputs of a tiny layer, or of its step (npu/step.h)
#if defined(__AVX512F__)
constexpr bool kMasked = true;  // a load of some lanes costs as much as one of all; elsewhere these are copied
constexpr int kForwardFewOutputs = 2, kBackwardFewOutputs = 4;
#else
constexpr bool kMasked = false;
constexpr int kForwardFewOutputs = 0, kBackwardFewOutputs = 2;  // 0: the form gains nothing
#endif

// Measured on a Zen 5 with AVX-512 and with AVX2, on a Zen 3 with AVX2, and on a Xeon.
template <typename T>
struct Limits {
  static constexpr int64_t W = NPU_VECTOR_BYTES / sizeof(T);
  static constexpr bool single = sizeof(T) == sizeof(float);

  static NPU_INLINE NpuForwardForm forward(const NpuInputs<T>& in) {
    if (in.in < W && in.out < W && (in.in * in.out <= 2 || (single && is_tiny(in)))) return NpuForwardForm::kTiny;
    if (in.out > 0 && in.out <= kForwardFewOutputs && in.in >= in.out * least_in(in.rows))
      return NpuForwardForm::kFewOutputs;
    if (in.rows <= few_rows(in.in, in.weight_im != nullptr)) return NpuForwardForm::kFewRows;
    if (takes_outputs(in)) return NpuForwardForm::kOutputs;
    return NpuForwardForm::kPanels;
  }

  // Fewer rows leave most of the registers that a tiny layer works on at once empty.
  static NPU_INLINE bool is_tiny(const NpuInputs<T>& in) {
    return in.in <= W && in.out <= W && in.in * in.out <= kTinyProducts && in.rows > 2 * W;
  }

  static NPU_INLINE NpuBackwardForm backward(const NpuInputs<T>& in) {
    if (in.in == 0) return NpuBackwardForm::kNarrow;
    const bool few_outputs = in.out > 0 && in.out <= kBackwardFewOutputs;
    if (kMasked) {
      if (few_outputs && (8 * in.in >= 3 * W || in.rows <= 12 * in.in + 16)) return NpuBackwardForm::kFewOutputs;
      if (in.in >= W || 5 * in.rows <= 3 * in.in * in.in + 30) return NpuBackwardForm::kWide;
      return NpuBackwardForm::kNarrow;
    }
    // Few rows leave most of a register of the narrow form empty.
    if (in.in < W && few_outputs && 4 * in.rows <= 3 * in.in * in.in) return NpuBackwardForm::kFewOutputs;
    if (in.in < W && in.rows > in.in) return NpuBackwardForm::kNarrow;
    // The narrow form transposes one register of inputs and of outputs without a condition.
    const bool square = in.in == W && in.out >= W && in.rows > 3 * W;
    // Its threads do not share the rows of a group (npu/backward_groups.h). Up to some 1,024 rows are one group, whose
    // rows the threads of another form share; more rows are up to 16 groups, enough for the threads.
    const bool large = (in.rows < 1024 ? in.rows : 1024) * in.in * in.out > kMaxNarrow;
    if ((fills_registers(in.in) && !square) || large || in.rows <= in.in)
      return few_outputs ? NpuBackwardForm::kFewOutputs : NpuBackwardForm::kWide;
    return NpuBackwardForm::kNarrow;
  }

  // Whether registers of so many features are nearly whole: at least three quarters of their lanes.
  static NPU_INLINE bool nearly_fills(int64_t n) { return 3 * ((n + W - 1) / W * W) <= 4 * n; }

  // Registers of four lanes waste little.
  static NPU_INLINE bool takes_outputs(const NpuInputs<T>& in) {
    return kOutputsAsLanes && in.weight_im != nullptr && 2 * in.in >= W && nearly_fills(in.out) &&
           (W < 8 || in.in < W || nearly_fills(in.in));
  }

 private:
  static constexpr int64_t kMaxNarrow = int64_t(1) << 19;

  // Without masks a register of inputs that is not whole costs several whole ones.
  static NPU_INLINE bool fills_registers(int64_t in) { return in % W == 0 || in >= 12 * W; }

  // The inputs for each of one or two outputs: many rows, and panels are the better ones in registers that are not
  // whole.
  static NPU_INLINE int64_t least_in(int64_t rows) { return rows <= W ? W / 2 : (rows <= 2 * W ? W : 2 * W); }

  // Rows up to which reading the weights as they lie costs less than packing them for panels. Whole tiles of four rows.
  static NPU_INLINE int64_t few_rows(int64_t in, bool complex) {
    if (in < W) return kMasked && 4 * in >= W ? 4 : 0;
    if (!kMasked) return fills_registers(in) ? (W >= 8 ? 12 : (in == W ? 8 : 24)) : (single ? 4 : 0);
    if (single) return 4 * ((in < 64 ? 1 : (in < 256 ? 2 : 3)) + complex);
    return in < 256 ? 12 : 8;
  }
};

}  // namespace NPU_ISA
}  // namespace npu
