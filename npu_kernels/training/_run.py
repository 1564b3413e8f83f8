"""A whole training: rows, steps, losses, progress, checkpoints."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn

from npu_kernels._common import checks, display
from npu_kernels._common.checks import check_choice, check_module, check_whole, warn
from npu_kernels._jobs.checkpoint import check_same, described, digest, fingerprint, like, plain
from npu_kernels._jobs.driver import drive
from npu_kernels.layers import BaseLayer
from npu_kernels.layers._chains import num_models_of
from npu_kernels.training import _captured as captured
from npu_kernels.training import _fallbacks as fallbacks
from npu_kernels.training._arguments import (
    DrawnRows,
    Schedule,
    check_data,
    check_sample_weight,
    check_weight_values,
    checked_penalties,
    checked_rate,
    checked_weight,
    listed_callbacks,
    made_optimizer,
    projection,
    schedule_values,
)
from npu_kernels.training._captured import Captured
from npu_kernels.training._penalties import SteppedSchedule
from npu_kernels.training._plan import Fused
from npu_kernels.training._steps import Loop, Ordinary

# Settings of an optimizer's group that decide no numbers.
_IMPLEMENTATION = {"params", "foreach", "fused", "capturable", "differentiable"}


def described_setting(setting: Any) -> str:
    """Return a setting as text, numbers by their values; a function's values cannot be compared."""
    if isinstance(setting, Tensor):
        return described_setting(setting.tolist())
    if isinstance(setting, (bool, str, type(None))):
        return repr(setting)
    if isinstance(setting, Real):
        return repr(float(setting))
    if isinstance(setting, (tuple, list)):
        return f"({', '.join(map(described_setting, setting))})"
    if isinstance(setting, SteppedSchedule):
        settings = (setting.start, setting.end, setting.interval, setting.growth)
        return f"{type(setting).__name__}{described_setting(settings)}"
    return f"a {type(setting).__name__}"


def optimizer_settings(
    optimizer: torch.optim.Optimizer, model: nn.Module, lr: Any
) -> dict[str, str]:
    """Return an optimizer's parameters and settings as text; lr: that of `run`."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = optimizer.param_groups
    trained = [[names.get(id(p), "another") for p in group["params"]] for group in groups]
    facts = {"optimizer": type(optimizer).__name__, "optimizer.params": str(trained)}
    for name in sorted({name for group in groups for name in group} - _IMPLEMENTATION):
        values = [described_setting(group.get(name)) for group in groups]
        facts[f"optimizer.{name}"] = ", ".join(values)
    if callable(lr):  # the groups have its last value
        facts["optimizer.lr"] = described_setting(lr)
    return facts


# ---- the choice of a loop ------------------------------------------------------------------------


def loop_for(
    model: nn.Module, optimizer: torch.optim.Optimizer, data: Sequence[Tensor]
) -> tuple[type[Loop], str | None]:
    """Return the class of the fastest loop, and the reason if it is the standard one.

    data: x, and where they are known y and the weight of errors.
    """
    if data[0].is_cuda:
        reason = captured.reason(model, optimizer, data[0])
        return (Captured, None) if reason is None else (Ordinary, reason)
    reason = fallbacks.reason(model, optimizer, data)
    return (Fused, None) if reason is None else (Ordinary, reason)


# ---- run -----------------------------------------------------------------------------------------

MAX_SAMPLED_ROWS = 2**22  # rows drawn at once
FIRST_SLICE = 16  # steps: a short training is one call
MAX_LOSSES = 1000  # of a run unless `record_every` says otherwise

_warned: set[str] = set()


@dataclass(frozen=True)
class TrainingResult:
    """What `run` returns and passes to callbacks.

    Attributes:
        model: the model of the call, trained in place.
        optimizer: the optimizer with torch's state; a later run continues with it.
        n_steps: number of steps that were run.
        losses: at every `record_every`-th step, from the first one on, the mean squared error of
            the rows of that step before its update, without penalties. ``[records]``, or
            ``[records, K]`` with models, in the model's dtype.
        record_every: steps between two recorded losses.
        fused: whether the steps ran in C++, many in a call.
        captured: whether the steps ran as a CUDA graph, except the first ones.
        complete: whether all steps were run: neither Ctrl-C nor a callback ended the run.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    n_steps: int
    losses: Tensor
    record_every: int
    fused: bool
    captured: bool
    complete: bool

    def _rows(self) -> list[tuple[str, object]]:
        losses = self.losses.flatten(1) if self.losses.dim() > 1 else self.losses[:, None]
        first_last = [f"{float(losses[i].min()):.3g}" for i in (0, -1)] if len(losses) else ["", ""]
        maker = (
            "C++"
            if self.fused
            else "a CUDA graph"
            if self.captured
            else "the standard PyTorch loop"
        )
        return [
            ("steps", self.n_steps),
            ("made by", maker),
            ("first and last loss", " and ".join(first_last)),
            ("models", losses.shape[1]),
            ("complete", "yes" if self.complete else "no"),
        ]

    def __str__(self) -> str:
        return display.text(type(self.model).__name__, self._rows())

    def _repr_html_(self) -> str:
        return display.table(type(self.model).__name__, (), self._rows())


