"""The parameters of a batch of models: a list of tensors ``[K, ...]``, or one row per model, ``[K, P]``.

The module itself is only a template: its layers do not look at their number of models, so a batch may have any.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from npu_kernels.fitting._recipe import Recipe
from npu_kernels.formula import nearest_fraction
from npu_kernels.layers import NALU, NAU, NPU, NaiveNPU, RealNPU, Unit

# What a parameter is. A coefficient, the weight of a sum that is not clipped, may have any size and unit: it is rounded
# only where the data are exact. A free one is never rounded.
GATE, POWER, LINEAR, FREE, COEFFICIENT = range(5)

CHUNK = 2**25  # bytes of one tensor when many models are evaluated at once


def chain(model: nn.Module, path: str = "") -> list[tuple[str, Unit]] | None:
    """The units of a layer or a Sequential in their order, with their paths; None for other modules."""
    if isinstance(model, Unit):
        return [(path, model)]
    if not isinstance(model, nn.Sequential):
        return [] if isinstance(model, nn.Identity) else None
    found: list[tuple[str, Unit]] = []
    for name, part in model.named_children():
        inner = chain(part, f"{path}.{name}" if path else name)
        if inner is None:
            return None
        found += inner
    return found


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
    """The names, shapes, kinds and intervals of a batch of models' parameters, from its module.

    Args:
        function: for messages.
        model: its units have one num_models; other modules in it must have neither parameters nor buffers.
        recipe: bounds.
    """

    def __init__(self, function: str, model: nn.Module, recipe: Recipe) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(
                f"{function}: model must be a torch.nn.Module, got {type(model).__name__}"
            )
        owned = {}
        counts: set[Any] = set()
        for path, unit in model.named_modules():
            if isinstance(unit, Unit):
                counts.add(unit.num_models)
                for name, _ in unit.named_parameters(recurse=False):
                    owned[f"{path}.{name}" if path else name] = (unit, name)
        named = dict(model.named_parameters())
        if not owned:
            raise ValueError(
                f"{function}: model must have units of npu_kernels, got {type(model).__name__} without any"
            )
        for name in [*named, *dict(model.named_buffers())]:
            if name not in owned:
                raise ValueError(
                    f"{function}: every parameter of model must belong to a unit of npu_kernels, got {name}"
                )
        if len(counts) > 1 or None in counts:
            raise ValueError(
                f"{function}: every unit of model must have the same num_models (the number of starts), "
                f"got {sorted(counts, key=str)}"
            )
        self.num_models: int = counts.pop()
        self.model = model
        self.names, self.units = list(named), [owned[name] for name in named]
        tensors = list(named.values())
        self.device, self.dtype = tensors[0].device, tensors[0].dtype
        if any(t.dtype != self.dtype or t.device != self.device for t in tensors):
            raise ValueError(
                f"{function}: all parameters of model must have one dtype and one device"
            )
        if self.dtype not in (torch.float32, torch.float64):
            raise TypeError(f"{function}: model must be float32 or float64, got {self.dtype}")
        if self.device.type == "meta":
            raise ValueError(
                f"{function}: model must be on a device that computes, got {self.device}"
            )
        self.shapes = [tuple(t.shape[1:]) for t in tensors]
        self.sizes = [math.prod(shape) for shape in self.shapes]
        self.kinds = [_kind(*owner) for owner in self.units]
        self.intervals = [
            _interval(*owner, kind, recipe.bound)
            for owner, kind in zip(self.units, self.kinds, strict=True)
        ]
        # Of each of the P parameters of one model:
        self.kind = torch.cat(
            [torch.full((n,), k) for n, k in zip(self.sizes, self.kinds, strict=True)]
        )
        self.kind = self.kind.to(self.device)

    def has(self, *kinds: int) -> bool:
        """Whether there are parameters of one of these kinds."""
        return any(kind in kinds for kind in self.kinds)

    def __call__(self, tensors: Sequence[Tensor], x: Tensor) -> Tensor:
        """The models' results ``[K, B, O]`` for x ``[K, B, I]`` or a shared ``[B, I]``."""
        result: Tensor = functional_call(
            self.model, dict(zip(self.names, tensors, strict=True)), (x,)
        )
        return result

    # ---- forms of the parameters ---------------------------------------------------------------------------------

    def flatten(self, tensors: Sequence[Tensor]) -> Tensor:
        """``[K, P]``."""
        return torch.cat([t.flatten(1) for t in tensors], 1)

    def unflatten(self, flat: Tensor) -> list[Tensor]:
        """Contiguous tensors ``[K, ...]``."""
        parts = flat.split(self.sizes, 1)
        return [
            part.contiguous().view(-1, *shape)
            for part, shape in zip(parts, self.shapes, strict=True)
        ]

    def build(self, flat: Tensor, single: bool) -> nn.Module:
        """A new module with these parameters: K models, or one without a model dimension from ``[1, P]``."""
        model = copy.deepcopy(self.model)
        parameters = dict(model.named_parameters())
        for name, tensor in zip(self.names, self.unflatten(flat.to(self.dtype)), strict=True):
            parameters[name].grad = None
            parameters[name].data = (tensor[0] if single else tensor).clone()
        for unit in model.modules():
            if isinstance(unit, Unit):
                unit.num_models = None if single else len(flat)
        return model

    def module(self, tensors: Sequence[Tensor]) -> nn.Module:
        """A new module of K models whose parameters are these tensors, ``[K, ...]`` each."""
        model = copy.deepcopy(self.model)
        parameters = dict(model.named_parameters())
        for name, tensor in zip(self.names, tensors, strict=True):
            parameters[name].requires_grad_().grad = None
            parameters[name].data = tensor
        for unit in model.modules():
            if isinstance(unit, Unit):
                unit.num_models = len(tensors[0])
        return model

    # ---- starts, intervals, rounding -----------------------------------------------------------------------------

    def _ends(
        self, unit: Unit, name: str, kind: int, recipe: Recipe, starts: int
    ) -> tuple[Tensor, Tensor]:
        """Low and high end of the uniform distribution that each start ``[S]`` is drawn from."""

        def turns(values: tuple[Any, ...], every: int = 1) -> Tensor:
            return torch.tensor([values[s // every % len(values)] for s in range(starts)])

        if kind == GATE:
            return turns(recipe.gates), turns(recipe.gates)
        if kind == POWER:
            high = turns(recipe.wide) * (2 / self._inputs(unit, recipe, starts)).sqrt().clamp(max=1)
            if name == "weight_im":
                # Its turns change after a round of those of the real part, so that every combination comes up.
                high = high * turns(recipe.imaginary, len(recipe.wide) * len(recipe.hidden))
            return -high, high
        if unit.intervals.get(name) == (0.0, 1.0):
            return torch.zeros(starts), torch.ones(starts)
        fan = 1 + unit.out_features if isinstance(unit, NALU) and name == "gate_bias" else 0
        bound = math.sqrt(6 / (fan or unit.in_features + unit.out_features))
        return torch.full((starts,), -bound), torch.full((starts,), bound)

    def _inputs(self, unit: Unit, recipe: Recipe, starts: int) -> Tensor:
        """How many of its inputs a power unit starts with ``[S]``: all of them if they are the data's."""
        most = unit.in_features
        if unit is self.units[0][0]:
            return torch.full((starts,), most)
        hidden = [recipe.hidden[s // len(recipe.wide) % len(recipe.hidden)] for s in range(starts)]
        return torch.tensor([min(n or most, most) for n in hidden])

    def start(
        self, generators: Sequence[torch.Generator], starts: int, recipe: Recipe
    ) -> list[Tensor]:
        """The starts of all problems, ``[problems * starts, ...]``; a problem's are its own generator's."""
        draws = torch.stack(
            [torch.rand(starts, sum(self.sizes), generator=g) for g in generators]
        )  # [P, S, ...]
        parts = []
        for (unit, name), kind, shape, part in zip(
            self.units, self.kinds, self.shapes, draws.split(self.sizes, 2), strict=True
        ):
            low, high = (end.view(1, -1, 1) for end in self._ends(unit, name, kind, recipe, starts))
            part = (low + (high - low) * part).view(len(draws), starts, *shape)
            if kind in (GATE, POWER):
                used = torch.arange(unit.in_features) < self._inputs(
                    unit, recipe, starts
                ).unsqueeze(1)  # [S, I]
                part = part * (used if kind == GATE else used.unsqueeze(1))
            parts.append(part.flatten(2))
        return self.unflatten(torch.cat(parts, 2).flatten(0, 1).to(self.device, self.dtype))

    def project_(self, tensors: Sequence[Tensor]) -> None:
        """Clamp into the intervals, in place."""
        for tensor, (low, high) in zip(tensors, self.intervals, strict=True):
            if low > -math.inf:
                tensor.clamp_(low, high)

    def rounded(
        self, flat: Tensor, denominator: int, kinds: Sequence[int] = (GATE, POWER, LINEAR)
    ) -> Tensor:
        """Rows ``[K, P]`` with the parameters of these kinds rounded: gates to 0 or 1, weights to fractions."""
        result = flat
        if GATE in kinds:
            result = torch.where(self.kind == GATE, flat.round(), result)
        chosen = torch.zeros_like(self.kind, dtype=torch.bool)
        for kind in (POWER, LINEAR, COEFFICIENT):
            if kind in kinds:
                chosen |= self.kind == kind
        return torch.where(chosen, nearest_fraction(flat, denominator), result)

    @torch.no_grad()
    def errors(self, flat: Tensor, x: Tensor, y: Tensor, weight: Tensor, problem: Tensor) -> Tensor:
        """Weighted mean squared errors ``[K]`` of rows ``[K, P]`` on x, y, weight ``[problems, N, ...]``, in pieces."""
        widest = max(max(unit.in_features, unit.out_features) for unit, _ in self.units)
        piece = max(1, CHUNK // (8 * x.shape[1] * widest))
        found = []
        for part, which in zip(flat.split(piece), problem.split(piece), strict=True):
            result = self(self.unflatten(part), x[which])
            found.append(((result - y[which]).square_() * weight[which]).mean((1, 2)))
        errors = torch.cat(found) if found else flat.new_empty(0)
        return errors.nan_to_num(nan=math.inf, posinf=math.inf)

    @torch.no_grad()
    def losses(self, flat: Tensor, x: Tensor, y: Tensor, weight: Tensor, problem: int) -> Tensor:
        """Weighted squared errors of each row ``[K, N]``, means over the outputs, of rows of one problem."""
        result = self(self.unflatten(flat), x[problem].expand(len(flat), -1, -1))
        found: Tensor = ((result - y[problem]).square_() * weight[problem]).mean(2)
        return found.nan_to_num(nan=math.inf, posinf=math.inf)
