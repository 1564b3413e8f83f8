"""Checks of the estimator's parameters, and what they mean for the search."""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import torch

from npu_kernels._common.checks import (
    as_number,
    check_choice,
    check_index,
    check_whole,
    is_number,
    is_whole,
    refuse_dates,
)
from npu_kernels._jobs.checkpoint import digest
from npu_kernels.equations._expression import (
    CONVERT,
    SIZE,
    Expression,
    equal_dimensions,
)
from npu_kernels.equations._functions import (
    Functions,
    OutputFunction,
    check_functions,
    check_output_functions,
    functions_of,
    output_functions_of,
)
from npu_kernels.equations._limits import (
    BOUND,
    Limits,
    check_whole_within,
    read_bounds,
    read_terms,
    read_whole,
)
from npu_kernels.equations._numbers import MAX_DENOMINATOR, term_text
from npu_kernels.equations._problem import MAX_NOISE
from npu_kernels.equations._rows import (
    MAX_ROWS_OF_PRODUCTS,
    constant,
    have_two_values,
    products_of_columns,
    spread,
)
from npu_kernels.equations._table.refine import Rules
from npu_kernels.equations._table.search import Settings, Work
from npu_kernels.equations._table.stepwise import MAX_TERMS
from npu_kernels.equations._units import (
    Exponents,
    constrain,
    factor,
    with_sizes,
)

Array = Any

LOGGER = logging.getLogger("npu_kernels.equations")
EQUAL_COLUMNS = 1e-12  # relative difference of columns that are the same
EQUAL_PRODUCTS = 1e-9  # the same of products of columns
MAX_COMPARED = 20  # rows that tell which columns may be the same
SCALED = 1e-6  # deviation of a mean from 0, of a variance from 1, that a scaler's rounding leaves
EXPONENTS = "rational", "integer", "real"
CHOICES = {
    "signs": ("any", "nonnegative"),
    "loss": ("auto", "squared", "huber", "soft_l1"),
}


def check_jobs(function: str, value: Any) -> None:
    """ValueError for a number of processes that joblib does not accept."""
    if value is not None and (not is_whole(value) or value == 0):
        raise ValueError(
            f"{function}: n_jobs must be None, or an integer other than 0, got {value!r}"
        )


def check_parameters(model: Any) -> None:
    """ValueError for a parameter that cannot be."""
    check_jobs("NPURegressor", model.n_jobs)
    if not isinstance(model.verbose, (bool, np.bool_)):
        check_whole("NPURegressor", "verbose", model.verbose, 0, other="True, False")
    for name in ["n_init"] + ["max_terms"] * (model.max_terms is not None):
        check_whole("NPURegressor", name, getattr(model, name))
    largest = MAX_DENOMINATOR
    check_whole("NPURegressor", "max_denominator", model.max_denominator, maximum=largest)
    for name, choices in CHOICES.items():
        check_choice("NPURegressor", name, getattr(model, name), choices)
    exponents = model.exponents
    if exponents is None or (isinstance(exponents, str) and exponents not in EXPONENTS):
        raise ValueError(
            f"NPURegressor: exponents must be one of {', '.join(EXPONENTS)}, or their bounds "
            f"(low, high), got {exponents!r}"
        )
    check_functions(model.functions)
    check_output_functions(model.target_transforms)
    noise, powers, ratios = model.noise, model.target_powers, model.ratios
    if ratios != "auto" and not isinstance(ratios, (bool, np.bool_)):
        rule = "ratios must be True, False or 'auto'"
        raise ValueError(f"NPURegressor: {rule}, got {ratios!r}")
    is_kind = isinstance(noise, str) and noise in ("additive", "proportional", "multiplicative")
    if not (noise is None or is_kind or _are_errors(noise)):
        raise ValueError(
            "NPURegressor: noise must be None, 'additive', 'proportional', 'multiplicative' "
            "or numbers greater than 0, one or an array for the rows, got "
            f"{_wrong_error(noise)}"
        )
    is_list = isinstance(powers, (Sequence, np.ndarray)) and not isinstance(powers, str)
    numbers = is_list and all(math.isfinite(as_number(p)) and p != 0 for p in powers)
    if not ((numbers and len(powers)) or (isinstance(powers, str) and powers == "auto")):
        raise ValueError(
            "NPURegressor: target_powers must be 'auto' or a list of numbers other than 0, got "
            f"{powers!r}"
        )
    _check_together(model)


