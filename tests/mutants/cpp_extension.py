"""Mutants of the C++ code that knows torch: the operators, and the fast path from Python."""

# ruff: noqa: E501 (a text stands on one line where the code has it on one)

from __future__ import annotations

from tests.mutants.mutant import mutants

DIRECT = "csrc/direct/"

EXTENSION = [
    *mutants("csrc/ops.cpp", ("tests/test_operators.py -k 'needs or absent or parity'", "tests/test_layouts.py"), {
        "ops-strides-ignored": ("tensor_(t.is_contiguous() ? t : whole(t))", "tensor_(t)"),
        "ops-needs-of-the-imaginary-part": (
            "Tensor grad_weight_im = weight_im && needs & kWeightIm ?",
            "Tensor grad_weight_im = weight_im && needs & kWeightRe ?",
        ),
        "ops-swapped-inalu-gradients": (
            "return {grad_x, grads[0], grads[1], grads[2], grads[3], grads[4]};",
            "return {grad_x, grads[0], grads[1], grads[3], grads[2], grads[4]};",
        ),
        "ops-shared-x-of-one-model": ("shared_x = batched && x.dim() == 2;", "shared_x = false;"),
    }),
    *mutants("csrc/ops.cpp", "tests/test_reference.py tests/test_gradients.py -k 'gate or straight or parity'", {
        "ops-straight-through-ignored": (
            "{operands.inputs, upstream, cosine, sine, straight_through, needs",
            "{operands.inputs, upstream, cosine, sine, false && straight_through, needs",
        ),
    }),
    *mutants("csrc/ops.cpp", "tests/test_ode_kernel.py -k 'gradients_alone or options or operators or second'", {
        "ops-needs-of-the-ode-gate": (
            "needs_gate = gate && needs & 8;",
            "needs_gate = gate && needs & 2;",
        ),
    }),
    *mutants("csrc/ops.cpp", "tests/test_errors.py -k raw", {
        "ops-elements-not-counted": ("check(t.numel() == count, op,", "check(t.numel() == count || op, op,"),
        "ops-dtype-not-checked": ("check(t.scalar_type() == dtype, op,", "check(t.scalar_type() == dtype || op, op,"),
    }),
    *mutants(DIRECT + "common.h", "tests/test_direct.py", {
        "direct-edges-of-absent-tensors": (
            "if (inputs[i].defined() && ctx->needs_input_grad(edge++)) needs",
            "if (inputs[i].defined() && ctx->needs_input_grad(edge + i - edge)) needs",
        ),
        "direct-needs-ignored": (
            "if (inputs[i].defined() && ctx->needs_input_grad(edge++)) needs",
            "if (inputs[i].defined() && edge++ < 9) needs",
        ),
        "direct-tangents-lost": ("!t._fw_grad(0).defined();", "true;"),
        "direct-autocast-not-seen": ("!at::autocast::is_autocast_enabled(at::kCPU) && ", ""),
        "direct-graph-of-a-backward": (
            "if (at::GradMode::is_enabled() || !nothing_watches() || !plain(grad_y, dtype)) return false;",
            "if (!nothing_watches() || !plain(grad_y, dtype)) return false;",
        ),
    }),
    *mutants(DIRECT + "sizes.h", ("tests/test_errors.py", "tests/test_direct.py"), {
        "direct-gate-of-other-models": ("(gates.size() == 1 || gates[0] == n.models);", "gates[0] > 0;"),
        "direct-x-of-other-models": ("(rows.size() < 3 || rows[0] != n.models)", "rows.size() < 3"),
    }),
    *mutants(DIRECT + "npu.h", ("tests/test_gradients.py -k 'straight or parity or subset'", "tests/test_direct.py"), {
        "direct-npu-strides-ignored": ("const Tensor upstream = grad_y.contiguous(), y =", "const Tensor upstream = grad_y, y ="),
        "direct-npu-eps-forgotten": ('ctx->saved_data["eps"] = eps;', 'ctx->saved_data["eps"] = 1e-7 + 0 * eps;'),
        "direct-npu-straight-through-forgotten": (
            'ctx->saved_data["straight_through"] = straight_through;',
            'ctx->saved_data["straight_through"] = false && straight_through;',
        ),
    }),
    *mutants(DIRECT + "inalu.h", "tests/test_direct.py -k inalu", {
        "direct-inalu-omega-forgotten": ('ctx->saved_data["omega"] = options.omega;', 'ctx->saved_data["omega"] = options.omega + 1;'),
    }),
    *mutants(DIRECT + "one_weight.h", ("tests/test_direct.py -k 'one_weight or nau'", "tests/test_gradients.py -k siblings"), {
        "direct-nmu-clip-ignored": (
            "std::exchange(clip, false) ? at::clamp(weight, 0, 1) : weight;",
            "std::exchange(clip, false) ? weight : weight;",
        ),
        "direct-nau-clip-forgotten": ('ctx->saved_data["clip"] = clip;', 'ctx->saved_data["clip"] = false && clip;'),
    }),
    *mutants(DIRECT + "mse.h", "tests/test_training.py", {
        "direct-mse-gradient-of-the-target-lost": ("!target.defined() || target.requires_grad() ||", "!target.defined() ||"),
        "direct-mse-count": ("return {count, y.numel() / count,", "return {count, y.numel(),"),
    }),
    *mutants(DIRECT + "adam.h", "tests/test_optim.py", {
        "direct-adam-amsgrad-ignored": ('{"amsgrad", ', "{"),
        "direct-adam-strides-ignored": ("one.grad = grad.contiguous();", "one.grad = grad;"),
        "direct-adam-version-not-bumped": ("changed->unsafeGetTensorImpl()->bump_version();", "(void)changed;"),
    }),
    *mutants(DIRECT + "ode.h", ("tests/test_direct_ode.py", "tests/test_ode_kernel.py -k 'gradients_alone or options'"), {
        "direct-ode-sum-to-u0": (
            "if (needs & 1) found[0] = at::sum_to(std::move(found[0]), saved[0].sizes());",
            "if (needs & 1) found[0] = found[0].reshape({-1}).slice(0, 0, saved[0].numel()).reshape(saved[0].sizes());",
        ),
        "direct-ode-divergence-of-the-slopes": ("ends_finite<T>(found[0], r) && ends_finite<T>(found[1], r)", "ends_finite<T>(found[0], r)"),
        "direct-ode-clip-forgotten": ("r.clip = options[2] != 0,", "r.clip = options[2] < 0,"),
    }),
]  # fmt: skip
