"""Mutants of the C++ kernels, the time loops, the training loop and the extension."""

from __future__ import annotations

from tests.mutants.mutant import mutants

CORE = "csrc/core/"
# Small cases first: the whole takes half a minute.
KERNELS = ("kernels 25000", "kernels")
TILES_TEST = ("tiles 25000", "tiles")

FORWARD = [
    *mutants(CORE + "npu/forward.cpp", KERNELS, {
        "forward-phase-without-gate": (
            "const Reg angle = S::set1(T(kPi)) * S::load_first(gate + i, count);",
            "const Reg angle = S::set1(T(kPi));",
        ),
        "forward-shrink-sign": (
            "part ? -angle * S::load_first(im + i, count)",
            "part ? angle * S::load_first(im + i, count)",
        ),
        "forward-tail-without-phases": (
            "for (; i < end; ++i) multiply();\n      if constexpr (negative && together) turn();",
            "for (; i < end; ++i) multiply();",
        ),
        "forward-shared-x-ignored": (
            "const T* x = in_.x + ((in_.shared_x ? 0 : model * in_.rows) + row) * in_.in;",
            "const T* x = in_.x + (in_.shared_x ? model * in_.rows % 2 : model * in_.rows + row) * in_.in;",
        ),
        "forward-gate-of-the-first-model": ("if (model != gate_model) load_gate", "if (gate_model < 0) load_gate"),
    }),
    *mutants(CORE + "npu/forward_outputs.h", KERNELS, {
        "forward-outputs-phase-without-gate": ("(part ? -T(kPi) : T(kPi)) * gate[i0 + i + n]", "(part ? -T(kPi) : T(kPi))"),
        "forward-outputs-signs-of-the-next-row": ("S::negative_bits(value) & lanes", "S::negative_bits(value)"),
        "forward-outputs-tail-without-phases": ("for (; ins > 0; --ins) multiply();\n      if constexpr (negative) turn();", "for (; ins > 0; --ins) multiply();"),
        "forward-outputs-block-in-place-of-a-sum": ("i0 + i > 0, sums", "i > 0, sums"),
    }, isa="avx2"),
    *mutants(CORE + "npu/sign_tables.h", KERNELS, {
        "sign-tables-last-term": ("for (int e = 0; e < 1 << n; ++e)", "for (int e = n == 3; e < 1 << n; ++e)"),
    }, isa="avx2"),
    *mutants(CORE + "npu/gate.h", ("kernels 25000", "tests/layers/test_edges.py -k 'special_input or minus_zero or zero_has_no_sign'"), {
        "gate-not-clamped": (
            "gate[i] = in.gate == nullptr ? T(1) : clamp_gate(in.gate[model * in.in + i]);",
            "gate[i] = in.gate == nullptr ? T(1) : in.gate[model * in.in + i];",
        ),
        "gate-without-eps": ("S::fma(gate_, S::abs(x) + eps_, rest_)", "S::fma(gate_, S::abs(x), rest_)"),
        "gate-size": ("*sum = S::fma(dr, size - S::set1(T(1)), *sum);", "*sum = S::fma(dr, size, *sum);"),
        "gate-x-without-gate": ("return dr * gate_;", "return dr;"),
        "gate-sign": ("S::with_sign_of(of_size(dl, x, sum), x)", "of_size(dl, x, sum)"),
    }),
    *mutants(CORE + "simd/avx512.h", "tests/layers/test_edges.py -k 'zero_has_no_sign or special_input'", {
        "sign-of-zero": ("_CMP_EQ_UQ);\n      return (Reg)_mm512_mask_mul_ps", "_CMP_UNORD_Q);\n      return (Reg)_mm512_mask_mul_ps"),
    }, isa="avx512"),
    *mutants(CORE + "simd/vector_math.h", "vector_math", {
        "log-rest-of-ln2": ("S::fma(e, S::set1(Table::kLn2[1]), ", "S::fma(e - e, S::set1(Table::kLn2[1]), "),
        "exp-rest-of-ln2": ("S::set1(-LogTable<T>::kLn2[1]), t)", "S::zero(), t)"),
        "exp-power-without-its-part": ("S::fma(power, r, power)", "S::fma(S::set1(T(1)), r, power)"),
        "sincos-sign-of-the-cosine": ("(quadrant + 1) << kToTop", "quadrant << kToTop"),
        "sincos-far": ("if (std::fabs(q[l]) > limit) near[l] = function(q[l]);", ";"),
    }, isa="avx512"),
    *mutants(CORE + "npu/forward.h", KERNELS, {
        "forward-sine-without-size": ("*s = size * sine;", "*s = sine;"),
    }),
]  # fmt: skip

