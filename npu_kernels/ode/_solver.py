"""The time loop: check, choose, call."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling
from torch.jit import is_tracing
from torch.utils.checkpoint import checkpoint

from npu_kernels import functional
from npu_kernels._backends import fast_path
from npu_kernels._operators import dispatch, operands
from npu_kernels._operators.autograd import eager_only
from npu_kernels.ode import _accuracy as accuracy
from npu_kernels.ode import _adaptive as adaptive
from npu_kernels.ode import _checks as checks
from npu_kernels.ode._function import (
    Loop,
    RolloutFunction,
    as_rows,
    backward_of_the_fast_path,
    forward,
)
from npu_kernels.ode._operators import has_time_loop
from npu_kernels.ode._reference import METHODS, solve
from npu_kernels.reference import CLIP

fast_path.set_backward("ode", backward_of_the_fast_path)


def rollout(
    model: nn.Module,
    u0: Tensor,
    *,
    steps: int | None = None,
    dt: float | None = None,
    t: Tensor | Sequence[float] | None = None,
    method: str = "euler",
    rtol: float = adaptive.RTOL,
    atol: float = adaptive.ATOL,
    max_steps: int = adaptive.MAX_STEPS,
    memory: str = "full",
    nonfinite: str = "raise",
    derivatives: bool = False,
    error: bool = False,
    statistics: bool = False,
) -> Tensor | tuple[Tensor, ...]:
    """The trajectory of ``u' = model(u)`` at times 0, dt, .. steps dt, or by adaptive steps at times t.

    Args:
        model: an ``nn.Sequential`` of NPU, RealNPU or NaiveNPU (D to h) and NAU (h to D), with or without `num_models`.
        u0: where to start. Without models ``[D]`` or B starts ``[B, D]``. With K models ``[D]`` (the same for all),
            ``[K, D]`` (two dimensions are always one start per model), ``[K, B, D]``, or ``[1, B, D]`` (the same B
            starts for all).
        steps, dt: of a method of fixed steps, how many of which size. dt may be negative; it gets no gradient.
        t: of an adaptive method, the times of the result ``[M]``, rising or falling, in any distances; u0 is the state
            at the first one. A tensor gets a gradient.
        method: of fixed steps "euler", "midpoint", "rk4" (the classic Runge-Kutta method) or "rk4_38" (the 3/8 rule,
            which is what torchdiffeq calls "rk4"); adaptive "dopri5" (of Dormand and Prince, SciPy's RK45) or "tsit5"
            (of Tsitouras).
        rtol, atol: of an adaptive method, the bound of each step's estimated error: the root mean square over the
            features of ``error / (atol + rtol |u|)`` is at most 1.
        max_steps: of an adaptive method, how many steps a trajectory may try.
        memory: what is kept for the backward pass beside the result. Fixed steps: "full", the stages' layer outputs, or
            "checkpointed", nothing in the fused loop, where every step starts again from the trajectory's own state,
            and about sqrt(steps) states in the eager one. Adaptive steps, of each trajectory: "full", the time and the
            state of every accepted step, or "checkpointed", the times and every 32nd state (in the eager form about
            sqrt(steps) of them). The rest is computed again, on the CPU to the same bits.
        nonfinite: "raise" (`NonFiniteError` names model and step or time) or "keep": trajectories with inf and nan are
            returned, and do not affect those of the other models and starts. Where adaptive steps end early, which
            "raise" reports as a `StepSizeError`, the states from there on are nan and have no gradient.
        derivatives: of fixed steps: return also ``model(u)`` at every state, for `interpolate`; gradients flow through
            it.
        error: of fixed steps: return also an estimate of the error of every state, from a second run with steps of half
            the size. It has no gradient. Together this takes three times as long. With nonfinite="raise", a trajectory
            whose error exceeds its states raises `InaccurateError`, which says whether the model is stiff and what to
            do.
        statistics: of adaptive steps: return also how many there were, a `Statistics`.

    Returns:
        The trajectory ``[(K,) (B,) steps + 1, D]``, or ``[(K,) (B,) M, D]`` with t; with `derivatives`, `error` or
        both, or with `statistics`, a tuple of such, in that order.

    With an adaptive method every trajectory has its own steps, chosen by a PI controller (Hairer's). Between its steps
    the result is the pair's interpolant, of order 4. A trajectory for which an explicit method is the wrong one says
    so: `StiffWarning`, and `StepSizeError` where max_steps do not suffice.

    The gradient is the exact one of these steps (the discrete adjoint), for u0 and all parameters. The sizes of
    adaptive steps count as constants; the gradient of a time is the state's derivative there, that of the first one
    minus the sum of the others'. Higher derivatives are correct too, computed by the eager loop. On the CPU the loop
    and its adjoint are one call each, and for fixed steps on a GPU one launch each (and one for sums of partial
    gradients) for models of up to 1024 weights per matrix, 512 in float64, counted with D and h rounded up to powers of
    two. For larger ones and for adaptive steps there, on other devices, under `torch.func` transforms and in
    forward-mode differentiation every step calls the layers.

    Raises TypeError for a model that is not of this kind; `rollout_any` takes any.

        >>> import torch
        >>> from npu_kernels import NAU, RealNPU, ode
        >>> model = torch.nn.Sequential(RealNPU(3, 9, num_models=20), NAU(9, 3, num_models=20))
        >>> u0 = torch.tensor([1.0, 0.5, 0.1])
        >>> ode.rollout(model, u0, steps=200, dt=0.1, method="rk4", nonfinite="keep").shape
        torch.Size([20, 201, 3])
    """
    power, nau = checks.layers_of(model)
    return integrate(
        u0,
        power.weight_re,
        power.weight_im,
        power.gate,
        nau.weight,
        steps=steps,
        dt=dt,
        t=t,
        method=method,
        rtol=rtol,
        atol=atol,
        max_steps=max_steps,
        memory=memory,
        nonfinite=nonfinite,
        derivatives=derivatives,
        error=error,
        statistics=statistics,
        eps=power.eps,
        gate_gradient=power.gate_gradient,
        clip=nau.clip,
        _name="rollout",
    )


def integrate(
    u0: Tensor,
    weight_re: Tensor,
    weight_im: Tensor | None,
    gate: Tensor | None,
    weight: Tensor,
    *,
    steps: int | None = None,
    dt: float | None = None,
    t: Tensor | Sequence[float] | None = None,
    method: str = "euler",
    rtol: float = adaptive.RTOL,
    atol: float = adaptive.ATOL,
    max_steps: int = adaptive.MAX_STEPS,
    memory: str = "full",
    nonfinite: str = "raise",
    derivatives: bool = False,
    error: bool = False,
    statistics: bool = False,
    eps: float | None = None,
    gate_gradient: str = CLIP,
    clip: bool = True,
    _name: str = "integrate",
) -> Tensor | tuple[Tensor, ...]:
    """The trajectory of ``u' = NAU(NPU(u))`` at times 0, dt, .. steps dt or t, for weights that are no modules.

    Args:
        u0: where to start. Without models ``[D]`` or B starts ``[B, D]``. With K models ``[D]`` (the same for all),
            ``[K, D]`` (two dimensions are always one start per model), ``[K, B, D]``, or ``[1, B, D]`` (the same B
            starts for all).
        weight_re, weight_im: real and imaginary exponents ``[(K,) h, D]``. Without weight_im it is the RealNPU.
        gate: ``[(K,) D]``. Without it it is the NaiveNPU.
        weight: the NAU's ``[(K,) D, h]``.
        steps, dt: of a method of fixed steps, how many of which size. dt may be negative; it gets no gradient.
        t: of an adaptive method, the times of the result ``[M]``, rising or falling, in any distances; u0 is the state
            at the first one. A tensor gets a gradient.
        method: of fixed steps "euler", "midpoint", "rk4" (the classic Runge-Kutta method) or "rk4_38" (the 3/8 rule,
            which is what torchdiffeq calls "rk4"); adaptive "dopri5" (of Dormand and Prince, SciPy's RK45) or "tsit5"
            (of Tsitouras).
        rtol, atol: of an adaptive method, the bound of each step's estimated error: the root mean square over the
            features of ``error / (atol + rtol |u|)`` is at most 1.
        max_steps: of an adaptive method, how many steps a trajectory may try.
        memory: what is kept for the backward pass, "full" or, less of it, "checkpointed" (see `rollout`).
        nonfinite: "raise" (`NonFiniteError` names model and step or time) or "keep": trajectories with inf and nan are
            returned.
        derivatives: of fixed steps: return also the right-hand side at every state, for `interpolate`.
        error: of fixed steps: return also an estimate of the error of every state (see `rollout`).
        statistics: of adaptive steps: return also how many there were, a `Statistics`.
        eps: added to ``|u|``; None for the machine epsilon of the dtype.
        gate_gradient: "clip" (none where the gate is outside [0, 1]) or "straight_through".
        clip: clip the NAU's weight to [-1, 1].

    Returns the trajectory ``[(K,) (B,) steps + 1, D]``, or ``[(K,) (B,) M, D]`` with t; with `derivatives`, `error` or
    both, or with `statistics`, a tuple of such. Raises ValueError for shapes and values, TypeError for dtypes.
    """
    if adaptive.is_asked_for(t, method):
        found: Tensor | tuple[Tensor, ...] = adaptive.integrate(
            _name,
            u0,
            (weight_re, weight_im, gate, weight),
            t,
            method,
            {"steps": steps, "dt": dt, "derivatives": derivatives, "error": error},
            rtol=rtol,
            atol=atol,
            max_steps=max_steps,
            memory=memory,
            nonfinite=nonfinite,
            statistics=statistics,
            eps=eps,
            gate_gradient=gate_gradient,
            clip=clip,
        )
        return found
    adaptive.refuse(_name, method, rtol, atol, max_steps, statistics)
    steps, dt = checks.check_options(_name, steps, dt, method, memory, nonfinite)
    if error is not False:
        options = {
            "derivatives": derivatives,
            "eps": eps,
            "gate_gradient": gate_gradient,
            "clip": clip,
            "_name": _name,
        }
        options |= {
            "steps": steps,
            "dt": dt,
            "method": method,
            "memory": memory,
            "nonfinite": nonfinite,
        }
        return _with_error(error, u0, (weight_re, weight_im, gate, weight), options)
    plain = (METHODS[method], steps, dt, eps, gate_gradient, clip, memory, derivatives)
    fast = _by_fast_path(_name, u0, (weight_re, weight_im, gate, weight), plain, nonfinite)
    if fast is not None:
        return fast
    for name, flag in (("derivatives", derivatives), ("clip", clip)):
        if not isinstance(flag, bool):
            raise TypeError(f"{_name}: {name} must be True or False, got {flag!r}")
    eps, many = checks.check_operands(
        _name, u0, (weight_re, weight_im, gate, weight), eps, gate_gradient
    )
    if nonfinite == "raise" and (
        is_compiling() or is_tracing() or torch._C._are_functorch_transforms_active()
    ):
        raise RuntimeError(
            f"{_name}: nonfinite='raise' has to look at the values, which torch.compile, torch.func and "
            "torch.jit.trace cannot; say nonfinite='keep'"
        )

    loop = Loop(METHODS[method], steps, dt, eps, gate_gradient, clip, memory, derivatives, many)
    run = _fused if has_time_loop(weight_re) and not eager_only() else _eager
    trajectory, slopes = run(loop, u0, weight_re, weight_im, gate, weight)
    if nonfinite == "raise":
        checks.raise_nonfinite(_name, trajectory, slopes, weight_re.dim() == 3, many)
    return trajectory if slopes is None else (trajectory, slopes)


def _by_fast_path(
    name: str,
    u0: Tensor,
    weights: tuple[Tensor | None, ...],
    options: tuple[Any, ...],
    nonfinite: str,
) -> Tensor | tuple[Tensor, Tensor] | None:
    """What `integrate` gives; None where the general way is to handle errors and special cases."""
    if fast_path.ode is None or is_compiling() or dispatch.forced() not in dispatch.FAST_PATH:
        return None
    found = fast_path.ode(u0, *weights, *options)
    if found is NotImplemented:
        return None
    trajectory, slopes, finite = found
    if nonfinite == "raise" and not finite:
        assert weights[0] is not None
        dimensions = weights[0].dim()
        checks.raise_nonfinite(name, trajectory, slopes, dimensions == 3, u0.dim() == dimensions)
    return (trajectory, slopes) if options[-1] else trajectory


def _with_error(
    error: Any, u0: Tensor, weights: tuple[Tensor | None, ...], options: dict[str, Any]
) -> tuple[Tensor, ...]:
    """What `integrate` gives without `error`, and the estimate."""
    name, method, dt = options["_name"], options["method"], options["dt"]
    if error is not True:
        raise TypeError(f"{name}: error must be True or False, got {error!r}")
    options["nonfinite"], nonfinite = "keep", options["nonfinite"]
    found = integrate(u0, *weights, **options)  # type: ignore[arg-type]
    outputs = found if isinstance(found, tuple) else (found,)
    with torch.no_grad():
        twice = {"steps": 2 * options["steps"], "dt": dt / 2, "derivatives": False}
        halved: Any = integrate(u0, *weights, **(options | twice))  # type: ignore[arg-type]
        size = accuracy.estimate(outputs[0], halved, method)
    weight_re = weights[0]
    assert weight_re is not None
    models, many = weight_re.dim() == 3, outputs[0].dim() > weight_re.dim()

    def hint(at: tuple[int, ...], state: Tensor) -> str:
        eps = operands.EPS[state.dtype] if options["eps"] is None else options["eps"]
        f = accuracy.right_side(weights, at[0] if models else None, eps, options["clip"])
        return accuracy.stiffness(f, state.detach(), dt, method)

    if nonfinite == "raise":
        accuracy.raise_inaccurate(name, outputs[0], size, hint, models, many)
        checks.raise_nonfinite(
            name, outputs[0], outputs[1] if len(outputs) > 1 else None, models, many
        )
    return *outputs, size


def _fused(loop: Loop, *tensors: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """One call of the backend."""
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors):
        trajectory, slopes = RolloutFunction.apply(loop, *tensors)  # type: ignore[no-untyped-call]
    else:
        trajectory, slopes, _ = forward(loop, False, *tensors)  # type: ignore[arg-type]
    return trajectory, slopes if loop.derivatives else None


def _eager(
    loop: Loop,
    u0: Tensor,
    weight_re: Tensor,
    weight_im: Tensor | None,
    gate: Tensor | None,
    weight: Tensor,
) -> tuple[Tensor, Tensor | None]:
    """Step by step through the layers' functions: any device, any mode of differentiation."""

    def f(u: Tensor) -> Tensor:
        y = functional.npu(
            u, weight_re, weight_im, gate, eps=loop.eps, gate_gradient=loop.gate_gradient
        )
        return functional.nau(y, weight, clip=loop.clip)

    rows = as_rows(u0, weight_re, loop.many)
    with torch.autocast(u0.device.type, enabled=False):
        save_memory = loop.memory == "checkpointed" and torch.is_grad_enabled() and not eager_only()
        run = _checkpointed if save_memory else solve
        states, slopes = run(f, rows, loop.tableau, loop.steps, loop.dt, loop.derivatives)
        trajectory, derivatives = (
            torch.stack(states, -2),
            torch.stack(slopes, -2) if loop.derivatives else None,
        )
    if not loop.many:
        return trajectory.squeeze(-3), None if derivatives is None else derivatives.squeeze(-3)
    return trajectory, derivatives


def _checkpointed(
    f: Callable[[Tensor], Tensor],
    u0: Tensor,
    tableau: Sequence[float],
    steps: int,
    dt: float,
    last: bool,
) -> tuple[list[Tensor], list[Tensor]]:
    """`solve` in about sqrt(steps) segments, of which only the first states are kept."""
    length = math.isqrt(steps - 1) + 1
    states, slopes = [u0], []
    for first in range(0, steps, length):
        count = min(length, steps - first)
        ends = first + count == steps
        more, k = checkpoint(
            solve, f, states[-1], tableau, count, dt, last and ends, use_reentrant=False
        )
        states += more[1:]
        slopes += k
    return states, slopes
