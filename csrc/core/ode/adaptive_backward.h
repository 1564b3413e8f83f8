// The discrete adjoint of adaptive steps, of a register of trajectories.
//
// A trajectory of N steps has the nodes 0 .. N, the states between its steps. Backwards over the nodes, G the gradient
// of u_{n+1}, x and grad_m those of the times t_m within the step from node n:
//
//   c_p  = sum_m x_m^p grad_m      dk_i = h (b_i G + sum_{j > i} a_{j-1,i} dv_j + sum_p d_ip c_p)  (+ e, i = 1)
//   dv_i = J(v_i)' dk_i            the gradient of u_n = G + sum_i dv_i + sum_m grad_m + those of the times at the node
//
// k_7 is the next node's k_1: e is the part of c_p that the step before node n has for it. Lanes count their nodes from
// the end. Where a lane's nodes have not begun, or have ended, it makes steps of size 0 without gradients, which change
// nothing. Where only every m-th state was saved, the states of m nodes are first computed again.
//
// An implicit method's derivatives are saved, not computed again. By the implicit function theorem its stages from the
// second on have, with F the gradient of k_1 of the step behind, which is this one's k_7:
//
//   dk_i = h (sum_{j > i} a_{j-1,i} dv_j + sum_p d_ip c_p)  (+ h g G + F, i = 7; - h g sum_m dv_m, i = 1)
//   (1 - h g J(v_i))' l_i = dk_i        dv_i = J(v_i)' l_i  (+ G, i = 7)    the gradient of u_n = sum_{i > 1} dv_i + ..
//
// A time t_m within the step is a stage of its own, with dk_m = h g grad_m and dv_m = J' l_m + grad_m; in c_p and in
// the gradient of u_n it is this dv_m that counts. F instead of J(u_n)' F added to G, which the next system would have
// to take away again. The first step's derivative takes a VJP of its own.
#pragma once

#include "ode/adaptive.h"

namespace npu {
namespace NPU_ISA {

template <typename T, typename Step>
class AdaptiveBackward {
  using S = Simd<T>;
  using Reg = typename S::Reg;
  static constexpr int W = S::width, kStages = OdePair::kStages, kPowers = OdePair::kPowers;

 public:
  template <typename... Tolerances>  // what an implicit step needs
  explicit AdaptiveBackward(const OdeAdaptiveBackward<T>& b, Tolerances... tolerances)
      : b_(b),
        step_(b.gradients.inputs, b.pair, tolerances...),
        node_size_(step_.count() * b.pair.saved()),
        nodes_(node_size_ * b.every),
        dv_(step_.count() * kStages),
        dk_(step_.count()),
        last_derivative_(step_.count()),
        g_(step_.count()),
        inside_(step_.count() * kInside),
        before_(step_.count() * kInside),
        at_node_(step_.count()),
        output_(step_.count()),
        of_output_(step_.count()) {}

  auto& units() { return step_.units(); }

  void run(int64_t row, int lanes) {
    row_ = row;
    lanes_ = lanes;
    start();
    for (int64_t segment = 0;; ++segment) {
      int64_t longest = 0;
      for (int l = 0; l < W; ++l) {
        Lane& own = lane_[l];
        const int64_t number = own.segments - 1 - segment;
        own.first = number * b_.every;
        own.nodes = number < 0 ? 0 : min(b_.every, own.steps + 1 - own.first);
        longest = max(longest, own.nodes);
      }
      if (longest == 0) break;
      compute_states(longest);
      for (int64_t i = longest - 1; i >= 0; --i) {
        if constexpr (Step::kImplicit) implicit_node(i);
        else node(i);
      }
    }
    if constexpr (Step::kImplicit) first_derivative_vjp();
    if (b_.gradients.grad_u0 != nullptr)
      step_.units().store(b_.gradients.grad_u0 + row_ * features(), features(), lanes_, g_);
  }

 private:
  // Sums over the times within a step: c_1 .. c_4, and the gradients themselves.
  static constexpr int kInside = kPowers + 1;

