"""The public calls `rollout` and `integrate`, which choose the kind of the steps."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling
from torch.jit import is_tracing

from npu_kernels._operators.operands import EPS
from npu_kernels.ode import _adaptive as adaptive
from npu_kernels.ode import _checks as checks
from npu_kernels.ode import _inputs as known
from npu_kernels.ode import _methods as methods
from npu_kernels.ode._adaptive import Statistics
from npu_kernels.ode._checks import Options
from npu_kernels.ode._loop import Loop, Weights, by_fast_path, layers_of, run
from npu_kernels.reference import CLIP

Solve = Callable[[checks.Options, Tensor, Weights], Any]


def has_rows(t: Any) -> bool:
    """Return whether t has times for each start: two dimensions, or a list of lists or tensors."""
    if isinstance(t, (list, tuple)):
        return bool(t) and all(
            isinstance(row, (list, tuple)) or getattr(row, "ndim", 0) for row in t
        )
    return getattr(t, "ndim", 1) == 2


def integrate_each_start(
    options: checks.Options, u0: Tensor, weights: Weights, solve: Solve
) -> Any:
    """Return what `solve` returns for common times, nan after the last time of each start.

    Starts whose first and last times are the same are one call, at the times of all of them.
    """
    rows = _rows(options.function, options.t)
    has_starts = u0.dim() == weights[0].dim()
    if not has_starts or u0.shape[-2] != len(rows):
        raise ValueError(
            f"{options.function}: t of two dimensions must have a row for each start, got "
            f"{len(rows)} rows for u0 of shape {tuple(u0.shape)}"
            + ("" if has_starts else ", which has no dimension of starts")
        )
    length = max(map(len, rows))
    paths: dict[int, Tensor] = {}
    counts: dict[int, Statistics] = {}
    for numbers in _groups(rows):
        times = rows[numbers[0]] if len(numbers) == 1 else _union([rows[n] for n in numbers])
        part = options._replace(t=times, starts=tuple(numbers))
        result = solve(part, u0[..., numbers, :], weights)
        path, *rest = result if isinstance(result, tuple) else (result,)
        for position, n in enumerate(numbers):
            states = path[..., position, :, :]
            if len(numbers) > 1:
                states = states[..., torch.isin(times, rows[n]).to(states.device), :]
            padding = (0, 0, 0, length - len(rows[n]))
            paths[n] = torch.nn.functional.pad(states, padding, value=math.nan)
            if rest:
                counts[n] = Statistics._make(part[..., position] for part in rest[0])
    path = torch.stack([paths[n] for n in range(len(rows))], -3)
    if not options.return_statistics:
        return path
    columns = zip(*(counts[n] for n in range(len(rows))), strict=True)
    return path, Statistics._make(torch.stack(column, -1) for column in columns)


def _rows(function: str, t: Any) -> list[Tensor]:
    """Return the times of each start, without the nan after them."""
    rows = []
    for number, row in enumerate(t):
        times = row if isinstance(row, Tensor) else torch.as_tensor(row, dtype=torch.float64)
        is_time = ~times.isnan()
        count = int(is_time.sum())
        if times.dim() != 1 or not is_time[:count].all():
            raise ValueError(
                f"{function}: t must have nan only after the last time of a start, got "
                f"{times.tolist()} for start {number}"
            )
        if count < 2:
            raise ValueError(
                f"{function}: t must have at least two times for each start, got {times.tolist()} "
                f"for start {number}"
            )
        rows.append(checks.check_times(function, times[:count]))
    return rows


def _groups(rows: list[Tensor]) -> list[list[int]]:
    """Return the numbers of the starts with the same first and last time.

    A start whose times need a gradient of their own is alone.
    """
    groups: dict[Any, list[int]] = {}
    for number, times in enumerate(rows):
        span = *times.detach()[[0, -1]].tolist(), times.dtype
        groups.setdefault(number if times.requires_grad else span, []).append(number)
    return list(groups.values())


def _union(rows: list[Tensor]) -> Tensor:
    """Return all times of some starts, in their direction."""
    times: Tensor = torch.cat(rows).unique()
    return times if rows[0][-1] > rows[0][0] else times.flip(0)


# ---- the calls -----------------------------------------------------------------------------------

Inputs = tuple[Tensor | Sequence[float], Tensor | Sequence[float] | Sequence[Sequence[float]]]


def rollout(
    model: nn.Module,
    u0: Tensor,
    *,
    steps: int | None = None,
    dt: float | None = None,
    t: Tensor | Sequence[float] | Sequence[Tensor] | Sequence[Sequence[float]] | None = None,
    method: str | None = None,
    rtol: float = checks.RTOL,
    atol: float | None = None,
    max_steps: int = checks.MAX_STEPS,
    memory: str = "full",
    nonfinite: str = "raise",
    return_derivatives: bool = False,
    return_error: bool = False,
    return_statistics: bool = False,
    inputs: Inputs | None = None,
) -> Tensor | tuple[Tensor, ...]:
    """Return the trajectory of ``u' = model(u)`` at ``0, dt, ..., steps * dt`` or at times t.

    Args:
        model: an ``nn.Sequential`` of NPU, RealNPU or NaiveNPU (D to h) and NAU (h to D), with or
            without `num_models`.
        u0: initial states. Without `num_models` ``[D]``, or B initial states ``[B, D]``. With K
            models ``[D]`` (the same for all models), ``[K, D]`` (two dimensions are always one
            initial state per model), ``[K, B, D]``, or ``[1, B, D]`` (the same B initial states for
            all models).
        steps, dt: number and size of fixed steps. dt may be negative; it gets no gradient.
        t: times of the result ``[M]``, increasing or decreasing, with any spacing, for an adaptive
            method; in place of steps and dt. An explicit solver chooses its own steps, so many
            times cost little; kvaerno5 takes one more step to each time. u0 is the state at the
            first time. If t is a tensor that requires a gradient, it gets one. Different times for
            each initial state: ``[B, M]`` padded with nan at the end, or a list of B tensors, which
            is padded; the result is nan at padded times. Initial states with the same first and
            last time are computed in one call, unless their times require a gradient.
        method: for fixed steps "euler" (the default without t), "midpoint", "rk4" (the classic
            Runge-Kutta method) or "rk4_38" (the 3/8 rule, which torchdiffeq calls "rk4"); adaptive
            "tsit5" (Tsitouras; the default with t), "dopri5" (Dormand and Prince, SciPy's RK45),
            "kvaerno5" (Kvaerno, implicit, for stiff models) or "auto": tsit5, and kvaerno5 for each
            trajectory that is too stiff or does not reach its last time.
        rtol, atol: tolerances of an adaptive method for the estimated error of each step: the root
            mean square over the features of ``error / (atol + rtol |u|)`` is at most 1. atol must
            be small compared with the states. None: ``1e-9 * min(1, eps / machine epsilon)`` with
            the eps of the layer. Most models have 1e-9; models that `ode.fit` returns for small
            states have a smaller eps.
        max_steps: maximum number of steps that an adaptive method tries per trajectory.
        memory: what is saved for backward in addition to the result. "full": memory grows with the
            number of steps. "checkpointed": much less. Backward computes what is not saved again,
            on the CPU bitwise identically. See "Memory" below.
        nonfinite: "raise" (`NonFiniteError` names model and step or time) or "keep": trajectories
            with inf and nan are returned, and do not affect other models and initial states. If
            adaptive steps end early, the states after that time are nan and have no gradient; with
            "raise" that is a `StepSizeError`.
        return_derivatives: for fixed steps: also return ``model(u)`` at every state, for
            `interpolate`; it is differentiable.
        return_error: for fixed steps without inputs: also return an estimate of the error of every
            state, from a second run with steps of half the size, which takes two thirds of the
            total time. It has no gradient. With nonfinite="raise", a trajectory whose error is
            larger than its states raises `InaccurateError`, which reports whether the model is
            stiff and what to do.
        return_statistics: for adaptive steps: also return the numbers of steps, a `Statistics`.
        inputs: exogenous inputs v(t), such as a forcing or a dose: ``(times, values)``, times
            ``[T]`` and values ``[T]`` or ``[T, J]``, linear between the times, the same for all
            models and initial states. The NPU then has D + J in_features, the states first: ``u' =
            model(u, v)``. The values get a gradient. Each segment between two of these times is one
            call of the solver, with max_steps steps. For fixed steps, which begin at time 0, the
            times must be multiples of dt, up to the rounding of their dtype.

    Returns:
        The trajectory ``[(K,) (B,) steps + 1, D]``, or ``[(K,) (B,) M, D]`` with t; K and B only if
        there are models and a batch. With `return_derivatives`, `return_error` or both, or with
        `return_statistics`, a tuple of the trajectory and these results, in that order.

    Raises:
        TypeError: the model is not of this kind; torchdiffeq's odeint takes any model.
        ValueError: an argument is invalid.
        NonFiniteError, StepSizeError, InaccurateError: the trajectory is not finite, needs more
            than max_steps, or is inaccurate.

    With an adaptive method every trajectory has its own steps, chosen by a PI controller (Hairer).
    Between steps, explicit methods interpolate with order 4. kvaerno5 takes a separate implicit
    step to each time of t, so the states are as accurate as at the ends of steps. A trajectory for
    which an explicit method is unsuitable gives a `StiffWarning`, and a `StepSizeError` if
    max_steps do not suffice; "auto" computes it again with "kvaerno5".

    Gradients with respect to u0 and all parameters are exact for these steps (the discrete
    adjoint). Where a state or an input is 0, they are derivatives from the right, which for integer
    exponents equal the ordinary derivatives. The sizes of adaptive steps are treated as constants.
    The derivative of the state at a time with respect to this time is u'. Without inputs, the
    gradient of the first time is minus the sum of the gradients of the other times. Higher
    derivatives are computed by the eager loop. With implicit steps only the first and the second
    derivative are correct. Their error is that of Newton's iterations, a small share of the
    tolerance.

    Memory: with fixed steps, "full" saves the outputs of the layers at every stage, "checkpointed"
    nothing in the fused loop (see below) and about sqrt(steps) states in the eager loop. Under
    saved-tensor hooks, such as those of `torch.utils.checkpoint`, fixed steps are "checkpointed".
    With adaptive steps, "full" saves the time and the state of every accepted step of each
    trajectory, and the seven derivatives of an implicit step; "checkpointed" saves the times and
    every 32nd state, in the eager loop about sqrt(steps) states.

    The fused loop: on the CPU the loop and its adjoint are one call each. On a GPU there is a fused
    loop for fixed steps if the product of D and h, both rounded up to powers of two, is at most
    1024 (512 in float64): one launch each, and one more for sums of partial gradients. The eager
    loop, in which every step calls the layers, is used for larger models, for adaptive steps on a
    GPU, on other devices, under `torch.func` transforms and in forward-mode differentiation.
    Adaptive methods do not run under `torch.func.vmap`.

        >>> import torch
        >>> from npu_kernels import NAU, RealNPU, ode
        >>> model = torch.nn.Sequential(RealNPU(3, 9, num_models=20), NAU(9, 3, num_models=20))
        >>> u0 = torch.tensor([1.0, 0.5, 0.1])
        >>> ode.rollout(model, u0, steps=200, dt=0.1, method="rk4", nonfinite="keep").shape
        torch.Size([20, 201, 3])
    """
    driving = None if inputs is None else known.read("rollout", inputs, u0)
    power, nau = layers_of(model, inputs=0 if driving is None else driving.values.shape[1])
    options = Options(
        function="rollout",
        steps=steps,
        dt=dt,
        t=t,
        method=method,
        rtol=rtol,
        atol=atol,
        max_steps=max_steps,
        memory=memory,
        nonfinite=nonfinite,
        return_derivatives=return_derivatives,
        return_error=return_error,
        return_statistics=return_statistics,
        eps=power.eps,
        gate_gradient=power.gate_gradient,
        clip=nau.clip,
    ).checked()
    weights = power.weight_re, power.weight_im, power.gate, nau.weight
    return _solved(options, u0, weights, driving)


def integrate(
    u0: Tensor,
    weight_re: Tensor,
    weight_im: Tensor | None,
    gate: Tensor | None,
    weight: Tensor,
    *,
    steps: int | None = None,
    dt: float | None = None,
    t: Tensor | Sequence[float] | Sequence[Tensor] | Sequence[Sequence[float]] | None = None,
    method: str | None = None,
    rtol: float = checks.RTOL,
    atol: float | None = None,
    max_steps: int = checks.MAX_STEPS,
    memory: str = "full",
    nonfinite: str = "raise",
    return_derivatives: bool = False,
    return_error: bool = False,
    return_statistics: bool = False,
    eps: float | None = None,
    gate_gradient: str = CLIP,
    clip: bool = True,
) -> Tensor | tuple[Tensor, ...]:
    """Return the trajectory of ``u' = NAU(NPU(u))`` for weights instead of modules; see `rollout`.

    Args:
        u0: initial states. Without `num_models` ``[D]``, or B initial states ``[B, D]``. With K
            models ``[D]`` (the same for all models), ``[K, D]`` (two dimensions are always one
            initial state per model), ``[K, B, D]``, or ``[1, B, D]`` (the same B initial states for
            all models).
        weight_re, weight_im: real and imaginary exponents ``[(K,) h, D]``. weight_im None: RealNPU.
        gate: gates ``[(K,) D]``. None: NaiveNPU.
        weight: weights of the NAU ``[(K,) D, h]``.
        steps, dt, t, method, rtol, atol, max_steps, memory, nonfinite: same as in `rollout`.
        return_derivatives, return_error, return_statistics: same as in `rollout`.
        eps: added to ``|u|``; None for the machine epsilon of the dtype.
        gate_gradient: "clip" (no gradient for gates outside [0, 1]) or "straight_through".
        clip: clip the weight of the NAU to [-1, 1].

    Returns the trajectory ``[(K,) (B,) steps + 1, D]``, or ``[(K,) (B,) M, D]`` with t. With
    `return_derivatives`, `return_error` or both, or with `return_statistics`, returns a tuple of
    the trajectory and these results. Raises ValueError for invalid shapes and values, TypeError for
    invalid dtypes.
    """
    options = Options(
        function="integrate",
        steps=steps,
        dt=dt,
        t=t,
        method=method,
        rtol=rtol,
        atol=atol,
        max_steps=max_steps,
        memory=memory,
        nonfinite=nonfinite,
        return_derivatives=return_derivatives,
        return_error=return_error,
        return_statistics=return_statistics,
        eps=eps,
        gate_gradient=gate_gradient,
        clip=clip,
    ).checked()
    return _solved(options, u0, (weight_re, weight_im, gate, weight))


def _solved(
    options: Options, u0: Tensor, weights: Weights, inputs: known.Inputs | None = None
) -> Tensor | tuple[Tensor, ...]:
    """Compute by fixed or adaptive steps, for common times or each start's, with inputs or not."""
    if options.is_adaptive and has_rows(options.t):
        solve = functools.partial(_solved, inputs=inputs)
        paths: Tensor | tuple[Tensor, ...] = integrate_each_start(options, u0, weights, solve)
        return paths
    if inputs is not None:
        return known.integrate_with_inputs(options, u0, weights, inputs, _solved)
    if options.is_adaptive:
        result: Tensor | tuple[Tensor, ...] = adaptive.integrate(options, u0, weights)
        return result
    return (_with_error if options.return_error else _by_fixed_steps)(options, u0, weights)


def _by_fixed_steps(options: Options, u0: Tensor, weights: Weights) -> Tensor | tuple[Tensor, ...]:
    """Return the trajectory, and its derivatives if they are asked for."""
    tableau, raises = methods.METHODS[options.method], options.nonfinite == "raise"
    loop = Loop(
        tableau=tableau,
        steps=options.steps,
        dt=options.dt,
        eps=options.eps,
        gate_gradient=options.gate_gradient,
        clip=options.clip,
        memory=options.memory,
        derivatives=options.return_derivatives,
        has_starts=False,
    )
    fast = by_fast_path(loop, u0, weights)
    if fast is not None:
        trajectory, du_dt, finite = fast
        if raises and not finite:
            has_models, has_starts = weights[0].dim() == 3, u0.dim() == weights[0].dim()
            checks.raise_nonfinite(options.function, trajectory, du_dt, has_models, has_starts)
        return (trajectory, du_dt) if options.return_derivatives else trajectory
    eps, has_starts = checks.check_operands(options, u0, weights)
    if raises and (is_compiling() or is_tracing() or torch._C._are_functorch_transforms_active()):
        raise RuntimeError(
            f"{options.function}: nonfinite='raise' has to look at the values, which "
            "torch.compile, torch.func and torch.jit.trace cannot; say nonfinite='keep'"
        )
    trajectory, derivatives = run(loop._replace(eps=eps, has_starts=has_starts), u0, weights)
    if raises:
        has_models = weights[0].dim() == 3
        checks.raise_nonfinite(options.function, trajectory, derivatives, has_models, has_starts)
    return trajectory if derivatives is None else (trajectory, derivatives)


def _with_error(options: Options, u0: Tensor, weights: Weights) -> tuple[Tensor, ...]:
    """Return what `_by_fixed_steps` returns, and an estimate of the trajectory's error."""
    function, method, dt = options.function, options.method, options.dt
    first = options._replace(nonfinite="keep")
    result = _by_fixed_steps(first, u0, weights)
    outputs = result if isinstance(result, tuple) else (result,)
    trajectory, derivatives = outputs[0], outputs[1] if len(outputs) > 1 else None
    with torch.no_grad():
        second = first._replace(steps=2 * options.steps, dt=dt / 2, return_derivatives=False)
        halved = _by_fixed_steps(second, u0, weights)
        assert isinstance(halved, Tensor)
        error = checks.estimate(trajectory, halved, options.order)
    has_models, has_starts = weights[0].dim() == 3, trajectory.dim() > weights[0].dim()
    eps = EPS[trajectory.dtype] if options.eps is None else options.eps

    def hint(index: tuple[int, ...], state: Tensor) -> str:
        model = index[0] if has_models else None
        rhs = checks.right_side(weights, model, options._replace(eps=eps))
        return checks.stiffness(rhs, state.detach(), dt, method)

    if options.nonfinite == "raise":
        checks.raise_inaccurate(function, trajectory, error, hint, eps, has_models, has_starts)
        checks.raise_nonfinite(function, trajectory, derivatives, has_models, has_starts)
    return *outputs, error
