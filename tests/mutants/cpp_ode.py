"""Mutants of the time loops in C++: fixed and adaptive steps, their operators and fast path."""

from __future__ import annotations

from tests.mutants.mutant import mutants

ODE = "csrc/core/ode/"
# Small cases first: the whole takes half a minute.
ODE_TESTS = ("ode 25000", "ode")

FIXED = [
    *mutants(ODE + "lanes.h", ODE_TESTS, {
        "lanes-upper-clip": (
            "bounded = S::select(a > S::set1(T(1)), S::set1(T(1)), bounded);",
            "",
        ),
        "lanes-gate-phase-everywhere": (
            "S::select(x < S::zero(), S::fma(pi, phase[d], grad_gate_[d]), grad_gate_[d]);",
            "S::fma(pi, phase[d], grad_gate_[d]);",
        ),
        "lanes-weights-of-the-model-before": (
            "if (same && lanes == packed_lanes_ && models[0] == packed_model_) return;",
            "if (same && lanes == packed_lanes_ && packed_model_ >= 0) return;",
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
        "hidden-slope-transposed": ("const T raw = in_.weight[d * h + o];", "const T raw = in_.weight[o * d_count + d];"),
    }),
    *mutants(ODE + "loop.h", ODE_TESTS, {
        "loop-last-stage": ("for (int64_t j = i + 1; j <= last; ++j)", "for (int64_t j = i + 1; j < last; ++j)"),
        "loop-gradient-of-derivatives": (
            "if (i == 0 && b.grad_derivatives != nullptr) units_.load(",
            "if (i == 0 && n == in_.steps && b.grad_derivatives != nullptr) units_.load(",
        ),
        "loop-stages-of-a-step": (
            "units_.stage(stages, n * in_.stages + i, stages_kept_, place)",
            "units_.stage(stages, n * in_.stages, stages_kept_, place)",
        ),
    }),
    *mutants(ODE + "rows.h", ODE_TESTS, {
        "ode-clip-of-the-weight": (
            "b.weight_passes(transposed) ? sum(part + 2 * d_count) : T(0)",
            "sum(part + 2 * d_count)",
        ),
        "ode-sum-of-the-first-model": (
            "total(parts + n * slots + model * per_model, per_model)",
            "total(parts + n * slots, per_model)",
        ),
        "ode-imaginary-part": ("= sum(part + d_count);", "= sum(part);"),
    }),
]  # fmt: skip

ADAPTIVE = [
    *mutants(ODE + "adaptive_backward.h", ("ode_adaptive", "tests/ode/test_ode_adaptive_kernel.py -k 'fused_is_eager or bits or checkpoints'"), {
        "adaptive-slope-at-the-end-of-a-step": ("return S::fma(before, of_last, sum);", "return sum;"),
        "adaptive-last-slope": ("last_slope_[d] = step_.k(0)[d];", "last_slope_[d] = step_.k(1)[d];"),
        "adaptive-gradients-within-a-step": ("g_[d] = sum + inside_[kPowers * count + d] + at_node_[d];", "g_[d] = sum + at_node_[d];"),
        "adaptive-segments": ("own.steps / b_.every + 1 : 0", "(own.steps + b_.every - 1) / b_.every : 0"),
    }),
    *mutants(ODE + "adaptive_backward.h", ("ode_adaptive", "tests/ode/test_ode_implicit.py -k gradients"), {
        "implicit-first-slope": ("if constexpr (Step::kImplicit) pull_first_slope();", ""),
        "implicit-last-slope": ("last_slope_[d] = S::select(is_step > S::zero(), dk_[d], last_slope_[d]);", ""),
        "implicit-first-slope-of-times-within": ("if (stage == 0) sum = S::fma(-S::set1(T(b_.pair.diagonal())), inside_[kPowers * count + d], sum);", ""),
    }),
    *mutants(ODE + "implicit.h", ("ode_adaptive", "tests/ode/test_ode_implicit.py -k 'gradients or pivots'"), {
        "implicit-transposed": ("scaled * jacobian_[c * count() + r]", "scaled * jacobian_[r * count() + c]"),
        "implicit-jacobian": ("scaled * jacobian_[r * count() + c]", "scaled * jacobian_[c * count() + r]"),
        "implicit-lower-triangle": ("for (int64_t c = 0; c < r; ++c) x[r]", "for (int64_t c = 1; c < r; ++c) x[r]"),
    }),
    *mutants(ODE + "lanes.h", "tests/ode/test_ode_adaptive_kernel.py -k fused_is_eager", {
        "implicit-jacobian-of-complex-exponents": ("S::fma(-s, w[d_count + d], y * w[d])", "y * w[d]"),
    }),
    *mutants(ODE + "adaptive_forward.h", ("ode_adaptive", "tests/ode/test_ode_adaptive_kernel.py -k 'fused_is_eager or bits'", "tests/ode/test_ode_adaptive.py -k 'every_model or pole'"), {
        "adaptive-accepted-lanes": (
            "u_[d] = S::select(good, step_.v(6)[d], u_[d]);",
            "u_[d] = step_.v(6)[d];",
        ),
    }),
    *mutants("csrc/ode_adaptive_operator.cpp", "tests/ode/test_ode_adaptive_kernel.py -k checkpoints", {
        "adaptive-memory-of-every": ("every = std::min(every, longest + 1);", ""),
    }),
    *mutants("csrc/fast_path/ode.h", ("tests/ode/test_fast_path_ode.py", "tests/ode/test_ode.py -k nonfinite", "tests/ode/test_ode_kernel.py -k 'gradients_alone or options'"), {
        "fast-path-ode-sum-to-u0": (
            "if (needs & 1) found[0] = at::sum_to(std::move(found[0]), saved[0].sizes());",
            "if (needs & 1) found[0] = found[0].reshape({-1}).slice(0, 0, saved[0].numel()).reshape(saved[0].sizes());",
        ),
        "fast-path-ode-divergence-of-the-slopes": ("ends_finite<T>(found[0], r) && ends_finite<T>(found[1], r)", "ends_finite<T>(found[0], r)"),
        "fast-path-ode-clip-forgotten": ("r.clip = options[2] != 0,", "r.clip = options[2] < 0,"),
    }),
    *mutants("csrc/fast_path/ode.h", "tests/ode/test_fast_path_ode_checks.py", {
        "fast-path-ode-shape-of-the-imaginary-weight": ("return is(weight_im, hidden, features) && ", "return "),
        "fast-path-ode-shape-of-a-gate": ("&& is(gate, 0, features) && ", "&& "),
        "fast-path-ode-shape-of-a-weight": ("&& is(weight, features, hidden);", ";"),
        "fast-path-ode-no-steps": ("if (r.steps < 1 || ", "if (r.steps == 0 || "),
    }),
    *mutants("csrc/ode_adaptive_operator.cpp", "tests/ode/test_ode_adaptive_kernel.py -k overflows", {
        "adaptive-sum-of-counts": ("steps >= 0 && steps <= times.numel(),", "steps >= 0,"),
    }),
    *mutants("csrc/ode_adaptive_operator.cpp", "tests/ode/test_ode_adaptive_kernel.py -k 'operands or needed'", {
        "adaptive-dtype-of-an-operand": ("check(t.scalar_type() == dtype && t.is_cpu()", "check(t.is_cpu()"),
        "adaptive-device-of-an-operand": ("dtype && t.is_cpu() && t.is", "dtype && t.is"),
        "adaptive-strides-of-an-operand": ("t.is_contiguous() && t.numel() == count,", "t.numel() == count,"),
        "adaptive-size-of-an-operand": ("t.is_contiguous() && t.numel() == count,", "t.is_contiguous(),"),
        "adaptive-dimensions-of-u0": (" && u0.dim() == 3 && ", " && u0.dim() > 1 && "),
        "adaptive-models-of-u0": ("u0.size(0) == weight_re.size(0) &&", "u0.size(0) > 0 &&"),
        "adaptive-one-time": ("check(count > 1,", "check(count > 0,"),
        "adaptive-pair-of-more-numbers": ("check(pair.size() == size_t", "check(pair.size() >= size_t"),
        "adaptive-eps-too-small": ("eps >= std::numeric_limits<T>::min() &&", "eps > 0 &&"),
        "adaptive-infinite-eps": (" && eps <= std::numeric_limits<T>::max(),", ","),
        "adaptive-dimensions-of-a-weight": ("check(weight_re.dim() == 3 && ", "check("),
        "adaptive-number-of-counts": ("ScalarType::Long, kCounts * n.rows);", "ScalarType::Long, counts.numel());"),
        "adaptive-gradients-that-nobody-needs": ("const bool wanted = like[i] && needs >> i & 1;", "const bool wanted = bool(like[i]);"),
        "adaptive-gradient-of-times-that-nobody-needs": ("const bool of_t = needs >> 5 & 1;", "const bool of_t = true;"),
        "adaptive-negative-counts": ("check(steps >= 0 && steps <=", "check(steps <="),
        "adaptive-negative-distance-of-states": ("check(every > 0, ", "check(every != 0, "),
    }),
    *mutants(ODE + "step_control.h", "tests/ode/test_ode_adaptive_steps.py", {
        "adaptive-guess-without-a-state": ("d0 < 1e-5 || d1 < 1e-5 ?", "d1 < 1e-5 ?"),
        "adaptive-guess-without-a-slope": ("d0 < 1e-5 || d1 < 1e-5 ?", "d0 < 1e-5 ?"),
        "adaptive-guess-beyond-the-end": ("if (!(h0_ <= span_)) h0_ = span_;", ""),
        "adaptive-zero-slope": ("most <= 1e-15 ? std::fmax(1e-6, h0_ * 1e-3) :", "most <= 1e-15 ? h0_ * 1e-3 :"),
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

TIME_LOOPS = [*FIXED, *ADAPTIVE]
