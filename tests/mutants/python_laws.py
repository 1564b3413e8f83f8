"""Mutants of what finds laws."""

from __future__ import annotations

from tests.mutants.mutant import mutants

PACKAGE = "npu_kernels/"

EQUATIONS = [
    *mutants(PACKAGE + "_laws/table/arguments.py", "tests/laws/test_equations_estimator.py -k tensors", {
        "equations-tensors-with-gradients": ("table.detach().cpu()", "table.cpu()"),
        "equations-tensors-of-a-device": ("table.detach().cpu()", "table.detach()"),
    }),
    *mutants(PACKAGE + "_laws/table/many.py", "tests/laws/test_equations_many.py -k groups_of", {
        "many-without-groups": ("groups=groups, checkpoint=path", "checkpoint=path"),
        "many-labels-in-no-digest": ("return digest(*tensors, *names, *texts)", "return digest(*tensors, *names)"),
    }),
    *mutants(PACKAGE + "_laws/products/functions.py", "tests/laws/test_equations_functions.py -k backquotes", {
        "equations-functions-without-backquotes": ("return Functions(tuple(map(written_name, self.inputs)), self.columns).names", "return (*map(written_name, self.inputs), *self.names[len(self.inputs) :])"),
    }),
    *mutants(PACKAGE + "_laws/table/varpro.py", ("tests/laws/test_equations_varpro.py", "tests/laws/test_equations_zeros.py", "tests/laws/test_equations.py -k 'coulomb or kepler or outliers or both_signs'", "tests/laws/test_equations_output.py -k zero"), {
        "equations-varpro-signs": ("products.mul_(1 - 2 * torch.remainder(parity @ self.negative.T, 2))", "pass"),
        "equations-varpro-zeros": ("products.mul_(torch.from_numpy(factors.T).view_as(products))", "pass"),
        "equations-varpro-bounds": ("trial = torch.clamp(trial, self.low, self.high)", "trial = 2 * u - trial"),
        "equations-varpro-gradient": ("self.logs * c.unsqueeze(2)).reshape(S, K * m)", "self.logs / c.unsqueeze(2)).reshape(S, K * m)"),
    }),
    *mutants(PACKAGE + "_laws/table/rounding.py", ("tests/laws/test_equations_scale.py", "tests/laws/test_equations_zeros.py", "tests/laws/test_equations_factor.py", "tests/laws/test_equations_output.py -k 'ten_rows or standard_errors or held_out'", "tests/laws/test_equations.py -k 'outliers or no_fractions or both_signs'"), {
        "equations-signed-exponents": ("forced = problem.signed[None, :] & law.free", "forced = problem.signed[None, :] & ~law.free"),
        "equations-freed-exponents": ("unchanged = (free == law.free).all() and (u[~free] == law.u[~free]).all()", "unchanged = True"),
    }),
    *mutants(PACKAGE + "_laws/table/refine.py", ("tests/laws/test_equations_scale.py", "tests/laws/test_equations_zeros.py", "tests/laws/test_equations_factor.py", "tests/laws/test_equations_output.py -k 'ten_rows or standard_errors or held_out'", "tests/laws/test_equations.py -k 'outliers or no_fractions or both_signs'"), {
        "equations-leverage": ("return r / np.maximum(1 - h, 1e-3), variances", "return r, variances"),
        "equations-huber": ("value = np.where(t <= 1, t * t, 2 * t - 1)", "value = t * t"),
        "equations-derivatives-of-logarithms": ("slope = slope / (p * np.maximum(", "slope = slope / (np.maximum("),
        "equations-exponents-that-stay-at-0": ("            change[held & (u[k, i] == 0)] = 0.0\n", ""),
        "equations-covariance": ("return inverse @ inverse.T / np.outer(length, length)", "return inverse @ inverse.T"),
        "equations-blocks-of-the-leverage": ("begin += len(factor)\n    # R_jj", "pass\n    # R_jj"),
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
        "functions-powers-of-exponentials": ("argument(self.variable, w * self.factor, digits)", "argument(self.variable, w, digits)"),
    }),
    *mutants(PACKAGE + "_laws/table/identities.py", "tests/laws/test_equations_functions.py -k 'equal or first_function or other_function or logarithms'", {
        "identities-power": ("w[j] += 2 * power", "w[j] += 2 * m"),
        "identities-equal-laws": ("limit = EQUAL * np.abs(y).max()", "limit = -1.0"),
        "identities-shorter": ("for candidate in (written, *shorter)", "for candidate in (written,)"),
    }),
    *mutants(PACKAGE + "_laws/table/rounding.py", "tests/laws/test_equations_functions.py -k signs_of_predictions", {
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
        "equations-powers-of-zero": ("low[zero] = np.maximum(low[zero], 0.0)", "pass"),
        "equations-small-powers-of-zero": ("values = np.where(self.zero @ (w > ZERO).T > 0, 0.0, 1.0)", "values = np.where(self.zero @ (w > ZERO).T > 0, 1.0, 1.0)"),
        "equations-negative-powers-of-zero": ("values[self.zero @ (w < -ZERO).T > 0] = math.inf", "pass"),
        "equations-squares-of-large-y": ("largest = float(np.abs(y).max()) or 1.0", "largest = 1.0"),
        "equations-zeros-in-the-mean": ("count += (~zero).sum(0)", "count += len(zero)"),
    }),
    *mutants(PACKAGE + "_laws/table/estimates.py", ("tests/laws/test_equations_zeros.py -k candidate", "tests/laws/test_equations_notes.py", "tests/laws/test_equations_factor.py", "tests/laws/test_equations_output.py -k 'known or standard_errors or held_out or bootstrap or hardly or choose'", "tests/laws/test_equations_scale.py", "tests/laws/test_equations_estimator.py -k 'weights or order'", "tests/laws/test_equations.py -k 'three_per_cent'", "tests/benchmarks/test_equations_benchmark.py -k near"), {
        "equations-error-of-a-constant": ("= -coef[..., k] * log_mean[i]", "= coef[..., k] * log_mean[i]"),
        "equations-known-noise": ("variance = data.noise**2", "variance = law.rss / data.rows"),
        "equations-errors-of-predictions": ("rms=_relative(data.target - prediction, data.target, rows.weight)", "rms=_relative(residuals, data.target * data.weight, rows.weight)"),
    }),
    *mutants(PACKAGE + "_laws/table/output.py", ("tests/laws/test_equations_zeros.py -k candidate", "tests/laws/test_equations_notes.py", "tests/laws/test_equations_factor.py", "tests/laws/test_equations_output.py -k 'known or standard_errors or held_out or bootstrap or hardly or choose'", "tests/laws/test_equations_scale.py", "tests/laws/test_equations_estimator.py -k 'weights or order'", "tests/laws/test_equations.py -k 'three_per_cent'", "tests/benchmarks/test_equations_benchmark.py -k near"), {
        "equations-weights-of-equal-rows": ("np.bincount(index, weights=weight)", "weight[new]"),
        "equations-held-out-rows": ("training = np.sort(order[held:])", "training = np.sort(order)"),
        "equations-powers-that-are-near": ("if law.cost > lowest + RIVAL_COST:", "if law.cost > lowest:"),
        "equations-alternatives-of-one-form": ("if key in forms or not", "if not"),
        "equations-alternatives-that-are-far": ("if best < fitted.cost < best + TELL:", "if best < fitted.cost:"),
        "equations-factors": ("return spread > SMALL_FACTOR and", "return spread > 1e9 and"),
        "equations-approximations": ("if likeness > APPROXIMATION:", "if likeness > 9:"),
        "equations-relative-errors": ("return rival.cost + b.units < law.cost + a.units - 2", "return False"),
    }),
    *mutants(PACKAGE + "_laws/table/other_forms.py", ("tests/laws/test_equations_zeros.py -k candidate", "tests/laws/test_equations_notes.py", "tests/laws/test_equations_factor.py", "tests/laws/test_equations_output.py -k 'known or standard_errors or held_out or bootstrap or hardly or choose'", "tests/laws/test_equations_scale.py", "tests/laws/test_equations_estimator.py -k 'weights or order'", "tests/laws/test_equations.py -k 'three_per_cent'", "tests/benchmarks/test_equations_benchmark.py -k near"), {
        "equations-beside-the-best": ("return fits + [(data, law, near) for", "return fits[:] + [(data, law, near) for _ in () for"),
        "equations-cancelling-pairs": ("if near is None or min(near) < data.fixed:", "if True:"),
    }),
    *mutants(PACKAGE + "_laws/table/other_forms.py", "tests/laws/test_equations_splitting.py", {
        "equations-terms-for-two": ("if not (halves and best.free.any()) or", "if True or"),
        "equations-terms-of-other-powers": ("or data.power != 1 or data.below", "or data.below"),
        "equations-halves-that-are-not-allowed": ("rules.exponents == \"fractions\" and rules.max_denominator > 1 ", "True "),
    }),
    *mutants(PACKAGE + "_laws/table/splitting.py", "tests/laws/test_equations_splitting.py", {
        "equations-two-for-two": ("if free[j] or free[k])]", "if free[j] and free[k])]"),
        "equations-more-terms-than-allowed": ("if free[k] and terms < max_terms]", "if free[k]]"),
    }),
    *mutants(PACKAGE + "_laws/products/library.py", "tests/laws/test_equations_groups_parts.py", {
        "equations-pairs-beside-terms": ("A = A - Q @ (Q.transpose(0, 2, 1) @ A)", "A = A * 1.0"),
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
    *mutants(PACKAGE + "_laws/products/expression.py", "tests/laws/test_equations_known.py -k 'expressions or cannot or functions or that_the_law_has'", {
        "known-names-in-backquotes": ("if match[1] not in numbers:", "if False:"),
        "known-other-functions": ("or node.func.id not in FUNCTIONS:", "or False:"),
        "known-quotients": ("sign = 1.0 if isinstance(node.op, ast.Mult) else -1.0", "sign = 1.0"),
        "known-minus": ("return -of(node.operand) if isinstance(node.op, ast.USub) else of(node.operand)", "return of(node.operand)"),
        "known-endless-power": ("size < LARGEST_POWER and math.isfinite(base**exponent)", "True"),
    }),
    *mutants(PACKAGE + "_laws/series/sensitivity.py", "tests/laws/test_ode_fit_known.py", {
        "ode-fit-frozen-coefficients-in-scaled-units": ("        if self.log_sizes is not None:\n", "        if False:\n"),
    }),
    *mutants(PACKAGE + "_laws/series/forms.py", "tests/laws/test_ode_fit_known.py", {
        "ode-fit-frozen-coefficients-freed": (" & (law.problem.shape.log_sizes is None)", ""),
    }),
    *mutants(PACKAGE + "training/_arguments.py", "tests/training/test_training_run_errors.py", {
        "run-optimiser-of-another-model": ("    if of_model.isdisjoint(map(id, trained)):\n", "    if False:\n"),
    }),
    *mutants(PACKAGE + "_laws/products/groups.py", "tests/laws/test_equations_groups.py", {
        "groups-labels-as-text": ("    if not isinstance(groups, (list, tuple)):\n", "    if True:\n"),
    }),
    *mutants(PACKAGE + "_laws/products/limits.py", "tests/laws/test_equations_terms.py -k bound", {
        "terms-like-one-that-is-set": ("return np.concatenate([self.excluded, self.u])", "return self.excluded"),
        "terms-bounds-of-another": ("= self.low[index], self.high[index]", "= self.low[k], self.high[k]"),
    }),
    *mutants(PACKAGE + "_laws/table/refine.py", "tests/laws/test_equations_terms.py", {
        "terms-twice": ("refused or law.repeats_a_term(problem.below, problem.mixed)", "refused"),
        "terms-of-other-parity": ("self.parity * mixed", "self.parity"),
    }),
    *mutants(PACKAGE + "_laws/table/other_forms.py", "tests/laws/test_equations_terms.py", {
        "terms-that-are-not-needed": ("            if fitted.cost < best.cost:\n", "            if False:\n"),
    }),
    *mutants(PACKAGE + "_laws/table/output.py", "tests/laws/test_equations_factor.py -k 'relative or ctrl_c'", {
        "relative-to-y-itself": ("    if kind == \"relative\":\n", "    if False:\n"),
        "relative-weights-of-the-last-fit": ("        output = in_proportion(output, root, _predicted(candidates, output))\n", "        pass\n"),
    }),
    *mutants(PACKAGE + "_laws/table/stepwise.py", "tests/laws/test_equations_factor.py -k relative", {
        "relative-to-y-itself-stepwise": ("fits and kind == \"relative\":", "False:"),
    }),
    *mutants(PACKAGE + "_laws/products/limits.py", "tests/laws/test_equations_known.py", {
        "known-sign-of-y": ("sign = sign if abs(power) == 1 else 1.0", "sign = 1.0"),
        "known-excluded-terms": ("return np.concatenate([self.excluded, self.u])", "return self.u"),
        "known-signs-of-negative-columns": ("signs = 1 - 2 * ((np.round(u) @ self.outer[0]) % 2)", "signs = np.ones(shape)"),
        "known-bounds-that-follow": ("return (self.low > -BOUND) | (self.high < BOUND) | self.integer", "return self.integer"),
    }),
    *mutants(PACKAGE + "_laws/products/problem.py", "tests/laws/test_equations_known.py -k 'known_part or whole or rest'", {
        "known-part-of-the-target": ("return (z if self.addend is None else z - self.addend) / self.base", "return z / self.base"),
        "known-part-over-y": ("addend = (sign if abs(power) == 1 else 1.0) * addend / scale**power", "addend = addend / scale**power"),
        "known-whole-exponents": ("signed |= limits.integer[exponents.free]", "pass"),
    }),
    *mutants(PACKAGE + "_laws/table/rounding.py", "tests/laws/test_equations_known.py -k 'suit or bounds or terms or positive'", {
        "known-terms-that-stay": ("free[: problem.fixed] = False", "pass"),
    }),
    *mutants(PACKAGE + "_laws/table/refine.py", "tests/laws/test_equations_known.py -k 'suit or bounds or terms or positive'", {
        "known-coefficients-at-bounds": ("stays: Array = ((law.c <= low) &", "stays: Array = ((law.c < low) &"),
        "known-bounds-of-steps": ("c=_within(problem, u, law.c + step)", "c=law.c + step"),
    }),
    *mutants(PACKAGE + "_laws/table/varpro.py", "tests/laws/test_equations_known.py -k 'suit or bounds or terms or positive'", {
        "known-terms-in-the-search": ("stays[:, : self.fixed * m] = True", "pass"),
        "known-bounds-in-the-search": ("stays = stays | beyond", "stays = stays & beyond"),
    }),
    *mutants(PACKAGE + "_laws/table/module.py", "tests/laws/test_equations_known.py -k 'known_part or every_kind'", {
        "known-part-of-the-module": ("return total + (part / self.divisor).unsqueeze(-1)", "return total + part.unsqueeze(-1)"),
    }),
    *mutants(PACKAGE + "_laws/table/linearised.py", "tests/laws/test_equations_groups_parts.py", {
        "groups-elimination": ("after -= A[:, k, None] * rows[:, k, k + 1 :][group]", "pass"),
        "groups-coefficients-that-stay": ("np.where(stays.T[:, None], 0.0, rows[..., :K])", "rows[..., :K]"),
        "groups-covariance": ("C[:, :K, :K] += inner @ inner.transpose(0, 2, 1)", "pass"),
    }),
    *mutants(PACKAGE + "_laws/table/group_solver.py", "tests/laws/test_equations_groups_parts.py", {
        "groups-rows-that-fill": ("self.weight = self.weight[index].masked_fill(~self.real, 0.0)", "self.weight = self.weight[index]"),
        "groups-projection": ("H = H - (flat.transpose(2, 3)", "H = H - 0 * (flat.transpose(2, 3)"),
    }),
    *mutants(PACKAGE + "_laws/table/refine.py", "tests/laws/test_equations_groups.py -k 'drawn_laws or leverage'", {
        "groups-errors-that-decide": ("return np.sqrt(r * errors), variances", "return errors, variances"),
    }),
    *mutants(PACKAGE + "_laws/table/results.py", "tests/laws/test_equations_refit.py -k 'equal_rows or in_any_order'", {
        "bootstrap-of-other-data": ("if not self._seen.are_of(X, targets):", "if False:"),
        "bootstrap-with-wild-rows": ("keep[self._left_out[o]] =", "keep[[]] ="),
    }),
    *mutants(PACKAGE + "_laws/table/refine.py", "tests/laws/test_equations_bounds.py", {
        "bounds-errors-of-constants": ("    R[:, constants] = 0.0\n", ""),
        "bounds-errors-of-constants-of-groups": ("        J[:, constants] = 0.0\n", ""),
        "bounds-whole-exponents": ("self.exponents != \"real\" and len(self.denominators) == 1", "False"),
    }),
    *mutants(PACKAGE + "_laws/table/equation.py", "tests/laws/test_equations_bounds.py", {
        "bounds-of-intervals": ("results.append(interval.within(*bounds[:, k]))", "results.append(interval)"),
        "bounds-of-exponents": (".within(*exponent_bounds[:, i])", ""),
        "bounds-as-fractions": ("if abs(float(fraction) - w) > 1e-12 * max(1.0, abs(w)):", "if False:"),
    }),
    *mutants(PACKAGE + "_laws/table/refitting.py", "tests/laws/test_equations_refit.py", {
        "refit-scale-of-y": ("shift[:above] += equation.power * math.log(equation.scale / data.scale)", "pass"),
        "refit-kind-of-errors": ("equation = equation_of(rows, data, law, error, 0, equation.noise)", 'equation = equation_of(rows, data, law, error, 0, "constant")'),
    }),
    *mutants(PACKAGE + "_laws/table/stepwise.py", "tests/laws/test_equations_stepwise.py", {
        "stepwise-held-out-errors": ("error = np.append(-c, 1.0) @ part[np.ix_(index, index)]", "error = np.append(-c, 1.0) @ total[np.ix_(index, index)]"),
        "stepwise-exchanges": ("if better is not None and better not in chosen:", "if False:"),
        "stepwise-inputs-of-both-signs": ("(problem.signed & (u < 0)) | (whole", "(whole"),
        "stepwise-excluded": ("u[~problem.limits.excludes(u)]", "u"),
        "stepwise-gain": ("gain -= W[:, -1] @ W[:, :-1]", "pass"),
    }),
    *mutants(PACKAGE + "_laws/table/wild.py", "tests/laws/test_equations_wild.py", {
        "equations-gap-of-wild-rows": ("np.median(errors[~keep]) < GAP * errors[keep].max()", "False"),
        "equations-least-gap-of-wild-rows": ("np.median(errors[~keep])", "errors[~keep].min()"),
        "equations-wild-rows-and-noise-in-proportion": ("    if (errors > WILD * _scale(errors)).mean() > MOST_WILD:\n", "    if False:\n"),
        "equations-trimmed-rows": ("squares[largest].sum() < TRIMMED_SHARE * squares.sum()", "True"),
        "equations-always-trimmed-rows": ("squares[largest].sum() < TRIMMED_SHARE * squares.sum()", "False"),
        "equations-numbers-of-wild-rows": ("numbers = rows.origin[wild]", "numbers = np.flatnonzero(wild)"),
    }),
    *mutants(PACKAGE + "_laws/table/rows.py", "tests/laws/test_equations_rows.py", {
        "equations-nearest-rows": ("np.fill_diagonal(squares, np.inf)", "pass"),
        "equations-rows-like-those-of-a-fit": ("far[far] = within & ", "far[far] = within | "),
        "equations-alike-by-chance": ("correlation > CHANCE * chance", "correlation > 0 * chance"),
    }),
    *mutants(PACKAGE + "_laws/table/kept_results.py", "tests/laws/test_equations_checkpoint.py", {
        "equations-state-of-the-generator": ("        generator.bit_generator.state = json.loads(state)\n", ""),
        "equations-seed-of-a-checkpoint": ("self.seed, self.kept = seed, results", "self.kept = results"),
        "equations-kept-at-once": ("                self._work.checkpoint.keep()", "                pass"),
    }),
    *mutants(PACKAGE + "_laws/table/many.py", "tests/laws/test_equations_many.py", {
        "equations-share-of-a-rank": ("range(exchange.rank, len(named), exchange.size)", "range(len(named))"),
        "equations-order-of-problems": ("for index in sorted(outcomes)]", "for index in sorted(outcomes, reverse=True)]"),
        "equations-after-an-interrupt": ("            if not outcome.complete:\n                return", "            if False:\n                return"),
        "equations-file-of-a-problem": ("{_digest(X, y, weight, groups)}.pt", "{name}.pt"),
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
    *mutants(PACKAGE + "_laws/series/search.py", "tests/laws/test_ode_fit_verdict.py -k first_states", {
        "series-misses-hidden-by-first-states": ("if lost > MAX_LOST and", "if False and"),
        "series-held-first-states-of-a-constant-law": ("min(lost, 1.0) / 2", "lost / 2"),
        "series-held-first-states-whatever-they-give": ("other if hidden(other) < min(lost, 1.0) / 2 else result", "other"),
    }),
    *mutants(PACKAGE + "_laws/series/verdict.py", "tests/laws/test_ode_fit_verdict.py -k 'first_states or gets_no_warning'", {
        "verdict-errors-count-as-misses": ("is_inexact & (ratio > MAX_RATIO) & is_rare", "is_inexact & (ratio > 0)"),
    }),
    *mutants(PACKAGE + "_laws/series/search.py", "tests/laws/test_ode_fit_search.py -k no_better_exchange", {
        "series-no-exchanges": ("for _ in range(MOST_EXCHANGES):", "for _ in range(0):"),
    }),
    *mutants(PACKAGE + "_laws/series/simplify.py", "tests/laws/test_ode_fit_search.py -k whole_numbers_within", {
        "series-nearest-whole-number-alone": ("for k in WHOLE if abs(k - w) < reach", "for k in WHOLE if False"),
    }),
    *mutants(PACKAGE + "_laws/series/criterion.py", "tests/laws/test_ode_fit_known.py -k keeps_the_terms", {
        "series-terms-that-are-given": ("        values = values.where(has_terms, math.inf)\n", ""),
    }),
    *mutants(PACKAGE + "_laws/series/search.py", "tests/laws/test_ode_fit_checkpoint.py -k before_there_is_a_law", {
        "series-early-interrupt": ("if not outcomes and self.job.pressed:", "if False:"),
    }),
    *mutants(PACKAGE + "_laws/series/criterion.py", "tests/laws/test_ode_fit_search.py -k no_whole_number", {
        "series-fractions-have-no-price": ("FRACTION_NATS * (exponents != exponents.round()).sum(1).double()", "0"),
    }),
    *mutants(PACKAGE + "_laws/series/data.py", "tests/laws/test_ode_fit_search.py -k equal_distances", {
        "series-no-equal-distances": ("if is_equal and", "if False and"),
        "series-any-number-of-equal-distances": ("if is_equal and float(counts.sum()) <= MOST_EQUAL * len(gaps):", "if is_equal:"),
    }),
    *mutants(PACKAGE + "_laws/series/verdict.py", "tests/laws/test_ode_fit_verdict.py -k not_measured", {
        "verdict-without-the-measured-start": ("(faults if much or lost > MAX_LOST else remarks)", "(faults if much else remarks)"),
    }),
    *mutants(PACKAGE + "_laws/series/data.py", "tests/laws/test_ode_fit_verdict.py -k in_proportion", {
        "series-variation-without-weights": ("squares = (weight * off.square())", "squares = off.square()"),
        "series-variation-of-rounding": ("torch.nn.functional.hardshrink(values - means, ROUNDED_RESIDUAL)", "values - means"),
    }),
    *mutants(PACKAGE + "_laws/series/fit.py", "tests/laws/test_ode_fit.py -k in_proportion_to", {
        "series-proportions-of-both-signs": ("sized(data) if data.sized else data", "data"),
    }),
    *mutants(PACKAGE + "_laws/series/search.py", ("tests/laws/test_ode_fit_known.py -k 'models or model_too or closed_gate'", "tests/laws/test_ode_fit_stiff.py -k infinite"), {
        "series-fractions-from-a-model": ("(exponents != 0) & shape.free_exponents(data.positive) & trained", "(exponents != 0) & trained"),
        "series-roots-of-signed-states": ("exponents = exponents.where(data.positive, exponents.round())", "pass"),
        "series-held-exponents-rounded": ("if trained:  # states", "if True:  # states"),
    }),
    *mutants(PACKAGE + "_laws/series/known.py", "tests/laws/test_ode_fit_known.py -k signs_that_are_kept", {
        "series-starts-of-other-signs": ("if bool((low * high < 0).any()):", "if False:"),
        "series-signs-of-zeros": ("return (low + high).sign()", "return low"),
    }),
    *mutants(PACKAGE + "_laws/series/laws.py", "tests/laws/test_ode_fit_derivatives.py", {
        "series-equations-of-all-laws": ("self.moved[lanes] = (result[0] != x).any(1)", "pass"),
        "series-equations-of-no-law": ("self.moved[lanes] = (result[0] != x).any(1)", "self.moved[lanes] = False"),
        "series-states-computed-twice": ("states = None if self.trials is None else self.trials[lanes]", "states = None"),
        "series-equations-of-other-laws": ("self._linearise(x[moved], lanes[moved])", "self._linearise(x, lanes)"),
    }),
    *mutants(PACKAGE + "_laws/series/sensitivity.py", "tests/laws/test_ode_fit_derivatives.py", {
        "series-chain-of-the-law": ("    nodes[..., :weights] += blocks", "    nodes[..., :weights] = blocks"),
        "series-chain-between-blocks": ("last_by_law = torch.nn.functional.pad(last[..., :weights], (0, d))", "last_by_law = 0 * torch.nn.functional.pad(last[..., :weights], (0, d))"),
    }),
]  # fmt: skip

LAWS = [*EQUATIONS, *SERIES]
