"""NALUs with a model dimension on the CPU: torch's operations, each once, and the gradient by hand.

With L the logarithm, in the notation of `reference.nalu`:

    da = grad_y g      dp = grad_y (1 - g) m      dh = grad_y g (1 - g) (a - m)
    dW = da' x + dp' L      dG = dh' x      dx = da W + dh G + dp W sign(x) / (|x| + eps)

Autograd through the formula computes more, and makes more tensors. Second derivatives are those of
`reference.nalu_backward`. No number of a model depends on the other models, if torch's products of
many matrices round like its product of one. On some processors (AMD EPYC, Zen 5) those of some
sizes differ in the last bits.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.compiler import is_compiling
from torch.nn import Parameter

from npu_kernels import reference
from npu_kernels._operators.autograd import eager_only
from npu_kernels._operators.dispatch import backend_for, is_batched_gradient

_PLAIN = (Tensor, Parameter, type(None))
_VECTORS = 64  # elements: whole vectors of any processor, also where its loops take several at once
_any_autocast = torch._C._is_any_autocast_enabled


def sigmoid(x: Tensor) -> Tensor:
    """`torch.sigmoid` with the same rounding of an element wherever it lies.

    It is not differentiable.

    Torch computes the elements after the last whole vector by another formula.
    """
    size = x.numel()
    if size % _VECTORS == 0 and x.is_contiguous():
        return x.sigmoid()
    padded = x.new_zeros(-(-size // _VECTORS) * _VECTORS)
    padded[:size].view(x.shape).copy_(x)
    return padded.sigmoid_()[:size].view(x.shape)


def product(x: Tensor, weight: Tensor) -> Tensor:
    """``x W'`` of ``[K, B, I]`` and ``[K, O, I]``.

    One output is summed in the order that rounds the same for one model as for many.
    """
    return torch.bmm(weight, x.mT).mT if weight.shape[1] == 1 else torch.bmm(x, weight.mT)


def _of_each(x: Tensor, weight: Tensor) -> Tensor:
    """``[K, B, I]``: an x that all models share is repeated, without a copy."""
    return x.expand(weight.shape[0], *x.shape) if x.dim() == 2 else x


class Nalu(Function):
    """Apply to (x, weight, mask, gate_weight, gate_bias, eps) of K models.

    gate_bias may be None.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        mask: Tensor,
        gate_weight: Tensor,
        gate_bias: Tensor | None,
        eps: float,
    ) -> Tensor:
        log = x.abs().add_(eps).log_()  # once, where all models share x
        rows = _of_each(x, weight)
        tanh, share = weight.tanh(), sigmoid(mask)
        w = tanh * share
        m, a = product(_of_each(log, w), w).exp_(), product(rows, w)
        h = product(rows, gate_weight)
        g = sigmoid(h if gate_bias is None else h.add_(gate_bias.unsqueeze(1)))
        ctx.save_for_backward(x, weight, mask, gate_weight, gate_bias, log, tanh, share, w, m, a, g)
        ctx.eps = eps
        return (1 - g).mul_(m).addcmul_(g, a)

    @staticmethod
    def backward(ctx: Any, grad_y: Tensor) -> tuple[Tensor | None, ...]:
        arguments = grad_y, ctx.saved_tensors, ctx.eps, ctx.needs_input_grad[:5]
        if not _any_autocast():
            return *_gradients(*arguments), None
        with torch.autocast("cpu", enabled=False):
            return *_gradients(*arguments), None


def _gradients(
    grad_y: Tensor, saved: tuple[Tensor, ...], eps: float, needs: tuple[bool, ...]
) -> tuple[Tensor | None, ...]:
    """Return the gradients of x and the four weights; None for those that are not needed."""
    x, weight, mask, gate_weight, gate_bias, log, tanh, share, w, m, a, g = saved
    if torch.is_grad_enabled() or eager_only() or is_batched_gradient(grad_y):
        bits = sum(1 << bit for bit, needed in enumerate(needs) if needed)
        grads_by_formula = reference.nalu_backward(
            grad_y, x, weight, mask, gate_weight, gate_bias, None, None, None, eps, needs=bits
        )
        return tuple(
            grad if needed else None for grad, needed in zip(grads_by_formula, needs, strict=True)
        )
    rows, shared = _of_each(x, weight), x.dim() == 2
    d_a = grad_y * g
    d_p, d_h = (grad_y - d_a).mul_(m), (a - m).mul_(d_a)
    d_h.addcmul_(d_h, g, value=-1)
    grads: list[Tensor | None] = [None] * 5
    if needs[0]:
        d_x = torch.bmm(d_p, w).mul_(x.sign()).div_(x.abs().add_(eps))
        d_x.baddbmm_(d_a, w).baddbmm_(d_h, gate_weight)
        grads[0] = d_x.sum(0) if shared else d_x
    if needs[1] or needs[2]:
        d_w = torch.baddbmm(torch.bmm(d_a.mT, rows), d_p.mT, _of_each(log, w))
        if needs[1]:
            grads[1] = torch.addcmul(share, share, tanh.square(), value=-1).mul_(d_w)
        d_w.mul_(w)
        grads[2] = d_w.addcmul_(d_w, share, value=-1) if needs[2] else None
    if needs[3]:
        grads[3] = torch.bmm(d_h.mT, rows)
    if needs[4]:
        grads[4] = d_h.sum(1)
    return tuple(grads)


def nalu(*inputs: Any) -> Any:
    """Apply `Nalu` to flat inputs; NotImplemented where the formula is needed, or faster.

    This is so under transformations, for compilers, for tensors of another kind, and for one model
    without a leading dimension.
    """
    if inputs[1].dim() == 2 or backend_for(inputs[0]) != "cpu" or is_compiling() or eager_only():
        return NotImplemented
    for tensor in inputs[:5]:
        if type(tensor) not in _PLAIN:
            return NotImplemented
    return Nalu.apply(*inputs)  # type: ignore[no-untyped-call]
