"""Mutants of the Python code that has no file of its own here."""

from __future__ import annotations

from tests.mutants.mutant import mutants

PACKAGE = "npu_kernels/"
FORMULAS = (
    "tests/operators/test_reference.py",
    "tests/operators/test_gradients.py -k 'parity or straight or reference'",
)
FITS = (
    "tests/fitting/test_fit.py",
    "tests/fitting/test_fit_stages.py",
    "tests/fitting/test_fit_checkpoint.py",
)
NALUS = "tests/operators/test_reference.py -k nalu"

REFERENCE = [
    *mutants(PACKAGE + "reference.py", FORMULAS, {
        "reference-shrink-sign": ("p - math.pi * _apply(k, weight_im), q +", "p + math.pi * _apply(k, weight_im), q +"),
        "reference-phase-without-gate": ("r, k = g * r + (1 - g), g * m", "r, k = g * r + (1 - g), m"),
        "reference-gate-above-one": ("clipped = gate.clamp(0, 1)", "clipped = gate.clamp(0, 2)"),
        "reference-straight-through": ("return clipped.detach() + (gate - gate.detach())", "return clipped"),
        "reference-weight-im-sign": ("d_q.mT @ log_r - scale * phase_im", "d_q.mT @ log_r + scale * phase_im"),
        "reference-gate-mask": ("            if not straight_through:\n", "            if straight_through:\n"),
        "reference-gate-size": ("(x.abs() + (eps - 1))).sum(-2)", "(x.abs() + eps)).sum(-2)"),
        "reference-eps-of-the-dtype": ("eps = torch.finfo(x.dtype).eps if eps is None else eps", "eps = torch.finfo(x.dtype).eps"),
        "reference-nmu-products": ("grad_y.unsqueeze(-1) * before * after", "grad_y.unsqueeze(-1) * before"),
        "reference-nmu-axis": ("(d_f * (rows - 1)).sum(-3)", "(d_f * (rows - 1)).mean(-3)"),
    }),
    *mutants(PACKAGE + "reference.py", "tests/layers/test_edges.py -k minus_zero", {
        "reference-minus-zero": ("(x < 0).to(x.dtype)", "x.signbit().to(x.dtype)"),
    }),
    *mutants(PACKAGE + "reference.py", NALUS, {
        "reference-nalu-slope-of-x": ("d_t @ w * (x.sign() / (x.abs() + eps))", "d_t @ w * (1 / (x.abs() + eps))"),
        "reference-nalu-needs": ("g if needs >> bit & 1 else None for", "g for"),
        "reference-nac-mask": ("d_w * turn * share * (1 - share)", "d_w * turn * share"),
    }),
    *mutants(PACKAGE + "_operators/second_derivatives.py", "tests/operators/test_second_derivatives.py", {
        "second-bend-of-x": ("((self.v_x * self.slope_x) * self.slope_x)", "(self.v_x * self.slope_x)"),
        "second-gate-beyond-its-ends": ("return result if self.inside is None else result * self.inside", "return result"),
        "second-phases-of-one-input": ("bool(self.m.any())", "bool(self.m.all())"),
        "second-weights-of-the-phases": ("return re + bottom, im - top", "return re + bottom, im + top"),
        "second-direction-of-the-rows": ("return result if self.direction is None else result + d @ self.direction", "return result"),
        "second-half-of-the-turn": ("turned = s * along_p if along_q is None else s * along_p + y * along_q", "turned = s * along_p"),
    }),
    *mutants(PACKAGE + "_operators/autograd.py", "tests/operators/test_second_derivatives.py", {
        "second-instead-of-a-third": ("if derivative.closed_form and not torch.is_grad_enabled() and", "if derivative.closed_form and"),
    }),
    *mutants(PACKAGE + "reference.py", "tests/backends/test_fast_path.py -k large_products", {
        "reference-nac-needs": ("of_matrix = 2 if needs & 6 else 0", "of_matrix = 2 if needs & 2 else 0"),
        "reference-nac-clips": ("nac_weight(weight, mask), False, needs & 1 | of_matrix)", "weight, False, needs & 1 | of_matrix)"),
    }),
    *mutants(PACKAGE + "reference.py", ("tests/operators/test_reference.py -k nalu", "tests/backends/test_isa.py -k 'special_input or zero'", "tests/layers/test_edges.py -k inalu"), {
        "reference-inalu-beyond-omega": (".masked_fill(e > omega, 0)", ""),
        "reference-inalu-count-of-zeros": ("zeros = zero.sum(-1).clamp(max=2)", "zeros = zero.sum(-1).clamp(max=1)"),
        "reference-inalu-rest-of-the-gate": ("grad_y * g * rest * (a - product)", "grad_y * g * (1 - g) * (a - product)"),
        "reference-inalu-eps": ("slope = torch.where(x.abs() >= eps,", "slope = torch.where(x.abs() >= 0,"),
    }),
    *mutants(PACKAGE + "reference.py", ("tests/backends/test_fast_path.py -k 'nau or one_weight'", "tests/operators/test_reference.py"), {
        "reference-nau-clip-at-the-ends": ("(weight >= -1) & (weight <= 1)", "(weight > -1) & (weight < 1)"),
        "reference-nau-clip-below": ("weight.clamp(-1, 1) if clip else weight)\n\n\ndef", "weight.clamp(0, 1) if clip else weight)\n\n\ndef"),
        "reference-nau-shared-x": ("            grad_x = grad_x.sum(0)\n        grad_x = grad_x.reshape", "            grad_x = grad_x[0]\n        grad_x = grad_x.reshape"),
    }),
]  # fmt: skip

