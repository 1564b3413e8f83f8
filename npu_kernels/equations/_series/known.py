"""What is known about equations before the fit: bounds, signs, given terms, tied coefficients.

Coefficients are tied by a matrix: ``u' = N r``, where the rates r are the sums of products that the
fit looks for. Its columns are reactions, or flows from one state to another. Where sums of states
are conserved, the columns are all flows of as few states as possible that leave them as they are.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from npu_kernels.equations._series.data import NAME, Series, tensor
from npu_kernels.equations._series.sensitivity import Shape

TIED = 1e-6  # of the largest coefficient: the error of a model's coefficients as rates
ZERO_FLOW = 1e-9  # of a flow's largest part


@dataclass(frozen=True)
class Known:
    """Prior knowledge of equations, in the user's units."""

    low: Tensor  # [D], the bounds of exponents
    high: Tensor  # [D]
    integer: Tensor  # [D], the states whose exponents are integers
    terms: Tensor  # [n, D], exponents of products that the equations have
    columns: Tensor | None  # [D, R], the changes of the states in each reaction
    signs: str  # of coefficients or rates: "any", "nonnegative", or as the "model" has them
    inputs: int = 0  # the last states, which are known

    def shape(self, terms: int, data: Series) -> Shape:
        """Return the layout of a candidate of some terms for scaled series."""
        states = len(self.low)
        shape = Shape(terms, states, len(data.times), low=self.low, high=self.high)
        shape = replace(shape, integer=self.integer, fixed=len(self.terms), inputs=self.inputs)
        if self.columns is not None:
            scaled = self.columns / data.size.unsqueeze(1)
            sizes = 1 / scaled.abs().amax(0)
            shape = replace(shape, columns=scaled * sizes, rate_size=sizes)
        if self.signs == "nonnegative":
            shape = replace(shape, signs=torch.ones(shape.rates, terms, dtype=torch.float64))
        return shape

    def rates(self, coefficients: Tensor) -> Tensor:
        """Return the rates ``[K, R, h]`` of a model's coefficients ``[K, D, h]``."""
        if self.columns is None:
            self._check_signs("coefficient", coefficients)
            return coefficients
        rates = torch.linalg.pinv(self.columns) @ coefficients
        if self.signs == "nonnegative" and bool((rates < 0).any()):
            rates = _not_below_zero(self.columns, coefficients, rates)
        rates = torch.where(rates.abs() < ZERO_FLOW * rates.abs().amax(), 0.0, rates)
        off = (self.columns @ rates - coefficients).abs().max()
        if bool(off > TIED * coefficients.abs().max()):
            raise ValueError(
                f"{NAME}: model must have coefficients that follow from rates, with init='model' "
                "and stoichiometry or conserved: coefficients of a term are a sum of these columns"
            )
        self._check_signs("rate", rates)
        return rates

    def _check_signs(self, noun: str, numbers: Tensor) -> None:
        """Raise ValueError for a model's coefficients or rates that contradict the signs."""
        if self.signs == "nonnegative" and bool((numbers < 0).any()):
            raise ValueError(
                f"{NAME}: signs must be 'any' or 'model' for a model with a {noun} below 0, "
                f"got 'nonnegative' and {float(numbers.min()):.6g}"
            )


def _not_below_zero(columns: Tensor, coefficients: Tensor, rates: Tensor) -> Tensor:
    """Return rates that are not below 0 where they give the coefficients, else the given ones.

    Columns that depend on one another, as those of both directions of a flow, have many rates.
    """
    from scipy.optimize import nnls

    A, terms = columns.numpy(), coefficients.movedim(1, -1)  # [K, h, D]
    solved = [torch.from_numpy(nnls(A, b.numpy())[0]) for b in terms.reshape(-1, len(columns))]
    solution = torch.stack(solved).view((*terms.shape[:2], -1)).movedim(-1, 1)
    off = (columns @ solution - coefficients).abs().max()
    return solution if bool(off <= TIED * coefficients.abs().max()) else rates


def common_signs(rates: Tensor) -> Tensor:
    """Return the signs ``[R, h]`` of the rates ``[K, R, h]`` of all starts; 0 where all are 0."""
    low, high = rates.sign().amin(0), rates.sign().amax(0)
    if bool((low * high < 0).any()):
        raise ValueError(
            f"{NAME}: signs must be 'any' or 'nonnegative' for a model whose starts have "
            f"coefficients "
            "of different signs, got 'model'"
        )
    return (low + high).sign()


def check_within(exponents: Tensor, known: Known) -> None:
    """Raise ValueError for a model's exponents that contradict what is known."""
    outside = (exponents < known.low) | (exponents > known.high)
    if outside.any():
        raise ValueError(
            f"{NAME}: exponents must be bounds that the model's own exponents keep with "
            f"init='model', got {float(exponents[outside][0]):g} outside of them"
        )
    broken = (exponents != exponents.round()) & known.integer
    if broken.any():
        raise ValueError(
            f"{NAME}: integer_exponents must be for states with integer exponents in the "
            f"model with init='model', got {float(exponents[broken][0]):g}"
        )


