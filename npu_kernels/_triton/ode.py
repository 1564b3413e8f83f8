"""All steps of ``u' = A npu(u)``, and their adjoint, for some starts of one model.

One program has BLOCK_B starts at a time, whose states stay in its registers from the first step to
the last; so do the model's weights and, in the backward pass, their gradients. Tiles are [BLOCK_B,
BLOCK_H, BLOCK_D], a product is an elementwise one and a sum over D or h: matrix units would pad
such a layer to 16 x 16.

    rhs       r = g (|v| + eps) + (1 - g)    L = log r    t = pi g where v < 0, else 0
              P = Wr L - Wi t    Q = Wi L + Wr t
              y = exp(P) cos(Q)    s = exp(P) sin(Q)    k = A y
    vjp       dy = A' dk    dP = dy y    dQ = -dy s    dA += dk y'
              dWr += dP L' + dQ t'    dWi += dQ L' - dP t'
              dL = Wr' dP + Wi' dQ    dr = dL / r    dv = dr g sign(v), sign(0) = 1
              dg += dr (|v| + eps - 1) + pi sum_o (Wr dQ - Wi dP) where v < 0

The steps' coefficients are compile-time constants, TABLEAU, a lower triangle by rows
(`npu_kernels.ode._loop`); dt is a double, whatever the states are. The forward pass
saves v, L [D] and y, s [h] of every stage, or nothing: then the backward pass recomputes every step
from the trajectory, as it always does for the derivative at the last state.

A trajectory never depends on another one: elements outside a layer, and terms of negative inputs
where no input is negative, are masked and not multiplied by 0. The weights' gradients are summed
over the steps first, separately for every start, then over the program's starts; programs of one
model leave partial sums.

One launch forward, one backward; a reduction follows where several programs share a model.
`npu_kernels.ode` steps through layers that are too large for one program's registers (`fits`).
"""

# ruff: noqa: SIM102, RUF005 (an `if` on a compile-time constant must not be merged with one on a
# value; tuples are added, which Triton compiles, and not unpacked)

import math

import torch
import triton
import triton.language as tl

from npu_kernels._operators import ops
from npu_kernels._triton import tuning
from npu_kernels._triton.device_math import (
    PI,
    clamp_gate,
    exp_accurate,
    loop_end,
    magnitude,
    sincos,
)
from npu_kernels._triton.launch import (
    accumulator,
    check_operands,
    contiguous,
    device_of,
    empty,
    gradients,
    needed,
)
from npu_kernels._triton.reduction import sum_partials
from npu_kernels._triton.tape import start


@triton.jit
def _layer(
    wre_ptr,
    wim_ptr,
    gate_ptr,
    w_ptr,
    k,
    offs_d,
    offs_h,
    D: tl.constexpr,
    H: tl.constexpr,
    CLIP: tl.constexpr,
    ACC: tl.constexpr,
):
    """``Wr, Wi, A [1, h, D]`` and the clipped gate ``[1, 1, D]`` of model k.

    Beyond the layer weights are 0 and the gate is 1.
    """
    mask_d = offs_d < D
    mask = mask_d & (offs_h < H)
    offs_w = k * H * D + offs_h * D + offs_d
    w_re = tl.load(wre_ptr + offs_w, mask=mask, other=0.0).to(ACC)
    w_im = w_re
    if wim_ptr is not None:
        w_im = tl.load(wim_ptr + offs_w, mask=mask, other=0.0).to(ACC)
    a = tl.load(w_ptr + k * H * D + offs_d * H + offs_h, mask=mask, other=0.0).to(ACC)
    if CLIP:
        a = tl.where(a < -1, -1.0, tl.where(a > 1, 1.0, a))
    ghat = tl.full([1, 1, offs_d.shape[2]], 1.0, ACC)
    if gate_ptr is not None:
        ghat = clamp_gate(tl.load(gate_ptr + k * D + offs_d, mask=mask_d, other=1.0).to(ACC))
    return w_re, w_im, a, ghat


