// Forward of the Neural Power Unit family by tile products; the formulas and notation stand in npu/forward.cpp.
//
// A chunk of rows becomes panels of L and m (A), a block of inputs at a time. The block's weights of 16 outputs
// (RealNPU: 32) are packed (B), once for all chunks where there are several, and meet all of the chunk's rows, two
// tiles of rows at a time. A product has two columns of tiles:
//
//   NPU        L (Wr, Wi)'  and  m (-pi ghat Wi, pi ghat Wr)'  add to (P, Q)
//   RealNPU    L (Wr)'  gives P,  m (pi ghat Wr)'  gives Q,  of two tiles of outputs each
//
// Two tiles of rows without a negative input leave out their mask products. While products are made, side work
// (npu/side_work.h) makes the next chunk's L and m, the next unit's weights, and the results of the outputs before.
#include "npu/tiled_forward.h"

#include "npu/tiled.h"

namespace npu {
namespace NPU_ISA {
namespace {

constexpr int64_t kMaxRows = 256;  // of a chunk
// bfloat16 that weights may take that are packed for all chunks.
constexpr int64_t kMaxPacked = int64_t(1) << 25;
// Outputs of a task: P and Q of a chunk are 4 MiB then, where they are kept from block to block.
constexpr int64_t kMaxOutputs = 1024;
// Fewer rows than these pack more than they multiply; threads then share the outputs.
constexpr int64_t kMinRows = 128;

// A thread's work: tasks of a chunk of rows and a range of outputs each.
template <int terms, bool complex>
class Worker {
  using Layout = Unit<terms, complex>;
  static constexpr int64_t kPairSums = complex ? kBlockSize : 2 * kBlockSize;  // P and Q of two tiles of rows

 public:
  // Tasks of at most so many rows and outputs; `packed` units of weights of all models, or null.
  Worker(const NpuForward<float>& f, int64_t rows, int64_t outputs, const Gates& gates, const Bf16* packed,
         const Ranges& ranges)
      : in_(f.inputs),
        rows_(rows),
        outputs_(outputs),
        packed_(packed),
        layout_(in_),
        unit_sums_(ceil_div(min(rows, in_.rows), kTilePair) * kPairSums),
        own_units_(packed == nullptr ? 2 * layout_.size() : 0),
        sums_(slots() * kFinishOutputs / Layout::kOutputs * unit_sums_),
        packer_(in_, gates, ranges),
        results_(f),
        logs_{{in_, min(rows, in_.rows), gates, ranges}, {in_, min(rows, in_.rows), gates, ranges}} {}

  void run(int64_t begin, int64_t end) {
    end_ = end * blocks();
    logs_[0].begin(place(begin * blocks()));
    side_.add(logs_[0], logs_[0].slices());
    if (packed_ == nullptr) {
      begin_pack(logs_[0].place(), logs_[0].place().out);
      side_.add(packer_, next_weights_);
    }
    side_.finish();
    for (int64_t n = begin * blocks(); n < end_; ++n) {
      Logs<terms>& now = logs_[(n - begin * blocks()) % 2];
      Logs<terms>& next = logs_[(n + 1 - begin * blocks()) % 2];
      if (n + 1 < end_) next.begin(place(n + 1));
      for (int64_t o = now.place().out; o < now.place().end_out; o += kFinishOutputs) multiply(n, now, next, o);
    }
    finish_results();
  }

 private:
  int64_t blocks() const { return max<int64_t>(1, ceil_div(in_.in, kInBlock<terms>)); }
  // Of sums of kFinishOutputs: all outputs', where they are kept from block to block, or this one's and the one
  // before's.
  int64_t slots() const { return blocks() == 1 ? 2 : ceil_div(min(outputs_, in_.out), kFinishOutputs); }

  // The n-th block of inputs of all tasks.
  Place place(int64_t n) const {
    const int64_t ranges_of_outputs = ceil_div(in_.out, outputs_), chunks = ceil_div(in_.rows, rows_);
    const int64_t task = n / blocks(), block = n % blocks();
    Place p;
    p.model = task / (chunks * ranges_of_outputs);
    p.row = task / ranges_of_outputs % chunks * rows_;
    p.end_row = min(p.row + rows_, in_.rows);
    p.out = task % ranges_of_outputs * outputs_;
    p.end_out = min(p.out + outputs_, in_.out);
    p.i0 = block * kInBlock<terms>;
    p.ins = min(kInBlock<terms>, in_.in - p.i0);
    p.first = block == 0;
    p.last = block + 1 == blocks();
    return p;
  }