FORMULA = [
    *mutants(PACKAGE + "_common/display.py", "tests/common/test_display.py", {
        "display-cells-as-they-are": ("html.escape(str(cell))", "str(cell)"),
        "display-caption-as-it-is": ("html.escape(caption)", "caption"),
        "display-commands-as-words": ("(?<![\\\\A-Za-z])", "(?<![A-Za-z])"),
        "display-one-line": ("except ImportError:", "except KeyError:"),
    }),
    *mutants(PACKAGE + "_laws/table/estimator.py", "tests/common/test_display.py", {
        "display-law-before-fit": ('if not hasattr(self, "equations_"):', "if True:"),
    }),
    *mutants(PACKAGE + "training/_runs.py", "tests/common/test_display.py", {
        "display-first-loss-twice": ("for i in (0, -1)]", "for i in (0, 0)]"),
    }),
    *mutants(PACKAGE + "formula/_fractions.py", "tests/formula/test_formula_fractions.py", {
        "fractions-lowest-terms": ("better = (distance < error)", "better = (distance <= error)"),
        "fractions-large-numbers": (" & (exact.abs() < _FRACTION_LIMIT)", ""),
        "fractions-minus-zero": ("return numerator + 0.0, denominator", "return numerator, denominator"),
        "fractions-greatest-denominator": ("range(2, max_denominator + 1)", "range(2, max_denominator)"),
    }),
    *mutants(PACKAGE + "formula/_simplify.py", "tests/formula/test_formula_simplify.py", {
        "simplify-share": ("error <= min(share, self.error_limit(entry, number))", "error <= self.error_limit(entry, number)"),
        "simplify-fractions-of-constants": ("number in (0.0, 1.0, -1.0)", "number is not None"),
        "simplify-worse-refit": ("        if refitted <= error:\n", "        if refitted < 1e300:\n"),
        "simplify-refused-is-free": ("            self.fix(entry, accepted)\n", "            self.fix(entry, True)\n"),
        "simplify-farther-gate": ("return (near,) if self.limit is None else (near, 1.0 - near)", "return (near,)"),
        "simplify-cheapest-first": ("return sorted(ranked, key=lambda pair: pair[0])", "return ranked"),
        "simplify-restores": ("            self.set(entry, before)\n            ranked.append", "            ranked.append"),
        "simplify-fixed-entries": ("                        self.fix(entry)\n                    else:", "                        pass\n                    else:"),
    }),
    *mutants(PACKAGE + "formula/_models.py", "tests/formula/test_formula_simplify.py", {
        "simplify-behind-closed-gates": ("                dead[:, layer.gate == 0] = True\n", "                pass\n"),
        "simplify-unread-rows": ("                dead[~used] = True\n", "                pass\n"),
        "simplify-gates-of-a-reader": ("        read = read & (layer.gate != 0)\n", "        pass\n"),
    }),
    *mutants(PACKAGE + "formula/_scoring.py", "tests/formula/test_formula_simplify.py", {
        "simplify-fixed-gradients": ("                    parameter.grad[fixed[name]] = 0\n", "                    pass\n"),
        "simplify-scale-of-an-output": ("scale.where(scale > 0, 1)", "1"),
        "simplify-nan-of-a-score": ("return math.inf if math.isnan(error) else error", "return error"),
    }),
    *mutants(PACKAGE + "formula/_expressions.py", ("tests/formula/test_formula.py -k 'layer or batch'", "tests/formula/test_formula_text.py -k 'powers or reciprocals'"), {
        "expressions-phase-without-gate": ("phases[n] = phases.get(n, 0) + w * g", "phases[n] = phases.get(n, 0) + w"),
        "expressions-growth-sign": ("growth -= v * g * negative(e)", "growth += v * g * negative(e)"),
        "expressions-even-powers": ("            if p % 2:\n", "            if p:\n"),
        "expressions-nmu-rest": ("sympy.Mul(*(m * e + (1 - m) for", "sympy.Mul(*(m * e + 1 for"),
        "expressions-nmru-unclipped-size": ("factors.append(m * size + (1 - m))", "factors.append(w * size + (1 - w))"),
        "expressions-nmru-sign-of-a-weight": ("w.is_Integer and w % 2:", "w.is_Integer:"),
        "expressions-bias-of-an-output": ("y + (bias[o] if bias else 0)", "y + (bias[0] if bias else 0)"),
    }),
]  # fmt: skip

FITTING = [
    *mutants(PACKAGE + "fitting/_data.py", FITS, {
        "fit-weights-see-held-out-rows": ("targets = y[:, held:]\n", "targets = y\n"),
        "fit-held-out-rows": ("stream(\"split\", seed))", "stream(\"split\", 0))"),
        "fit-too-many-rows": ("torch.cat(xs)[:rows],", "torch.cat(xs),"),
    }),
    *mutants(PACKAGE + "fitting/_training.py", FITS, {
        "fit-held-entries": ("return loss, flat.masked_fill(self.held[active], 0.0)", "return loss, flat"),
        "fit-weights-of-other-problems": ("self.models.problem[active]", "self.models.problem[active] * 0"),
        "fit-rate-of-a-rung": ("self.recipe.rate * 0.5**rung * falling", "self.recipe.rate * falling"),
        "fit-steps-that-are-not-finite": ("finite=True,", "finite=False,"),
        "fit-rows-of-the-problems": ("x, y, weight = (t[:, drawn.flatten()][self.problem] for t in tensors)", "x, y, weight = (t[:, drawn.flatten()][0 * self.problem] for t in tensors)"),
        "fit-kept-moments": ("for tensors in (self.tensors, self.moments, self.squares):", "for tensors in (self.tensors, self.moments):"),
    }),
    *mutants(PACKAGE + "fitting/_choice.py", FITS, {
        "fit-standard-errors": ("limit[part] = torch.maximum(limit[part], close)", "pass"),
        "fit-slack": ("torch.clamp(best_score * (1 + slack), min=tolerance)", "torch.clamp(best_score, min=tolerance)"),
        "fit-simplest-of-the-good": ("order = order[level[order].argsort(stable=True)]", "order = order[level.argsort(stable=True)]"),
        "fit-ranks-of-a-problem": ("rank[order] = index - torch.searchsorted(owner, owner)", "rank[order] = index"),
    }),
    *mutants(PACKAGE + "fitting/_scale.py", FITS, {
        "fit-units-of-y": ('exponents[_join(self._last, "weight")] += y.unsqueeze(2)', "pass"),
        "fit-units-of-x": ('exponents[_join(self._first, "weight")] -= x.unsqueeze(1)', "pass"),
        "fit-units-of-powers": ("(w * gate.round().unsqueeze(1)) @ x", "w @ (0 * x)"),
        "fit-eps-of-other-units": ("unit.eps = unit.eps or torch.finfo(unit.weight_re.dtype).tiny", "pass"),
        "fit-spare-units": ("while float(used.sum(1).max()) > 1:", "while False:"),
        "fit-coefficient-of-one": ("if not bool((weight == 1).all()):", "if True:"),
    }),
    *mutants(PACKAGE + "fitting/_batch.py", FITS, {
        "fit-rounded-gates": ("torch.where(self.kind == GATE, flat.round(), result)", "torch.where(self.kind == GATE, flat, result)"),
        "fit-own-generator": ("for g in generators])  # [P, S, ]", "for g in [generators[0]] * len(generators)])  # [P, S, ]"),
        "fit-nan-scores": ("errors.nan_to_num(nan=math.inf, posinf=math.inf)", "errors"),
    }),
]  # fmt: skip

