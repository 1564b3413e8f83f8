"""Launches of the time loop: one forward, one backward.

A reduction follows the backward where several programs share a model.
The formulas and what is saved: `ode_kernels`. `npu_kernels.ode` steps through layers that are too
large for one program's registers (`fits`).
"""

import math

import torch
import triton

from npu_kernels._operators import ops
from npu_kernels._triton import tuning
from npu_kernels._triton.launch import (
    accumulator,
    check_operands,
    contiguous,
    device_of,
    empty,
    gradients,
    needed,
)
from npu_kernels._triton.ode_kernels import ode_backward_kernel, ode_forward_kernel
from npu_kernels._triton.reduction import sum_partials

Tensor = torch.Tensor

# Elements that fit the registers of a program; more of them spill (`tools.aot`).
THREAD_ELEMENTS = {torch.float32: 2, torch.float64: 1}  # of [BLOCK_B, BLOCK_H, BLOCK_D] per thread
MODEL_ELEMENTS = {torch.float32: 1024, torch.float64: 512}  # of [BLOCK_H, BLOCK_D]
WARP = 32  # threads
PROGRAMS = 4096  # of a backward pass, about: each takes several starts and stores one partial sum


def _blocks(d: int, h: int) -> tuple[int, int]:
    return triton.next_power_of_2(d), triton.next_power_of_2(h)


def fits(d: int, h: int, dtype: torch.dtype) -> bool:
    """Return whether one program can hold a model of that size."""
    return d * h > 0 and math.prod(_blocks(d, h)) <= MODEL_ELEMENTS[dtype]


