"""The NPU in forward mode: y and its tangent from kernels, on the CPU.

The tangent is a result of the operator of second derivatives, ``npu_second``. Where the tangent
must itself be differentiable, and under any transform but one ``jvp``, the eager formula is used.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter

from npu_kernels._operators import dispatch, ops
from npu_kernels._operators.second_derivatives import by_kernel

_functorch = torch._C._functorch
_JVP = _functorch.TransformType.Jvp


def _needs_grad(tensor: Tensor) -> bool:
    while _functorch.is_functorch_wrapped_tensor(tensor):
        if tensor.requires_grad:
            return True
        tensor = _functorch.get_unwrapped(tensor)
    return tensor.requires_grad or type(tensor) not in (Tensor, Parameter)


def has_kernel(operands: tuple[Tensor | None, ...]) -> bool:
    """Whether `npu` computes these operands in the active transforms."""
    if forward_ad._current_level < 0 or torch.compiler.is_compiling():
        return False
    levels = _functorch.get_interpreter_stack() or ()
    if len(levels) > 1 or any(level.key() != _JVP for level in levels):
        return False
    if torch.is_grad_enabled() and any(t is not None and _needs_grad(t) for t in operands):
        return False
    return dispatch.backend_for(operands[0]) == "cpu"  # type: ignore[arg-type]


def npu(inputs: tuple[Tensor | None, ...], eps: float, straight_through: bool) -> Tensor:
    """Return y with its tangent, if any of x, weight_re, weight_im and gate has one."""
    duals = [None if t is None else forward_ad.unpack_dual(t) for t in inputs]
    operands: Any = [None if dual is None else dual.primal for dual in duals]
    along = [None if dual is None else dual.tangent for dual in duals]
    if all(tangent is None for tangent in along):
        return ops.npu_forward(*operands, eps, False)[0]  # type: ignore[no-any-return]
    y, s = ops.npu_forward(*operands, eps, True)
    only_tangent = 1
    (tangent, *_) = by_kernel(y, operands, (y, s), along, eps, straight_through, only_tangent)
    return forward_ad.make_dual(y, tangent)  # type: ignore[no-any-return]
