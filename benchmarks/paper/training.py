"""A batch of models in training, as work for the runner.

Where `npu_kernels.training.run` can, it makes the steps of all K models, many in each call.
Otherwise one step is: the layers and their gradients through autograd, then the penalty, whose
gradient is a line of algebra, then the optimizer. All parameters lie in one flat buffer, one block
for each tensor ``[K, ...]``; the modules hold views of it.

RMSProp and Adam work in place on this buffer. So a step of theirs is a few passes whatever the
number of parameters, and each tensor in it is padded to whole vectors, so that an element's
rounding does not depend on its position, nor a model's result on the models that train with it.
`rate` is a number, or a tensor like the buffer where the models of a batch have different ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from npu_kernels import training
from npu_kernels.training import _fallbacks as fallbacks

ALIGNMENT = 64  # elements; a whole number of any machine's vectors

NO_BETA = torch.zeros(())

Rows = list[dict[str, Any]]


class Buffer:
    """The parameters of a module in one flat tensor, and a second one for their gradients."""

    def __init__(self, module: nn.Module) -> None:
        parameters = list(module.parameters())
        sizes = [-(-p.numel() // ALIGNMENT) * ALIGNMENT for p in parameters]
        self.flat = parameters[0].new_zeros(sum(sizes))
        self.flat_grads = torch.zeros_like(self.flat)
        self.parameters = parameters
        self.views, self.grads = self.parts(self.flat), self.parts(self.flat_grads)  # [K, ...]
        for parameter, view in zip(parameters, self.views, strict=True):
            view.copy_(parameter.detach())
            parameter.data = view
        self.rows = [view.flatten(1) for view in self.views]  # [K, elements]

    def parts(self, flat: Tensor) -> list[Tensor]:
        """Views of a tensor like `flat`, one for each parameter and of its shape."""
        views, offset = list[Tensor](), 0
        for parameter in self.parameters:
            views.append(flat[offset : offset + parameter.numel()].view_as(parameter))
            offset += -(-parameter.numel() // ALIGNMENT) * ALIGNMENT
        return views

    def spread(self, values: Tensor) -> Tensor:
        """A tensor like `flat` with model k's value ``[K]`` at each of its parameters."""
        spread = torch.zeros_like(self.flat)
        for part in self.parts(spread):
            part.flatten(1).copy_(values.unsqueeze(1))
        return spread

    def per_model(self) -> Tensor:
        """All parameters of each model, ``[K, P]``, a copy."""
        return torch.cat(self.rows, 1)


# A penalty writes gradients plus beta [K] times its own gradient into the buffer's gradients.
Penalty = Callable[[Buffer, Sequence[Tensor], Tensor], None]


def _along(values: Tensor, like: Tensor) -> Tensor:
    """Values ``[K]`` in a shape that broadcasts against ``[K, ...]``."""
    return values.view(-1, *[1] * (like.dim() - 1))


def frobenius(buffer: Buffer, grads: Sequence[Tensor], beta: Tensor) -> None:
    """``beta sum_k |theta_k|_F`` over tensors: the authors' `norm(ps, 1)`. Gradient 0 at 0."""
    lengths = [torch.linalg.vector_norm(row, dim=1) for row in buffer.rows]
    norms = torch.stack(lengths)  # [tensors, K]
    scales = torch.where(norms > 0, beta / norms, 0.0)
    for grad, view, total, scale in zip(grads, buffer.views, buffer.grads, scales, strict=True):
        torch.addcmul(grad, view, _along(scale, view), out=total)


def unpenalised(buffer: Buffer, grads: Sequence[Tensor], beta: Tensor) -> None:
    """The gradients alone."""
    for grad, total in zip(grads, buffer.grads, strict=True):
        total.copy_(grad)


# From a step (from 1) to x ``[B, I]`` or ``[K, B, I]``, and targets ``[K, B, O]``. One that gives
# the rows of many steps at once has `many(step, max_steps)` too: x ``[K, steps * B, I]``, targets,
# and the number of steps, at most `max_steps`.
Data = Callable[[int], tuple[Tensor, Tensor]]


