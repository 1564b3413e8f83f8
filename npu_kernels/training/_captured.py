"""Training steps on a GPU by a CUDA graph: one step is captured, the others are its replays.

A graph launches the kernels of a step (forward, loss, penalties, backward, optimizer, projection)
at once, with the same addresses and numbers each time. What changes from step to step is copied to
where the captured step reads it: the rows' indices, and the rates and weights of penalties that
are not constant.

The steps before a capture are made one by one on another stream, as CUDA graphs need it: they
compile kernels and begin the optimizer's state. They are steps like all others. Later calls of
`advance` go on with the graph, unless something has changed that it cannot see: a tensor's address,
a setting, a rate or weight that was constant (`_Graph.holds`). Within a call the optimizer's
settings are torch's "capturable" ones, with the number of its steps on the device; afterwards they
are as before.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling

from npu_kernels._common.checks import warn
from npu_kernels._operators.precision import float32_matmul_precision
from npu_kernels._triton import for_graph
from npu_kernels.layers._chains import STEADY, chain
from npu_kernels.training import _fallbacks as fallbacks
from npu_kernels.training._steps import Ordinary

FIRST_STEPS = 3  # made one by one before a capture
MIN_REPLAYS = 16  # of a call for which a graph is captured


def reason(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> str | None:
    """Return the reason why a step cannot be captured in a CUDA graph; None if it can be tried."""
    if not x.is_cuda:
        return f"{x.device.type} tensors have no CUDA graphs"
    autocast = torch.is_autocast_enabled(x.device.type)
    if is_compiling() or autocast or torch.is_inference_mode_enabled():
        return "of torch.compile, autocast or inference mode"
    if torch.cuda.is_current_stream_capturing():
        return "a CUDA graph is being captured already"
    problem = fallbacks.call_reason(model.modules())
    if problem is not None:
        return problem
    for _, layer in chain(model):
        if type(layer) not in STEADY:
            title = type(layer).__name__
            return f"{title} may do something else at each step, which a CUDA graph would not"
    for parameter in model.parameters():
        if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
            return "a parameter has hooks"
    return fallbacks.optimizer_reason(optimizer)


class Captured(Ordinary):
    """The standard loop, whose steps are replays of a captured one."""

    consequence = "training.run makes its steps one by one"  # where no graph can be captured
    works = True  # until a capture fails
    graph: _Graph | None = None  # the newest

    def advance(self, done: int, rows: Tensor | None, schedules: Tensor) -> None:
        steps = schedules.shape[1]
        if not self.works or steps < MIN_REPLAYS:
            super().advance(done, rows, schedules)
            return
        counts = {} if self.graph is None else self.graph.counts
        with torch.cuda.device(self.x.device), for_graph():
            count = self._begin(done, rows, schedules)
            with capturable(self.optimizer, self.x.device, counts):
                graph = self.graph
                # Where replays make the steps, they take the call's rows and numbers.
                serves = graph is not None and graph.inputs.renew(rows, schedules)
                if graph is None or not serves or not graph.holds(self):
                    self.graph = None  # its memory is free for the next
                    count = self._capture(done, count, rows, schedules, counts)
                if self.graph is not None:
                    count = self._replay(self.graph, done, count, steps)
        self.clear()  # the gradients lie in the graph's memory
        if count < steps:
            rows = None if rows is None else rows[count:]
            super().advance(done + count, rows, schedules[:, count:])

    def _begin(self, done: int, rows: Tensor | None, schedules: Tensor) -> int:
        """Make an eager step if the optimizer has no state; return the number of steps."""
        groups, state = self.optimizer.param_groups, self.optimizer.state
        if all(state.get(p) for group in groups for p in group["params"] if p.requires_grad):
            return 0
        super().advance(done, None if rows is None else rows[:1], schedules[:, :1])
        return 1

    def _capture(
        self,
        done: int,
        count: int,
        rows: Tensor | None,
        schedules: Tensor,
        counts: dict[int, Tensor],
    ) -> int:
        """Make the steps before a graph, and the graph; return the call's steps so far."""
        inputs = _Inputs(self, rows, schedules)
        side = torch.cuda.Stream()
        self._first_steps(inputs, range(count, count + FIRST_STEPS), done, side)
        count += FIRST_STEPS
        inputs.take(count)
        return self._graph_of(inputs, done, count, counts, side)

    def _first_steps(
        self, inputs: _Inputs, steps: range, done: int, side: torch.cuda.Stream
    ) -> None:
        """Make steps one by one, on the stream on which one will be captured."""
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for step in steps:
                inputs.take(step)
                self.record(done + step, self.step(inputs.rows, inputs.weights.values))
        torch.cuda.current_stream().wait_stream(side)

    def _graph_of(
        self,
        inputs: _Inputs,
        done: int,
        count: int,
        counts: dict[int, Tensor],
        side: torch.cuda.Stream,
    ) -> int:
        """Capture a step, which is not made; return the call's steps, one more if it was made."""
        graph = torch.cuda.CUDAGraph()
        error: Tensor | None = None
        reason: Exception | None = None
        try:
            with _capturing(graph, side):
                try:
                    error = self.step(inputs.rows, inputs.weights.values)
                except (
                    RuntimeError
                ) as problem:  # the end of the capture may fail too, and says less
                    reason = problem
        except (RuntimeError, UserWarning) as problem:
            reason = reason or problem
        if error is not None and reason is None:
            facts = fallbacks.Facts(self.model, self.optimizer)
            self.graph = _Graph(graph, inputs, error, counts, facts, _contents(self))
            return count
        if error is not None and isinstance(reason, UserWarning):
            self.record(done + count, error)  # the graph is empty, because the step was made
            count += 1
        self.works = False
        first = str(reason).partition("\n")[0]
        warn(
            f"npu_kernels: {self.consequence}, because no CUDA graph can "
            f"be captured of them ({type(reason).__name__}: {first}){_hint()}"
        )
        return count

    def _replay(self, graph: _Graph, done: int, count: int, steps: int) -> int:
        """Make the steps after the first `count` of the call; return the call's steps so far."""
        for step in range(count, steps):
            graph.inputs.take(step)
            graph.graph.replay()
            if (done + step) % self.every == 0:
                self.record(done + step, graph.error)
        return steps


