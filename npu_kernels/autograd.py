"""Neural Power Unit, a layer: the operators' derivatives.

Each layer has two Functions: the forward operator, whose derivative is the backward operator, and the backward
operator, whose derivative is that of its eager formula. So first derivatives are fused, and second and higher ones
are right.

The Functions have the old ``forward(ctx, ...)`` style: ``setup_context`` inspects a signature at every call.
`torch.func` transforms and forward-mode differentiation do not see into them; `eager_only` says when they are at
work, and then the eager formulas have to be used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function, forward_ad

from npu_kernels import ops, reference

_transforms_active = torch._C._are_functorch_transforms_active


def eager_only() -> bool:
    """Whether a `torch.func` transform or forward-mode differentiation is at work."""
    return _transforms_active() or forward_ad._current_level >= 0


def _differentiate(
    formula: Callable[..., tuple[Tensor, ...]],
    inputs: Sequence[Tensor | None],
    needed: Sequence[bool],
    grads: Sequence[Tensor | None],
) -> list[Tensor | None]:
    """Gradients of ``formula(*inputs)`` for the inputs that need one, given those of its outputs."""
    create_graph = torch.is_grad_enabled()
    # Aliases, so that an input that was computed from another one does not bring that one's gradient along.
    device_type = next(t for t in inputs if t is not None).device.type
    with torch.enable_grad(), torch.autocast(device_type, enabled=False):
        aliases = [None if t is None else t.view_as(t) for t in inputs]
        outputs = [(o, g) for o, g in zip(formula(*aliases), grads, strict=True) if g is not None and o.requires_grad]
        wanted = [alias for alias, need in zip(aliases, needed, strict=True) if alias is not None and need]
        if not outputs or not wanted:
            return [None] * len(inputs)
        found = iter(
            torch.autograd.grad(
                [output for output, _ in outputs],
                wanted,
                [grad for _, grad in outputs],
                create_graph=create_graph,
                allow_unused=True,
            )
        )
    return [next(found) if need else None for need in needed]


class NPUFunction(Function):
    """``y [K, B, O]`` from x, weight_re, weight_im, gate, eps, straight_through."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight_re: Tensor,
        weight_im: Tensor | None,
        gate: Tensor | None,
        eps: float,
        straight_through: bool,
    ) -> Tensor:
        y, s = ops.npu_forward(x, weight_re, weight_im, gate, eps, True)
        ctx.save_for_backward(x, weight_re, weight_im, gate, y, s)
        ctx.options = eps, straight_through
        return y

    @staticmethod
    def backward(ctx: Any, grad_y: Tensor) -> tuple[Tensor | None, ...]:
        x, weight_re, weight_im, gate, y, s = ctx.saved_tensors
        eps, straight = ctx.options
        n = ctx.needs_input_grad
        needs = n[0] | n[1] << 1 | n[2] << 2 | n[3] << 3
        return *npu_backward(grad_y, x, weight_re, weight_im, gate, y, s, eps, straight, needs), None, None


def npu_backward(
    grad_y: Tensor,
    x: Tensor,
    weight_re: Tensor,
    weight_im: Tensor | None,
    gate: Tensor | None,
    y: Tensor,
    s: Tensor,
    eps: float,
    straight_through: bool,
    needs: int,
) -> tuple[Tensor | None, ...]:
    """The four gradients, None for those without their bit in `needs`, differentiable where grad mode asks for it."""
    if eager_only():  # vmap over this backward, or a tangent in grad_y
        grads = reference.npu_backward(grad_y, x, weight_re, weight_im, gate, None, None, eps, straight_through, needs)
    elif torch.is_grad_enabled():
        return NPUBackwardFunction.apply(grad_y, x, weight_re, weight_im, gate, y, s, eps, straight_through, needs)
    else:
        grads = ops.npu_backward(grad_y, x, weight_re, weight_im, gate, y, s, eps, straight_through, needs)
    return tuple(grad if needs >> bit & 1 else None for bit, grad in enumerate(grads))


