"""Units and constants: rows of size 1 for the training, weights for the rows as they were given, exact linear weights.

x and y are divided by powers of two near their size. A layer whose weights may have any size takes the factors up
again: ``NAU(clip=False)`` behind a `RealNPU` those of x, as the first layer too, and as the last layer those of y.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from npu_kernels.fitting._batch import COEFFICIENT, Template, chain
from npu_kernels.fitting._data import Rows
from npu_kernels.layers import NAU, NPU, NaiveNPU, RealNPU, Unit

NEAR_ONE = 0.1  # a coefficient so near to 1 or -1 is tried as that
RANK = 1e-10  # singular values below this share of the greatest are dropped


def _free(unit: Unit) -> bool:
    """Whether it is a sum with weights of any size."""
    return isinstance(unit, NAU) and not unit.clip


class Scale:
    """The exponents of two, ``x [problems, I]`` and ``y [problems, O]``, that a model can take up; 0 for others."""

    def __init__(self, template: Template, x: Tensor, y: Tensor) -> None:
        self.template = template
        units = chain(template.model) or []
        first_free = bool(units) and _free(units[0][1])
        second = (
            units[1][0]
            if len(units) > 1 and isinstance(units[0][1], RealNPU) and _free(units[1][1])
            else None
        )
        takes_x = first_free or second is not None
        takes_y = bool(units) and _free(units[-1][1])
        self.x = _size(x, False) if takes_x else torch.zeros_like(x[:, 0])
        self.y = _size(y, True) if takes_y else torch.zeros_like(y[:, 0])
        self._first = units[0][0] if units else ""
        self._second, self._last = second, units[-1][0] if takes_y else None
        self._first_free = first_free

    def divided(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The rows for the training, in float64."""
        return _times(x.double(), -self.x.unsqueeze(1)), _times(y.double(), -self.y.unsqueeze(1))

    def restored(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """x and y of the training's rows as they were given."""
        return _times(rows.x, self.x.unsqueeze(1)), _times(rows.y, self.y.unsqueeze(1))

    def _factors(self, flat: Tensor, problem: Tensor) -> Tensor:
        """Exponents of two ``[A, P]`` by which the parameters grow from the training's rows to those given."""
        template = self.template
        tensors = dict(zip(template.names, template.unflatten(flat), strict=True))
        found = {name: torch.zeros_like(t) for name, t in tensors.items()}
        x, y = self.x[problem], self.y[problem]
        if self._first_free:
            found[_join(self._first, "weight")] -= x.unsqueeze(1)
        if self._second is not None:
            w, gate = (
                tensors[_join(self._first, "weight_re")],
                tensors[_join(self._first, "gate")].round(),
            )
            found[_join(self._second, "weight")] -= (
                (w * gate.unsqueeze(1)) @ x.unsqueeze(2)
            ).transpose(1, 2)
        if self._last is not None:
            found[_join(self._last, "weight")] += y.unsqueeze(2)
        return template.flatten([found[name] for name in template.names])

    def given(self, flat: Tensor, problem: Tensor) -> Tensor:
        """Parameters ``[A, P]`` for the rows as they were given, of those for the training's; gates are 0 or 1."""
        if self._second is not None and self.x.any():
            flat = self.template.rounded(flat, 1, (0,))
        return _times(flat, self._factors(flat, problem))

    def coefficients(self, flat: Tensor, problem: Tensor, denominator: int) -> Tensor:
        """The parameters with coefficients, of the rows as given, as fractions.

        Denominator 0: all of them as 1 or -1; nan where one is farther than `NEAR_ONE` from these.
        """
        factors = self._factors(flat, problem)
        own = _times(flat, factors)
        coefficient = self.template.kind == COEFFICIENT
        if denominator:
            rounded = self.template.rounded(own, denominator, (COEFFICIENT,))
        else:
            rounded = torch.where(coefficient, own.sign(), own)
            lost = coefficient & ((own - rounded).abs() > NEAR_ONE)
            rounded = rounded.masked_fill(lost.any(1, keepdim=True), math.nan)
        return torch.where(rounded == own, flat, _times(rounded, -factors))

    def finish(self, models: nn.Module) -> None:
        """Without an eps that would count beside inputs of another size."""
        units = chain(models)
        if self._second is not None and self.x.any() and units:
            unit: Any = units[0][1]
            unit.eps = unit.eps or torch.finfo(unit.weight_re.dtype).tiny

    @torch.no_grad()
    def score(self, models: nn.Module, rows: Rows) -> Tensor:
        """Weighted mean squared errors ``[problems]`` of models as they are returned, on the training's rows."""
        x = _times(rows.x, self.x.unsqueeze(1)).to(self.template.dtype)
        error = _times(models(x).double(), -self.y.unsqueeze(1)) - rows.y
        return (
            (error.square_() * rows.weight).mean((1, 2)).nan_to_num(nan=math.inf, posinf=math.inf)
        )


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _times(values: Tensor, exponent: Tensor) -> Tensor:
    """``values * 2**exponent`` in two steps, as one factor alone may be no number of float64."""
    half = (exponent / 2).round()
    return values * half.exp2() * (exponent - half).exp2()


def _size(values: Tensor, squares: bool) -> Tensor:
    """The exponent of two near each column's size ``[problems, columns]``: the mean of log2, or of the squares."""
    values = values.double().abs()
    there = values > 0
    logs = values.where(there, 1.0).log2()
    count = there.sum(1).clamp(min=1)
    if squares:
        top = values.amax(1, keepdim=True)
        top = top.where(top > 0, 1.0)
        return (
            (values / top).square().mean(1).clamp(min=1e-300).log2() / 2 + top.squeeze(1).log2()
        ).round()
    return (logs.sum(1) / count).round()


# ---- linear weights --------------------------------------------------------------------------------------------------


class LastSum:
    """The weights of a last NAU by least squares, with everything before it as it is."""

    def __init__(self, template: Template) -> None:
        self.template = template
        units = chain(template.model) or []
        self.there = (
            bool(units)
            and isinstance(units[-1][1], NAU)
            and isinstance(template.model, (NAU, nn.Sequential))
        )
        if not self.there:
            return
        path, unit = units[-1]
        self.inputs, self.outputs, self.clip = (
            unit.in_features,
            unit.out_features,
            getattr(unit, "clip", False),
        )
        self.name = _join(path, "weight")
        self.at = template.names.index(self.name)
        self.before = (
            template.model[:-1]
            if isinstance(template.model, nn.Sequential) and len(units) > 1
            else None
        )
        if self.before is not None and path != str(len(template.model) - 1):  # type: ignore[arg-type]
            self.there = False

    def terms(self, tensors: list[Tensor], x: Tensor) -> Tensor:
        """What the sum adds up ``[A, N, H]``."""
        if self.before is None:
            return x
        named = dict(zip(self.template.names, tensors, strict=True))
        own = {name: t for name, t in named.items() if name != self.name}
        found: Tensor = functional_call(self.before, own, (x,))
        return found

    @torch.no_grad()
    def solved(
        self, flat: Tensor, problem: Tensor, rows: Rows, used: Tensor | None = None
    ) -> Tensor:
        """Models ``[A, P]`` with the best weights of the sum, 0 for units that are not `used` ``[A, H]``.

        A model stays as it is where they lie outside of a clipped layer's interval, or nothing is finite.
        """
        if not self.there or not len(flat):
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
            inverse = torch.linalg.pinv(A, rtol=RANK)
            c = inverse @ b
            c = c + inverse @ (b - A @ c)
            weights.append((c / length.transpose(1, 2)).squeeze(2))
        found = torch.stack(weights, 1)
        good &= found.isfinite().all(2).all(1)
        if self.clip:
            good &= (found.abs() <= 1).all(2).all(1)
        tensors[self.at] = torch.where(good[:, None, None], found, tensors[self.at])
        return self.template.flatten(tensors)

    def fewer(self, flat: Tensor, problem: Tensor, rows: Rows) -> list[Tensor]:
        """Models with one unit after the other taken out of the sum, each time the one that is missed least."""
        found: list[Tensor] = []
        if not self.there or self.before is None:
            return found
        weight = self.template.unflatten(flat)[self.at]
        used = (weight != 0).any(1).double()
        which = torch.arange(len(flat), device=flat.device)
        found.append(self._without(flat, used))
        while float(used.sum(1).max()) > 1:
            tried, errors = [], []
            for unit in range(self.inputs):
                left = used.clone()
                left[:, unit] = 0
                one = self._without(self.solved(flat, problem, rows, left), left)
                error = self.template.errors(one, rows.x, rows.y, rows.weight, problem)
                tried.append(one)
                errors.append(
                    error.masked_fill((used[:, unit] == 0) | (left.sum(1) == 0), math.inf)
                )
            least = torch.stack(errors).argmin(0)
            flat = torch.stack(tried)[least, which]
            used[which, least] = 0
            used = torch.where(
                used.sum(1, keepdim=True) == 0,
                torch.nn.functional.one_hot(least, self.inputs),
                used,
            )
            found.append(flat)
        return found

    def _without(self, flat: Tensor, used: Tensor) -> Tensor:
        """The weights of units that are not used, and what leads to them, are 0."""
        tensors = self.template.unflatten(flat)
        tensors[self.at] = tensors[self.at] * used.unsqueeze(1)
        for index, (unit, name) in enumerate(self.template.units):
            before = chain(self.template.model)[-2][1] if chain(self.template.model) else None  # type: ignore[index]
            if unit is before and name.startswith("weight"):
                tensors[index] = tensors[index] * used.unsqueeze(2)
        return self.template.flatten(tensors)


# ---- the coefficient of a single layer -------------------------------------------------------------------------------


def with_coefficient(model: nn.Module) -> nn.Module:
    """The model with ``NAU(1, 1, clip=False)`` behind it if it ends with a power unit of one output; else itself."""
    units = chain(model) if isinstance(model, nn.Module) else None
    if (
        not units
        or not isinstance(units[-1][1], (NPU, RealNPU, NaiveNPU))
        or units[-1][1].out_features != 1
    ):
        return model
    like = next(model.parameters())
    with torch.random.fork_rng(
        devices=[]
    ):  # the numbers are never used, and the caller's random state is the caller's
        last = NAU(
            1,
            1,
            clip=False,
            num_models=units[-1][1].num_models,
            device=like.device,
            dtype=like.dtype,
        )
    parts = list(model) if isinstance(model, nn.Sequential) else [model]
    return nn.Sequential(*parts, last)


def without_coefficient(model: nn.Module, original: nn.Module) -> nn.Module:
    """The model without its last layer if that is `with_coefficient`'s and multiplies by 1."""
    if not isinstance(model, nn.Sequential) or with_coefficient(original) is original:
        return model
    weight: Any = model[-1].weight
    if not bool((weight == 1).all()):
        return model
    return model[:-1] if isinstance(original, nn.Sequential) else model[0]