def _are_errors(noise: Any) -> bool:
    """Whether it is a standard deviation, or an array of some of like sizes."""
    try:
        sigma = np.asarray(as_array(noise), dtype=np.float64)
    except (TypeError, ValueError):
        return False
    if not sigma.ndim:
        return 0 < as_number(noise) < math.inf
    sizes = sigma.min(initial=math.inf), sigma.max(initial=0.0)
    return bool(0 < sizes[0] <= sizes[1] < math.inf and sizes[1] / sizes[0] < MAX_NOISE)


def _wrong_error(noise: Any) -> str:
    """What is wrong with errors: the first row that has none, or what they are."""
    try:
        sigma = np.asarray(as_array(noise), dtype=np.float64)
    except (TypeError, ValueError):
        return repr(noise)
    wrong = ~((sigma > 0) & (sigma < math.inf))
    if not sigma.ndim or not wrong.any():
        return repr(noise) if sigma.size < 2 else f"{sigma.min():g} to {sigma.max():g}"
    row = int(np.argwhere(wrong)[0, 0])
    return f"{sigma[wrong][0]:g} in row {row} (the first row is 0)"


def _check_together(model: Any) -> None:
    """ValueError for parameters that another one leaves without a use."""
    stepwise, some = model.max_terms is None, model.target_transforms
    is_sum = "max_terms=None" * stepwise or "required_terms" * (model.required_terms is not None)
    is_sum = is_sum or "bounds of exponents" * (not isinstance(model.exponents, str))
    if stepwise and model.loss not in ("auto", "squared"):
        rule = "loss must be 'auto' or 'squared' with max_terms=None"
        raise ValueError(f"NPURegressor: {rule}, got {model.loss!r}")
    if is_sum and model.ratios != "auto" and model.ratios:
        rule = f"ratios must be False or 'auto' with {is_sum}, which are for sums"
        raise ValueError(f"NPURegressor: {rule}, got {model.ratios!r}")
    if stepwise and (some == "auto" or (not isinstance(some, str) and len(some or ()) > 1)):
        rule = "target_transforms must be None or one name with max_terms=None"
        raise ValueError(f"NPURegressor: {rule}, got {some!r}")
    if stepwise and not isinstance(model.target_powers, str) and len(model.target_powers) > 1:
        rule = "target_powers must be 'auto' or one number with max_terms=None"
        raise ValueError(f"NPURegressor: {rule}, got {model.target_powers!r}")


def check_groups(model: Any) -> None:
    """ValueError for a parameter that groups exclude."""
    if model.max_terms is None:
        rule = "max_terms must be a number with groups"
        raise ValueError(f"NPURegressor: {rule}, got None")
    if model.ratios is True:
        rule = "ratios must be 'auto' or False with groups, whose equations are sums"
        raise ValueError(f"NPURegressor: {rule}, got True")


def check_sizes(
    function: str, labels: tuple[Any, ...], group: Array, terms: int, than: str
) -> None:
    """ValueError for a group that has no more rows than terms.

    group: the labels' indices for the rows. than: which rows they are, and what has so many terms.
    """
    sizes = np.bincount(group, minlength=len(labels))
    if sizes.min() <= terms:
        g = int(sizes.argmin())
        rule = f"each of groups must have more {than}, {terms}"
        raise ValueError(f"{function}: {rule}, got {sizes[g]} in group {labels[g]!r}")