BACKWARD = [
    *mutants(CORE + "npu/backward.h", KERNELS, {
        "backward-weight-im-sign": ("sum[kSQ] - times_sum<T>(turn, sum[kMP])", "sum[kSQ] + times_sum<T>(turn, sum[kMP])"),
        "backward-gate-phase-of-weight-im": (
            "phase = phase - times_sum<T>(S::load_first(f.inputs.weight_im + at, count), sum[kMP]);",
            "phase = phase + times_sum<T>(S::load_first(f.inputs.weight_im + at, count), sum[kMP]);",
        ),
    }),
    *mutants(CORE + "npu/backward.h", "tests/operators/test_reference.py tests/contract/test_layers.py -k 'gate or NPU'", {
        "groups-straight-through-ignored": (
            "const bool passes = f.straight_through || (raw >= T(0) && raw <= T(1));",
            "const bool passes = raw >= T(0) && raw <= T(1);",
        ),
        "groups-clip-mask-dropped": (
            "const bool passes = f.straight_through || (raw >= T(0) && raw <= T(1));",
            "const bool passes = f.straight_through || raw >= T(0) || raw < T(0);",
        ),
        "groups-clip-at-the-ends": (
            "(raw >= T(0) && raw <= T(1));",
            "(raw > T(0) && raw < T(1));",
        ),
    }),
    *mutants(CORE + "npu/step.h", KERNELS, {
        "step-imaginary-weight-of-the-gate": (
            "if constexpr (complex) dl[r] = S::fma(grad_q[r * out + o], im, dl[r]);", "(void)im;",
        ),
        "step-loss-of-a-sum": ("f_.loss[model] = T(totals_[loss_at_] / double(in_.rows * in_.out));", "f_.loss[model] = T(totals_[loss_at_] / double(in_.rows));"),
    }),
]  # fmt: skip

TILES = [
    *mutants(CORE + "npu/tiled_forward.h", TILES_TEST, {
        "tiles-forward-phase-sign": ("S::set1(turned ? -phase : phase)", "S::set1(phase)"),
    }, isa="amx"),
    *mutants(CORE + "npu/tiled_backward.cpp", TILES_TEST, {
        "tiles-backward-sign-of-dq": (
            "*dq = -grad_y * S::load_first(f_.s + at, count);",
            "*dq = grad_y * S::load_first(f_.s + at, count);",
        ),
    }, isa="amx"),
]  # fmt: skip

SECOND = [
    *mutants(CORE + "npu/second.cpp", KERNELS, {
        "second-direction-outside-of-the-clip": ("const bool along = f_.along_gate != nullptr && f_.gate_passes(gate);", "const bool along = f_.along_gate != nullptr;"),
        "second-gradient-outside-of-the-clip": ("f.grad_gate[n] = f.gate_passes(in.gate[n]) ? sum : T(0);", "f.grad_gate[n] = sum;"),
        "second-mixed-derivative": ("of_change * (along_gate * mixed - along * at.slope_x * at.slope_x)", "of_change * (along_gate * mixed)"),
        "second-gate-of-a-phase": ("if (negative_ && f_.grad_gate != nullptr) {", "if (false) {"),
        "second-shared-x-ignored": ("(in_.shared_x ? 0 : model * in_.rows) + row) * in_.in;\n      const int64_t y", "(model * in_.rows) + row) * in_.in;\n      const int64_t y"),
        "second-turn-of-conj": ("grad * S::fma(value, turn, -turned * change)", "grad * S::fma(value, turn, turned * change)"),
    }),
]  # fmt: skip

