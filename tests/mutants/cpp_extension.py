"""Mutants of the C++ code that knows torch: the operators, and the fast path from Python."""

from __future__ import annotations

from tests.mutants.mutant import mutants

FAST_PATH = "csrc/fast_path/"

EXTENSION = [
    *mutants("csrc/ops.cpp", ("tests/operators/test_operators.py -k 'needs or absent or parity'", "tests/layers/test_layouts.py"), {
        "ops-strides-ignored": ("if (!t.is_contiguous()) tensor_ = whole(t);", ""),
        "ops-needs-of-the-next-weight": (
            "const bool wanted = given[i] && needs >> i & 1;",
            "const bool wanted = given[i] && needs >> (i ? 1 : 0) & 1;",
        ),
        "ops-swapped-gradients": (
            "gradients[i] = static_cast<T*>(into[i]);",
            "gradients[i] = static_cast<T*>(into[i == 4 ? 3 : (i == 3 ? 4 : i)]);",
        ),
        "ops-shared-x-of-one-model": ("shared_x = batched && x.dim() == 2;", "shared_x = false;"),
    }),
    *mutants("csrc/ops.cpp", "tests/operators/test_reference.py tests/operators/test_gradients.py -k 'gate or straight or parity'", {
        "ops-options-of-the-backward-ignored": (
            "arguments.options(L::options, npu::kInBackward, options.data());",
            "arguments.options(L::options, npu::kInBackward, options.data());\n    options.back() = 0;",
        ),
    }),
    *mutants("csrc/ops.cpp", "tests/ode/test_ode_kernel.py -k 'gradients_alone or options or operators or second'", {
        "ops-needs-of-the-ode-gate": (
            "needs_gate = gate && needs & 8;",
            "needs_gate = gate && needs & 2;",
        ),
    }),
    *mutants("csrc/ops.cpp", "tests/operators/test_errors.py -k raw", {
        "ops-elements-not-counted": ("check(t.numel() == count, op,", "check(t.numel() == count || op, op,"),
        "ops-dtype-not-checked": ("check(t.scalar_type() == dtype, op,", "check(t.scalar_type() == dtype || op, op,"),
    }),
    *mutants("csrc/training.h", "tests/training/test_training_run.py", {
        "train-model-of-a-block": ("p.operands[1 + w] = parameter.values + model_ * parameter.size;", "p.operands[1 + w] = parameter.values;"),
        "train-number-of-a-step": ("p.number + double(step) + 1}", "p.number + 1}"),
        "train-frozen-layers": ("p.grads[0] = l == first_ ? nullptr", "p.grads[0] = l != first_ ? nullptr"),
        "train-rows-of-a-step": ("run_.rows + step * run_.batch,", "run_.rows,"),
        "train-first-of-rows-that-follow": ("return {from + start * features,", "return {from,"),
        "train-distance-of-rows": ("return {from + start * features, shared ? 0 : all};", "return {from + start * features, shared ? 0 : size};"),
        "train-weights-of-errors-at-once": (" || run_.weight != nullptr) return false;", ") return false;"),
        "train-features-of-gathered-rows": ("from[rows[n] * features + f]", "from[rows[n] + f]"),
        "train-losses-of-a-step": ("records = number % run_.every == 0;", "records = step % run_.every == 0;"),
        "train-slope-halfway": ("(near + far) / 2", "near"),
        "train-norm-of-zero": ("squares == 0 ? T(0)", "squares < 0 ? T(0)"),
        "train-centered": ("scale = std::fma(-mean[n], mean[n], scale);", ""),
        "train-weights-of-a-model": ("if (!in.shared_target) weight += in.count;", ""),
        "train-weighted-loss": ("sum += double(weight[first + n]) * error * error;", "sum += error * error;"),
        "train-not-finite": ("if (!std::isfinite(grad[n])) grad[n] = 0;", ";"),
        "train-upper-end": ("(values[n] > high ? high : values[n])", "values[n]"),
    }),
    *mutants("csrc/training.h", "tests/training/test_training_loops.py", {
        "train-clamp-of-frozen-parameters": ("if (!p.trained) return clamp(p.low, p.high, count, values);", "if (!p.trained) return;"),
        "train-rmsprop-maximizes": ("o.maximize ? -grad[n] : grad[n]", "o.maximize ? grad[n] : grad[n]"),
        "train-rmsprop-decay": ("(decay != 0 ? decay * p[n] : T(0))", "T(0)"),
        "train-decay-of-infinite-weights": ("(decay != 0 ? decay * p[n] : T(0))", "decay * p[n]"),
    }),
    *mutants("csrc/training.h", "tests/training/test_training_plan.py -k 'one_end or only or frozen'", {
        "train-interval-without-an-upper-end": ("return low > -HUGE_VAL || high < HUGE_VAL;", "return high < HUGE_VAL;"),
        "train-interval-without-a-lower-end": ("return low > -HUGE_VAL || high < HUGE_VAL;", "return low > -HUGE_VAL;"),
        "train-memory-that-is-only-read": ("if (!bounded(lowest, highest)) return;", ""),
    }),
    *mutants("csrc/core/ode/adaptive_backward.h", ("ode_adaptive", "tests/ode/test_ode_adaptive_kernel.py -k 'fused_is_eager or bits or checkpoints'"), {
        "adaptive-slope-at-the-end-of-a-step": ("return S::fma(before, of_last, sum);", "return sum;"),
        "adaptive-last-slope": ("last_slope_[d] = step_.k(0)[d];", "last_slope_[d] = step_.k(1)[d];"),
        "adaptive-gradients-within-a-step": ("g_[d] = sum + inside_[kPowers * count + d] + at_node_[d];", "g_[d] = sum + at_node_[d];"),
        "adaptive-segments": ("own.steps / b_.every + 1 : 0", "(own.steps + b_.every - 1) / b_.every : 0"),
    }),
    *mutants("csrc/core/ode/adaptive_backward.h", ("ode_adaptive", "tests/ode/test_ode_implicit.py -k gradients"), {
        "implicit-first-slope": ("if constexpr (Step::kImplicit) pull_first_slope();", ""),
        "implicit-last-slope": ("last_slope_[d] = S::select(is_step > S::zero(), dk_[d], last_slope_[d]);", ""),
        "implicit-first-slope-of-times-within": ("if (stage == 0) sum = S::fma(-S::set1(T(b_.pair.diagonal())), inside_[kPowers * count + d], sum);", ""),
    }),
    *mutants("csrc/core/ode/implicit.h", ("ode_adaptive", "tests/ode/test_ode_implicit.py -k 'gradients or pivots'"), {
        "implicit-transposed": ("scaled * jacobian_[c * count() + r]", "scaled * jacobian_[r * count() + c]"),
        "implicit-jacobian": ("scaled * jacobian_[r * count() + c]", "scaled * jacobian_[c * count() + r]"),
        "implicit-lower-triangle": ("for (int64_t c = 0; c < r; ++c) x[r]", "for (int64_t c = 1; c < r; ++c) x[r]"),
    }),
    *mutants("csrc/core/ode/lanes.h", "tests/ode/test_ode_adaptive_kernel.py -k fused_is_eager", {
        "implicit-jacobian-of-complex-exponents": ("S::fma(-s, w[d_count + d], y * w[d])", "y * w[d]"),
    }),
    *mutants("csrc/core/ode/adaptive_forward.h", ("ode_adaptive", "tests/ode/test_ode_adaptive_kernel.py -k 'fused_is_eager or bits'", "tests/ode/test_ode_adaptive.py -k 'every_model or pole'"), {
        "adaptive-accepted-lanes": (
            "u_[d] = S::select(good, step_.v(6)[d], u_[d]);",
            "u_[d] = step_.v(6)[d];",
        ),
    }),
    *mutants("csrc/core/memory.cpp", ("tests/training/test_training_run.py", "tests/backends/test_allocations.py -k operators"), {
        "scratch-twice": ("kept.next += bytes;", ""),
        "scratch-given-back": ("kept.next = static_cast<char*>(taken);", ";"),
    }),
    *mutants("csrc/core/memory.cpp", "kernels 25000", {
        "scratch-not-kept": ("kept.most = kept.taken;", ";"),
    }),
    *mutants("csrc/core/memory.cpp", "tests/backends/test_threads.py -k scratch", {
        "scratch-of-ended-threads": ("pthread_key_create(&key, std::free)", "pthread_key_create(&key, nullptr)"),
    }),
    *mutants("csrc/training.cpp", "tests/training/test_training_run.py -k rows", {
        "train-rows-that-ascend": ("return b != a + 1;", "return b <= a;"),
    }),
    *mutants("csrc/training.cpp", "tests/training/test_training_run_errors.py -k plan", {
        "train-size-of-a-parameter": ("check(t.numel() == count, \"train: \"", "check(t.numel() >= 0, \"train: \""),
        "train-rows-out-of-bounds": ("*ends.second < run.count, ", "*ends.second <= run.count, "),
    }),
    *mutants("csrc/checks.h", "tests/training/test_training_plan.py", {
        "train-sizes-that-overflow": (
            "(!__builtin_mul_overflow(value, std::max<int64_t>(sizes, 1), &value) && ...);",
            "((value = int64_t(uint64_t(value) * uint64_t(sizes)), true) && ...);",
        ),
        "train-freed-storage": ("t.storage_offset() + count <= bytes / int64_t(element)", "bytes >= 0"),
    }),
    *mutants("csrc/checks.h", "tests/operators/test_errors.py -k memory", {
        "ops-strides-in-a-storage": ("count += (t.size(d) - 1) * t.stride(d);", "count += 0;"),
    }),
    *mutants("csrc/adaptive.cpp", "tests/ode/test_ode_adaptive_kernel.py -k checkpoints", {
        "adaptive-memory-of-every": ("every = std::min(every, longest + 1);", ""),
    }),
    *mutants("csrc/training.cpp", "tests/training/test_training_plan.py", {
        "train-absent-weight": ("if (index == -1 && weight.optional) return;", "if (index == -1) return;"),
        "train-memory-of-two-tensors": ("other == nullptr || other->end <= piece.begin,", "true || other->end <= piece.begin,"),
        "train-nan-in-a-plan": ("check(!std::isnan(value), ", "check(value == value || true, "),
        "train-columns-of-schedules": ("t.dim() == 2 && t.size(1) == run.steps", "t.dim() == 2"),
        "train-steps-before-that-overflow": ("call.before <= std::numeric_limits<int64_t>::max() - run.steps", "true"),
    }),
    *mutants(FAST_PATH + "common.h", "tests/backends/test_allocations.py -k fast", {
        "fast-path-memory-not-named": (
            "return npu::naming_memory([&] { return Derived::gradients(ctx, grads); });",
            "return Derived::gradients(ctx, grads);",
        ),
    }),
    *mutants(FAST_PATH + "common.h", "tests/backends/test_fast_path.py", {
        "fast-path-edges-of-absent-tensors": (
            "if (inputs[i].defined() && ctx->needs_input_grad(edge++)) needs",
            "if (inputs[i].defined() && ctx->needs_input_grad(edge + i - edge)) needs",
        ),
        "fast-path-needs-ignored": (
            "if (inputs[i].defined() && ctx->needs_input_grad(edge++)) needs",
            "if (inputs[i].defined() && edge++ < 9) needs",
        ),
        "fast-path-tangents-lost": ("!t._fw_grad(0).defined() && ", ""),
        "fast-path-autocast-not-seen": ("!at::autocast::is_autocast_enabled(at::kCPU) && ", ""),
    }),
    *mutants(FAST_PATH + "sizes.h", ("tests/operators/test_errors.py", "tests/backends/test_fast_path.py"), {
        "fast-path-x-of-other-models": ("(rows.size() < 3 || rows[0] != n.models)", "rows.size() < 3"),
    }),
    *mutants(FAST_PATH + "layer.h", ("tests/operators/test_gradients.py -k 'straight or parity or subset'", "tests/backends/test_fast_path.py", "tests/operators/test_errors.py"), {
        "fast-path-graph-of-a-backward": (
            "if (at::GradMode::is_enabled() || !nothing_watches() || !plain(grad_y, dtype)) return false;",
            "if (!nothing_watches() || !plain(grad_y, dtype)) return false;",
        ),
        "fast-path-gate-of-other-models": ("(sizes.size() == 2 && sizes[0] != n.models)", "(sizes.size() == 2 && sizes[0] < 0)"),
        "fast-path-strides-ignored": ("const Tensor upstream = grad_y.contiguous();", "const Tensor upstream = grad_y;"),
        "fast-path-options-forgotten": (
            "ctx->saved_data[L::options[i].name] = options[i];",
            "ctx->saved_data[L::options[i].name] = 0.5 * options[i];",
        ),
        "fast-path-flags-forgotten": (
            "value = object == Py_True;",
            "value = false;",
        ),
        "fast-path-word-ignored": ("value = is(object, option.words[1]);", "value = 0 * is(object, option.words[1]);"),
    }),
    *mutants("csrc/layers/nmu.h", ("tests/backends/test_fast_path.py -k 'one_weight or nau'", "tests/operators/test_gradients.py -k siblings"), {
        "fast-path-nmu-clip-ignored": (
            "n.shared_x, g.operands[1], g.options[0] != 0};",
            "n.shared_x, g.operands[1], g.options[0] < 0};",
        ),
    }),
    *mutants("csrc/layers/nmu.h", "tests/layers/test_nmru.py", {
        "nmru-eps-ignored": ("T(g.options[0])};", "T(0 * g.options[0])};"),
    }),
    *mutants(FAST_PATH + "mse.h", "tests/training/test_training.py", {
        "fast-path-mse-gradient-of-the-target-lost": ("!target.defined() || target.requires_grad() ||", "!target.defined() ||"),
        "fast-path-mse-count": ("return {count, y.numel() / count,", "return {count, y.numel(),"),
    }),
    *mutants(FAST_PATH + "adam.h", "tests/training/test_optim.py", {
        "fast-path-adam-amsgrad-ignored": ('{"amsgrad", ', "{"),
        "fast-path-adam-strides-ignored": ("one.grad = grad.contiguous();", "one.grad = grad;"),
        "fast-path-adam-version-not-bumped": ("changed->unsafeGetTensorImpl()->bump_version();", "(void)changed;"),
    }),
    *mutants(FAST_PATH + "ode.h", ("tests/ode/test_fast_path_ode.py", "tests/ode/test_ode.py -k nonfinite", "tests/ode/test_ode_kernel.py -k 'gradients_alone or options'"), {
        "fast-path-ode-sum-to-u0": (
            "if (needs & 1) found[0] = at::sum_to(std::move(found[0]), saved[0].sizes());",
            "if (needs & 1) found[0] = found[0].reshape({-1}).slice(0, 0, saved[0].numel()).reshape(saved[0].sizes());",
        ),
        "fast-path-ode-divergence-of-the-slopes": ("ends_finite<T>(found[0], r) && ends_finite<T>(found[1], r)", "ends_finite<T>(found[0], r)"),
        "fast-path-ode-clip-forgotten": ("r.clip = options[2] != 0,", "r.clip = options[2] < 0,"),
    }),
    *mutants(FAST_PATH + "adam.h", "tests/training/test_optim_checks.py", {
        "fast-path-adam-size-of-a-mean": (" || one.exp_avg.sizes() != parameter.sizes() ||", " ||"),
        "fast-path-adam-size-of-the-squares": ("one.exp_avg_sq.sizes() != parameter.sizes() || ", ""),
        "fast-path-adam-size-of-a-gradient": (" || grad.sizes() != parameter.sizes() ||", " ||"),
        "fast-path-adam-gradient-with-a-graph": (" || grad.requires_grad() ||", " ||"),
        "fast-path-adam-other-than-two-betas": ("PyTuple_GET_SIZE(betas) != 2 || ", ""),
        "fast-path-adam-flags-set": ("if (!flag(group, name, set) || set) return false;", "if (!flag(group, name, set)) return false;"),
        "fast-path-adam-flags-of-other-kinds": ("return found == nullptr || found == Py_True || found == Py_False;", "return true;"),
        "fast-path-adam-rate-beyond-the-floats": ("return value != -1 || PyErr_Occurred() == nullptr;", "return true;"),
        "fast-path-adam-strides-of-a-state": (" && changeable(value);", ";"),
    }),
    *mutants(FAST_PATH + "layer.h", "tests/backends/test_fast_path_checks.py", {
        "fast-path-weight-of-another-shape": ("if (sizes != operands[1].sizes()) return false;", ";"),
        "fast-path-length-of-a-gate": ("sizes.back() != (L::weights[w].shape[0] == 'I' ? n.in : n.out) ||", "sizes.back() < 0 ||"),
        "fast-path-more-arguments": ("if (at != count || !fit", "if (!fit"),
    }),
    *mutants(FAST_PATH + "ode.h", "tests/ode/test_fast_path_ode_checks.py", {
        "fast-path-ode-shape-of-the-imaginary-weight": ("return is(weight_im, hidden, features) && ", "return "),
        "fast-path-ode-shape-of-a-gate": ("&& is(gate, 0, features) && ", "&& "),
        "fast-path-ode-shape-of-a-weight": ("&& is(weight, features, hidden);", ";"),
        "fast-path-ode-steps-beyond-integers": ("if (overflow || r.steps < 1", "if (r.steps < 1"),
    }),
    *mutants("csrc/adaptive.cpp", "tests/ode/test_ode_adaptive_kernel.py -k overflows", {
        "adaptive-sum-of-counts": ("steps >= 0 && steps <= times.numel(),", "steps >= 0,"),
    }),
    *mutants("csrc/adaptive.cpp", "tests/ode/test_ode_adaptive_kernel.py -k operands", {
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
    *mutants("csrc/core/ode/adaptive.h", "tests/ode/test_ode_adaptive_steps.py", {
        "adaptive-guess-without-a-state": ("d0 < 1e-5 || d1 < 1e-5 ?", "d1 < 1e-5 ?"),
        "adaptive-guess-without-a-slope": ("d0 < 1e-5 || d1 < 1e-5 ?", "d0 < 1e-5 ?"),
        "adaptive-guess-beyond-the-end": ("if (!(h0_ <= span_)) h0_ = span_;", ""),
        "adaptive-zero-slope": ("most <= 1e-15 ? std::fmax(1e-6, h0_ * 1e-3) :", "most <= 1e-15 ? h0_ * 1e-3 :"),
        "adaptive-bend-that-is-not-finite": ("if (!std::isfinite(d2)) h1 = h0_ * 1e-3;", ""),
        "adaptive-first-step-of-a-hundred-guesses": ("size = std::fmin(100 * h0_, h1);", "size = h1;"),
        "adaptive-least-size-at-time-zero": ("std::fmax(std::fabs(time), kEps * span_)", "std::fabs(time)"),
        "adaptive-growth-after-a-rejection": ("size = shrunk_ ? std::fmin(grown, length) : grown;", "size = grown;"),
        "adaptive-growth-of-one-step": ("std::fmax(factor / std::pow(before_, kBeta), kLeast);", "(factor / std::pow(before_, kBeta));"),
        "adaptive-least-error-before": ("before_ = std::fmax(error, 1e-4);", "before_ = error;"),
        "adaptive-last-step-stretched": ("last_ = 1.01 * size >=", "last_ = size >="),
        "adaptive-first-time-at-the-bound": ("if (bound && at_bound++ == 0)", "if (bound && at_bound++ >= 0)"),
    }),
]  # fmt: skip
