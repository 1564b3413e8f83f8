"""`NPURegressor`, the scikit-learn estimator."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from npu_kernels._common.notices import warn
from npu_kernels._jobs.checkpoint import Checkpoint
from npu_kernels._jobs.driver import terminable
from npu_kernels.equations._products.digits import digits_of
from npu_kernels.equations._products.groups import constant, read_labels
from npu_kernels.equations._table.arguments import (
    as_array,
    check_groups,
    check_parameters,
    check_sizes,
    column_names,
    columns_of,
    exponents_of,
    known_errors,
    limits_of,
    outputs_of,
    part_of,
    scaled_columns,
    seed_of,
    settings_of,
    units_of,
    work_of,
)
from npu_kernels.equations._table.estimates import Rows
from npu_kernels.equations._table.kept_results import Steps, Work
from npu_kernels.equations._table.output import FEW_ROWS, Laws, first_of_equal, ordered
from npu_kernels.equations._table.results import EquationWarning, Results
from npu_kernels.equations._table.rows import Seen
from npu_kernels.equations._table.search import POWERS, Settings
from npu_kernels.equations._table.table import EquationTable, shown
from npu_kernels.equations._table.wild import laws

Array = Any

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
    """Law behind a table, a sum of products of powers or a ratio, as a scikit-learn estimator.

    It finds ``y**p = sum_k c_k prod_i x_i**w_ki``: sums of products of powers, and their powers,
    and ratios of two such sums; with `functions` and `output_functions` also laws with sines,
    logarithms and exponentials. Units do not matter: inputs are divided by their geometric mean and
    y by its root mean square, and both are folded back into the constants. The constants are solved
    exactly within the search (variable projection), the exponents by Levenberg-Marquardt from many
    starts at once, in float64. Exponents become simple fractions where the criterion falls; it also
    chooses the number of terms. The criterion is the Bayesian information criterion of the squared
    leave-one-out errors, plus the length of a description of the exponents.

    Args:
        max_terms: the greatest number of terms, of a ratio in each of its sums. None is for tables
            without a law: up to ten products of one or two inputs with simple exponents, added one
            by one, as many as have the least error in rows that are held out in turn.
        output_powers: the powers p of y to try. "auto": 1, -1, 2, -2, 1/2, -1/2. Those other than 1
            are tried if no sum with p = 1 is exact, or simple and not improved by a further term;
            those other than 1 and -1 if y has one sign but for its errors.
        exponents: "fractions" (free where no fraction fits), "integers" or "real"; or the bounds of
            fractions ``(low, high)``, each a number or one for each column: no ratios are tried.
        max_denominator: of the fractions, at most 64.
        units: of the columns of X, ``["kg", "m", "s**-1"]``, or a dict by column names; needs pint.
            A number without a unit has "" or "-". With y_units, every term has y's dimension and
            the constants have none. A constant with a dimension must be a column.
        y_units: of y; a list for several outputs.
        starts: of the search, for each number of terms.
        loss: "squared", or "huber" or "soft_l1", which are less sensitive to outliers. "auto":
            "squared" without the rows, at most a fifth, that are far from the law of all others:
            wild values of y, and values of X that stand for missing ones. They are named, as with
            "squared", which keeps them. With max_terms=None it is "squared", and no rows are looked
            for.
        noise: the errors of y. "constant": equal for all rows, of unknown size. "relative": in
            proportion to y. "factor": y is the law times a factor whose logarithm is normal; y
            has one sign then, and predictions are medians. None: whichever of the three is
            likelier. A number, or one for each row ``[N]`` or row and output ``[N, O]``: their
            known standard deviations. With max_terms=None, None means "constant".
        random_state: an integer for the same numbers each time.
        n_jobs: processes for several outputs and for the bootstrap, as in joblib.
        verbose: 1 prints each step to stderr. The logger "npu_kernels.equations" gets it in any
            case, at level INFO.
        functions: of single inputs, as further inputs: names out of "sin", "cos", "log" and "exp"
            for all columns, or a dict with such names by column, ``{"angle": ["sin", "cos"]}``.
            With units, for all columns without a dimension; degrees become radians. Powers of
            "exp" are all exponentials of its column.
        output_functions: functions f of y to try, for laws ``f(y) = sum``: names out of "log",
            "exp", "sin", "cos", "tan", "logit", "log(1+1/y)" and, for y itself, "identity"; "auto":
            all whose domain y is in. None: y itself. `predict` gives y, whose errors count. Errors
            may bring a few y out of the domain.
        ratios: whether ratios of two sums are tried. "auto": where no sum seems a law, as its
            exponents are no simple numbers, it has `max_terms` terms, or its residuals are no
            noise. Their output powers are those of 1, 2 and 1/2 that are tried. A ratio is taken if
            its criterion is the lowest.
        known: a part of the law, as text: an expression of columns and numbers, such as
            ``"v*t - 9.81*t**2/2"``, with sin, cos, tan, exp, log and sqrt. ``y**p`` is this part
            and the sum or ratio that is found; p is 1 unless `output_powers` says otherwise.
        terms: products that the sum has, as text or as the exponents of all columns:
            ``["x0*x1**2", "1"]``; a search adds others, none with exponents within 0.1 of theirs. A
            dict has bounds of the coefficients, ``{"x0": (0, 5), "x1": (None, 0), "x2": None}``,
            and 0 for a term that the law has not: ``{"1": 0}``. p is then 1 as with `known`, and no
            ratios are tried.
        signs: "positive" for coefficients that are not below 0, but for those in `terms`.
        integer_exponents: True for whole exponents only, or the names of columns that have those.

    Attributes after `fit`: `equations_`, the candidates by number of terms, an `EquationTable` of
    `Equation`; `best_`, the chosen `Equation`; `coef_` and `exponents_` of it with `coef_std_` and
    `exponents_std_`, their standard errors; `n_features_in_`, `feature_names_in_`. With several
    outputs each of the first is a list with one entry per output.

    What it does not find: functions of several inputs, such as the sine of a product, products of
    sums, and fractional powers of inputs that are negative somewhere. Those inputs have whole
    exponents.

        >>> import numpy as np
        >>> from npu_kernels import NPURegressor
        >>> X = np.random.default_rng(0).uniform(0.5, 3, (100, 3))
        >>> model = NPURegressor(random_state=0).fit(X, 70 * X[:, 0] * X[:, 1] / X[:, 2] ** 2)
        >>> print(model.best_)
        y = 70*x0*x1/x2**2
    """

    def __init__(
        self,
        max_terms: int | None = 4,
        output_powers: Any = "auto",
        exponents: Any = "fractions",
        max_denominator: int = 4,
        units: Any = None,
        y_units: Any = None,
        starts: int = 64,
        loss: str = "auto",
        noise: Any = None,
        random_state: Any = None,
        n_jobs: int | None = None,
        verbose: int = 0,
        functions: Any = None,
        output_functions: Any = None,
        ratios: Any = "auto",
        known: Any = None,
        terms: Any = None,
        signs: str = "any",
        integer_exponents: Any = False,
    ) -> None:
        if MISSING:
            raise ImportError(INSTALL)
        self.max_terms = max_terms
        self.output_powers = output_powers
        self.exponents = exponents
        self.max_denominator = max_denominator
        self.units = units
        self.y_units = y_units
        self.starts = starts
        self.loss = loss
        self.noise = noise
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.verbose = verbose
        self.functions = functions
        self.output_functions = output_functions
        self.ratios = ratios
        self.known = known
        self.terms = terms
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
            y: ``[N]``, or ``[N, O]`` for several outputs.
            sample_weight: ``[N]``. Integers, by their dtype, say how often a row counts: 2 is the
                row twice. Other numbers say how precise a row is: they are in proportion to
                1 / variance of its error, and the variance is ``noise**2 / sample_weight`` where
                `noise` is a number. A row with weight 0 does not count.
            checkpoint: a file. If it exists, the fit continues from it, with the same bits as
                without an interruption; without a random_state it has the seed of the fit before.
                Several outputs are then searched one after another. It is written in the first
                seconds, every half a minute, at the end, and before SIGTERM ends the process, and
                is for the same versions of npu_kernels, torch and numpy.
            groups: a label for each row ``[N]``, or the name of a column of X that has them. Each
                group has coefficients of its own, the exponents are those of all. No ratios are
                tried, and each group needs more different rows than `max_terms`. `predict` then
                needs the labels too, unless they are in that column.

        Ctrl-C ends the search with the best equation until then, and outputs behind it get what a
        short search for the fewest terms gives. It raises KeyboardInterrupt before a first
        equation, in the last fit to all rows, and where outputs are searched in processes.

        Raises ValueError for data and parameters that cannot be used and for a checkpoint that is
        damaged or of another fit, OSError for one that cannot be written; warns with
        `EquationWarning` of constant columns, of few rows, and of the notes in `equations_`.
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
        input_units = units_of(self.units, names)
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
            of_y = outputs_of(self.output_functions, y_of_task, origin, name, unit)
            notes = scaled_columns(X, y_of_task, names, name)
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
        tables = [EquationTable(law) for law in results]
        self._single, self._seen, self._group_column = single, Seen.of(X, targets), column
        self._left_out = [np.flatnonzero(np.isin(origin, table.wild)) for table in tables]
        self._set(tables)
        return self

    def _powers(self) -> tuple[float, ...] | None:
        powers = self.output_powers
        if not isinstance(powers, str):
            return tuple(map(float, powers))
        return None if self.terms is None and self.known is None else (1.0,)

    def _resumed(
        self, outputs: list[Rows], settings: Settings, record: Work, path: Any
    ) -> list[Laws]:
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

    def _searched(self, outputs: list[Rows], settings: Settings) -> list[Laws]:
        """The laws of the outputs, in processes if `n_jobs` says so."""
        if len(outputs) == 1 or self.n_jobs in (None, 1):
            return self._one_by_one(outputs, settings, lambda o: Steps())
        from joblib import Parallel, delayed

        powers = self._powers()
        calls = (delayed(limited)(rows, settings, powers) for rows in outputs)
        results: list[Laws] = Parallel(n_jobs=self.n_jobs)(calls)
        return results

    def _one_by_one(
        self, outputs: list[Rows], settings: Settings, steps: Callable[[int], Steps]
    ) -> list[Laws]:
        """The laws of the outputs, those after Ctrl-C from a short search.

        steps: of an output by its index; those of a short search belong to no fit.
        """
        results, powers = list[Laws](), self._powers()
        for o, rows in enumerate(outputs):
            if not results or results[-1].complete:
                results.append(limited(rows, replace(settings, steps=steps(o)), powers))
                continue
            fewest = 1 if rows.limits is None else max(1, len(rows.limits.terms))
            short = replace(
                settings, max_terms=fewest, starts=SHORT_STARTS, leave_out=None, ratios=False
            )
            results.append(replace(limited(rows, short, powers), complete=False))
        return results

    def _warn(
        self, X: Array, names: tuple[str, ...], constants_matter: bool, group: Array | None
    ) -> None:
        unused = [names[i] for i in np.flatnonzero(constant(X, group))]
        if unused and not constants_matter and len(X) > 1:
            where = "constant columns" + " (in each group)" * (group is not None)
            text = f"NPURegressor: {where} tell nothing and are left out"
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
        """What scikit-learn's estimators show in a notebook: here the law, once there is one."""
        if not hasattr(self, "equations_"):
            return super()._html_repr()  # type: ignore[no-any-return]
        return "".join(map(shown, self._tables()))


def limited(rows: Rows, settings: Settings, powers: tuple[float, ...] | None) -> Laws:
    """Call `laws` in one thread.

    The matrices are small: threads that wait for each other would cost many times the work.
    """
    with _threads().limit(limits=1):
        return laws(rows, settings, powers)


@functools.cache
def _threads() -> Any:
    """Looking for the libraries that have threads takes longer than fitting a few rows."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()
