"""`NPURegressor`, the scikit-learn estimator."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from npu_kernels._common.checks import check_level, check_whole, is_whole, warn
from npu_kernels._jobs.checkpoint import Checkpoint
from npu_kernels._jobs.driver import terminable
from npu_kernels.equations._equation import Equation
from npu_kernels.equations._numbers import digits_of
from npu_kernels.equations._rows import (
    Seen,
    constant,
    first_of_equal,
    indices,
    read_labels,
    separated,
)
from npu_kernels.equations._table.arguments import (
    are_counts,
    as_array,
    check_columns,
    check_groups,
    check_jobs,
    check_numeric,
    check_output,
    check_parameters,
    check_rows,
    check_sizes,
    column_names,
    columns_of,
    copied_columns,
    exponents_of,
    known_errors,
    limits_of,
    names_beside,
    outputs_of,
    part_of,
    product_columns,
    scaled_columns,
    seed_of,
    settings_of,
    units_of,
    work_of,
)
from npu_kernels.equations._table.estimates import Rows, refitted, resampled, rows_of
from npu_kernels.equations._table.estimates import intervals as percentiles
from npu_kernels.equations._table.notes import notes_of
from npu_kernels.equations._table.outliers import find_equations
from npu_kernels.equations._table.output import (
    FEW_ROWS,
    SearchResult,
    ordered,
)
from npu_kernels.equations._table.report import EquationTable, draw, report, shown
from npu_kernels.equations._table.search import POWERS, Settings, Steps, Work

Array = Any

# ---- results -------------------------------------------------------------------------------------
# What a fitted `NPURegressor` returns: predictions, forms of its equations, intervals, refits.

MAX_ROWS = 5  # that a warning names


class EquationWarning(UserWarning):
    """Warning about the data or the equation. message: its text."""

    def __init__(self, message: str) -> None:
        super().__init__(message)


class Results:
    """The part of `NPURegressor` that needs a fit."""

    loss: str
    noise: Any
    random_state: Any
    n_jobs: int | None
    _single: bool  # whether y had one dimension
    _seen: Seen
    _group_column: str | None  # of X, that has the labels of groups
    _left_out: list[Array]  # the outliers of each output among the merged rows

    def _set(self, tables: list[EquationTable]) -> None:
        """Set the attributes that a fit gives, and warn of the tables' notes."""
        best = [table[table.best_index] for table in tables]
        single = self._single
        self.equations_: Any = tables[0] if single else tables
        self.best_equation_: Any = best[0] if single else best
        for name in ("coef", "coef_stderr", "exponents", "exponents_stderr"):
            values = [getattr(equation, name) for equation in best]
            setattr(self, f"{name}_", values[0] if single else values)
        for note in dict.fromkeys(note for table in tables for note in table.notes):
            warn(f"NPURegressor: {note}", EquationWarning)

    def _tables(self) -> list[EquationTable]:
        from sklearn.utils.validation import check_is_fitted

        check_is_fitted(self, "equations_")
        return [self.equations_] if self._single else self.equations_

    def _pick(self, index: int | None, group: Any = None) -> list[Equation]:
        results = []
        for table in self._tables():
            position = table.best_index if index is None else index
            if not is_whole(position) or not -len(table) <= position < len(table):
                rule = f"index must be one of the {len(table)} candidates"
                raise ValueError(f"NPURegressor: {rule}, got {index!r}")
            results.append(table[position] if group is None else table[position].for_group(group))
        return results

    def _separated(self, function: str, X: Any, groups: Any) -> tuple[Any, Any]:
        """X without the column of the labels, and the labels."""
        column = self._group_column
        if groups is None and column is not None and column in getattr(X, "columns", ()):
            groups = column
        return separated(function, as_array(X), groups)

    def _read(
        self, function: str, X: Any, y: Any, sample_weight: Any, groups: Any, first: bool = False
    ) -> tuple[Array, Array, Array, Array, Any]:
        """Return X, y ``[N, O]`` and the weights ``[N]``, checked, and the labels.

        Before the labels are the indices of rows with a weight, each as often as it counts.

        first: whether they are those of `fit`, which say what further data must be like.
        """
        from sklearn.utils.validation import _check_sample_weight, validate_data

        noise = None if function == "plot" else self.noise
        check_rows(function, X=X, y=y, sample_weight=sample_weight, noise=noise, groups=groups)
        if first:
            X, groups = separated(function, as_array(X), groups)
            check_columns(X)
        else:
            X, groups = self._separated(function, X, groups)
        check_numeric(function, "X", X)
        check_numeric(function, "y", y)
        check_numeric(function, "sample_weight", sample_weight)
        options = {"multi_output": True, "y_numeric": True, "dtype": np.float64, "reset": first}
        X, y = validate_data(self, X, as_array(y), **options, ensure_min_samples=1 + first)
        weight = np.asarray(_check_sample_weight(as_array(sample_weight), X, dtype=np.float64))
        if (weight < 0).any() or not weight.any():
            sizes = f"{weight.min():g} to {weight.max():g}"
            rule = "sample_weight must be at least 0 and not all 0"
            raise ValueError(f"{function}: {rule}, got {sizes}")
        rows = np.flatnonzero(weight)
        if are_counts(sample_weight):
            rows, weight = np.repeat(rows, weight[rows].astype(int)), (weight > 0).astype(float)
        targets = np.asarray(y, dtype=np.float64).reshape(len(X), -1)
        wrong = ~np.isfinite(targets).all(1)
        if wrong.any():  # None among objects
            row = int(wrong.argmax())
            value = targets[row][~np.isfinite(targets[row])][0]
            rule = f"y must be finite numbers, got {value:g} in row {row} (the first row is 0)"
            raise ValueError(f"{function}: {rule}")
        if not first and targets.shape[1] != len(self._tables()):
            rule = f"y must have {len(self._tables())} columns"
            raise ValueError(f"{function}: {rule}, got {targets.shape[1]}")
        return X, targets, weight, rows, groups

    def _one_or_all(self, values: list[Any]) -> Any:
        return values[0] if self._single else values

    def predict(self, X: Any, groups: Any = None) -> Array:
        """Predict y ``[N]``, or ``[N, O]`` for several outputs.

        groups: labels of the rows, as in `fit`, if the equation has groups.

        Extrapolation alone gives no warning. Warns (`EquationWarning`)

        - if predictions are infinite or undefined: an input with a negative exponent is 0, or a
          logarithm or root of an input or of the sum is undefined;
        - if, in an equation ``f(y) = sum``, the sum is outside of the range of f (1.2 for a sine):
          the prediction is the y for the nearest value in the range;
        - if a prediction is far outside of the range of y in `fit`, although the row is within the
          range of X in `fit`.

            >>> import numpy as np
            >>> from npu_kernels import NPURegressor
            >>> X = np.random.default_rng(0).uniform(0.5, 3, (100, 2))
            >>> model = NPURegressor(random_state=0).fit(X, 5 * X[:, 0] / X[:, 1])
            >>> model.predict([[100.0, 4.0]]).round(6)
            array([125.])
        """
        from sklearn.utils.validation import validate_data

        equations = self._pick(None)
        check_rows("predict", X=X, groups=groups)
        X, groups = self._separated("predict", X, groups)
        check_numeric("predict", "X", X)
        X = validate_data(self, X, reset=False, dtype=np.float64)
        group = indices("predict", equations[0].labels, groups, len(X))
        results = np.column_stack([equation._predicted(X, group, True) for equation in equations])
        if not np.isfinite(results).all():
            warn(
                f"NPURegressor: {int((~np.isfinite(results)).any(1).sum())} predictions are "
                "infinite or undefined, where an input with a negative exponent is 0, an input "
                "has no logarithm or root, a sum has no root, or a number is too large",
                EquationWarning,
            )
        for equation in equations:
            beyond = np.flatnonzero(equation._beyond(X, group))
            if len(beyond):
                function = equation.target_transform.name if equation.target_transform else ""
                warn(
                    f"NPURegressor: {len(beyond)} predictions of {equation.output} are for the "
                    f"nearest value of {function}, because the sum is outside of its range: rows "
                    f"{', '.join(map(str, beyond[:MAX_ROWS]))} (the first is row 0)",
                    EquationWarning,
                )
        far = self._seen.surprising(X, results)
        if far.any():
            rows = ", ".join(map(str, np.flatnonzero(far)[:MAX_ROWS]))
            warn(
                f"NPURegressor: {int(far.sum())} predictions are far outside of the y of fit, "
                f"although their rows are within its range: rows {rows} (the first is row 0). "
                "Unless y is so large there, the equation is wrong: see the other equations in "
                "equations_",
                EquationWarning,
            )
        return results[:, 0] if self._single else results

    def score(self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None) -> float:
        """Return R**2 of the predictions. groups: as in `predict`.

        Raises ValueError if a prediction is infinite or undefined.
        """
        from sklearn.metrics import r2_score

        check_rows("score", X=X, y=y, sample_weight=sample_weight, groups=groups)
        check_numeric("score", "y", y)
        weight, predictions = as_array(sample_weight), self.predict(X, groups)
        wrong = np.flatnonzero(~np.isfinite(predictions).reshape(len(predictions), -1).all(1))
        if len(wrong):
            rule = "X must have rows with finite predictions"
            raise ValueError(f"score: {rule}, got {predictions[wrong[0]]} for row {wrong[0]}")
        return float(r2_score(as_array(y), predictions, sample_weight=weight))

    def sympy(self, index: int | None = None, group: Any = None) -> Any:
        """Return the right-hand side as a sympy expression; a list for several outputs.

        index: index of a candidate, None for the best. group: a label, for the equation of this
        group with numbers; None: in equations with groups, coefficients are ``c1[group]``.
        """
        return self._one_or_all([equation.sympy() for equation in self._pick(index, group)])

    def latex(self, index: int | None = None, group: Any = None) -> Any:
        """Return the equation in LaTeX; a list for several outputs.

        index: index of a candidate, None for the best. group: as in `sympy`.
        """
        return self._one_or_all([equation.latex() for equation in self._pick(index, group)])

    def torch_module(self, index: int | None = None, group: Any = None) -> Any:
        """Return the equation as fused layers; a list for several outputs.

        See `Equation.torch_module`.

        index: index of a candidate, None for the best. group: label of a group, if the equation has
        groups.
        """
        return self._one_or_all([equation.torch_module() for equation in self._pick(index, group)])

    def confidence_intervals(self, level: float = 0.95, index: int | None = None) -> Any:
        """Return confidence intervals of the parameters of an equation.

        The form is taken as known: the intervals do not contain the uncertainty of the search. See
        `Equation.confidence_intervals`. For several outputs, a list of lists. level: confidence
        level. index: index of a candidate, None for the best.
        """
        return self._one_or_all(
            [equation.confidence_intervals(level) for equation in self._pick(index)]
        )

    def bootstrap(
        self,
        X: Any,
        y: Any,
        n_resamples: int = 200,
        level: float = 0.95,
        sample_weight: Any = None,
        groups: Any = None,
    ) -> Any:
        """Return bootstrap confidence intervals of the best equation, with its form fixed.

        The rows are resampled with replacement, within each group if there are groups. The rows are
        assumed independent. The intervals also hold if none of the error models (`noise`) is right,
        for example if the size of the errors depends on an input.

        Args:
            X, y, sample_weight, groups: the data of `fit`, in any order; outliers that `fit`
                excluded are excluded here too.
            n_resamples: number of resamples, at least 10.
            level: confidence level.

        Returns intervals in the form of `confidence_intervals`.
        """
        from joblib import Parallel, delayed

        check_jobs("bootstrap", self.n_jobs)
        n_resamples, level = (
            check_whole("bootstrap", "n_resamples", n_resamples, 10),
            check_level("bootstrap", level),
        )
        equations = self._pick(None)
        X, targets, weight, used, groups = self._read("bootstrap", X, y, sample_weight, groups)
        group = indices("bootstrap", equations[0].labels, groups, len(X), weight > 0)
        noise, weights = known_errors("bootstrap", self.noise, weight, len(equations))
        X, targets, weights, origin, group = ordered(X, targets, weights, used, group)
        if not self._seen.are_of(X, targets):
            raise ValueError("bootstrap: X and y must be the data of fit, got others")
        seed = seed_of(self.random_state)
        results: list[Any] = []
        shares = [len(part) for part in np.array_split(np.arange(n_resamples), min(n_resamples, 8))]
        loss = settings_of(self, seed).rules.loss
        for o, equation in enumerate(equations):
            keep = np.ones(len(X), dtype=bool)
            keep[self._left_out[o]] = self.loss != "auto"
            data = X[keep], targets[keep, o], weights[keep, o], origin[keep]
            of_group = None if group is None else group[keep]
            rows = rows_of(equation, *data, of_group, equation.labels, noise, digits_of(y))
            calls = (
                delayed(resampled)(equation, rows, loss, [seed, o, n], k)
                for n, k in enumerate(shares)
            )
            parts = Parallel(n_jobs=self.n_jobs)(calls)
            results.append(percentiles(equation, np.concatenate(parts), level))
        return self._one_or_all(results)

    def refit(self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None) -> Any:
        """Fit the parameters of the best equation, with its form fixed, to other data.

        Returns a new estimator.

        Args:
            X, y, sample_weight, groups: as in `fit`. All rows are used: outliers are not searched
                for. The groups may differ from the groups of `fit`. If `noise` is an array, first
                replace it by the errors of these rows (`set_params`). If the equation is for a
                power of y other than 1 and -1, all y should have the same sign. A y of the other
                sign stays in the fit as a measurement of a value of this sign with a large error.

        `equations_` of the new estimator contains only this equation. Warnings about the new fit
        are also in `equations_.notes`. Raises ValueError if the equation is not finite in all rows,
        or if a column with negative values has an exponent that is no integer.

            >>> import numpy as np
            >>> from npu_kernels import NPURegressor
            >>> X = np.random.default_rng(0).uniform(0.5, 3, (100, 2))
            >>> model = NPURegressor(random_state=0).fit(X, 5 * X[:, 0] / X[:, 1])
            >>> print(model.refit(X, 7 * X[:, 0] / X[:, 1]).best_equation_)
            y = 7*x0/x1
        """
        equations = self._pick(None)
        column = groups if isinstance(groups, str) else self._group_column
        X, targets, weight, used, groups = self._read("refit", X, y, sample_weight, groups)
        labels, group = equations[0].labels, None
        if labels is None or groups is None:
            indices("refit", labels, groups, len(X))
        else:
            labels, group = read_labels("refit", groups, len(X), weight > 0)
        noise, weights = known_errors("refit", self.noise, weight, len(equations))
        loss, tables = settings_of(self, 0).rules.loss, []
        X, targets, weights, origin, group = ordered(X, targets, weights, used, group)
        new, than = first_of_equal(X, targets, group), "different rows than the equation has terms"
        for o, equation in enumerate(equations):
            if labels is not None and group is not None:
                check_sizes("refit", labels, group[new], equation.n_terms, than)
            data = X, targets[:, o], weights[:, o], origin, group, labels
            rows = rows_of(equation, *data, noise, digits_of(y))
            rows, equation = refitted(equation, rows, loss)
            notes = rows.notes + notes_of(rows, equation)
            parts = [equation], 0, list[Equation](), equation.noise, True, notes
            tables.append(EquationTable(SearchResult(*parts, weighted=rows.weighted)))
        other = copy.copy(self)
        other._seen, other._group_column = Seen.of(X, targets), column
        other._left_out = [np.zeros(0, dtype=int) for _ in tables]
        other._set(tables)
        return other

    def plot(self, X: Any = None, y: Any = None, output: int = 0, groups: Any = None) -> Any:
        """Return a matplotlib figure of the error over the number of terms.

        With X and y it also shows observed over predicted values, and residuals.

        X, y, groups: data to draw, with the columns of `fit`. output: index of one of several
        outputs.
        """
        table = self._tables()[check_output(self._tables(), output)]
        if (X is None) != (y is None):
            raise ValueError("plot: X and y must be given together, got one of them")
        equation, prediction = table[table.best_index], None
        if X is not None:
            X, targets, _, _, groups = self._read("plot", X, y, None, groups)
            y = targets[:, output]
            group = indices("plot", equation.labels, groups, len(X))
            prediction = equation._predicted(X, group)
        return draw(table, equation, prediction, y)

    def report(self, level: float = 0.95) -> str:
        """Return the best equation, its parameters with intervals, and warnings about it, as text.

        level: confidence level of the intervals.

            >>> import numpy as np
            >>> from npu_kernels import NPURegressor
            >>> X = np.random.default_rng(0).uniform(0.5, 3, (100, 2))
            >>> model = NPURegressor(random_state=0).fit(X, 5 * X[:, 0] / X[:, 1])
            >>> print(model.report().splitlines()[0])
            y = 5*x0/x1
        """
        level = check_level("report", level)
        return "\n\n".join(report(table, level) for table in self._tables())