SIBLINGS = [
    *mutants(CORE + "nmu.cpp", KERNELS, {
        "nmu-x-less-one": ("x_less_one = x - S::set1(T(1));", "x_less_one = x;"),
        "nmu-suffix": (
            "suffix[n] = suffix[n] * S::fma(weight, x, S::set1(w[P * n + 1]));",
            "suffix[n] = suffix[n] * S::fma(weight, x, S::set1(w[P * n]));",
        ),
        "nmu-clip-mask": ("(weight >= S::zero()) & (weight <= S::set1(T(1)))", "(weight >= S::zero())"),
        "nmru-derivative-of-the-reciprocal": ("dx - dr * (r * r)", "dx - dr * r"),
        "nmru-sign-of-the-size": ("dx = dx * sign(S::load(x_ + n)), dr", "dx = dx + S::zero(), dr"),
        "nmru-gradient-of-the-signs": ("S::set1(T(-kPi)) * (suffix[n]", "S::set1(T(kPi)) * (suffix[n]"),
        "nmru-clipped-weight-in-the-signs": ("if (Separate) *packed++ = given;", "if (Separate) *packed++ = w;"),
    }),
    *mutants(CORE + "panel.h", KERNELS, {
        "nau-lower-clip": ("return w < T(-1) ? T(-1) :", "return w < T(0) ? T(0) :"),
    }),
    *mutants(CORE + "nau.cpp", KERNELS, {
        "nau-clip-mask-below": (
            "if (!(in.weight[n] >= T(-1) && in.weight[n] <= T(1)))",
            "if (!(in.weight[n] <= T(1)))",
        ),
        "nau-clip-at-the-ends": ("in.weight[n] <= T(1)))", "in.weight[n] < T(1)))"),
    }),
    *mutants(CORE + "inalu.cpp", KERNELS, {
        "inalu-omega-ignored": (
            "VectorMath<T>::exp(S::select(bounded, omega, e[r][n]))",
            "VectorMath<T>::exp(e[r][n])",
        ),
        "inalu-gradient-beyond-omega": (
            "S::select(S::load(bounds) == zero, d_t, zero)",
            "S::select(S::load(bounds) == zero, d_t, d_t)",
        ),
        "inalu-gate-derivative": ("d_a * shares.rest * (a - whole)", "d_a * (a - whole)"),
        "inalu-derivative-at-zero": (
            "S::select(S::abs(value) >= eps, S::set1(T(1)) / inside, S::zero());",
            "S::set1(T(1)) / inside;",
        ),
        "inalu-class-of-zeros": (
            "if (count_sums > kZero) d_size = d_size + of_class(T(-1), sum[kZero], sum[kZeroRest]);",
            "",
        ),
        "inalu-sign-of-the-weight": ("S::select(w < zero, -d_size,", "S::select(w < zero, d_size,"),
    }),
    *mutants(CORE + "nac.cpp", KERNELS, {
        "nac-clips-as-the-nau": ("in.shared_x, product, false};", "in.shared_x, in.weight, false};"),
        "nac-known-gradient-ignored": ("const T* grad = f.grad_product;", "const T* grad = nullptr;"),
    }),
    *mutants(CORE + "nac_weights.h", KERNELS, {
        "nac-mask-derivative": ("grad * turn * share * (one - share)", "grad * turn * share"),
    }),
    *mutants(CORE + "nac_weights.h", "tests/layers/test_edges.py -k derivatives_of_a_gate", {
        "nac-rest-of-the-gate": ("S::select(v < S::zero(), more, less);", "one - gate;"),
    }),
    *mutants(CORE + "nalu.cpp", KERNELS, {
        "nalu-gate-derivative": ("d_a * shares.rest * (a - t)", "d_a * (a - t)"),
        "nalu-derivative-without-eps": ("one / (S::abs(x) + eps)", "one / S::abs(x)"),
        "nalu-derivative-at-zero": ("S::with_sign_of(one / (S::abs(x) + eps), x)", "one / (x + eps)"),
        "nalu-bias-ignored": ("if (in_.gate_bias != nullptr) add_bias", "if (in_.gate_bias == in_.x) add_bias"),
        "nalu-logs-in-the-sum": ("Product<0, 1, 1>, Product<1, 2, 0>", "Product<0, 1, 1>, Product<0, 2, 0>"),
    }),
    *mutants(CORE + "loss.cpp", KERNELS, {
        "loss-scale-of-the-first-model": ("f.grad_loss[model]", "f.grad_loss[0]"),
        "loss-shared-target-ignored": (
            "in.target + (in.shared_target ? 0 : model * in.count) + n,",
            "in.target + n,",
        ),
    }),
    *mutants(CORE + "adam.cpp", "tests/training/test_optim.py", {
        "adam-second-correction": ("(std::sqrt(v[n]) * scale + eps)", "(std::sqrt(v[n]) + eps)"),
        "adam-maximize-ignored": ("const T g = sign * grad[n]", "const T g = grad[n]"),
        "adam-decay-without-rate": ("T(1 - step.lr * step.weight_decay)", "T(1 - step.weight_decay)"),
    }),
]  # fmt: skip