def settings_of(model: Any, seed: int, groups: bool = False) -> Settings:
    """The search's settings. groups: whether groups have coefficients of their own."""

    def show(text: str) -> None:
        LOGGER.info("%s", text)
        if model.verbose:
            print(f"NPURegressor: {text}", file=sys.stderr)

    loss = "squared" if model.loss == "auto" else model.loss
    kind = model.exponents if isinstance(model.exponents, str) else "rational"
    rules = Rules(kind, int(model.max_denominator), loss)
    is_sum = groups or model.required_terms is not None or not isinstance(model.exponents, str)
    return Settings(
        int(model.max_terms or 0), rules, int(model.n_init), seed, model.loss == "auto", show,
        ratios=False if is_sum else model.ratios,
    )  # fmt: skip


def seed_of(random_state: Any) -> int:
    """Return the seed of a search; random_state: as in scikit-learn."""
    from sklearn.utils import check_random_state

    try:
        return int(check_random_state(random_state).randint(2**31 - 1))
    except ValueError:
        integer = "an integer from 0 to 2**32 - 1, such as rng.integers(2**32) of a Generator"
        rule = f"random_state must be None, {integer}, or a RandomState"
        raise ValueError(f"NPURegressor: {rule}, got {random_state!r}") from None


def check_output(tables: Sequence[Any], output: Any) -> int:
    """Return the number of an output; ValueError if there is none of this number."""
    if not is_whole(output) or not -len(tables) <= output < len(tables):
        rule = f"output must be the number of one of the {len(tables)} outputs"
        raise ValueError(f"plot: {rule}, the first is 0, got {output!r}")
    return output


def part_of(model: Any, names: tuple[str, ...], X: Array, origin: Array) -> Expression | None:
    """Return the part of the equation that `known` gives, checked for the rows X.

    origin: the rows' numbers.
    """
    if model.known_part is None:
        return None
    if not isinstance(model.known_part, str):
        raise TypeError(
            f"NPURegressor: known_part must be an expression as text, got {model.known_part!r}"
        )
    part = Expression(model.known_part.strip(), names, "NPURegressor: known_part")
    values = part.values(X)
    wrong = ~np.isfinite(values)
    if wrong.any():
        row = int(origin[wrong].min())
        raise ValueError(
            f"NPURegressor: known_part must have finite values, got another one for "
            f"{model.known_part!r} in row {row} (the first row is 0)"
        )
    return part


def limits_of(model: Any, functions: Functions) -> Limits | None:
    """Return what the parameters say of terms, coefficients and exponents; None for nothing."""
    bounds = None if isinstance(model.exponents, str) else model.exponents
    integers, positive = model.integer_exponents, model.signs == "nonnegative"
    if bounds is None and integers is False and not positive and model.required_terms is None:
        return None
    inputs, columns = functions.inputs, functions.columns
    pair = (-math.inf, math.inf) if bounds is None else bounds
    low, high = read_bounds("NPURegressor", pair, len(inputs), "columns")
    beside = np.full(len(columns), math.inf)
    low, high = np.append(low, -beside), np.append(high, beside)
    integer = read_whole("NPURegressor", integers, functions.names, "columns")
    numbered = enumerate(columns, len(inputs))
    of_columns = [(c.function, c.index, i, c.factor) for i, c in numbered]
    terms = read_terms("NPURegressor", model.required_terms, inputs, of_columns)
    limits = Limits(low, high, integer, positive, *terms)
    largest = MAX_TERMS if model.max_terms is None else model.max_terms
    if len(terms[0]) > largest:
        rule = f"required_terms must be at most the {largest} of max_terms"
        raise ValueError(f"NPURegressor: {rule}, got {len(terms[0])}")
    low, high = limits.exponent_bounds(BOUND)
    integers_only = integer | (bounds is None and model.exponents == "integer")
    if ((terms[0] < low) | (terms[0] > high) | (integers_only & (terms[0] % 1 != 0))).any():
        rule = (
            "required_terms must be within the bounds of exponents, and integers with "
            "integer_exponents or exponents='integer'"
        )
        raise ValueError(f"NPURegressor: {rule}, got {model.required_terms!r}")
    return limits