class CapturedStep(Captured):
    """Steps of `make_step`, one a call, with data that are copied to where the graph reads them."""

    consequence = "training.make_step makes eager steps"
    first = 0  # steps before a capture
    side: torch.cuda.Stream | None = None

    def take(self, data: list[Tensor]) -> bool:
        """Copy the data; return whether they have the shapes and dtypes of those before."""
        copies = [t for t in (self.x, self.y, self.weight) if t is not None]
        if [(t.shape, t.dtype, t.device) for t in copies] != [
            (t.shape, t.dtype, t.device) for t in data
        ]:
            return False
        for tensor, new in zip(copies, data, strict=True):
            tensor.copy_(new)
        return True

    def advance(self, done: int, rows: Tensor | None, schedules: Tensor) -> None:
        if not self.works:
            super(Captured, self).advance(done, rows, schedules)
            return
        counts = {} if self.graph is None else self.graph.counts
        with torch.cuda.device(self.x.device), for_graph():
            if self._begin(done, None, schedules) == 0:
                with capturable(self.optimizer, self.x.device, counts):
                    self._one(schedules, counts)
        self.clear()

    def _one(self, schedules: Tensor, counts: dict[int, Tensor]) -> None:
        """Make a step: one of the first, or the replay of a graph."""
        if self.side is None:
            self.side = torch.cuda.Stream()
        graph = self.graph
        if graph is not None and not (graph.inputs.renew(None, schedules) and graph.holds(self)):
            self.graph = graph = None
        if graph is None:
            inputs = _Inputs(self, None, schedules, all_vary=True)
            if self.first < FIRST_STEPS:
                self._first_steps(inputs, range(1), 0, self.side)
                self.first += 1
                return
            inputs.take(0)
            if self._graph_of(inputs, 0, 0, counts, self.side) == 1:
                return
            graph = self.graph
            if graph is None:
                self.record(0, self.step(None, inputs.weights.values))
                return
        self._replay(graph, 0, 0, 1)


def _contents(loop: Captured) -> list[object]:
    """What a graph holds in addition to `Facts`: numbers, and the addresses of its tensors."""
    contents: list[object] = [loop.penalties, loop.gates, loop.bound, loop.finite]
    contents.append(float32_matmul_precision(loop.x.device.type))
    tensors = [loop.x, loop.y, loop.weight, *loop.model.parameters(), *loop.model.buffers()]
    for group in loop.optimizer.param_groups:
        for parameter in group["params"]:
            tensors += [parameter, *loop.optimizer.state.get(parameter, {}).values()]
    for tensor in tensors:
        if isinstance(tensor, Tensor):
            hooks = tensor._backward_hooks, getattr(tensor, "_post_accumulate_grad_hooks", None)
            address = tensor.data_ptr(), tensor.shape, tensor.requires_grad
            contents.append((address, *map(bool, hooks)))
        else:
            contents.append(tensor)
    return contents


class _Graph(NamedTuple):
    """A captured step, and what it was captured of."""

    graph: torch.cuda.CUDAGraph
    inputs: _Inputs
    error: Tensor  # the loss of the newest replay
    counts: dict[int, Tensor]  # of the optimizer's steps, on the device
    facts: fallbacks.Facts
    contents: list[object]

    def holds(self, loop: Captured) -> bool:
        """Whether its replays are steps of the loop as it is now."""
        return self.facts.hold() and self.contents == _contents(loop)