LAYERS = [
    *mutants(PACKAGE + "layers/_base.py", ("tests/layers/test_layers.py", "tests/operators/test_errors.py"), {
        "layers-glorot-of-models": ("parameter.shape[-1] + parameter.shape[-2]", "parameter.shape[-1] + parameter.shape[0]"),
        "layers-sizes-are-checked": ('check_whole(unit, "num_models", num_models)', "int(num_models)"),
    }),
    *mutants(PACKAGE + "layers/_npu.py", "tests/layers/test_layers.py", {
        "layers-gate-start": ("nn.init.constant_(self.gate, 0.5)", "nn.init.constant_(self.gate, 1.0)"),
        "layers-start-of-weight-im": ("glorot_(self.weight_im, self._scale_im)", "glorot_(self.weight_im)"),
        "layers-gate-gradient": ("eps=eps, gate_gradient=gate_gradient)", "eps=eps)"),
    }),
    *mutants(PACKAGE + "layers/_npu.py", ("tests/layers/test_layers.py", "tests/layers/test_serialization.py"), {
        "layers-eps": ("weight_im, gate, eps=eps,", "weight_im, gate, eps=None,"),
    }),
    *mutants(PACKAGE + "layers/_nmu.py", "tests/layers/test_layers.py", {
        "layers-nmu-start": ("nn.init.uniform_(self.weight, 0, 1)", "nn.init.uniform_(self.weight, 0, 0.5)"),
        "layers-nmu-clip": ("clip=self.clip)", "clip=True)"),
    }),
    *mutants(PACKAGE + "layers/_nau.py", "tests/layers/test_layers.py", {
        "layers-nau-clip": ("self.weight, clip=self.clip)", "self.weight)"),
    }),
    *mutants(PACKAGE + "layers/_nalu.py", "tests/layers/test_layers.py", {
        "layers-nalu-bias-start": ("bound = math.sqrt(6 / (1 + self.out_features))", "bound = math.sqrt(6 / self.out_features)"),
        "layers-nalu-eps": ("*weights, eps=self.eps)", "*weights)"),
        "layers-inalu-omega": (", omega=self.omega)", ")"),
    }),
    *mutants(PACKAGE + "training/trace.py", "tests/layers/test_trace.py", {
        "trace-models": ("        model, row = index[0], index[1:-1]\n", "        model, row = 0, index[1:-1]\n"),
        "trace-shared-rows": ("shared = model is not None and x.dim() == 2", "shared = False"),
        "trace-outlived-hooks": ("        active = False\n", "        active = True\n"),
    }),
]  # fmt: skip

