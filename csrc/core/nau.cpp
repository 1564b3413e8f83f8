// Neural Addition Unit (Madsen, Johansen 2020), forward and backward, for layers so small that a product of torch's own
// costs mostly its calls.
//
//   y = A x    A = min(max(w, -1), 1), or w itself    dx = A' grad_y    dw = grad_y x', 0 where the clip bounds
#include "layers/nau.h"
#include "api.h"
#include "panel.h"
#include "product.h"
#include "row_groups.h"

namespace npu {
namespace NPU_ISA {
namespace {

// A of one model as an operand of add_product: sums over inputs (columns = outputs) or the reverse.
template <typename T>
void pack_weight(const NauInputs<T>& in, int64_t model, bool over_inputs, T* packed) {
  const T* weight = in.weight + model * in.out * in.in;
  if (over_inputs) pack<T>(weight, in.out, in.in, in.in, 1, packed);
  else pack<T>(weight, in.in, 1, in.out, in.in, packed);
  if (!in.clip) return;
  const int64_t size = over_inputs ? round_up(in.out, kColumns) * in.in : round_up(in.in, kColumns) * in.out;
  for (int64_t n = 0; n < size; ++n) packed[n] = clip_weight(packed[n]);
}

// to [columns][registers] = packed times from [count][registers]; registers: a multiple of kRegisters.
template <typename T>
void multiply(const T* from, int64_t count, const T* packed, int64_t columns, int64_t registers, T* to) {
  using S = Simd<T>;
  constexpr int W = S::width;
  for (int64_t c = 0; c < columns; c += kColumns) {
    for (int64_t v = 0; v < registers; v += kRegisters) {
      typename S::Reg tile[kRegisters][kColumns] = {};
      add_product<T>(from + v * W, registers * W, packed + c * count, count, tile);
      for (int n = 0; n < kColumns && c + n < columns; ++n)
        for (int r = 0; r < kRegisters; ++r) S::store(to + ((c + n) * registers + v + r) * W, tile[r][n]);
    }
  }
}

// Up to so many weights, the sums over rows have a register of rows for each weight; beyond, a register of inputs. In
// a layer this small, most of a register of inputs would be empty, and every row would cost a step.
constexpr int64_t kFewWeights = 64;

// One row group of one model.
template <typename T>
class BackwardGroup {
  using S = Simd<T>;

 public:
  explicit BackwardGroup(const NauBackward<T>& f)
      : f_(f),
        in_(f.inputs),
        few_(in_.in * in_.out <= kFewWeights),
        in_padded_(round_up(in_.in, kLanes<T>)),
        weight_(f.grad_x != nullptr ? round_up(in_.in, kColumns) * in_.out : 0),
        transposed_(in_.out * kBlockRows),
        transposed_x_(in_.in * kBlockRows),
        packed_(few_ ? 0 : round_up(in_.out, kColumns) * kBlockRows),
        rows_(few_ ? 0 : kBlockRows * in_padded_),
        sums_(few_ ? round_up(in_.in * in_.out, S::width) * S::width : 0) {}

  // grad_weight: [O, I], overwritten by the sums over rows [begin, end); null: not wanted.
  void run(int64_t model, int64_t begin, int64_t end, T* grad_weight) {
    if (f_.grad_x != nullptr && model != model_) pack_weight<T>(in_, model, false, weight_);
    model_ = model;
    const bool few = few_ && grad_weight != nullptr;
    if (grad_weight != nullptr) std::memset(grad_weight, 0, size_t(in_.out * in_.in) * sizeof(T));
    if (few) std::memset(sums_, 0, size_t(round_up(in_.in * in_.out, S::width) * S::width) * sizeof(T));
    for (int64_t row = begin; row < end; row += kBlockRows) {
      const int64_t rows = min(kBlockRows, end - row);
      const int64_t registers = round_up(ceil_div(rows, S::width), kRegisters);
      const T* grad_y = f_.grad_y + (model * in_.rows + row) * in_.out;
      const T* x = in_.x + ((in_.shared_x ? 0 : model * in_.rows) + row) * in_.in;
      if (few || f_.grad_x != nullptr) transpose<T>(grad_y, in_.out, rows, registers, transposed_);
      if (few) add_few(x, rows, registers);
      else if (grad_weight != nullptr) add_many(x, grad_y, rows, grad_weight);
      if (f_.grad_x != nullptr) into_x(rows, registers, f_.grad_x + (model * in_.rows + row) * in_.in);
    }
    if (few) end_few(grad_weight);
  }

