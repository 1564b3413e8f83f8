"""The parameters of a batch of models: tensors ``[K, ...]``, or a row per model, ``[K, P]``.

The module itself is only a template: its layers do not look at their number of models, so a batch
may have any.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from npu_kernels._common.checks import check_module
from npu_kernels.fitting._data import Rows
from npu_kernels.fitting._recipe import Recipe
from npu_kernels.formula import nearest_fraction
from npu_kernels.layers import NALU, NAU, NPU, BaseLayer, NaiveNPU, RealNPU
from npu_kernels.layers._chains import full_name, units_of

# The kinds of parameters. A coefficient, the weight of a sum that is not clipped, may have any size
# and unit: it is rounded only where the data are exact. A free one is never rounded.
GATE, POWER, LINEAR, FREE, COEFFICIENT = range(5)

PART_BYTES = 2**25  # of one tensor when many models are evaluated at once


@dataclass(frozen=True)
class Population:
    """Models of several problems in one batch."""

    flat: Tensor  # their parameters [A, P], float64
    problem: Tensor  # the index of each model's problem [A]
    start: Tensor  # the index, among its problem's, of the start that each model comes from [A]

    def take(self, index: Tensor | slice) -> Population:
        """Return the models of an index, mask or slice."""
        return Population(self.flat[index], self.problem[index], self.start[index])

    def at(self, flat: Tensor) -> Population:
        """Return the models with other parameters."""
        return Population(flat, self.problem, self.start)

    def rounded(self, template: Template, denominator: int, kinds: Sequence[int]) -> Population:
        """Return the models with parameters of these kinds rounded."""
        return self.at(template.rounded(self.flat, denominator, kinds))

    def projected(self, template: Template) -> Population:
        """Return the models with their parameters clamped into the intervals."""
        tensors = template.unflatten(self.flat)
        template.project_(tensors)
        return self.at(template.flatten(tensors))

    @staticmethod
    def concatenate(parts: Sequence[Population]) -> Population:
        """Return all models of several populations."""
        return Population(
            flat=torch.cat([part.flat for part in parts]),
            problem=torch.cat([part.problem for part in parts]),
            start=torch.cat([part.start for part in parts]),
        )


def _kind(unit: BaseLayer, name: str) -> int:
    if isinstance(unit, (NPU, RealNPU, NaiveNPU)):
        return GATE if name == "gate" else POWER
    if isinstance(unit, NAU) and not unit.clip:
        return COEFFICIENT
    return LINEAR if unit.integer_weights else FREE


def _interval(unit: BaseLayer, name: str, kind: int, bound: float) -> tuple[float, float]:
    if kind == POWER:
        return -bound, bound
    interval = unit.parameter_bounds.get(name)
    if interval is None or not getattr(unit, "clip", True):
        return -math.inf, math.inf
    return interval


class Template:
    """The names, shapes, kinds and intervals of the parameters of a batch of models.

    Args:
        function: for messages.
        model: its units have one num_models; its other modules must have neither parameters nor
            buffers.
        recipe: bounds.
    """

    def __init__(self, function: str, model: nn.Module, recipe: Recipe) -> None:
        check_module(function, "model", model)
        owners = {}
        counts: set[Any] = set()
        for path, unit in model.named_modules():
            if isinstance(unit, BaseLayer):
                counts.add(unit.num_models)
                for name, _ in unit.named_parameters(recurse=False):
                    owners[full_name(path, name)] = (unit, name)
        named = dict(model.named_parameters())
        if not owners:
            got = f"{type(model).__name__} without any"
            raise ValueError(f"{function}: model must have layers of npu_kernels, got {got}")
        for name in [*named, *dict(model.named_buffers())]:
            if name not in owners:
                rule = "every parameter of model must belong to a layer of npu_kernels"
                raise ValueError(f"{function}: {rule}, got {name}")
        if len(counts) > 1 or None in counts:
            rule = "every layer of model must have the same num_models (random initialisations)"
            raise ValueError(f"{function}: {rule}, got {sorted(counts, key=str)}")
        self.num_models: int = counts.pop()
        self.model = model
        self.names, self.units = list(named), [owners[name] for name in named]
        tensors = list(named.values())
        self.device, self.dtype = tensors[0].device, tensors[0].dtype
        if any(t.dtype != self.dtype or t.device != self.device for t in tensors):
            rule = "all parameters of model must have one dtype and one device"
            raise ValueError(f"{function}: {rule}")
        if self.dtype not in (torch.float32, torch.float64):
            raise TypeError(f"{function}: model must be float32 or float64, got {self.dtype}")
        if self.device.type == "meta":
            rule = "model must be on a device that computes"
            raise ValueError(f"{function}: {rule}, got {self.device}")
        self.shapes = [tuple(t.shape[1:]) for t in tensors]
        self.sizes = [math.prod(shape) for shape in self.shapes]
        self.kinds = [_kind(unit, name) for unit, name in self.units]
        self.intervals = [
            _interval(unit, name, kind, recipe.weight_bound)
            for (unit, name), kind in zip(self.units, self.kinds, strict=True)
        ]
        # The kind of each of the P parameters of one model [P]:
        sizes = torch.tensor(self.sizes)
        self.kind = torch.tensor(self.kinds).repeat_interleave(sizes).to(self.device)

    def has(self, *kinds: int) -> bool:
        """Return whether there are parameters of one of these kinds."""
        return any(kind in kinds for kind in self.kinds)

    def __call__(self, tensors: Sequence[Tensor], x: Tensor) -> Tensor:
        """Return the models' results ``[K, B, O]`` for x ``[K, B, I]`` or a shared ``[B, I]``."""
        named = dict(zip(self.names, tensors, strict=True))
        result: Tensor = functional_call(self.model, named, (x,))
        return result

    # ---- forms of the parameters -----------------------------------------------------------------

    def flatten(self, tensors: Sequence[Tensor]) -> Tensor:
        """Return the tensors as rows ``[K, P]``."""
        return torch.cat([t.flatten(1) for t in tensors], 1)

    def unflatten(self, flat: Tensor) -> list[Tensor]:
        """Return rows ``[K, P]`` as contiguous tensors ``[K, ...]``."""
        parts = zip(flat.split(self.sizes, 1), self.shapes, strict=True)
        return [part.contiguous().view((-1, *shape)) for part, shape in parts]

    def build(self, flat: Tensor) -> nn.Module:
        """Return a new module of K models with copies of rows ``[K, P]``."""
        return self.module([t.clone() for t in self.unflatten(flat.to(self.dtype))])

    def module(self, tensors: Sequence[Tensor]) -> nn.Module:
        """Return a new module of K models whose parameters are the tensors, ``[K, ...]`` each."""
        model = copy.deepcopy(self.model)
        parameters = dict(model.named_parameters())
        for name, tensor in zip(self.names, tensors, strict=True):
            parameters[name].grad = None
            parameters[name].data = tensor
        for unit in model.modules():
            if isinstance(unit, BaseLayer):
                unit.num_models = len(tensors[0])
        return model

    # ---- starts, intervals, rounding -------------------------------------------------------------

    def _start_bounds(
        self, unit: BaseLayer, name: str, kind: int, recipe: Recipe, starts: int
    ) -> tuple[Tensor, Tensor]:
        """Return the bounds of the uniform distribution that each start ``[S]`` is drawn from."""

        def turns(values: tuple[Any, ...], length: int = 1) -> Tensor:
            chosen = [float(values[s // length % len(values)]) for s in range(starts)]
            return torch.tensor(chosen, dtype=torch.float32)

        if kind == GATE:
            return turns(recipe.gates), turns(recipe.gates)
        if kind == POWER:
            inputs = self._inputs(unit, recipe, starts).float()
            high = turns(recipe.wide) * (2 / inputs).sqrt().clamp(max=1)
            if name == "weight_im":
                # Its range changes after all ranges of the real part: every combination comes up.
                high = high * turns(recipe.imaginary, len(recipe.wide) * len(recipe.hidden))
            return -high, high
        if unit.parameter_bounds.get(name) == (0.0, 1.0):
            return turns((0.0,)), turns((1.0,))
        fan = 1 + unit.out_features if isinstance(unit, NALU) and name == "gate_bias" else 0
        bound = math.sqrt(6 / (fan or unit.in_features + unit.out_features))
        return turns((-bound,)), turns((bound,))

    def _inputs(self, unit: BaseLayer, recipe: Recipe, starts: int) -> Tensor:
        """Return the number of inputs that a power unit starts with ``[S]``: all if the data's."""
        features = unit.in_features
        if unit is self.units[0][0]:
            return torch.full((starts,), features)
        hidden = [recipe.hidden[s // len(recipe.wide) % len(recipe.hidden)] for s in range(starts)]
        return torch.tensor([min(n or features, features) for n in hidden])

    def start(
        self, generators: Sequence[torch.Generator], starts: int, recipe: Recipe
    ) -> list[Tensor]:
        """Return the starts of all problems, ``[problems * starts, ...]``, by their generators."""
        size = sum(self.sizes)
        drawn = (torch.rand(starts, size, generator=g, dtype=torch.float32) for g in generators)
        draws = torch.stack([*drawn])  # [problems, S, size]
        columns = zip(self.units, self.kinds, self.shapes, draws.split(self.sizes, 2), strict=True)
        parts = []
        for (unit, name), kind, shape, part in columns:
            bounds = self._start_bounds(unit, name, kind, recipe, starts)
            low, high = (bound.view(1, -1, 1) for bound in bounds)
            part = (low + (high - low) * part).view((len(draws), starts, *shape))
            if kind in (GATE, POWER):
                count = self._inputs(unit, recipe, starts).unsqueeze(1)
                used = torch.arange(unit.in_features) < count  # [S, I]
                part = part * (used if kind == GATE else used.unsqueeze(1))
            parts.append(part.flatten(2))
        return self.unflatten(torch.cat(parts, 2).flatten(0, 1).to(self.device, self.dtype))

    def project_(self, tensors: Sequence[Tensor]) -> None:
        """Clamp tensors ``[K, ...]`` into the intervals, in place."""
        for tensor, (low, high) in zip(tensors, self.intervals, strict=True):
            if low > -math.inf:
                tensor.clamp_(low, high)

    def rounded(self, flat: Tensor, denominator: int, kinds: Sequence[int]) -> Tensor:
        """Return rows ``[K, P]`` with kinds rounded: gates to 0 or 1, weights to fractions."""
        chosen = torch.isin(self.kind, torch.tensor(kinds, device=self.device))
        chosen &= self.kind != FREE
        fractions = nearest_fraction(flat, denominator)
        return torch.where(chosen, torch.where(self.kind == GATE, flat.round(), fractions), flat)

    @torch.no_grad()
    def errors(self, flat: Tensor, rows: Rows, problem: Tensor) -> Tensor:
        """Return the weighted mean squared errors ``[K]`` of models ``[K, P]`` of problems."""
        widest = max(max(unit.in_features, unit.out_features) for unit, _ in self.units)
        size = max(1, PART_BYTES // (8 * rows.x.shape[1] * widest))
        parts = []
        for part, owners in zip(flat.split(size), problem.split(size), strict=True):
            squares = (self(self.unflatten(part), rows.x[owners]) - rows.y[owners]).square_()
            parts.append((squares * rows.weight[owners]).mean((1, 2)))
        errors = torch.cat(parts) if parts else flat.new_empty(0)
        return errors.nan_to_num(nan=math.inf, posinf=math.inf)

    @torch.no_grad()
    def losses(self, rows: Rows, flat: Tensor, problem: int) -> Tensor:
        """Return the weighted squared errors ``[K, N]`` on a problem's rows, outputs' means."""
        result = self(self.unflatten(flat), rows.x[problem].expand(len(flat), -1, -1))
        squares = (result - rows.y[problem]).square_()
        losses: Tensor = (squares * rows.weight[problem]).mean(2)
        return losses.nan_to_num(nan=math.inf, posinf=math.inf)


# ---- units and constants -------------------------------------------------------------------------
#
# Rows of size 1 for the training, weights for the original rows, exact sums.
#
# x and y are divided by powers of two near their size. A layer whose weights may have any size gets
# the factors back: ``NAU(clip=False)`` as the first layer, or after a `RealNPU`, those of x, and as
# the last layer those of y.

NEAR_ONE = 0.1  # a coefficient within this distance of 1 or -1 is tried as 1 or -1
SMALLEST_SINGULAR = 1e-10  # share of the largest singular value; those below are dropped


def _free(unit: BaseLayer) -> bool:
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
        """Remove an eps that would count compared with inputs of another size."""
        units = units_of(models)
        if self._second is not None and self.x.any() and units:
            unit: Any = units[0][1]
            unit.eps = unit.eps or torch.finfo(unit.weight_re.dtype).tiny

    @torch.no_grad()
    def holdout_error(self, models: nn.Module, rows: Rows) -> Tensor:
        """Return the weighted mean squared errors ``[problems]`` of models for original rows.

        rows: those of the training.
        """
        x = _times(rows.x, self.x.unsqueeze(1)).to(self.template.dtype)
        with torch.autocast(x.device.type, enabled=False):
            y = models(x)
        error = _times(y.double(), -self.y.unsqueeze(1)) - rows.y
        holdout_error = (error.square_() * rows.weight).mean((1, 2))
        return holdout_error.nan_to_num(nan=math.inf, posinf=math.inf)


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


# ---- inputs of both signs ------------------------------------------------------------------------
#
# A fit of sizes and signs as separate inputs, and its equation as one of inputs.
#
# Between two integer exponents of a negative input, a power unit's cosine passes 0: training rarely
# crosses such a barrier. The power of a size ``|x|`` has none, and that of a sign needs only 0 or
# 1.


class Signs:
    """The signs of the inputs of a model's first power unit.

    Args:
        model: of any size; its other layers stay as they are.
        x: rows ``[N, I]``. `exist` says whether a number is negative, and the model takes signs.
    """

    def __init__(self, model: nn.Module, x: Tensor) -> None:
        self.model, self.x, self.inputs = model, x, x.shape[1]
        units = units_of(model)
        takes_signs = bool(units) and isinstance(units[0][1], (NPU, RealNPU))
        self.negative = (x < 0).any(0).cpu()
        self.exist = takes_signs and bool(self.negative.any())

    def rows(self) -> Tensor:
        """Return the sizes of all inputs, and behind them the signs of those that have both."""
        signs = torch.where(self.x < 0, -1.0, 1.0).to(self.x)
        return torch.cat([self.x.abs(), signs[:, self.negative]], 1)

    def wide(self) -> nn.Module:
        """Return the model with as many more inputs."""
        model = copy.deepcopy(self.model)
        unit: Any = units_of(model)[0][1]
        for name, parameter in list(unit.named_parameters(recurse=False)):
            more = parameter.detach()[..., self.negative.to(parameter.device)]
            setattr(unit, name, nn.Parameter(torch.cat([parameter.detach(), more], -1)))
        unit.in_features += int(self.negative.sum())
        return model

    def merged(self, model: nn.Module) -> nn.Module | None:
        """Return a fitted wide model, without num_models, as one of the inputs.

        None where it is none: where the exponent of a sign is not that of the input, modulo 2.
        """
        model = copy.deepcopy(model)
        unit: Any = units_of(model)[0][1]
        gate, imaginary = unit.gate.detach(), getattr(unit, "weight_im", None)
        power = (unit.weight_re.detach() * gate)[:, : self.inputs][:, self.negative]
        of_sign = (unit.weight_re.detach() * gate)[:, self.inputs :]
        fits = (power == power.round()).all() and ((power - of_sign) % 2 == 0).all()
        is_real = imaginary is None or not (imaginary * gate).any()
        if not (fits and is_real and ((gate == 0) | (gate == 1)).all()):
            return None
        for name, parameter in list(unit.named_parameters(recurse=False)):
            inputs = parameter.detach()[..., : self.inputs].clone()
            setattr(unit, name, nn.Parameter(inputs, parameter.requires_grad))
        unit.in_features = self.inputs
        return model