def read_known(
    exponents: Any, integer_exponents: Any, terms: Any, stoichiometry: Any, conserved: Any,
    signs: Any, names: Sequence[str], products: int, searching: bool, inputs: int = 0,
) -> Known:  # fmt: skip
    """Return the checked arguments of `fit`.

    names: of the D states, the inputs among them behind the others. products: the model's number of
    terms.
    """
    # `ode` is imported without NumPy too.
    from npu_kernels.equations._limits import (
        check_whole_within,
        read_bounds,
        read_whole,
    )

    states = len(names)
    fitted = states - inputs
    noun = "states and inputs" if inputs else "states"
    bounds = read_bounds(NAME, exponents, states, noun)
    chosen = read_whole(NAME, integer_exponents, names, noun)
    check_whole_within(NAME, names, *bounds, chosen, "integer_exponents has the state")
    low, high, integer = map(torch.from_numpy, (*bounds, chosen))
    if signs not in ("any", "nonnegative", "model") or (signs == "model" and searching):
        rule = "'any', 'nonnegative', or with init='model' also 'model'"
        raise ValueError(f"{NAME}: signs must be {rule}, got {signs!r}")
    if stoichiometry is not None and conserved is not None:
        raise ValueError(
            f"{NAME}: conserved must be None with stoichiometry, which defines what is conserved"
        )
    columns = None
    if stoichiometry is not None:
        columns = _matrix("stoichiometry", stoichiometry, "(D, reactions)", fitted, 0)
        if bool((columns == 0).all(0).any()):
            raise ValueError(
                f"{NAME}: stoichiometry must have a number other than 0 in each column"
            )
    if conserved is not None:
        sums = _matrix("conserved", conserved, "(sums, D)", fitted, 1)
        if bool((sums == 0).all(1).any()):
            raise ValueError(f"{NAME}: conserved must have a number other than 0 in each row")
        columns = flows(sums)
        if signs == "nonnegative":
            columns = torch.cat([columns, -columns], 1)
    if inputs:
        columns = torch.eye(fitted, dtype=torch.float64) if columns is None else columns
        columns = torch.cat([columns, columns.new_zeros(inputs, columns.shape[1])])
    term_rows = _exponents_of_terms(terms, names)
    if not searching and len(term_rows):
        raise ValueError(
            f"{NAME}: required_terms must be None with init='model', whose terms are known"
        )
    if len(term_rows) > products:
        raise ValueError(
            f"{NAME}: required_terms must be at most the {products} terms of the model, got "
            f"{len(term_rows)}"
        )
    if bool(((term_rows < low) | (term_rows > high) | (integer & (term_rows % 1 != 0))).any()):
        rule = (
            "required_terms must be within the bounds of exponents, and integers with "
            "integer_exponents"
        )
        raise ValueError(f"{NAME}: {rule}, got {terms!r}")
    return Known(low, high, integer, term_rows, columns, signs, inputs)


def _exponents_of_terms(terms: Any, names: Sequence[str]) -> Tensor:
    """Return the exponents ``[terms, D]`` of `required_terms`."""
    from npu_kernels.equations._limits import check_terms, exponent_rows

    if isinstance(terms, str):
        raise TypeError(
            f"{NAME}: required_terms must be a list of products, [{terms!r}], got {terms!r}"
        )
    if terms is None:
        return torch.zeros(0, len(names), dtype=torch.float64)
    rows = exponent_rows(NAME, terms, names)
    rows = _matrix("required_terms", rows, "(terms, D)", len(names), 1)
    check_terms(NAME, terms, rows.numpy())
    return rows


def _matrix(name: str, value: Any, shape: str, states: int, dimension: int) -> Tensor:
    matrix = tensor(NAME, name, value)
    fits = matrix.dim() == 2 and matrix.shape[dimension] == states
    if not fits or not matrix.isfinite().all():
        got = f"shape {tuple(matrix.shape)}"
        if fits:
            got = str(float(matrix[~matrix.isfinite()][0]))
        raise ValueError(
            f"{NAME}: {name} must be finite numbers of shape {shape} with D = {states}, got {got}"
        )
    return matrix


def flows(conserved: Tensor) -> Tensor:
    """Return the flows ``[D, R]`` of as few states as possible that keep sums ``[m, D]``."""
    states, rank = conserved.shape[1], int(torch.linalg.matrix_rank(conserved))
    columns: list[Tensor] = []
    supports: list[set[int]] = []
    for size in range(1, rank + 2):
        for chosen in itertools.combinations(range(states), size):
            if any(support <= set(chosen) for support in supports):
                continue
            part = conserved[:, list(chosen)]
            vector = torch.linalg.svd(part)[2][-1]
            if bool((part @ vector).abs().max() > ZERO_FLOW * part.abs().max().clamp(min=1)):
                continue
            vector = vector / vector.abs().min() * -vector[0].sign()
            rounded = vector.round()  # LAPACK's last digits differ from processor to processor
            column = conserved.new_zeros(states)
            column[list(chosen)] = rounded.where((vector - rounded).abs() < ZERO_FLOW, vector)
            supports.append(set(chosen))
            columns.append(column)
    if not columns:
        raise ValueError(f"{NAME}: conserved must leave a state that may change, got {conserved}")
    return torch.stack(columns, 1)


def label(column: Sequence[float], names: Sequence[str]) -> str:
    """Return the name of a reaction, such as ``S -> I``."""

    def side(sign: float) -> str:
        parts = [(sign * part, name) for part, name in zip(column, names, strict=True)]
        return " + ".join(
            name if part == 1 else f"{part:.4g} {name}" for part, name in parts if part > 0
        )

    return f"{side(-1.0)} -> {side(1.0)}".strip()
