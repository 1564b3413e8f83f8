"""What a fitted `NPURegressor` gives: predictions, forms of its laws, intervals, refits."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from npu_kernels._common.checks import check_level, check_whole, is_whole
from npu_kernels._common.notices import warn
from npu_kernels.equations._products.digits import digits_of
from npu_kernels.equations._products.groups import indices, read_labels, separated
from npu_kernels.equations._table.arguments import (
    are_counts,
    as_array,
    check_columns,
    check_jobs,
    check_numeric,
    check_output,
    check_sizes,
    known_errors,
    seed_of,
    settings_of,
)
from npu_kernels.equations._table.equation import Equation
from npu_kernels.equations._table.output import Laws, first_of_equal, notes_of, ordered
from npu_kernels.equations._table.plot import draw
from npu_kernels.equations._table.refitting import intervals as percentiles
from npu_kernels.equations._table.refitting import refitted, resampled, rows_of
from npu_kernels.equations._table.rows import Seen
from npu_kernels.equations._table.table import EquationTable, report

Array = Any

MOST_ROWS = 5  # that a warning names


class EquationWarning(UserWarning):
    """What a reader of the equation should know about the data. message: that."""

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
    _left_out: list[Array]  # the wild rows of each output among the merged rows

    def _set(self, tables: list[EquationTable]) -> None:
        """Set the attributes that a fit gives, and warn of the tables' notes."""
        best = [table[table.best] for table in tables]
        single = self._single
        self.equations_: Any = tables[0] if single else tables
        self.best_: Any = best[0] if single else best
        for name in ("coef", "coef_std", "exponents", "exponents_std"):
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
            position = table.best if index is None else index
            if not is_whole(position) or not -len(table) <= position < len(table):
                rule = f"index must be one of the {len(table)} candidates"
                raise ValueError(f"NPURegressor: {rule}, got {index!r}")
            results.append(table[position] if group is None else table[position].of(group))
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

        if first:
            X, groups = separated(function, as_array(X), groups)
            check_columns(X)
        else:
            X, groups = self._separated(function, X, groups)
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

        groups: the labels of the rows, as in `fit`, where the law has groups.

        Warns where an input with a negative exponent is 0 or has no logarithm, where the sum of the
        terms is no value of the function of y, and where a prediction is far outside of the y of
        `fit` though the row is like those of `fit`.
        """
        from sklearn.utils.validation import validate_data

        equations = self._pick(None)
        X, groups = self._separated("predict", X, groups)
        X = validate_data(self, X, reset=False, dtype=np.float64)
        group = indices("predict", equations[0].labels, groups, len(X))
        results = np.column_stack([equation._predicted(X, group) for equation in equations])
        if not np.isfinite(results).all():
            warn(
                f"NPURegressor: {int((~np.isfinite(results)).any(1).sum())} predictions are "
                "infinite or undefined, where an input with a negative exponent is 0, an input "
                "has no logarithm, or a number is too large",
                EquationWarning,
            )
        for equation in equations:
            beyond = np.flatnonzero(equation._beyond(X, group))
            if len(beyond):
                function = equation.function.name if equation.function else ""
                warn(
                    f"NPURegressor: {len(beyond)} predictions of {equation.output} are those of "
                    f"the nearest value of {function}, as the sum is none: rows "
                    f"{', '.join(map(str, beyond[:MOST_ROWS]))} (the first is row 0)",
                    EquationWarning,
                )
        far = self._seen.surprising(X, results)
        if far.any():
            rows = ", ".join(map(str, np.flatnonzero(far)[:MOST_ROWS]))
            warn(
                f"NPURegressor: {int(far.sum())} predictions are far outside of the y of fit, and "
                f"their rows are like those of fit: rows {rows} (the first is row 0). Unless y is "
                "so large there, the equation is no law: see the others in equations_",
                EquationWarning,
            )
        return results[:, 0] if self._single else results

    def score(self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None) -> float:
        """Return R**2 of the predictions. groups: as in `predict`."""
        from sklearn.metrics import r2_score

        check_numeric("score", "y", y)
        weight = as_array(sample_weight)
        return float(r2_score(as_array(y), self.predict(X, groups), sample_weight=weight))

    def sympy(self, index: int | None = None, group: Any = None) -> Any:
        """The right-hand side for sympy; a list for several outputs.

        index: of a candidate, None for the best. group: a label, for its law with numbers; None:
        where the law has groups, coefficients are ``c1[group]``.
        """
        return self._one_or_all([equation.sympy() for equation in self._pick(index, group)])

    def latex(self, index: int | None = None, group: Any = None) -> Any:
        """The equation in LaTeX; a list for several outputs.

        index: of a candidate, None for the best. group: as for `sympy`.
        """
        return self._one_or_all([equation.latex() for equation in self._pick(index, group)])

    def torch_module(self, index: int | None = None, group: Any = None) -> Any:
        """The equation as fused layers, see `Equation.torch_module` (a list for several outputs).

        index: of a candidate, None for the best. group: the label of one, where the law has groups.
        """
        return self._one_or_all([equation.torch_module() for equation in self._pick(index, group)])

    def intervals(self, level: float = 0.95, index: int | None = None) -> Any:
        """Confidence intervals, see `Equation.intervals` (a list of lists for several outputs).

        level: of confidence. index: of a candidate, None for the best.
        """
        return self._one_or_all([equation.intervals(level) for equation in self._pick(index)])

    def bootstrap(
        self,
        X: Any,
        y: Any,
        draws: int = 200,
        level: float = 0.95,
        sample_weight: Any = None,
        groups: Any = None,
    ) -> Any:
        """Confidence intervals of the best equation, its form kept, from rows drawn anew.

        The rows are drawn with replacement, those of each group from its own.

        Args:
            X, y, sample_weight, groups: the data of `fit`, in any order; the rows that it left out
                are left out here too.
            draws: how often the parameters are estimated again, at least 10.
            level: of the intervals.

        Returns what `intervals` does. For errors that are neither equal nor in proportion to y.
        """
        from joblib import Parallel, delayed

        check_jobs("bootstrap", self.n_jobs)
        draws, level = check_whole("bootstrap", "draws", draws, 10), check_level("bootstrap", level)
        equations = self._pick(None)
        X, targets, weight, used, groups = self._read("bootstrap", X, y, sample_weight, groups)
        group = indices("bootstrap", equations[0].labels, groups, len(X), weight > 0)
        noise, weights = known_errors("bootstrap", self.noise, weight, len(equations))
        X, targets, weights, origin, group = ordered(X, targets, weights, used, group)
        if not self._seen.are_of(X, targets):
            raise ValueError("bootstrap: X and y must be the data of fit, got others")
        seed = seed_of(self.random_state)
        results: list[Any] = []
        shares = [len(part) for part in np.array_split(np.arange(draws), min(draws, 8))]
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
        """Fit the parameters of the best equation to other data, with its form kept.

        X, y, sample_weight, groups: as in `fit`. All rows count: wild ones are not looked for.
        If `noise` is an array, it is that of these rows: see `set_params`.
        Groups may be others than those of `fit`. For a power of y other than 1 and -1, what has
        another sign than y has on average is taken for an error, of any size.

        Returns another estimator, whose `equations_` is this equation, and warns of its notes.
        Raises ValueError where the law has no finite values, and for negative columns whose
        exponents are no whole numbers.
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
        new, than = first_of_equal(X, targets, group), "different rows than the law has terms"
        for o, equation in enumerate(equations):
            if labels is not None and group is not None:
                check_sizes("refit", labels, group[new], equation.terms, than)
            data = X, targets[:, o], weights[:, o], origin, group, labels
            rows = rows_of(equation, *data, noise, digits_of(y))
            rows, equation = refitted(equation, rows, loss)
            notes = rows.notes + notes_of(rows, equation)
            tables.append(EquationTable(Laws([equation], 0, [], equation.noise, True, notes)))
        other = copy.copy(self)
        other._seen, other._group_column = Seen.of(X, targets), column
        other._left_out = [np.zeros(0, dtype=int) for _ in tables]
        other._set(tables)
        return other

    def plot(self, X: Any = None, y: Any = None, output: int = 0, groups: Any = None) -> Any:
        """A matplotlib figure: error over number of terms.

        With X and y it also shows observed over predicted values, and residuals.

        X, y, groups: data to draw, with the columns of `fit`. output: which of several outputs.
        """
        table = self._tables()[check_output(self._tables(), output)]
        if (X is None) != (y is None):
            raise ValueError("plot: X and y must be given together, got one of them")
        equation, prediction = table[table.best], None
        if X is not None:
            X, targets, _, _, groups = self._read("plot", X, y, None, groups)
            y = targets[:, output]
            group = indices("plot", equation.labels, groups, len(X))
            prediction = equation._predicted(X, group)
        return draw(table, equation, prediction, y)

    def report(self, level: float = 0.95) -> str:
        """The best equation, its parameters with intervals, and how far to trust it, in words.

        level: of the intervals.
        """
        level = check_level("report", level)
        return "\n\n".join(report(table, level) for table in self._tables())