Callback = Callable[[TrainingResult], Any]


@torch.inference_mode(False)
def run(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    steps: int,
    optimizer: str | torch.optim.Optimizer = "adam",
    lr: float | Callable[[int], float] | None = None,
    batch_size: int | None = None,
    batch_indices: Tensor | None = None,
    generator: torch.Generator | None = None,
    loss: str = "mse",
    sample_weight: Tensor | None = None,
    penalties: Mapping[str, Schedule] | None = None,
    project: bool | float = True,
    nonfinite: str = "keep",
    record_every: int | None = None,
    callbacks: Callback | Iterable[Callback] | None = None,
    callback_every: int | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: bool | None = None,
) -> TrainingResult:
    """Train a model in place.

    A step is forward, mean squared error, penalties, backward, optimizer and projection. On the
    CPU, the steps of an NPU, RealNPU, NaiveNPU, NAU, NMU or NMRU layer, or of a `Sequential` of
    them, run in C++, many in each call, for one or K models in float32 or float64. On a GPU, a step
    of a `Sequential` of this package's layers, `nn.Linear` and activations is captured in a CUDA
    graph and replayed, provided that callbacks are at least 16 steps apart. The results equal those
    of the standard PyTorch loop, up to rounding. Any other model, optimizer, device or setting
    falls back to that loop, and one warning gives the reason. Hooks and replaced methods also cause
    the fallback, even if a callback adds them during the run. One exception: hooks of a parameter's
    AccumulateGrad node are not detected, and the steps in C++ ignore them.

    Args:
        model: a module; all its layers have the same num_models K, or all have None.
        x: ``[N, I]``, or ``[K, N, I]`` with separate rows for each model.
        y: targets ``[N, O]``, or ``[K, N, O]``.
        steps: number of training steps.
        optimizer: "adam" or "rmsprop" for the optimizer of torch with default settings (Adam on a
            GPU: fused), or an optimizer of `torch.optim` with parameters of the model, whose state
            is continued and whose step needs no closure. Adam, AdamW and RMSprop run in C++ and in
            CUDA graphs, unless amsgrad, capturable or differentiable is set.
        lr: learning rate, or a function of the step (from 1); None: the optimizer's own, torch's
            default for "adam" and "rmsprop".
        batch_size: rows per step, sampled uniformly with replacement, the same for all models;
            None: all rows.
        batch_indices: rows of each step, in place of `batch_size`: ``[steps, batch]`` int64. To use
            each row once, in order, pass ``torch.arange(len(x)).view(steps, batch)``.
        generator: random generator that samples the rows; None: a new generator, seeded from
            torch's.
        loss: "mse", the mean over rows and outputs, separately for each model.
        sample_weight: nonnegative factors w of the squared errors, of the shape of y. The loss,
            also the recorded one, is the mean of ``w * (output - y)**2``, not divided by the sum of
            w. None: 1.
        penalties: dict of names and weights. A weight is a number, a `SteppedSchedule` or a
            function of the step (from 1). Penalties on all parameters p: "l1" is ``sum |p|``;
            "frobenius" is the sum of the parameter tensors' Frobenius norms; "integer" is ``sum
            min(|p|, |1 - |p||)``. Penalties on the weights w of NAU, NMU and NMRU (`regularizer`):
            "madsen" is ``sum min(|w|, |1 - |w||)``; "paper" is ``sum min(|w|, |1 - w|)``.
        project: what is clamped after each step (`project_`); parameters that are not trained are
            clamped too. True: the gates, to [0, 1]. A number w: also the weights of NPU, RealNPU
            and NaiveNPU, to [-w, w], and the weights of NAU, NMU and NMRU, to their own intervals.
            False: nothing.
        nonfinite: "keep", or "zero" to replace entries of gradients that are not finite by 0.
        record_every: steps between two recorded losses; None: the smallest number with at most
            1,000 recorded losses.
        callbacks: a function or several, called with a `TrainingResult` every `callback_every`
            steps; if one returns True, the run ends.
        callback_every: steps between calls of the callbacks; None: a hundredth of the steps.
        checkpoint: a file. If it exists, the run continues from it with the same results as without
            an interruption. The file is written in the first seconds, every half a minute, at the
            end, and before SIGTERM ends the process. It restores parameters, buffers, the
            optimizer's state, schedules and the generator. All settings must be those of the first
            call, including steps, `record_every`, the optimizer's settings, the generator's seed
            and which parameters require gradients. If lr or a penalty is a function, pass the same
            function: this is not checked. The optimizer's settings and the states of schedules must
            be numbers, text, tensors, or lists and dicts of these. A model that samples random
            numbers itself, such as with dropout, samples other numbers after it is resumed.
        progress: whether progress is shown on stderr; None: if stderr is a terminal.

    Returns:
        A `TrainingResult`. Ctrl-C ends the run after the steps that are under way, saves it if
        there is a checkpoint, and returns the steps so far with `complete` False; a second Ctrl-C
        raises KeyboardInterrupt. Do not rely on the gradients (``.grad``) afterwards: they are None
        or the gradients of the last step, depending on how the steps ran.

    Raises:
        TypeError, ValueError: an argument is invalid; ValueError: the checkpoint is damaged or
            belongs to a different run.
        OSError: the checkpoint cannot be written.

    Source of penalties and schedule: Heim, Pevny, Smidl, "Neural Power Units", NeurIPS 2020.

        >>> import torch
        >>> from npu_kernels import NAU, RealNPU
        >>> from npu_kernels.training import run
        >>> model = torch.nn.Sequential(RealNPU(2, 6), NAU(6, 1))
        >>> x = torch.rand(100, 2) + 0.5
        >>> result = run(model, x, x.prod(1, keepdim=True), steps=200, lr=1e-2)
        >>> result.n_steps, result.losses.shape
        (200, torch.Size([200]))
    """
    check_module("run", "model", model)
    steps = check_whole("run", "steps", steps)
    if loss != "mse":
        raise ValueError(f"run: loss must be 'mse', got {loss!r}")
    modules = list(model.modules())
    models = num_models_of("run", modules)
    parameters = [p for part in modules for p in part._parameters.values() if p is not None]
    check_data("run", model, next(iter(parameters), None), x, y, models)
    check_sample_weight("run", sample_weight, y)
    fallbacks.check_memory(
        "run", modules, x=x, y=y, sample_weight=sample_weight, batch_indices=batch_indices
    )
    check_weight_values("run", sample_weight)
    check_choice("run", "nonfinite", nonfinite, ("keep", "zero"))
    drawn = DrawnRows(x.shape[-2], steps, batch_size, batch_indices, generator)
    weights = checked_penalties("run", model, penalties)
    gates, bound = projection("run", project)
    torch_optimizer = made_optimizer(model, parameters, optimizer, lr)
    record_every = -(-steps // MAX_LOSSES) if record_every is None else record_every
    record_every = check_whole("run", "record_every", record_every)
    if callback_every is not None:
        callback_every = check_whole("run", "callback_every", callback_every)
    functions = listed_callbacks(callbacks)
    data = [x.contiguous(), y.contiguous()]
    data += [] if sample_weight is None else [sample_weight.contiguous()]
    kind = fastest(model, torch_optimizer, data)
    shape = (-(-steps // record_every), *(() if models is None else (models,)))
    loop = kind(
        model=model,
        models=models,
        optimizer=torch_optimizer,
        x=data[0],
        y=data[1],
        weight=None if sample_weight is None else data[2],
        penalties=list(weights),
        gates=gates,
        bound=bound,
        finite=nonfinite == "zero",
        losses=x.new_full(shape, math.nan),
        every=record_every,
    )
    task = _Task(loop, steps, drawn, lr, weights)
    between = callback_every or -(-steps // 100)
    slice_steps = steps if batch_size is None else max(1, MAX_SAMPLED_ROWS // drawn.batch)

    def limit() -> int:
        return min(slice_steps, between - task.done % between) if functions else slice_steps

    def ended() -> bool:
        if not functions or (task.done % between and task.done < steps):
            return False
        answers = [function(task.result(task.done == steps)) for function in functions]
        if any(answer is True for answer in answers):
            return True
        if task.done < steps and fastest(model, torch_optimizer, data) is not type(task.loop):
            task.fall_back()  # a callback has changed what the fast one does not see
        return False

    drive(task, progress, checkpoint, first=FIRST_SLICE, limit=limit, ended=ended)
    return task.result(task.done == steps)


def fastest(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    data: Sequence[Tensor],
    consequence: str = Captured.consequence,
) -> type[Loop]:
    """Return the class of the fastest loop; a warning says why it is the standard loop."""
    kind, reason = loop_for(model, optimizer, data)
    if (
        reason is not None
        and (text := f"npu_kernels: {consequence}, because {reason}") not in _warned
    ):
        _warned.add(text)
        warn(text)
    return kind


class _Task:
    """A run in progress."""

    function = "run"

    def __init__(
        self,
        loop: Loop,
        steps: int,
        rows: DrawnRows,
        lr: float | Callable[[int], float] | None,
        penalties: Mapping[str, Schedule],
    ) -> None:
        self.loop, self.total, self.rows, self.done = loop, steps, rows, 0
        self.lr, self.penalties = lr, penalties

    def advance(self, steps: int) -> None:
        """Make more steps."""
        rows = self.rows.draw(self.done, steps, self.loop.x.device)
        fixed = [self.lr if callable(self.lr) else float(group["lr"]) for group in self.groups]
        rates = [schedule_values(rate, checked_rate, self.done, steps) for rate in fixed]
        values = list(rates)
        for name, weight in self.penalties.items():
            check = functools.partial(checked_weight, "run", name)
            values.append(schedule_values(weight, check, self.done, steps))
        self.loop.advance(self.done, rows, torch.stack(values))
        if callable(self.lr):
            for group, rate in zip(self.groups, rates, strict=True):
                group["lr"] = rate[-1].item()
        self.done += steps

    def fall_back(self) -> None:
        """Make all further steps one by one."""
        state = {field.name: getattr(self.loop, field.name) for field in fields(Loop)}
        self.loop = Ordinary(**state)

    @property
    def groups(self) -> list[dict[str, Any]]:
        return self.loop.optimizer.param_groups

    def result(self, complete: bool = False) -> TrainingResult:
        loop = self.loop
        return TrainingResult(
            model=loop.model,
            optimizer=loop.optimizer,
            n_steps=self.done,
            losses=loop.losses[: -(-self.done // loop.every)],
            record_every=loop.every,
            fused=isinstance(loop, Fused),
            captured=isinstance(loop, Captured) and loop.works,
            complete=complete,
        )

    # ---- saved and continued ---------------------------------------------------------------------

    @functools.cached_property
    def fingerprint(self) -> dict[str, str]:
        """The facts that decide the numbers: neither what moves nor the values of functions."""
        loop, rows = self.loop, self.rows
        generator = None if rows.seeded else rows.generator
        seed = generator and f"{generator.device}, seed {generator.initial_seed()}"
        trained = [name for name, p in loop.model.named_parameters() if p.requires_grad]
        weights = {name: described_setting(weight) for name, weight in self.penalties.items()}
        return fingerprint(
            model=described(loop.model, BaseLayer),
            dtype=str(loop.x.dtype),
            requires_grad=str(trained),
            **optimizer_settings(loop.optimizer, loop.model, self.lr),
            steps=str(self.total),
            batch_size=str(rows.batch),
            generator=str(seed),
            record_every=str(loop.every),
            penalties=str(weights),
            project=str((loop.gates, loop.bound)),
            nonfinite=str(loop.finite),
            data=digest(loop.x, loop.y, rows.indices, loop.weight),
        )

    def state(self) -> dict[str, Any]:
        """All that `restore` needs, in tensors and numbers."""
        loop, generator = self.loop, self.rows.generator
        stateful = {n: w for n, w in self.penalties.items() if hasattr(w, "state_dict")}
        return {
            "fingerprint": self.fingerprint,
            "done": self.done,
            "parameters": [p.detach() for p in loop.model.parameters()],
            "buffers": list(loop.model.buffers()),
            "optimizer": checks.plain_method(loop.optimizer.state_dict)(),
            "losses": loop.losses,
            "generator": None if generator is None else generator.get_state(),
            "schedules": {name: weight.state_dict() for name, weight in stateful.items()},
        }

    @torch.no_grad()
    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a `state`; ValueError, before any change, for another run's."""
        check_same(state["fingerprint"], self.fingerprint, "run")
        loop, current = self.loop, self.state()
        settings = [  # None: of those the file does not decide
            {name: None if name in _IMPLEMENTATION else group[name] for name in group}
            for group in current["optimizer"]["param_groups"]
        ]
        moved = {"optimizer": {"state": None, "param_groups": settings}, "schedules": None}
        state = like(state, plain(current | moved, "state"))
        groups = zip(state["optimizer"]["param_groups"], loop.optimizer.param_groups, strict=True)
        for group, current_group in groups:
            group |= {
                name: current_group[name]
                for name in _IMPLEMENTATION & current_group.keys() - {"params"}
            }
        for name in ("parameters", "buffers"):
            for target, value in zip(current[name], state[name], strict=True):
                target.copy_(value)
        loop.losses.copy_(state["losses"])
        loop.optimizer.load_state_dict(state["optimizer"])
        if self.rows.generator is not None:
            self.rows.generator.set_state(state["generator"])
        for name, schedule in state["schedules"].items():
            self.penalties[name].load_state_dict(schedule)  # type: ignore[union-attr]
        self.done = state["done"]