  // The unit of outputs that begins with o: its weights for this place. Those of the next one are side work.
  const Bf16* weights(const Place& place, int64_t n, int64_t o) {
    if (packed_ != nullptr) {
      const Bf16* unit =
          packed_ + (place.model * ceil_div(in_.out, Layout::kOutputs) + o / Layout::kOutputs) * layout_.size();
      const bool more = o + Layout::kOutputs < place.end_out;
      if (more)
        fetcher_.begin(unit + layout_.size() + place.i0 / kTileDepth * terms * kTileSize,
                       ceil_div(place.ins, kTileDepth) * terms * kTileSize, 4, layout_.panel_size());
      next_weights_ = more ? fetcher_.slices() : 0;
      return unit;
    }
    const Bf16* unit = own_units_ + units_packed_ % 2 * layout_.size();
    if (o + Layout::kOutputs < place.end_out) {
      begin_pack(place, o + Layout::kOutputs);
    } else if (n + 1 < end_) {
      const Place then = this->place(n + 1);
      begin_pack(then, then.out);
    } else {
      next_weights_ = 0;
    }
    return unit;
  }
  void begin_pack(const Place& place, int64_t o) {
    packer_.begin(place.model, o, place.i0, place.ins, own_units_ + ++units_packed_ % 2 * layout_.size());
    next_weights_ = packer_.slices();
  }

  // The products of outputs [o, o + kFinishOutputs) with the n-th block of inputs.
  void multiply(int64_t n, const Logs<terms>& now, Logs<terms>& next, int64_t o) {
    const Place& place = now.place();
    const int64_t end_out = min(o + kFinishOutputs, place.end_out);
    const int64_t slot = blocks() == 1 ? ++groups_ % 2 : (o - place.out) / kFinishOutputs;
    float* const sums = sums_ + slot * (kFinishOutputs / Layout::kOutputs) * unit_sums_;
    if (results_.sums() == sums) finish_results();
    const int64_t pairs = now.pairs(), next_slices = n + 1 < end_ ? next.slices() : 0;
    const int64_t steps = ceil_div(end_out - o, Layout::kOutputs) * pairs;
    const int64_t first = (o - place.out) / Layout::kOutputs * pairs;
    const int64_t all = ceil_div(place.end_out - place.out, Layout::kOutputs) * pairs;
    for (int64_t unit = 0; o + unit * Layout::kOutputs < end_out; ++unit) {
      const Bf16* b = weights(place, n, o + unit * Layout::kOutputs) + place.i0 / kTileDepth * terms * kTileSize;
      for (int64_t p = 0; p < pairs; ++p) {
        const int64_t step = unit * pairs + p;
        side_.add_share(results_, results_left_, step, steps);
        side_.add_share(next, next_slices, first + step, all);
        if (packed_ == nullptr) side_.add_share(packer_, next_weights_, p, pairs);
        else side_.add_share(fetcher_, next_weights_, p, pairs);
        multiply(now, p, b, sums + unit * unit_sums_ + p * kPairSums);
      }
    }
    results_left_ = 0;
    if (!place.last) return;
    results_.begin(place, o, end_out, sums, unit_sums_);
    results_left_ = results_.slices();
  }

  // Adds the products of the p-th two tiles of rows with a unit of outputs to their sums, or begins these.
  void multiply(const Logs<terms>& now, int64_t p, const Bf16* b, float* sums) {
    constexpr int kReal = tiles::Engine::steps<terms, terms>, kMask = tiles::Engine::steps<1, terms>;
    const bool resume = !now.place().first, negative = now.negative(p);
    const int64_t k_tiles = now.k_tiles();
    side_.spread_over(k_tiles * (kReal + (negative ? kMask : 0)));
    float* const turned = complex ? sums : sums + kBlockSize;
    engine_.begin(resume, sums);
    engine_.template add<terms, terms>({now.log_panel(p, 0), now.log_panel(p, 1)},
                                       {b + layout_.panel(0, 0), b + layout_.panel(0, 1)}, k_tiles, sums, side_);
    if constexpr (!complex) {
      engine_.end(sums);
      engine_.begin(resume, turned);
    }
    if (negative)
      engine_.template add<1, terms>({now.mask_panel(p, 0), now.mask_panel(p, 1)},
                                     {b + layout_.panel(1, 0), b + layout_.panel(1, 1)}, k_tiles, turned, side_);
    engine_.end(turned);
    side_.finish();
  }