 private:
  // sums[o][i] += grad_y_o x_i, lane by lane. Beyond the last row both are zero.
  void add_few(const T* x, int64_t rows, int64_t registers) {
    transpose<T>(x, in_.in, rows, registers, transposed_x_);
    for (int64_t o = 0; o < in_.out; ++o) {
      for (int64_t i = 0; i < in_.in; ++i) {
        typename S::Reg sum = S::zero();
        for (int64_t v = 0; v < registers; ++v)
          sum = S::fma(S::load(transposed_ + (o * registers + v) * S::width),
                       S::load(transposed_x_ + (i * registers + v) * S::width), sum);
        T* at = sums_ + (o * in_.in + i) * S::width;
        S::store(at, S::load(at) + sum);
      }
    }
  }

  // The sums of the lanes.
  void end_few(T* grad_weight) {
    const int64_t size = in_.in * in_.out;
    for (int64_t n = 0; n < size; n += S::width) {
      typename S::Reg lanes[S::width];
      for (int l = 0; l < S::width; ++l) lanes[l] = S::load(sums_ + (n + l) * S::width);
      S::store_first(grad_weight + n, S::sum_each(lanes), int(min<int64_t>(S::width, size - n)));
    }
  }

  void add_many(const T* x, const T* grad_y, int64_t rows, T* grad_weight) {
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t i = 0; i < in_padded_; i += S::width) {
        const int count = int(max<int64_t>(0, min<int64_t>(S::width, in_.in - i)));
        S::store(rows_ + r * in_padded_ + i, count > 0 ? S::load_first(x + r * in_.in + i, count) : S::zero());
      }
    }
    pack<T>(grad_y, in_.out, 1, rows, in_.out, packed_);
    add_sums<T>(rows_, in_padded_, in_.in, packed_, in_.out, rows, grad_weight);
  }

  void into_x(int64_t rows, int64_t registers, T* grad_x) {
    multiply<T>(transposed_, in_.out, weight_, in_.in, registers, transposed_x_);
    transpose_back<T>(transposed_x_, in_.in, rows, registers, grad_x);
  }

  const NauBackward<T>& f_;
  const NauInputs<T>& in_;
  bool few_;
  int64_t in_padded_, model_ = -1;
  Scratch<T> weight_, transposed_, transposed_x_, packed_, rows_, sums_;
};

}  // namespace

template <typename T>
void nau_forward(const NauForward<T>& f, const Parallel& parallel) {
  const NauInputs<T>& in = f.inputs;
  if (f.matrix != nullptr) {
    const int64_t size = in.models * in.out * in.in;
    for (int64_t n = 0; n < size; ++n) f.matrix[n] = in.clip ? clip_weight(in.weight[n]) : in.weight[n];
    return;
  }
  const int64_t blocks = ceil_div(in.rows, kBlockRows);
  parallel.over(in.models * blocks, [&](int64_t begin, int64_t end) {
    Scratch<T> weight(round_up(in.out, kColumns) * in.in), x(in.in * kBlockRows), y(in.out * kBlockRows);
    int64_t packed_model = -1;
    for (int64_t task = begin; task < end; ++task) {
      const int64_t model = task / blocks, row = task % blocks * kBlockRows;
      if (model != packed_model) pack_weight<T>(in, model, true, weight);
      packed_model = model;
      const int64_t rows = min(kBlockRows, in.rows - row);
      const int64_t registers = round_up(ceil_div(rows, Simd<T>::width), kRegisters);
      transpose<T>(in.x + ((in.shared_x ? 0 : model * in.rows) + row) * in.in, in.in, rows, registers, x);
      multiply<T>(x, in.in, weight, in.out, registers, y);
      transpose_back<T>(y, in.out, rows, registers, f.y + (model * in.rows + row) * in.out);
    }
  });
}

template <typename T>
void nau_backward(const NauBackward<T>& f, const Parallel& parallel) {
  const NauInputs<T>& in = f.inputs;
  const int64_t size = in.out * in.in;
  if (!f.only_clips) {
    const RowGroups groups(in.rows, kBlockRows, (int64_t(1) << 21) / max<int64_t>(size, 1));
    sum_rows(in.models, groups, size, parallel, f.grad_weight, [&] { return BackwardGroup<T>(f); });
  }
  if (f.grad_weight == nullptr || !in.clip) return;
  for (int64_t n = 0; n < in.models * size; ++n)
    if (!(in.weight[n] >= T(-1) && in.weight[n] <= T(1))) f.grad_weight[n] = T(0);
}

template void nau_forward<float>(const NauForward<float>&, const Parallel&);
template void nau_forward<double>(const NauForward<double>&, const Parallel&);
template void nau_backward<float>(const NauBackward<float>&, const Parallel&);
template void nau_backward<double>(const NauBackward<double>&, const Parallel&);

}  // namespace NPU_ISA
}  // namespace npu