  struct Lane {
    int64_t steps, segments, first, nodes;  // first and nodes: of the segment
    int64_t next;                           // how many times are still to be visited
    int64_t from, to;                       // the times within the step from the last node visited
    const double* ends;

    // The time of a node.
    double time(int64_t node, double begin) const { return node > 0 ? ends[node - 1] : begin; }
  };

  int64_t features() const { return b_.gradients.inputs.features; }
  int64_t at(int l, int64_t m) const { return ((row_ + l) * b_.count + m) * features(); }
  bool behind(double a, double b) const { return b_.t[1] > b_.t[0] ? a > b : a < b; }
  static T* lanes_of(Reg* registers, int64_t n) { return reinterpret_cast<T*>(registers + n); }

  void start() {
    step_.units().pack(row_, lanes_);
    for (int64_t d = 0; d < step_.count(); ++d) g_[d] = last_derivative_[d] = S::zero();
    for (int64_t n = 0; n < step_.count() * kInside; ++n) inside_[n] = S::zero();
    for (int l = 0; l < W; ++l) {
      Lane& own = lane_[l];
      own = Lane{};
      if (l >= lanes_) continue;
      own.ends = b_.times + b_.steps_at[row_ + l];
      own.steps = b_.steps_at[row_ + l + 1] - b_.steps_at[row_ + l];
      own.segments = own.steps > 0 ? own.steps / b_.every + 1 : 0;
      own.next = b_.count;
      while (own.next > 0 && behind(b_.t[own.next - 1], own.time(own.steps, b_.t[0]))) --own.next;
      if (own.steps == 0)  // ended where it began
        for (int64_t d = 0; d < features(); ++d) lanes_of(g_, d)[l] = b_.grad_path[at(l, 0) + d];
    }
    for (int l = 0; b_.grad_t != nullptr && l < lanes_; ++l)
      for (int64_t m = 0; m < b_.count; ++m) b_.grad_t[(row_ + l) * b_.count + m] = 0;
  }

  // The states of the segments' nodes. Lanes without a segment get a state with a finite derivative.
  void compute_states(int64_t longest) {
    const int64_t count = step_.count();
    for (int64_t d = 0; d < node_size_; ++d) {
      alignas(64) T state[W];
      for (int l = 0; l < W; ++l) {
        const Lane& own = lane_[l];
        if (own.nodes == 0) state[l] = T(d < count);
        else
          state[l] =
              d < 2 * count || own.first < own.steps ? saved(l, own.first)[d] : T(0);  // the end has one derivative
      }
      nodes_[d] = S::load(state);
    }
    for (int64_t i = 1; i < longest; ++i) {
      alignas(64) T h[W] = {}, h_next[W] = {};
      for (int l = 0; l < W; ++l) {
        const Lane& own = lane_[l];
        if (i < own.nodes) h[l] = T(size(own, own.first + i - 1));
        if (i < own.nodes && own.first + i < own.steps) h_next[l] = T(size(own, own.first + i));
      }
      Reg *before = nodes_ + (i - 1) * node_size_, *here = nodes_ + i * node_size_;
      if constexpr (Step::kImplicit) {
        load_derivatives(before);
        step_.end(before, S::load(h), here);
        for (int64_t d = 0; d < count; ++d) step_.k(0)[d] = step_.k(kStages - 1)[d];
        step_.linearise(here);
        step_.run(here, h_next);
        for (int64_t d = 0; d < count * kStages; ++d) here[count + d] = step_.k(0)[d];
      } else {
        step_.begin(before);
        step_.run(before, S::load(h), kStages - 2);
        step_.advance(kStages - 2, before, S::load(h), here);
      }
    }
  }
  void load_derivatives(const Reg* node) {
    for (int64_t d = 0; d < step_.count() * kStages; ++d) step_.k(0)[d] = node[step_.count() + d];
  }
  // What was saved of lane l at a node.
  const T* saved(int l, int64_t node) const {
    return b_.states + (b_.states_at[row_ + l] + node / b_.every) * features() * b_.pair.saved();
  }
  double size(const Lane& lane, int64_t step) const { return lane.time(step + 1, b_.t[0]) - lane.time(step, b_.t[0]); }

