"""The derivative of the NPU's gradients in closed form, for second derivatives and tangents.

A double backward with the eager implementation runs its forward, its backward and the backward of
both. The closed form reads the forward's results and takes half of the products. With
``u = (a, b)``, ``a = log r`` and ``b = pi g m``, and the block matrix ``M = (Wr, -Wi; Wi, Wr)``,

    e = (P, Q) = M u      y = exp(P) cos Q      s = exp(P) sin Q      d = grad_y (y, -s)

the gradients of u and M are ``M' d`` and ``d u'``. Their derivative along v, which came for x,
weights and gate, is that of ``S = sum grad_y (y P' - s Q')``, where

    (P', Q') = M u' + N u      u' = (v_x da/dx + v_g da/dg, pi v_g m)      N: M of v's weights
    f = dS/de = grad_y (y P' - s Q', -s P' - y Q')
    dS/dM = f u' + d u''       dS/du = M' f + N' d       dS/du' = M' d

On the CPU one C++ kernel computes it, csrc/core/npu/second.cpp; elsewhere products of torch do.

In forward mode y and its tangent come from kernels on the CPU: the tangent is a result of the same
operator, ``npu_second``. Where the tangent must itself be differentiable, and under any transform
but one ``jvp``, the eager implementation is used.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.nn import Parameter

from npu_kernels._operators import dispatch, ops


class _System:
    """``e = M u`` with its derivatives; some leading columns of u, whose others are 0."""

    def __init__(
        self, u: Tensor, change: Tensor | None, matrix: Tensor, direction: Tensor | None
    ) -> None:
        self.u, self.change, self.matrix, self.direction = u, change, matrix, direction

    def along(self) -> Tensor | None:
        """Return ``M u' + N u``; None is 0."""
        result = None
        if self.change is not None:
            result = self.change @ self.matrix[..., : self.change.shape[-1]].mT
        if self.direction is None:
            return result
        more = self.u @ self.direction.mT
        return more if result is None else result + more

    def of_matrix(self, f: Tensor, d: Tensor) -> Tensor:
        """Return dS/dM."""
        result = f.mT @ self.u
        if self.change is not None:
            result[..., : self.change.shape[-1]] += d.mT @ self.change
        return result

    def of_rows(self, f: Tensor, d: Tensor) -> Tensor:
        """Return dS/du."""
        result = f @ self.matrix
        return result if self.direction is None else result + d @ self.direction


class _Inputs:
    """``u = (a, b)`` of x and the gate, its derivatives, and the direction v of both."""

    def __init__(
        self,
        x: Tensor,
        gate: Tensor | None,
        eps: float,
        straight_through: bool,
        v_x: Tensor | None,
        v_gate: Tensor | None,
    ) -> None:
        self.x, self.sign, self.v_x = x, x.sign(), v_x
        size = x.abs() + eps
        self.r, self.da_dx = size, self.sign
        self.inside = self.da_dg = self.v_g = g = None
        if gate is not None:
            g = _rows(gate.clamp(0.0, 1.0))
            self.r, self.da_dx = g * size + (1 - g), g * self.sign
            self.da_dg = (size - 1) / self.r
            if not straight_through:
                self.inside = ((gate >= 0) & (gate <= 1)).to(gate.dtype)
            if v_gate is not None:
                self.v_g = _rows(v_gate if self.inside is None else v_gate * self.inside)
        self.da_dx = self.da_dx / self.r
        self.a, self.m = self.r.log(), (x < 0).to(x.dtype)
        self.b = self.change_a = self.change_b = None
        # A GPU would have to be waited for, and a tracer has no values.
        if not x.is_cpu or get_proxy_mode() is not None or bool(self.m.any()):
            self.b = math.pi * self.m if g is None else (math.pi * g) * self.m
        if v_x is not None:
            self.change_a = v_x * self.da_dx
        if self.v_g is not None and self.da_dg is not None:
            of_gate = self.v_g * self.da_dg
            self.change_a = of_gate if self.change_a is None else self.change_a + of_gate
            self.change_b = None if self.b is None else (math.pi * self.v_g) * self.m

    def of_x(self, of_a: Tensor, of_change: Tensor) -> Tensor:
        """Return the gradient of x, from those of a and of its change."""
        result = of_a * self.da_dx
        if self.v_x is not None:
            result = result - of_change * ((self.v_x * self.da_dx) * self.da_dx)
        if self.v_g is not None:
            result = result + of_change * (self.v_g * self.sign / (self.r * self.r))
        return result.sum(0) if result.dim() > self.x.dim() else result

    def of_gate(self, of_a: Tensor, of_b: Tensor | None, of_change: Tensor) -> Tensor | None:
        """Return the gradient of the gate, from those of a, b and of the change of a."""
        if self.da_dg is None:
            return None
        result = of_a * self.da_dg
        if of_b is not None:
            result = result + (math.pi * self.m) * of_b
        if self.v_x is not None:
            result = result + of_change * (self.v_x * self.sign / (self.r * self.r))
        if self.v_g is not None:
            result = result - of_change * (self.v_g * self.da_dg * self.da_dg)
        result = result.sum(-2)
        return result if self.inside is None else result * self.inside