MEMORY = [
    *mutants(CORE + "memory.cpp", ("tests/training/test_training_run.py", "tests/backends/test_allocations.py -k operators"), {
        "scratch-twice": ("kept.next += bytes;", ""),
    }),
]  # fmt: skip

THREADS = [
    *mutants(CORE + "chunks.h", "threads", {
        "threads-last-part": ("n < parts_; ++n", "n + 1 < parts_; ++n"),
    }),
]  # fmt: skip

ODE = "csrc/core/ode/"
# Small cases first: the whole takes half a minute.
ODE_TESTS = ("ode 25000", "ode")

FIXED = [
    *mutants(ODE + "lanes.h", ODE_TESTS, {
        "lanes-upper-clip": ("S::bounded(a, S::set1(T(-1)), S::set1(T(1)))", "S::bounded(a, S::set1(T(-1)), a)"),
        "lanes-gate-phase-everywhere": (
            "S::select(x < S::zero(), S::fma(pi, phase[d], grad_gate_[d]), grad_gate_[d]);",
            "S::fma(pi, phase[d], grad_gate_[d]);",
        ),
        "lanes-shrink-sign": (
            "p = S::fma(-turn[d], w[d_count + d], p);",
            "p = S::fma(turn[d], w[d_count + d], p);",
        ),
    }),
    *mutants(ODE + "hidden.h", ODE_TESTS, {
        "hidden-gate-phase": (
            "if (turned) grad_gate_[r] =",
            "if (turned && eps[0] < 0) grad_gate_[r] =",
        ),
        "hidden-clip-of-the-gate": (
            "b.gate_passes(d) ? T(grad_gate_[d / W][d % W]) : T(0)",
            "T(grad_gate_[d / W][d % W])",
        ),
        "hidden-clip-of-the-weight": (
            "b.weight_passes(at) ? T(grad[2][o % W]) : T(0)",
            "T(grad[2][o % W])",
        ),
        "hidden-derivative-transposed": ("const T raw = in_.weight[d * h + o];", "const T raw = in_.weight[o * d_count + d];"),
    }),
    *mutants(ODE + "loop.h", ODE_TESTS, {
        "loop-gradient-of-derivatives": (
            "if (i == 0 && b.grad_derivatives != nullptr) units_.load(",
            "if (i == 0 && n == in_.steps && b.grad_derivatives != nullptr) units_.load(",
        ),
        "loop-stages-of-a-step": (
            "units_.stage(stages, n * in_.stages + i, saved_stages_, place)",
            "units_.stage(stages, n * in_.stages, saved_stages_, place)",
        ),
    }),
    *mutants(ODE + "rows.h", ODE_TESTS, {
        "ode-clip-of-the-weight": (
            "b.weight_passes(transposed) ? sum(part + 2 * d_count) : T(0)",
            "sum(part + 2 * d_count)",
        ),
        "ode-imaginary-part": ("= sum(part + d_count);", "= sum(part);"),
    }),
]  # fmt: skip

