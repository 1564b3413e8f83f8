"""Mutants of the Python code of time loops, of fixed and adaptive steps."""

from __future__ import annotations

from tests.mutants.mutant import mutants

PACKAGE = "npu_kernels/"

TIME_LOOP = [
    *mutants(PACKAGE + "_time_loop/reference.py", ("tests/ode/test_ode_kernel.py -k 'eager_adjoint or transforms or second or alone or fused'", "tests/ode/test_ode.py -k 'torchdiffeq or order or gradcheck'"), {
        "ode-coefficients-of-the-adjoint": ("(dt * triangle[j - 1][i]) * dv[j]", "(dt * triangle[j][i]) * dv[j]"),
        "ode-derivatives-of-every-stage": ("if i == 0 and grad_derivatives is not None:", "if grad_derivatives is not None:"),
        "ode-gradient-of-the-states": ("            g = g + grad_trajectory[..., n, :]\n", "            g = g + 0 * grad_trajectory[..., n, :]\n"),
        "ode-adjoint-clip-of-the-weight": ("grads[3].where((weight >= -1) & (weight <= 1), 0)", "grads[3].where(weight <= 1, 0)"),
    }),
    *mutants(PACKAGE + "_time_loop/methods.py", "tests/ode/test_ode.py -k 'torchdiffeq or order or gradcheck'", {
        "ode-tableau": ("_RK4_38 = (1 / 3, -1 / 3, 1.0,", "_RK4_38 = (1 / 3, 1 / 3, 1.0,"),
    }),
    *mutants(PACKAGE + "ode/_solver.py", ("tests/ode/test_ode.py -k 'checkpointed or shapes or nonfinite or euler'", "tests/ode/test_ode_kernel.py -k 'alone or options or checkpointed or fused'"), {
        "ode-finite-ignored": ("if raises and not finite:", "if raises and finite is None:"),
        "ode-clip-of-the-layer": ("power.gate_gradient, nau.clip,", "power.gate_gradient, True,"),
    }),
    *mutants(PACKAGE + "_time_loop/loop.py", ("tests/ode/test_ode_kernel.py -k 'differentiated or alone or second or fused or options or checkpointed'", "tests/ode/test_ode.py -k 'checkpointed or shapes or nonfinite or euler or errors'"), {
        "ode-derivatives-of-every-segment": ("last = with_last and first + count == steps", "last = with_last"),
        "ode-last-segment": ("count = min(length, steps - first)", "count = length"),
        "ode-memory": ('_forward(loop, loop.memory == "full", u0, weights)', '_forward(loop, loop.memory != "full", u0, weights)'),
        "ode-straight-through": ("return self.gate_gradient == STRAIGHT_THROUGH", 'return self.gate_gradient == ""'),
        "ode-shared-start": ("grad_u0.squeeze(-2)).sum_to_size(u0.shape)", "grad_u0.squeeze(-2)).mean(0).expand(u0.shape)"),
        "ode-starts-of-models": ("u0.expand(k, d).unsqueeze(1)", "u0.expand(k, d)[:1].expand(k, d).unsqueeze(1)"),
        "ode-formula-clip": ("layers.nau(y, weight, clip=clip)", "layers.nau(y, weight, clip=True)"),
        "ode-formula-straight-through": ("gate_gradient=gate_gradient)", "gate_gradient=CLIP)"),
        "ode-clip-bound-of-a-model": ("states, power.num_models\n", "states, nau.num_models\n"),
    }),
    *mutants(PACKAGE + "_time_loop/adaptive_reference.py", ("tests/ode/test_ode_adaptive_kernel.py -k 'fused_is_eager'", "tests/ode/test_ode_adaptive.py -k 'stiff or pole or scipy or checkpointed'"), {
        "ode-adaptive-size-after-a-step": ("(factor / before**BETA).clamp(min=0.1)", "(factor * before**BETA).clamp(min=0.1)"),
        "ode-adaptive-error": ("h_column * combine(k, pair.error) / scale", "combine(k, pair.error) / scale"),
        "ode-adaptive-gradient-of-the-first-time": ("- (exact[0] - values[0])  #", "+ 0 * (exact[0] - values[0])  #"),
        "ode-adaptive-direction": ("time + sign * size)", "time + size)"),
        "ode-adaptive-interpolant": ("pair.dense[p::4]", "pair.dense[4 * p : 4 * p + 7]"),
    }),
    *mutants(PACKAGE + "ode/_adaptive.py", "tests/ode/test_ode_adaptive_calls.py", {
        "ode-adaptive-compilers": ("if is_compiling() or is_tracing() or", "if is_tracing() or"),
        "ode-adaptive-tracers": ("if is_compiling() or is_tracing() or", "if is_compiling() or"),
        "ode-adaptive-vmapped-weights": ("any(map(is_vmapped, (u0, *weights)))", "is_vmapped(u0)"),
        "ode-adaptive-least-tolerance": ("if options.rtol < (minimum", "if options.rtol <= (minimum"),
        "ode-adaptive-statistics-of-the-graph": ("counts.clone().unbind(-1)", "counts.unbind(-1)"),
        "ode-adaptive-segments-of-no-steps": ("math.isqrt(max(steps.times.shape[-1], 1) - 1)", "math.isqrt(steps.times.shape[-1] - 1)"),
        "ode-adaptive-first-of-one": ("if count > 1 else", "if count > 0 else"),
        "ode-adaptive-few-stiff-steps": ("(stiff >= accuracy.MIN_STIFF_STEPS) & (2 * stiff >= accepted)", "(2 * stiff >= accepted)"),
        "ode-adaptive-hundred-stiff-steps": ("(stiff >= accuracy.MIN_STIFF_STEPS)", "(stiff > accuracy.MIN_STIFF_STEPS)"),
        "ode-adaptive-half-of-the-steps": ("(stiff >= accuracy.MIN_STIFF_STEPS) & (2 * stiff >= accepted)", "(stiff >= accuracy.MIN_STIFF_STEPS)"),
        "ode-adaptive-stiff-and-failed": ("bound = (status == reference.DONE) & is_bound", "bound = is_bound"),
        "ode-adaptive-no-advice": ("if advice := hint(index):", "if (advice := hint(index)) is not None:"),
        "ode-adaptive-starts-of-a-name": ("index if call.has_starts else index[:-1]", "index"),
    }),
    *mutants(PACKAGE + "_time_loop/adaptive.py", ("tests/ode/test_ode_adaptive_calls.py", "tests/ode/test_ode_adaptive_kernel.py -k 'alone or bits'"), {
        "ode-adaptive-kept-without-gradients": ("if torch.is_grad_enabled() and any(w is", "if any(w is"),
        "ode-adaptive-kept-for-nothing": ("if torch.is_grad_enabled() and any(w is not None and w.requires_grad for w in tensors):", "if torch.is_grad_enabled():"),
        "ode-adaptive-strides-of-times": ('times = t.detach().to("cpu", torch.float64).contiguous()', 'times = t.detach().to("cpu", torch.float64)'),
        "ode-adaptive-strides-of-times-backwards": ('        t.detach().to("cpu", torch.float64).contiguous(),', '        t.detach().to("cpu", torch.float64),'),
        "ode-adaptive-strides-of-operands": ("None if t is None else t.contiguous() for t in tensors)", "t for t in tensors)"),
        "ode-adaptive-no-trajectories": ("torch.arange(int(accepted.max())) if accepted.numel() else accepted.new_empty(0)", "torch.arange(int(accepted.max()))"),
    }),
    *mutants(PACKAGE + "_time_loop/adaptive.py", "tests/ode/test_ode_adaptive_kernel.py -k 'fused_is_eager or bits or bounded or alone'", {
        "ode-adaptive-first-time": ("of_times[0] = -of_times.sum()", "of_times[0] = of_times.sum()"),
        "ode-adaptive-checkpoints": ('"checkpointed": 32}', '"checkpointed": 1}'),
        "ode-adaptive-needs": ("(*needed[1:], needed[0])", "(*needed[1:], needed[1])"),
    }),
    *mutants(PACKAGE + "_time_loop/implicit_reference.py", ("tests/ode/test_ode_implicit.py -k 'gradients or convergence'", "tests/ode/test_ode_adaptive.py -k second"), {
        "implicit-corrections": ("for _ in range(DERIVATIVES):", "for _ in range(1):"),
        "implicit-stage-within": ("(total - pair.diagonal * k[0])", "total"),
    }),
    *mutants(PACKAGE + "ode/_adaptive.py", "tests/ode/test_ode_implicit.py -k auto", {
        "auto-evaluations": ("counts[..., 4:] + before[..., 4:]", "counts[..., 4:]"),
        "auto-limit-of-stiff-steps": ("max_at_bound=accuracy.MIN_STIFF_STEPS)", "max_at_bound=call.max_steps)"),
    }),
    *mutants(PACKAGE + "ode/_interpolation.py", "tests/ode/test_ode.py -k 'hermite or interpol or errors'", {
        "ode-hermite-slope": ("((t - 1) * dt) * k", "((t - 1) * abs(dt)) * k"),
        "ode-step-behind-a-time": ("    second = torch.where(t.squeeze(-1) == 0, first, second)\n", ""),
        "ode-last-step": ("n = position.floor().clamp(0, steps - 1)", "n = position.floor().clamp(0, steps)"),
        "ode-times-outside": ("outside = ~((position >= -slack) & (position <= steps + slack))", "outside = position > steps + slack"),
    }),
    *mutants(PACKAGE + "ode/_checks.py", "tests/ode/test_ode.py -k 'nonfinite or errors or divergence'", {
        "ode-first-step-that-is-not-finite": ("flags.int().argmax(-1), -1)", "flags.int().argmax(-1) - 1, -1)"),
        "ode-finite-derivatives": ("            last = last + derivatives.select(-2, -1).sum()\n", "            last = last + 0\n"),
        "ode-starts-of-other-models": ("3: (1, k)}", "3: range(1, 99)}"),
    }),
]  # fmt: skip
