"""Mutants of layers, their calls, formulas and fits, and of files and checks."""

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
        "reference-shrink-sign": ("p - pi * _apply(k, weight_im), q +", "p + pi * _apply(k, weight_im), q +"),
        "reference-phase-without-gate": ("r, k = g * r + (1 - g), g * m", "r, k = g * r + (1 - g), m"),
        "reference-gate-above-one": ("clipped = gate.clamp(0.0, 1.0)", "clipped = gate.clamp(0.0, 2.0)"),
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
        "second-instead-of-a-third": ("if self.closed_form and not torch.is_grad_enabled() and", "if self.closed_form and"),
    }),
    *mutants(PACKAGE + "_operators/tangents.py", "tests/operators/test_second_kernel.py -k tangents", {
        "tangents-without-a-graph": ("if torch.is_grad_enabled() and any(", "if any("),
        "tangents-that-lose-a-graph": ("if torch.is_grad_enabled() and any(", "if False and any("),
    }),
    *mutants(PACKAGE + "_operators/second_derivatives.py", "tests/operators/test_second_kernel.py -k tangents", {
        "tangents-half-a-direction": ("along_re, along_im = (zeros if v is None else v for v in (along_re, along_im))", "along_re = along_im = zeros"),
    }),
    *mutants(PACKAGE + "_operators/autograd.py", "tests/backends/test_fast_path.py -k large_products", {
        "autograd-nac-needs": ("2 if needs & 6 else 0", "2 if needs & 2 else 0"),
        "autograd-nac-clips": ("matrix, False, needs & 1 | of_matrix)", "weight, False, needs & 1 | of_matrix)"),
    }),
    *mutants(PACKAGE + "reference.py", ("tests/operators/test_reference.py -k nalu", "tests/backends/test_isa.py -k 'special_input or zero'", "tests/layers/test_edges.py -k inalu"), {
        "reference-inalu-beyond-omega": (".masked_fill(e > omega, 0)", ""),
        "reference-inalu-count-of-zeros": ("zeros = zero.sum(-1).clamp(max=2)", "zeros = zero.sum(-1).clamp(max=1)"),
        "reference-inalu-rest-of-the-gate": ("grad_y * g * rest * (a - product)", "grad_y * g * (1 - g) * (a - product)"),
        "reference-inalu-eps": ("slope = torch.where(x.abs() >= eps,", "slope = torch.where(x.abs() >= 0,"),
    }),
    *mutants(PACKAGE + "reference.py", ("tests/backends/test_fast_path.py -k 'nau or one_weight'", "tests/operators/test_reference.py"), {
        "reference-nau-clip-below": ("weight.clamp(-1.0, 1.0) if clip else weight)", "weight.clamp(0.0, 1.0) if clip else weight)"),
    }),
    *mutants(PACKAGE + "_operators/autograd.py", ("tests/backends/test_fast_path.py -k 'nau or one_weight'", "tests/operators/test_reference.py"), {
        "autograd-nau-clip-at-the-ends": ("(weight >= -1) & (weight <= 1)", "(weight > -1) & (weight < 1)"),
        "autograd-nau-shared-x": ("(grad_x.sum(0) if is_shared else", "(grad_x[0] if is_shared else"),
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
        "functional-nmu-clip": ("return nmu(x, weight.clamp(0.0, 1.0))", "return nmu(x, weight)"),
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

FORMULA = [
    *mutants(PACKAGE + "_common/display.py", "tests/common/test_display.py", {
        "display-cells-as-they-are": ("html.escape(str(cell))", "str(cell)"),
        "display-caption-as-it-is": ("html.escape(caption)", "caption"),
        "display-one-line": ("except (ImportError, OverflowError):", "except KeyError:"),
    }),
    *mutants(PACKAGE + "_laws/table/estimator.py", "tests/common/test_display.py", {
        "display-law-before-fit": ('if not hasattr(self, "equations_"):', "if True:"),
    }),
    *mutants(PACKAGE + "training/_runs.py", "tests/common/test_display.py", {
        "display-first-loss-twice": ("for i in (0, -1)]", "for i in (0, 0)]"),
    }),
    *mutants(PACKAGE + "formula/_fractions.py", "tests/formula/test_formula_fractions.py", {
        "fractions-lowest-terms": ("better = (distance < error)", "better = (distance <= error)"),
        "fractions-large-numbers": (" & (exact.abs() < FRACTION_LIMIT)", ""),
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
        "simplify-gates-of-a-reader": ("used = used & (remainder.gate != 0)\n", "pass\n"),
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
    *mutants(PACKAGE + "fitting/_cross_validation.py", "tests/fitting/test_fit_checkpoint.py -k cross_validation", {
        "fit-cross-validation-after-ctrl-c": ("    if run.stage is not None:\n        return None\n", ""),
    }),
    *mutants(PACKAGE + "fitting/_fit.py", "tests/fitting/test_fit_checkpoint.py -k cross_validation", {
        "fit-complete-without-its-score": ("complete = validated is not None", "pass"),
    }),
    *mutants(PACKAGE + "fitting/_run.py", "tests/fitting/test_fit_stages.py -k without_rounds", {
        "fit-stages-without-rounds": ("(rounds > 0 or not self.stage.rounds)", "rounds > 0"),
    }),
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
        "fit-units-of-y": ('exponents[full_name(self._last, "weight")] += y.unsqueeze(2)', "pass"),
        "fit-units-of-x": ('exponents[full_name(self._first, "weight")] -= x.unsqueeze(1)', "pass"),
        "fit-units-of-powers": ("(w * gate.round().unsqueeze(1)) @ x", "w @ (0 * x)"),
        "fit-eps-of-other-units": ("unit.eps = unit.eps or torch.finfo(unit.weight_re.dtype).tiny", "pass"),
        "fit-spare-units": ("while float(used.sum(1).max()) > 1:", "while False:"),
        "fit-coefficient-of-one": ("if not bool((weight == 1).all()):", "if True:"),
    }),
    *mutants(PACKAGE + "fitting/_batch.py", FITS, {
        "fit-rounded-gates": ("torch.where(self.kind == GATE, flat.round(), fractions)", "torch.where(self.kind == GATE, flat, fractions)"),
        "fit-nan-scores": ("errors.nan_to_num(nan=math.inf, posinf=math.inf)", "errors"),
    }),
]  # fmt: skip

CHOICE = [
    *mutants(PACKAGE + "fitting/_choice.py", "tests/fitting/test_fit_stages.py", {
        "choice-training-rows-silent": ("worse = error > WORST_RATIO * error[criterion.argmin()]", "worse = error > math.inf"),
        "choice-least-score-of-an-unlikely-model": ("best_score = _least(score, self.problem, problems)", "best_score = self.best(problems)"),
        "choice-training-rows-without-criterion": ("error[criterion.argmin()]", "error.min()"),
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

BESIDE_LAWS = [*REFERENCE, *LAYERS, *CALLS, *FORMULA, *FITTING, *CHOICE, *FILES]