CALLS = [
    *mutants(PACKAGE + "_operators/autograd.py", ("tests/operators/test_gradients.py", "tests/operators/test_functional.py", "tests/operators/test_transforms.py -k 'forward_mode or vmap'"), {
        "autograd-forward-mode": ("return _transforms_active() or forward_ad._current_level >= 0", "return _transforms_active()"),
        "autograd-aliases": ("[None if t is None else t.view_as(t) for t in inputs]", "list(inputs)"),
        "autograd-third-derivatives": ("create_graph = torch.is_grad_enabled()", "create_graph = False"),
        "autograd-autocast-of-the-second-derivative": ("with torch.enable_grad(), torch.autocast(device_type, enabled=False):", "with torch.enable_grad():"),
        "autograd-second-derivatives": ("        elif torch.is_grad_enabled():\n            return self", "        elif False:\n            return self"),
        "autograd-bits-of-the-needs": ("sum(flag << bit for bit, flag", "sum(flag << (count - 1 - bit) for bit, flag"),
    }),
    *mutants(PACKAGE + "_operators/transforms.py", ("tests/operators/test_transforms.py", "tests/operators/test_torch_features.py"), {
        "transforms-gradient-of-a-shared-x": ("return tensor.sum(1) if self.shared else tensor", "return tensor[:, 0] if self.shared else tensor"),
        "transforms-own-gradient-of-x": (" and not own_gradient\n", "\n"),
        "transforms-tangents": ("torch.compiler.is_compiling() or forward_ad._current_level >= 0", "torch.compiler.is_compiling()"),
        "transforms-compilers": ("torch.compiler.is_compiling() or forward_ad._current_level >= 0", "forward_ad._current_level >= 0"),
        "transforms-models-beside-a-vmap": ("weight.shape[0 if weight_dim != 0 else 1]", "weight.shape[0]"),
        "transforms-place-of-the-vmap": ("(self.size, rows)), len(self.models)", "(self.size, rows)), 0"),
    }),
    *mutants(PACKAGE + "functional.py", ("tests/operators/test_functional.py", "tests/operators/test_gradients.py", "tests/operators/test_reference.py", "tests/operators/test_transforms.py -k compiled", "tests/operators/test_torch_features.py -k compiled"), {
        "functional-inalu-omega": ("omega=omega, fused=True)", "omega=20.0, fused=True)"),
    }),
    *mutants(PACKAGE + "_operators/dispatch.py", ("tests/operators/test_functional.py",), {
        "functional-forced-backend": ("is_compiling() or forced() not in FAST_PATH", "is_compiling()"),
    }),
    *mutants(PACKAGE + "_operators/compute.py", ("tests/operators/test_functional.py", "tests/operators/test_gradients.py", "tests/operators/test_reference.py", "tests/operators/test_transforms.py -k compiled", "tests/operators/test_torch_features.py -k compiled"), {
        "functional-eps-of-the-dtype": ("eps = EPS[x.dtype]", "eps = EPS[torch.float32]"),
        "functional-nmu-clip": ("return nmu(x, weight.clamp(0, 1))", "return nmu(x, weight)"),
        "functional-gradients-of-the-weights": ("for tensor in inputs[:operands]:", "for tensor in inputs[:1]:"),
        "functional-nalu-eps": ("return reference.nalu(*inputs, eps=eps) if", "return reference.nalu(*inputs, eps=1e-8) if"),
    }),
    *mutants(PACKAGE + "_operators/operands.py", ("tests/operators/test_functional.py", "tests/operators/test_errors.py", "tests/common/test_arguments.py"), {
        "operands-dtype-of-the-result": ("return y.to(x.dtype) if half else y", "return y"),
        "operands-rows-of-models": ("return x.flatten(weight.dim() - 2, -2)", "return x.flatten(0, -2)"),
    }),
    *mutants(PACKAGE + "_operators/checks.py", ("tests/operators/test_functional.py", "tests/operators/test_errors.py", "tests/common/test_arguments.py"), {
        "operands-least-positive-number": ("info.smallest_normal <= number <= info.max", "0 < number <= info.max"),
        "operands-models-of-x": ("(len(rows) == 2 or rows[0] == shape[0])", "len(rows) >= 2"),
    }),
    *mutants(PACKAGE + "_backends/fast_path.py", "tests/backends/test_fast_path_library.py", {
        "fast-path-flags-of-python": ("{getattr(sys, 'abiflags', '')}", ""),
        "fast-path-python-without-flags": ("getattr(sys, 'abiflags', '')", "sys.abiflags"),
        "fast-path-library-that-exists": ("(path for path in candidates if path.exists())", "(path for path in candidates)"),
        "fast-path-without-kernels": ("    if not runs:\n        return\n", ""),
        "fast-path-no-library": ("if served else \"there is none\"", "if not served else \"there is none\""),
    }),
    *mutants(PACKAGE + "sharding.py", "tests/layers/test_distributed.py", {
        "sharding-partial-sums": ("dt.Replicate(), dt.Partial() if over else dt.Replicate()", "dt.Replicate(), dt.Replicate()"),
        "sharding-over-inputs": ('dimensions = ("", "B", "O", "K")[', 'dimensions = ("", "B", "I", "K")['),
        "sharding-models-of-two-numbers": ("if len(model_counts) != 1 or None", "if None"),
        "sharding-absent-parameters": ("        if parameter is not None:\n", "        if True:\n"),
        "sharding-parameters-of-no-unit": (" or strangers:", ":"),
        "sharding-parameters-within-a-unit": ("unit.parameters(recurse=False)", "unit.parameters()"),
        "sharding-inputs-that-are-sharded": ("if isinstance(x, Tensor) and not isinstance(x, dt.DTensor)\n", "if isinstance(x, Tensor)\n"),
        "sharding-inputs-of-other-kinds": ("if isinstance(x, Tensor) and not isinstance(x, dt.DTensor)\n", "if not isinstance(x, dt.DTensor)\n"),
        "sharding-style-gate-by-outputs": ("parameter.dim() - models == 2", "True"),
        "sharding-style-first-dimension-is-rows": ("target = dt.Shard(x.dim() - 2)", "target = dt.Shard(0)"),
        "sharding-style-shared-x": ('elif self.over == "models" and x.dim() > 2:', 'elif self.over == "models":'),
        "sharding-style-layout-of-y": ("y = y.redistribute(mesh, [self.output_layouts])", "pass"),
        "sharding-frozen-parameters": ("nn.Parameter(tensor, parameter.requires_grad)", "nn.Parameter(tensor, True)"),
    }),
    *mutants(PACKAGE + "interop/__init__.py", "tests/layers/test_interop.py", {
        "interop-copy": ("model = model if inplace else", "model = model if not inplace else"),
        "interop-copy-attributes-of-parameters": ("new.__dict__.update(old.__dict__)", "pass"),
        "interop-copy-hooks": ("hooks = old._backward_hooks or {}", "hooks = {}"),
        "interop-copy-later-hooks": ('getattr(old, "_post_accumulate_grad_hooks", None) or {}', "{}"),
        "interop-copy-frozen": ("new.requires_grad_(old.requires_grad)", "pass"),
    }),
    *mutants(PACKAGE + "interop/flops.py", "tests/operators/test_flops.py", {
        "flops-absent-weights": ("if shape is not None}", "}"),
        "flops-options-that-are-off": (" if value is True}", "}"),
        "flops-gradients-that-are-needed": (" if needs >> bit & 1}", "}"),
        "flops-shared-rows-of-models": ("[x[-2], *weights[0]]", "[x[-2], *weights[0][-2:]]"),
    }),
]  # fmt: skip

