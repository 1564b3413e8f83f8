"""Estimates of the numbers of a law in the user's units, and their standard errors."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from npu_kernels.equations._products.text import term_text
from npu_kernels.equations._series.data import Series
from npu_kernels.equations._series.known import label
from npu_kernels.equations._series.laws import Law
from npu_kernels.equations._series.sensitivity import Shape

NAMED_SHARE = 0.3  # of a direction's greatest part: parameters that are named with it
ROUNDED_ENTRY = 1e-9  # of a whole number in a matrix that was scaled and is scaled back


@dataclass(frozen=True)
class Estimate:
    """One parameter of a law.

    Attributes:
        name: what it is, such as "exponent of x in term 1".
        value: the estimate.
        error: its standard error, inf if the data do not tell it.
        logarithmic: whether it is a coefficient of a term with free exponents.
        taken: the law's number if that is not the estimate: a fraction, or beside one.
        index: in the law's vector.
        unit: of the law's vector.
    """

    name: str
    value: float
    error: float
    logarithmic: bool
    taken: float | None
    index: int
    unit: float

    def at(self, distance: float) -> float:
        """Return the value at a distance of a profile."""
        if self.logarithmic:
            return self.value * math.exp(min(distance, 700.0)) + 0.0  # not -0
        return self.value + distance * self.unit


def unscaled(law: Law) -> tuple[Tensor, Tensor, Tensor]:
    """Return exponents ``[h, D]``, rates ``[R, h]``, first states in the user's units."""
    exponents, rates, starts = law.problem.shape.split(law.x)
    data = law.problem.data
    return exponents, rates / units(data, law.problem.shape, exponents), starts * data.size


def unscaled_coefficients(law: Law, rates: Tensor) -> Tensor:
    """Return the coefficients ``[D, h]`` of rates ``[R, h]``, both in the user's units."""
    columns = changes(law)
    return rates if columns is None else columns @ rates


def changes(law: Law) -> Tensor | None:
    """Return the changes of the states by the rates ``[D, R]`` in the user's units."""
    shape = law.problem.shape
    if shape.columns is None or shape.rate_size is None:
        return None
    columns = shape.columns * law.problem.data.size.unsqueeze(1) / shape.rate_size
    return torch.where((columns - columns.round()).abs() < ROUNDED_ENTRY, columns.round(), columns)


def units(data: Series, shape: Shape, exponents: Tensor) -> Tensor:
    """Return factors ``[..., R, h]`` from rates in the user's units to scaled ones."""
    logs = data.size.log() if shape.log_sizes is None else torch.zeros_like(data.size)
    products = torch.exp(exponents @ logs)  # [..., h]
    sizes = data.size if shape.rate_size is None else shape.rate_size
    return data.time * products.unsqueeze(-2) / sizes.unsqueeze(-1)


def _errors(law: Law) -> tuple[Tensor, list[str]]:
    """Return standard errors ``[N]`` in the user's units, and names of unidentified directions."""
    shape, data = law.problem.shape, law.problem.data
    covariance, blind = law.uncertainty()
    exponents, rates, _ = shape.split(law.x)
    h, d = shape.terms, shape.states
    factor = 1 / units(data, shape, exponents)
    change = torch.zeros(shape.size, shape.size, dtype=torch.float64)
    ones = torch.ones(h * d, dtype=torch.float64)
    change.diagonal()[:] = torch.cat([ones, factor.flatten(), data.size.repeat(shape.series)])
    for j in range(shape.rates):
        for k in range(h):
            row = h * d + j * h + k
            change[row, k * d : (k + 1) * d] = -rates[j, k] * factor[j, k] * data.size.log()
    index = law.free.nonzero().squeeze(1)
    change = change[index][:, index]
    unknown = covariance.diagonal().isinf()
    told = torch.where(unknown | unknown.unsqueeze(1), 0.0, covariance)
    variance = (change @ told @ change.mT).diagonal()
    reached = (change[:, unknown].abs() > 0).any(1)
    errors = torch.full((shape.size,), 0.0, dtype=torch.float64)
    errors[index] = torch.where(reached, math.inf, variance.clamp(min=0).sqrt())
    return errors, _directions(law, index, blind)


def _directions(law: Law, index: Tensor, blind: list[Tensor]) -> list[str]:
    """Return the parameters in each direction that the data do not tell."""
    all_names = _names(law, list(range(law.problem.shape.terms)))
    texts = []
    for direction in blind:
        parts = direction.abs() >= NAMED_SHARE * direction.abs().max()
        names = [all_names[int(i)] for i in index[parts]]
        text = f"the {names[0]}" if len(names) == 1 else None
        texts.append(text or "one of these from the others: " + ", ".join(names))
    return list(dict.fromkeys(texts))


def _names(law: Law, number: list[int]) -> list[str]:
    """Return the names of all numbers of a law; number: of its terms."""
    shape, data = law.problem.shape, law.problem.data
    exponents = shape.split(law.x)[0]
    terms, states = range(shape.terms), range(shape.states)
    texts = [f"exponent of {data.names[i]} in term {number[k] + 1}" for k in terms for i in states]
    columns = changes(law)
    rates = [f"{name}'" for name in data.names]
    fitted = shape.states - shape.inputs
    is_tied = columns is not None and not torch.equal(columns[:fitted], torch.eye(fitted).double())
    if columns is None or not is_tied:
        rates = rates[:fitted]
    else:
        rates = [label(column.tolist(), data.names) for column in columns.T]
    for rate in rates:
        for k in terms:
            product = term_text(1.0, [round(w, 3) for w in exponents[k].tolist()], data.names, 1)
            kind = "constant" if product == "1" else f"coefficient of {product}"
            texts.append(f"{kind} in {rate}")
    for s in range(shape.series):
        more = f" of series {s}" if shape.series > 1 else ""
        texts += [f"first {name}{more}" for name in data.names]
    return texts


def estimated(law: Law, unrounded: Law, number: list[int]) -> tuple[list[Estimate], list[str]]:
    """Return the law's parameters, and directions that the data do not tell.

    unrounded: the same law before its exponents became fractions; if some did, the exponents are
    estimated by it. number: the position of each term in the law's text.
    """
    errors, blind = _errors(law)
    loose = errors if unrounded is law else _errors(unrounded)[0]
    shape, data = law.problem.shape, law.problem.data
    exponents, rates, u0 = unscaled(law)
    values = shape.join(exponents, rates, u0)
    factor = 1 / units(data, shape, exponents)
    parts = torch.ones_like(exponents), factor, data.size.expand_as(u0)
    unit = shape.join(*parts).tolist()
    free_values = shape.join(*unscaled(unrounded))
    names, estimates = _names(law, number), []
    h, d = shape.terms, shape.states
    powers = shape.split(law.free)[0].any(1).tolist()
    fractions = bool((unrounded.free & ~law.free)[: h * d].any())
    for i in [*range(h * d, shape.weights), *range(h * d), *range(shape.weights, shape.size)]:
        if law.free[i] and not (i < h * d and fractions):
            logarithmic = h * d <= i < shape.weights and powers[(i - h * d) % h]
            numbers = float(values[i]), float(errors[i])
            estimates.append(Estimate(names[i], *numbers, logarithmic, None, i, unit[i]))
        elif unrounded.free[i]:
            numbers = float(free_values[i]), float(loose[i])
            estimates.append(Estimate(names[i], *numbers, False, float(values[i]), i, 1.0))
    return estimates, blind