def work_of(
    model: Any, seed: int, names: tuple[str, ...], labels: tuple[Any, ...] | None, *data: Array
) -> Work:
    """The work of a fit to these data. labels: of groups."""
    options = {
        k: repr(v)
        for k, v in model.get_params().items()
        if k not in ("random_state", "n_jobs", "verbose")
    }
    data_digest = digest(*(torch.from_numpy(np.ascontiguousarray(part)) for part in data))
    determined = {"data": data_digest, "names": repr(names), **options}
    if labels is not None:
        determined["groups"] = repr(labels)
    return Work(seed, model.random_state is None, determined)


def as_array(table: Any) -> Any:
    """Return a tensor's numbers as an array of float64; any other table as it is."""
    if isinstance(table, torch.Tensor) and not table.is_complex():
        return table.detach().cpu().double().numpy()
    return table


def are_counts(sample_weight: Any) -> bool:
    """Return whether weights are integers by their dtype: how often each row counts."""
    if isinstance(sample_weight, torch.Tensor):
        return not sample_weight.is_floating_point()
    values = np.asarray(sample_weight)
    return (values if values.dtype != object else np.array(values.tolist())).dtype.kind in "biu"


def known_errors(
    function: str, noise: Any, weight: Array, outputs: int
) -> tuple[float | str | None, Array]:
    """Return the kind of errors, or those of a row of weight 1, and the weights ``[N, outputs]``.

    noise: as in `NPURegressor`. weight: of the rows ``[N]``.
    """
    weights = np.repeat(weight[:, None], outputs, axis=1)
    if noise is None or isinstance(noise, str) or is_number(noise):
        return noise, weights
    sigma = np.asarray(as_array(noise), dtype=np.float64)
    if sigma.shape not in ((len(weight),), weights.shape):
        rule = f"noise must have a number for each row, [{len(weight)}]"
        rule += f" or one for each output, [{len(weight)}, {outputs}]" * (outputs > 1)
        remedy = "sample_weight=1 / noise**2 with noise=1 is cut with the rows in cross-validation"
        raise ValueError(f"{function}: {rule}, got shape {list(sigma.shape)}; {remedy}")
    smallest = float(sigma.min())
    return smallest, weights * (smallest / sigma.reshape(len(weight), -1)) ** 2


def check_rows(function: str, **arguments: Any) -> None:
    """Raise an error for dates, masked entries, and rows whose labels are not those of X.

    TypeError for dates, which may be labels of groups, ValueError for the others.
    """
    for name, value in arguments.items():
        if name != "groups" and not isinstance(value, torch.Tensor):
            refuse_dates(function, name, value)
        if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
            rule, count = (
                f"{name} must have no masked entries",
                int(np.ma.getmaskarray(value).sum()),
            )
            remedy = f"leave their rows out of all arguments, {name}[~numpy.ma.getmaskarray({name})"
            remedy += ".any(1)]" if np.ndim(value) > 1 else "]"
            raise ValueError(f"{function}: {rule}, got {count}; {remedy}")
    check_index(function, **arguments)


def check_numeric(function: str, argument: str, value: Any) -> None:
    """Raise an error that names what is no number in an argument; other faults are left to others.

    ValueError for text and complex numbers, TypeError for objects.
    """
    dtype = getattr(value, "dtype", None)
    if getattr(dtype, "kind", "") == "c" or getattr(dtype, "is_complex", False):
        said = f"{argument} must be real (Complex data not supported), got {dtype}"
        raise ValueError(f"{function}: {said}")
    try:
        np.asarray(as_array(value), dtype=np.float64)
    except (TypeError, ValueError):
        if value is None or getattr(value, "ndim", 1) == 0 or hasattr(value, "tocsr"):
            return
        for entry in np.asarray(value, dtype=object).ravel().tolist():
            try:
                float(entry)
            except ValueError:
                raise ValueError(f"{function}: {argument} must be numbers, got {entry!r}") from None
            except TypeError as error:
                said = f"{argument} must be numbers, got {entry!r}: {error}"
                raise TypeError(f"{function}: {said}") from None