EQUATIONS = [
    *mutants(PACKAGE + "_laws/table/varpro.py", ("tests/laws/test_equations_varpro.py", "tests/laws/test_equations_zeros.py", "tests/laws/test_equations.py -k 'coulomb or kepler or outliers or both_signs'", "tests/laws/test_equations_output.py -k zero"), {
        "equations-varpro-signs": ("products.mul_(1 - 2 * torch.remainder(parity @ self.negative.T, 2))", "pass"),
        "equations-varpro-zeros": ("products.mul_(torch.from_numpy(factors.T).view_as(products))", "pass"),
        "equations-varpro-bounds": ("trial = torch.clamp(trial, self.low, self.high)", "trial = 2 * u - trial"),
        "equations-varpro-gradient": ("self.logs * c.unsqueeze(2)).reshape(S, K * m)", "self.logs / c.unsqueeze(2)).reshape(S, K * m)"),
    }),
    *mutants(PACKAGE + "_laws/table/refine.py", ("tests/laws/test_equations_scale.py", "tests/laws/test_equations_zeros.py", "tests/laws/test_equations_factor.py", "tests/laws/test_equations_output.py -k 'ten_rows or standard_errors or held_out'", "tests/laws/test_equations.py -k 'outliers or no_fractions or both_signs'"), {
        "equations-leverage": ("return r / np.maximum(1 - h, 1e-3), variances", "return r, variances"),
        "equations-huber": ("value = np.where(t <= 1, t * t, 2 * t - 1)", "value = t * t"),
        "equations-derivatives-of-logarithms": ("slope = slope / (p * np.maximum(", "slope = slope / (np.maximum("),
        "equations-exponents-that-stay-at-0": ("            change[held & (u[k, i] == 0)] = 0.0\n", ""),
        "equations-signed-exponents": ("forced = problem.signed[None, :] & law.free", "forced = problem.signed[None, :] & ~law.free"),
        "equations-covariance": ("return inverse @ inverse.T / np.outer(length, length)", "return inverse @ inverse.T"),
        "equations-blocks-of-the-leverage": ("begin += len(factor)\n    # R_jj", "pass\n    # R_jj"),
        "equations-freed-exponents": ("unchanged = (free == law.free).all() and (u[~free] == law.u[~free]).all()", "unchanged = True"),
    }),
    *mutants(PACKAGE + "_laws/products/units.py", "tests/laws/test_equations_output.py -k units", {
        "equations-units-offset": ("return power * self.offset, self.matrix", "return self.offset, self.matrix"),
        "equations-units-sign": ("= -float(row[j])", "= float(row[j])"),
        "equations-units-of-another-zero": ("if zero.magnitude != 0:", "if zero.magnitude > 1e9:"),
        "equations-units-refused": ("        if row[-1] != 0:\n            _refuse", "        if row[-1] > 99:\n            _refuse"),
        "equations-units-of-y": ("dimensions([output], [output_units]", "dimensions([output], [units[0]]"),
    }),
    *mutants(PACKAGE + "_laws/products/functions.py", "tests/laws/test_equations_functions.py -k 'not noisy and not repeated'", {
        "functions-zero-of-a-sine": ("np.where(np.abs(values) <= ROUNDING * size, 0.0, values)", "values"),
        "functions-row-of-a-value": ("got {x[first]:.6g} in row \"\n                f\"{origin[first]}", "got {x[first]:.6g} in row \"\n                f\"{first}"),
        "functions-degrees": ("factor = float(factors[index] or 1.0)", "factor = 1.0"),
        "functions-scale-of-exponentials": ("factor /= 10.0 ** _decade(factor * X[:, index])", "factor /= 1.0"),
        "functions-unused": ("absent = used is not None and not used[i]", "absent = False"),
        "functions-of-a-dimension": ("for name, f in zip(names, factors, strict=True) if f is not None}", "for name, f in zip(names, factors, strict=True)}"),
        "functions-outside-the-domain": ("if distance.max() > OUTSIDE * size or", "if distance.max() > 0 or"),
        "functions-far-outside": ("if distance.max() > OUTSIDE * size or", "if"),
        "functions-beyond-the-image": ("return (t < low - 1e-9) | (t > high + 1e-9)", "return t < low - 1e-9"),
    }),
    *mutants(PACKAGE + "_laws/products/text.py", "tests/laws/test_equations_functions.py -k 'not noisy and not repeated'", {
        "functions-powers-of-exponentials": ("argument(self.variable, w * self.factor)", "argument(self.variable, w)"),
    }),
    *mutants(PACKAGE + "_laws/table/identities.py", "tests/laws/test_equations_functions.py -k 'equal or first_function or other_function or logarithms'", {
        "identities-power": ("w[j] += 2 * power", "w[j] += 2 * m"),
        "identities-equal-laws": ("limit = EQUAL * np.abs(y).max()", "limit = -1.0"),
        "identities-shorter": ("for candidate in (written, *shorter)", "for candidate in (written,)"),
    }),
    *mutants(PACKAGE + "_laws/table/refine.py", "tests/laws/test_equations_functions.py -k signs_of_predictions", {
        "equations-odd-exponents-within-bounds": ("odd -= math.copysign(2, odd)", "odd += 0"),
    }),
    *mutants(PACKAGE + "_laws/products/problem.py", ("tests/laws/test_equations_scale.py", "tests/laws/test_equations_zeros.py", "tests/laws/test_equations.py -k 'units or negative_y or zeros or cross or explain'", "tests/laws/test_equations_estimator.py -k zero", "tests/laws/test_equations_output.py -k zero"), {
        "equations-last-row-of-a-block": ("yield slice(begin, min(begin + BLOCK_ROWS, rows))", "yield slice(begin, min(begin + BLOCK_ROWS - 1, rows))"),
        "equations-negative-y": ("sign = -1.0 if weight**2 @ target < 0 else 1.0", "sign = 1.0"),
        "equations-other-sign-of-y": ("wrong.min() <= -_largest_error(len(y)) * error", "wrong.min() <= -1"),
        "equations-sign-of-a-power": ("np.copysign(size**p if p < 0 else np.abs(y) ** p, y)", "size**p if p < 0 else np.abs(y) ** p"),
        "equations-powers-of-the-wrong-sign": ("weight = np.where(y > 0, weight, 0.0)", "weight = weight * 1.0"),
        "equations-weights-near-zero": ("self.floor / self.weight if p > 0 else 0", "0"),
        "equations-signs-of-columns": ("signs: Array = 1.0 - 2.0 * (odd % 2)", "signs: Array = 1.0 - 0.0 * odd"),
        "equations-powers-of-zero": ("low[columns.zero[exponents.free]] = 0.0", "low[:0] = 0.0"),
        "equations-small-powers-of-zero": ("values = np.where(self.zero @ (w > ZERO).T > 0, 0.0, 1.0)", "values = np.where(self.zero @ (w > ZERO).T > 0, 1.0, 1.0)"),
        "equations-negative-powers-of-zero": ("values[self.zero @ (w < -ZERO).T > 0] = math.inf", "pass"),
        "equations-squares-of-large-y": ("largest = float(np.abs(y).max()) or 1.0", "largest = 1.0"),
        "equations-zeros-in-the-mean": ("count += (~zero).sum(0)", "count += len(zero)"),
    }),
    *mutants(PACKAGE + "_laws/table/output.py", ("tests/laws/test_equations_zeros.py -k candidate", "tests/laws/test_equations_notes.py", "tests/laws/test_equations_factor.py", "tests/laws/test_equations_output.py -k 'known or standard_errors or held_out or bootstrap or hardly or choose'", "tests/laws/test_equations_scale.py", "tests/laws/test_equations_estimator.py -k 'weights or order'", "tests/laws/test_equations.py -k 'three_per_cent'", "tests/benchmarks/test_equations_benchmark.py -k near"), {
        "equations-weights-of-equal-rows": ("np.bincount(np.cumsum(new) - 1, weights=weight)", "weight[new]"),
        "equations-error-of-a-constant": ("= -law.c[k] * (matrix.T @ columns.log_mean)[i]", "= law.c[k] * (matrix.T @ columns.log_mean)[i]"),
        "equations-known-noise": ("variance = data.noise**2", "variance = law.rss / data.rows"),
        "equations-held-out-rows": ("training = np.sort(order[held:])", "training = np.sort(order)"),
        "equations-powers-that-are-near": ("if law.cost > lowest + RIVAL_COST:", "if law.cost > lowest:"),
        "equations-beside-the-best": ("return fits + [(data, law, near) for", "return fits[:] + [(data, law, near) for _ in () for"),
        "equations-alternatives-of-one-form": ("if key in forms or not", "if not"),
        "equations-alternatives-that-are-far": ("if best < fitted.cost < best + TELL:", "if best < fitted.cost:"),
        "equations-factors": ("return spread > SMALL_FACTOR and", "return spread > 1e9 and"),
        "equations-approximations": ("if likeness > APPROXIMATION:", "if likeness > 9:"),
        "equations-cancelling-pairs": ("if near is None:\n            return fits", "if near is None or True:\n            return fits"),
        "equations-errors-of-predictions": ("rms=_relative(data.target - prediction, data.target, rows.weight)", "rms=_relative(residuals, data.target * data.weight, rows.weight)"),
        "equations-relative-errors": ("return rival.cost + b.units < law.cost + a.units - 2", "return False"),
    }),
    *mutants(PACKAGE + "law/_table.py", "tests/laws/test_law_command.py", {
        "law-commas-of-thousands": ("return not points and not thousands", "return not points"),
        "law-commas-beside-points": ("return not points and not thousands", "return not thousands"),
        "law-labels": ('if not any(re.match(r"', 'if not all(re.match(r"'),
        "law-underscores": ('if "_" not in text else math.inf', 'if text else math.inf'),
        "law-infinite-cells": ("return value if math.isfinite(value) else None", "return value"),
        "law-lines-of-rows": ("rows, lines = rows[1:], lines[1:]", "rows, lines = rows[1:], lines[:-1]"),
    }),
    *mutants(PACKAGE + "_laws/table/arguments.py", ("tests/laws/test_equations_estimator.py -k columns", "tests/laws/test_equations_notes.py -k scaler"), {
        "equations-columns-of-a-scaler": ("deviation = min(abs(variance - 1),", "deviation = max(abs(variance - 1),"),
        "equations-columns-of-dates": ('if column.dtype.kind in "mM":', 'if column.dtype.kind == "m":'),
        "equations-columns-that-are-infinite": ("np.isfinite(column.astype(np.float64)).all()", "True"),
    }),
    *mutants(PACKAGE + "_laws/table/search.py", ("tests/laws/test_equations_search.py", "tests/laws/test_equations_rows.py", "tests/laws/test_equations.py -k 'offset or lens or four_terms or two_terms or negative_y'", "tests/laws/test_equations_estimator.py -k interrupt"), {
        "equations-exchanged-terms": ("stay = [k for k in range(len(u)) if k != removed]", "stay = list(range(1, len(u)))"),
        "equations-output-powers": ("for power in powers:\n            end =", "for power in powers[:1]:\n            end ="),
        "equations-patient-search": ("if (worse > rough and not patient) or", "if worse > rough or"),
        "equations-patient-order": ("sorted(reached, key=reached.__getitem__)", "sorted(reached, key=reached.__getitem__)[:1]"),
        "equations-interrupted": ("        candidates.complete = False\n    return candidates", "    return candidates"),
    }),
    *mutants(PACKAGE + "_laws/table/ratio.py", "tests/laws/test_equations_ratios.py", {
        "ratios-poles-between-rows": ("if not (1 + between.products(u, parity) @ c > 0).all():", "if False:"),
        "ratios-where-a-sum-is-a-law": ("return not simple or len(law.c) >= settings.max_terms or candidates.structure() > 0", "return True"),
        "ratios-of-columns-with-zeros": ("below=below, low=-problem.high)", "below=below)"),
        "ratios-with-real-exponents": ('or rules.exponents == "real" else law', "else law"),
    }),
    *mutants(PACKAGE + "_laws/products/problem.py", "tests/laws/test_equations_ratios.py", {
        "ratios-poles-in-rows": ("divisor = np.where(divisor > 0, divisor, np.nan)", "pass"),
        "ratios-infinite-below": ("        slopes[divisor == math.inf] = 0.0  # where an input with a negative exponent is 0\n", ""),
    }),
    *mutants(PACKAGE + "_laws/products/units.py", "tests/laws/test_equations_ratios.py -k units", {
        "ratios-units-below": ("w[: len(w) - below] += power * self.offset", "w += power * self.offset"),
    }),
    *mutants(PACKAGE + "_laws/table/wild.py", "tests/laws/test_equations_wild.py", {
        "equations-gap-of-wild-rows": ("errors[~keep].min() < GAP * errors[keep].max()", "False"),
        "equations-numbers-of-wild-rows": ("numbers = rows.origin[wild]", "numbers = np.flatnonzero(wild)"),
    }),
    *mutants(PACKAGE + "_laws/table/rows.py", "tests/laws/test_equations_rows.py", {
        "equations-nearest-rows": ("np.fill_diagonal(squares, np.inf)", "pass"),
        "equations-rows-like-those-of-a-fit": ("far[far] = within & ", "far[far] = within | "),
        "equations-alike-by-chance": ("correlation > CHANCE * chance", "correlation > 0 * chance"),
    }),
    *mutants(PACKAGE + "_laws/table/work.py", "tests/laws/test_equations_checkpoint.py", {
        "equations-state-of-the-generator": ("        generator.bit_generator.state = json.loads(state)\n", ""),
        "equations-seed-of-a-checkpoint": ("self.seed, self.kept = seed, results", "self.kept = results"),
        "equations-kept-at-once": ("                self._work.checkpoint.keep()", "                pass"),
    }),
    *mutants(PACKAGE + "_laws/table/many.py", "tests/laws/test_equations_many.py", {
        "equations-share-of-a-rank": ("range(exchange.rank, len(named), exchange.size)", "range(len(named))"),
        "equations-order-of-problems": ("for index in sorted(outcomes)]", "for index in sorted(outcomes, reverse=True)]"),
        "equations-after-an-interrupt": ("            if not outcome.complete:\n                return", "            if False:\n                return"),
        "equations-file-of-a-problem": ("{digest(*map(torch.from_numpy, parts), *names)}.pt", "{name}.pt"),
        "equations-missing-share": ("complete = all(share is not None and share[1]", "complete = all(share is None or share[1]"),
        "equations-batches": ("range(0, len(jobs), size)", "range(0, len(jobs), size + 1)"),
    }),
    *mutants(PACKAGE + "_laws/table/ranks.py", "tests/laws/test_equations_many.py", {
        "equations-silence": ("elif seconds - heard[rank] > SILENCE:", "elif False:"),
        "equations-beat": ("self.store.add(f\"beat/{self.rank}\", 1)", "pass"),
        "equations-pieces": ("range(0, len(data), PIECE)", "range(0, len(data), PIECE + 1)"),
        "equations-failed-rank": ("                self._send(None)", "                pass"),
    }),
]  # fmt: skip

