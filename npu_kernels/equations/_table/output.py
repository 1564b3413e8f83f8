"""From the rows of one output to its equations.

Noise, search, the last fit to all rows, standard errors.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from npu_kernels._common.checks import warn
from npu_kernels.equations._equation import Equation
from npu_kernels.equations._problem import AllRows, Columns, Output
from npu_kernels.equations._rows import ranks
from npu_kernels.equations._table import ratio, refine
from npu_kernels.equations._table.estimates import (
    Rows,
    equation_of,
    held_out,
    left_out,
    sizes,
)
from npu_kernels.equations._table.forms import (
    TELL,
    Fit,
    free_form,
    other_forms,
    resolved,
)
from npu_kernels.equations._table.notes import notes_of
from npu_kernels.equations._table.refine import Rules, Sum
from npu_kernels.equations._table.search import (
    MORE_ROWS,
    POWERS,
    Candidates,
    Settings,
    Steps,
    search,
    search_on,
)

Array = Any

FEW_ROWS = 40  # rows below which none are held out
HELD_OUT = 0.2  # share of the rows
MAX_HELD_OUT_ROWS = 5000
RIVAL_COST = 20.0  # difference of the criteria of the search up to which all rows decide
STRUCTURE = 0.5  # correlation of neighbours from which hardly any of the residuals is noise
TINY_RESIDUAL = 1e-200  # in place of a residual that is 0
REWEIGHTED = 5  # times at most that weights by the best equation's values are computed again
SAME_VALUES = 1e-4  # largest change of these values, as a share, at which they stay
SMALL_FACTOR = 0.1  # standard deviation of log y below which factors are relative errors
POWERS_NEED = "target_powers other than 1 need a y of one sign without zeros, -1 one without zeros"


@dataclass(frozen=True)
class SearchResult:
    """The equations of one output."""

    equations: list[Equation]  # the smallest number of terms first
    best_index: int  # an index
    alternatives: list[Equation]  # that the data hardly tell from the best, the likeliest first
    noise: str  # "additive", "proportional", "multiplicative" or "known"
    complete: bool  # False after Ctrl-C
    notes: tuple[str, ...] = ()  # doubts, each a sentence or more
    inflation: Array = None  # [N]: leave-one-out errors of the best over its residuals
    outliers: tuple[int, ...] = ()  # rows that were left out, or should be
    weighted: bool = False  # rows have different weights


def ordered(
    X: Array, y: Array, weight: Array, rows: Array, group: Array | None = None
) -> tuple[Array, Array, Array, Array, Array | None]:
    """Return the rows of these indices in an order that does not depend on the table's.

    weight ``[N, O]``: one for each output. group: numbers of groups, by which rows are sorted
    first.

    Behind X, y and weight are the rows' indices and groups.
    """
    keys = [*([] if group is None else [group[rows]]), X[rows, 0]]
    rows = rows[np.lexsort(keys[::-1])]
    if (np.diff(X[rows, 0]) == 0).any():
        keys = [part[rows] for part in ([] if group is None else [group])]
        keys += [*X[rows].T, *y[rows].T, *weight[rows].T]
        rows = rows[np.lexsort(keys[::-1])]  # the last key is the first to decide
    return X[rows], y[rows], weight[rows], rows, None if group is None else group[rows]


def measured(rows: Rows) -> tuple[Output, str]:
    """Return the data with errors as far as they are set, and the kind of errors."""
    root = rows.root
    kind = "additive" if rows.deviation is None else "known"
    if rows.noise == "proportional":
        root, kind = root / sizes(rows.y), "proportional"
    columns = Columns.of(rows.functions.expand(rows.X), rows.functions.exponential)
    addend = None if rows.part is None else rows.part.values(rows.X)
    output = Output(
        columns,
        rows.y,
        root,
        rows.exponents,
        noise=rows.deviation,
        factor=rows.noise == "multiplicative",
        limits=rows.limits,
        addend=addend,
        group=rows.group,
        digits=rows.digits,
    )
    if rows.noise == "multiplicative":
        if not ((rows.y > 0).all() or (rows.y < 0).all()):
            rule = "noise='multiplicative' needs a y of one sign without zeros"
            raise ValueError(f"NPURegressor: {rule}, which {rows.output} is not")
        kind = "multiplicative"
    return output, kind


def searched(rows: Rows, settings: Settings, powers: tuple[float, ...] | None) -> SearchResult:
    """The equations of one output from all of its rows."""
    if not rows.y.any():
        rows = replace(rows, noise=None)
    root = rows.root
    order = np.random.default_rng([settings.seed, 1]).permutation(len(rows.y))
    held = min(MAX_HELD_OUT_ROWS, int(HELD_OUT * len(order))) if len(order) >= FEW_ROWS else 0
    if rows.group is not None:
        order, held = _spare(rows.group, order, held, settings.max_terms)
    training = np.sort(order[held:])
    powers = POWERS if powers is None else powers
    output, kind = measured(rows)
    first = partial(_first, rows, training=training, settings=settings, powers=powers[:1])
    candidates = first(output, Candidates())
    if kind == "proportional":
        output, candidates = _reweighted(output, root, first, candidates)
    if rows.noise is None and candidates.complete and not candidates.exact():
        errors = _likeliest_errors(root, output, candidates, first, settings.rules)
        output, kind, candidates = errors
    if candidates.complete:
        known_error = replace(output, error=_error(candidates))
        if None in rows.output_functions:
            if -1.0 in powers and rows.part is None:
                candidates = ratio.reciprocals(output, training, settings, candidates)
            candidates = search(known_error, training, settings, powers[1:], candidates)
            candidates = _ratios(known_error, training, settings, powers[1:], candidates)
        if candidates.complete and not candidates.exact() and candidates.structure() > STRUCTURE:
            candidates = search_on(known_error, training, settings, candidates)
    if not candidates.sums:
        limited = "" if rows.limits is None else f" with {rows.limits}"
        raise ValueError(
            f"NPURegressor: no sum of products of powers{limited} could be fitted to "
            f"{rows.output}; {POWERS_NEED}"
        )
    finished = partial(
        _finished, rows, candidates=candidates, held=np.sort(order[:held]), kind=kind
    )
    try:
        if candidates.complete:
            if kind != "proportional" or candidates.exact():
                return finished(output, settings=settings)
            output = in_proportion(output, root, _predicted(candidates, output))
            return _in_own_proportion(output, partial(finished, settings=settings), rows)
    except KeyboardInterrupt:
        candidates.complete = False
    warn("NPURegressor: the search was interrupted; it returns the best equations so far")
    # The last fits after Ctrl-C do not belong to the complete fit.
    return finished(output, settings=replace(settings, steps=Steps()))


def _in_own_proportion(
    output: Output, finished: Callable[[Output], SearchResult], rows: Rows
) -> SearchResult:
    """The equations with errors in proportion to the best one's values, until they stay.

    The search chose the weights, and all rows choose the equation.
    """
    result = finished(output)
    for _ in range(REWEIGHTED):
        best = result.equations[result.best_index]
        prediction = best._predicted(rows.X, rows.group)
        change = sizes(prediction) * output.weight / rows.root
        if best.exact or np.abs(change - 1).max() <= SAME_VALUES:
            break
        output = in_proportion(output, rows.root, prediction)
        result = finished(output)
    return result


def _likeliest_errors(
    root: Array,
    output: Output,
    constant: Candidates,
    first: Callable[[Output, Candidates], Candidates],
    rules: Rules,
) -> tuple[Output, str, Candidates]:
    """The data, the kind of errors and the sums: errors are equal, in proportion to y, or factors.

    constant: the sums with equal errors. root: the square roots of the rows' weights.
    """
    kind, candidates, prediction = "additive", constant, _predicted(constant, output)
    if prediction is None:
        return output, kind, candidates
    relative, divided = Candidates(), in_proportion(output, root, prediction)
    try:
        relative = first(divided, relative)
    except KeyboardInterrupt:
        relative.complete = False
    if _likelier(_by_own_weights(relative, constant, rules), constant):
        output, kind, candidates = divided, "proportional", relative
    candidates.complete = constant.complete and relative.complete
    if candidates.complete and _may_be_factors(candidates, constant, rules):
        factors = replace(output, weight=root, factor=True)
        of_factors = first(factors, Candidates())
        complete = of_factors.complete
        if _likelier(of_factors, candidates):
            output, kind, candidates = factors, "multiplicative", of_factors
        candidates.complete = complete
    return output, kind, candidates


def _by_own_weights(relative: Candidates, constant: Candidates, rules: Rules) -> Candidates:
    """The best sum for errors in proportion to y, with weights by its own prediction.

    Weights by another equation's prediction may suit no equation that has errors in proportion to
    itself.
    """
    judged, best, equal = Candidates(), relative.best(), constant.best()
    if best is not None and equal is not None:
        problem, candidate = best
        prediction = problem.predict(candidate.u, candidate.parity, candidate.c)[0]
        if np.isfinite(prediction).all():
            problem = replace(problem, weight=equal[0].weight / sizes(prediction))
            judged.add(problem, refine.refit(problem, candidate, rules.loss))
    return judged


def in_proportion(output: Output, root: Array, prediction: Array | None) -> Output:
    """Return the data with errors in proportion to an equation's prediction; None: as they are.

    Errors in proportion to y itself would give rows more weight whose error makes y smaller: the
    coefficients would be too small. root: the square roots of the rows' weights.
    """
    return output if prediction is None else replace(output, weight=root / sizes(prediction))


def _reweighted(
    output: Output, root: Array, first: Callable[..., Candidates], candidates: Candidates
) -> tuple[Output, Candidates]:
    """The data and the sums of a second search, with errors in proportion to the first equation.

    The errors of the first search are in proportion to y itself.
    """
    if not candidates.complete or candidates.exact():
        return output, candidates
    divided, second = in_proportion(output, root, _predicted(candidates, output)), Candidates()
    try:
        second = first(divided, second)
    except KeyboardInterrupt:
        candidates.complete = False
    return (divided, second) if second.sums else (output, candidates)


def _spare(group: Array, order: Array, held: int, max_terms: int) -> tuple[Array, int]:
    """An order of rows whose first ones are to be held out, and their number.

    They are a share of every group, which keeps more rows than there are terms. held: the number
    without groups.
    """
    sizes = np.bincount(group)
    limits = np.minimum((HELD_OUT * sizes).astype(int), sizes - max_terms - 1)
    spare = ranks(group, order) < limits[group[order]]
    return np.concatenate([order[spare], order[~spare]]), min(held, int(spare.sum()))


def _first(
    rows: Rows,
    output: Output,
    candidates: Candidates,
    training: Array,
    settings: Settings,
    powers: tuple[float, ...],
) -> Candidates:
    """Search the first power of y and the functions of y, after an exact sum for shorter ones.

    Ratios are looked for where no sum seems an equation.
    """
    for function in rows.output_functions:
        if candidates.exact():
            settings = replace(settings, max_terms=candidates.shortest_exact() - 1)
        if not candidates.complete or not settings.max_terms:
            break
        of_form = replace(output, function=function)
        of_y = powers if function is None else (1.0,)
        candidates = search(of_form, training, settings, of_y, candidates)
        if function is None:
            candidates = _ratios(output, training, settings, of_y, candidates)
    return candidates


def _ratios(
    output: Output,
    training: Array,
    settings: Settings,
    powers: tuple[float, ...],
    candidates: Candidates,
) -> Candidates:
    """The candidates, with ratios for some of the output powers."""
    powers = tuple(power for power in powers if power in ratio.OUTPUT_POWERS)
    if not candidates.complete or not powers or not ratio.may_be_ratio(candidates, settings):
        return candidates
    patient = replace(settings, patient=True)
    return search(output, training, patient, powers, candidates, ratio.one_power)


def _error(candidates: Candidates) -> float:
    """The standard deviation of the errors of ``weight * y`` by the best sum."""
    best = candidates.best()
    return 0.0 if best is None else best[0].unit * math.sqrt(best[1].rss / best[0].rows)


def _predicted(candidates: Candidates, output: Output) -> Array | None:
    """The predictions of y by the best sum, in any unit and sign, if it has one for each row."""
    best = candidates.best()
    if best is not None:
        output = replace(output, function=best[0].function)
    data = None if best is None else output.scaled(best[0].power, best[0].below)
    if best is None or data is None:
        return None
    prediction = data.predict(best[1].u, best[1].parity, best[1].c)[0]
    return prediction if np.isfinite(prediction).all() else None


def _likelier(other: Candidates, current: Candidates) -> bool:
    """Whether errors of another kind are likelier than those of what was current.

    They have to be much likelier for an equation with more parameters.
    """
    first, second = current.best(), other.best()
    if first is None or second is None:
        return False
    (a, candidate), (b, new) = first, second
    gain = TELL if new.parameters > candidate.parameters else 2.0  # the data hardly tell less
    return new.cost + b.units < candidate.cost + a.units - gain


def _may_be_factors(current: Candidates, constant: Candidates, rules: Rules) -> bool:
    """Whether errors that are factors make an equation likelier that was found for other errors.

    Small factors are the same as small errors in proportion to y.
    """
    first, equal = current.best(), constant.best()
    if first is None or equal is None or (equal[0].target <= 0).any():
        return False
    problem, candidate = first
    factors = replace(problem, weight=equal[0].weight, factor=True)
    candidate = refine.refit(factors, candidate, rules.loss)
    spread = math.sqrt(candidate.rss / factors.rows) if math.isfinite(candidate.cost) else 0.0
    return (
        spread > SMALL_FACTOR and candidate.cost + factors.units < first[1].cost + problem.units - 2
    )


def _finished(
    rows: Rows, output: Output, candidates: Candidates, held: Array, kind: str, settings: Settings
) -> SearchResult:
    """The best sum of each number of terms, fitted to all rows. held: indices of rows held out."""
    fits: list[Fit] = []
    for terms in sorted({terms for _, terms in candidates.sums}):
        pairs = [pair for key, pair in candidates.sums.items() if key[-1] == terms]
        pairs += [pair for pair in candidates.near if len(pair[1].c) == terms]
        lowest = min(candidate.cost for _, candidate in pairs)
        for training, candidate in pairs:
            if candidate.cost > lowest + RIVAL_COST:
                continue
            of_form = replace(output, error=math.inf, function=training.function)
            data = of_form.scaled(training.power, training.below)
            assert data is not None
            refitted = partial(_refitted, data, candidate, settings.rules)
            fitted = settings.steps.sum(refitted)
            if not math.isfinite(fitted.cost) and (data.below or data.limits is not None):
                continue  # there is a pole between the other rows, or a coefficient became 0
            fits.append((data, candidate, fitted if math.isfinite(fitted.rss) else candidate))
    if not fits:
        rule = "no equation with these signs and bounds could be fitted to all rows"
        raise ValueError(f"NPURegressor: {rule} of {rows.output}")
    fits = _without_roots(other_forms(fits, output, held, settings), settings.rules)
    fits = resolved(fits, rows.functions, held, settings.rules.loss)
    free = free_form(fits, held, settings.rules)
    fits += [] if free is None else [free]
    fits.sort(key=lambda fit: (len(fit[2].c), fit[2].cost))
    best = min(fit[2].cost for fit in fits)
    forms, texts = set[Any](), set[str]()
    equations, alternatives = list[Equation](), list[Equation]()
    for data, candidate, fitted in fits:
        first = not equations or equations[-1].n_terms < len(fitted.c)
        key = data.function, data.power, data.below, _form(fitted, data.below)
        is_near = fitted.cost < best + TELL or (free is not None and fitted is free[2])
        if key in forms or not (first or is_near):
            continue
        forms.add(key)
        error = held_out(rows, data, candidate, held) if len(held) else left_out(rows, data, fitted)
        # The held-out rows have had a part in the choice of this form.
        if len(held) and not candidate.has_form_of(fitted):
            remaining = data.choose(np.setdiff1d(np.arange(data.rows), held))
            other = refine.refit(remaining, fitted, settings.rules.loss)
            error = max(error, held_out(rows, data, other, held))
        equation = equation_of(rows, data, fitted, error, len(held), kind, settings.rules.loss)
        shown = equation.text()
        if first:
            equations.append(equation)
        if best < fitted.cost and is_near and shown not in texts:
            alternatives.append(equation)
        texts.add(shown)
    alternatives.sort(key=lambda equation: equation.bic)
    chosen = int(np.argmin([equation.bic for equation in equations]))
    notes = rows.notes
    if candidates.complete:
        notes += notes_of(rows, equations[chosen])
    inflation = np.ones(len(rows.y))  # of many rows none has much influence
    if settings.leave_out is not None and len(inflation) <= MORE_ROWS:
        inflation = _inflation(min(fits, key=lambda fit: fit[2].cost))
    parts = equations, chosen, alternatives, kind, candidates.complete, notes, inflation
    return SearchResult(*parts, weighted=rows.weighted)


def _inflation(fit: Fit) -> Array:
    """The leave-one-out errors of all rows over their residuals."""
    data, _, candidate = fit
    residuals = data.predict(candidate.u, candidate.parity, candidate.c)[1]
    # A row with a term of its own has none.
    residuals = np.where(residuals == 0, TINY_RESIDUAL, residuals)
    inflation: Array = refine.left_out(data, candidate, residuals)[0] / residuals
    return np.maximum(inflation, 1.0)


def _without_roots(fits: list[Fit], rules: Rules) -> list[Fit]:
    """The fits without single products for a power of y that are products for y as well."""

    def is_product(fit: Fit) -> bool:
        return len(fit[2].c) == 1 and fit[0].function is None and fit[0].addend is None

    plain = next((fit[0] for fit in fits if is_product(fit) and fit[0].power == 1), None)
    if plain is None:
        return fits

    def is_root(fit: Fit) -> bool:
        u = fit[2].u / fit[0].power
        possible = (plain.low <= u) & (u <= plain.high) & (~plain.signed | (u == 0))
        possible &= (u % 1 == 0) | (rules.exponents != "integer")
        return is_product(fit) and fit[0].power != 1 and bool(possible.all())

    return [fit for fit in fits if not is_root(fit)]


def _form(candidate: Sum, below: int) -> Any:
    """What equations have in common that differ in coefficients and the order of terms only."""
    terms = [
        tuple(row)
        for row in (np.column_stack([candidate.u, candidate.parity]).round(6) + 0.0).tolist()
    ]
    above = len(terms) - below  # + 0.0: no -0
    return tuple(sorted(terms[:above])), tuple(sorted(terms[above:]))


def _refitted(data: AllRows, candidate: Sum, rules: Rules) -> Sum:
    """The equation of all rows; its exponents stay if free ones end at an excluded product."""
    fitted = refine.refit(data, candidate, rules.loss)
    if math.isfinite(fitted.cost) or data.limits is None or not candidate.free.any():
        return fitted
    return refine.refit(data, replace(candidate, free=np.zeros_like(candidate.free)), rules.loss)
