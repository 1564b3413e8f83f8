// Neural Arithmetic Logic Unit (Trask et al. 2018; Heim, Pevny, Smidl 2020, definition 1), forward and backward. W is
// tanh(weight) sigmoid(mask), L = log(|x| + eps).
//
//   h = G x + bias    a = W x    t = exp(W L)    g = 1 / (1 + exp(-h))
//   y = g a + (1 - g) t
//
// Saved: h, a, t. Given grad_y:
//
//   dA = grad_y g    dE = grad_y (1 - g) t    dH = grad_y g (1 - g) (a - t)
//   dx = dA W + dH G + (dE W) sign(x) / (|x| + eps)
//   dW = dA' x + dE' L    dG = dH' x    dbias = sum over rows of dH
//
// The three products of each line are made at once, by add_products: a register holds rows of one feature, or, in sums
// over rows, inputs of one row.
#include "layers/nalu.h"
#include "api.h"
#include "nac.h"
#include "panel.h"
#include "product.h"
#include "row_groups.h"
#include "simd/vector_math.h"

namespace npu {
namespace NPU_ISA {
namespace {

// Terms that an accumulator adds up, at most: a block of inputs, of outs, or of rows. Its panels stay in the
// first-level cache while all columns pass over them.
constexpr int64_t kBlock = kBlockRows;

// W and G of every model as factors of add_products: sums over inputs (columns = outs) or the reverse.
template <typename T>
struct PackedWeights {
  int64_t size;
  Scratch<T> nac, gate;

  // parts: tanh and sigmoid (NaluForward); known: they are there already, null: they are not wanted.
  PackedWeights(const NaluInputs<T>& in, const T* known, T* parts, bool over_inputs, const Parallel& parallel)
      : size(over_inputs ? round_up(in.out, kFewColumns) * in.in : round_up(in.in, kFewColumns) * in.out),
        nac(in.models * size),
        gate(in.models * size) {
    const int64_t count = in.out * in.in;
    const Scratch<T> product(in.models * count);
    nac_weights<T>(in.weight, in.mask, in.models * count, known, parts, product, parallel);
    parallel.over(2 * in.models, [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) {
        const T* from = (task % 2 ? in.gate_weight : static_cast<const T*>(product)) + task / 2 * count;
        T* to = (task % 2 ? gate : nac) + task / 2 * size;
        if (over_inputs) pack<T, kFewColumns>(from, in.out, in.in, in.in, 1, to);
        else pack<T, kFewColumns>(from, in.in, 1, in.out, in.in, to);
      }
    });
  }
};

template <typename T>
class ForwardTile {
  using S = Simd<T>;
  using Reg = typename S::Reg;
  static constexpr int W = S::width;
  static constexpr int64_t kRows = kTileRows<T>;

 public:
  ForwardTile(const NaluForward<T>& f, const PackedWeights<T>& weights)
      : f_(f),
        in_(f.inputs),
        weights_(weights),
        next_sum_(round_up(in_.out, kFewColumns) * kRows),
        x_(in_.in * kRows),
        log_(in_.in * kRows),
        sums_(3 * next_sum_) {}

  void run(int64_t model, int64_t row) {
    const int64_t rows = least(kRows, in_.rows - row);
    turn<T>(in_.x + ((in_.shared_x ? 0 : model * in_.rows) + row) * in_.in, in_.in, rows, kRegisters, x_);
    const Reg eps = S::set1(in_.eps);
    for (int64_t n = 0; n < in_.in * kRows; n += W)
      S::store(log_ + n, VectorMath<T>::log(S::abs(S::load(x_ + n)) + eps));
    int64_t i = 0;
    do {
      const int64_t count = least(kBlock, in_.in - i);
      const T* const panels[] = {x_ + i * kRows, log_ + i * kRows};
      for (int64_t o = 0; o < in_.out; o += kFewColumns) {
        const int64_t at = model * weights_.size + o * in_.in + i * kFewColumns;
        const T* const factors[] = {weights_.nac + at, weights_.gate + at};
        add_products<T, kRegisters, kFewColumns, 1, Product<0, 0, kA>, Product<0, 1, kH>, Product<1, 0, kE>>(
            panels, kRows, factors, count, i > 0, sums_ + o * kRows, next_sum_, kRows);
      }
      i += kBlock;
    } while (i < in_.in);
    for (int r = 0; r * W < rows; ++r)
      for (int64_t o = 0; o < in_.out; o += W) finish(model, row + r * W, int(least<int64_t>(W, rows - r * W)), r, o);
  }