  void node(int64_t i) {
    const int64_t count = step_.count();
    alignas(64) T h[W] = {}, h_before[W] = {};
    bool steps = false;
    for (int l = 0; l < W; ++l) {
      const Lane& own = lane_[l];
      if (i >= own.nodes) continue;
      const int64_t n = own.first + i;
      if (n < own.steps) {
        h[l] = T(size(own, n));
        steps = true;
      }
      if (n > 0) h_before[l] = T(size(own, n - 1));
    }
    const Reg *u = nodes_ + i * node_size_, h_reg = S::load(h), before = S::load(h_before);
    step_.begin(u);
    if (steps) {
      step_.run(u, h_reg, kStages - 2);
      for (int64_t d = 0; d < count; ++d) step_.k(6)[d] = last_derivative_[d];
    }
    if (b_.grad_t != nullptr && steps) times_within(i);
    gather(i);
    const int stages = steps ? kStages - 1 : 1;
    for (int stage = stages - 1; stage >= 0; --stage) {
      for (int64_t d = 0; d < count; ++d) dk_[d] = derivative_gradient(stage, d, h_reg, before, stages);
      step_.units().vjp({step_.stage(stage).at, Step::kScratchStride}, dk_, dv_ + stage * count);
    }
    for (int64_t d = 0; d < count; ++d) {
      Reg sum = g_[d];
      for (int stage = 0; stage < stages; ++stage) sum = sum + dv_[stage * count + d];
      g_[d] = sum + inside_[kPowers * count + d] + at_node_[d];
      last_derivative_[d] = step_.k(0)[d];
      for (int p = 0; p < kInside; ++p) inside_[p * count + d] = before_[p * count + d];
    }
  }