FILES = [
    *mutants(PACKAGE + "_jobs/files.py", "tests/jobs/test_files.py", {
        "files-name-can-be-guessed": ("secrets.token_hex(_TOKEN)", "'0' * 2 * _TOKEN"),
        "files-follow-links": ('open(path, "xb"', 'open(path, "wb"'),
        "files-link-becomes-a-file": ("target = Path(os.path.realpath(path))", "target = Path(path)"),
        "files-circle-of-links": ("if target.is_symlink():", "if False:"),
        "files-folder": ("if target.is_dir():", "if False:"),
        "files-device": ("if target.exists() and not target.is_file():", "if False:"),
        "files-lock-is-not-taken": ("_lock(file.fileno(), wait=True) and not", "not"),
        "files-taken-before-the-lock": ("and not path.exists():\n                    continue", "and False:\n                    continue"),
        "files-nothing-is-removed": ("            path.unlink(missing_ok=True)\n\n\ndef _lock", "            pass\n\n\ndef _lock"),
        "files-waits-for-the-other": ("(0 if wait else fcntl.LOCK_NB)", "0"),
        "files-disk-without-locks": ("    except OSError:\n        return False\n    return True", "    except OSError:\n        return True\n    return True"),
        "files-removed-without-the-lock": ("            if _lock(descriptor):\n", "            if _lock(descriptor) or True:\n"),
        "files-leftover-link": ("os.O_RDWR | os.O_NOFOLLOW)", "os.O_RDWR)"),
        "files-leftover-of-another-file": ("'.+' if name is None else re.escape(name)", "'.+'"),
        "files-leftover-pattern": ("re.escape(name)", "name"),
        "files-leftover-of-another-host": ("\\.{_host()}\\.[0-9a-f]", "\\..*\\.[0-9a-f]"),
        "files-leftovers-stay": ("    remove_leftovers(target.parent, target.name)\n", ""),
        "files-leftovers-beside-the-link": ("remove_leftovers(target.parent, target.name)", "remove_leftovers(path.parent, path.name)"),
        "files-mode-is-lost": ("os.fchmod(file.fileno(), mode)", "pass"),
        "files-mode-while-writing": ("mode & 0o777 | 0o600)", "0o666)"),
        "files-mode-that-cannot-be-locked": ("mode & 0o777 | 0o600)", "mode & 0o777)"),
        "files-mode-of-a-new-file": ("0o666 if mode is None else", "0o600 if mode is None else"),
        "files-disk-without-modes": ("elif mode not in (None, stat.S_IMODE(os.fstat(file.fileno()).st_mode)):", "elif mode is not None:"),
        "files-open-on-windows": ("            file.close()\n", "            pass\n"),
        "files-checksum": ("if checksum != _checksum(content):", "if False:"),
    }),
    *mutants(PACKAGE + "_common/checks.py", "tests/common/test_numbers.py", {
        "checks-bool-is-an-integer": ("isinstance(value, Integral) and not isinstance(value, bool)", "isinstance(value, Integral)"),
        "checks-only-pythons-integers": ("isinstance(value, Integral) and", "isinstance(value, int) and"),
        "checks-bool-is-a-number": ("if isinstance(value, bool) or not isinstance(value, Real):", "if not isinstance(value, Real):"),
        "checks-only-pythons-numbers": ("not isinstance(value, Real):", "not isinstance(value, (int, float)):"),
        "checks-too-large": ("    except OverflowError:  # an integer\n        return math.nan", "    except OverflowError:  # an integer\n        return 0.0"),
        "checks-least": ("or value < minimum or", "or value <= minimum or"),
        "checks-integer-as-it-is": ("    return int(value)\n", "    return value\n"),
        "checks-minimum": ("number >= minimum and", "number > minimum and"),
        "checks-above": ("number > above and", "number >= above and"),
        "checks-infinity": ("(not finite or number < math.inf)", "True"),
        "checks-infinity-allowed": ("(not finite or number < math.inf)", "number < math.inf"),
        "checks-level": ("if not 0 < level < 1:", "if not 0 <= level <= 1:"),
        "checks-layout": ("value.is_nested or value.layout is not torch.strided", "value.is_nested"),
        "checks-module": ("if not isinstance(value, torch.nn.Module):", "if False:"),
    }),
    *mutants(PACKAGE + "_common/notices.py", "tests/common/test_notices.py", {
        "notices-name-that-begins-alike": ('name.partition(".")[0] in BETWEEN', "name.startswith(BETWEEN)"),
        "notices-torch-is-the-user": ('"torch", ', ""),
        "notices-generated-code": ("return name is None or", "return name is not None and"),
        "notices-no-user": ("frame.f_back is not None and _is_between", "_is_between"),
        "notices-each-time": ('registry=variables.setdefault("__warningregistry__", {}),', "registry={},"),
    }),
]  # fmt: skip