ADAPTIVE = [
    *mutants(ODE + "adaptive_backward.h", ("ode_adaptive", "tests/ode/test_ode_adaptive_kernel.py -k 'fused_is_eager or bits or checkpoints'"), {
        "adaptive-derivative-at-the-end-of-a-step": ("return S::fma(before, of_last, sum);", "return sum;"),
        "adaptive-gradients-within-a-step": ("g_[d] = sum + inside_[kPowers * count + d] + at_node_[d];", "g_[d] = sum + at_node_[d];"),
    }),
    *mutants(ODE + "adaptive_backward.h", ("ode_adaptive", "tests/ode/test_ode_implicit.py -k gradients"), {
        "implicit-first-derivative": ("if constexpr (Step::kImplicit) first_derivative_vjp();", ""),
        "implicit-last-derivative": ("last_derivative_[d] = S::select(is_step > S::zero(), dk_[d], last_derivative_[d]);", ""),
    }),
    *mutants(ODE + "implicit.h", ("ode_adaptive", "tests/ode/test_ode_implicit.py -k 'gradients or pivots'"), {
        "implicit-transposed": ("scaled * jacobian_[c * count() + r]", "scaled * jacobian_[r * count() + c]"),
        "implicit-jacobian": ("scaled * jacobian_[r * count() + c]", "scaled * jacobian_[c * count() + r]"),
        "implicit-lower-triangle": ("for (int64_t c = 0; c < r; ++c) x[r]", "for (int64_t c = 1; c < r; ++c) x[r]"),
    }),
    *mutants(ODE + "lanes.h", "tests/ode/test_ode_adaptive_kernel.py -k fused_is_eager", {
        "implicit-jacobian-of-complex-exponents": ("S::fma(-s, w[d_count + d], y * w[d])", "y * w[d]"),
    }),
    *mutants("csrc/fast_path/ode.h", ("tests/ode/test_fast_path_ode.py", "tests/ode/test_ode.py -k nonfinite", "tests/ode/test_ode_kernel.py -k 'gradients_alone or options or same or layout'"), {
        "fast-path-ode-sum-to-u0": (
            "if (needs & 1) found[0] = at::sum_to(std::move(found[0]), saved[0].sizes());",
            "if (needs & 1) found[0] = found[0].reshape({-1}).slice(0, 0, saved[0].numel()).reshape(saved[0].sizes());",
        ),
        "fast-path-ode-divergence-of-the-derivatives": ("ends_finite<T>(found[0], r) && ends_finite<T>(found[1], r)", "ends_finite<T>(found[0], r)"),
        "fast-path-ode-clip-forgotten": ("r.clip = options[2] != 0,", "r.clip = options[2] < 0,"),
    }),
    *mutants("csrc/fast_path/ode.h", "tests/ode/test_fast_path_ode_checks.py", {
        "fast-path-ode-shape-of-the-imaginary-weight": ("return is(weight_im, hidden, features) && ", "return "),
        "fast-path-ode-shape-of-a-gate": ("&& is(gate, 0, features) && ", "&& "),
        "fast-path-ode-shape-of-a-weight": ("&& is(weight, features, hidden);", ";"),
        "fast-path-ode-no-steps": ("if (r.steps < 1 || ", "if (r.steps == 0 || "),
    }),
    *mutants("csrc/operators/ode_adaptive.cpp", "tests/ode/test_ode_adaptive_kernel.py -k 'operands or needed'", {
        "adaptive-dtype-of-an-operand": ("check(t.scalar_type() == dtype && t.is_cpu()", "check(t.is_cpu()"),
        "adaptive-size-of-an-operand": ("t.is_contiguous() && t.numel() == count,", "t.is_contiguous(),"),
        "adaptive-dimensions-of-u0": (" && u0.dim() == 3 && ", " && u0.dim() > 1 && "),
        "adaptive-one-time": ("check(count > 1,", "check(count > 0,"),
        "adaptive-dimensions-of-a-weight": ("check(weight_re.dim() == 3 && ", "check("),
    }),
    *mutants(ODE + "step_control.h", "tests/ode/test_ode_adaptive_steps.py", {
        "adaptive-guess-without-a-state": ("d0 < 1e-5 || d1 < 1e-5 ?", "d1 < 1e-5 ?"),
        "adaptive-guess-without-a-derivative": ("d0 < 1e-5 || d1 < 1e-5 ?", "d0 < 1e-5 ?"),
        "adaptive-zero-derivative": ("most <= 1e-15 ? std::fmax(1e-6, h0_ * 1e-3) :", "most <= 1e-15 ? h0_ * 1e-3 :"),
        "adaptive-bend-that-is-not-finite": ("if (!std::isfinite(d2)) h1 = h0_ * 1e-3;", ""),
        "adaptive-first-step-of-a-hundred-guesses": ("std::fmin(100 * h0_, h1), 2", "h1, 2"),
        "adaptive-least-size-at-time-zero": ("std::fmax(std::fabs(time), kEps * span_)", "std::fabs(time)"),
        "adaptive-growth-after-a-rejection": ("size = shrunk_ ? std::fmin(grown, length) : grown;", "size = grown;"),
        "adaptive-growth-of-one-step": ("std::fmax(factor / std::pow(before_, kBeta), kLeast);", "(factor / std::pow(before_, kBeta));"),
        "adaptive-least-error-before": ("before_ = std::fmax(error, 1e-4);", "before_ = error;"),
        "adaptive-last-step-stretched": ("last_ = 1.01 * size >=", "last_ = size >="),
        "adaptive-first-time-at-the-bound": ("if (bound && at_bound++ == 0)", "if (bound && at_bound++ >= 0)"),
    }),
]  # fmt: skip