class Training:
    """K models, trained on mean squared error plus a penalty.

    Args:
        module: takes the rows of `data`, gives ``[K, B, O]``.
        optimizer: makes an optimizer from a buffer.
        data: the rows of each step; with `many`, `training.run` makes them where it can.
        steps: how many.
        evaluate: rows and tensors to keep, at the end; gets this object.
        penalty, beta: the penalty and its weights ``[K]`` at a step.
        penalties: the same for `training.run`; weights are functions of the step.
        project: `training.project_` after each step; a number bounds the weights too.
        watch: gives a tensor of the models to keep after each of the steps `watched`, which ascend;
            `snapshots` has these tensors for `evaluate`.
    """

    def __init__(
        self,
        module: nn.Module,
        optimizer: Callable[[Buffer], Optimizer],
        data: Data,
        steps: int,
        evaluate: Callable[[Training], tuple[Rows, dict[str, Tensor]]],
        penalty: Penalty = unpenalised,
        beta: Callable[[int], Tensor] = lambda step: NO_BETA,
        penalties: dict[str, Callable[[int], float]] | None = None,
        project: bool | float = False,
        watch: Callable[[Training], Tensor] | None = None,
        watched: Sequence[int] = (),
    ) -> None:
        self.module, self.data, self.total, self.done = module, data, steps, 0
        self.buffer = Buffer(module)
        self.optimizer = optimizer(self.buffer)
        self.penalty, self.beta, self._evaluate = penalty, beta, evaluate
        self.penalties, self.project = penalties or {}, project
        self._watch, self._watched = watch, watched
        self.snapshots: list[Tensor] = []
        self.last_loss: Tensor | None = None  # [K], of the last step's rows, before that step
        self._torchs = self._fused_optimizer() if hasattr(data, "many") else None

    def _fused_optimizer(self) -> torch.optim.Optimizer | None:
        """Return torch's optimizer on views of our state; None if C++ cannot make these steps."""
        optimizer = self.optimizer.torchs(self.buffer.parameters)
        if fallbacks.reason(self.module, optimizer, [self.buffer.flat]) is not None:
            return None
        states = [self.buffer.parts(flat) for flat in self.optimizer.state]
        for parameter, *parts in zip(self.buffer.parameters, *states, strict=True):
            state = dict(zip(self.optimizer.names, parts, strict=True))
            optimizer.state[parameter] = {"step": torch.tensor(0.0), **state}
        return optimizer

    def advance(self, steps: int) -> None:
        """Train for another `steps` steps."""
        end = self.done + steps
        while self.done < end:
            watched = next((step for step in self._watched if step > self.done), None)
            stop = end if watched is None else min(end, watched)
            if self._torchs is None:
                self._step(self.done + 1)
                self.done += 1
            else:
                self.done += self._steps(stop - self.done, self._torchs)
            if self._watch is not None and self.done == watched:
                self.snapshots.append(self._watch(self))

    def _steps(self, max_steps: int, optimizer: torch.optim.Optimizer) -> int:
        """Make at most `max_steps` steps in one call; return how many."""
        before = self.done
        x, y, steps = self.data.many(before + 1, max_steps)  # type: ignore[attr-defined]
        for state in optimizer.state.values():
            state["step"].fill_(before)
        penalties = {
            name: lambda n, weight=weight: weight(before + n)
            for name, weight in self.penalties.items()
        }
        rows = torch.arange(x.shape[1]).view(steps, -1)
        training.run(
            self.module, x, y, steps=steps, batch_indices=rows, optimizer=optimizer,
            penalties=penalties,
            project=self.project, record_every=steps, progress=False,
        )  # fmt: skip
        return steps

    def _step(self, step: int) -> None:
        x, target = self.data(step)
        y = self.module(x)
        error = y.detach() - target
        self._observe(step, error)
        scale = 2 / (error.shape[1] * error.shape[2])
        grads = torch.autograd.grad(y, self.buffer.parameters, error.mul_(scale))
        with torch.no_grad():
            self.penalty(self.buffer, grads, self.beta(step))
            self.optimizer.update(self.buffer.flat, self.buffer.flat_grads, step)
            if self.project:
                training.project_(self.module, weight_bound=self.project)

    def _observe(self, step: int, error: Tensor) -> None:
        """Keep what is needed of a step's errors ``[K, B, O]``."""
        if step == self.total:
            self.last_loss = error.double().square().mean((1, 2))

    @property
    def _tensors(self) -> list[Tensor]:
        return [self.buffer.flat, *self.optimizer.state]

    def state(self) -> dict[str, Any]:
        """All that a checkpoint needs."""
        state = {"done": self.done, "tensors": self._tensors, "snapshots": list(self.snapshots)}
        return state | {"last_loss": self.last_loss}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a `state`."""
        self.done, self.snapshots = state["done"], list(state["snapshots"])
        self.last_loss = state["last_loss"]
        for tensor, saved in zip(self._tensors, state["tensors"], strict=True):
            tensor.copy_(saved)

    @torch.no_grad()
    def results(self) -> tuple[Rows, dict[str, Tensor]]:
        """The rows of the runs, and tensors with a leading K."""
        return self._evaluate(self)


class Optimizer:
    """The state of an optimizer: buffers to keep in a checkpoint."""

    kind: type[torch.optim.Optimizer]  # torch's of the same kind
    options: dict[str, Any]  # its arguments
    names: tuple[str, ...]  # of the state's buffers there

    def __init__(self, parameters: Tensor, rate: float | Tensor) -> None:
        self.rate = rate
        self.state = [torch.zeros_like(parameters) for _ in self.names]
        self._scratch = torch.empty_like(parameters)

    def update(self, parameters: Tensor, grads: Tensor, step: int) -> None:
        """One step, the `step`-th, counted from 1. Overwrites `grads`."""
        raise NotImplementedError

    def torchs(self, parameters: Sequence[Tensor]) -> torch.optim.Optimizer:
        """Torch's optimizer, where the rate is a number."""
        kind: Any = self.kind
        return kind(parameters, self.rate, **self.options)

    def _subtract(self, parameters: Tensor, numerator: Tensor, factor: float) -> None:
        """parameters -= rate * factor * numerator / scratch; may overwrite the numerator."""
        if isinstance(self.rate, Tensor):
            parameters.addcdiv_(numerator.mul_(self.rate), self._scratch, value=-factor)
        else:
            parameters.addcdiv_(numerator, self._scratch, value=-self.rate * factor)


