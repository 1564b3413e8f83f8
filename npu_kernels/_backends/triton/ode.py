"""Launches of the time loop: one forward; one backward, and one reduction where several programs share a model.

The formulas and what is kept: `ode_kernels`. Layers too large for one program's registers (`fits`) are stepped through
by `npu_kernels.ode`.
"""

import math

import torch
import triton

from npu_kernels._backends.triton import tuning
from npu_kernels._backends.triton.launch import accumulator, check_operands, device_of, empty
from npu_kernels._backends.triton.ode_kernels import ode_backward_kernel, ode_forward_kernel
from npu_kernels._backends.triton.reduction import sum_partials
from npu_kernels._operators import ops

Tensor = torch.Tensor

# What one program holds, by the width of the numbers: elements of the tile [BLOCK_B, BLOCK_H, BLOCK_D] per thread, as
# long as there are at most 8 warps, and elements of a model's own tile. More than these spill (`tools.aot`).
ELEMENTS = {torch.float32: 2, torch.float64: 1}
MOST = {torch.float32: 1024, torch.float64: 512}
WARP = 32
PROGRAMS = 4096  # of a backward pass, about: each takes several starts one after the other and stores one partial sum


def _blocks(d: int, h: int) -> tuple[int, int]:
    return triton.next_power_of_2(d), triton.next_power_of_2(h)


def fits(d: int, h: int, dtype: torch.dtype) -> bool:
    """Whether one program can hold a model of that size."""
    return d * h > 0 and math.prod(_blocks(d, h)) <= MOST[dtype]


def _options(d: int, h: int, starts: int, like: Tensor) -> dict[str, int]:
    """Block sizes and warps of a launch. Starts share a program only where a warp has threads to spare."""
    block_d, block_h = _blocks(d, h)
    return {
        "BLOCK_B": min(triton.next_power_of_2(starts), max(1, WARP // (block_d * block_h))),
        "BLOCK_H": block_h,
        "BLOCK_D": block_d,
        "num_warps": min(8, max(1, block_d * block_h // (WARP * ELEMENTS[like.dtype]))),
        "num_stages": 1,
        "enable_fp_fusion": True,
        **tuning.most_registers(like.device),
    }


def _loop(name: str, tableau: list[float], steps: int) -> tuple[tuple[float, ...], int]:
    """The tableau as a compile-time constant, and its stages."""
    if steps < 1:
        raise ValueError(f"{name}: steps must be positive, got {steps}")
    stages = math.isqrt(8 * len(tableau) + 1) // 2
    if not tableau or stages * (stages + 1) // 2 != len(tableau):
        raise ValueError(
            f"{name}: tableau must be a lower triangle by rows, got {len(tableau)} numbers"
        )
    return tuple(tableau), stages


def _check_weights(
    name: str,
    states: Tensor,
    weight_re: Tensor,
    weight_im: Tensor | None,
    gate: Tensor | None,
    weight: Tensor,
) -> tuple[int, ...]:
    """``[(K,)]`` of the weights, all of whose shapes fit."""
    *models, h, d = weight_re.shape
    check_operands(
        name,
        states,
        weight_re=(weight_re, (*models, h, d)),
        weight_im=(weight_im, (*models, h, d)),
        gate=(gate, (*models, d)),
        weight=(weight, (*models, d, h)),
    )
    return tuple(models)


def ode_forward(
    u0: Tensor,
    weight_re: Tensor,
    weight_im: Tensor | None,
    gate: Tensor | None,
    weight: Tensor,
    tableau: list[float],
    steps: int,
    dt: float,
    eps: float,
    clip: bool,
    derivatives: bool,
    save: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """``(trajectory, derivatives, stages)`` as in `npu_kernels._time_loop.reference`, with stages if `save`; one launch."""
    models = _check_weights("ode_forward", u0, weight_re, weight_im, gate, weight)
    h, d = weight_re.shape[-2:]
    starts = u0.shape[-2]
    check_operands("ode_forward", u0, u0=(u0, (*models, starts, d)))
    triangle, stages = _loop("ode_forward", tableau, steps)
    trajectory = empty(u0, (*models, starts, steps + 1, d))
    slopes = empty(u0, trajectory.shape if derivatives else (0,))
    kept = empty(u0, ops.ode_stages(u0, weight_re, tableau, steps, derivatives) if save else (0,))
    if trajectory.numel() == 0:
        return trajectory, slopes, kept
    options = _options(d, h, starts, u0)
    grid = math.prod(models) * -(-starts // options["BLOCK_B"])
    with device_of(u0):
        ode_forward_kernel[(grid,)](
            u0.contiguous(), weight_re.contiguous(), None if weight_im is None else weight_im.contiguous(),
            None if gate is None else gate.contiguous(), weight.contiguous(), trajectory,
            slopes if derivatives else None, kept if save else None, starts, steps, dt, d, h, triangle, stages, eps,
            clip, accumulator(u0.dtype), **options,
        )  # fmt: skip
    return trajectory, slopes, kept


def ode_backward(
    grad_trajectory: Tensor | None,
    grad_derivatives: Tensor | None,
    trajectory: Tensor,
    weight_re: Tensor,
    weight_im: Tensor | None,
    gate: Tensor | None,
    weight: Tensor,
    stages: Tensor,
    tableau: list[float],
    dt: float,
    eps: float,
    clip: bool,
    straight_through: bool,
    needs: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """``(grad_u0, grad_weight_re, grad_weight_im, grad_gate, grad_weight)``, those in `needs`, else empty.

    Without stages every step is computed again from the trajectory. At most two launches.
    """
    models = _check_weights("ode_backward", trajectory, weight_re, weight_im, gate, weight)
    h, d = weight_re.shape[-2:]
    starts, steps = trajectory.shape[-3], trajectory.shape[-2] - 1
    shape = (*models, starts, steps + 1, d)
    check_operands(
        "ode_backward",
        trajectory,
        trajectory=(trajectory, shape),
        grad_trajectory=(grad_trajectory, shape),
        grad_derivatives=(grad_derivatives, shape),
    )
    triangle, count = _loop("ode_backward", tableau, steps)
    if stages.numel() and stages.numel() < trajectory[..., :-1, 0].numel() * count * 2 * (d + h):
        raise ValueError(
            f"ode_backward: stages must be what ode_forward kept, got shape {tuple(stages.shape)}"
        )
    if weight_im is None:
        needs &= ~4
    if gate is None:
        needs &= ~8
    parameters = (weight_re, weight_im, gate, weight)
    grad_u0 = empty(trajectory, (*models, starts, d) if needs & 1 else (0,))
    grads = [
        empty(trajectory, t.shape if t is not None and needs >> bit & 1 else (0,))
        for bit, t in enumerate(parameters, 1)
    ]
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
    operands = (
        grad_trajectory,
        grad_derivatives,
        trajectory,
        *parameters,
        stages if stages.numel() else None,
    )
    with device_of(trajectory):
        ode_backward_kernel[(math.prod(models) * splits,)](
            *(None if t is None else t.contiguous() for t in operands), grad_u0, *parts, math.prod(models), starts,
            steps, tiles, dt, d, h, triangle, count, eps, clip, not straight_through, needs, acc, **options,
        )  # fmt: skip
        if splits > 1:
            re, im, of_gate, x = (
                pair if pair[1].numel() else None for pair in zip(parts, grads, strict=True)
            )
            sum_partials(acc, re=re, im=im, x=x, gate=of_gate)
    return (grad_u0, *grads)  # type: ignore[return-value]
