"""Units and constants: rows of size 1 for the training, weights for the original rows, exact sums.

x and y are divided by powers of two near their size. A layer whose weights may have any size gets
the factors back: ``NAU(clip=False)`` as the first layer, or after a `RealNPU`, those of x, and as
the last layer those of y.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from npu_kernels._common.chains import full_name, units_of
from npu_kernels.fitting._batch import COEFFICIENT, GATE, Template
from npu_kernels.fitting._data import Rows
from npu_kernels.layers import NAU, NPU, NaiveNPU, RealNPU, Unit

NEAR_ONE = 0.1  # a coefficient within this distance of 1 or -1 is tried as 1 or -1
SMALLEST_SINGULAR = 1e-10  # share of the greatest singular value; those below are dropped


def _free(unit: Unit) -> bool:
    """Return whether a unit is a sum with weights of any size."""
    return isinstance(unit, NAU) and not unit.clip


class Scale:
    """The exponents of two that a model can take up, 0 for other models.

    They are ``x [problems, I]`` and ``y [problems, O]``.
    """

    def __init__(self, template: Template, x: Tensor, y: Tensor) -> None:
        self.template = template
        units = units_of(template.model)
        # The paths of the units that take up factors:
        self._first, self._second, self._last = "", None, None
        self._first_free = False
        if units:
            self._first, first = units[0]
            self._first_free = _free(first)
            if len(units) > 1 and isinstance(first, RealNPU) and _free(units[1][1]):
                self._second = units[1][0]
            if _free(units[-1][1]):
                self._last = units[-1][0]
        takes_x = self._first_free or self._second is not None
        self.x = _mean_exponent(x) if takes_x else torch.zeros_like(x[:, 0])
        self.y = torch.zeros_like(y[:, 0]) if self._last is None else _square_exponent(y)

    def divided(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rows for the training, in float64."""
        return _times(x.double(), -self.x.unsqueeze(1)), _times(y.double(), -self.y.unsqueeze(1))

    def restored(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Return the original x and y of the training's rows."""
        return _times(rows.x, self.x.unsqueeze(1)), _times(rows.y, self.y.unsqueeze(1))

    def _factors(self, flat: Tensor, problem: Tensor) -> Tensor:
        """Return exponents of two ``[A, P]`` from the training's parameters to original ones."""
        template = self.template
        tensors = dict(zip(template.names, template.unflatten(flat), strict=True))
        exponents = {name: torch.zeros_like(t) for name, t in tensors.items()}
        x, y = self.x[problem], self.y[problem]
        if self._first_free:
            exponents[full_name(self._first, "weight")] -= x.unsqueeze(1)
        if self._second is not None:
            w, gate = (tensors[full_name(self._first, name)] for name in ("weight_re", "gate"))
            power = (w * gate.round().unsqueeze(1)) @ x.unsqueeze(2)
            exponents[full_name(self._second, "weight")] -= power.transpose(1, 2)
        if self._last is not None:
            exponents[full_name(self._last, "weight")] += y.unsqueeze(2)
        return template.flatten([exponents[name] for name in template.names])

    def original(self, flat: Tensor, problem: Tensor) -> Tensor:
        """Return the training's parameters ``[A, P]`` for the original rows; gates are 0 or 1."""
        if self._second is not None and self.x.any():
            flat = self.template.rounded(flat, 1, (GATE,))
        return _times(flat, self._factors(flat, problem))

    def coefficients(self, flat: Tensor, problem: Tensor, denominator: int) -> Tensor:
        """Return the parameters ``[A, P]`` with coefficients that are fractions on original rows.

        Denominator 0: all of them as 1 or -1; nan where one is farther than `NEAR_ONE` from these.
        """
        factors = self._factors(flat, problem)
        original = _times(flat, factors)
        coefficient = self.template.kind == COEFFICIENT
        if denominator:
            rounded = self.template.rounded(original, denominator, (COEFFICIENT,))
        else:
            rounded = torch.where(coefficient, original.sign(), original)
            lost = coefficient & ((original - rounded).abs() > NEAR_ONE)
            rounded = rounded.masked_fill(lost.any(1, keepdim=True), math.nan)
        return torch.where(rounded == original, flat, _times(rounded, -factors))

    def finish(self, models: nn.Module) -> None:
        """Remove an eps that would count beside inputs of another size."""
        units = units_of(models)
        if self._second is not None and self.x.any() and units:
            unit: Any = units[0][1]
            unit.eps = unit.eps or torch.finfo(unit.weight_re.dtype).tiny

    @torch.no_grad()
    def score(self, models: nn.Module, rows: Rows) -> Tensor:
        """Return the weighted mean squared errors ``[problems]`` of models for original rows.

        rows: those of the training.
        """
        x = _times(rows.x, self.x.unsqueeze(1)).to(self.template.dtype)
        with torch.autocast(x.device.type, enabled=False):
            y = models(x)
        error = _times(y.double(), -self.y.unsqueeze(1)) - rows.y
        score = (error.square_() * rows.weight).mean((1, 2))
        return score.nan_to_num(nan=math.inf, posinf=math.inf)


def _times(values: Tensor, exponent: Tensor) -> Tensor:
    """Return ``values * 2**exponent``, by two factors since one may be no number of float64."""
    half = (exponent / 2).round()
    return values * half.exp2() * (exponent - half).exp2()


def _mean_exponent(values: Tensor) -> Tensor:
    """Return the exponents of two ``[problems, columns]`` near the geometric means of columns."""
    values = values.double().abs()
    positive = values > 0
    logs = values.where(positive, 1.0).log2()
    return (logs.sum(1) / positive.sum(1).clamp(min=1)).round()


def _square_exponent(values: Tensor) -> Tensor:
    """Return the exponents of two ``[problems, columns]`` near the root mean squares of columns."""
    values = values.double().abs()
    top = values.amax(1, keepdim=True)
    top = top.where(top > 0, 1.0)
    squares = (values / top).square().mean(1).clamp(min=1e-300)
    return (squares.log2() / 2 + top.squeeze(1).log2()).round()


# ---- linear weights ------------------------------------------------------------------------------


class LastSum:
    """The weights of a last NAU by least squares, with all layers before it as they are."""

    def __init__(self, template: Template) -> None:
        self.template, model = template, template.model
        units = units_of(model)
        self.exists = bool(units) and isinstance(units[-1][1], NAU)
        if not self.exists:
            return
        path, unit = units[-1]
        self.inputs, self.outputs = unit.in_features, unit.out_features
        self.clip = getattr(unit, "clip", False)
        self.name = full_name(path, "weight")
        self.index = template.names.index(self.name)
        self.before = model[:-1] if isinstance(model, nn.Sequential) and len(units) > 1 else None
        if self.before is not None:
            self.exists = path == str(len(list(self.before.children())))

    def terms(self, tensors: list[Tensor], x: Tensor) -> Tensor:
        """Return the terms of the sum ``[A, N, H]``."""
        if self.before is None:
            return x
        named = dict(zip(self.template.names, tensors, strict=True))
        del named[self.name]
        terms: Tensor = functional_call(self.before, named, (x,))
        return terms

    @torch.no_grad()
    def solved(
        self, flat: Tensor, problem: Tensor, rows: Rows, used: Tensor | None = None
    ) -> Tensor:
        """Return models ``[A, P]`` with the sum's best weights, 0 for units not `used` ``[A, H]``.

        A model stays as it is where the weights lie outside of a clipped layer's interval, or
        are not finite.
        """
        if not self.exists or not len(flat):
            return flat
        tensors = self.template.unflatten(flat)
        terms = self.terms(tensors, rows.x[problem])
        if used is not None:
            terms = terms * used.unsqueeze(1)
        good = terms.isfinite().all(2).all(1)
        terms = terms.masked_fill(~good[:, None, None], 0.0)
        weights = []
        for o in range(self.outputs):
            root = rows.weight[problem, :, o].sqrt()
            A = terms * root.unsqueeze(2)
            length = A.square().sum(1, keepdim=True).sqrt()
            length = length.where((length > 0) & length.isfinite(), 1.0)
            A = (A / length).nan_to_num(0.0, 0.0, 0.0)
            b = (rows.y[problem, :, o] * root).unsqueeze(2)
            inverse = torch.linalg.pinv(A, rtol=SMALLEST_SINGULAR)
            c = inverse @ b
            c = c + inverse @ (b - A @ c)
            weights.append((c / length.transpose(1, 2)).squeeze(2))
        weight = torch.stack(weights, 1)
        good &= weight.isfinite().all(2).all(1)
        if self.clip:
            good &= (weight.abs() <= 1).all(2).all(1)
        tensors[self.index] = torch.where(good[:, None, None], weight, tensors[self.index])
        return self.template.flatten(tensors)

    def fewer(self, flat: Tensor, problem: Tensor, rows: Rows) -> list[Tensor]:
        """Remove the unit of the sum that is needed least, again and again; return all models."""
        if not self.exists or self.before is None:
            return []
        weight = self.template.unflatten(flat)[self.index]
        used = (weight != 0).any(1).double()
        models = torch.arange(len(flat), device=flat.device)
        results = [self._without(flat, used)]
        while float(used.sum(1).max()) > 1:
            candidates, errors = [], []
            for unit in range(self.inputs):
                rest = used.clone()
                rest[:, unit] = 0
                candidates.append(self._without(self.solved(flat, problem, rows, rest), rest))
                error = self.template.errors(candidates[-1], rows, problem)
                impossible = (used[:, unit] == 0) | (rest.sum(1) == 0)
                errors.append(error.masked_fill(impossible, math.inf))
            removed = torch.stack(errors).argmin(0)
            flat = torch.stack(candidates)[removed, models]
            used[models, removed] = 0
            removed_units = nn.functional.one_hot(removed, self.inputs)
            used = torch.where(used.sum(1, keepdim=True) == 0, removed_units, used)
            results.append(flat)
        return results

    def _without(self, flat: Tensor, used: Tensor) -> Tensor:
        """Return the models with the unused units' weights 0: those in the sum and their own."""
        tensors = self.template.unflatten(flat)
        tensors[self.index] = tensors[self.index] * used.unsqueeze(1)
        before = units_of(self.template.model)[-2][1]
        for index, (unit, name) in enumerate(self.template.units):
            if unit is before and name.startswith("weight"):
                tensors[index] = tensors[index] * used.unsqueeze(2)
        return self.template.flatten(tensors)


# ---- the coefficient of a single layer -----------------------------------------------------------


def with_coefficient(model: nn.Module) -> nn.Module:
    """Return the model, with ``NAU(1, 1, clip=False)`` after a last power unit of one output."""
    units = units_of(model) if isinstance(model, nn.Module) else []
    if not units:
        return model
    unit = units[-1][1]
    if not isinstance(unit, (NPU, RealNPU, NaiveNPU)) or unit.out_features != 1:
        return model
    like = next(model.parameters())
    factory: dict[str, Any] = {"device": like.device, "dtype": like.dtype}
    with torch.random.fork_rng(devices=[]):  # the caller's random state stays
        last = NAU(1, 1, clip=False, num_models=unit.num_models, **factory)
    parts = list(model) if isinstance(model, nn.Sequential) else [model]
    return nn.Sequential(*parts, last)


def without_coefficient(model: nn.Module, original: nn.Module) -> nn.Module:
    """Return the model, without a last layer that is `with_coefficient`'s and multiplies by 1."""
    if not isinstance(model, nn.Sequential) or with_coefficient(original) is original:
        return model
    weight: Any = model[-1].weight
    if not bool((weight == 1).all()):
        return model
    return model[:-1] if isinstance(original, nn.Sequential) else model[0]