class RMSProp(Optimizer):
    """torch.optim.RMSprop(alpha=0.9, eps=1e-8): Flux's, as the authors' (torch's alpha is 0.99)."""

    kind, names = torch.optim.RMSprop, ("square_avg",)
    options = {"alpha": 0.9, "eps": 1e-8}  # noqa: RUF012

    def update(self, parameters: Tensor, grads: Tensor, step: int) -> None:
        (square,), alpha = self.state, self.options["alpha"]
        square.mul_(alpha).addcmul_(grads, grads, value=1 - alpha)
        torch.sqrt(square, out=self._scratch).add_(self.options["eps"])
        self._subtract(parameters, grads, 1.0)


class Adam(Optimizer):
    """torch.optim.Adam with its defaults, betas (0.9, 0.999) and eps 1e-8."""

    kind, names = torch.optim.Adam, ("exp_avg", "exp_avg_sq")
    options = {"betas": (0.9, 0.999), "eps": 1e-8}  # noqa: RUF012

    def update(self, parameters: Tensor, grads: Tensor, step: int) -> None:
        (mean, square), (low, high) = self.state, self.options["betas"]
        mean.lerp_(grads, 1 - low)
        square.mul_(high).addcmul_(grads, grads, value=1 - high)
        torch.sqrt(square, out=self._scratch).div_((1 - high**step) ** 0.5).add_(
            self.options["eps"]
        )
        grads.copy_(mean)
        self._subtract(parameters, grads, 1 / (1 - low**step))
