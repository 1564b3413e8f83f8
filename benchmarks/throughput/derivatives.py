"""The passes "double-backward", "hvp" and "jvp": derivatives of a layer beyond its gradient.

hvp    the Hessian of mean(y^2) by the parameters, times a vector
jvp    y and its change along a direction in x, in forward mode, under no_grad
double-backward
       gradients by the parameters of mean(y^2) + mean((d sum(y) / dx)^2), as in losses of physics

Ours and eager differentiate a function of x and the parameters with torch.autograd and its forward
mode. torch.compile cannot compile "double-backward" and "hvp" written so. It compiles the same
derivatives written with the transforms of torch.func.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, func
from torch.autograd import forward_ad

from benchmarks.throughput.cases import DOUBLE_BACKWARD, HVP, JVP, Operands, Workload, leaf

Function = Callable[..., Tensor]  # of x and the parameters


def _direction(tensor: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(tensor.shape, generator=generator).to(tensor)


def _autograd(kind: str, function: Function, operands: Operands) -> Callable[[], Sequence[Tensor]]:
    """A pass by torch.autograd, or by its forward mode."""
    x, parameters = leaf(operands.x), [leaf(p) for p in operands.parameters]
    along: Any = _direction(x) if kind == JVP else [_direction(p) for p in parameters]

    def double_backward() -> Sequence[Tensor]:
        y = function(x, *parameters)
        (gradient,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        return torch.autograd.grad(y.square().mean() + gradient.square().mean(), parameters)

    def hvp() -> Sequence[Tensor]:
        loss = function(operands.x, *parameters).square().mean()
        grads = torch.autograd.grad(loss, parameters, create_graph=True)
        return torch.autograd.grad(grads, parameters, along)

    def jvp() -> Sequence[Tensor]:
        with torch.no_grad(), forward_ad.dual_level():
            y = function(forward_ad.make_dual(operands.x, along), *operands.parameters)
            return forward_ad.unpack_dual(y)

    return {DOUBLE_BACKWARD: double_backward, HVP: hvp, JVP: jvp}[kind]


def _transformed(
    kind: str, function: Function, operands: Operands
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A function for torch.compile, and its arguments."""
    x, parameters = operands.x, operands.parameters

    def loss_with_gradient(parameters: tuple[Tensor, ...], x: Tensor) -> Tensor:
        result: Any = func.vjp(lambda x: function(x, *parameters), x)
        y, vjp = result
        (gradient,) = vjp(torch.ones_like(y))
        return y.square().mean() + gradient.square().mean()

    def loss(parameters: tuple[Tensor, ...], x: Tensor) -> Tensor:
        return function(x, *parameters).square().mean()

    def hvp(parameters: Any, along: Any, x: Tensor) -> Any:
        return func.jvp(lambda p: func.grad(loss)(p, x), (parameters,), (along,))[1]

    def jvp(parameters: Any, x: Tensor, along: Tensor) -> Any:
        return func.jvp(lambda x: function(x, *parameters), (x,), (along,))

    if kind == DOUBLE_BACKWARD:
        return func.grad(loss_with_gradient), (parameters, x)
    if kind == HVP:
        return hvp, (parameters, tuple(map(_direction, parameters)), x)
    return jvp, (parameters, x, _direction(x))


def workload(kind: str, function: Function, operands: Operands, compiled: str | None) -> Workload:
    """One pass of a function of x and the parameters; compiled: the mode of torch.compile."""
    if compiled is None:
        run = _autograd(kind, function, operands)
        return Workload(run, run)
    transformed, arguments = _transformed(kind, function, operands)
    call = torch.compile(transformed, dynamic=False, mode=compiled)

    def compiled_pass() -> Sequence[Tensor]:
        with torch.no_grad():
            return call(*arguments)

    return Workload(compiled_pass, compiled_pass)