def npu_second(
    saved: Sequence[Any],
    options: Sequence[Any],
    grads: Sequence[Tensor | None],
    needed: Sequence[bool],
) -> list[Tensor | None]:
    """Return the gradients of ``sum(grads * gradients)``, for `gradients` of `npu_backward`.

    saved: its tensors: grad_y, x, weight_re, weight_im, gate, y and s. options: its others. grads:
    what came for the gradients of x, weight_re, weight_im and gate; None is 0. needed: whether
    grad_y, x, weight_re, weight_im and gate need a gradient; None is returned without.
    """
    grad_y, x, weight_re, weight_im, gate, y, s = saved
    eps, straight_through, _ = options
    operands = x, weight_re, weight_im, gate
    if dispatch.by_cpu_library([grad_y, *operands, y, s, *grads]):
        if all(along is None for along in grads):
            return [None] * 5
        present = [True, *(operand is not None for operand in operands)]
        present = [need and has for need, has in zip(needed, present, strict=True)]
        needs = sum(need << bit for bit, need in enumerate(present))
        results = by_kernel(grad_y, operands, (y, s), grads, eps, straight_through, needs)
        return [grad if need else None for grad, need in zip(results, present, strict=True)]
    v_x, v_re, v_im, v_gate = grads
    inputs = _Inputs(x, gate, eps, straight_through, v_x, v_gate)
    systems = _systems(inputs, weight_re, weight_im, v_re, v_im)
    parts = [system.along() for system in systems]
    if weight_im is not None:
        parts = [None, None] if parts[0] is None else list(parts[0].chunk(2, -1))
    along_p, along_q = parts[0], parts[1] if len(parts) > 1 else None
    if along_p is None:
        return [None] * 5

    of_grad_y = y * along_p if along_q is None else y * along_p - s * along_q
    d, f = [grad_y * y], [grad_y * of_grad_y]
    if len(parts) > 1:
        turned = s * along_p if along_q is None else s * along_p + y * along_q
        d.append(-grad_y * s)
        f.append(-grad_y * turned)
    if weight_im is not None:
        d, f = [torch.cat(d, -1)], [torch.cat(f, -1)]
    terms = list(zip(systems, f, d, strict=True))
    gradients: list[Tensor | None] = [of_grad_y, None, None, None, None]
    if needed[2] or needed[3]:
        of_matrix = [system.of_matrix(f_u, d_u) for system, f_u, d_u in terms]
        gradients[2:4] = _of_weights(of_matrix, weight_im, x.shape[-1])
    if needed[1] or needed[4]:
        of_rows = [system.of_rows(f_u, d_u) for system, f_u, d_u in terms]
        if weight_im is not None:
            of_rows = list(of_rows[0].split(x.shape[-1], -1))
        of_change = d[0] @ systems[0].matrix[..., : x.shape[-1]]
        gradients[1] = inputs.of_x(of_rows[0], of_change) if needed[1] else None
        of_b = of_rows[1] if len(of_rows) > 1 else None
        gradients[4] = inputs.of_gate(of_rows[0], of_b, of_change) if needed[4] else None
    return [grad if need else None for grad, need in zip(gradients, needed, strict=True)]


def by_kernel(
    grad_y: Tensor,
    operands: Sequence[Tensor | None],
    saved: tuple[Tensor, Tensor],
    along: Sequence[Tensor | None],
    eps: float,
    straight_through: bool,
    needs: int,
) -> Sequence[Tensor]:
    """Return what the C++ kernel computes, empty where `needs` has no bit: 1 is that of grad_y.

    operands: x, weight_re, weight_im, gate. saved: y and s. along: a direction in the operands;
    None is 0.
    """
    x, weight_re, weight_im, gate = operands
    y, s = saved
    along_x, along_re, along_im, along_gate = along
    if weight_im is not None and (along_re is None) != (along_im is None):
        zeros = torch.zeros_like(weight_im)
        along_re, along_im = (zeros if v is None else v for v in (along_re, along_im))
    return ops.npu_second(  # type: ignore[no-any-return]
        grad_y,
        x,
        weight_re,
        weight_im,
        gate,
        y,
        s,
        along_x,
        along_re,
        along_im,
        along_gate,
        eps,
        straight_through,
        needs,
    )


