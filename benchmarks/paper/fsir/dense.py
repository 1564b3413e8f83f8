"""The fractional SIR experiment's rival: dense networks in Euler's loop.

    u' = W3 tanh(W2 tanh(W1 u + b1) + b2) + b3

K networks at once; forward one step after the other, a batched product per layer. Backward in two
parts, because only three numbers per model pass from step to step: the Jacobians of all steps are
three large products, the recursion over them is three by three, and the weights' gradients are
large products again.

    J_n = W3 diag(1 - a2^2) W2 diag(1 - a1^2) W1
    v_n = gs_n + dt g_{n+1}            g_n = gu_n + g_{n+1} + J_n' v_n

with gu and gs the loss's gradients for the states u_n and the derivatives s_n, and g_n the whole
gradient for u_n.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

TANH_BLOCK = 64  # elements: whole vectors of any machine


class _Euler(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, u0: Tensor, steps: int, dt: float, *weights: Tensor
    ) -> tuple[Tensor, Tensor]:
        w1, b1, w2, b2, w3, b3 = weights
        models, h, d = w1.shape
        u = u0.new_empty(steps + 1, models, d, 1)
        s = torch.empty_like(u)
        # Padded, so that an element's tanh does not depend on where the last whole vector ends.
        size = -(-models * h // TANH_BLOCK) * TANH_BLOCK
        a = u0.new_zeros(2, steps + 1, size)
        a1, a2 = (part[:, : models * h].view(steps + 1, models, h, 1) for part in a)
        u[0] = u0.expand(models, d).unsqueeze(2)
        b1, b2, b3 = b1.unsqueeze(2), b2.unsqueeze(2), b3.unsqueeze(2)
        for n in range(steps + 1):
            torch.baddbmm(b1, w1, u[n], out=a1[n])
            a[0, n].tanh_()
            torch.baddbmm(b2, w2, a1[n], out=a2[n])
            a[1, n].tanh_()
            torch.baddbmm(b3, w3, a2[n], out=s[n])
            if n < steps:
                torch.add(u[n], s[n], alpha=dt, out=u[n + 1])
        ctx.save_for_backward(u, a1, a2, w1, w2, w3)
        ctx.dt = dt
        return u.squeeze(3).transpose(0, 1).contiguous(), s.squeeze(3).transpose(0, 1).contiguous()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        u, a1, a2, w1, w2, w3 = ctx.saved_tensors
        gu, gs = grads  # [K, steps + 1, D]
        models, h, d = w1.shape
        count = gu.shape[1]
        # [K, D or h, steps + 1]
        u, a1, a2 = (t.squeeze(3).permute(1, 2, 0).contiguous() for t in (u, a1, a2))
        d_tanh1, d_tanh2 = 1 - a1 * a1, 1 - a2 * a2
        inner = (d_tanh1.unsqueeze(3) * w1.unsqueeze(2)).view(models, h, count * d)
        inner = torch.bmm(w2, inner).view(models, h, count, d) * d_tanh2.unsqueeze(3)
        jacobian = torch.bmm(w3, inner.view(models, h, count * d)).view(models, d, count, d)
        jacobian = jacobian.permute(2, 0, 3, 1).contiguous()  # transposed, [steps + 1, K, D, D]

        of_derivatives = gs.transpose(0, 1).unsqueeze(3)
        direct = torch.matmul(jacobian, of_derivatives) + gu.transpose(0, 1).unsqueeze(3)
        step_jacobian = ctx.dt * jacobian + torch.eye(d, dtype=u.dtype, device=u.device)
        g = torch.empty_like(direct)  # [steps + 1, K, D, 1]
        g[-1] = direct[-1]
        for n in range(count - 2, -1, -1):
            torch.baddbmm(direct[n], step_jacobian[n], g[n + 1], out=g[n])
        v = of_derivatives.clone()
        v[:-1] += ctx.dt * g[1:]
        v = v.squeeze(3).permute(1, 2, 0).contiguous()  # [K, D, steps + 1]

        delta2 = torch.bmm(w3.mT, v) * d_tanh2
        delta1 = torch.bmm(w2.mT, delta2) * d_tanh1
        weights = (
            torch.bmm(delta1, u.mT), delta1.sum(2), torch.bmm(delta2, a1.mT), delta2.sum(2),
            torch.bmm(v, a2.mT), v.sum(2),
        )  # fmt: skip
        return None, None, None, *weights


def shapes(h: int, d: int = 3) -> list[tuple[int, ...]]:
    """The weights' shapes without the models: W1, b1, W2, b2, W3, b3."""
    return [(h, d), (h,), (h, h), (h,), (d, h), (d,)]


def rollout(u0: Tensor, weights: list[Tensor], steps: int, dt: float) -> tuple[Tensor, Tensor]:
    """States, derivatives ``[K, steps + 1, D]`` from ``u0 [D]``; only weights have gradients."""
    states, derivatives = _Euler.apply(u0, steps, dt, *(weight.contiguous() for weight in weights))
    return states, derivatives
