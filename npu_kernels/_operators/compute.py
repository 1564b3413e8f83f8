"""How each layer of checked, flat operands is computed: by kernels where they can, else by formula.

Operands are flat: x ``[B, I]`` or ``[K, B, I]``, weights with or without K.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_exporting

from npu_kernels import reference
from npu_kernels._common.checks import check_choice
from npu_kernels._operators import (
    autograd,
    dispatch,
    fast_path,
    ops,
    second_derivatives,
    transforms,
)
from npu_kernels._operators.autograd import (
    apply_alone,
    eager_only,
    in_one_grad_level,
    outside_of_transforms,
    undifferentiated,
)
from npu_kernels._operators.dispatch import backend_for, by_fast_path
from npu_kernels._operators.operands import EPS, check_positive
from npu_kernels.reference import CLIP, STRAIGHT_THROUGH


def _kernels(layer: ops.Layer) -> Callable[[tuple[Any, ...]], Any]:
    """Return a layer's operator, differentiable: a function of the operands and of all options.

    It returns NotImplemented where the formula must be used: because only it is correct, or because
    there is no kernel.
    """
    operands, forward_inputs = layer.operands, layer.operands + len(layer.options)
    forward, keep, discard = layer.forward, layer.keep, (False,) * len(layer.keep)
    forward_name, derivative = f"{layer.name}_forward", autograd.DERIVATIVES[layer.name]
    launching, function = derivative.launching, derivative.function
    transformed = transforms.FUNCTIONS[layer.name].apply

    def run(inputs: tuple[Any, ...]) -> Any:
        backend = backend_for(inputs[0])
        if plain := outside_of_transforms(inputs[:operands]):
            inputs = (*plain, *inputs[operands:])
            launcher = dispatch.launcher(forward_name, plain) if backend != "reference" else None
            return launching(launcher, *inputs) if launcher else apply_alone(function, inputs)
        if backend == "reference":
            return NotImplemented
        # What a program or a level of grad differentiates is the operator itself.
        in_grad = eager_only() and in_one_grad_level() and True not in inputs[forward_inputs:]
        if in_grad or is_exporting():
            arguments = inputs[:forward_inputs] + keep
            outputs = forward(*arguments)
            return outputs[0] if keep else outputs
        if eager_only():
            if not transforms.fused(inputs[1:operands]):
                return NotImplemented
            if not torch.is_grad_enabled():  # torch enables it below a Function's level
                inputs = tuple([t.detach() if isinstance(t, Tensor) else t for t in inputs])
            return transformed(*inputs)[0]
        launcher = dispatch.launcher(forward_name, inputs[:operands])
        if torch.is_grad_enabled() and any_requires_grad(inputs):
            return launching(launcher, *inputs) if launcher else function.apply(*inputs)
        arguments = inputs[:forward_inputs] + discard
        outputs = launcher.call(arguments)[0] if launcher else undifferentiated(forward, arguments)
        return outputs[0] if discard else outputs

    def any_requires_grad(inputs: tuple[Any, ...]) -> bool:
        for tensor in inputs[:operands]:  # noqa: SIM110  # `any` takes three times as long
            if tensor is not None and tensor.requires_grad:
                return True
        return False

    return run


_npu = _kernels(ops.LAYERS["npu"])
_nmu = _kernels(ops.LAYERS["nmu"])
_nmru = _kernels(ops.LAYERS["nmru"])
_nalu = _kernels(ops.LAYERS["nalu"])
_inalu = _kernels(ops.LAYERS["inalu"])


def npu(
    x: Tensor,
    weight_re: Tensor,
    weight_im: Tensor | None = None,
    gate: Tensor | None = None,
    *,
    eps: float | None,
    gate_gradient: str,
) -> Tensor:
    """Compute a Neural Power Unit; ValueError for wrong options."""
    eps = EPS[x.dtype] if eps is None else check_positive("npu", "eps", eps, x.dtype)
    if gate_gradient != CLIP and gate_gradient != STRAIGHT_THROUGH:  # quicker than a call
        check_choice("npu", "gate_gradient", gate_gradient, (CLIP, STRAIGHT_THROUGH))
    straight_through = gate_gradient == STRAIGHT_THROUGH
    if eager_only() and second_derivatives.has_tangent_kernel(
        inputs := (x, weight_re, weight_im, gate)
    ):
        return second_derivatives.npu_with_tangent(inputs, eps, straight_through)
    if straight_through and is_exporting():  # which the operator does not know
        y = NotImplemented
    else:
        y = _npu((x, weight_re, weight_im, gate, eps, straight_through))
    if y is NotImplemented:
        return reference.npu(x, weight_re, weight_im, gate, eps=eps, gate_gradient=gate_gradient)
    return y


def nmu(x: Tensor, weight: Tensor) -> Tensor:
    """Compute a Neural Multiplication Unit that uses its weight as it is."""
    y = _nmu((x, weight))
    return reference.nmu_forward(x, weight) if y is NotImplemented else y


def nmu_clipped(x: Tensor, weight: Tensor) -> Tensor:
    """Compute a Neural Multiplication Unit with its weight clipped to [0, 1]."""
    return nmu(x, weight.clamp(0.0, 1.0))


def nmru(x: Tensor, weight: Tensor, *, eps: float, clip: bool, sign: str) -> Tensor:
    """Compute a Neural Multiplicative Reciprocal Unit."""
    y = _nmru((x, weight, eps, clip, sign == "separate"))
    return reference.nmru(x, weight, eps=eps, clip=clip, sign=sign) if y is NotImplemented else y


def nalu(
    x: Tensor,
    weight: Tensor,
    mask: Tensor,
    gate_weight: Tensor,
    gate_bias: Tensor | None,
    *,
    eps: float,
) -> Tensor:
    """Compute a Neural Arithmetic Logic Unit."""
    y = _nalu((x, weight, mask, gate_weight, gate_bias, eps))
    if y is NotImplemented:
        return reference.nalu(x, weight, mask, gate_weight, gate_bias, eps=eps)
    return y


def inalu(
    x: Tensor,
    weight_add: Tensor,
    mask_add: Tensor,
    weight_mul: Tensor,
    mask_mul: Tensor,
    gate_weight: Tensor,
    *,
    eps: float,
    omega: float,
) -> Tensor:
    """Compute an Improved Neural Arithmetic Logic Unit."""
    y = _inalu((x, weight_add, mask_add, weight_mul, mask_mul, gate_weight, eps, omega))
    if y is NotImplemented:
        return reference.inalu(
            x,
            weight_add,
            mask_add,
            weight_mul,
            mask_mul,
            gate_weight,
            eps=eps,
            omega=omega,
            product=_sign_product,
        )
    return y


def _sign_product(x: Tensor, weight: Tensor) -> Tensor:
    y = by_fast_path(fast_path.nmu, x, weight, False)
    return nmu(x, weight) if y is NotImplemented else y