def _systems(
    inputs: _Inputs,
    real: Tensor,
    imaginary: Tensor | None,
    v_re: Tensor | None,
    v_im: Tensor | None,
) -> list[_System]:
    """Return the system of P and Q; without Wi that of P, and that of Q unless b is 0."""
    a, b, change_a, change_b = inputs.a, inputs.b, inputs.change_a, inputs.change_b
    if imaginary is None:
        of_phases = [] if b is None else [_System(b, change_b, real, v_re)]
        return [_System(a, change_a, real, v_re), *of_phases]
    phases, direction = b is not None, None
    if v_re is not None or v_im is not None:
        zeros = torch.zeros_like(real)
        known_re, known_im = (zeros if v is None else v for v in (v_re, v_im))
        direction = _block(known_re, known_im, phases)
    change, matrix = _joined(change_a, change_b), _block(real, imaginary, phases)
    u = _joined(a, b)
    assert u is not None
    return [_System(u, change, matrix, direction)]


def _rows(vector: Tensor) -> Tensor:
    return vector if vector.dim() == 1 else vector.unsqueeze(-2)


def _joined(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    return first if first is None or second is None else torch.cat((first, second), -1)


def _block(real: Tensor, imaginary: Tensor, phases: bool) -> Tensor:
    """Return ``(Wr, -Wi; Wi, Wr)``, or its first columns where b is 0."""
    columns = torch.cat((real, imaginary), -2)
    return torch.cat((columns, torch.cat((-imaginary, real), -2)), -1) if phases else columns


def _of_weights(
    of_matrix: list[Tensor], weight_im: Tensor | None, inputs: int
) -> tuple[Tensor, Tensor | None]:
    """Return the gradients of Wr and Wi from those of M."""
    if weight_im is None:
        return sum(of_matrix[1:], start=of_matrix[0]), None
    of_a, *of_b = of_matrix[0].split(inputs, -1)
    (re, im) = of_a.chunk(2, -2)
    if not of_b:
        return re, im
    top, bottom = of_b[0].chunk(2, -2)
    return re + bottom, im - top


# ---- the NPU in forward mode ----

_functorch = torch._C._functorch
_JVP = _functorch.TransformType.Jvp


def _needs_grad(tensor: Tensor) -> bool:
    while _functorch.is_functorch_wrapped_tensor(tensor):
        if tensor.requires_grad:
            return True
        tensor = _functorch.get_unwrapped(tensor)
    return tensor.requires_grad or type(tensor) not in (Tensor, Parameter)


def has_tangent_kernel(operands: tuple[Tensor | None, ...]) -> bool:
    """Whether `npu_with_tangent` computes these operands in the active transforms."""
    if forward_ad._current_level < 0 or torch.compiler.is_compiling():
        return False
    levels = _functorch.get_interpreter_stack() or ()
    if len(levels) > 1 or any(level.key() != _JVP for level in levels):
        return False
    if torch.is_grad_enabled() and any(t is not None and _needs_grad(t) for t in operands):
        return False
    return dispatch.backend_for(operands[0]) == "cpu"  # type: ignore[arg-type]


def npu_with_tangent(
    inputs: tuple[Tensor | None, ...], eps: float, straight_through: bool
) -> Tensor:
    """Return y with its tangent, if any of x, weight_re, weight_im and gate has one."""
    duals = [None if t is None else forward_ad.unpack_dual(t) for t in inputs]
    operands = [None if dual is None else dual.primal for dual in duals]
    along = [None if dual is None else dual.tangent for dual in duals]
    x, weight_re, weight_im, gate = operands
    has_tangent = any(tangent is not None for tangent in along)
    y, s = ops.npu_forward(x, weight_re, weight_im, gate, eps, has_tangent)
    if not has_tangent:
        return y  # type: ignore[no-any-return]
    only_tangent = 1
    (tangent, *_) = by_kernel(y, operands, (y, s), along, eps, straight_through, only_tangent)
    return forward_ad.make_dual(y, tangent)  # type: ignore[no-any-return]