  // The same of an implicit method.
  void implicit_node(int64_t i) {
    const int64_t count = step_.count();
    alignas(64) T h[W] = {}, steps[W] = {};
    bool any = false;
    for (int l = 0; l < W; ++l) {
      const Lane& own = lane_[l];
      if (i >= own.nodes || own.first + i == own.steps) continue;
      h[l] = T(size(own, own.first + i));
      steps[l] = T(1);
      any = true;
    }
    const Reg *node = nodes_ + i * node_size_, size = S::load(h);
    load_derivatives(node);
    for (int64_t n = 0; n < count * kInside; ++n) inside_[n] = S::zero();
    while (any && output_within(i, node, size)) {
    }
    gather(i);
    const Reg is_step = S::load(steps);
    if (any) {
      for (int stage = kStages - 1; stage >= 0; --stage) {
        for (int64_t d = 0; d < count; ++d) dk_[d] = implicit_derivative_gradient(stage, d, size);
        if (stage == 0) break;
        Reg* dv = dv_ + stage * count;
        stage_vjp(step_.state(stage, node, size), size, is_step, dv);
        for (int64_t d = 0; stage == kStages - 1 && d < count; ++d) dv[d] = dv[d] + g_[d];
      }
      for (int64_t d = 0; d < count; ++d) {
        Reg sum = S::zero();
        for (int stage = 1; stage < kStages; ++stage) sum = sum + dv_[stage * count + d];
        g_[d] = S::select(is_step > S::zero(), sum, g_[d]);
        last_derivative_[d] = S::select(is_step > S::zero(), dk_[d], last_derivative_[d]);
      }
    }
    for (int64_t d = 0; d < count; ++d) g_[d] = g_[d] + inside_[kPowers * count + d] + at_node_[d];
  }
  // dv = J(v)' l of (1 - h g J(v))' l = dk, where `open`; adds to the weights' gradients.
  void stage_vjp(const Reg* v, Reg h, Reg open, Reg* dv) {
    step_.solve_transposed(v, h, dk_);
    for (int64_t d = 0; d < step_.count(); ++d) dk_[d] = S::select(open > S::zero(), dk_[d], S::zero());
    step_.units().vjp(step_.saved_stage(), dk_, dv);
  }
  // The last of the times within each lane's step from node i that has not been visited; whether there was one.
  bool output_within(int64_t i, const Reg* node, Reg h) {
    const int64_t count = step_.count();
    alignas(64) T x[W] = {}, open[W] = {};
    bool any = false;
    for (int64_t d = 0; d < count; ++d) dk_[d] = S::zero();
    for (int64_t d = 0; d < count; ++d) output_[d] = node[d];
    for (int l = 0; l < lanes_; ++l) {
      Lane& own = lane_[l];
      const int64_t n = own.first + i;
      if (i >= own.nodes || n == own.steps || own.from == own.to) continue;
      const int64_t m = --own.to;
      any = true;
      open[l] = T(1);
      x[l] = T((b_.t[m] - own.time(n, b_.t[0])) / size(own, n));
      for (int64_t d = 0; d < count; ++d) {
        lanes_of(output_, d)[l] = b_.path[at(l, m) + d];
        lanes_of(dk_, d)[l] = b_.grad_path[at(l, m) + d];
      }
    }
    if (!any) return false;
    const Reg at_x = S::load(x), scaled = S::set1(T(b_.pair.diagonal())) * h;
    for (int64_t d = 0; d < count; ++d) {
      of_output_[d] = dk_[d];
      dk_[d] = scaled * dk_[d];
    }
    stage_vjp(output_, h, S::load(open), dv_);
    step_.interpolant();
    Reg change = S::zero();
    for (int64_t d = 0; d < count; ++d) {
      const Reg dv = of_output_[d] + dv_[d];
      Reg derivative = S::zero(), power = dv;
      for (int p = kPowers - 1; p >= 0; --p) derivative = S::fma(derivative, at_x, S::set1(T(p + 1)) * step_.q(p, d));
      change = S::fma(derivative, dv, change);
      inside_[kPowers * count + d] = inside_[kPowers * count + d] + dv;
      for (int p = 0; p < kPowers; ++p)
        inside_[p * count + d] = S::fma(at_x, power, inside_[p * count + d]), power = power * at_x;
    }
    for (int l = 0; b_.grad_t != nullptr && l < lanes_; ++l)
      if (open[l] != T(0)) b_.grad_t[(row_ + l) * b_.count + lane_[l].to] = double(T(change[l]));
    return true;
  }
  // dk of a stage; of the last one with the gradient that the next step's first derivative has, `last_derivative_`
  // here.
  Reg implicit_derivative_gradient(int stage, int64_t d, Reg h) {
    const int64_t count = step_.count();
    const bool is_last = stage == kStages - 1;
    Reg sum = is_last ? S::set1(T(b_.pair.diagonal())) * g_[d] : S::zero();
    for (int j = stage + 1; j < kStages; ++j)
      sum = S::fma(S::set1(T(b_.pair.a(j - 1, stage))), dv_[j * count + d], sum);
    for (int p = 0; p < kPowers; ++p) sum = S::fma(S::set1(T(b_.pair.dense(stage, p))), inside_[p * count + d], sum);
    if (stage == 0) sum = S::fma(-S::set1(T(b_.pair.diagonal())), inside_[kPowers * count + d], sum);
    return is_last ? S::fma(h, sum, last_derivative_[d]) : h * sum;
  }
  // The gradient of the first derivative, of the lanes that have steps.
  void first_derivative_vjp() {
    const int64_t count = step_.count();
    for (int64_t d = 0; d < count; ++d) {
      alignas(64) T state[W];
      for (int l = 0; l < W; ++l) state[l] = lane_[l].segments > 0 ? saved(l, 0)[d] : T(1);
      dk_[d] = S::load(state);
    }
    step_.units().rhs(dk_, step_.k(0), step_.stage(0));
    step_.units().vjp(step_.saved_stage(), last_derivative_, dv_);
    for (int64_t d = 0; d < count; ++d) g_[d] = g_[d] + dv_[d];
  }