# ---- the estimator -------------------------------------------------------------------------------

SHORT_STARTS = 8  # of the search of an output after Ctrl-C
INSTALL = (
    "NPURegressor needs scikit-learn: pip install 'npu_kernels[sklearn]' "
    "(or: pip install scikit-learn)"
)

try:
    from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin
except ImportError:  # the class can be imported and says what to install when it is made
    MISSING = True

    class _Absent:
        pass

    BaseEstimator, MultiOutputMixin, RegressorMixin = (
        type(name, (_Absent,), {}) for name in ("B", "M", "R")
    )
else:
    MISSING = False


class NPURegressor(Results, MultiOutputMixin, RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """Symbolic regression: finds the equation of a table, as a scikit-learn estimator.

    Equations have the form ``y**p = sum_k c_k prod_i x_i**w_ki``, a sum of products of powers or a
    power of such a sum; or ``y**p`` is a ratio of two such sums. With `functions` and
    `target_transforms` they may also have sines, logarithms and exponentials. Rescaling a column
    does not matter: inputs are divided by their geometric mean and y by its root mean square, and
    both are folded back into the constants. The constants are solved exactly within the search
    (variable projection), the exponents with Levenberg-Marquardt from many random initialisations
    at once, in float64.

    The number of terms is chosen by a BIC that is computed from leave-one-out errors and adds a
    cost for each exponent, lower for simpler ones. The guide "Equations from tables" has its
    formula. Exponents are rounded to integers and simple fractions if that lowers the BIC. A
    fraction that is no integer must also lie within two standard errors of its free estimate. This
    second condition does not count if the BIC would rise by more than 6 with free exponents in
    place of all such fractions.

    Args:
        max_terms: maximum number of terms; for a ratio, of the numerator and the denominator each.
            None approximates a table that no short equation describes: up to ten products of one or
            two inputs with simple exponents are added one by one. The number with the smallest
            cross-validation error is taken. Residuals then give no warnings, since they are mostly
            approximation errors, not noise.
        target_powers: powers p of y to try. "auto": p = 1 first, then -1, 2, -2, 1/2 and -1/2. The
            search ends after p = 1 if the best equation is one product with simple exponents and
            its residuals have no pattern. After an exact equation only powers that may give a
            shorter one are tried. Powers other than 1 and -1 are tried only if y, apart from noise,
            does not change sign.
        exponents: "rational" (free if no fraction fits), "integer" or "real"; or bounds ``(low,
            high)``, each a number or one for each column, for "rational" exponents within these
            bounds; no ratios are tried then.
        max_denominator: maximum denominator of the fractions, at most 64.
        X_units: units of the columns of X, ``["kg", "m", "s**-1"]``, or a dict by column names;
            needs pint. A dimensionless column has "" or "-". With y_units, coefficients are
            dimensionless, and every term has the dimension of y. A constant with a dimension, such
            as g, must be a column, which may be constant.
        y_units: the unit of y; a list for several outputs.
        n_init: number of random initialisations of the search, for each number of terms.
        loss: "auto": outliers are removed, then least squares. An outlier meets two conditions: (1)
            its residual, with respect to the equation fitted to the other rows, exceeds 7 robust
            standard deviations; (2) there is a gap between the residuals of outliers and of the
            other rows, or the residuals have heavy tails. At most 1/5 of the rows are outliers.
            Rows with a missing-value code (such as -999) or with saturated y (four or more rows
            with exactly the largest or smallest y) are removed without that limit. Removed rows are
            reported. "squared": least squares; all rows are kept, and outliers are reported.
            "huber", "soft_l1": robust losses; all rows are kept, and only missing-value codes and
            saturated y are reported. With max_terms=None, "auto" is "squared", and only
            missing-value codes and saturated y are reported.
        noise: error model of y. "additive": equal for all rows, of unknown size. "proportional":
            proportional to y. "multiplicative": y is the equation times a factor whose logarithm is
            normal; y then has one sign, and predictions are medians. None: the likeliest of the
            three. A number, or one for each row ``[N]`` or row and output ``[N, O]``: known
            standard deviations. With max_terms=None, None means "additive".
        random_state: an integer for reproducible results.
        n_jobs: number of processes for several outputs and for the bootstrap, as in joblib.
        verbose: 1 prints each step to stderr. The logger "npu_kernels.equations" always receives
            the steps, at level INFO.
        functions: functions of single inputs that are added as inputs: some of "sin", "cos", "log"
            and "exp" for all columns, or a dict with such names by column, ``{"angle": ["sin",
            "cos"]}``. With units, they apply to dimensionless columns, and degrees become radians.
            Since ``exp(x)**w = exp(w x)``, "exp" covers all rates w.
        target_transforms: functions f of y to try, for equations ``f(y) = sum``: some of "log",
            "exp", "sin", "cos", "tan", "logit", "log(1+1/y)" and, for y itself, "identity"; "auto":
            all functions whose domain contains y. None: y itself. The loss is still computed in y,
            and `predict` returns y. A few y may be outside of the domain because of noise.
        ratios: whether ratios of two sums are tried. "auto": only if the best sum is not
            satisfactory, that is, if its exponents are not simple, it has `max_terms` terms, or its
            residuals do not look like noise. Only p = 1, 2 and 1/2 are tried, if `target_powers`
            has them. A ratio is chosen if its BIC is the lowest.
        known_part: known additive part of the equation, as text: an expression of columns and
            numbers, such as ``"v*t - 9.81*t**2/2"``, with sin, cos, tan, exp, log and sqrt.
            ``y**p`` is this part plus the sum or ratio that is found; p is 1 if `target_powers` is
            "auto". With units the part must have the unit of y. Units of columns are not converted:
            a column in cm does not fit a y in m. An integer (2) has no unit; a constant with a
            decimal point (2.0) may have any unit that makes the part fit.
        required_terms: products that the sum must have, as text or as the exponents of all columns:
            ``["x0*x1**2", "1"]``. The search adds only products that differ from every required
            product by more than 0.1 in at least one exponent. A dict has bounds of the
            coefficients, ``{"x0": (0, 5), "x1": (None, 0), "x2": None}``, where None is no bound.
            The bound 0 excludes a term: ``{"1": 0}``. As with `known_part`, p is 1 if
            `target_powers` is "auto". No ratios are tried.
        signs: of the coefficients: "any", or "nonnegative" (except in `required_terms`).
        integer_exponents: True for integer exponents only, or the names of columns with integer
            exponents.

    Attributes after `fit`: `equations_`, the candidates by number of terms, an `EquationTable` of
    `Equation`; `best_equation_`, the chosen `Equation`; `coef_` and `exponents_` of it with
    `coef_stderr_` and `exponents_stderr_`, their standard errors; `n_features_in_`,
    `feature_names_in_`. With several outputs each attribute except the last two is a list with one
    entry per output.

    It does not find functions of several inputs (such as the sine of a product), except as the
    inverse of one of `target_transforms`, or products of sums. Inputs that are negative in some
    rows have integer exponents only.

        >>> import numpy as np
        >>> from npu_kernels import NPURegressor
        >>> X = np.random.default_rng(0).uniform(0.5, 3, (100, 3))
        >>> model = NPURegressor(random_state=0).fit(X, 70 * X[:, 0] * X[:, 1] / X[:, 2] ** 2)
        >>> print(model.best_equation_)
        y = 70*x0*x1/x2**2
    """

    def __init__(
        self,
        max_terms: int | None = 4,
        target_powers: Any = "auto",
        exponents: Any = "rational",
        max_denominator: int = 4,
        X_units: Any = None,
        y_units: Any = None,
        n_init: int = 64,
        loss: str = "auto",
        noise: Any = None,
        random_state: Any = None,
        n_jobs: int | None = None,
        verbose: int = 0,
        functions: Any = None,
        target_transforms: Any = None,
        ratios: Any = "auto",
        known_part: Any = None,
        required_terms: Any = None,
        signs: str = "any",
        integer_exponents: Any = False,
    ) -> None:
        if MISSING:
            raise ImportError(INSTALL)
        self.max_terms = max_terms
        self.target_powers = target_powers
        self.exponents = exponents
        self.max_denominator = max_denominator
        self.X_units = X_units
        self.y_units = y_units
        self.n_init = n_init
        self.loss = loss
        self.noise = noise
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.verbose = verbose
        self.functions = functions
        self.target_transforms = target_transforms
        self.ratios = ratios
        self.known_part = known_part
        self.required_terms = required_terms
        self.signs = signs
        self.integer_exponents = integer_exponents

    # ---- fitting ---------------------------------------------------------------------------------

    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        checkpoint: Any = None,
        groups: Any = None,
    ) -> NPURegressor:
        """Find the equations.

        Args:
            X: ``[N, n]``, an array, a tensor, or a DataFrame, whose column names become symbols.
            y: ``[N]``, or ``[N, O]`` for several outputs. If y has the name of a column, it is
                shown with ``_`` appended.
            sample_weight: ``[N]``. Weights of an integer dtype are counts: 2 is the row twice.
                Weights of other dtypes are inverse variances up to a factor; if `noise` is numbers,
                the variance is ``noise**2 / sample_weight``. So [1, 2] and [1.0, 2.0] give
                different standard errors. A row with weight 0 is ignored.
            checkpoint: a file. If it exists, the fit continues from it; on the same processor the
                result is bitwise identical to that of an uninterrupted fit. If random_state is
                None, the resumed fit uses the seed of the earlier one. With a checkpoint, several
                outputs are searched one after another. The file is written in the first seconds,
                every half a minute, at the end, and before SIGTERM ends the process. It is valid
                for the same versions of npu_kernels, torch and numpy.
            groups: a label for each row ``[N]``, or the name of a column of X with the labels. Each
                group has its own coefficients, and all groups share the exponents. Ratios of sums
                are not tried, and each group needs more distinct rows than `max_terms`. `predict`
                then needs the labels too, unless they are in that column.

        Ctrl-C ends the search with the best equation so far (`equations_.complete` is False), and
        remaining outputs get the result of a short search. If there is no equation yet, or if
        outputs are searched in several processes, Ctrl-C raises KeyboardInterrupt.

        Raises ValueError for invalid data and parameters and for a checkpoint that is damaged or of
        another fit, OSError if the checkpoint cannot be written. Warns (`EquationWarning`) about
        constant columns, few rows, and the notes in `equations_`.
        """
        check_parameters(self)
        outputs = column_names(y)
        column = groups if isinstance(groups, str) else None
        X, targets, weight, rows, groups = self._read(
            "NPURegressor", X, y, sample_weight, groups, first=True
        )
        single = np.asarray(as_array(y)).ndim == 1
        default_names = [f"x{i}" for i in range(X.shape[1])]
        names = tuple(map(str, getattr(self, "feature_names_in_", default_names)))
        count = targets.shape[1]
        outputs = outputs or (["y"] if count == 1 else [f"y{o}" for o in range(count)])
        outputs = names_beside(names, outputs)
        input_units = units_of(self.X_units, names)
        labels = group = None
        if groups is not None:
            check_groups(self)
            labels, group = read_labels("NPURegressor", groups, len(X), weight > 0)
        settings = settings_of(self, seed_of(self.random_state), group is not None)
        noise, weights = known_errors("NPURegressor", self.noise, weight, count)
        X, targets, weights, origin, group = ordered(X, targets, weights, rows, group)
        self._warn(X, names, input_units is not None, group)
        new = first_of_equal(X, targets, group)
        if new.sum() < 2:
            rule = "X and y must have at least 2 different rows with a sample_weight greater than 0"
            raise ValueError(f"NPURegressor: {rule}, got {new.sum()}")
        if group is not None and labels is not None:
            than = "different rows than max_terms"
            check_sizes("NPURegressor", labels, group[new], settings.max_terms, than)
        several = isinstance(self.y_units, (list, tuple))
        y_units = self.y_units if several else [self.y_units] * count
        if len(y_units) != count:
            rule = f"y_units must have {count} entries"
            raise ValueError(f"NPURegressor: {rule}, got {self.y_units!r}")
        functions = columns_of(self.functions, X, origin, names, input_units)
        columns, part = functions.expand(X), part_of(self, names, X, origin)
        limits = limits_of(self, functions)
        tasks = []
        digits = digits_of(y)
        for o, (y_of_task, name, unit) in enumerate(zip(targets.T, outputs, y_units, strict=True)):
            of_units = functions, input_units, name, unit, limits, self._powers() or POWERS, part
            exponents = exponents_of(columns, *of_units, group)
            of_y = outputs_of(self.target_transforms, y_of_task, origin, name, unit)
            notes = copied_columns(X, names) + product_columns(X, names)
            notes += scaled_columns(X, y_of_task, names, name)
            data = X, y_of_task, weights[:, o], functions, name, of_y, exponents
            about = notes, origin, part, limits, group, labels
            tasks.append(Rows(*data, noise, digits, *about))
        del columns
        if checkpoint is None:
            results = self._searched(tasks, settings)
        else:
            data = X, targets, weights, np.array(digits), *([] if group is None else [group])
            record = work_of(self, settings.seed, names, labels, *data)
            results = self._resumed(tasks, settings, record, checkpoint)
        tables = [EquationTable(result) for result in results]
        self._single, self._seen, self._group_column = single, Seen.of(X, targets), column
        self._left_out = [np.flatnonzero(np.isin(origin, table.outliers)) for table in tables]
        self._set(tables)
        return self

    def _powers(self) -> tuple[float, ...] | None:
        powers = self.target_powers
        if not isinstance(powers, str):
            return tuple(map(float, powers))
        return None if self.required_terms is None and self.known_part is None else (1.0,)

    def _resumed(
        self, outputs: list[Rows], settings: Settings, record: Work, path: Any
    ) -> list[SearchResult]:
        """`_one_by_one`, continued from a checkpoint and kept there."""
        record.checkpoint = Checkpoint(record, path)
        try:
            with terminable(record.save, at_once=True):
                return self._one_by_one(outputs, replace(settings, seed=record.seed), record.steps)
        except Exception:
            record.checkpoint = None  # a file whose content leads to an error stays as it is
            raise
        finally:
            record.save()

    def _searched(self, outputs: list[Rows], settings: Settings) -> list[SearchResult]:
        """The equations of the outputs, in processes if `n_jobs` says so."""
        if len(outputs) == 1 or self.n_jobs in (None, 1):
            return self._one_by_one(outputs, settings, lambda o: Steps())
        from joblib import Parallel, delayed

        powers = self._powers()
        calls = (delayed(limited)(rows, settings, powers) for rows in outputs)
        results: list[SearchResult] = Parallel(n_jobs=self.n_jobs)(calls)
        return results

    def _one_by_one(
        self, outputs: list[Rows], settings: Settings, steps: Callable[[int], Steps]
    ) -> list[SearchResult]:
        """The equations of the outputs, those after Ctrl-C from a short search.

        steps: of an output by its index; those of a short search belong to no fit.
        """
        results, powers = list[SearchResult](), self._powers()
        for o, rows in enumerate(outputs):
            if not results or results[-1].complete:
                results.append(limited(rows, replace(settings, steps=steps(o)), powers))
                continue
            min_terms = 1 if rows.limits is None else max(1, len(rows.limits.terms))
            short = replace(
                settings, max_terms=min_terms, starts=SHORT_STARTS, leave_out=None, ratios=False
            )
            results.append(replace(limited(rows, short, powers), complete=False))
        return results

    def _warn(
        self, X: Array, names: tuple[str, ...], constants_matter: bool, group: Array | None
    ) -> None:
        unused = [names[i] for i in np.flatnonzero(constant(X, group))]
        if unused and not constants_matter and len(X) > 1:
            where = "constant columns" + " (in each group)" * (group is not None)
            text = f"NPURegressor: {where} carry no information and are ignored"
            warn(f"{text}: {', '.join(unused)}", EquationWarning)
        parameters = X.shape[1] + (1 if group is None else int(group.max()) + 1)
        if len(X) <= parameters:
            warn(
                f"NPURegressor: {len(X)} rows are not more than the {parameters} parameters "
                f"of one term with {X.shape[1]} free exponents; many equations fit them",
                EquationWarning,
            )
        elif len(X) < FEW_ROWS:
            warn(
                f"NPURegressor: {len(X)} rows are too few to hold some out (from {FEW_ROWS} "
                "rows on): the error is that of leaving out one row at a time, with the form of "
                "the equation kept, and may be too small",
                EquationWarning,
            )

    def _html_repr(self) -> str:
        """What scikit-learn's estimators show in a notebook: the equation, once there is one."""
        if not hasattr(self, "equations_"):
            return super()._html_repr()  # type: ignore[no-any-return]
        return "".join(map(shown, self._tables()))


def limited(rows: Rows, settings: Settings, powers: tuple[float, ...] | None) -> SearchResult:
    """Call `find_equations` in one thread.

    The matrices are small: threads that wait for each other would cost many times the work.
    """
    with _threads().limit(limits=1):
        return find_equations(rows, settings, powers)


@functools.cache
def _threads() -> Any:
    """Looking for the libraries that have threads takes longer than fitting a few rows."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()