def column_names(table: Any) -> list[str] | None:
    """Names of the columns of a Series or a DataFrame, y."""
    if hasattr(table, "columns"):
        return _different("y", table.columns)
    name = getattr(table, "name", None)
    return [str(name)] if isinstance(name, str) and hasattr(table, "to_numpy") else None


def names_beside(columns: Sequence[str], outputs: Sequence[str]) -> list[str]:
    """Return names of outputs that no column has: pandas keeps that of ``table.area * 2``."""
    taken, names = set(columns), list[str]()
    for name in outputs:
        while name in taken:
            name += "_"
        taken.add(name)
        names.append(name)
    return names


def check_columns(table: Any) -> None:
    """ValueError that names the columns of a DataFrame without finite numbers, or equal names."""
    _different("X", getattr(table, "columns", ()))
    text, infinite = list[str](), list[str]()
    for name in getattr(table, "columns", ()):
        column = np.asarray(table[name])
        try:
            if column.dtype.kind in "mM":
                raise TypeError("dates are not numbers")
            finite = np.isfinite(column.astype(np.float64)).all()
        except (TypeError, ValueError):
            text.append(str(name))
        else:
            infinite += [] if finite else [str(name)]
    if text:
        raise ValueError(f"NPURegressor: columns of X must be numbers, got {', '.join(text)}")
    if infinite:
        missing = f"got missing or infinite values in {', '.join(infinite)}"
        raise ValueError(f"NPURegressor: columns of X must be finite numbers, {missing}")


def _different(argument: str, columns: Any) -> list[str]:
    """Return the names of a DataFrame's columns; ValueError for equal and empty ones."""
    names = [str(name) for name in columns]
    if len(set(names)) < len(names) or not all(map(str.strip, names)):
        rule = f"columns of {argument} must have different names that are not empty"
        raise ValueError(f"NPURegressor: {rule}, got {names}")
    return names


def scaled_columns(X: Array, y: Array, names: tuple[str, ...], output: str) -> tuple[str, ...]:
    """Return a note that names the columns that have mean 0 and standard deviation 1, if any."""
    scaled = list[str]()
    for name, column in zip([*names, output], [*X.T, y], strict=True):
        if np.abs(column).max() > math.sqrt(len(column)) + 1:  # no other sizes, whose squares
            continue  # may be no numbers
        if have_two_values(column[:, None])[0]:  # levels of a design
            continue
        mean, variance, rows = float(column.mean()), float(column.var()), len(column)
        deviation = min(abs(variance - 1), abs(variance * rows / (rows - 1) - 1))
        scaled += [name] if abs(mean) < SCALED and deviation < SCALED else []
    if not scaled:
        return ()
    return (
        f"{', '.join(scaled)}: mean 0 and standard deviation 1, as StandardScaler makes them. "
        "An equation of the measured numbers is not an equation of the scaled numbers: leave the "
        "scaler out. Sizes do not matter here.",
    )


def copies(X: Array) -> dict[int, tuple[int, float]]:
    """Return the columns that are others times a number: by index that of the first, the number."""
    first, found = dict[Any, list[int]](), dict[int, tuple[int, float]]()
    largest = np.abs(X).argmax(0) if len(X) else np.zeros(0, dtype=int)
    some = spread(len(X), MAX_COMPARED)
    for i, row in enumerate(largest.tolist()):
        size = X[row, i]
        if size == 0 or (X[:, i] == size).all():
            continue
        with np.errstate(under="ignore"):
            key = (row, *(X[some, i] / size).round(9).tolist())
        for j in first.setdefault(key, []):
            factor = size / X[row, j]
            if np.allclose(X[:, i], factor * X[:, j], rtol=EQUAL_COLUMNS, atol=0):
                found[i] = j, float(factor)
                break
        else:
            first[key].append(i)
    return found