  void finish_results() {
    side_.add(results_, results_left_);
    side_.finish();
    results_left_ = 0;
  }

  const NpuInputs<float>& in_;
  const int64_t rows_, outputs_;
  const Bf16* const packed_;
  const Layout layout_;
  const int64_t unit_sums_;  // of a unit of outputs
  Scratch<Bf16> own_units_;
  Scratch<float> sums_;
  Packer<terms, complex> packer_;
  Results<complex> results_;
  Fetcher fetcher_;
  Logs<terms> logs_[2];
  SideWork side_;
  const tiles::Engine engine_{};
  int64_t end_ = 0;  // of the thread's places
  int64_t units_packed_ = 0, groups_ = 0;
  int64_t next_weights_ = 0, results_left_ = 0;  // slices
};

template <int terms, bool complex>
void forward(const NpuForward<float>& f, const Parallel& parallel, const Ranges& ranges) {
  using Layout = Unit<terms, complex>;
  const NpuInputs<float>& in = f.inputs;
  // Outputs do not meet one another: how they are cut into tasks may follow from the number of threads.
  int64_t rows = kMaxRows, outputs = kMaxOutputs;
  if (parallel.threads > 1) {
    const int64_t wanted = 2 * parallel.threads;
    rows = min(kMaxRows, max(kMinRows, round_up(ceil_div(in.rows * in.models, wanted), kTilePair)));
    const int64_t by_rows = max<int64_t>(1, in.models * ceil_div(in.rows, rows));
    outputs = min(kMaxOutputs, max<int64_t>(Layout::kOutputs,
                                            round_up(ceil_div(in.out * by_rows, wanted), int64_t(Layout::kOutputs))));
  }
  const int64_t chunks = ceil_div(in.rows, rows), ranges_of_outputs = ceil_div(in.out, outputs);
  const Gates gates(in);
  const Layout layout(in);
  const int64_t units = ceil_div(in.out, int64_t(Layout::kOutputs)), size = in.models * units * layout.size();
  const bool ahead = chunks > 1 && size <= kMaxPacked;
  Scratch<Bf16> packed(ahead ? size : 0);
  parallel.over(ahead ? in.models * units : 0, [&](int64_t begin, int64_t end) {
    Packer<terms, complex> packer(in, gates, ranges);
    for (int64_t task = begin; task < end; ++task) {
      packer.begin(task / units, task % units * Layout::kOutputs, 0, in.in, packed + task * layout.size());
      for (int64_t n = packer.slices(); n > 0; --n) packer.next();
    }
  });
  // Runs of tasks: within a run the work of one is prepared during the products of the one before.
  const int64_t tasks = in.models * chunks * ranges_of_outputs;
  const int64_t runs = min(tasks, int64_t(2 * parallel.threads));
  parallel.over(runs, [&](int64_t begin, int64_t end) {
    Worker<terms, complex> worker(f, rows, outputs, gates, ahead ? static_cast<const Bf16*>(packed) : nullptr, ranges);
    worker.run(tasks * begin / runs, tasks * end / runs);
  });
}

template <int terms>
void forward(const NpuForward<float>& f, const Parallel& parallel, const Ranges& ranges) {
  if (f.inputs.weight_im != nullptr) forward<terms, true>(f, parallel, ranges);
  else forward<terms, false>(f, parallel, ranges);
}

}  // namespace

void npu_forward(const NpuForward<float>& f, const Parallel& parallel) {
  const NpuInputs<float>& in = f.inputs;
  const Ranges ranges(in.models);
  if (in.terms == 1) forward<1>(f, parallel, ranges);
  else if (in.terms == 2) forward<2>(f, parallel, ranges);
  else forward<3>(f, parallel, ranges);
  for (int64_t model = 0; model < in.models; ++model) {
    if (ranges.tame(model)) continue;
    const int64_t at = model * in.rows * in.out;
    avx512::npu_forward<float>({one_model(in, model), f.y + at, f.s == nullptr ? nullptr : f.s + at}, parallel);
  }
}

}  // namespace NPU_ISA
}  // namespace npu