@triton.jit
def _rhs(v, layer, mask_u, mask_y, EPS: tl.constexpr, HAS_IM: tl.constexpr):
    """``k, L [., 1, D]`` and ``y, s [., h, 1]``; layer: the result of `_layer`."""
    w_re, w_im, a, ghat = layer
    log_r = tl.log(magnitude(v, ghat, EPS))
    turn = tl.where(v < 0, ghat * PI, 0.0)
    if HAS_IM:
        p = tl.sum(log_r * w_re - turn * w_im, axis=2)[:, :, None]
        q = tl.sum(log_r * w_im + turn * w_re, axis=2)[:, :, None]
    else:
        p = tl.sum(log_r * w_re, axis=2)[:, :, None]
        q = tl.sum(turn * w_re, axis=2)[:, :, None]
    e = exp_accurate(p)
    # An inf becomes NaN: a diverged trajectory must not take the slow reduction of large arguments.
    sin_q, cos_q = sincos(q + (q - q))
    y = tl.where(mask_y, e * cos_q, 0.0)
    s = tl.where(mask_y, e * sin_q, 0.0)
    k = tl.where(mask_u, tl.sum(a * y, axis=1)[:, None, :], 0.0)
    return k, log_r, y, s


@triton.jit
def _advance(u, k, dt, ROW: tl.constexpr, TABLEAU: tl.constexpr):
    """``u + dt sum_j c_j k_j`` with the coefficients c of a row, without terms where c is 0."""
    for j in tl.static_range(ROW + 1):
        if TABLEAU[ROW * (ROW + 1) // 2 + j] != 0:
            u += (dt * TABLEAU[ROW * (ROW + 1) // 2 + j]).to(u.dtype) * k[j]
    return u


@triton.jit
def _vjp(
    stage,
    dk,
    layer,
    mask_u,
    mask_y,
    sums,
    EPS: tl.constexpr,
    HAS_IM: tl.constexpr,
    NEEDS: tl.constexpr,
):
    """``dv = J' dk [., 1, D]``, and the sums with this stage's gradients of the weights added."""
    v, log_r, y, s = stage
    w_re, w_im, a, ghat = layer
    sum_re, sum_im, sum_gate, sum_a = sums
    negative = v < 0
    turn = tl.where(negative, ghat * PI, 0.0)
    dy = tl.where(mask_y, tl.sum(a * dk, axis=2)[:, :, None], 0.0)
    dp = dy * y
    dq = -dy * s
    if NEEDS & 2:
        sum_re += dp * log_r + tl.where(negative, dq * turn, 0.0)
    d_log = dp * w_re
    d_turn = dq * w_re
    if HAS_IM:
        if NEEDS & 4:
            sum_im += dq * log_r - tl.where(negative, dp * turn, 0.0)
        d_log += dq * w_im
        d_turn -= dp * w_im
    if NEEDS & 16:
        sum_a += dk * y
    size = tl.abs(v) + EPS
    dr = tl.where(mask_u, tl.sum(d_log, axis=1)[:, None, :] / magnitude(v, ghat, EPS), 0.0)
    d_size = dr * ghat
    if NEEDS & 8:
        sum_gate += dr * (size - 1.0)
        sum_gate += tl.where(negative, tl.sum(d_turn, axis=1)[:, None, :] * PI, 0.0)
    dv = tl.where(negative, -d_size, d_size)
    return dv, (sum_re, sum_im, sum_gate, sum_a)


@triton.jit(do_not_specialize=["B", "steps"])
def ode_forward_kernel(
    u0_ptr,  # [K, B, D]
    wre_ptr,  # [K, h, D]
    wim_ptr,  # [K, h, D]
    gate_ptr,  # [K, D]
    w_ptr,  # [K, D, h]
    trajectory_ptr,  # [K, B, steps + 1, D]
    derivatives_ptr,  # [K, B, steps + 1, D]
    stages_ptr,  # [K, B, steps STAGES, 2 D + 2 h]
    B,
    steps,
    dt: tl.float64,  # a plain float would reach the kernel as a float32
    D: tl.constexpr,
    H: tl.constexpr,
    TABLEAU: tl.constexpr,
    STAGES: tl.constexpr,
    EPS: tl.constexpr,
    CLIP: tl.constexpr,
    ACC: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    HAS_IM: tl.constexpr = wim_ptr is not None
    tiles_b = tl.cdiv(B, BLOCK_B)
    pid = tl.program_id(0)
    model = (pid // tiles_b).to(tl.int64)
    offs_b = ((pid % tiles_b).to(tl.int64) * BLOCK_B + tl.arange(0, BLOCK_B))[:, None, None]
    offs_h = tl.arange(0, BLOCK_H)[None, :, None]
    offs_d = tl.arange(0, BLOCK_D)[None, None, :]
    mask_d = offs_d < D
    mask_h = offs_h < H
    mask_u = (offs_b < B) & mask_d
    mask_y = (offs_b < B) & mask_h
    step = tl.full([1, 1, 1], dt, tl.float64)
    layer = _layer(wre_ptr, wim_ptr, gate_ptr, w_ptr, model, offs_d, offs_h, D, H, CLIP, ACC)
    row = model * B + offs_b
    u = tl.load(u0_ptr + row * D + offs_d, mask=mask_u, other=1.0).to(ACC)
    offs_u = row * (steps + 1) * D + offs_d
    size: tl.constexpr = 2 * (D + H)
    offs_s = row * steps * STAGES * size
    for _ in range(loop_end(steps)):
        tl.store(trajectory_ptr + offs_u, u, mask=mask_u)
        k = ()
        v = u
        for i in tl.static_range(STAGES):
            derivative, log_r, y, s = _rhs(v, layer, mask_u, mask_y, EPS, HAS_IM)
            if derivatives_ptr is not None:
                if i == 0:
                    tl.store(derivatives_ptr + offs_u, derivative, mask=mask_u)
            if stages_ptr is not None:
                tl.store(stages_ptr + offs_s + offs_d, v, mask=mask_u)
                tl.store(stages_ptr + offs_s + D + offs_d, log_r, mask=mask_u)
                tl.store(stages_ptr + offs_s + 2 * D + offs_h, y, mask=mask_y)
                tl.store(stages_ptr + offs_s + 2 * D + H + offs_h, s, mask=mask_y)
                offs_s += size
            k = k + (derivative,)  # type: ignore[assignment]
            v = _advance(u, k, step, i, TABLEAU)
        u = v
        offs_u += D
    tl.store(trajectory_ptr + offs_u, u, mask=mask_u)
    if derivatives_ptr is not None:
        derivative, log_r, y, s = _rhs(u, layer, mask_u, mask_y, EPS, HAS_IM)
        tl.store(derivatives_ptr + offs_u, derivative, mask=mask_u)


@triton.jit
def _stages(
    u,
    step,
    layer,
    mask_u,
    mask_y,
    STAGES: tl.constexpr,
    TABLEAU: tl.constexpr,
    EPS: tl.constexpr,
    HAS_IM: tl.constexpr,
):
    """The state, logarithms, y and s of every stage of a step from u."""
    stages = ()
    v = u
    k = ()
    for i in tl.static_range(STAGES):
        derivative, log_r, y, s = _rhs(v, layer, mask_u, mask_y, EPS, HAS_IM)
        stages = stages + ((v, log_r, y, s),)  # type: ignore[assignment]
        k = k + (derivative,)  # type: ignore[assignment]
        v = _advance(u, k, step, i, TABLEAU)
    return stages


@triton.jit
def _load_stage(stages_ptr, offs, offs_d, offs_h, mask_u, mask_y, D: tl.constexpr, H: tl.constexpr):
    """The state, logarithms, y and s of a stage that the forward saved."""
    v = tl.load(stages_ptr + offs + offs_d, mask=mask_u, other=1.0)
    log_r = tl.load(stages_ptr + offs + D + offs_d, mask=mask_u, other=0.0)
    y = tl.load(stages_ptr + offs + 2 * D + offs_h, mask=mask_y, other=0.0)
    s = tl.load(stages_ptr + offs + 2 * D + H + offs_h, mask=mask_y, other=0.0)
    return v, log_r, y, s


@triton.jit
def _upstream(g, dv, step, STAGE: tl.constexpr, STAGES: tl.constexpr, TABLEAU: tl.constexpr):
    """A stage's dk, from the gradient g of the step's result and dv of the later stages."""
    LAST: tl.constexpr = STAGES * (STAGES - 1) // 2  # where the tableau's last row begins
    dk = (step * TABLEAU[LAST + STAGE]).to(g.dtype) * g
    for j in tl.static_range(STAGE + 1, STAGES):
        if TABLEAU[j * (j - 1) // 2 + STAGE] != 0:
            dk += (step * TABLEAU[j * (j - 1) // 2 + STAGE]).to(g.dtype) * dv[j - STAGE - 1]
    return dk


@triton.jit
def _store_sums(
    sums,
    gate_ptr,
    w_ptr,
    grad_re_ptr,
    grad_im_ptr,
    grad_gate_ptr,
    grad_w_ptr,
    model,
    split_model,  # which of the splits' models
    offs_h,
    offs_d,
    mask_h,
    mask_d,
    D: tl.constexpr,
    H: tl.constexpr,
    HAS_IM: tl.constexpr,
    CLIP: tl.constexpr,
    CLIP_GATE: tl.constexpr,
    NEEDS: tl.constexpr,
):
    """Store the gradients of weights and gate, which are sums over this program's starts."""
    sum_re, sum_im, sum_gate, sum_a = sums
    offs_k = split_model * H * D
    mask = mask_h & mask_d
    if NEEDS & 2:
        total = tl.sum(sum_re, axis=0)[None, :, :]
        tl.store(grad_re_ptr + offs_k + offs_h * D + offs_d, total, mask=mask)
    if HAS_IM:
        if NEEDS & 4:
            total = tl.sum(sum_im, axis=0)[None, :, :]
            tl.store(grad_im_ptr + offs_k + offs_h * D + offs_d, total, mask=mask)
    if gate_ptr is not None:
        if NEEDS & 8:
            total = tl.sum(sum_gate, axis=0)[None, :, :]
            if CLIP_GATE:
                gate = tl.load(gate_ptr + model * D + offs_d, mask=mask_d, other=0.0)
                total = tl.where((gate >= 0) & (gate <= 1), total, 0.0)
            tl.store(grad_gate_ptr + split_model * D + offs_d, total, mask=mask_d)
    if NEEDS & 16:
        total = tl.sum(sum_a, axis=0)[None, :, :]
        if CLIP:
            w = tl.load(w_ptr + model * H * D + offs_d * H + offs_h, mask=mask, other=0.0)
            total = tl.where((w >= -1) & (w <= 1), total, 0.0)
        tl.store(grad_w_ptr + offs_k + offs_d * H + offs_h, total, mask=mask)


@triton.jit(do_not_specialize=["K", "B", "steps", "tiles"])
def ode_backward_kernel(
    grad_trajectory_ptr,  # [K, B, steps + 1, D]
    grad_derivatives_ptr,  # [K, B, steps + 1, D]
    trajectory_ptr,  # [K, B, steps + 1, D]
    wre_ptr,
    wim_ptr,
    gate_ptr,
    w_ptr,
    stages_ptr,  # None: every step is recomputed from the trajectory
    grad_u0_ptr,  # [K, B, D]
    grad_re_ptr,  # [splits, K, h, D]
    grad_im_ptr,  # [splits, K, h, D]
    grad_gate_ptr,  # [splits, K, D]
    grad_w_ptr,  # [splits, K, D, h]
    K,
    B,
    steps,
    tiles,  # of BLOCK_B starts for one program
    dt: tl.float64,
    D: tl.constexpr,
    H: tl.constexpr,
    TABLEAU: tl.constexpr,
    STAGES: tl.constexpr,
    EPS: tl.constexpr,
    CLIP: tl.constexpr,
    CLIP_GATE: tl.constexpr,
    NEEDS: tl.constexpr,
    ACC: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    HAS_IM: tl.constexpr = wim_ptr is not None
    pid = tl.program_id(0)
    model, split = (pid % K).to(tl.int64), (pid // K).to(tl.int64)
    offs_h = tl.arange(0, BLOCK_H)[None, :, None]
    offs_d = tl.arange(0, BLOCK_D)[None, None, :]
    mask_d, mask_h = offs_d < D, offs_h < H
    step = tl.full([1, 1, 1], dt, tl.float64)
    layer = _layer(wre_ptr, wim_ptr, gate_ptr, w_ptr, model, offs_d, offs_h, D, H, CLIP, ACC)
    acc_w = tl.zeros([BLOCK_B, BLOCK_H, BLOCK_D], dtype=ACC)
    acc_gate = tl.zeros([BLOCK_B, 1, BLOCK_D], dtype=ACC)
    sums = (acc_w, acc_w, acc_gate, acc_w)  # Wr, Wi, g, A
    size: tl.constexpr = 2 * (D + H)
    for tile in range(loop_end(tiles)):
        offs_b = ((split * tiles + tile) * BLOCK_B + tl.arange(0, BLOCK_B))[:, None, None]
        mask_u = (offs_b < B) & mask_d
        mask_y = (offs_b < B) & mask_h
        g = tl.zeros([BLOCK_B, 1, BLOCK_D], dtype=ACC)
        row = model * B + offs_b
        offs_u = (row * (steps + 1) + steps) * D + offs_d
        offs_s = (row + 1) * steps * STAGES * size

        if grad_derivatives_ptr is not None:
            v = tl.load(trajectory_ptr + offs_u, mask=mask_u, other=1.0)
            _, log_r, y, s = _rhs(v, layer, mask_u, mask_y, EPS, HAS_IM)
            dk = tl.load(grad_derivatives_ptr + offs_u, mask=mask_u, other=0.0)
            g, sums = _vjp((v, log_r, y, s), dk, layer, mask_u, mask_y, sums, EPS, HAS_IM, NEEDS)
        if grad_trajectory_ptr is not None:
            g += tl.load(grad_trajectory_ptr + offs_u, mask=mask_u, other=0.0)

        for _ in range(loop_end(steps)):
            offs_u -= D
            if stages_ptr is None:
                u = tl.load(trajectory_ptr + offs_u, mask=mask_u, other=1.0)
                stages = _stages(u, step, layer, mask_u, mask_y, STAGES, TABLEAU, EPS, HAS_IM)
            dv = ()  # of the stages from i + 1 on
            for i in tl.static_range(STAGES - 1, -1, -1):
                dk = _upstream(g, dv, step, i, STAGES, TABLEAU)
                if i == 0:
                    if grad_derivatives_ptr is not None:
                        dk += tl.load(grad_derivatives_ptr + offs_u, mask=mask_u, other=0.0)
                if stages_ptr is None:
                    stage = stages[i]
                else:
                    offs_s -= size
                    stage = _load_stage(stages_ptr, offs_s, offs_d, offs_h, mask_u, mask_y, D, H)
                d_v, sums = _vjp(stage, dk, layer, mask_u, mask_y, sums, EPS, HAS_IM, NEEDS)
                dv = (d_v,) + dv  # type: ignore[assignment]
            for i in tl.static_range(STAGES):
                g += dv[i]
            if grad_trajectory_ptr is not None:
                g += tl.load(grad_trajectory_ptr + offs_u, mask=mask_u, other=0.0)

        if NEEDS & 1:
            tl.store(grad_u0_ptr + row * D + offs_d, g, mask=mask_u)
    _store_sums(
        sums, gate_ptr, w_ptr, grad_re_ptr, grad_im_ptr, grad_gate_ptr, grad_w_ptr,
        model, split * K + model, offs_h, offs_d, mask_h, mask_d,
        D, H, HAS_IM, CLIP, CLIP_GATE, NEEDS,
    )  # fmt: skip


# ---- launches ----

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
        **tuning.max_registers(like.device),
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
    name: str,
    states: Tensor,
    weight_re: Tensor,
    weight_im: Tensor | None,
    gate: Tensor | None,
    weight: Tensor,
) -> tuple[int, ...]:
    """Raise for weights of wrong shapes, dtypes or devices; return ``(K,)`` or ``()``."""
    *models, h, d = weight_re.shape
    shape = (*models, h, d)
    weights = {"weight_re": (weight_re, shape), "weight_im": (weight_im, shape)}
    linear = (weight, (*models, d, h))
    check_operands(name, states, **weights, gate=(gate, (*models, d)), weight=linear)
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
    """Return ``(trajectory, derivatives, stages)`` of `ode._loop`, in one launch.

    Derivatives are empty without `derivatives`, stages without `save`.
    """
    models = _check_weights("ode_forward", u0, weight_re, weight_im, gate, weight)
    h, d = weight_re.shape[-2:]
    starts = u0.shape[-2]
    check_operands("ode_forward", u0, u0=(u0, (*models, starts, d)))
    triangle, num_stages = _loop("ode_forward", tableau, steps)
    trajectory = empty(u0, (*models, starts, steps + 1, d))
    du_dt = empty(u0, trajectory.shape if derivatives else (0,))
    stages = empty(u0, ops.ode_stages(u0, weight_re, tableau, steps, derivatives) if save else (0,))
    if trajectory.numel() == 0:
        return trajectory, du_dt, stages
    options = _options(d, h, starts, u0)
    grid = math.prod(models) * -(-starts // options["BLOCK_B"])
    with device_of(u0):
        results = trajectory, du_dt if derivatives else None, stages if save else None
        start(
            ode_forward_kernel,
            grid,
            options,
            (*contiguous([u0, weight_re, weight_im, gate, weight]), *results),
            (starts, steps, dt),
            (d, h, triangle, num_stages, eps, clip, accumulator(u0.dtype)),
        )
    return trajectory, du_dt, stages


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
            f"ode_backward: stages must be what ode_forward saved, got shape {tuple(stages.shape)}"
        )
    if weight_im is None:
        needs &= ~4
    if gate is None:
        needs &= ~8
    parameters = (weight_re, weight_im, gate, weight)
    grad_u0 = empty(trajectory, (*models, starts, d) if needs & 1 else (0,))
    grads = gradients(needed(needs >> 1, parameters), parameters)
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
    saved = stages if stages.numel() else None
    tensors = contiguous([*upstream.values(), trajectory, *parameters, saved])
    with device_of(trajectory):
        start(
            ode_backward_kernel,
            math.prod(models) * splits,
            options,
            (*tensors, grad_u0, *parts),
            (math.prod(models), starts, steps, tiles, dt),
            (d, h, triangle, num_stages, eps, clip, not straight_through, needs, acc),
        )
        if splits > 1:
            re, im, gate_sum, x = (
                pair if pair[1].numel() else None for pair in zip(parts, grads, strict=True)
            )
            sum_partials(acc, re=re, im=im, x=x, gate=gate_sum)
    return (grad_u0, *grads)  # type: ignore[return-value]
