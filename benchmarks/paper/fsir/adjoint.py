"""The authors' gradient of a neural ODE: the continuous adjoint equation, by Euler's steps of 1.

    da/dt = -J(u(t))' a        dg/dt = -(df/dtheta)' a
    u(t): cubic Hermite polynomials of the forward solution

from the last time to 0. At each save time a gets the loss's derivative for the state there, and a
step ends there. That is what InterpolatingAdjoint of DiffEqSensitivity does with the forward
solver. With accurate steps it is the gradient of the loss; with these coarse ones it is the
gradient of no function.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from npu_kernels import functional, ode

# From states [K, S, 3] and parts of the parameters to slopes [K, S, 3].
Field = Callable[[Tensor, Sequence[Tensor]], Tensor]


def power(u: Tensor, parts: Sequence[Tensor]) -> Tensor:
    """An NPU or a RealNPU, and a NAU."""
    weight_im = parts[1] if len(parts) == 4 else None
    return functional.npu(u, parts[0], weight_im, parts[-2]) @ parts[-1].mT


def dense(u: Tensor, parts: Sequence[Tensor]) -> Tensor:
    """The rival's network."""
    w1, b1, w2, b2, w3, b3 = parts
    hidden = torch.tanh(torch.baddbmm(b1.unsqueeze(1), u, w1.mT))
    hidden = torch.tanh(torch.baddbmm(b2.unsqueeze(1), hidden, w2.mT))
    return torch.baddbmm(b3.unsqueeze(1), hidden, w3.mT)


def backward_steps(times: Tensor, dt: float) -> tuple[Tensor, Tensor, list[int]]:
    """The backward steps: begins ``[S]``, lengths ``[S]``, the save times that they begin at or -1.

    A step's length is dt; the last one before a save time is as short as it has to be.
    """
    begin, length, saved = [], [], []
    for index in range(len(times) - 1, 0, -1):
        gap = float(times[index] - times[index - 1])
        count = math.ceil(gap / dt - 1e-9)
        begin += [float(times[index]) - dt * n for n in range(count)]
        length += [dt] * (count - 1) + [gap - dt * (count - 1)]
        saved += [index] + [-1] * (count - 1)
    return torch.tensor(begin, dtype=times.dtype), torch.tensor(length, dtype=times.dtype), saved


def gradient(
    field: Field, parts: list[Tensor], states: Tensor, slopes: Tensor, jumps: Tensor,
    times: Tensor, dt: float,
) -> list[Tensor]:  # fmt: skip
    """The gradient for the parts of the parameters.

    Args:
        field: the right-hand side.
        parts: of the parameters of K models, each ``[K, ...]``.
        states, slopes: of the forward solution, ``[K, N + 1, 3]`` at 0, dt, 2 dt, ...
        jumps: the loss's derivatives for the states at `times` ``[K, M, 3]``.
        times: the save times ``[M]``, from 0 to the end.
        dt: of the steps, forward and backward.
    """
    begin, length, saved = backward_steps(times, dt)
    u = ode.interpolate(states, begin, dt=dt, method="hermite", derivatives=slopes)
    u = u.detach().requires_grad_()
    parts = [part.detach().requires_grad_() for part in parts]
    with torch.enable_grad():
        f = field(u, parts)
        sums = f.sum((0, 1)).unbind()
    rows = [torch.autograd.grad(total, u, retain_graph=True)[0] for total in sums]
    transposed = torch.stack(rows, -1)  # [K, S, 3, 3]: of u_j and f_i
    eye = torch.eye(f.shape[-1], dtype=f.dtype, device=f.device)
    steps = (eye + length.view(-1, 1, 1) * transposed).transpose(0, 1).contiguous()
    a, held = torch.zeros_like(jumps[:, 0]).unsqueeze(2), []
    for n, index in enumerate(saved):
        if index >= 0:
            a = a + jumps[:, index].unsqueeze(2)
        held.append(a)
        a = torch.bmm(steps[n], a)
    cotangent = torch.stack(held, 1).squeeze(3) * length.view(-1, 1)
    return list(torch.autograd.grad(f, parts, cotangent))