class _Numbers:
    """Numbers of each step: constants in the graph, or at a fixed address where they vary."""

    def __init__(self, schedules: Tensor, like: Tensor, dtype: torch.dtype, all_vary: bool) -> None:
        self.type = dtype
        self.all = schedules.T.to(like.device, dtype).contiguous()
        varies = (all_vary | (schedules != schedules[:, :1]).any(1)).tolist()
        self.current = self.all[0].clone() if any(varies) else None
        self.values: list[float | Tensor] = [
            self.current[n] if self.current is not None and variable else schedules[n, 0].item()
            for n, variable in enumerate(varies)
        ]

    def renew(self, schedules: Tensor) -> bool:
        """Take the next call's numbers; return whether the graph's constants are still right."""
        for value, numbers in zip(self.values, schedules, strict=True):
            if not isinstance(value, Tensor) and (numbers != value).any():
                return False
        self.all = schedules.T.to(self.all.device, self.type).contiguous()
        return True

    def take(self, step: int) -> None:
        if self.current is not None:
            self.current.copy_(self.all[step])


class _Inputs:
    """The rows and numbers that the captured step reads.

    all_vary: no number is a constant in the graph.
    """

    def __init__(
        self, loop: Captured, rows: Tensor | None, schedules: Tensor, all_vary: bool = False
    ) -> None:
        groups = loop.optimizer.param_groups
        self.all_rows, self.rows = rows, None if rows is None else rows[0].clone()
        # torch's fused kernels read rates of float32, whatever the dtype says.
        fused = any(group.get("fused") for group in groups)
        rate_dtype = torch.float32 if fused else torch.float64
        self.rates = _Numbers(schedules[: len(groups)], loop.x, rate_dtype, all_vary)
        self.weights = _Numbers(schedules[len(groups) :], loop.x, loop.x.dtype, all_vary)
        for group, rate in zip(groups, self.rates.values, strict=True):
            group["lr"] = rate

    def renew(self, rows: Tensor | None, schedules: Tensor) -> bool:
        """Take the rows and numbers of another call; return whether the graph can read them."""
        shapes = [None if r is None else r.shape[1:] for r in (rows, self.all_rows)]
        groups = len(self.rates.values)
        self.all_rows = rows
        rates, weights = schedules[:groups], schedules[groups:]
        return shapes[0] == shapes[1] and self.rates.renew(rates) and self.weights.renew(weights)

    def take(self, step: int) -> None:
        """Copy the rows and numbers of a step to where the graph reads them."""
        if self.rows is not None and self.all_rows is not None:
            self.rows.copy_(self.all_rows[step])
        self.rates.take(step)
        self.weights.take(step)


@contextlib.contextmanager
def _capturing(graph: torch.cuda.CUDAGraph, stream: torch.cuda.Stream) -> Iterator[None]:
    """Capture the block's work on this stream; afterwards torch's settings are as before.

    The stream is named because torch keeps one for all captures of a process, on the device of the
    first. On another device it would capture nothing, which is a warning of torch and an error
    here.

    As long as a tensor computed from a parameter is alive, backwards add its gradients on the
    stream of that computation. A capture fails where that is another stream, unless torch is told
    to take the captured one (from 2.13 on).
    """
    before = torch.cuda.current_stream()  # not restored by torch if the end of the capture fails
    set_override = _set_override()
    override = set_override is not None and torch._C._override_stale_capture_stream()
    try:
        if set_override is not None:
            set_override(True)
        with warnings.catch_warnings():
            warnings.filterwarnings("error", "The CUDA Graph is empty", UserWarning)
            with torch.cuda.graph(graph, stream=stream):
                yield
    finally:
        torch.cuda.set_stream(before)
        if set_override is not None:
            set_override(override)


def _set_override() -> Callable[[bool], None] | None:
    return getattr(torch.autograd.graph, "set_override_stale_capture_stream", None)


def _hint() -> str:
    """Return a cause of failing captures that torch before 2.13 has, and the remedy."""
    if _set_override() is not None:
        return ""
    return (
        ". If a tensor computed from the parameters is alive, such as an earlier loss, `del` it: "
        "before torch 2.13 it may be the cause"
    )


@contextlib.contextmanager
def capturable(
    optimizer: torch.optim.Optimizer, device: torch.device, on_device: dict[int, Tensor]
) -> Iterator[None]:
    """Let a graph have the optimizer's steps: counts on the device, rates that may be tensors.

    on_device: the counts that an earlier graph reads, by the parameter's id; new ones are added.

    Counts are float64: from them torch computes what Adam divides by, 1 - 0.999 ** count, which
    float32 would round to six parts in 100,000 at first.
    """
    settings = [(group, group["capturable"], group["lr"]) for group in optimizer.param_groups]
    counts: list[tuple[dict[str, Tensor], Tensor]] = []
    try:
        for group, _, _ in settings:
            group["capturable"] = True
            for parameter in group["params"]:
                state = optimizer.state.get(parameter)
                if state and not group.get("fused"):  # whose count is on the device
                    counts.append((state, state["step"]))
                    count = on_device.get(id(parameter))
                    if count is None:
                        count = state["step"].to(device, torch.float64, copy=True)
                        on_device[id(parameter)] = count
                    count.copy_(state["step"])
                    state["step"] = count
        yield
    finally:
        for state, count in counts:
            state["step"] = count.copy_(state["step"])
        for group, before, rate in settings:
            group["capturable"], group["lr"] = before, rate