 private:
  enum Sum : int { kA, kH, kE };

  // The results of a register of rows and up to as many outs.
  void finish(int64_t model, int64_t row, int rows, int r, int64_t o) {
    const int outs = int(least<int64_t>(W, in_.out - o));
    const T* bias = in_.gate_bias == nullptr ? nullptr : in_.gate_bias + model * in_.out + o;
    Reg columns[4][W];
    for (int n = 0; n < outs; ++n) {
      const T* sum = sums_ + (o + n) * kRows + r * W;
      const Reg a = S::load(sum + kA * next_sum_), t = VectorMath<T>::exp(S::load(sum + kE * next_sum_));
      Reg h = S::load(sum + kH * next_sum_);
      if (bias != nullptr) h = h + S::set1(bias[n]);
      const Shares<T> shares(h);
      columns[0][n] = S::fma(shares.gate, a, shares.rest * t);
      columns[1][n] = h, columns[2][n] = a, columns[3][n] = t;
    }
    T* const to[] = {f_.y, f_.h, f_.a, f_.t};
    const int64_t at = (model * in_.rows + row) * in_.out + o;
    for (int n = 0; n < (f_.h == nullptr ? 1 : 4); ++n) store_columns<T>(to[n] + at, in_.out, rows, outs, columns[n]);
  }

  const NaluForward<T>& f_;
  const NaluInputs<T>& in_;
  const PackedWeights<T>& weights_;
  int64_t next_sum_;
  Scratch<T> x_, log_, sums_;
};

// The sums over rows of one model: of W and of G [outs][inputs], both padded, and of the bias [outs].
template <typename T>
struct SumsLayout {
  int64_t outs, inputs, matrix, size;
  explicit SumsLayout(const NaluInputs<T>& in)
      : outs(round_up(in.out, kFewColumns)),
        inputs(round_up(in.in, Simd<T>::width)),
        matrix(outs * inputs),
        size(2 * matrix + in.out) {}
};

// One row group of one model.
template <typename T>
class BackwardGroup {
  using S = Simd<T>;
  using Reg = typename S::Reg;
  static constexpr int W = S::width;
  static constexpr int64_t kInputs = kRegisters * W;  // of a panel of rows

 public:
  BackwardGroup(const NaluBackward<T>& f, const PackedWeights<T>& weights)
      : f_(f),
        in_(f.inputs),
        weights_(weights),
        layout_(in_),
        next_(layout_.outs * kBlockRows),
        next_sum_(round_up(in_.in, kFewColumns) * kBlockRows),
        upstream_(kUpstream * next_),
        spread_(f.grad_x != nullptr ? 2 * next_sum_ : 0),
        rows_(2 * round_up(in_.in, kInputs) * kBlockRows) {
    std::memset(upstream_, 0, size_t(kUpstream * next_) * sizeof(T));
  }

  // sums: SumsLayout, overwritten by those over rows [begin, end); null: not wanted.
  void run(int64_t model, int64_t begin, int64_t end, T* sums) {
    if (sums != nullptr && begin == end) std::memset(sums, 0, size_t(layout_.size) * sizeof(T));
    for (int64_t row = begin; row < end; row += kBlockRows) {
      const int64_t rows = least(kBlockRows, end - row);
      const T* x = in_.x + ((in_.shared_x ? 0 : model * in_.rows) + row) * in_.in;
      load_upstream((model * in_.rows + row) * in_.out, rows);
      if (f_.grad_x != nullptr) into_x(model, x, rows, f_.grad_x + (model * in_.rows + row) * in_.in);
      if (sums != nullptr) into_sums(x, rows, row > begin, sums);
    }
  }

 private:
  enum Upstream : int { kDA, kDH, kDE, kUpstream };