FAST_PATH = "csrc/fast_path/"

EXTENSION = [
    *mutants("csrc/operators/layers.cpp", "tests/operators/test_reference.py tests/contract/test_layers.py -k 'gate or NPU'", {
        "ops-options-of-the-backward-ignored": (
            "arguments.options(L::options, npu::kInBackward, options.data());",
            "arguments.options(L::options, npu::kInBackward, options.data());\n    options.back() = 0;",
        ),
    }),
    *mutants("csrc/operators/second.cpp", "tests/operators/test_second_kernel.py tests/operators/test_second_derivatives.py -k 'refuses or closed or sizes'", {
        "second-operator-half-a-direction": ("check(weight_im ? bool(along_re) == bool(along_im) : !along_im, op,", "check(true, op,"),
    }),
    *mutants(FAST_PATH + "second.h", "tests/operators/test_second_kernel.py -k 'any_shape or sees'", {
        "second-node-half-a-direction": ("(along[kRe].defined() ? along[kIm] : along[kRe]) =", "along[kIm] ="),
        "second-node-clips": ("{inputs, read(in[0]), read(in[5]), read(in[6]), straight_through,", "{inputs, read(in[0]), read(in[5]), read(in[6]), false,"),
    }),
    *mutants(FAST_PATH + "layer.h", "tests/backends/test_fast_path.py -k large_products", {
        "matrix-gradients-by-the-kernels": ("known = !takes(saved[0], n);", "known = false;"),
    }),
    *mutants("csrc/operators/operands.h", "tests/ode/test_ode_adaptive_kernel.py -k 'operands or needed'", {
        "operators-eps-too-small": ("eps >= std::numeric_limits<T>::min() &&", "eps > 0 &&"),
        "operators-infinite-eps": (" && eps <= std::numeric_limits<T>::max(),", ","),
    }),
    *mutants("csrc/operators/operands.h", "tests/operators/test_errors.py -k raw", {
        "ops-dtype-not-checked": ("check(t.scalar_type() == dtype, op,", "check(t.scalar_type() == dtype || op, op,"),
    }),
    *mutants("csrc/operators/checks.h", "tests/training/test_training_plan.py", {
        "train-freed-storage": ("t.storage_offset() + count <= bytes / int64_t(element)", "bytes >= 0"),
    }),
    *mutants(FAST_PATH + "common.h", ("tests/backends/test_fast_path_checks.py", "tests/backends/test_fast_path.py"), {
        "fast-path-edges-of-absent-tensors": (
            "if (inputs[i].defined() && ctx->needs_input_grad(edge++)) needs",
            "if (inputs[i].defined() && ctx->needs_input_grad(edge + i - edge)) needs",
        ),
        "fast-path-tangents-lost": ("!t._fw_grad(0).defined() && ", ""),
        "fast-path-autocast-not-seen": ("!at::autocast::is_autocast_enabled(at::kCPU) && ", ""),
    }),
    *mutants(FAST_PATH + "layer.h", ("tests/contract/test_layers.py", "tests/operators/test_gradients.py -k subset", "tests/backends/test_fast_path.py", "tests/operators/test_errors.py"), {
        "fast-path-graph-of-a-backward": (
            "if ((at::GradMode::is_enabled() && !L::second) || !nothing_watches()",
            "if (!nothing_watches()",
        ),
        "fast-path-options-forgotten": (
            "ctx->saved_data[L::options[i].name] = options[i];",
            "ctx->saved_data[L::options[i].name] = 0.5 * options[i];",
        ),
    }),
    *mutants(CORE + "layers/nmu.h", ("tests/backends/test_fast_path.py -k one_weight", "tests/contract/test_layers.py -k NMU"), {
        "fast-path-nmu-clip-ignored": (
            "n.shared_x, g.operands[1], g.options[0] != 0};",
            "n.shared_x, g.operands[1], g.options[0] < 0};",
        ),
    }),
    *mutants(CORE + "layers/nmu.h", "tests/contract/test_layers.py -k NMRU", {
        "nmru-eps-ignored": ("T(g.options[0])};", "T(0 * g.options[0])};"),
    }),
    *mutants(FAST_PATH + "mse.h", "tests/training/test_training.py", {
        "fast-path-mse-gradient-of-the-target-lost": ("!target.defined() || target.requires_grad() ||", "!target.defined() ||"),
    }),
    *mutants(FAST_PATH + "adam.h", "tests/training/test_optim.py", {
        "fast-path-adam-amsgrad-ignored": ('{"amsgrad", ', "{"),
        "fast-path-adam-version-not-bumped": ("changed->unsafeGetTensorImpl()->bump_version();", "(void)changed;"),
    }),
    *mutants(FAST_PATH + "adam.h", "tests/training/test_optim_checks.py", {
        "fast-path-adam-size-of-a-mean": (" || one.exp_avg.sizes() != parameter.sizes() ||", " ||"),
        "fast-path-adam-size-of-a-gradient": (" || grad.sizes() != parameter.sizes() ||", " ||"),
        "fast-path-adam-gradient-with-a-graph": (" || grad.requires_grad() ||", " ||"),
        "fast-path-adam-other-than-two-betas": ("PyTuple_GET_SIZE(betas) != 2 || ", ""),
    }),
    *mutants(FAST_PATH + "layer.h", "tests/backends/test_fast_path_checks.py", {
        "fast-path-weight-of-another-shape": ("if (sizes != operands[1].sizes()) return false;", ";"),
        "fast-path-length-of-a-gate": ("sizes.back() != (L::weights[w].shape[0] == 'I' ? n.in : n.out) ||", "sizes.back() < 0 ||"),
    }),
]  # fmt: skip

