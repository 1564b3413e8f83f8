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

from npu_kernels._common.chains import full_name
from npu_kernels._common.checks import check_module
from npu_kernels.fitting._data import Rows
from npu_kernels.fitting._records import Recipe
from npu_kernels.formula import nearest_fraction
from npu_kernels.layers import NALU, NAU, NPU, NaiveNPU, RealNPU, Unit

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
        fields = zip(*((p.flat, p.problem, p.start) for p in parts), strict=True)
        return Population(*map(torch.cat, fields))


def _kind(unit: Unit, name: str) -> int:
    if isinstance(unit, (NPU, RealNPU, NaiveNPU)):
        return GATE if name == "gate" else POWER
    if isinstance(unit, NAU) and not unit.clip:
        return COEFFICIENT
    return LINEAR if unit.whole_weights else FREE


def _interval(unit: Unit, name: str, kind: int, bound: float) -> tuple[float, float]:
    if kind == POWER:
        return -bound, bound
    interval = unit.intervals.get(name)
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
            if isinstance(unit, Unit):
                counts.add(unit.num_models)
                for name, _ in unit.named_parameters(recurse=False):
                    owners[full_name(path, name)] = (unit, name)
        named = dict(model.named_parameters())
        if not owners:
            got = f"{type(model).__name__} without any"
            raise ValueError(f"{function}: model must have units of npu_kernels, got {got}")
        for name in [*named, *dict(model.named_buffers())]:
            if name not in owners:
                rule = "every parameter of model must belong to a unit of npu_kernels"
                raise ValueError(f"{function}: {rule}, got {name}")
        if len(counts) > 1 or None in counts:
            rule = "every unit of model must have the same num_models (the number of starts)"
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
        self.kinds = [_kind(*owner) for owner in self.units]
        self.intervals = [
            _interval(*owner, kind, recipe.bound)
            for owner, kind in zip(self.units, self.kinds, strict=True)
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
        return [part.contiguous().view(-1, *shape) for part, shape in parts]

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
            if isinstance(unit, Unit):
                unit.num_models = len(tensors[0])
        return model

    # ---- starts, intervals, rounding -------------------------------------------------------------

    def _start_bounds(
        self, unit: Unit, name: str, kind: int, recipe: Recipe, starts: int
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
        if unit.intervals.get(name) == (0.0, 1.0):
            return turns((0.0,)), turns((1.0,))
        fan = 1 + unit.out_features if isinstance(unit, NALU) and name == "gate_bias" else 0
        bound = math.sqrt(6 / (fan or unit.in_features + unit.out_features))
        return turns((-bound,)), turns((bound,))

    def _inputs(self, unit: Unit, recipe: Recipe, starts: int) -> Tensor:
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
            part = (low + (high - low) * part).view(len(draws), starts, *shape)
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