  // dA, dH and dE as [outs][kBlockRows], zero behind the last row.
  void load_upstream(int64_t at, int64_t rows) {
    for (int64_t v = 0; v < kBlockRows; v += W) {
      const int valid = int(most<int64_t>(0, least<int64_t>(W, rows - v)));
      for (int64_t o = 0; o < in_.out; o += W) {
        const int count = int(least<int64_t>(W, in_.out - o));
        Reg grad[W], h[W], a[W], t[W];
        const int64_t from = at + v * in_.out + o;
        load_columns<T>(f_.grad_y + from, in_.out, valid, count, grad);
        load_columns<T>(f_.h + from, in_.out, valid, count, h);
        load_columns<T>(f_.a + from, in_.out, valid, count, a);
        load_columns<T>(f_.t + from, in_.out, valid, count, t);
        T* to = upstream_ + o * kBlockRows + v;
        for (int n = 0; n < count; ++n, to += kBlockRows) {
          const Shares<T> shares(h[n]);
          const Reg d_a = grad[n] * shares.gate;
          S::store(to + kDA * next_, d_a);
          S::store(to + kDH * next_, d_a * shares.rest * (a[n] - t[n]));
          S::store(to + kDE * next_, grad[n] * shares.rest * t[n]);
        }
      }
    }
  }

  void into_x(int64_t model, const T* x, int64_t rows, T* grad_x) {
    int64_t o = 0;
    do {
      const int64_t count = least(kBlock, in_.out - o);
      for (int64_t v = 0; v < rows; v += kTileRows<T>) {
        const T* const d = upstream_ + o * kBlockRows + v;
        const T* const panels[] = {d + kDA * next_, d + kDH * next_, d + kDE * next_};
        for (int64_t i = 0; i < in_.in; i += kFewColumns) {
          const int64_t at = model * weights_.size + i * in_.out + o * kFewColumns;
          const T* const factors[] = {weights_.nac + at, weights_.gate + at};
          add_products<T, kRegisters, kFewColumns, 1, Product<0, 0, 0>, Product<1, 1, 0>, Product<2, 0, 1>>(
              panels, kBlockRows, factors, count, o > 0, spread_ + i * kBlockRows + v, next_sum_, kBlockRows);
        }
      }
      o += kBlock;
    } while (o < in_.out);
    const Reg eps = S::set1(in_.eps), one = S::set1(T(1));
    for (int64_t v = 0; v < rows; v += W) {
      const int valid = int(least<int64_t>(W, rows - v));
      for (int64_t i = 0; i < in_.in; i += W) {
        const int count = int(least<int64_t>(W, in_.in - i));
        Reg column[W];
        load_columns<T>(x + v * in_.in + i, in_.in, valid, count, column);
        for (int n = 0; n < count; ++n) {
          const T* sum = spread_ + (i + n) * kBlockRows + v;
          const Reg slope = S::with_sign_of(one / (S::abs(column[n]) + eps), column[n]);
          column[n] = S::fma(S::load(sum + next_sum_), slope, S::load(sum));
        }
        store_columns<T>(grad_x + v * in_.in + i, in_.in, valid, count, column);
      }
    }
  }

  void into_sums(const T* x, int64_t rows, bool resume, T* sums) {
    const Reg eps = S::set1(in_.eps);
    T* const logs = rows_ + round_up(in_.in, kInputs) * kBlockRows;
    for (int64_t i = 0; i < in_.in; i += kInputs) {
      const int64_t at = i * kBlockRows;  // [blocks of inputs][kBlockRows][kInputs]
      for (int64_t row = 0; row < rows; ++row) {
        for (int64_t l = 0; l < least(kInputs, in_.in - i); l += W) {
          const Reg value = S::load_first(x + row * in_.in + i + l, int(least<int64_t>(W, in_.in - i - l)));
          S::store(rows_ + at + row * kInputs + l, value);
          S::store(logs + at + row * kInputs + l, VectorMath<T>::log(S::abs(value) + eps));
        }
      }
      const T* const panels[] = {rows_ + at, logs + at};
      for (int64_t o = 0; o < in_.out; o += kFewColumns) {
        const T* const d = upstream_ + o * kBlockRows;
        const T* const factors[] = {d + kDA * next_, d + kDH * next_, d + kDE * next_};
        T* const to = sums + o * layout_.inputs + i;
        const auto add = [&](auto registers) {
          add_products<T, decltype(registers)::value, 1, kBlockRows, Product<0, 0, 0>, Product<1, 2, 0>,
                       Product<0, 1, 1>>(panels, kInputs, factors, rows, resume, to, layout_.matrix, layout_.inputs);
        };
        if (in_.in - i > W) add(std::integral_constant<int, kRegisters>{});
        else add(std::integral_constant<int, 1>{});
      }
    }
    if (f_.grad_gate_bias == nullptr) return;
    for (int64_t o = 0; o < in_.out; o += W) {
      const int count = int(least<int64_t>(W, in_.out - o));
      Reg lanes[W] = {};
      for (int n = 0; n < count; ++n)
        for (int64_t v = 0; v < kBlockRows; v += W)
          lanes[n] = lanes[n] + S::load(upstream_ + kDH * next_ + (o + n) * kBlockRows + v);
      T* const to = sums + 2 * layout_.matrix + o;
      const Reg sum = S::sum_each(lanes);
      S::store_first(to, resume ? S::load_first(to, count) + sum : sum, count);
    }
  }