  // dk of a stage.
  Reg derivative_gradient(int stage, int64_t d, Reg h, Reg before, int stages) {
    const int64_t count = step_.count();
    Reg sum = S::set1(T(b_.pair.a(kStages - 2, stage))) * g_[d];
    for (int j = stage + 1; j < stages; ++j)
      if (b_.pair.a(j - 1, stage) != 0) sum = S::fma(S::set1(T(b_.pair.a(j - 1, stage))), dv_[j * count + d], sum);
    for (int p = 0; p < kPowers; ++p)
      if (b_.pair.dense(stage, p) != 0) sum = S::fma(S::set1(T(b_.pair.dense(stage, p))), inside_[p * count + d], sum);
    sum = h * sum;
    if (stage > 0) return sum;
    Reg of_last = S::zero();
    for (int p = 0; p < kPowers; ++p)
      of_last = S::fma(S::set1(T(b_.pair.dense(kStages - 1, p))), before_[p * count + d], of_last);
    return S::fma(before, of_last, sum);
  }

  // The gradients at the nodes and within the steps before them.
  void gather(int64_t i) {
    const int64_t count = step_.count();
    for (int64_t n = 0; n < count * kInside; ++n) before_[n] = S::zero();
    for (int64_t d = 0; d < count; ++d) at_node_[d] = S::zero();
    for (int l = 0; l < lanes_; ++l) {
      Lane& own = lane_[l];
      if (i >= own.nodes) continue;
      const int64_t n = own.first + i;
      const double here = own.time(n, b_.t[0]);
      if (own.next > 0 && b_.t[own.next - 1] == here) {
        const int64_t m = --own.next;
        double change = 0;
        for (int64_t d = 0; d < count; ++d) {
          const T grad = b_.grad_path[at(l, m) + d];
          lanes_of(at_node_, d)[l] = grad;
          change += double(grad) * double(T(step_.k(0)[d][l]));
        }
        if (b_.grad_t != nullptr && m > 0) b_.grad_t[(row_ + l) * b_.count + m] = change;
      }
      if (n == 0) continue;
      const double begin = own.time(n - 1, b_.t[0]);
      own.to = own.next;
      for (; own.next > 0 && behind(b_.t[own.next - 1], begin); --own.next) {
        if (Step::kImplicit) continue;  // output_within visits them
        const T x = T((b_.t[own.next - 1] - begin) / (here - begin));
        for (int64_t d = 0; d < count; ++d) {
          const T grad = b_.grad_path[at(l, own.next - 1) + d];
          T power = x * grad;
          for (int p = 0; p < kPowers; ++p, power *= x) lanes_of(before_, p * count + d)[l] += power;
          lanes_of(before_, kPowers * count + d)[l] += grad;
        }
      }
      own.from = own.next;
    }
  }

  // The gradients of the times within the steps from the nodes: the interpolant's derivative there, times the state's.
  void times_within(int64_t i) {
    step_.interpolant();
    for (int l = 0; l < lanes_; ++l) {
      const Lane& own = lane_[l];
      if (i >= own.nodes || own.first + i >= own.steps) continue;
      const double begin = own.time(own.first + i, b_.t[0]), h = size(own, own.first + i);
      for (int64_t m = own.from; m < own.to; ++m) {
        const double x = (b_.t[m] - begin) / h;
        double change = 0;
        for (int64_t d = 0; d < step_.count(); ++d) {
          double derivative = 0;
          for (int p = kPowers - 1; p >= 0; --p) derivative = derivative * x + (p + 1) * double(T(step_.q(p, d)[l]));
          change += derivative * double(b_.grad_path[at(l, m) + d]);
        }
        b_.grad_t[(row_ + l) * b_.count + m] = change;
      }
    }
  }

  const OdeAdaptiveBackward<T>& b_;
  Step step_;
  const int64_t node_size_;  // registers
  Scratch<Reg> nodes_, dv_, dk_, last_derivative_, g_, inside_, before_, at_node_, output_, of_output_;
  Lane lane_[W];
  int64_t row_ = 0;
  int lanes_ = 0;
};

}  // namespace NPU_ISA
}  // namespace npu
