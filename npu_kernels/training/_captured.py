"""Training steps on a GPU by a CUDA graph: one step is captured, the others are its replays.

A graph launches the kernels of a whole step (forward, loss, penalties, backward, optimiser, projection) at once, with
the same addresses and numbers each time. What changes from step to step is copied to where the captured step reads it:
the rows' indices, and the rates and weights of penalties that are not constant.

Every call of `advance` captures anew, so that whatever callbacks change between calls counts. Its first steps are made
one by one on a stream of their own, as CUDA graphs need it: they compile kernels and begin the optimiser's state. They
are steps like all others. While the graph is there, the optimiser's settings are torch's "capturable" ones, with the
number of its steps on the device; afterwards they are as before.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling

from npu_kernels import layers
from npu_kernels._common.notices import warn
from npu_kernels.layers import Unit
from npu_kernels.training import _plan as plan
from npu_kernels.training._steps import Ordinary

FIRST = 3  # steps made one by one before a capture
LEAST = 16  # steps of a call for which a graph is made
# Layers whose forward does the same at every call: no random numbers, no counters, no decisions by values.
UNITS = tuple(getattr(layers, name) for name in vars(layers)["__all__"])
OTHERS = (nn.Linear, nn.Identity, nn.ReLU, nn.Tanh, nn.Sigmoid, nn.Softplus)


def obstacle(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> str | None:
    """Why a step of these cannot be captured in a CUDA graph; None if it can be tried."""
    if not x.is_cuda:
        return f"{x.device.type} tensors have no CUDA graphs"
    if (
        is_compiling()
        or torch.is_autocast_enabled(x.device.type)
        or torch.is_inference_mode_enabled()
    ):
        return "of torch.compile, autocast or inference mode"
    if torch.cuda.is_current_stream_capturing():
        return "a CUDA graph is being captured already"
    problem = plan.call_obstacle(model)
    if problem is not None:
        return problem
    for layer in plan.chain(model):
        if type(layer) not in (*UNITS, *OTHERS):
            return f"{type(layer).__name__} may do something else at each step, which a CUDA graph would not"
        if isinstance(layer, Unit) and any(
            name not in layer._parameters for name in layer.intervals
        ):
            return f"a parameter of {type(layer).__name__} is pruned or parametrized"
    for parameter in model.parameters():
        if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
            return "a parameter has hooks"
    return plan.optimizer_obstacle(optimizer)


class Captured(Ordinary):
    """The ordinary loop, whose steps are replays of one that was captured."""

    works = True  # until a capture fails

    def advance(self, done: int, rows: Tensor | None, schedules: Tensor) -> None:
        steps = schedules.shape[1]
        if not self.works or steps < LEAST:
            super().advance(done, rows, schedules)
            return
        with torch.cuda.device(self.x.device):
            made = self._begin(done, rows, schedules)
            with capturable(self.optimizer, self.x.device):
                made = self._capture_and_replay(done, made, rows, schedules)
        self.clear()  # they lie in the graph's memory
        if made < steps:
            super().advance(done + made, None if rows is None else rows[made:], schedules[:, made:])

    def _begin(self, done: int, rows: Tensor | None, schedules: Tensor) -> int:
        """A step in the ordinary way where the optimiser has no state yet; returns how many steps were made."""
        trained = [
            p for group in self.optimizer.param_groups for p in group["params"] if p.requires_grad
        ]
        if all(self.optimizer.state.get(parameter) for parameter in trained):
            return 0
        super().advance(done, None if rows is None else rows[:1], schedules[:, :1])
        return 1

    def _capture_and_replay(
        self, done: int, made: int, rows: Tensor | None, schedules: Tensor
    ) -> int:
        """As many steps as can be made so; returns how many of the call's have been made."""
        inputs = _Inputs(self, rows, schedules)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for step in range(made, made + FIRST):
                inputs.take(step)
                self.record(done + step, self.step(inputs.rows, inputs.weights.values))
        torch.cuda.current_stream().wait_stream(side)
        made += FIRST
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                error = self.step(inputs.rows, inputs.weights.values)
        except RuntimeError as problem:
            self.works = False
            first = str(problem).partition("\n")[0]
            warn(
                f"npu_kernels: training.run makes its steps one by one, because no CUDA graph can be captured of them "
                f"({type(problem).__name__}: {first})"
            )
            return made
        for step in range(made, schedules.shape[1]):
            inputs.take(step)
            graph.replay()
            if (done + step) % self.every == 0:
                self.record(done + step, error)
        return schedules.shape[1]


class _Numbers:
    """Numbers of each step: those that vary at an address that stays, the others constants in the graph."""

    def __init__(self, schedules: Tensor, like: Tensor, dtype: torch.dtype) -> None:
        self.all = schedules.T.to(like.device, dtype).contiguous()
        varies = (schedules != schedules[:, :1]).any(1).tolist()
        self.now = self.all[0].clone() if any(varies) else None
        self.values: list[float | Tensor] = [
            schedules[n, 0].item() if self.now is None or not there else self.now[n]
            for n, there in enumerate(varies)
        ]

    def take(self, step: int) -> None:
        if self.now is not None:
            self.now.copy_(self.all[step])


class _Inputs:
    """What the captured step reads: the rows and the numbers of the step in turn."""

    def __init__(self, loop: Captured, rows: Tensor | None, schedules: Tensor) -> None:
        groups = loop.optimizer.param_groups
        self.all_rows, self.rows = rows, None if rows is None else rows[0].clone()
        self.rates = _Numbers(schedules[: len(groups)], loop.x, torch.float64)
        self.weights = _Numbers(schedules[len(groups) :], loop.x, loop.x.dtype)
        for group, rate in zip(groups, self.rates.values, strict=True):
            group["lr"] = rate

    def take(self, step: int) -> None:
        """Make these the step's."""
        if self.rows is not None and self.all_rows is not None:
            self.rows.copy_(self.all_rows[step])
        self.rates.take(step)
        self.weights.take(step)


@contextlib.contextmanager
def capturable(optimizer: torch.optim.Optimizer, device: torch.device) -> Iterator[None]:
    """Within it a graph can have the optimiser's steps: it counts them on the device, and rates may be tensors.

    Counts are float64: from them torch computes what Adam divides by, 1 - 0.999 ** count, which float32 would round to
    six parts in 100,000 at first.
    """
    settings = [(group, group["capturable"], group["lr"]) for group in optimizer.param_groups]
    counts: list[tuple[dict[str, Tensor], Tensor]] = []
    try:
        for group, _, _ in settings:
            group["capturable"] = True
            for parameter in group["params"]:
                state = optimizer.state.get(parameter)
                if state and not group.get("fused"):  # its steps are on the device
                    counts.append((state, state["step"]))
                    state["step"] = state["step"].to(device, torch.float64, copy=True)
        yield
    finally:
        for state, count in counts:
            state["step"] = count.copy_(state["step"])
        for group, before, rate in settings:
            group["capturable"], group["lr"] = before, rate