class NPUBackwardFunction(Function):
    """The four gradients of `NPUFunction`; y and s are functions of the other inputs and get no gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        grad_y: Tensor,
        x: Tensor,
        weight_re: Tensor,
        weight_im: Tensor | None,
        gate: Tensor | None,
        y: Tensor,
        s: Tensor,
        eps: float,
        straight_through: bool,
        needs: int,
    ) -> tuple[Tensor | None, ...]:
        ctx.save_for_backward(grad_y, x, weight_re, weight_im, gate)
        ctx.options = eps, straight_through, needs
        ctx.set_materialize_grads(False)
        grads = ops.npu_backward(grad_y, x, weight_re, weight_im, gate, y, s, eps, straight_through, needs)
        return tuple(grad if needs >> bit & 1 else None for bit, grad in enumerate(grads))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        def formula(
            grad_y: Tensor, x: Tensor, weight_re: Tensor, weight_im: Tensor | None, gate: Tensor | None
        ) -> tuple[Tensor, ...]:
            return reference.npu_backward(grad_y, x, weight_re, weight_im, gate, None, None, *ctx.options)

        return *_differentiate(formula, ctx.saved_tensors, ctx.needs_input_grad[:5], grads), *(None,) * 5


class NMUFunction(Function):
    """``y [K, B, O]`` from x, weight (used as it is)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return ops.nmu_forward(x, weight)

    @staticmethod
    def backward(ctx: Any, grad_y: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        n = ctx.needs_input_grad
        return nmu_backward(grad_y, x, weight, n[0] | n[1] << 1)


def nmu_backward(grad_y: Tensor, x: Tensor, weight: Tensor, needs: int) -> tuple[Tensor | None, ...]:
    """The two gradients, as `npu_backward`."""
    if eager_only():
        grads = reference.nmu_backward(grad_y, x, weight, needs)
    elif torch.is_grad_enabled():
        return NMUBackwardFunction.apply(grad_y, x, weight, needs)
    else:
        grads = ops.nmu_backward(grad_y, x, weight, needs)
    return tuple(grad if needs >> bit & 1 else None for bit, grad in enumerate(grads))


class NMUBackwardFunction(Function):
    """The two gradients of `NMUFunction`."""

    @staticmethod
    def forward(ctx: Any, grad_y: Tensor, x: Tensor, weight: Tensor, needs: int) -> tuple[Tensor | None, ...]:
        ctx.save_for_backward(grad_y, x, weight)
        ctx.needs = needs
        ctx.set_materialize_grads(False)
        grads = ops.nmu_backward(grad_y, x, weight, needs)
        return tuple(grad if needs >> bit & 1 else None for bit, grad in enumerate(grads))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        def formula(grad_y: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
            return reference.nmu_backward(grad_y, x, weight, ctx.needs)

        return *_differentiate(formula, ctx.saved_tensors, ctx.needs_input_grad[:3], grads), None


class NALUFunction(Function):
    """``y [K, B, O]`` from x, weight, mask, gate_weight, gate_bias, eps."""

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
        inputs = x, weight, mask, gate_weight, gate_bias
        y, *saved = ops.nalu_forward(*inputs, eps, True)
        ctx.save_for_backward(*inputs, *saved)
        ctx.eps = eps
        return y

    @staticmethod
    def backward(ctx: Any, grad_y: Tensor) -> tuple[Tensor | None, ...]:
        eps = ctx.eps
        needed = ctx.needs_input_grad[:5]
        needs = sum(need << bit for bit, need in enumerate(needed))
        if eager_only():
            operands: tuple[Any, ...] = (grad_y, *ctx.saved_tensors[:5], None, None, None, eps, needs)
            grads = reference.nalu_backward(*operands)
        elif torch.is_grad_enabled():
            return *NALUBackwardFunction.apply(grad_y, *ctx.saved_tensors, eps, needs), None
        else:
            grads = ops.nalu_backward(grad_y, *ctx.saved_tensors, eps, needs)
        return *(grad if need else None for grad, need in zip(grads, needed, strict=True)), None


class NALUBackwardFunction(Function):
    """The five gradients of `NALUFunction`; h, a and t are functions of the others and get no gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        grad_y: Tensor,
        x: Tensor,
        weight: Tensor,
        mask: Tensor,
        gate_weight: Tensor,
        gate_bias: Tensor | None,
        h: Tensor,
        a: Tensor,
        t: Tensor,
        eps: float,
        needs: int,
    ) -> tuple[Tensor | None, ...]:
        inputs = grad_y, x, weight, mask, gate_weight, gate_bias
        ctx.save_for_backward(*inputs)
        ctx.options = eps, needs
        ctx.set_materialize_grads(False)
        grads = ops.nalu_backward(*inputs, h, a, t, eps, needs)
        return tuple(grad if needs >> bit & 1 else None for bit, grad in enumerate(grads))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        def formula(*inputs: Any) -> tuple[Tensor, ...]:
            operands: tuple[Any, ...] = (*inputs, None, None, None, *ctx.options)
            return reference.nalu_backward(*operands)

        return *_differentiate(formula, ctx.saved_tensors, ctx.needs_input_grad[:6], grads), *(None,) * 5


class INALUFunction(Function):
    """``y [K, B, O]`` from x, the five weights, eps, omega."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight_add: Tensor,
        mask_add: Tensor,
        weight_mul: Tensor,
        mask_mul: Tensor,
        gate_weight: Tensor,
        eps: float,
        omega: float,
    ) -> Tensor:
        inputs = x, weight_add, mask_add, weight_mul, mask_mul, gate_weight
        y, *saved = ops.inalu_forward(*inputs, eps, omega, True)
        ctx.save_for_backward(*inputs, *saved)
        ctx.options = eps, omega
        return y

    @staticmethod
    def backward(ctx: Any, grad_y: Tensor) -> tuple[Tensor | None, ...]:
        needs = sum(need << bit for bit, need in enumerate(ctx.needs_input_grad[:6]))
        return *inalu_backward(grad_y, *ctx.saved_tensors, *ctx.options, needs), None, None


def inalu_backward(grad_y: Tensor, *arguments: Any) -> tuple[Tensor | None, ...]:
    """The six gradients from x, the five weights, h, a, t, flags, eps, omega and needs, as `npu_backward`."""
    if eager_only():
        operands: tuple[Any, ...] = (grad_y, *arguments[:6], *(None,) * 4, *arguments[10:])
        grads = reference.inalu_backward(*operands)
    elif torch.is_grad_enabled():
        return INALUBackwardFunction.apply(grad_y, *arguments)
    else:
        grads = ops.inalu_backward(grad_y, *arguments)
    return tuple(grad if arguments[-1] >> bit & 1 else None for bit, grad in enumerate(grads))


class INALUBackwardFunction(Function):
    """The six gradients of `INALUFunction`; what it saved is a function of the others and gets no gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        grad_y: Tensor,
        x: Tensor,
        weight_add: Tensor,
        mask_add: Tensor,
        weight_mul: Tensor,
        mask_mul: Tensor,
        gate_weight: Tensor,
        h: Tensor,
        a: Tensor,
        t: Tensor,
        flags: Tensor,
        eps: float,
        omega: float,
        needs: int,
    ) -> tuple[Tensor | None, ...]:
        inputs = grad_y, x, weight_add, mask_add, weight_mul, mask_mul, gate_weight
        ctx.save_for_backward(*inputs)
        ctx.options = eps, omega, needs
        ctx.set_materialize_grads(False)
        grads = ops.inalu_backward(*inputs, h, a, t, flags, eps, omega, needs)
        return tuple(grad if needs >> bit & 1 else None for bit, grad in enumerate(grads))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        def formula(*inputs: Any) -> tuple[Tensor, ...]:
            operands: tuple[Any, ...] = (*inputs, None, None, None, None, *ctx.options)
            return reference.inalu_backward(*operands)

        return *_differentiate(formula, ctx.saved_tensors, ctx.needs_input_grad[:7], grads), *(None,) * 7