def copied_columns(X: Array, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return a note for each column that is another one times a number."""
    return tuple(
        f"{names[i]} is {'' if factor == 1 else f'{factor:.6g}*'}{names[j]} in all rows: the "
        "two are not distinguishable, and the equation may have either of them."
        for i, (j, factor) in copies(X).items()
    )


def product_columns(X: Array, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return a note for each column that is a product of powers of others, times a number."""
    usable = (X != 0).all(0)
    usable[list(copies(X))] = False
    some = spread(len(X), MAX_ROWS_OF_PRODUCTS)
    logs = np.log(np.abs(np.where(usable, X[some], 1.0)))
    notes = list[str]()
    for direction in products_of_columns(logs):
        i = int(np.flatnonzero(direction)[-1])
        powers = np.where(np.arange(len(names)) == i, 0.0, direction)
        with np.errstate(over="ignore", under="ignore"):
            ratio = np.abs(X[:, i]) / np.exp(np.log(np.abs(np.where(usable, X, 1.0))) @ powers)
        if not np.allclose(ratio, ratio[0], rtol=EQUAL_PRODUCTS, atol=0):
            continue
        factor = 1.0 if abs(ratio[0] - 1) < EQUAL_PRODUCTS else float(ratio[0])
        notes.append(
            f"{names[i]} is {term_text(factor, powers, names, 6)} in all rows: the two are not "
            "distinguishable, and the equation may have either of them."
        )
    return tuple(notes)


def units_of(units: Any, names: tuple[str, ...]) -> list[str] | None:
    """One unit for each column, or None."""
    if units is None:
        return None
    if isinstance(units, Mapping):
        missing = [name for name in names if name not in units]
        if missing:
            raise ValueError(
                f"NPURegressor: X_units must name every column, got none for {', '.join(missing)}"
            )
        return [units[name] for name in names]
    if isinstance(units, str) or len(units) != len(names):
        raise ValueError(
            f"NPURegressor: X_units must have {len(names)} entries (columns of X), got {units!r}"
        )
    return list(units)


def columns_of(
    functions: Any, X: Array, origin: Array, names: tuple[str, ...], units: list[str] | None
) -> Functions:
    """Return the columns that `functions` adds to those of X. origin: the rows' numbers."""
    factors = [
        1.0 if units is None or functions is None else factor(name, units[i], "X_units")
        for i, name in enumerate(names)
    ]
    return functions_of(functions, X, origin, names, factors)


def outputs_of(
    functions: Any, y: Array, origin: Array, output: str, unit: str | None
) -> tuple[OutputFunction | None, ...]:
    """Return the functions of y to try. origin: the rows' numbers."""
    of_y = 1.0 if unit is None or functions is None else factor(output, unit, "y_units")
    return output_functions_of(functions, y, origin, output, of_y)


def exponents_of(
    X: Array, columns: Functions, units: list[str] | None, output: str, y_units: str | None,
    limits: Limits | None, powers: tuple[float, ...], part: Expression | None,
    group: Array | None,
) -> Exponents:  # fmt: skip
    """Return the exponents that units allow, of columns X.

    Exponents of columns that are constant, or constant in each group, follow from the others, or
    are 0. Without units and limits, those of `copies` are 0. limits, powers, part: of the equation.
    """
    names = columns.names
    units = None if units is None else [*units, *[""] * len(columns.columns)]
    if (units is None) != (y_units is None):
        supplied, absent = ("X_units", "y_units") if y_units is None else ("y_units", "X_units")
        raise ValueError(f"NPURegressor: {absent} must be given with {supplied}, got None")
    varies = ~constant(X, group)
    if units is None and limits is None:  # one column stands for all that it tells the same as
        varies[list(copies(X))] = False
    varying = np.flatnonzero(varies)
    if units is None or y_units is None:
        n = X.shape[1]
        exponents = Exponents(np.zeros(n), np.eye(n)[:, varying], varying)
    else:
        bounded = np.zeros(len(names), bool) if limits is None else limits.bounded
        order = np.lexsort(((X == 0).any(0), (X < 0).any(0), varies, bounded))
        allowed = constrain(names, units, output, y_units, [int(i) for i in order])
        if part is not None:
            _check_part(part, units, output, y_units, powers)
        keep = np.isin(allowed.free, varying)
        exponents = Exponents(allowed.offset, allowed.matrix[:, keep], allowed.free[keep])
    if limits is not None:
        bounds = limits.low, limits.high
        for whole, reason in (
            (limits.integer, "integer_exponents has the column"),
            ((X < 0).any(0), "the column is negative in some rows"),
        ):
            check_whole_within("NPURegressor", names, *bounds, whole, reason)
        for i in np.flatnonzero(varies & (X == 0).any(0) & (limits.high < 0)).tolist():
            rule = "exponents must have bounds with a number of at least 0 where the column is 0"
            actual = f"({limits.low[i]:g}, {limits.high[i]:g}) for {names[i]}"
            raise ValueError(f"NPURegressor: {rule} in some rows, got {actual}")
        _check_terms(limits.terms, X, names)
        _check_limits(limits, exponents, names, powers)
    return exponents


def _check_part(
    part: Expression, units: list[str], output: str, y_units: str, powers: tuple[float, ...]
) -> None:
    """ValueError for a known part of the equation that has not the dimension of y to a power."""
    dimension = part.dimension(with_sizes(part.names, units[: len(part.names)], "X_units"))
    (of_y,) = with_sizes([output], [y_units], "y_units")
    of_powers = [{base: Fraction(p) * power for base, power in of_y.items()} for p in powers]
    if dimension is None or any(equal_dimensions(dimension, of_power) for of_power in of_powers):
        return
    needed = of_powers[0]
    times = math.exp(dimension.get(SIZE, 0) - needed.get(SIZE, 0))
    has, needs = (
        " ".join(f"{base}**{power}" for base, power in sorted(powers_of.items()) if base != SIZE)
        for powers_of in (dimension, needed)
    )
    if has == needs:
        raise ValueError(
            f"NPURegressor: known_part must have the unit of {output}, {y_units!r}, got "
            f"{part.text!r}, whose unit is {times:.6g} of it. {CONVERT}"
        )
    raise ValueError(
        f"NPURegressor: known_part must have the dimension of {output}, {needs or 'none'}, got "
        f"{part.text!r} with the dimension {has or 'none'}"
    )


def _check_terms(terms: Array, X: Array, names: tuple[str, ...]) -> None:
    """ValueError for exponents of terms ``[F, n]`` with which some rows have no finite product."""
    for wrong, rule, some in (
        ((X < 0).any(0) & (terms % 1 != 0), "integer exponents", "negative"),
        ((X == 0).any(0) & (terms < 0), "no negative exponents", "0"),
    ):
        for k, i in np.argwhere(wrong).tolist():
            raise ValueError(
                f"NPURegressor: required_terms must have {rule} of columns that are {some} in "
                f"some rows, got {terms[k, i]:g} for {names[i]}"
            )


def _check_limits(
    limits: Limits, exponents: Exponents, names: tuple[str, ...], powers: tuple[float, ...]
) -> None:
    """ValueError for bounds of exponents that follow from others, and terms that cannot be."""
    follows = (exponents.matrix != 0).any(1) | (exponents.offset != 0)
    follows[exponents.free] = False
    if (follows & limits.bounded).any():
        columns = ", ".join(names[i] for i in np.flatnonzero(follows & limits.bounded))
        rule = "exponents must not have bounds if they follow from units"
        raise ValueError(f"NPURegressor: {rule}, got bounds for {columns}")
    if not any(limits.agree(exponents, power) for power in powers):
        rule = "required_terms must have the dimension of y, and no column that is constant"
        raise ValueError(f"NPURegressor: {rule}, got the exponents {limits.terms.tolist()}")
