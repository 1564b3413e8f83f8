"""A training step for loops of one's own: one call of C++ on the CPU, one CUDA graph on a GPU."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from npu_kernels._common.checks import check_choice, check_module
from npu_kernels._operators import fast_path
from npu_kernels.layers import NAU
from npu_kernels.layers._chains import chain, num_models_of
from npu_kernels.training import _fallbacks as fallbacks
from npu_kernels.training._arguments import (
    Schedule,
    check_data,
    check_optimizer,
    check_sample_weight,
    check_weight_values,
    checked_penalties,
    checked_weight,
    projection,
    schedule_values,
)
from npu_kernels.training._captured import Captured, CapturedStep
from npu_kernels.training._fallbacks import Facts
from npu_kernels.training._plan import Fused
from npu_kernels.training._run import fastest
from npu_kernels.training._steps import Loop, Ordinary

LOOK_AGAIN = 64  # eager steps until a faster loop is looked for, if no fact has changed


def make_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    loss: str = "mse",
    penalties: Mapping[str, Schedule] | None = None,
    project: bool | float = True,
    nonfinite: str = "keep",
) -> Step:
    """Return a function that runs one training step, for a loop of your own.

    ``step(x, y, sample_weight=None)`` runs forward, mean squared error, penalties, backward, the
    optimizer's step and the projection. It returns the loss before the step, without penalties and
    detached: a tensor ``[]``, or ``[K]`` with `num_models`. It has the same effect as eager PyTorch
    code, up to rounding. Do not rely on the gradients (``.grad``) afterwards: they are None or the
    gradients of the step, depending on how it ran.

    On the CPU, the step is one C++ call for the models and optimizers (Adam, AdamW, RMSprop) that
    `run` supports in C++. On a GPU it is a CUDA graph for the models and optimizers that `run`
    captures; the first steps run eagerly, and so do the first steps after the shape of the data has
    changed. Any other model or optimizer falls back to a standard PyTorch step, and one warning
    gives the reason. Changes between calls take effect: learning rates and other settings of the
    optimizer, its state, `requires_grad`, parameters, hooks, options of layers. Only hooks of a
    parameter's AccumulateGrad node are not detected. Schedulers of `torch.optim.lr_scheduler` work
    as in any loop.

    Args:
        model: a module; all its layers have the same num_models K, or all have None.
        optimizer: an optimizer of `torch.optim` with parameters of the model, whose step needs no
            closure.
        loss: "mse", the mean over rows and outputs, separately for each model.
        penalties: dict of names and weights, as in `run`. The names are "l1", "frobenius",
            "madsen", "paper" and "integer". A weight is a number, a `SteppedSchedule` or a function
            of the number of the call (from 1).
        project: what is clamped after each step (`project_`). True: the gates, to [0, 1]. A number
            w: also the weights of NPU, RealNPU and NaiveNPU, to [-w, w], and the weights of NAU,
            NMU and NMRU, to their own intervals. False: nothing.
        nonfinite: "keep", or "zero" to replace entries of gradients that are not finite by 0.

    The step's arguments are ``x [N, I]`` or ``[K, N, I]``, the targets ``y [N, O]`` or ``[K, N,
    O]``, and factors w of the squared errors, of the shape of y, finite and nonnegative. The loss
    is then the mean of ``w * (output - y)**2``, not divided by the sum of w.

    Raises TypeError and ValueError for invalid arguments.

        >>> import torch
        >>> from npu_kernels import NAU, NPU
        >>> from npu_kernels.training import make_step
        >>> model = torch.nn.Sequential(NPU(2, 6), NAU(6, 1))
        >>> step = make_step(model, torch.optim.Adam(model.parameters(), lr=1e-2))
        >>> for _ in range(10):
        ...     x = torch.rand(32, 2) + 0.1
        ...     loss = step(x, x.prod(1, keepdim=True))
        >>> loss.shape
        torch.Size([])
    """
    check_module("make_step", "model", model)
    if loss != "mse":
        raise ValueError(f"make_step: loss must be 'mse', got {loss!r}")
    check_choice("make_step", "nonfinite", nonfinite, ("keep", "zero"))
    if not isinstance(optimizer, torch.optim.Optimizer):
        got = type(optimizer).__name__
        raise TypeError(f"make_step: optimizer must be a torch.optim.Optimizer, got {got}")
    models = num_models_of("make_step", model.modules())
    check_optimizer("make_step", model.parameters(), optimizer)
    weights = checked_penalties("make_step", model, penalties)
    gates, bound = projection("make_step", project)
    return Step(model, optimizer, models, weights, gates, bound, nonfinite == "zero")


class Step:
    """A training step. Use `make_step`, which checks the arguments; the constructor does not.

    Args:
        model: the model that is trained.
        optimizer: the optimizer whose state is continued.
        models: K of the model's layers, or None.
        penalties: dict of names and weights.
        gates: whether the gates are clamped after a step.
        bound: bound of the weights, or None.
        finite: whether entries of gradients that are not finite are replaced by 0.

    Attributes:
        n_steps: number of steps that were run.
        fused: whether the last step ran in C++.
        captured: whether the last step ran as a CUDA graph.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        models: int | None,
        penalties: dict[str, Schedule],
        gates: bool,
        bound: float | None,
        finite: bool,
    ) -> None:
        self.n_steps, self.fused, self.captured = 0, False, False
        self._model, self._optimizer, self._models = model, optimizer, models
        self._penalties = penalties
        self._settings: dict[str, Any] = {"gates": gates, "bound": bound, "finite": finite}
        self._varies = any(not isinstance(weight, (int, float)) for weight in penalties.values())
        self._facts: Facts | None = None
        self._plan: Any = None  # as long as the facts hold
        self._graph: CapturedStep | None = None

    def __call__(self, x: Tensor, y: Tensor, sample_weight: Tensor | None = None) -> Tensor:
        """Make a step; return its loss before it."""
        if self._varies:  # a wrong call must not advance a schedule
            self._check(x, y, sample_weight)
        weights = [self._weight(name) for name in self._penalties]
        loss: Any = NotImplemented
        rates = None if self._facts is None else self._facts.rates()
        if rates is not None and self._plan is not None:
            assert fast_path.training_step is not None
            state, values = self._optimizer.state, [*rates, *weights]
            loss = fast_path.training_step(self._plan, state, x, y, sample_weight, values)
        if loss is NotImplemented:
            # What made the step before an eager one need not be in the facts, so it is looked
            # for again now and then.
            looks = self._plan is not None or self.n_steps % LOOK_AGAIN == 0
            loss = self._general(x, y, sample_weight, weights, rates is None or looks)
        self.n_steps += 1
        return loss  # type: ignore[no-any-return]

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy has: plans and graphs are of the original's tensors."""
        return vars(self) | {"_facts": None, "_plan": None, "_graph": None}

    def _check(self, x: Tensor, y: Tensor, weight: Tensor | None) -> None:
        modules = list(self._model.modules())
        parameters = [p for part in modules for p in part._parameters.values() if p is not None]
        check_data("step", self._model, next(iter(parameters), None), x, y, self._models)
        check_sample_weight("step", weight, y)
        fallbacks.check_memory("step", modules, x=x, y=y, sample_weight=weight)
        check_weight_values("step", weight)

    def _weight(self, name: str) -> float:
        """Return the weight of a penalty at the next step."""
        schedule = self._penalties[name]
        if isinstance(schedule, (int, float)):
            return float(schedule)
        check = functools.partial(checked_weight, "step", name)
        return schedule_values(schedule, check, self.n_steps, 1).item()

    @torch.inference_mode(False)
    def _general(
        self, x: Tensor, y: Tensor, weight: Tensor | None, weights: list[float], look: bool
    ) -> Tensor:
        """Make a step by a loop of `run`; note what later ones may rely on.

        look: for the fastest loop. Otherwise it is the standard one, which is always right.
        """
        self._check(x, y, weight)
        data = [x.contiguous(), y.contiguous()]
        data += [] if weight is None else [weight.contiguous()]
        kind: type[Loop] = Ordinary
        if look:
            self._facts = self._plan = None
            kind = fastest(self._model, self._optimizer, data, CapturedStep.consequence)
        rates = [float(group["lr"]) for group in self._optimizer.param_groups]
        schedules = torch.tensor([*rates, *weights], dtype=torch.float64, device="cpu")[:, None]
        if kind is Captured:
            loop: Loop = self._captured(data)
        else:
            self._graph = None
            loop = self._loop(kind, data)
        loop.advance(0, None, schedules)
        self.fused = kind is Fused
        self.captured = isinstance(loop, CapturedStep) and loop.graph is not None
        if self.fused:
            self._keep(loop, schedules)
        elif look and kind is Ordinary and x.is_cpu:
            self._facts = Facts(self._model, self._optimizer)
        if hasattr(self._optimizer.step, "_wrapped_by_lr_sched"):  # else schedulers warn
            self._optimizer._opt_called = True  # type: ignore[attr-defined]
        return loop.losses[0].clone()

    def _loop(self, kind: type[Loop], data: list[Tensor]) -> Loop:
        x, y, *rest = data
        shape = (1,) if self._models is None else (1, self._models)
        return kind(
            model=self._model,
            models=self._models,
            optimizer=self._optimizer,
            x=x,
            y=y,
            weight=rest[0] if rest else None,
            penalties=list(self._penalties),
            losses=x.new_full(shape, math.nan),
            every=1,
            **self._settings,
        )

    def _captured(self, data: list[Tensor]) -> CapturedStep:
        """Return the loop with the graph for data of these shapes, which it has."""
        if self._graph is None or not self._graph.take(data):
            loop = self._loop(CapturedStep, [tensor.clone() for tensor in data])
            assert isinstance(loop, CapturedStep)
            self._graph = loop
        return self._graph

    def _keep(self, loop: Loop, schedules: Tensor) -> None:
        """Keep the plan of a step in C++, and the facts that it relies on."""
        if fast_path.training_plan is None:
            return
        assert isinstance(loop, Fused)
        number, operands = loop.kept(schedules)
        states = dict(zip(map(id, operands.trained), operands.states, strict=True))
        written = set(map(id, operands.written))
        entries = [
            (p, id(p) in states, id(p) in written, states.get(id(p))) for p in operands.parameters
        ]
        layers = [layer for _, layer in chain(self._model)]
        full = loop.x.dtype is torch.float32 and any(isinstance(layer, NAU) for layer in layers)
        sizes = self._models or 0, loop.x.shape[-1], loop.y.shape[-1], full
        self._plan = fast_path.training_plan(number, entries, sizes)
        self._facts = Facts(self._model, self._optimizer)