CHOICE = [
    *mutants(PACKAGE + "fitting/_choice.py", "tests/fitting/test_fit_stages.py", {
        "choice-training-rows-silent": ("worse = error > WORST_RATIO * error[criterion.argmin()]", "worse = error > math.inf"),
        "choice-least-score-of-an-unlikely-model": ("best_score = _least(score, self.problem, problems)", "best_score = self.best(problems)"),
        "choice-training-rows-without-criterion": ("error[criterion.argmin()]", "error.min()"),
    }),
]  # fmt: skip

SERIES = [
    *mutants(PACKAGE + "_laws/series/search.py", ("tests/laws/test_ode_fit_search.py -k 'coarse_steps or measured_states'"), {
        "series-lost-by-accurate-steps": ("values.min() > coarse_values.min() + LOST_CRITERION", "False"),
        "series-refit-begins-as-it-was": ("            x = torch.cat([x[:, : self.shape.weights], first], 1)\n", ""),
    }),
    *mutants(PACKAGE + "_laws/series/search.py", "tests/laws/test_ode_fit_search.py -k 'exact_law or that_only_sets or from_law_to_law or passes_zero'", {
        "series-no-sets-along-the-trajectory": ("for _ in range(RENEWALS if", "for _ in range(0 if"),
        "series-exact-law-stays": ("sets = sets.some(sets.criteria < law.criterion() - SAME_CRITERION)", "break"),
        "series-exact-law-does-not-end-the-search": ("if outcomes and max_denominator and is_exact(outcomes[-1][0]):", "if False:"),
        "series-climb-without-an-end": ("for _ in range(MOST_CLIMBS):", "for _ in range(2 * MOST_CLIMBS):"),
        "series-powers-of-a-pole": ("torch.where(self.data.crossing, shape.low.clamp(min=0.0), shape.low)", "shape.low"),
    }),
    *mutants(PACKAGE + "_laws/series/data.py", "tests/laws/test_ode_fit_verdict.py -k below_zero", {
        "series-below-zero-by-any-noise": ("-lowest > NEAR_ZERO *", "-lowest > 0 *"),
        "series-below-zero-by-all-values": ("_off_line(data.times[s, seen], y)[near]", "_off_line(data.times[s, seen], y)"),
    }),
    *mutants(PACKAGE + "_laws/series/verdict.py", "tests/laws/test_ode_fit_verdict.py -k below_zero", {
        "verdict-whole-powers-below-zero": ("if not (powers[:, d] == powers[:, d].round()).all()", "if True"),
    }),
    *mutants(PACKAGE + "_laws/series/search.py", "tests/laws/test_ode_fit.py -k data_hardly_tell", {
        "series-exact-law-and-larger-ones": ("if is_exact(best) else math.inf", "if False else math.inf"),
    }),
    *mutants(PACKAGE + "_laws/series/sets.py", "tests/laws/test_ode_fit_search.py -k 'best_set or smaller_parts or first_states_are_unknown'", {
        "series-sets-in-any-order": ("return best.some(criteria.argsort(stable=True))", "return best"),
        "series-sets-of-known-first-states": ("* unknown.unsqueeze(1)", "* 1.0"),
        "series-sets-at-all-parts": ("[:, self.parts - 1 :: self.parts]", "[:, :: self.parts]"),
    }),
    *mutants(PACKAGE + "_laws/series/data.py", "tests/laws/test_ode_fit_search.py -k zero", {
        "series-both-signs-in-several-series": ("((low < 0) & (high > 0)).any(0)", "(low < 0).any(0) & (high > 0).any(0)"),
    }),
    *mutants(PACKAGE + "_laws/series/data.py", "tests/laws/test_ode_fit.py -k both_signs", {
        "series-sign-by-size-alone": ("torch.minimum(SIGNED * high.clamp(min=0), noise)", "SIGNED * high.clamp(min=0)"),
        "series-sign-of-rounding": ("_noise(times, tables) + ROUNDED_RESIDUAL * high.clamp(min=0)", "_noise(times, tables)"),
        "series-noise-not-in-order": ("seen = seen[time[seen].argsort(stable=True)]", "seen = seen.flip(0)[1:]"),
    }),
    *mutants(PACKAGE + "_laws/series/exchange.py", "tests/laws/test_ode_fit_search.py -k exchange_leads", {
        "exchange-only-of-coefficients-more": ("    plans += [Exchange((n,), *pair) for n, _ in numbers for pair in new]\n", ""),
        "exchange-not-of-several-equations": ("if len(column) > 1:", "if False:"),
        "exchange-in-any-order": ("values.argsort(stable=True)", "values.argsort(descending=True)"),
    }),
    *mutants(PACKAGE + "_laws/series/search.py", "tests/laws/test_ode_fit_search.py -k no_better_exchange", {
        "series-no-exchanges": ("for _ in range(MOST_EXCHANGES):", "for _ in range(0):"),
    }),
    *mutants(PACKAGE + "_laws/series/simplify.py", "tests/laws/test_ode_fit_search.py -k whole_numbers_within", {
        "series-nearest-whole-number-alone": ("for k in WHOLE if abs(k - w) < reach", "for k in WHOLE if False"),
    }),
    *mutants(PACKAGE + "_laws/series/criterion.py", "tests/laws/test_ode_fit_search.py -k no_whole_number", {
        "series-fractions-have-no-price": ("FRACTION_NATS * (exponents != exponents.round()).sum(1)", "0"),
    }),
    *mutants(PACKAGE + "_laws/series/data.py", "tests/laws/test_ode_fit_search.py -k equal_distances", {
        "series-no-equal-distances": ("if is_equal and", "if False and"),
        "series-any-number-of-equal-distances": ("if is_equal and float(counts.sum()) <= MOST_EQUAL * len(gaps):", "if is_equal:"),
    }),
    *mutants(PACKAGE + "_laws/series/verdict.py", "tests/laws/test_ode_fit_verdict.py -k not_measured", {
        "verdict-without-the-measured-start": ("(faults if much or lost > MAX_LOST else remarks)", "(faults if much else remarks)"),
    }),
    *mutants(PACKAGE + "_laws/series/fit.py", "tests/laws/test_ode_fit.py -k in_proportion_to", {
        "series-proportions-of-both-signs": ("sized(data) if data.sized else data", "data"),
    }),
]  # fmt: skip

PYTHON = [
    *REFERENCE,
    *FORMULA,
    *FITTING,
    *LAYERS,
    *CALLS,
    *EQUATIONS,
    *FILES,
    *SERIES,
    *CHOICE,
]