TRAINING_LOOP = [
    *mutants("csrc/operators/training_loop.h", "tests/training/test_training_run.py", {
        "train-number-of-a-step": ("p.number + double(step) + 1}", "p.number + 1}"),
        "train-frozen-layers": ("p.grads[0] = l == first_ ? nullptr", "p.grads[0] = l != first_ ? nullptr"),
        "train-losses-of-a-step": ("records = number % run_.every == 0;", "records = step % run_.every == 0;"),
        "train-derivative-halfway": ("(near + far) / 2", "near"),
        "train-norm-of-zero": ("squares == 0 ? T(0)", "squares < 0 ? T(0)"),
        "train-centered": ("scale = std::fma(-mean[n], mean[n], scale);", ""),
        "train-weights-of-a-model": ("if (!in.shared_target) weight += in.count;", ""),
        "train-weighted-loss": ("sum += double(weight[first + n]) * error * error;", "sum += error * error;"),
        "train-not-finite": ("if (!std::isfinite(grad[n])) grad[n] = 0;", ";"),
        "train-upper-end": ("(values[n] > high ? high : values[n])", "values[n]"),
    }),
    *mutants("csrc/operators/training_loop.h", "tests/training/test_training_loops.py", {
        "train-clamp-of-frozen-parameters": ("if (!p.trained) return clamp(p.low, p.high, count, values);", "if (!p.trained) return;"),
        "train-rmsprop-maximizes": ("o.maximize ? -grad[n] : grad[n]", "o.maximize ? grad[n] : grad[n]"),
        "train-rmsprop-decay": ("(decay != 0 ? decay * p[n] : T(0))", "T(0)"),
        "train-decay-of-infinite-weights": ("(decay != 0 ? decay * p[n] : T(0))", "decay * p[n]"),
    }),
    *mutants("csrc/operators/training_loop.h", "tests/training/test_training_plan.py -k 'one_end or only or frozen'", {
        "train-interval-without-an-upper-end": ("return low > -HUGE_VAL || high < HUGE_VAL;", "return high < HUGE_VAL;"),
        "train-interval-without-a-lower-end": ("return low > -HUGE_VAL || high < HUGE_VAL;", "return low > -HUGE_VAL;"),
    }),
    *mutants("csrc/operators/train.cpp", "tests/training/test_training_plan.py -k wrong", {
        "train-size-of-a-parameter": ("check(t.numel() == count, \"train: \"", "check(t.numel() >= 0, \"train: \""),
    }),
    *mutants("csrc/operators/train.cpp", "tests/training/test_training_plan.py", {
        "train-absent-weight": ("if (index == -1 && weight.optional) return;", "if (index == -1) return;"),
        "train-columns-of-schedules": ("t.dim() == 2 && t.size(1) == run.steps", "t.dim() == 2"),
        "train-steps-before-that-overflow": ("call.before <= std::numeric_limits<int64_t>::max() - run.steps", "true"),
    }),
]  # fmt: skip

CPP = [
    *FORWARD,
    *BACKWARD,
    *SECOND,
    *TILES,
    *SIBLINGS,
    *MEMORY,
    *THREADS,
    *FIXED,
    *ADAPTIVE,
    *EXTENSION,
    *TRAINING_LOOP,
]
