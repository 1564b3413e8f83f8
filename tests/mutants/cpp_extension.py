"""Mutants of the C++ code that knows torch: the operators, and the fast path from Python."""

from __future__ import annotations

from tests.mutants.mutant import mutants

FAST_PATH = "csrc/fast_path/"

EXTENSION = [
    *mutants("csrc/operands.h", ("tests/operators/test_operators.py -k 'needs or absent or parity'", "tests/layers/test_layouts.py"), {
        "ops-strides-ignored": ("if (!t.is_contiguous()) tensor_ = whole(t);", ""),
        "ops-shared-x-of-one-model": ("shared_x = batched && x.dim() == 2;", "shared_x = false;"),
    }),
    *mutants("csrc/ops.cpp", ("tests/operators/test_operators.py -k 'needs or absent or parity'", "tests/layers/test_layouts.py"), {
        "ops-needs-of-the-next-weight": (
            "const bool wanted = given[i] && needs >> i & 1;",
            "const bool wanted = given[i] && needs >> (i ? 1 : 0) & 1;",
        ),
        "ops-swapped-gradients": (
            "gradients[i] = static_cast<T*>(into[i]);",
            "gradients[i] = static_cast<T*>(into[i == 4 ? 3 : (i == 3 ? 4 : i)]);",
        ),
    }),
    *mutants("csrc/ops.cpp", "tests/operators/test_reference.py tests/operators/test_gradients.py -k 'gate or straight or parity'", {
        "ops-options-of-the-backward-ignored": (
            "arguments.options(L::options, npu::kInBackward, options.data());",
            "arguments.options(L::options, npu::kInBackward, options.data());\n    options.back() = 0;",
        ),
    }),
    *mutants("csrc/operands.h", "tests/backends/test_huge_pages.py", {
        "ops-small-pages": ("if (bytes >= kLeastForHugePages)", "if (false)"),
    }),
    *mutants(FAST_PATH + "common.h", "tests/backends/test_huge_pages.py", {
        "fast-path-small-pages": ("C10_UNLIKELY(bytes >= npu::kLeastForHugePages)", "false"),
    }),
    *mutants("csrc/second_operator.cpp", "tests/operators/test_second_kernel.py tests/operators/test_second_derivatives.py -k 'refuses or closed or sizes'", {
        "second-operator-half-a-direction": ("check(weight_im ? bool(along_re) == bool(along_im) : !along_im, op,", "check(true, op,"),
        "second-operator-swapped": ("pointer(by_im), pointer(by_gate)", "pointer(by_re), pointer(by_gate)"),
    }),
    *mutants(FAST_PATH + "second.h", "tests/operators/test_second_kernel.py -k 'any_shape or sees'", {
        "second-node-half-a-direction": ("(along[kRe].defined() ? along[kIm] : along[kRe]) =", "along[kIm] ="),
        "second-node-next-gradient": ("if (computed >> i & 1) along[i] = grad_outputs[next++];", "along[i] = grad_outputs[next++];"),
        "second-node-in-a-graph": ("return fast_backward(saved[0], saved);", "return true;"),
        "second-node-clips": ("{inputs, read(in[0]), read(in[5]), read(in[6]), straight_through,", "{inputs, read(in[0]), read(in[5]), read(in[6]), false,"),
    }),
    *mutants(FAST_PATH + "matrix.h", "tests/backends/test_fast_path.py -k large_products", {
        "matrix-shared-x-of-one-model": ("n.shared_x && x.dim() == 2 ? 1 : n.models", "n.models"),
    }),
    *mutants(FAST_PATH + "layer.h", "tests/backends/test_fast_path.py -k large_products", {
        "matrix-always-by-the-kernels": ("if (!takes(operands[0], n)) {", "if (false) {"),
        "matrix-gradients-by-the-kernels": ("known = !takes(saved[0], n);", "known = false;"),
        "matrix-weight-as-it-is": ("if (L::weight_is_matrix(options.data())) return operands[1];", "return operands[1];"),
    }),
    *mutants("csrc/ode_operator.cpp", "tests/ode/test_ode_kernel.py -k 'gradients_alone or options or operators or second'", {
        "ops-needs-of-the-ode-gate": (
            "needs_gate = gate && needs & 8;",
            "needs_gate = gate && needs & 2;",
        ),
    }),
    *mutants("csrc/operands.h", "tests/operators/test_errors.py -k raw", {
        "ops-elements-not-counted": ("check(t.numel() == count, op,", "check(t.numel() == count || op, op,"),
        "ops-dtype-not-checked": ("check(t.scalar_type() == dtype, op,", "check(t.scalar_type() == dtype || op, op,"),
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
            "if ((at::GradMode::is_enabled() && !L::second) || !nothing_watches()",
            "if (!nothing_watches()",
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
]  # fmt: skip