def _options(d: int, h: int, starts: int, like: Tensor) -> dict[str, int]:
    """Block sizes and warps; starts share a program where a warp has threads to spare."""
    block_d, block_h = _blocks(d, h)
    return {
        "BLOCK_B": min(triton.next_power_of_2(starts), max(1, WARP // (block_d * block_h))),
        "BLOCK_H": block_h,
        "BLOCK_D": block_d,
        "num_warps": min(8, max(1, block_d * block_h // (WARP * THREAD_ELEMENTS[like.dtype]))),
        "num_stages": 1,
        "enable_fp_fusion": True,
        **tuning.most_registers(like.device),
    }


def _loop(name: str, tableau: list[float], steps: int) -> tuple[tuple[float, ...], int]:
    """The tableau as a compile-time constant, and its number of stages."""
    if steps < 1:
        raise ValueError(f"{name}: steps must be positive, got {steps}")
    stages = math.isqrt(8 * len(tableau) + 1) // 2
    if not tableau or stages * (stages + 1) // 2 != len(tableau):
        numbers = f"{len(tableau)} numbers"
        raise ValueError(f"{name}: tableau must be a lower triangle by rows, got {numbers}")
    return tuple(tableau), stages


def _check_weights(
    name: str, states: Tensor, weight_re: Tensor, weight_im: Tensor | None, gate: Tensor | None,
    weight: Tensor,
) -> tuple[int, ...]:  # fmt: skip
    """Raise for weights of wrong shapes, dtypes or devices; return ``(K,)`` or ``()``."""
    *models, h, d = weight_re.shape
    shape = (*models, h, d)
    weights = {"weight_re": (weight_re, shape), "weight_im": (weight_im, shape)}
    linear = (weight, (*models, d, h))
    check_operands(name, states, **weights, gate=(gate, (*models, d)), weight=linear)
    return tuple(models)


def ode_forward(
    u0: Tensor, weight_re: Tensor, weight_im: Tensor | None, gate: Tensor | None, weight: Tensor,
    tableau: list[float], steps: int, dt: float, eps: float, clip: bool, derivatives: bool,
    save: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return ``(trajectory, derivatives, stages)`` of `ode._loop`, in one launch.

    Derivatives are empty without `derivatives`, stages without `save`.
    """
    models = _check_weights("ode_forward", u0, weight_re, weight_im, gate, weight)
    h, d = weight_re.shape[-2:]
    starts = u0.shape[-2]
    check_operands("ode_forward", u0, u0=(u0, (*models, starts, d)))
    triangle, num_stages = _loop("ode_forward", tableau, steps)
    trajectory = empty(u0, (*models, starts, steps + 1, d))
    slopes = empty(u0, trajectory.shape if derivatives else (0,))
    stages = empty(u0, ops.ode_stages(u0, weight_re, tableau, steps, derivatives) if save else (0,))
    if trajectory.numel() == 0:
        return trajectory, slopes, stages
    options = _options(d, h, starts, u0)
    grid = math.prod(models) * -(-starts // options["BLOCK_B"])
    with device_of(u0):
        ode_forward_kernel[(grid,)](
            *contiguous(u0, weight_re, weight_im, gate, weight), trajectory,
            slopes if derivatives else None, stages if save else None, starts, steps, dt, d, h,
            triangle, num_stages, eps, clip, accumulator(u0.dtype), **options,
        )  # fmt: skip
    return trajectory, slopes, stages


def ode_backward(
    grad_trajectory: Tensor | None, grad_derivatives: Tensor | None, trajectory: Tensor,
    weight_re: Tensor, weight_im: Tensor | None, gate: Tensor | None, weight: Tensor,
    stages: Tensor, tableau: list[float], dt: float, eps: float, clip: bool,
    straight_through: bool, needs: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of u0, weight_re, weight_im, gate and weight, those in `needs`, else empty.

    Without stages every step is recomputed from the trajectory. At most two launches.
    """
    models = _check_weights("ode_backward", trajectory, weight_re, weight_im, gate, weight)
    h, d = weight_re.shape[-2:]
    starts, steps = trajectory.shape[-3], trajectory.shape[-2] - 1
    shape = (*models, starts, steps + 1, d)
    upstream = {"grad_trajectory": grad_trajectory, "grad_derivatives": grad_derivatives}
    operands = {name: (tensor, shape) for name, tensor in upstream.items()}
    check_operands("ode_backward", trajectory, trajectory=(trajectory, shape), **operands)
    triangle, num_stages = _loop("ode_backward", tableau, steps)
    stage_elements = trajectory[..., :-1, 0].numel() * num_stages * 2 * (d + h)
    if stages.numel() and stages.numel() < stage_elements:
        raise ValueError(
            f"ode_backward: stages must be what ode_forward kept, got shape {tuple(stages.shape)}"
        )
    if weight_im is None:
        needs &= ~4
    if gate is None:
        needs &= ~8
    parameters = (weight_re, weight_im, gate, weight)
    grad_u0 = empty(trajectory, (*models, starts, d) if needs & 1 else (0,))
    grads = gradients(needed(needs >> 1, *parameters), *parameters)
    if trajectory.numel() == 0:
        return (grad_u0, *(grad.zero_() for grad in grads))  # type: ignore[return-value]
    acc = accumulator(trajectory.dtype)
    options = _options(d, h, starts, trajectory)
    blocks = -(-starts // options["BLOCK_B"])
    tiles = -(-blocks // max(1, PROGRAMS // math.prod(models)))
    splits = -(-blocks // tiles)
    parts = [
        empty(grad, (splits, *grad.shape)) if splits > 1 and grad.numel() else grad
        for grad in grads
    ]
    tensors = contiguous(
        *upstream.values(), trajectory, *parameters, stages if stages.numel() else None
    )
    with device_of(trajectory):
        ode_backward_kernel[(math.prod(models) * splits,)](
            *tensors, grad_u0, *parts, math.prod(models), starts, steps, tiles, dt, d, h, triangle,
            num_stages, eps, clip, not straight_through, needs, acc, **options,
        )  # fmt: skip
        if splits > 1:
            re, im, gate_sum, x = (
                pair if pair[1].numel() else None for pair in zip(parts, grads, strict=True)
            )
            sum_partials(acc, re=re, im=im, x=x, gate=gate_sum)
    return (grad_u0, *grads)  # type: ignore[return-value]