  const NaluBackward<T>& f_;
  const NaluInputs<T>& in_;
  const PackedWeights<T>& weights_;
  const SumsLayout<T> layout_;
  int64_t next_, next_sum_;
  Scratch<T> upstream_, spread_, rows_;
};

}  // namespace

template <typename T>
void nalu_forward(const NaluForward<T>& f, const Parallel& parallel) {
  const NaluInputs<T>& in = f.inputs;
  const PackedWeights<T> weights(in, nullptr, f.parts, true, parallel);
  const int64_t tiles = ceil_div(in.rows, kTileRows<T>);
  parallel.over(in.models * tiles, [&](int64_t begin, int64_t end) {
    ForwardTile<T> tile(f, weights);
    for (int64_t task = begin; task < end; ++task) tile.run(task / tiles, task % tiles * kTileRows<T>);
  });
}

template <typename T>
void nalu_backward(const NaluBackward<T>& f, const Parallel& parallel) {
  using S = Simd<T>;
  const NaluInputs<T>& in = f.inputs;
  const int64_t count = in.out * in.in, all = in.models * count;
  const bool want_weight = f.grad_weight != nullptr || f.grad_mask != nullptr;
  const bool want_sums = want_weight || f.grad_gate_weight != nullptr || f.grad_gate_bias != nullptr;
  const bool again = want_weight && f.parts == nullptr;
  const Scratch<T> computed(again ? 2 * all : 0);
  const T* parts = again ? computed : f.parts;
  const PackedWeights<T> weights(in, f.parts, again ? static_cast<T*>(computed) : nullptr, false, parallel);
  const SumsLayout<T> layout(in);
  const RowGroups groups(in.rows, kBlockRows, (int64_t(1) << 20) / most<int64_t>(layout.size, 1));
  const Scratch<T> total(want_sums ? in.models * layout.size : 0);
  sum_rows(in.models, groups, layout.size, parallel, want_sums ? static_cast<T*>(total) : nullptr,
           [&] { return BackwardGroup<T>(f, weights); });
  if (!want_sums) return;
  parallel.over(in.models * in.out, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const T* sums = total + task / in.out * layout.size;
      const int64_t o = task % in.out;
      if (f.grad_gate_bias != nullptr) f.grad_gate_bias[task] = sums[2 * layout.matrix + o];
      for (int64_t i = 0; i < in.in; i += S::width) {
        const int lanes = int(least<int64_t>(S::width, in.in - i));
        const int64_t at = task * in.in + i;
        const T* sum = sums + o * layout.inputs + i;
        if (want_weight) nac_gradients<T>(S::load(sum), parts, all, at, lanes, f.grad_weight, f.grad_mask);
        if (f.grad_gate_weight != nullptr) S::store_first(f.grad_gate_weight + at, S::load(sum + layout.matrix), lanes);
      }
    }
  });
}

template void nalu_forward<float>(const NaluForward<float>&, const Parallel&);
template void nalu_forward<double>(const NaluForward<double>&, const Parallel&);
template void nalu_backward<float>(const NaluBackward<float>&, const Parallel&);
template void nalu_backward<double>(const NaluBackward<double>&, const Parallel&);

}  // namespace NPU_ISA
}  // namespace npu
